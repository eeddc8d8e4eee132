//! Anthropic's Messages API.
//!
//! Produced by Anthropic's servers, API version 2023-06-01. No answer is recorded here: the shapes
//! follow the public documentation. Owns the request, the answer and the model list. The surprises:
//! the system text is no message; `max_tokens` is required; tool results are blocks of a user
//! message and must come first in it; a call's arguments are an object, never a string; empty text
//! blocks are refused; the tokens of the cache are counted apart from `input_tokens`. A student's
//! thinking is left out of what is sent, because it is accepted only with a signature that no other
//! model can give. Deliberately absent: constraints and seeds, which the API does not have.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use super::error::server_message;
use super::{chat_answer, strict};
use backsight_core::episode::{Arguments, Content, Message, Role, ToolCall};
use backsight_core::model::{ChatAnswer, Usage};

/// The body of `POST /v1/messages`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub struct MessagesRequest<'a> {
    /// The model's name.
    pub model: &'a str,
    /// At most this many tokens.
    pub max_tokens: usize,
    /// What frames the conversation.
    pub system: Option<String>,
    /// The conversation: user and assistant in turns, each a list of blocks.
    pub messages: Vec<Value>,
    /// `{"name", "description", "input_schema"}` of each tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Between 0 and 1; left out where it is 1, the default.
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: Option<f64>,
    /// Keep this many of the likeliest tokens.
    pub top_k: Option<usize>,
}

/// The name as Anthropic knows it: without a leading `anthropic/`, dots as hyphens.
pub fn model_name(name: &str) -> String {
    name.strip_prefix("anthropic/").unwrap_or(name).replace('.', "-")
}

/// A conversation in Anthropic's form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// What frames it.
    pub system: Option<String>,
    /// User and assistant in turns.
    pub messages: Vec<Value>,
}

/// Writes a conversation. The system messages must come first.
pub fn conversation(messages: &[Message]) -> Result<Conversation, String> {
    let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    let n_system = messages.iter().take_while(is_system).count();
    let (system, rest) = messages.split_at(n_system);
    if let Some(index) = rest.iter().position(|message| is_system(&message)) {
        return Err(format!("message {} is a system message behind the first turn", n_system + index));
    }
    let mut writer = Writer::default();
    for message in rest {
        match message.role {
            Role::Assistant => writer.assistant(message),
            Role::Tool => writer.tool_result(message)?,
            _ => writer.push("user", text_blocks(message)),
        }
    }
    let texts: Vec<_> = system.iter().map(text).filter(|text| !text.is_empty()).collect();
    let system = (!texts.is_empty()).then(|| texts.join("\n\n"));
    Ok(Conversation { system, messages: writer.messages })
}

#[derive(Default)]
struct Writer {
    messages: Vec<Value>,
    /// The ids of calls that have no result yet, in order.
    open_calls: VecDeque<String>,
    n_calls: usize,
}

impl Writer {
    /// Adds blocks, to the last message if the same side spoke.
    fn push(&mut self, role: &str, mut blocks: Vec<Value>) {
        let last = self.messages.last_mut().filter(|last| last["role"] == role);
        match last.and_then(|last| last["content"].as_array_mut()) {
            Some(content) => content.append(&mut blocks),
            None if blocks.is_empty() => {}
            None => self.messages.push(json!({"role": role, "content": blocks})),
        }
    }

    fn assistant(&mut self, message: &Message) {
        let mut blocks = text_blocks(message);
        for call in &message.tool_calls {
            let id = call.id.clone().unwrap_or_else(|| format!("call_{}", self.n_calls));
            self.n_calls += 1;
            blocks.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": input(call)}));
            self.open_calls.push_back(id);
        }
        self.push("assistant", blocks);
    }

    /// A result without an id answers the oldest call that has none.
    fn tool_result(&mut self, message: &Message) -> Result<(), String> {
        let id = match &message.tool_call_id {
            Some(id) => id.clone(),
            None => self.open_calls.front().cloned().ok_or("a tool result answers no call")?,
        };
        self.open_calls.retain(|open| *open != id);
        let block = json!({"type": "tool_result", "tool_use_id": id, "content": text(message)});
        self.push("user", vec![block]);
        Ok(())
    }
}

