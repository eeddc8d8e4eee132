//! OpenAI-compatible chat: for judges, and for collecting where a server gives no ids.
//!
//! Owns what is asked of a server that speaks only the chat route, and the chat of vLLM and SGLang,
//! who speak it too. Such a server cannot score and takes no ids, and says so before anything is
//! paid. OpenAI's newer models refuse some parameters; what a model refuses by name is left out from
//! then on, with a notice. Deliberately absent: the formats, which are in `wire::openai`.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Value, json};

use super::budget::guessed_tokens;
use super::kind::{Client, Kind, Remote, ServerInfo};
use super::remote;
use super::transport::{Answer, Outgoing, Transport};
use super::{ChatAnswer, ChatRequest, Constraint, Error, GenerateRequest, Generated, Limits, Model, Scored};
use crate::wire::openai as wire;
use backsight_chat::messages;
use backsight_core::score::ScoreJob;

/// Whatever lists models and was not recognised before: it can only be talked to.
pub static OPENAI: Kind = Kind {
    name: "openai",
    about: "Anything that speaks OpenAI's chat route",
    signs: &[("/v1/models", |body| wire::models(body).map(drop))],
    client: Some(Client {
        ask: |transport, model| Box::pin(ask(transport, model)),
        make: |it| Arc::new(OpenAi::new(it)),
    }),
    ..Kind::PLAIN
};

async fn ask(transport: &Transport, model: Option<&str>) -> Result<(ServerInfo, Limits), Error> {
    let listed = remote::listed(transport).await?;
    let model = remote::choose(&transport.server(), &listed, model)?;
    let (context_length, vocab_size) = (model.context_length(), model.vocab_size());
    let limits = Limits { context_length, vocab_size, ..OPENAI.limits.clone() };
    Ok((ServerInfo::listed(&OPENAI, &model, listed), limits))
}

/// A model behind an OpenAI-compatible server.
pub struct OpenAi {
    /// The server.
    pub remote: Remote,
    refused: Mutex<Vec<&'static str>>,
}

/// What a server may refuse to be told.
const REFUSABLE: [&str; 5] = [MAX_TOKENS, "temperature", "top_p", "top_k", "seed"];
const MAX_TOKENS: &str = "max_tokens";

/// The parameter that a refusal names as unknown or not supported.
fn refused_in(message: &str) -> Option<&'static str> {
    let lower = message.to_lowercase();
    let refuses = ["unsupported", "not support", "unrecognized", "unknown parameter", "not permitted"];
    let is_refusal = refuses.iter().any(|words| lower.contains(words));
    REFUSABLE.into_iter().find(|name| is_refusal && lower.contains(name))
}

/// Takes a parameter out of a request; the newer models have another name for the first.
fn leave_out(parameter: &str, body: &mut Value) {
    let value = body.as_object_mut().and_then(|body| body.shift_remove(parameter));
    if let Some(value) = value.filter(|_| parameter == MAX_TOKENS) {
        body["max_completion_tokens"] = value;
    }
}

impl OpenAi {
    /// A client that asks nothing beforehand.
    pub fn new(remote: Remote) -> Self {
        Self { remote, refused: Mutex::default() }
    }

    /// Draws of one conversation; what is refused on the way is left out.
    async fn together(&self, draws: &[ChatRequest]) -> Result<Vec<ChatAnswer>, Error> {
        loop {
            match chat(&self.remote, Dialect::OpenAi, draws, &self.refused()).await {
                Err(error) if self.learns_refusal(&error) => {}
                other => return other,
            }
        }
    }

    fn refused(&self) -> Vec<&'static str> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a call failed because of a parameter that was not known to be refused.
    fn learns_refusal(&self, error: &Error) -> bool {
        let Error::Refused { message, status: 400 | 422, .. } = error else { return false };
        let Some(parameter) = refused_in(message) else { return false };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.contains(&parameter) {
            return false;
        }
        refused.push(parameter);
        if parameter != MAX_TOKENS {
            let (server, model) = (self.remote.transport.server(), &self.remote.info.model);
            self.remote.notices.add(format!("`{model}` at {server} takes no {parameter}; it is left out"));
        }
        true
    }
}

