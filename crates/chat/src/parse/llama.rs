//! Bare JSON objects: `{"name": …, "arguments": …}`, or `parameters`, perhaps after `<|python_tag|>`.
//!
//! Any object in the text with both is a call, wherever it stands, also right behind another.

use super::json::{Containers, Json};
use super::scan::find;
use super::{NoCall, Parsed, ParsedCall};

const TAG: &str = "<|python_tag|>";

pub(super) fn parse(text: &str) -> Parsed {
    let (mut pieces, mut first) = (Vec::new(), None);
    for found in Containers::new(text, &['{']) {
        pieces.extend(found.complaint(text).map(|why| Err(NoCall::Other(why))));
        if let Some(call) = found.value.ok().and_then(|value| call(&value)) {
            first.get_or_insert(found.start);
            pieces.push(Ok(call));
        }
    }
    let before = &text[..first.unwrap_or(0)];
    Parsed::new(text, find(before, TAG, 0).or(first), pieces)
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
