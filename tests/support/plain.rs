//! The plainest client there is: a transport and serde_json, with every check a client owes its caller.
//!
//! Owns `open`, the one place where tests get a model for a stand-in's address.

use std::sync::Arc;

use async_trait::async_trait;
use backsight::episode::{Message, Role};
use backsight::model::transport::{Answer, Call, Method, Settings, Transport};
use backsight::model::{
    ChatAnswer, ChatRequest, Error, Finish, GenerateRequest, Generated, Limits, Model, SampledToken, Scored,
    Usage,
};
use backsight::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight::tokens::{Logprob, TokenId, TopK};
use serde_json::{Value, json};

use super::stand_in::Dialect;
use super::toy::mix;

/// A model behind the stand-ins at `urls`.
pub fn open(dialect: Dialect, urls: &[String], settings: Settings) -> Arc<dyn Model> {
    let transport = Transport::open(urls, settings).unwrap();
    let scores_from_start = dialect == Dialect::Sglang;
    let limits = Limits {
        token_ids: true,
        scores: true,
        start_index: scores_from_start,
        cached_scores: scores_from_start,
        ..Limits::default()
    };
    let kind = backsight::model::remote::Kind::Vllm;
    let info = backsight::model::remote::ServerInfo {
        kind,
        version: None,
        model: "toy".into(),
        models: vec![],
        model_path: None,
        tokenizer_path: None,
        weight_version: None,
    };
    let limits = Limits { vocab_size: Some(49_157), ..limits };
    let _ = || Plain { dialect, transport: transport.clone(), limits: limits.clone() };
    match dialect {
        Dialect::Vllm => {
            Arc::new(backsight::model::vllm::Vllm::new(transport, info, limits, Default::default()))
        }
        Dialect::Sglang => {
            Arc::new(backsight::model::sglang::Sglang::new(transport, info, limits, Default::default()))
        }
    }
}

struct Plain {
    dialect: Dialect,
    transport: Transport,
    limits: Limits,
}

type Decode<'a, T> = dyn Fn(&Answer<'_>) -> Result<T, String> + Send + Sync + 'a;

impl Plain {
    async fn ask<T>(
        &self,
        path: &str,
        body: Value,
        ids: &[TokenId],
        decode: &Decode<'_, T>,
    ) -> Result<T, Error> {
        let call = Call {
            method: Method::POST,
            path,
            body: Some(body.to_string().into_bytes()),
            tokens: ids.len() as u64,
            sticky: ids.iter().take(16).fold(0, |hash, &id| mix(hash ^ u64::from(id))),
            max_answer: 4 << 20,
            timeout: None,
        };
        self.transport.call(&call, decode).await
    }

    /// Route and body of a scoring request, and the first position that has a row in the answer.
    fn score_request(&self, job: &ScoreJob) -> (&'static str, Value, usize) {
        let ids: &[TokenId] = &job.tokens()[..job.end_needed()];
        let k = job.top_k();
        match self.dialect {
            Dialect::Vllm => {
                let body = json!({"model": "toy", "prompt": ids, "max_tokens": 1, "prompt_logprobs": k});
                ("/v1/completions", body, 0)
            }
            Dialect::Sglang => {
                let start = job.first_needed().unwrap_or(1) - 1;
                let body = json!({
                    "input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                    "return_logprob": true, "logprob_start_len": start, "top_logprobs_num": k,
                });
                ("/generate", body, start)
            }
        }
    }
}

#[async_trait]
impl Model for Plain {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let body = json!({
            "model": "toy", "prompt": request.prompt, "max_tokens": request.sampling.max_tokens,
            "seed": request.sampling.seed, "return_token_ids": true,
        });
        self.ask("/v1/completions", body, &request.prompt, &|answer| {
            let json: Value =
                serde_json::from_slice(answer.body).map_err(|why| format!("not JSON: {why}"))?;
            let ids = json["choices"][0]["token_ids"].as_array().ok_or("no sampled ids")?;
            let token = |id: &Value| {
                let id = id.as_u64().ok_or("an id is no number")?;
                Ok(SampledToken { id: id as TokenId, logprob: None, top: TopK::default() })
            };
            let tokens = ids.iter().map(token).collect::<Result<_, String>>()?;
            Ok(Generated { tokens, finish: Finish::Length, usage: vllm_usage(&json["usage"])? })
        })
        .await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        let (path, body, first_row) = self.score_request(job);
        self.ask(path, body, job.tokens(), &|answer| {
            let json: Value =
                serde_json::from_slice(answer.body).map_err(|why| format!("not JSON: {why}"))?;
            let (rows, usage) = match self.dialect {
                Dialect::Vllm => (vllm_rows(&json, job)?, vllm_usage(&json["usage"])?),
                Dialect::Sglang => (sglang_rows(&json, job, first_row)?, sglang_usage(&json["meta_info"])?),
            };
            let needed = job.end_needed() - first_row;
            if rows.len() != needed {
                return Err(format!("{} rows of logprobs for {needed} tokens", rows.len()));
            }
            let row = |position: usize| match position.checked_sub(first_row).map(|at| rows[at].clone()) {
                Some(score) if position > 0 => score,
                _ => TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() },
            };
            let span = |span: &backsight::tokens::TokenSpan| {
                SpanScore::new(*span, span.range().map(row).collect()).map_err(|why| why.to_string())
            };
            let spans = job.spans().iter().map(span).collect::<Result<_, _>>()?;
            Ok(Scored { spans, usage })
        })
        .await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let text = |message: &Message| message.content.as_ref().map(|content| content.text());
        let messages: Vec<Value> = (request.messages.iter())
            .map(|message| json!({"role": message.role.name(), "content": text(message)}))
            .collect();
        let body = json!({"model": "toy", "messages": messages, "seed": request.sampling.seed});
        self.ask("/v1/chat/completions", body, &[], &|answer| {
            let json: Value =
                serde_json::from_slice(answer.body).map_err(|why| format!("not JSON: {why}"))?;
            let text = json["choices"][0]["message"]["content"].as_str().ok_or("no content")?;
            let message = Message::text(Role::Assistant, text);
            Ok(ChatAnswer { message, finish: Finish::Stop, usage: vllm_usage(&json["usage"])? })
        })
        .await
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

