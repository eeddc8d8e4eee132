//! The form in which a template wants text that comes in parts.
//!
//! OpenAI's API takes a message's text as one string or as a list of parts. Some templates show the parts;
//! others are written for a string and fail on a list, print it as a list, or leave it out. Which of them a template
//! does is found out by rendering marked parts, for each kind of message apart. Where the parts do not come out as
//! text they are joined, and that is reported. [`Template::render`] itself never joins anything.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::probe::{calls, mark, marks, role};
use super::template::{RenderInput, Template};

/// Joins text in parts wherever the template does not show the parts itself: the messages to render, and those of which
/// the parts were joined.
pub fn settle(template: &Template, input: &RenderInput<'_>) -> (Vec<Value>, Vec<usize>) {
    let given = input.messages;
    let mut messages: Vec<Value> = given.iter().map(joined).collect();
    let mut in_parts: Vec<usize> = (0..given.len()).filter(|idx| text(&given[*idx]).is_some()).collect();
    let kinds: BTreeSet<_> = in_parts.iter().map(|idx| kind(&given[*idx])).collect();
    for kind_of in kinds {
        let tried: Vec<usize> =
            in_parts.iter().copied().filter(|idx| kind(&given[*idx]) == kind_of).collect();
        let shown = shown(template, &RenderInput { messages: &messages, ..*input }, given, &tried);
        shown.iter().for_each(|idx| messages[*idx].clone_from(&given[*idx]));
        in_parts.retain(|idx| !shown.contains(idx));
    }
    (messages, in_parts)
}

/// What templates treat alike: who speaks, and whether calls stand beside the text.
fn kind(message: &Value) -> (&str, bool) {
    (role(message), !calls(message).is_empty())
}

/// Those of the messages `tried` whose parts are shown as text, where all others have a form the template takes.
fn shown(template: &Template, input: &RenderInput<'_>, given: &[Value], tried: &[usize]) -> BTreeSet<usize> {
    let mut messages = input.messages.to_vec();
    for idx in tried {
        messages[*idx] = marked(*idx, &given[*idx]);
    }
    let rendered = template.render(&RenderInput { messages: &messages, ..*input });
    let Ok(rendered) = rendered else { return BTreeSet::new() };
    let marks = marks(&rendered.text);
    let n_parts = |idx: usize| given[idx]["content"].as_array().map_or(0, Vec::len);
    tried.iter().copied().filter(|idx| is_shown(&marks, *idx, n_parts(*idx))).collect()
}

/// The message with every part's text marked, and with a key in every part that nobody asks for: it is seen only
/// where a part is printed as the object it is.
fn marked(message_idx: usize, message: &Value) -> Value {
    let mut message = message.clone();
    let parts = message.get_mut("content").and_then(Value::as_array_mut);
    for (nth, part) in parts.into_iter().flatten().enumerate() {
        part["text"] = mark("text", message_idx, nth).into();
        part[mark("part", message_idx, nth)] = true.into();
    }
    message
}

fn is_shown(marks: &HashMap<&str, Vec<usize>>, message_idx: usize, n_parts: usize) -> bool {
    let has = |what: &str, nth: usize| marks.contains_key(mark(what, message_idx, nth).as_str());
    n_parts > 0 && (0..n_parts).all(|nth| has("text", nth) && !has("part", nth))
}

/// The message with its text in one string, where it comes in parts.
pub(super) fn joined(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(text) = text(&message) {
        message["content"] = Value::String(text);
    }
    message
}

/// What a message says in parts.
fn text(message: &Value) -> Option<String> {
    message.get("content").and_then(text_of_parts)
}

/// The message in the form the template is given `other` in, which is the same message with other words.
pub(super) fn like(message: Value, other: &Value) -> Value {
    if other["content"].is_string() { joined(&message) } else { message }
}

/// What a list of text parts says, without a separator as in [`Content::text`](backsight_core::episode::Content::text);
/// none where a part is no text.
pub(super) fn text_of_parts(content: &Value) -> Option<String> {
    let text = |part: &Value| {
        let is_text = part.get("type").is_none_or(|it| it == "text");
        part.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_owned)
    };
    content.as_array()?.iter().map(text).collect()
}
