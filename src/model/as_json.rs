//! Requests and answers of a model as JSON, and answers read back exactly.
//!
//! Owns the form in which calls are recorded. Numbers come back bit for bit, and a position without
//! a logprob comes back with its reason. Deliberately absent: files, which are in `record`.

use serde_json::{Map, Value, json};

use super::{
    ChatAnswer, ChatRequest, Constraint, Finish, GenerateRequest, Generated, Limits, Place, SampledToken,
    Sampling, Scored, Usage,
};
use crate::score::{Absence, ScoreJob, SpanScore, TokenScore};
use crate::tokens::{Logprob, TokenId, TokenSpan, TopK};
use crate::wire::messages::{self, ArgumentForm};

/// What makes two requests for a continuation the same.
pub fn generate_request(request: &GenerateRequest) -> Value {
    json!({
        "prompt": request.prompt,
        "stop_ids": request.stop_ids,
        "top_k": request.top_k,
        "sampling": sampling(&request.sampling),
        "place": place(&request.place),
    })
}

/// What makes two scoring jobs the same.
pub fn score_job(job: &ScoreJob) -> Value {
    let spans: Vec<_> = job.spans().iter().map(|span| [span.start(), span.end()]).collect();
    json!({"tokens": job.tokens()[..], "spans": spans, "top_k": job.top_k()})
}

/// What makes two conversations the same draw.
pub fn chat_request(request: &ChatRequest) -> Value {
    let messages: Vec<_> = request.messages.iter().map(message).collect();
    json!({
        "messages": messages,
        "tools": request.tools,
        "sampling": sampling(&request.sampling),
        "place": place(&request.place),
    })
}

fn message(message: &crate::episode::Message) -> Value {
    messages::to_json_with(message, ArgumentForm::Object)
}

fn sampling(sampling: &Sampling) -> Value {
    let constraint = sampling.constraint.as_ref().map(|constraint| match constraint {
        Constraint::JsonSchema(schema) => json!({"json": schema}),
        Constraint::Regex(regex) => json!({"regex": regex}),
    });
    json!({
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "constraint": constraint,
    })
}

fn place(place: &Place) -> Value {
    json!({"task": place.task, "episode": place.episode, "step": place.step, "vote": place.vote})
}

/// A continuation.
pub fn generated(generated: &Generated) -> Value {
    let token = |token: &SampledToken| json!({"id": token.id, "logprob": token.logprob.map(Logprob::get), "top": top(&token.top)});
    let tokens: Vec<_> = generated.tokens.iter().map(token).collect();
    json!({"tokens": tokens, "finish": finish(&generated.finish), "usage": usage(generated.usage)})
}

/// Reads what [`generated`] wrote.
pub fn to_generated(json: &Value) -> Option<Generated> {
    let token = |json: &Value| {
        Some(SampledToken {
            id: to_id(json.get("id")?)?,
            logprob: to_optional_logprob(json.get("logprob")?)?,
            top: to_top(json.get("top")?)?,
        })
    };
    Some(Generated {
        tokens: each(json.get("tokens")?, token)?,
        finish: to_finish(json.get("finish")?)?,
        usage: to_usage(json.get("usage")?)?,
    })
}

/// Scores.
pub fn scored(scored: &Scored) -> Value {
    let span = |score: &SpanScore| {
        let scores: Vec<_> = score.scores().iter().map(token_score).collect();
        json!({"start": score.span().start(), "end": score.span().end(), "scores": scores})
    };
    let spans: Vec<_> = scored.spans.iter().map(span).collect();
    json!({"spans": spans, "usage": usage(scored.usage)})
}

/// Reads what [`scored`] wrote.
pub fn to_scored(json: &Value) -> Option<Scored> {
    let span = |json: &Value| {
        let (start, end) = (to_size(json.get("start")?)?, to_size(json.get("end")?)?);
        SpanScore::new(TokenSpan::new(start, end).ok()?, each(json.get("scores")?, to_token_score)?).ok()
    };
    Some(Scored { spans: each(json.get("spans")?, span)?, usage: to_usage(json.get("usage")?)? })
}

fn token_score(score: &TokenScore) -> Value {
    match &score.logprob {
        Ok(logprob) => json!({"logprob": logprob.get(), "top": top(&score.top)}),
        Err(Absence::NoContext) => json!({"absent": "no context"}),
        Err(Absence::NotReturned) => json!({"absent": "not returned"}),
        Err(Absence::NotALogprob(why)) => json!({"absent": {"not a logprob": why}}),
    }
}