fn text(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

fn text_blocks(message: &Message) -> Vec<Value> {
    let text = text(message);
    if text.is_empty() { Vec::new() } else { vec![json!({"type": "text", "text": text})] }
}

/// A call's arguments as the object they must be; text that is none is kept under a key of its own.
fn input(call: &ToolCall) -> Value {
    match &call.arguments {
        Arguments::Object(object) => Value::Object(object.clone()),
        Arguments::Text(text) => json!({"arguments": text}),
    }
}

/// An OpenAI tool schema in Anthropic's form.
pub fn tool(schema: &Value) -> Result<Value, String> {
    let function = schema.get("function").unwrap_or(schema);
    let name = function.get("name").and_then(Value::as_str).ok_or("a tool has no name")?;
    let empty = || json!({"type": "object", "properties": {}});
    let mut json = Map::new();
    json.insert("name".into(), name.into());
    if let Some(description) = function.get("description").filter(|it| it.is_string()) {
        json.insert("description".into(), description.clone());
    }
    let input = function.get("parameters").or(function.get("input_schema"));
    json.insert("input_schema".into(), input.cloned().unwrap_or_else(empty));
    Ok(Value::Object(json))
}

#[derive(Deserialize)]
struct Answer {
    content: Option<Vec<Block>>,
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Counted,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counted {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Self {
        let cached = counted.cache_read_input_tokens;
        let created = counted.cache_creation_input_tokens.unwrap_or(0);
        Self {
            prompt_tokens: counted.input_tokens + cached.unwrap_or(0) + created,
            cached_tokens: cached,
            completion_tokens: counted.output_tokens,
        }
    }
}

/// Reads the answer to a [`MessagesRequest`].
pub fn answered(body: &[u8]) -> Result<ChatAnswer, String> {
    let answer: Answer = strict::read(body)?;
    let Some(blocks) = answer.content else {
        return Err(format!("no content in the answer: {}", server_message(body)));
    };
    let mut message = Message::text(Role::Assistant, "");
    let (mut text, mut thinking) = (String::new(), String::new());
    for block in blocks {
        match block {
            Block::Text { text: more } => text.push_str(&more),
            Block::Thinking { thinking: more } => thinking.push_str(&more),
            Block::ToolUse { id, name, input } => message.tool_calls.push(call(id, name, input)),
            Block::Unknown => {}
        }
    }
    let only_calls = text.is_empty() && !message.tool_calls.is_empty();
    message.content = (!only_calls).then_some(Content::Text(text));
    message.reasoning = (!thinking.is_empty()).then_some(thinking);
    Ok(chat_answer(message, answer.stop_reason.as_deref(), answer.usage.into()))
}

fn call(id: String, name: String, input: Value) -> ToolCall {
    let arguments = match input {
        Value::Object(object) => Arguments::Object(object),
        Value::Null => Arguments::Object(Map::new()),
        other => Arguments::Text(other.to_string()),
    };
    ToolCall { id: Some(id), name, arguments }
}

/// Reads `GET /v1/models/NAME`: the model that a name or an alias stands for.
pub fn model_id(body: &[u8]) -> Result<String, String> {
    strict::field(body, "id")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_chat::messages::list_from_json;
    use backsight_core::model::Finish;
    use expect_test::{Expect, expect};

    fn check(messages: Value, expected: Expect) {
        let messages = list_from_json(&messages).unwrap();
        let found = match conversation(&messages) {
            Ok(it) => format!("{:?}\n{}", it.system, json!(it.messages)),
            Err(why) => format!("error: {why}"),
        };
        expected.assert_eq(&found);
    }

    #[test]
    fn names_lose_their_vendor_and_their_dots() {
        assert_eq!(model_name("anthropic/claude-opus-4.6"), "claude-opus-4-6");
        assert_eq!(model_name("claude-3-5-haiku-latest"), "claude-3-5-haiku-latest");
        assert_eq!(model_name("openrouter/anthropic/x"), "openrouter/anthropic/x");
    }

    #[test]
    fn conversations_are_turned_into_blocks() {
        check(
            json!([
                {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": "Weather?"}, {"role": "user", "content": "In Paris."},
            ]),
            expect![[r#"
                Some("Be brief.\n\nBe kind.")
                [{"role":"user","content":[{"type":"text","text":"Weather?"},{"type":"text","text":"In Paris."}]}]"#]],
        );
        check(
            json!([
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [
                    {"id": "a", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                    {"function": {"name": "g", "arguments": "oops"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "one"},
                {"role": "tool", "content": "two"},
                {"role": "user", "content": "and?"},
            ]),
            expect![[r#"
                None
                [{"role":"user","content":[{"type":"text","text":"go"}]},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":1}},{"type":"tool_use","id":"call_1","name":"g","input":{"arguments":"oops"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"one"},{"type":"tool_result","tool_use_id":"call_1","content":"two"},{"type":"text","text":"and?"}]}]"#]],
        );
    }

    #[test]
    fn conversations_that_cannot_be_sent_are_refused() {
        check(
            json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]),
            expect!["error: message 1 is a system message behind the first turn"],
        );
        check(json!([{"role": "tool", "content": "a"}]), expect!["error: a tool result answers no call"]);
    }

    #[test]
    fn tools_are_turned_around() {
        let schema = json!({"type": "function", "function": {
            "name": "f", "description": "d", "parameters": {"type": "object"}}});
        assert_eq!(
            tool(&schema).unwrap().to_string(),
            r#"{"name":"f","description":"d","input_schema":{"type":"object"}}"#
        );
        assert_eq!(
            tool(&json!({"name": "f"})).unwrap().to_string(),
            r#"{"name":"f","input_schema":{"type":"object","properties":{}}}"#
        );
        assert_eq!(tool(&json!({})).unwrap_err(), "a tool has no name");
    }

    #[test]
    fn answers_are_read() {
        let answer = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me look."},
                {"type": "server_tool_use", "id": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": 2}},
            ],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 5, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 4},
        });
        let it = answered(answer.to_string().as_bytes()).unwrap();
        expect![[r#"{"role":"assistant","content":"Let me look.","reasoning_content":"hm","tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]}"#]]
            .assert_eq(&backsight_chat::messages::to_json(&it.message).to_string());
        assert_eq!(it.finish, Finish::ToolCalls);
        assert_eq!(it.usage, Usage { prompt_tokens: 10, cached_tokens: Some(3), completion_tokens: 4 });
    }

    #[test]
    fn what_is_said_twice_is_refused() {
        let input = r#"{"path": "a", "path": "b"}"#;
        let call = format!(r#"{{"type": "tool_use", "id": "x", "name": "f", "input": {input}}}"#);
        let body = format!(r#"{{"content": [{call}]}}"#);
        assert_eq!(answered(body.as_bytes()).unwrap_err(), "the key `path` is there twice");
    }

    #[test]
    fn answers_without_content_are_refused() {
        let overloaded =
            br#"{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}"#;
        assert_eq!(answered(overloaded).unwrap_err(), "no content in the answer: Overloaded");
        let empty = answered(br#"{"content": [], "stop_reason": "end_turn"}"#).unwrap();
        assert_eq!(empty.message, Message::text(Role::Assistant, ""));
    }
}
