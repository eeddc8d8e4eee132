//! Marked conversations: the same shape with unmistakable words in the places of interest.
//!
//! Whether a template shows something is found out by rendering and looking for its mark. Owns the
//! marks and where they go; what follows from them is left to `drops`, `arguments` and `tool_text`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::messages::REASONING_FIELDS;

/// What ends the thinking inside a text.
const END_OF_THOUGHT: &str = "</think>";

/// A word that occurs in no conversation, and in no other such word.
pub(super) fn mark(what: &str, message_idx: usize, call_idx: usize) -> String {
    format!("zq{what}{message_idx}x{call_idx}qz")
}

/// All such words of a text and where each stands, looked for once for all messages.
pub(super) fn marks(text: &str) -> HashMap<&str, Vec<usize>> {
    let mut found: HashMap<&str, Vec<usize>> = HashMap::new();
    for (start, _) in text.match_indices("zq") {
        let end = text[start + 2..].find("qz").map(|len| start + len + 4);
        let word = end.map(|end| &text[start..end]);
        if let Some(word) = word.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            found.entry(word).or_default().push(start);
        }
    }
    found
}

/// The tool calls of a message.
pub(super) fn calls(message: &Value) -> &[Value] {
    message.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The part of a tool call that holds name and arguments.
pub(super) fn function(call: &Value) -> &Value {
    call.get("function").filter(|it| it.is_object()).unwrap_or(call)
}

fn function_mut(call: &mut Value) -> Option<&mut Map<String, Value>> {
    if call.get("function").is_some_and(Value::is_object) {
        return call.get_mut("function").and_then(Value::as_object_mut);
    }
    call.as_object_mut()
}

/// Does something to every tool call of a message.
pub(super) fn for_each_call(message: &mut Value, mut change: impl FnMut(usize, &mut Map<String, Value>)) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (call_idx, call) in calls.into_iter().flatten().enumerate() {
        if let Some(function) = function_mut(call) {
            change(call_idx, function);
        }
    }
}

/// The arguments that stand for a call's own: one key and one value, both marked.
pub(super) fn marked_arguments(message_idx: usize, call_idx: usize) -> Value {
    json!({ mark("key", message_idx, call_idx): mark("value", message_idx, call_idx) })
}

/// The schemas with their tools' names marked.
pub(super) fn marked_tools(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for (tool_idx, tool) in tools.iter_mut().enumerate() {
        if let Some(function) = function_mut(tool) {
            function.insert("name".to_owned(), Value::String(mark("tool", 0, tool_idx)));
        }
    }
    tools
}

/// The message with marks for what a template might leave out. Arguments keep the form they have.
pub(super) fn marked(message_idx: usize, message: &Value) -> Value {
    let mut message = message.clone();
    let role = role(&message).to_owned();
    for (text_idx, text) in texts_mut(&mut message).enumerate() {
        *text = match role.as_str() {
            "system" | "developer" => mark("system", message_idx, text_idx),
            "tool" => mark("result", message_idx, text_idx),
            "assistant" => marked_answer(text, message_idx, text_idx),
            _ => with_mark(text, &mark("text", message_idx, text_idx)),
        };
    }
    for field in REASONING_FIELDS {
        if let Some(reasoning) = message.get_mut(field).filter(|it| it.is_string()) {
            *reasoning = Value::String(mark("reasoning", message_idx, 0));
        }
    }
    for_each_call(&mut message, |call_idx, function| {
        function.insert("name".to_owned(), Value::String(mark("name", message_idx, call_idx)));
        if let Some(arguments) = function.get_mut("arguments") {
            let marked = marked_arguments(message_idx, call_idx);
            *arguments = if arguments.is_string() { Value::String(marked.to_string()) } else { marked };
        }
    });
    message
}

/// Who speaks.
pub(super) fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// A message's texts: one, or one for each text part.
pub(super) fn texts(message: &Value) -> Vec<&str> {
    match message.get("content") {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => Vec::new(),
    }
}

fn texts_mut(message: &mut Value) -> Box<dyn Iterator<Item = &mut String> + '_> {
    match message.get_mut("content") {
        Some(Value::Array(parts)) => {
            Box::new(parts.iter_mut().filter_map(|part| part.get_mut("text")).filter_map(string_mut))
        }
        content => Box::new(content.into_iter().filter_map(string_mut)),
    }
}

fn string_mut(value: &mut Value) -> Option<&mut String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The thinking inside an answer's text, if there is any, and the rest.
pub(super) fn thought_and_prose(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once(END_OF_THOUGHT) {
        Some((thought, prose)) => (Some(thought), prose),
        None => (None, text),
    }
}

/// An answer with its thinking and its prose marked, each where it ends.
fn marked_answer(text: &str, message_idx: usize, text_idx: usize) -> String {
    let (thought, prose) = thought_and_prose(text);
    let prose = if prose.trim().is_empty() {
        prose.to_owned()
    } else {
        with_mark(prose, &mark("text", message_idx, text_idx))
    };
    let Some(thought) = thought else { return prose };
    format!("{thought}{}{END_OF_THOUGHT}{prose}", mark("thought", message_idx, text_idx))
}

/// The text with a word at its end, but before a tag that is closed there: templates look at how a text begins and ends.
fn with_mark(text: &str, mark: &str) -> String {
    let end = text.trim_end();
    let at = if end.ends_with('>') { end.rfind("</").unwrap_or(end.len()) } else { end.len() };
    format!("{}{mark}{}", &text[..at], &text[at..])
}
