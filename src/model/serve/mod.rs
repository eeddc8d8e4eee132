//! The embedded model as a server: the part of vLLM's and SGLang's protocols that our own clients use.
//!
//! Owns the routes, the shape of refusals and the HTTP loop. It plays one of the two servers at a time, because a
//! client tells them apart by the routes they have. Deliberately absent: streaming, keys, and whatever else these
//! servers follow and `wire::served` refuses by name.

mod chat;
mod sglang;
mod vllm;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Constraint, Error, Finish, Model as _, Place, Sampling, Scored};
use crate::wire::served::{self, Drawing};
use backsight_core::named;
use backsight_core::score::ScoreJob;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};
use backsight_engine::model::Embedded;

/// A request longer than this is refused.
const MAX_BODY: usize = 64 << 20;

/// Which server is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

named!(Personality: Vllm = "vllm", Sglang = "sglang");

/// A model that is served.
pub struct Served {
    /// The model.
    pub model: Embedded,
    /// The name it is served under.
    pub name: String,
    /// Where it came from.
    pub path: String,
    /// Which server is played.
    pub personality: Personality,
    /// The largest K that is answered, as vLLM's `--max-logprobs`.
    pub max_logprobs: usize,
    /// How many requests there were, so that unseeded draws differ.
    n_requests: AtomicUsize,
}

/// What is sent back: the status and the body.
type Reply = (u16, Value);

/// Why a request is refused.
struct Refusal {
    status: u16,
    message: String,
    param: Option<&'static str>,
}

impl Refusal {
    fn bad(message: impl ToString) -> Self {
        Self { status: 400, message: message.to_string(), param: None }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status =
            if matches!(error, Error::Invalid { .. } | Error::Unsupported { .. }) { 400 } else { 500 };
        Self { status, message: error.to_string(), param: None }
    }
}

impl Served {
    /// A model that nobody has asked yet.
    pub fn new(model: Embedded, name: String, path: String, personality: Personality) -> Self {
        Self { model, name, path, personality, max_logprobs: 20, n_requests: AtomicUsize::new(0) }
    }

    async fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Reply {
        let wanted = match (path, self.personality) {
            ("/health" | "/v1/models", _)
            | ("/version", Personality::Vllm)
            | (
                "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info",
                Personality::Sglang,
            ) => Method::GET,
            ("/v1/chat/completions" | "/tokenize", _)
            | ("/v1/completions", Personality::Vllm)
            | ("/generate", Personality::Sglang) => Method::POST,
            _ => return (404, json!({"detail": "Not Found"})),
        };
        if *method != wanted {
            return (405, json!({"detail": "Method Not Allowed"}));
        }
        let answer = match path {
            "/health" => Ok(Value::Null),
            "/v1/models" => Ok(self.models()),
            "/version" => Ok(json!({"version": version()})),
            "/tokenize" => self.tokenize(body),
            "/v1/completions" => self.completion(body).await,
            "/v1/chat/completions" => self.chat(body).await,
            "/generate" => self.generate(body).await,
            _ => Ok(self.sglang_info()),
        };
        answer.map_or_else(|refusal| self.refuse(&refusal, path), |body| (200, body))
    }

    /// A refusal in the shape of the server that is played.
    fn refuse(&self, refusal: &Refusal, path: &str) -> Reply {
        let Refusal { status, message, param } = refusal;
        let kind = match status {
            404 => "NotFoundError",
            400 => "BadRequestError",
            _ => "InternalServerError",
        };
        let body = match (self.personality, path) {
            (Personality::Vllm, _) => {
                json!({"error": {"message": message, "type": kind, "param": param, "code": status}})
            }
            (Personality::Sglang, "/generate") => json!({"error": {"message": message}}),
            (Personality::Sglang, _) => {
                json!({"object": "error", "message": message, "type": kind, "param": param, "code": status})
            }
        };
        (*status, body)
    }

    fn models(&self) -> Value {
        let context_length = self.model.limits().context_length;
        served::listed(&self.name, self.personality.name(), &self.path, context_length)
    }

    fn sglang_info(&self) -> Value {
        json!({
            "model_path": self.path, "tokenizer_path": self.path, "served_model_name": self.name,
            "is_generation": true, "weight_version": "default", "version": version(),
            "context_length": self.model.limits().context_length, "disable_radix_cache": false,
        })
    }

    /// vLLM knows its models by name; SGLang takes any.
    fn check_model(&self, asked: Option<&str>) -> Result<(), Refusal> {
        match asked {
            Some(asked) if asked != self.name && self.personality == Personality::Vllm => Err(Refusal {
                status: 404,
                message: format!("The model `{asked}` does not exist. Valid aliases: {}.", self.name),
                param: Some("model"),
            }),
            _ => Ok(()),
        }
    }

    /// Another draw each time, unless a seed is given.
    fn place(&self, sampling: &Sampling) -> Place {
        let vote = if sampling.seed.is_some() { 0 } else { self.n_requests.fetch_add(1, Relaxed) };
        Place { vote, ..Place::default() }
    }

    /// The text of ids where the model has a tokenizer.
    fn text(&self, ids: &[TokenId]) -> Option<String> {
        self.model.tokenizer().ok()?.decode(ids).ok()
    }

