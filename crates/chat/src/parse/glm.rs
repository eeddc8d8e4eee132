//! `<tool_call>name`, then `<arg_key>key</arg_key><arg_value>value</arg_value>` pairs, `</tool_call>`.
//!
//! GLM 4.5 ends the name with a line break; GLM 4.7 needs none and may write the break before a
//! value as a backslash and an `n`. Values are JSON or Python literals, or bare text where the
//! tool's schema wants a string or they are neither. Text is taken whole, where the published rules
//! take away the white space around it: the format puts none there, so it is the value's own.

use serde_json::Value;

use super::json::{Fields, Json};
use super::literal::value_of;
use super::scan::{excerpt, find, pieces, strip, strip_start};
use super::schema::Parameters;
use super::{NoCall, Parsed, ParsedCall};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];

/// What the two formats differ in.
pub(super) struct Dialect {
    /// Splits a call into name and pairs.
    split_name: fn(&str) -> Option<(&str, &str)>,
    /// Passes what may stand between a key and its value.
    skip_gap: fn(&str) -> &str,
}

pub(super) const GLM45: Dialect = Dialect {
    split_name: |piece| find(piece, "\n", 0).map(|end| piece.split_at(end)),
    skip_gap: strip_start,
};
pub(super) const GLM47: Dialect =
    Dialect { split_name: |piece| Some(split_before(piece, KEY[0])), skip_gap: skip_written_breaks };

fn skip_written_breaks(text: &str) -> &str {
    let mut rest = strip_start(text);
    while let Some(after) = rest.strip_prefix("\\n") {
        rest = strip_start(after);
    }
    rest
}

pub(super) fn parse(text: &str, tools: &[Value], dialect: &Dialect) -> Parsed {
    let mut found = Vec::new();
    for piece in pieces(text, OPEN, |start| find(text, CLOSE, start).map(|end| end + CLOSE.len())) {
        match piece.strip_suffix(CLOSE) {
            Some(piece) => found.extend(call(piece, tools, dialect)),
            None => found.push(no_call(format!("`{OPEN}` is not closed before {}", excerpt(piece)))),
        }
    }
    Parsed::new(text, find(text, OPEN, 0), found)
}

fn no_call(why: String) -> Result<ParsedCall, NoCall> {
    Err(NoCall::Other(why))
}

/// The call, and what is wrong with its arguments.
fn call(piece: &str, tools: &[Value], dialect: &Dialect) -> Vec<Result<ParsedCall, NoCall>> {
    let Some((name, pairs)) = (dialect.split_name)(piece) else {
        return vec![no_call(format!("{} has no line break after the name", excerpt(piece)))];
    };
    let name = strip(name);
    if name.is_empty() || name.contains(OPEN) || name.contains(KEY[0]) {
        return vec![no_call(format!("{} does not open with a name", excerpt(piece)))];
    }
    let schemas = Parameters::of(tools, name);
    let (mut fields, mut found) = (Fields::default(), Vec::new());
    let mut lacking = |key, why| found.push(no_call(format!("argument {} of `{name}` {why}", excerpt(key))));
    let mut rest = pairs;
    while let Some(start) = find(rest, KEY[0], 0) {
        let (key, after) = split_before(&rest[start + KEY[0].len()..], KEY[1]);
        let Some(text) = value_after(after, dialect) else {
            lacking(key, "has no value");
            rest = after;
            continue;
        };
        let Some(end) = find(text, VALUE[1], 0) else {
            // No later value can be closed either.
            lacking(key, "is not closed");
            break;
        };
        fields.insert(strip(key).to_owned(), schemas.value(strip(key), &text[..end], value_of));
        rest = &text[end + VALUE[1].len()..];
    }
    found.push(Ok(ParsedCall::new(name, Json::Object(fields).dumps())));
    found
}

/// The text from a value on, given the closing tag of its key and what follows.
fn value_after<'a>(text: &'a str, dialect: &Dialect) -> Option<&'a str> {
    (dialect.skip_gap)(text.strip_prefix(KEY[1])?).strip_prefix(VALUE[0])
}

/// The text before a tag, and from it on; all of it when there is none.
fn split_before<'a>(text: &'a str, tag: &str) -> (&'a str, &'a str) {
    text.split_at(find(text, tag, 0).unwrap_or(text.len()))
}
