//! DeepSeek's markers: V3 writes a type, a name and a fenced block of JSON, V3.1 a name and JSON.
//!
//! Arguments are passed on as they were written. Before its arguments a call ends at the next
//! marker, so that one broken call does not swallow another.

use super::json::{behind_value, find_outside};
use super::scan::{excerpt, find, find_marker, strip, strip_start};
use super::{NoCall, Parsed, ParsedCall};

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const FENCE: &str = "```";
const JSON_FENCE: &str = "```json";

/// A call or why there is none, and where to look on; nowhere when no later call can be complete either.
type Piece = (Result<ParsedCall, &'static str>, Option<usize>);

/// Reads the call of which the first part is given and the rest of `text` stands after a separator.
pub(super) type ReadCall = fn(text: &str, first: &str, at: usize) -> Piece;

pub(super) fn parse(text: &str, read: ReadCall) -> Parsed {
    let mut calls = Vec::new();
    let section = find(text, SECTION, 0);
    let mut next = section.map(|_| 0);
    while let Some(begin) = next.and_then(|at| find(text, BEGIN, at)) {
        let start = begin + BEGIN.len();
        let (call, look_on) = piece(text, start, read);
        calls.push(call.map_err(|why| NoCall::Other(format!("{} {why}", excerpt(&text[start..])))));
        next = look_on;
    }
    Parsed::new(text, section, calls)
}

fn piece(text: &str, start: usize, read: ReadCall) -> Piece {
    match find_marker(text, &[BEGIN, SEPARATOR, END], start) {
        Some((at, SEPARATOR)) => read(text, &text[start..at], at + SEPARATOR.len()),
        marker => (Err("has no separator after its first part"), marker.map(|(at, _)| at)),
    }
}

fn named(name: &str, arguments: &str, end: usize) -> Piece {
    let call = ParsedCall::new(strip(name), strip(arguments));
    (if call.name.is_empty() { Err("has no name") } else { Ok(call) }, Some(end))
}

/// V3.1: the first part is the name, the arguments follow.
pub(super) fn bare_call(text: &str, first: &str, at: usize) -> Piece {
    match find_outside(text, END, at) {
        Some(end) => named(first, &text[at..end], end + END.len()),
        None => (Err("is not closed"), None),
    }
}

/// V3: the first part is a type nobody needs; a name follows, and arguments in a fence.
pub(super) fn fenced_call(text: &str, _: &str, at: usize) -> Piece {
    let marker = find_marker(text, &[BEGIN, END], at).map(|(at, _)| at);
    let before_marker = &text[..marker.unwrap_or(text.len())];
    let Some(fence) = find(before_marker, JSON_FENCE, at) else {
        return (Err("has no block of JSON"), marker);
    };
    let start = fence + JSON_FENCE.len();
    match closing_fence(text, behind_value(text, start)) {
        Some((close, end)) => named(&text[at..fence], &text[start..close], end),
        None => (Err("is not closed"), None),
    }
}

/// The first fence that the call's end follows, and where that ends.
fn closing_fence(text: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let fence = find(text, FENCE, at)?;
        let after = strip_start(&text[fence + FENCE.len()..]);
        if after.starts_with(END) {
            return Some((fence, text.len() - after.len() + END.len()));
        }
        at = fence + 1;
    }
}