fn to_token_score(json: &Value) -> Option<TokenScore> {
    if let Some(absent) = json.get("absent") {
        let why = match (absent.as_str(), absent.get("not a logprob").and_then(Value::as_str)) {
            (Some("no context"), _) => Absence::NoContext,
            (Some("not returned"), _) => Absence::NotReturned,
            (_, Some(why)) => Absence::NotALogprob(why.to_owned()),
            _ => return None,
        };
        return Some(TokenScore { logprob: Err(why), top: TopK::default() });
    }
    let logprob = to_optional_logprob(json.get("logprob")?)??;
    Some(TokenScore { logprob: Ok(logprob), top: to_top(json.get("top")?)? })
}

/// An answer to a conversation.
pub fn chat_answer(answer: &ChatAnswer) -> Value {
    json!({
        "message": message(&answer.message),
        "finish": finish(&answer.finish),
        "usage": usage(answer.usage),
    })
}

/// Reads what [`chat_answer`] wrote.
pub fn to_chat_answer(json: &Value) -> Option<ChatAnswer> {
    Some(ChatAnswer {
        message: messages::from_json(json.get("message")?).ok()?,
        finish: to_finish(json.get("finish")?)?,
        usage: to_usage(json.get("usage")?)?,
    })
}

/// What a model can do.
pub fn limits(limits: &Limits) -> Value {
    json!({
        "context_length": limits.context_length,
        "vocab_size": limits.vocab_size,
        "max_top_k": limits.max_top_k,
        "token_ids": limits.token_ids,
        "scores": limits.scores,
        "start_index": limits.start_index,
        "cached_scores": limits.cached_scores,
        "batches": limits.batches,
    })
}

/// Reads what [`limits`] wrote.
pub fn to_limits(json: &Value) -> Option<Limits> {
    let json = json.as_object()?;
    let size = |key: &str| json.get(key).and_then(to_size);
    let flag = |key: &str| json.get(key)?.as_bool();
    Some(Limits {
        context_length: size("context_length"),
        vocab_size: size("vocab_size"),
        max_top_k: size("max_top_k"),
        token_ids: flag("token_ids")?,
        scores: flag("scores")?,
        start_index: flag("start_index")?,
        cached_scores: flag("cached_scores")?,
        batches: flag("batches")?,
    })
}

fn finish(finish: &Finish) -> Value {
    match finish {
        Finish::Stop => "stop".into(),
        Finish::Length => "length".into(),
        Finish::ToolCalls => "tool_calls".into(),
        Finish::Other(word) => json!({"other": word}),
    }
}

fn to_finish(json: &Value) -> Option<Finish> {
    match json.as_str() {
        Some("stop") => Some(Finish::Stop),
        Some("length") => Some(Finish::Length),
        Some("tool_calls") => Some(Finish::ToolCalls),
        Some(_) => None,
        None => Some(Finish::Other(json.get("other")?.as_str()?.to_owned())),
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    })
}

fn to_usage(json: &Value) -> Option<Usage> {
    let json: &Map<String, Value> = json.as_object()?;
    Some(Usage {
        prompt_tokens: json.get("prompt_tokens")?.as_u64()?,
        cached_tokens: json.get("cached_tokens")?.as_u64(),
        completion_tokens: json.get("completion_tokens")?.as_u64()?,
    })
}

fn top(top: &TopK) -> Value {
    top.entries().iter().map(|&(id, logprob)| json!([id, logprob.get()])).collect()
}

fn to_top(json: &Value) -> Option<TopK> {
    let entry = |json: &Value| Some((to_id(json.get(0)?)?, to_optional_logprob(json.get(1)?)??));
    each(json, entry).map(TopK::new)
}

/// `None` when it is neither null nor a logprob.
fn to_optional_logprob(json: &Value) -> Option<Option<Logprob>> {
    match json {
        Value::Null => Some(None),
        other => Logprob::new(other.as_f64()?).ok().map(Some),
    }
}

fn to_id(json: &Value) -> Option<TokenId> {
    TokenId::try_from(json.as_u64()?).ok()
}

fn to_size(json: &Value) -> Option<usize> {
    usize::try_from(json.as_u64()?).ok()
}

fn each<T>(json: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    json.as_array()?.iter().map(read).collect()
}
