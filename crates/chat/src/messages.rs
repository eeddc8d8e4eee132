//! Messages as OpenAI's chat API writes them, the form every other tool also reads and writes.
//!
//! Produced by OpenAI-compatible servers, trainers' datasets and users' files. Owns the conversion
//! between that JSON and [`Message`]. The surprises: tool arguments come as a JSON string, as an
//! object, or wrapped as `{"arguments": "<json>"}`; thinking is called `reasoning_content`,
//! `reasoning` or `thinking`; content is a string, a list of parts, or null beside tool calls.
//! Deliberately absent: rendering, which is the business of `chat`.

use serde_json::{Map, Value, json};

use super::json;
use backsight_core::episode::{Arguments, Content, Message, Role, ToolCall};
use backsight_core::named;

/// The names under which a message may carry its reasoning, the one we write first; where there are several, the first one counts.
pub const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// How the arguments of tool calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentForm {
    /// A string of JSON, as OpenAI's API has it.
    Text,
    /// The object itself, as chat templates want it.
    Object,
}

named!(ArgumentForm: Text = "JSON text", Object = "an object");

/// Why a JSON value is no message, or no list of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The content is null or missing where there must be one.
    #[error("the {role} message has {} content", if *.null { "null" } else { "no" })]
    NoContent {
        /// Who speaks.
        role: &'static str,
        /// Whether it is written as `null` rather than left out.
        null: bool,
    },
    /// Something in it is not what it should be.
    #[error("{0}")]
    Unreadable(String),
}

fn unreadable(why: impl Into<String>) -> BadMessage {
    BadMessage::Unreadable(why.into())
}

/// The message as OpenAI's API writes it, arguments as strings.
pub fn to_json(message: &Message) -> Value {
    to_json_with(message, ArgumentForm::Text)
}

/// The message with keys in the order role, content, reasoning_content, tool_calls, tool_call_id, name.
pub fn to_json_with(message: &Message, form: ArgumentForm) -> Value {
    let mut json = Map::new();
    json.insert("role".into(), message.role.name().into());
    json.insert("content".into(), message.content.as_ref().map_or(Value::Null, content_to_json));
    if let Some(reasoning) = &message.reasoning {
        json.insert(REASONING_FIELDS[0].into(), reasoning.as_str().into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| call_to_json(call, form)).collect();
        json.insert("tool_calls".into(), Value::Array(calls));
    }
    for (key, value) in [("tool_call_id", &message.tool_call_id), ("name", &message.name)] {
        if let Some(value) = value {
            json.insert(key.into(), value.as_str().into());
        }
    }
    Value::Object(json)
}

fn content_to_json(content: &Content) -> Value {
    match content {
        Content::Text(text) => text.as_str().into(),
        Content::Parts(parts) => parts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
    }
}

fn call_to_json(call: &ToolCall, form: ArgumentForm) -> Value {
    let arguments = match (&call.arguments, form) {
        (Arguments::Object(object), ArgumentForm::Object) => Value::Object(object.clone()),
        (arguments, _) => Value::String(arguments_text(arguments)),
    };
    let mut json = Map::new();
    if let Some(id) = &call.id {
        json.insert("id".into(), id.as_str().into());
    }
    json.insert("type".into(), "function".into());
    json.insert("function".into(), json!({"name": call.name, "arguments": arguments}));
    Value::Object(json)
}

/// The arguments as a string of JSON, or the student's own text where it is none.
pub fn arguments_text(arguments: &Arguments) -> String {
    match arguments {
        Arguments::Object(object) => Value::Object(object.clone()).to_string(),
        Arguments::Text(text) => text.clone(),
    }
}

/// Reads a list of messages.
pub fn list_from_json(value: &Value) -> Result<Vec<Message>, BadMessage> {
    let not_a_list = || unreadable(format!("messages must be a list, not {}", kind(value)));
    let list = value.as_array().ok_or_else(not_a_list)?;
    let read = |(index, it)| from_json(it).map_err(|why| unreadable(format!("message {index}: {why}")));
    list.iter().enumerate().map(read).collect()
}

