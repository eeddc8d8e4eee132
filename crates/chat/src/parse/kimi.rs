//! Kimi K2's markers around an id such as `functions.name:0` and JSON.
//!
//! The id is kept, since the model expects to see it again with the result; the name is its part
//! between the last dot and the colon. Arguments are passed on as they were written.

use super::json::find_outside;
use super::scan::{excerpt, find, find_marker, pieces, strip};
use super::{NoCall, Parsed, ParsedCall};

/// The model was trained on the first and writes the second at times.
const SECTIONS: [&str; 2] = ["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"];
const BEGIN: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";

pub(super) fn parse(text: &str) -> Parsed {
    let section = SECTIONS.into_iter().filter_map(|section| find(text, section, 0)).min();
    let pieces = section.map(|_| pieces(text, BEGIN, |start| next_begin(text, start)));
    Parsed::new(text, section, pieces.into_iter().flatten().map(call))
}

/// The opening marker of the call behind the one that begins at `start`.
fn next_begin(text: &str, start: usize) -> Option<usize> {
    match find_marker(text, &[BEGIN, ARGUMENTS], start)? {
        (at, ARGUMENTS) => find_outside(text, BEGIN, at + ARGUMENTS.len()),
        (at, _) => Some(at),
    }
}

fn call(piece: &str) -> Result<ParsedCall, NoCall> {
    let lacking = |why| NoCall::Other(format!("{} {why}", excerpt(piece)));
    let id_end = find(piece, "<", 0).unwrap_or(piece.len());
    let (id, rest) = piece.split_at(id_end);
    let id = strip(id);
    let name = name_in(id).ok_or_else(|| lacking("has no id of the form `functions.name:0`"))?;
    let arguments = rest.strip_prefix(ARGUMENTS).ok_or_else(|| lacking("has no arguments"))?;
    let end = find_outside(arguments, END, 0).ok_or_else(|| lacking("is not closed"))?;
    let arguments = strip(&arguments[..end]);
    Ok(ParsedCall { id: Some(id.to_owned()), ..ParsedCall::new(name, arguments) })
}

/// The name in an id that ends with a colon and a number.
fn name_in(id: &str) -> Option<&str> {
    let (path, number) = id.rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let path = path.split(':').next()?;
    let name = path.rsplit('.').next()?;
    (is_number && !name.is_empty()).then_some(name)
}