fn logprob(value: &Value) -> Result<Logprob, String> {
    let value = value.as_f64().ok_or_else(|| format!("{value} is no number"))?;
    Logprob::new(value).map_err(|why| why.to_string())
}

/// One score per position; a row that does not name the token that was sent is another model's.
fn vllm_rows(json: &Value, job: &ScoreJob) -> Result<Vec<TokenScore>, String> {
    let rows = json["choices"][0]["prompt_logprobs"].as_array().ok_or("no prompt_logprobs")?;
    let score = |(row, id): (&Value, &TokenId)| {
        let Some(row) = row.as_object() else { return Ok(absent()) };
        let own = row.get(&id.to_string()).ok_or_else(|| format!("token {id} is not in its row"))?;
        let entry = |(id, entry): (&String, &Value)| {
            Ok((id.parse().map_err(|_| format!("{id} is no id"))?, logprob(&entry["logprob"])?))
        };
        let top =
            if job.top_k() == 0 { vec![] } else { row.iter().map(entry).collect::<Result<_, String>>()? };
        Ok(TokenScore { logprob: Ok(logprob(&own["logprob"])?), top: TopK::new(top) })
    };
    // A row too many has no token; it is kept, so that the count shows it.
    let ids = job.tokens().iter().chain(std::iter::repeat(&job.tokens()[0]));
    rows.iter()
        .zip(ids)
        .enumerate()
        .map(|(at, pair)| if at < job.end_needed() { score(pair) } else { Ok(absent()) })
        .collect()
}

fn sglang_rows(json: &Value, job: &ScoreJob, first: usize) -> Result<Vec<TokenScore>, String> {
    let meta = &json["meta_info"];
    let rows = meta["input_token_logprobs"].as_array().ok_or("no input_token_logprobs")?;
    let tops = meta["input_top_logprobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if job.top_k() > 0 && tops.len() != rows.len() {
        return Err(format!("{} rows of candidates for {} logprobs", tops.len(), rows.len()));
    }
    let score = |(at, row): (usize, &Value)| {
        let Some(&id) = job.tokens().get(first + at).filter(|_| first + at < job.end_needed()) else {
            return Ok(absent());
        };
        if row[1].as_u64() != Some(u64::from(id)) {
            return Err(format!("row {at} is of token {} instead of {id}", row[1]));
        }
        if row[0].is_null() {
            return Ok(absent());
        }
        let own = logprob(&row[0])?;
        let entry = |entry: &Value| Ok((entry[1].as_u64().ok_or("no id")? as TokenId, logprob(&entry[0])?));
        let candidates = tops.get(at).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut top = candidates.iter().map(entry).collect::<Result<Vec<_>, String>>()?;
        if job.top_k() > 0 && !top.iter().any(|it| it.0 == id) {
            top.push((id, own));
        }
        Ok(TokenScore { logprob: Ok(own), top: TopK::new(top) })
    };
    rows.iter().enumerate().map(score).collect()
}

fn absent() -> TokenScore {
    TokenScore { logprob: Err(Absence::NotReturned), top: TopK::default() }
}

fn vllm_usage(json: &Value) -> Result<Usage, String> {
    Ok(Usage {
        prompt_tokens: json["prompt_tokens"].as_u64().ok_or("no prompt_tokens")?,
        cached_tokens: json["prompt_tokens_details"]["cached_tokens"].as_u64(),
        completion_tokens: json["completion_tokens"].as_u64().ok_or("no completion_tokens")?,
    })
}

fn sglang_usage(json: &Value) -> Result<Usage, String> {
    Ok(Usage {
        prompt_tokens: json["prompt_tokens"].as_u64().ok_or("no prompt_tokens")?,
        cached_tokens: json["cached_tokens"].as_u64(),
        completion_tokens: json["completion_tokens"].as_u64().ok_or("no completion_tokens")?,
    })
}