/// Reads one message. Keys that mean nothing to us are passed over.
pub fn from_json(value: &Value) -> Result<Message, BadMessage> {
    let not_an_object = || unreadable(format!("a message must be an object, not {}", kind(value)));
    let json = value.as_object().ok_or_else(not_an_object)?;
    let role = role(json)?;
    let reasoning = REASONING_FIELDS.iter().find_map(|key| text(json, key).transpose()).transpose()?;
    let tool_calls = tool_calls(json)?;
    let content = content(json)?;
    let speaks = content.is_some() || !tool_calls.is_empty() || reasoning.is_some();
    if !speaks || (content.is_none() && role != Role::Assistant) {
        return Err(BadMessage::NoContent { role: role.name(), null: json.contains_key("content") });
    }
    let (tool_call_id, name) = (text(json, "tool_call_id")?, text(json, "name")?);
    Ok(Message { role, content, reasoning, tool_calls, tool_call_id, name })
}

fn role(json: &Map<String, Value>) -> Result<Role, BadMessage> {
    let role = text(json, "role")?.ok_or_else(|| unreadable("the message has no role"))?;
    let unknown = || format!("unknown role `{role}`; the roles are {}", Role::NAMES.join(", "));
    Role::from_name(&role).ok_or_else(|| unreadable(unknown()))
}

fn content(json: &Map<String, Value>) -> Result<Option<Content>, BadMessage> {
    match json.get("content") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(Content::Text(text.clone()))),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate().map(|(index, part)| part_text(index, part));
            Ok(Some(Content::Parts(parts.collect::<Result<_, _>>()?)))
        }
        Some(other) => Err(wrong_type("content", "a string, a list of text parts or null", other)),
    }
}

fn part_text(index: usize, part: &Value) -> Result<String, BadMessage> {
    let not_text =
        |found: &str| unreadable(format!("content part {index} is {found}, only text parts can be used"));
    let json = part.as_object().ok_or_else(|| not_text(kind(part)))?;
    match json.get("type").and_then(Value::as_str) {
        Some("text") | None => {}
        Some(other) => return Err(not_text(&format!("of type `{other}`"))),
    }
    let text = json.get("text").and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| not_text("without a text"))
}

/// The calls of a message; in old recordings a single `function_call`.
fn tool_calls(json: &Map<String, Value>) -> Result<Vec<ToolCall>, BadMessage> {
    let calls = match (json.get("tool_calls"), json.get("function_call")) {
        (Some(Value::Array(calls)), _) => calls.as_slice(),
        (None | Some(Value::Null), None | Some(Value::Null)) => &[],
        (None | Some(Value::Null), Some(call)) => std::slice::from_ref(call),
        (Some(other), _) => return Err(wrong_type("tool_calls", "a list", other)),
    };
    let read = |(index, it)| tool_call(it).map_err(|why| unreadable(format!("tool call {index} {why}")));
    calls.iter().enumerate().map(read).collect()
}

/// Reads `{"id", "type", "function": {"name", "arguments"}}`, or name and arguments without that envelope.
fn tool_call(value: &Value) -> Result<ToolCall, String> {
    let json = value.as_object().ok_or_else(|| format!("must be an object, not {}", kind(value)))?;
    let function = match json.get("function") {
        None => json,
        Some(Value::Object(function)) => function,
        Some(other) => return Err(format!("has a `function` that is {}, not an object", kind(other))),
    };
    let id = match json.get("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(other) => return Err(format!("has an id that is {}, not a string", kind(other))),
    };
    let name = function.get("name").and_then(Value::as_str).ok_or("has no name")?;
    Ok(ToolCall { id, name: name.to_owned(), arguments: arguments(function.get("arguments")) })
}

