//! `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
//!
//! Values are bare text between two line breaks. They are converted unless the tool's schema wants
//! a string: JSON, Python literals, `null` in any case. What stays text keeps its white space, where
//! the published rules take all of it away: indentation is what a patch is made of. Functions count
//! inside `<tool_call>`, or anywhere when there is no such tag. Closing tags may be missing.

use serde_json::Value;

use super::json::{Fields, Json};
use super::literal::value_of;
use super::scan::{excerpt, find, find_marker, pieces, strip};
use super::schema::Parameters;
use super::{Parsed, ParsedCall};

const BLOCK: [&str; 2] = ["<tool_call>", "</tool_call>"];
const FUNCTION: [&str; 2] = ["<function=", "</function>"];
const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];

pub(super) fn parse(text: &str, tools: &[Value]) -> Parsed {
    let blocks = between(text, BLOCK);
    let start = find(text, BLOCK[0], 0).or_else(|| find(text, FUNCTION[0], 0));
    let blocks = if blocks.is_empty() { vec![text] } else { blocks };
    let mut calls = Vec::new();
    let mut malformed = Vec::new();
    for function in blocks.into_iter().flat_map(|block| between(block, FUNCTION)) {
        calls.extend(call(function, tools, &mut malformed));
    }
    Parsed::new(text, &text[..start.unwrap_or(0)], calls, malformed)
}

/// What stands between each pair of tags, the last one perhaps unclosed.
fn between<'a>(text: &'a str, [open, close]: [&str; 2]) -> Vec<&'a str> {
    pieces(text, open, |start| find(text, close, start))
}

fn call(function: &str, tools: &[Value], malformed: &mut Vec<String>) -> Option<ParsedCall> {
    let name_end = find(function, ">", 0).unwrap_or(function.len());
    let (name, parameters) = function.split_at(name_end);
    let name = strip(name);
    if parameters.is_empty() || name.is_empty() || name.contains('<') {
        malformed.push(format!("`{}` is not followed by a name and `>`", FUNCTION[0]));
        return None;
    }
    let schemas = Parameters::of(tools, name);
    let mut fields = Fields::default();
    let parameters = &parameters[1..];
    // A parameter goes to its closing tag, the next one or the end.
    let end = |start| find_marker(parameters, &PARAMETER, start).map(|(end, _)| end);
    for parameter in pieces(parameters, PARAMETER[0], end) {
        let Some(end) = find(parameter, ">", 0) else {
            malformed.push(format!("parameter {} of `{name}` has no `>`", excerpt(parameter)));
            continue;
        };
        let key = strip(&parameter[..end]);
        fields.insert(key.to_owned(), schemas.value(key, unwrapped(&parameter[end + 1..]), convert));
    }
    Some(ParsedCall::new(name, Json::Object(fields).dumps()))
}

/// A value without the line breaks that the format puts around it.
fn unwrapped(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

fn convert(text: &str) -> Option<Json> {
    if text.eq_ignore_ascii_case("null") { Some(Json::Null) } else { value_of(text) }
}
