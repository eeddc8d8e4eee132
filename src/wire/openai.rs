//! OpenAI's chat route and model list, as OpenAI, vLLM, SGLang, llama.cpp and many others speak them.
//!
//! Recorded from vLLM 0.32.0, SGLang 0.5.23 and llama.cpp (`tests/fixtures/wire`). OpenAI's own
//! server is not recorded here: what is particular to it (`max_completion_tokens`, `refusal`,
//! `response_format`) follows its public documentation. Owns the chat request and answer, `usage`
//! and the model list. The surprises: content is null beside tool calls, thinking is called
//! `reasoning` by vLLM and `reasoning_content` by others, `cached_tokens` may be missing, and
//! servers list their context length under different names.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serde_with::skip_serializing_none;

use super::error::server_message;
use super::{chat_answer, strict};
use backsight_chat::messages;
use backsight_core::episode::{Content, Message, Role};
use backsight_core::model::{ChatAnswer, Usage};
use backsight_core::tokens::TokenId;

/// The body of `POST /v1/chat/completions`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChatRequest<'a> {
    /// The served name.
    pub model: &'a str,
    /// The conversation, as [`messages::to_json`] writes it.
    pub messages: Vec<Value>,
    /// JSON schemas of the tools.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tools: &'a [Value],
    /// At most this many tokens, as every compatible server calls it.
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token.
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: Option<f64>,
    /// Keep this many; not known to OpenAI itself.
    pub top_k: Option<usize>,
    /// So many answers; without it one.
    pub n: Option<usize>,
    /// Makes a draw repeatable where it is honoured; a signed number.
    pub seed: Option<i64>,
    /// A JSON schema the answer must satisfy.
    pub response_format: Option<Value>,
    /// vLLM's name for a shape of the text.
    pub structured_outputs: Option<Value>,
    /// SGLang's name for a regular expression the text must match.
    pub regex: Option<&'a str>,
}

/// Reads the answer of `POST /tokenize`, which vLLM and SGLang share.
pub fn tokenized(body: &[u8]) -> Result<Vec<TokenId>, String> {
    strict::field(body, "tokens").map_err(|why| format!("{why}: {}", server_message(body)))
}

/// The `response_format` that asks for a JSON schema.
pub fn json_schema_format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
}

#[derive(Deserialize)]
struct Chat {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Counted>,
}

#[derive(Deserialize)]
struct Choice {
    message: Value,
    finish_reason: Option<String>,
}

/// Reads the answers to a [`ChatRequest`]; what all of them cost stands at the first.
pub fn answered(body: &[u8]) -> Result<Vec<ChatAnswer>, String> {
    let answer: Chat = strict::read(body)?;
    if answer.choices.is_empty() {
        return Err(format!("no choices in the answer: {}", server_message(body)));
    }
    let usage = answer.usage.map(Usage::from).unwrap_or_default();
    let usages = std::iter::once(usage).chain(std::iter::repeat(Usage::NOTHING));
    let read = |(choice, usage): (Choice, Usage)| {
        Ok(chat_answer(said(choice.message)?, choice.finish_reason.as_deref(), usage))
    };
    // One that cannot be read is no answer; whoever wanted several asks for it again.
    let (good, bad): (Vec<_>, Vec<_>) =
        answer.choices.into_iter().zip(usages).map(read).partition(Result::is_ok);
    match bad.into_iter().next() {
        Some(why) if good.is_empty() => why.map(|it| vec![it]),
        _ => good.into_iter().collect(),
    }
}

/// Reads what the model said. Unlike a message of a conversation it may be empty, and a refusal is its text.
fn said(mut json: Value) -> Result<Message, String> {
    let Some(object) = json.as_object_mut() else {
        return Err("the choice has no message".to_owned());
    };
    object.entry("role").or_insert_with(|| Role::Assistant.name().into());
    let refusal = object.get("refusal").and_then(Value::as_str).map(str::to_owned);
    match messages::from_json(&json) {
        Ok(message) if message.role == Role::Assistant => Ok(message),
        Ok(message) => Err(format!("the answer is a {} message", message.role.name())),
        Err(messages::BadMessage::NoContent { role: "assistant", .. }) => {
            let text = Content::Text(refusal.unwrap_or_default());
            Ok(Message { content: Some(text), ..Message::text(Role::Assistant, "") })
        }
        Err(why) => Err(why.to_string()),
    }
}