    /// The text of sampled ids, without the token that ended them. What a constraint completes ends without one.
    fn sampled_text(&self, ids: &[TokenId], stop_ids: &[TokenId], skips_special: bool) -> String {
        let Ok(tokenizer) = self.model.tokenizer() else { return String::new() };
        let end = ids.len() - usize::from(matched(ids, stop_ids).is_some());
        let is_shown = |id: &TokenId| !(skips_special && tokenizer.is_special(*id));
        let shown: Vec<TokenId> = ids[..end].iter().copied().filter(is_shown).collect();
        tokenizer.decode(&shown).unwrap_or_default()
    }

    /// The ids of a text, with what the tokenizer adds to plain text or without.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, Refusal> {
        let tokenizer = self.model.tokenizer()?;
        let encoded = if add_special { tokenizer.encode_plain(text) } else { tokenizer.encode(text) };
        Ok(encoded.map_err(Refusal::bad)?.ids)
    }

    /// The scores of a prompt from a position on.
    async fn score_from(&self, prompt: &[TokenId], from: usize, top_k: usize) -> Result<Scored, Refusal> {
        let span = TokenSpan::at(from, prompt.len() - from);
        let job = ScoreJob::new(prompt.into(), vec![span], top_k).map_err(Refusal::bad)?;
        Ok(self.model.score(&job).await?)
    }

    fn tokenize(&self, body: &[u8]) -> Result<Value, Refusal> {
        let asked: served::Tokenize = served::read(body).map_err(Refusal::bad)?;
        let ids = self.encode(&asked.prompt, asked.add_special_tokens)?;
        Ok(json!({"count": ids.len(), "max_model_len": self.model.limits().context_length, "tokens": ids}))
    }
}

/// The K best of a row: one of ours that holds more holds the given token from outside of them.
fn best_of(top: &TopK, given: TokenId, top_k: usize) -> impl Iterator<Item = &(TokenId, Logprob)> {
    let outsider = (top.entries().len() > top_k).then_some(given);
    top.entries().iter().filter(move |it| Some(it.0) != outsider)
}

/// The stop token with which sampled ids end.
fn matched(ids: &[TokenId], stop_ids: &[TokenId]) -> Option<TokenId> {
    ids.last().copied().filter(|id| stop_ids.contains(id))
}

fn version() -> &'static str {
    concat!("backsight-", env!("CARGO_PKG_VERSION"))
}

fn finish_word(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::Other(word) => word,
    }
}

/// How to draw, from what vLLM and OpenAI call it.
fn sampling(drawing: &Drawing, default_max: usize) -> Result<Sampling, Refusal> {
    Ok(Sampling {
        temperature: drawing.temperature,
        top_p: drawing.top_p,
        top_k: usize::try_from(drawing.top_k).ok().filter(|&top_k| top_k > 0),
        seed: drawing.seed.map(i64::cast_unsigned),
        max_tokens: drawing.max_tokens.or(drawing.max_completion_tokens).unwrap_or(default_max),
        constraint: constraint(drawing)?,
    })
}

fn constraint(drawing: &Drawing) -> Result<Option<Constraint>, Refusal> {
    let format = drawing.response_format.as_ref().map(response_format).transpose()?.flatten();
    let shape = drawing.structured_outputs.as_ref().map(structured_outputs).transpose()?;
    let regex = drawing.regex.clone().map(Constraint::Regex);
    let mut all = [format, shape, regex].into_iter().flatten();
    match (all.next(), all.next()) {
        (one, None) => Ok(one),
        _ => Err(Refusal::bad("response_format, structured_outputs and regex cannot be followed together")),
    }
}

/// vLLM's shape for the text.
fn structured_outputs(shape: &Value) -> Result<Constraint, Refusal> {
    match (shape.get("json"), shape.get("regex").and_then(Value::as_str)) {
        (Some(schema), _) => Ok(Constraint::JsonSchema(schema.clone())),
        (_, Some(regex)) => Ok(Constraint::Regex(regex.to_owned())),
        _ => Err(Refusal::bad("structured_outputs must hold `json` or `regex`")),
    }
}

/// OpenAI's shape for the text.
fn response_format(format: &Value) -> Result<Option<Constraint>, Refusal> {
    let schema = format.pointer("/json_schema/schema");
    match (format.get("type").and_then(Value::as_str), schema) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(Constraint::JsonSchema(json!({"type": "object"})))),
        (Some("json_schema"), Some(schema)) => Ok(Some(Constraint::JsonSchema(schema.clone()))),
        _ => Err(Refusal::bad("response_format must be text, json_object, or json_schema with a schema")),
    }
}

/// Answers whoever connects, for as long as the future is polled.
pub async fn serve(listener: TcpListener, served: Arc<Served>) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let service = service_fn(|request| respond(&served, request));
            // A client that hangs up in the middle concerns nobody else.
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn respond(served: &Served, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let (status, body) = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => served.answer(&head.method, head.uri.path(), &body.to_bytes()).await,
        Err(why) => (413, json!({"detail": why.to_string()})),
    };
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let mut response = Response::new(Full::new(bytes));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}
