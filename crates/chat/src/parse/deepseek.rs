//! DeepSeek's markers: V3 writes a type, a name and a fenced block of JSON, V3.1 a name and JSON.
//!
//! Arguments are passed on as they were written. Before its arguments a call ends at the next
//! marker, so that one broken call does not swallow another.

use super::json::{behind_value, find_outside};
use super::scan::{excerpt, find, find_marker, strip, strip_start};
use super::{Parsed, ParsedCall};

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const BEGIN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const FENCE: &str = "```";
const JSON_FENCE: &str = "```json";

/// The name and the arguments of a call, and where it ends.
pub(super) struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
    end: usize,
}

/// Why there is no call, and where to look on; nowhere when no later call can be complete either.
pub(super) struct NoCall {
    why: &'static str,
    look_on: Option<usize>,
}

/// Reads the call of which the first part is given and the rest of `text` stands after a separator.
pub(super) type ReadCall = for<'a> fn(text: &'a str, first: &'a str, at: usize) -> Result<Call<'a>, NoCall>;

pub(super) fn parse(text: &str, read: ReadCall) -> Parsed {
    let mut calls = Vec::new();
    let mut malformed = Vec::new();
    let section = find(text, SECTION, 0);
    let mut next = section.map(|_| 0);
    while let Some(begin) = next.and_then(|at| find(text, BEGIN, at)) {
        let start = begin + BEGIN.len();
        next = match call(text, start, read) {
            Ok(call) => {
                calls.push(ParsedCall::new(call.name, call.arguments));
                Some(call.end)
            }
            Err(no_call) => {
                malformed.push(format!("{} {}", excerpt(&text[start..]), no_call.why));
                no_call.look_on
            }
        };
    }
    Parsed::new(text, &text[..section.unwrap_or(0)], calls, malformed)
}

fn call(text: &str, start: usize, read: ReadCall) -> Result<Call<'_>, NoCall> {
    const WHY: &str = "has no separator after its first part";
    match find_marker(text, &[BEGIN, SEPARATOR, END], start) {
        Some((at, SEPARATOR)) => {
            let call = read(text, &text[start..at], at + SEPARATOR.len())?;
            let unnamed = NoCall { why: "has no name", look_on: Some(call.end) };
            if call.name.is_empty() { Err(unnamed) } else { Ok(call) }
        }
        marker => Err(NoCall { why: WHY, look_on: marker.map(|(at, _)| at) }),
    }
}

/// V3.1: the first part is the name, the arguments follow.
pub(super) fn bare_call<'a>(text: &'a str, first: &'a str, at: usize) -> Result<Call<'a>, NoCall> {
    let end = find_outside(text, END, at);
    let end = end.ok_or(NoCall { why: "is not closed", look_on: None })?;
    Ok(Call { name: strip(first), arguments: strip(&text[at..end]), end: end + END.len() })
}

/// V3: the first part is a type nobody needs; a name follows, and arguments in a fence.
pub(super) fn fenced_call<'a>(text: &'a str, _: &'a str, at: usize) -> Result<Call<'a>, NoCall> {
    let marker = find_marker(text, &[BEGIN, END], at).map(|(at, _)| at);
    let before_marker = &text[..marker.unwrap_or(text.len())];
    let unfenced = NoCall { why: "has no block of JSON", look_on: marker };
    let fence = find(before_marker, JSON_FENCE, at).ok_or(unfenced)?;
    let start = fence + JSON_FENCE.len();
    let closing = closing_fence(text, behind_value(text, start));
    let (close, end) = closing.ok_or(NoCall { why: "is not closed", look_on: None })?;
    Ok(Call { name: strip(&text[at..fence]), arguments: strip(&text[start..close]), end })
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