#[async_trait]
impl Model for OpenAi {
    async fn generate(&self, _request: &GenerateRequest) -> Result<Generated, Error> {
        Err(unsupported(&self.remote.transport, "take token ids"))
    }

    async fn score(&self, _job: &ScoreJob) -> Result<Scored, Error> {
        Err(unsupported(&self.remote.transport, "score a prompt"))
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        only(self.together(std::slice::from_ref(request)).await)
    }

    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        chat_many(requests, |draws| self.together(draws)).await
    }

    fn limits(&self) -> &Limits {
        &self.remote.limits
    }
}

/// The error of a server that only chats.
pub(super) fn unsupported(transport: &Transport, what: &str) -> Error {
    Error::unsupported(transport.server(), what, "use a vLLM or SGLang server, or --kind embedded")
}

/// Who is spoken to; each has its own name for a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Vllm,
    Sglang,
}

/// The one answer that was asked for.
pub(super) fn only(answers: Result<Vec<ChatAnswer>, Error>) -> Result<ChatAnswer, Error> {
    let first = answers?.into_iter().next();
    first.ok_or_else(|| Error::garbled("the server", "there is no answer"))
}

/// Several conversations, draws of the same one together.
pub(super) async fn chat_many<'r, F: Future<Output = Result<Vec<ChatAnswer>, Error>>>(
    requests: &'r [ChatRequest],
    together: impl Fn(&'r [ChatRequest]) -> F,
) -> Vec<Result<ChatAnswer, Error>> {
    let mut answers = Vec::with_capacity(requests.len());
    while let Some(first) = requests.get(answers.len()) {
        let rest = &requests[answers.len()..];
        let n = rest.iter().take_while(|it| it.is_another_draw_of(first)).count();
        let some = match together(&rest[..n]).await {
            Ok(some) => some,
            Err(Error::Refused { .. }) if n > 1 => Vec::new(),
            Err(error) => {
                answers.extend(std::iter::repeat_n(Err(error), n));
                continue;
            }
        };
        // Who does not know how to draw several gives one or refuses, and is asked for each of the others.
        let alone = rest[..n].iter().skip(some.len()).map(|it| together(std::slice::from_ref(it)));
        let alone = join_all(alone).await.into_iter().map(only);
        answers.extend(some.into_iter().take(n).map(Ok).chain(alone));
    }
    answers
}

/// Draws of one conversation over OpenAI's chat route, without the parameters that are refused.
pub(super) async fn chat(
    remote: &Remote,
    dialect: Dialect,
    draws: &[ChatRequest],
    refused: &[&str],
) -> Result<Vec<ChatAnswer>, Error> {
    let [request, others @ ..] = draws else { return Ok(Vec::new()) };
    let mut body = chat_request(&remote.info.model, dialect, request);
    if !others.is_empty() {
        body.n = Some(draws.len());
        // One seed for all of them would make them one draw where it is honoured for each.
        body.seed = body.seed.filter(|_| dialect == Dialect::Vllm);
    }
    if body.regex.is_some() && dialect == Dialect::OpenAi {
        return Err(unsupported(&remote.transport, "force a text to match a regular expression"));
    }
    let mut body = json!(body);
    refused.iter().for_each(|parameter| leave_out(parameter, &mut body));
    post_chat(&remote.transport, "/v1/chat/completions", &body, draws, wire::answered).await
}

