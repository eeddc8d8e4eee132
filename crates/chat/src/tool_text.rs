//! Named renderings of tools, for templates that ignore them.
//!
//! Owns the two that exist: `hermes` writes schemas into the system message and calls as
//! `<tool_call>` text; `flatten` is the plain-text form of the published hindsight scorer. Both give
//! messages without tool calls, to be rendered without tools. Which one is used is the user's choice
//! and recorded in the episode; nothing here is chosen silently.

use serde_json::{Value, json};

use super::jinja::python_str;
use super::parse::object_dumps;
use super::parts::text_of_parts;
use super::probe::{calls, function, mark, role, texts};
use super::template::{RenderInput, Template};
use backsight_core::episode::ToolText;
use backsight_core::python::dumps;

/// The conversation with its tools written as text; it is to be rendered without tools.
pub fn apply(choice: ToolText, template: &Template, input: &RenderInput<'_>) -> Vec<Value> {
    match choice {
        ToolText::Hermes => hermes(input.messages, input.tools, takes_tool_role(template, input)),
        ToolText::Flatten => input.messages.iter().map(flatten_message).collect(),
    }
}

/// Whether a template shows messages of the role `tool`, found out by rendering one.
pub fn takes_tool_role(template: &Template, input: &RenderInput<'_>) -> bool {
    let result = mark("result", 2, 0);
    let messages = [
        json!({"role": "user", "content": "Hello."}),
        json!({"role": "assistant", "content": "I look."}),
        json!({"role": "tool", "content": result}),
    ];
    let rendered = template.render(&RenderInput { messages: &messages, tools: None, ..*input });
    rendered.is_ok_and(|rendered| rendered.text.contains(&result))
}

/// Schemas in the system message, calls as `<tool_call>` text, results as messages of the role
/// `tool` or, where a template does not take that, of the role `user`.
fn hermes(messages: &[Value], tools: Option<&[Value]>, tool_role: bool) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    for message in with_schemas(messages, tools.unwrap_or_default()) {
        match role(&message) {
            "assistant" if !calls(&message).is_empty() => out.push(with_call_text(message)),
            "tool" if !tool_role => push_result(&mut out, &message),
            _ => out.push(message),
        }
    }
    out
}

/// The messages with the tools explained at the end of the system message.
fn with_schemas(messages: &[Value], tools: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    if tools.is_empty() {
        return messages;
    }
    let explained = explain(tools);
    match messages.first_mut() {
        Some(first) if role(first) == "system" => {
            let text = texts(first).concat();
            let gap = if text.is_empty() { "" } else { "\n\n" };
            first["content"] = format!("{text}{gap}{explained}").into();
        }
        _ => messages.insert(0, json!({"role": "system", "content": explained})),
    }
    messages
}

fn explain(tools: &[Value]) -> String {
    let schemas: Vec<String> = tools.iter().map(dumps).collect();
    format!(
        "# Tools\n\nYou can call tools. Their signatures are the JSON objects between <tools> and </tools>:\n\
         <tools>\n{}\n</tools>\n\n\
         To call a tool, write its name and arguments as one JSON object between <tool_call> and </tool_call>, \
         once for each call:\n\
         <tool_call>\n{{\"name\": \"tool-name\", \"arguments\": {{\"key\": \"value\"}}}}\n</tool_call>",
        schemas.join("\n")
    )
}

/// The assistant message with its calls at the end of its text.
fn with_call_text(mut message: Value) -> Value {
    message["content"] = text_and_calls(&message, call_text).into();
    if let Some(fields) = message.as_object_mut() {
        fields.shift_remove("tool_calls");
    }
    message
}

fn text_and_calls(message: &Value, call_text: fn(&Value) -> String) -> String {
    let text = texts(message).concat();
    let calls = calls(message).iter().map(call_text);
    let parts: Vec<String> = Some(text).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
    parts.join("\n")
}

fn call_text(call: &Value) -> String {
    let function = function(call);
    let name = function.get("name").map_or_else(|| "null".to_owned(), dumps);
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => object_dumps(text).unwrap_or_else(|| dumps(&json!(text))),
        Some(Value::Null) | None => "{}".to_owned(),
        Some(arguments) => dumps(arguments),
    };
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

/// Adds a tool's result to the user message before it, if that holds results too: templates that
/// want turns to alternate see one turn.
fn push_result(out: &mut Vec<Value>, message: &Value) {
    let wrapped = format!("<tool_response>\n{}\n</tool_response>", texts(message).concat());
    match out.last_mut() {
        Some(last) if role(last) == "user" && texts(last).concat().ends_with("</tool_response>") => {
            last["content"] = format!("{}\n{wrapped}", texts(last).concat()).into();
        }
        _ => out.push(json!({"role": "user", "content": wrapped})),
    }
}

/// A message in the published scorer's plain text: what stands in Python's f-strings is Python's `str()`.
fn flatten_message(message: &Value) -> Value {
    match role(message) {
        "tool" => {
            let name = message.get("name").map_or_else(|| "tool".to_owned(), python_str);
            let text = |content: &Value| text_of_parts(content).unwrap_or_else(|| python_str(content));
            let content = message.get("content").map_or_else(String::new, text);
            json!({"role": "user", "content": format!("[Tool Result: {name}]\n{content}")})
        }
        "assistant" if !calls(message).is_empty() => {
            json!({"role": "assistant", "content": text_and_calls(message, flatten_call)})
        }
        _ => message.clone(),
    }
}

fn flatten_call(call: &Value) -> String {
    let function = call.get("function");
    let name = function.and_then(|it| it.get("name")).map_or_else(|| "?".to_owned(), python_str);
    let arguments = unwrap_arguments(function.and_then(|it| it.get("arguments")));
    format!("[Tool Call: {name}]\n{arguments}")
}

/// Arguments as text: text stays as it is, a wrapper `{"arguments": …}` is taken off.
fn unwrap_arguments(arguments: Option<&Value>) -> String {
    match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => match fields.get("arguments") {
            Some(Value::String(inner)) => inner.clone(),
            None | Some(Value::Null) => dumps(&Value::Object(fields.clone())),
            Some(inner) => dumps(inner),
        },
        Some(other) => dumps(other),
    }
}