/// `usage` as OpenAI-compatible servers write it.
#[derive(Deserialize)]
pub(super) struct Counted {
    #[serde(default)]
    prompt_tokens: u64,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

/// Reads the bytes of one `usage` value, which may be null.
pub(super) fn usage(bytes: &[u8]) -> Result<Usage, String> {
    let counted: Option<Counted> = strict::read(bytes).map_err(|why| format!("usage: {why}"))?;
    Ok(counted.map(Usage::from).unwrap_or_default())
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Self {
        Self {
            prompt_tokens: counted.prompt_tokens,
            cached_tokens: counted.prompt_tokens_details.and_then(|details| details.cached_tokens),
            completion_tokens: counted.completion_tokens.unwrap_or(0),
        }
    }
}

/// One entry of `GET /v1/models`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Listed {
    /// The name to ask for.
    pub id: String,
    /// Who says to own it: `vllm`, `sglang`, `llamacpp`, …
    pub owned_by: Option<String>,
    /// The directory or hub name the weights came from, where told.
    pub root: Option<String>,
    /// Tokens a sequence may have, as vLLM and SGLang tell it.
    pub max_model_len: Option<usize>,
    /// What llama.cpp tells instead.
    pub meta: Option<ModelMeta>,
}

/// llama.cpp's account of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelMeta {
    n_ctx: Option<usize>,
    n_vocab: Option<usize>,
}

impl Listed {
    /// Tokens a sequence may have, where told.
    pub fn context_length(&self) -> Option<usize> {
        self.max_model_len.or_else(|| self.meta?.n_ctx)
    }

    /// Ids at or above this do not exist, where told.
    pub fn vocab_size(&self) -> Option<usize> {
        self.meta?.n_vocab
    }
}

/// Reads `GET /v1/models`.
pub fn models(body: &[u8]) -> Result<Vec<Listed>, String> {
    strict::field(body, "data")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(body: Value, expected: Expect) {
        let found = match answered(body.to_string().as_bytes()) {
            Ok(all) => {
                let it = &all[0];
                format!("{} {:?} {:?}", messages::to_json(&it.message), it.finish, it.usage)
            }
            Err(why) => format!("error: {why}"),
        };
        expected.assert_eq(&found);
    }

    /// An answer as OpenAI documents it.
    fn chat(message: Value) -> Value {
        json!({
            "id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-5",
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29,
                "prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        })
    }

    #[test]
    fn answers_are_read() {
        check(
            chat(json!({"role": "assistant", "content": "Hello", "refusal": null, "annotations": []})),
            expect![[
                r#"{"role":"assistant","content":"Hello"} Stop Usage { prompt_tokens: 19, cached_tokens: Some(7), completion_tokens: 10 }"#
            ]],
        );
        check(
            chat(json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]})),
            expect![[
                r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]} ToolCalls Usage { prompt_tokens: 19, cached_tokens: Some(7), completion_tokens: 10 }"#
            ]],
        );
    }

    #[test]
    fn empty_answers_and_refusals_are_texts() {
        let text = |message: Value| answered(chat(message).to_string().as_bytes()).unwrap().remove(0).message;
        assert_eq!(text(json!({"role": "assistant", "content": null})), Message::text(Role::Assistant, ""));
        assert_eq!(text(json!({"content": "x"})), Message::text(Role::Assistant, "x"));
        let refused = json!({"role": "assistant", "content": null, "refusal": "no"});
        assert_eq!(text(refused), Message::text(Role::Assistant, "no"));
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        check(json!({"error": {"message": "busy"}}), expect!["error: no choices in the answer: busy"]);
        check(chat(json!("hi")), expect!["error: the choice has no message"]);
        check(chat(json!({"role": "user", "content": "x"})), expect!["error: the answer is a user message"]);
        check(
            chat(json!({"role": "assistant", "content": 5})),
            expect!["error: `content` must be a string, a list of text parts or null, not a number"],
        );
    }

    #[test]
    fn what_is_said_twice_is_refused() {
        let message = r#"{"role":"assistant","content":"a","content":"b"}"#;
        let body = format!(r#"{{"choices":[{{"message":{message}}}]}}"#);
        assert_eq!(answered(body.as_bytes()).unwrap_err(), "the key `content` is there twice");
    }

    #[test]
    fn only_what_is_set_is_sent() {
        let request = ChatRequest { model: "m", max_tokens: Some(5), ..ChatRequest::default() };
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"model":"m","messages":[],"max_tokens":5}"#);
    }
}