/// Sends a conversation as `body` and reads the answer.
pub(super) async fn post_chat<T>(
    transport: &Transport,
    path: &str,
    body: &(impl Serialize + Sync),
    draws: &[ChatRequest],
    decode: fn(&[u8]) -> Result<T, String>,
) -> Result<T, Error> {
    let write = |_: &str| remote::body(body);
    let n_sampled: usize = draws.iter().map(|it| it.sampling.max_tokens).sum();
    let call = Outgoing {
        tokens: draws.iter().map(guessed_tokens).sum(),
        sticky: draws.first().map_or(0, |it| remote::sticky_step(&it.place)),
        max_answer: remote::max_answer(n_sampled, 0),
        ..Outgoing::post(path, &write)
    };
    transport.call(&call, &|answer: &Answer<'_>| decode(answer.body)).await
}

fn chat_request<'a>(model: &'a str, dialect: Dialect, request: &'a ChatRequest) -> wire::ChatRequest<'a> {
    let sampling = &request.sampling;
    let mut body = wire::ChatRequest {
        model,
        messages: request.messages.iter().map(messages::to_json).collect(),
        tools: &request.tools,
        max_tokens: Some(sampling.max_tokens),
        temperature: Some(sampling.temperature),
        top_p: (sampling.top_p < 1.0 || dialect != Dialect::OpenAi).then_some(sampling.top_p),
        top_k: sampling.top_k,
        seed: sampling.seed.map(remote::signed),
        ..wire::ChatRequest::default()
    };
    match (&sampling.constraint, dialect) {
        (None, _) => {}
        (Some(constraint), Dialect::Vllm) => body.structured_outputs = Some(structured_outputs(constraint)),
        (Some(Constraint::JsonSchema(schema)), _) => {
            body.response_format = Some(wire::json_schema_format(schema));
        }
        (Some(Constraint::Regex(regex)), _) => body.regex = Some(regex),
    }
    body
}

/// A constraint as vLLM writes it, on both of its routes.
pub(super) fn structured_outputs(constraint: &Constraint) -> Value {
    match constraint {
        Constraint::JsonSchema(schema) => json!({"json": schema}),
        Constraint::Regex(regex) => json!({"regex": regex}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Place, Sampling};
    use backsight_core::episode::{Message, Role};
    use serde_json::json;

    fn request(constraint: Option<Constraint>) -> ChatRequest {
        ChatRequest {
            messages: vec![Message::text(Role::User, "hi")],
            tools: vec![],
            sampling: Sampling {
                temperature: 0.7,
                top_p: 1.0,
                top_k: None,
                seed: Some(6),
                max_tokens: 9,
                constraint,
            },
            place: Place::default(),
        }
    }

    /// What is sent, beside model and messages.
    fn check(dialect: Dialect, constraint: Option<Constraint>, refused: &[&str], expected: &str) {
        let request = request(constraint);
        let mut body = json!(chat_request("m", dialect, &request));
        refused.iter().for_each(|it| leave_out(it, &mut body));
        let sent = body.to_string();
        let start = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"#;
        assert_eq!(sent, format!("{start}{expected}}}"));
    }

    #[test]
    fn each_dialect_has_its_own_constraints() {
        let schema = || Some(Constraint::JsonSchema(json!({"type": "object"})));
        let regex = || Some(Constraint::Regex("a|b".to_owned()));
        let plain = r#""max_tokens":9,"temperature":0.7,"top_p":1.0,"seed":3"#;
        check(Dialect::Vllm, None, &[], plain);
        check(
            Dialect::Vllm,
            schema(),
            &[],
            &format!(r#"{plain},"structured_outputs":{{"json":{{"type":"object"}}}}"#),
        );
        check(Dialect::Vllm, regex(), &[], &format!(r#"{plain},"structured_outputs":{{"regex":"a|b"}}"#));
        check(Dialect::Sglang, regex(), &[], &format!(r#"{plain},"regex":"a|b""#));
        let openai = r#""max_tokens":9,"temperature":0.7,"seed":3"#;
        let format = r#""response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object"}}}"#;
        check(Dialect::OpenAi, schema(), &[], &format!("{openai},{format}"));
        let refused = [MAX_TOKENS, "temperature", "seed"];
        check(Dialect::OpenAi, None, &refused, r#""max_completion_tokens":9"#);
    }

    #[test]
    fn refused_parameters_are_recognised() {
        let check = |message: &str, expected| assert_eq!(refused_in(message), expected, "{message}");
        check(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            Some(MAX_TOKENS),
        );
        check(
            "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is supported.",
            Some("temperature"),
        );
        check("Unrecognized request argument supplied: top_k", Some("top_k"));
        check("max_tokens must be at least 1, got 0.", None);
        check("This model's maximum context length is 4096 tokens.", None);
    }
}