/// Reads arguments in any of their forms; what is no object stays the text it is.
pub fn arguments(value: Option<&Value>) -> Arguments {
    match value {
        None | Some(Value::Null) => Arguments::Object(Map::new()),
        Some(Value::Object(object)) => Arguments::Object(unwrapped(object)),
        Some(Value::String(text)) => match object_in(text) {
            Some(object) => Arguments::Object(object),
            None => Arguments::Text(text.clone()),
        },
        Some(other) => Arguments::Text(other.to_string()),
    }
}

/// The object inside the `{"arguments": "<json>"}` wrapper. A tool may have one parameter of that
/// name, so the wrapper counts as one only when its string holds an object.
fn unwrapped(object: &Map<String, Value>) -> Map<String, Value> {
    let inner = object.get("arguments").filter(|_| object.len() == 1).and_then(Value::as_str);
    inner.and_then(object_in).unwrap_or_else(|| object.clone())
}

fn object_in(text: &str) -> Option<Map<String, Value>> {
    match json::read(text) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn text(json: &Map<String, Value>, key: &str) -> Result<Option<String>, BadMessage> {
    match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(wrong_type(key, "a string", other)),
    }
}

fn wrong_type(key: &str, expected: &str, found: &Value) -> BadMessage {
    unreadable(format!("`{key}` must be {expected}, not {}", kind(found)))
}

