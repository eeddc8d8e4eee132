//! Bare JSON objects: `{"name": …, "arguments": …}`, or `parameters`, perhaps after `<|python_tag|>`.
//!
//! Any object in the text with both is a call, wherever it stands, also right behind another.

use super::json::{Containers, Json};
use super::scan::find;
use super::{Parsed, ParsedCall};

const TAG: &str = "<|python_tag|>";

pub(super) fn parse(text: &str) -> Parsed {
    let mut calls = Vec::new();
    let mut malformed = Vec::new();
    let mut first = None;
    for found in Containers::new(text, &['{']) {
        malformed.extend(found.complaint(text));
        calls.extend(found.value.ok().and_then(|value| call(&value)));
        if first.is_none() && !calls.is_empty() {
            first = Some(found.start);
        }
    }
    let before = &text[..first.unwrap_or(0)];
    let before = &before[..find(before, TAG, 0).unwrap_or(before.len())];
    Parsed::new(text, before, calls, malformed)
}

fn call(value: &Json) -> Option<ParsedCall> {
    let Json::Object(fields) = value else { return None };
    let Some(Json::Text(name)) = fields.get("name") else { return None };
    let arguments = match fields.get("arguments").or_else(|| fields.get("parameters"))? {
        Json::Null => return None,
        Json::Text(text) => text.clone(),
        arguments => arguments.dumps(),
    };
    (!name.is_empty()).then(|| ParsedCall::new(name, arguments))
}
