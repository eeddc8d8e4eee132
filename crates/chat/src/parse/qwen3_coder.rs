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
use super::{NoCall, Parsed, ParsedCall};

const BLOCK: [&str; 2] = ["<tool_call>", "</tool_call>"];
const FUNCTION: [&str; 2] = ["<function=", "</function>"];
const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];

pub(super) fn parse(text: &str, tools: &[Value]) -> Parsed {
    let blocks = between(text, BLOCK);
    let start = find(text, BLOCK[0], 0).or_else(|| find(text, FUNCTION[0], 0));
    let blocks = if blocks.is_empty() { vec![text] } else { blocks };
    let functions = blocks.into_iter().flat_map(|block| between(block, FUNCTION));
    Parsed::new(text, start, functions.flat_map(|function| call(function, tools)))
}

/// What stands between each pair of tags, the last one perhaps unclosed.
fn between<'a>(text: &'a str, [open, close]: [&str; 2]) -> Vec<&'a str> {
    pieces(text, open, |start| find(text, close, start))
}

/// The call, and what is wrong with its parameters.
fn call(function: &str, tools: &[Value]) -> Vec<Result<ParsedCall, NoCall>> {
    let name_end = find(function, ">", 0).unwrap_or(function.len());
    let (name, parameters) = function.split_at(name_end);
    let name = strip(name);
    if parameters.is_empty() || name.is_empty() || name.contains('<') {
        let why = format!("`{}` is not followed by a name and `>`", FUNCTION[0]);
        return vec![Err(NoCall::Other(why))];
    }
    let schemas = Parameters::of(tools, name);
    let (mut fields, mut found) = (Fields::default(), Vec::new());
    let parameters = &parameters[1..];
    // A parameter goes to its closing tag, the next one or the end.
    let end = |start| find_marker(parameters, &PARAMETER, start).map(|(end, _)| end);
    for parameter in pieces(parameters, PARAMETER[0], end) {
        let Some(end) = find(parameter, ">", 0) else {
            let why = format!("parameter {} of `{name}` has no `>`", excerpt(parameter));
            found.push(Err(NoCall::Other(why)));
            continue;
        };
        let key = strip(&parameter[..end]);
        fields.insert(key.to_owned(), schemas.value(key, unwrapped(&parameter[end + 1..]), convert));
    }
    found.push(Ok(ParsedCall::new(name, Json::Object(fields).dumps())));
    found
}

/// A value without the line breaks that the format puts around it.
fn unwrapped(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

fn convert(text: &str) -> Option<Json> {
    if text.eq_ignore_ascii_case("null") { Some(Json::Null) } else { value_of(text) }
}
