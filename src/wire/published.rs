//! Session files read exactly as the published loader reads them, for rows that must equal its own.
//!
//! Owns that conversion and nothing else; `pi_session` reads what the student really saw. The
//! surprises that are kept: branches are concatenated, aborted turns stay, thinking is looked for
//! under a key pi does not write, texts are stripped, results are cut at a number of characters, tool
//! arguments become strings.

use serde_json::{Map, Value, json};

use super::fault::{Fault, required, wrong};
use super::pi_session::entries;
use backsight_core::episode::cut_text;
use backsight_core::python::{JsonStyle, float_repr, json_dumps};

/// How many characters of a tool's result the published scripts keep.
pub const MAX_TOOL_RESULT_CHARS: usize = 4000;

/// The messages of a session file, in the published order of keys, each with the line it stands on.
pub fn messages_by_line(session: &str, max_tool_result_chars: usize) -> Result<Vec<(usize, Value)>, Fault> {
    let mut messages = Vec::new();
    for entry in entries(session)?.iter().filter(|entry| entry.kind() == "message") {
        let message = required(&entry.json, "message", "an object", Value::as_object);
        let message = message.map_err(|fault| fault.on(entry.line))?;
        let converted = match message.get("role").and_then(Value::as_str) {
            Some("user") => said("user", message),
            Some("assistant") => assistant(message),
            Some("toolResult") => tool_result(message, max_tool_result_chars).map(Some),
            _ => Ok(None),
        };
        let converted = converted.map_err(|fault| fault.on(entry.line))?;
        messages.extend(converted.map(|message| (entry.line, message)));
    }
    Ok(messages)
}

/// A message that is text alone; none where it says nothing.
fn said(role: &str, message: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    let text = content_text(message)?;
    Ok((!text.is_empty()).then(|| json!({"role": role, "content": text})))
}

fn assistant(message: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    let Some(Value::Array(blocks)) = message.get("content") else { return said("assistant", message) };
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    for block in blocks.iter().filter_map(Value::as_object) {
        let text = || Ok(strip(&block_text(block)?).to_owned());
        match block.get("type").and_then(Value::as_str) {
            Some("thinking") => {
                let thought = text()?;
                parts.extend((!thought.is_empty()).then(|| format!("<think>\n{thought}\n</think>")));
            }
            Some("text") => parts.push(text()?),
            Some("toolCall") => calls.push(tool_call(block)),
            _ => {}
        }
    }
    parts.retain(|part| !part.is_empty());
    let mut converted = json!({"role": "assistant", "content": strip(&parts.join("\n\n"))});
    let is_empty = parts.is_empty() && calls.is_empty();
    if !calls.is_empty() {
        converted["tool_calls"] = calls.into();
    }
    Ok((!is_empty).then_some(converted))
}

fn tool_call(block: &Map<String, Value>) -> Value {
    let or = |key: &str, default: &str| block.get(key).cloned().unwrap_or_else(|| default.into());
    let arguments = match block.get("arguments").or_else(|| block.get("input")) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => json_dumps(other, &JsonStyle::transformers()),
    };
    let function = json!({"name": or("name", "unknown"), "arguments": arguments});
    json!({"id": or("id", ""), "type": "function", "function": function})
}

fn tool_result(message: &Map<String, Value>, max_chars: usize) -> Result<Value, Fault> {
    let mut text = cut_text(&content_text(message)?, max_chars);
    if message.get("isError").is_some_and(is_true) {
        text = if text.is_empty() { "[tool_error]".to_owned() } else { format!("[tool_error]\n{text}") };
    }
    let or = |key: &str, default: &str| match message.get(key).filter(|value| is_true(value)) {
        Some(value) => value.clone(),
        None => default.into(),
    };
    let (name, id) = (or("toolName", "unknown"), or("toolCallId", ""));
    Ok(json!({"role": "tool", "name": name, "tool_call_id": id, "content": text}))
}

/// The text blocks as lines, or whatever else stands there as Python's `str` writes it, stripped.
fn content_text(message: &Map<String, Value>) -> Result<String, Fault> {
    let text = match message.get("content") {
        Some(Value::Array(blocks)) => {
            let is_text =
                |block: &&Map<String, Value>| block.get("type").and_then(Value::as_str) == Some("text");
            let blocks = blocks.iter().filter_map(Value::as_object).filter(is_text);
            blocks.map(block_text).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => python_str(other),
        None => "None".to_owned(),
    };
    Ok(strip(&text).to_owned())
}

fn block_text(block: &Map<String, Value>) -> Result<String, Fault> {
    match block.get("text") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(wrong("text", "a string", other)),
    }
}

fn python_str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) if number.is_f64() => number.as_f64().map(float_repr).unwrap_or_default(),
        other => other.to_string(),
    }
}

/// What Python takes for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) => true,
    }
}

/// Python's `str.strip`, which takes the four separators of ASCII for white space too.
fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_white_space_is_stripped() {
        assert_eq!(strip("\u{1c}\u{2003}a b\n\u{1f}"), "a b");
    }
}
