//! The form in which a template wants the arguments of tool calls.
//!
//! Conversations carry them as JSON objects or as JSON text, and templates are written for one or
//! the other: text may be quoted twice, an object printed as Python's `repr`, either may fail. Each
//! form is tried with marked arguments; a call is converted only if the form it has does not come out
//! well and the other one does, and every conversion is reported. [`Template::render`] itself never
//! converts anything.

use std::collections::HashMap;

use serde_json::Value;

use super::error::TextError;
use super::parts;
use super::probe::{calls, for_each_call, function, mark, marked_arguments, marks};
use super::template::{RenderInput, Template};
use crate::json::{self, BadJson};
pub use crate::messages::ArgumentForm;
use backsight_core::python::dumps;

/// A tool call whose arguments were passed in another form than they were given in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The message of the call.
    pub message_idx: usize,
    /// The call in the message.
    pub call_idx: usize,
    /// The form its arguments have now.
    pub to: ArgumentForm,
}

/// Gives a conversation the form its template wants, and says what was changed.
pub fn prepare_messages(
    template: &Template,
    input: &RenderInput<'_>,
) -> Result<(Vec<Value>, Vec<Conversion>), TextError> {
    let mut messages = input.messages.to_vec();
    let mut conversions = Vec::new();
    // Text in parts must not keep a template from showing arguments.
    let strings: Vec<Value> = input.messages.iter().map(parts::joined).collect();
    let input = &RenderInput { messages: &strings, ..*input };
    let forms = [ArgumentForm::Text, ArgumentForm::Object];
    for (from, to) in forms.into_iter().zip(forms.into_iter().rev()) {
        if has_form(input.messages, from) && !shows(template, input, from) && shows(template, input, to) {
            conversions.extend(convert(&mut messages, to)?);
        }
    }
    Ok((messages, conversions))
}

fn has_form(messages: &[Value], form: ArgumentForm) -> bool {
    let arguments = messages.iter().flat_map(calls).filter_map(|call| function(call).get("arguments"));
    arguments.filter(|it| !it.is_null()).any(|it| it.is_string() == (form == ArgumentForm::Text))
}

/// Whether arguments of this form come out whole, once, and as JSON.
fn shows(template: &Template, input: &RenderInput<'_>, form: ArgumentForm) -> bool {
    let mut messages = input.messages.to_vec();
    for (message_idx, message) in messages.iter_mut().enumerate() {
        for_each_call(message, |call_idx, function| {
            let marked = marked_arguments(message_idx, call_idx);
            let arguments = if form == ArgumentForm::Text { Value::String(dumps(&marked)) } else { marked };
            function.insert("arguments".to_owned(), arguments);
        });
    }
    let Ok(rendered) = template.render(&RenderInput { messages: &messages, ..*input }) else { return false };
    let text = rendered.text.as_str();
    let marks = marks(text);
    messages.iter().enumerate().all(|(message_idx, message)| {
        (0..calls(message).len()).all(|idx| is_well_shown(text, &marks, form, message_idx, idx))
    })
}

fn is_well_shown(
    text: &str,
    marks: &HashMap<&str, Vec<usize>>,
    form: ArgumentForm,
    message_idx: usize,
    call_idx: usize,
) -> bool {
    let [key, value] = ["key", "value"].map(|what| mark(what, message_idx, call_idx));
    let keys = marks.get(key.as_str()).map_or(&[][..], Vec::as_slice);
    // What surrounds the key is looked at where the key stands, not in the whole text.
    let shows = |written: &str| {
        let before = written.find(&key).unwrap_or(0);
        let starts = keys.iter().filter_map(|at| text.get(at.checked_sub(before)?..));
        starts.into_iter().any(|text| text.starts_with(written))
    };
    match form {
        ArgumentForm::Text => shows(&dumps(&marked_arguments(message_idx, call_idx))),
        ArgumentForm::Object => {
            !keys.is_empty() && marks.contains_key(value.as_str()) && !shows(&format!("'{key}': '{value}'"))
        }
    }
}

/// Converts every call that can be; text that is no JSON object stays text, an object that cannot be passed on exactly is refused.
fn convert(messages: &mut [Value], to: ArgumentForm) -> Result<Vec<Conversion>, TextError> {
    let (mut conversions, mut refused) = (Vec::new(), Ok(()));
    for (message_idx, message) in messages.iter_mut().enumerate() {
        for_each_call(message, |call_idx, function| {
            let Some(arguments) = function.get_mut("arguments") else { return };
            match converted(arguments, to) {
                Ok(Some(converted)) => {
                    *arguments = converted;
                    conversions.push(Conversion { message_idx, call_idx, to });
                }
                Ok(None) => {}
                Err(number) => {
                    let what = format!(
                        "message {message_idx}: the arguments of call {call_idx} hold the integer {number}, which is too \
                         large to be passed on exactly"
                    );
                    let help = "give the number as a string, or write calls as text with --tool-text hermes";
                    refused = Err(TextError::new(what, help));
                }
            }
        });
    }
    refused.map(|()| conversions)
}

/// The arguments in the other form, `None` where they have none, or the number that it cannot hold.
fn converted(arguments: &Value, to: ArgumentForm) -> Result<Option<Value>, String> {
    match (arguments, to) {
        (Value::String(text), ArgumentForm::Object) => match json::read(text) {
            Ok(parsed) => Ok(Some(parsed).filter(Value::is_object)),
            Err(BadJson::Inexact { number }) => Err(number),
            Err(BadJson::Syntax(_)) => Ok(None),
        },
        (Value::Object(_), ArgumentForm::Text) => Ok(Some(Value::String(dumps(arguments)))),
        _ => Ok(None),
    }
}
