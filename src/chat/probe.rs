//! Marked conversations: the same shape with unmistakable words in the places of interest.
//!
//! Whether a template shows something is found out by rendering and looking for its mark. Owns the
//! marks and where they go; what follows from them is left to `drops`, `arguments` and `tool_text`.

use serde_json::{Map, Value, json};

/// The fields a message may carry its reasoning in.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A word that occurs in no conversation, and in no other such word.
pub(super) fn mark(what: &str, message_idx: usize, call_idx: usize) -> String {
    format!("zq{what}{message_idx}x{call_idx}qz")
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

/// The message with marks for what a template might leave out. Arguments keep the form they have.
pub(super) fn marked(message_idx: usize, message: &Value) -> Value {
    let mut message = message.clone();
    match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => mark_content(&mut message, &mark("system", message_idx, 0)),
        Some("tool") => mark_content(&mut message, &mark("result", message_idx, 0)),
        _ => {}
    }
    for field in REASONING {
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

/// Replaces a message's text, which may come in parts.
fn mark_content(message: &mut Value, mark: &str) {
    match message.get_mut("content") {
        Some(Value::Array(parts)) => {
            for text in parts.iter_mut().filter_map(|part| part.get_mut("text")) {
                *text = Value::String(mark.to_owned());
            }
        }
        Some(content) => *content = Value::String(mark.to_owned()),
        None => {}
    }
}
