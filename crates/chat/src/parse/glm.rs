//! `<tool_call>name`, then `<arg_key>key</arg_key><arg_value>value</arg_value>` pairs, `</tool_call>`.
//!
//! GLM 4.5 ends the name with a line break; GLM 4.7 needs none and may write the break before a
//! value as a backslash and an `n`. Values are JSON, Python literals or bare text.

use super::json::Fields;
use super::literal::value_of;
use super::scan::{excerpt, find, strip, strip_start};
use super::{Parsed, ParsedCall};

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

pub(super) const GLM45: Dialect = Dialect { split_name: split_at_line_break, skip_gap: strip_start };
pub(super) const GLM47: Dialect = Dialect { split_name: split_at_key, skip_gap: skip_written_breaks };

fn split_at_line_break(piece: &str) -> Option<(&str, &str)> {
    find(piece, "\n", 0).map(|end| piece.split_at(end))
}

fn split_at_key(piece: &str) -> Option<(&str, &str)> {
    Some(piece.split_at(find(piece, KEY[0], 0).unwrap_or(piece.len())))
}

fn skip_written_breaks(text: &str) -> &str {
    let mut rest = strip_start(text);
    while let Some(after) = rest.strip_prefix("\\n") {
        rest = strip_start(after);
    }
    rest
}

pub(super) fn parse(text: &str, dialect: &Dialect) -> Parsed {
    let mut calls = Vec::new();
    let mut malformed = Vec::new();
    let before = find(text, OPEN, 0).unwrap_or(0);
    let mut at = before;
    while let Some(start) = find(text, OPEN, at).map(|at| at + OPEN.len()) {
        let Some(end) = find(text, CLOSE, start) else {
            malformed.push(format!("`{OPEN}` is not closed before {}", excerpt(&text[start..])));
            break;
        };
        calls.extend(call(&text[start..end], dialect, &mut malformed));
        at = end + CLOSE.len();
    }
    Parsed::new(text, &text[..before], calls, malformed)
}

fn call(piece: &str, dialect: &Dialect, malformed: &mut Vec<String>) -> Option<ParsedCall> {
    let Some((name, pairs)) = (dialect.split_name)(piece) else {
        malformed.push(format!("{} has no line break after the name", excerpt(piece)));
        return None;
    };
    let name = strip(name);
    if name.is_empty() || name.contains(OPEN) || name.contains(KEY[0]) {
        malformed.push(format!("{} does not open with a name", excerpt(piece)));
        return None;
    }
    let fields = arguments(pairs, name, dialect, malformed);
    Some(ParsedCall::new(name, fields.dumps()))
}

fn arguments(pairs: &str, name: &str, dialect: &Dialect, malformed: &mut Vec<String>) -> Fields {
    let mut fields = Fields::default();
    let mut rest = pairs;
    while let Some(start) = find(rest, KEY[0], 0) {
        let (key, after) = split_before(&rest[start + KEY[0].len()..], KEY[1]);
        let Some(text) = value_after(after, dialect) else {
            malformed.push(format!("argument {} of `{name}` has no value", excerpt(key)));
            rest = after;
            continue;
        };
        let Some(end) = find(text, VALUE[1], 0) else {
            // No later value can be closed either.
            malformed.push(format!("argument {} of `{name}` is not closed", excerpt(key)));
            break;
        };
        fields.insert(strip(key).to_owned(), value_of(strip(&text[..end])));
        rest = &text[end + VALUE[1].len()..];
    }
    fields
}

/// The text from a value on, given the closing tag of its key and what follows.
fn value_after<'a>(text: &'a str, dialect: &Dialect) -> Option<&'a str> {
    (dialect.skip_gap)(text.strip_prefix(KEY[1])?).strip_prefix(VALUE[0])
}

/// The text before a tag, and from it on; all of it when there is none.
fn split_before<'a>(text: &'a str, tag: &str) -> (&'a str, &'a str) {
    text.split_at(find(text, tag, 0).unwrap_or(text.len()))
}