/// What a JSON value is, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    /// Reads `input` and compares what is written back, or the reason it is no message.
    fn check(input: Value, expected: Expect) {
        expected.assert_eq(&written(&input));
    }

    fn written(input: &Value) -> String {
        match from_json(input) {
            Ok(message) => to_json_with(&message, ArgumentForm::Object).to_string(),
            Err(why) => format!("error: {why}"),
        }
    }

    #[test]
    fn messages_keep_their_text_and_key_order() {
        check(json!({"content": "hi", "role": "user"}), expect![[r#"{"role":"user","content":"hi"}"#]]);
        check(
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}),
            expect![[r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#]],
        );
        check(
            json!({"name": "bash", "tool_call_id": "c1", "content": "", "role": "tool", "extra": 1}),
            expect![[r#"{"role":"tool","content":"","tool_call_id":"c1","name":"bash"}"#]],
        );
        check(
            json!({"role": "developer", "content": "be brief", "name": null}),
            expect![[r#"{"role":"developer","content":"be brief"}"#]],
        );
    }

    #[test]
    fn thinking_is_found_under_its_three_names() {
        for key in REASONING_FIELDS {
            let mut input = json!({"role": "assistant", "content": "x"});
            input[key] = "hm".into();
            check(input, expect![[r#"{"role":"assistant","content":"x","reasoning_content":"hm"}"#]]);
        }
        check(
            json!({"role": "assistant", "content": null, "reasoning": "hm"}),
            expect![[r#"{"role":"assistant","content":null,"reasoning_content":"hm"}"#]],
        );
    }

    #[test]
    fn tool_calls_are_read_in_every_envelope() {
        let call = |function: Value| json!({"role": "assistant", "content": null, "tool_calls": [function]});
        let expected = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"b":1,"a":[2.5]}}}]}"#;
        let arguments = [
            json!({"b": 1, "a": [2.5]}),
            json!("{\"b\": 1, \"a\": [2.5]}"),
            json!({"arguments": "{\"b\": 1, \"a\": [2.5]}"}),
        ];
        for arguments in arguments {
            let function = json!({"name": "f", "arguments": arguments});
            assert_eq!(
                written(&call(json!({"id": "c", "type": "function", "function": function}))),
                expected
            );
            assert_eq!(written(&call(json!({"id": "c", "name": "f", "arguments": arguments}))), expected);
        }
        check(
            json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}}),
            expect![[
                r#"{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":{}}}]}"#
            ]],
        );
    }

    #[test]
    fn arguments_that_are_no_object_stay_text() {
        let of = |value: Value| arguments(Some(&value));
        let text = |text: &str| Arguments::Text(text.to_owned());
        assert_eq!(of(json!("{\"a\": ")), text("{\"a\": "));
        assert_eq!(of(json!("")), text(""));
        assert_eq!(of(json!([1])), text("[1]"));
        assert_eq!(of(json!("[1]")), text("[1]"));
        assert_eq!(of(Value::Null), Arguments::Object(Map::new()));
        assert_eq!(arguments(None), Arguments::Object(Map::new()));
        let object = |value: Value| Arguments::Object(value.as_object().unwrap().clone());
        assert_eq!(of(json!({"arguments": "-la"})), object(json!({"arguments": "-la"})));
        assert_eq!(of(json!({"arguments": "{}", "x": 1})), object(json!({"arguments": "{}", "x": 1})));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_reason() {
        check(json!("hi"), expect!["error: a message must be an object, not a string"]);
        check(json!({"content": "x"}), expect!["error: the message has no role"]);
        check(json!({"role": 3, "content": "x"}), expect!["error: `role` must be a string, not a number"]);
        check(
            json!({"role": "robot", "content": "x"}),
            expect!["error: unknown role `robot`; the roles are system, developer, user, assistant, tool"],
        );
        check(json!({"role": "user", "content": null}), expect!["error: the user message has null content"]);
        check(json!({"role": "tool"}), expect!["error: the tool message has no content"]);
        check(
            json!({"role": "assistant", "content": null}),
            expect!["error: the assistant message has null content"],
        );
        check(
            json!({"role": "user", "content": 5}),
            expect!["error: `content` must be a string, a list of text parts or null, not a number"],
        );
        check(
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}),
            expect!["error: content part 1 is of type `image_url`, only text parts can be used"],
        );
        check(
            json!({"role": "user", "content": ["a"]}),
            expect!["error: content part 0 is a string, only text parts can be used"],
        );
        check(
            json!({"role": "assistant", "content": "x", "tool_calls": {}}),
            expect!["error: `tool_calls` must be a list, not an object"],
        );
        check(
            json!({"role": "assistant", "content": "x", "tool_calls": [{"function": {"arguments": "{}"}}]}),
            expect!["error: tool call 0 has no name"],
        );
        check(
            json!({"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]}),
            expect!["error: tool call 0 has an id that is a number, not a string"],
        );
    }

    #[test]
    fn a_list_names_the_message_at_fault() {
        let list = json!([{"role": "user", "content": "x"}, {"role": "user", "content": null}]);
        let why = list_from_json(&list).unwrap_err().to_string();
        assert_eq!(why, "message 1: the user message has null content");
        let why = list_from_json(&json!({})).unwrap_err().to_string();
        assert_eq!(why, "messages must be a list, not an object");
        assert_eq!(list_from_json(&json!([])).unwrap(), []);
    }

    fn any_call() -> impl Strategy<Value = ToolCall> {
        let object = proptest::collection::btree_map("[a-z]{1,6}", any::<i64>(), 0..3);
        let arguments = prop_oneof![
            object.prop_map(|it| {
                Arguments::Object(it.into_iter().map(|(k, v)| (k, Value::from(v))).collect())
            }),
            "[^{]{0,8}".prop_map(Arguments::Text),
        ];
        (proptest::option::of(".{0,6}"), ".{0,6}", arguments).prop_map(|(id, name, arguments)| ToolCall {
            id,
            name,
            arguments,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            text in ".{0,20}",
            parts in proptest::option::of(proptest::collection::vec(".{0,6}", 0..3)),
            reasoning in proptest::option::of(".{0,6}"),
            tool_calls in proptest::collection::vec(any_call(), 0..3),
            name in proptest::option::of(".{0,6}"),
        ) {
            let content = Some(parts.map_or(Content::Text(text), Content::Parts));
            let message =
                Message { role: Role::Assistant, content, reasoning, tool_calls, tool_call_id: None, name };
            prop_assert_eq!(&from_json(&to_json(&message)).unwrap(), &message);
            let objects = to_json_with(&message, ArgumentForm::Object);
            prop_assert_eq!(&from_json(&objects).unwrap(), &message);
        }
    }
}
