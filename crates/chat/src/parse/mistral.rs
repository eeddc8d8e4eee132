//! `[TOOL_CALLS] [{"name": …, "arguments": …}]`, and `[TOOL_CALLS]name{…}` once per call since
//! version 11 of the tokenizer.
//!
//! Which of the two it is shows in what follows the first marker. The list may be broken or be
//! followed by other text: the objects that can be read are the calls. Later tokenizers write
//! `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, which is read too.

use super::json::{Containers, Json, find_outside, loads};
use super::scan::{excerpt, find, pieces, strip, strip_start};
use super::{NoCall, Parsed, ParsedCall, call_of};

const MARKER: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

pub(super) fn parse(text: &str) -> Parsed {
    let parts = pieces(text, MARKER, |start| next_marker(text, start));
    let parts: Vec<_> = parts.into_iter().map(strip).collect();
    let is_list = parts.first().is_some_and(|part| part.starts_with(['[', '{']));
    let calls = if is_list { listed_calls(parts[0]) } else { parts.into_iter().map(named_call).collect() };
    Parsed::new(text, find(text, MARKER, 0), calls)
}

/// The marker that ends what begins at `start`: none in its list, or its arguments.
fn next_marker(text: &str, start: usize) -> Option<usize> {
    let first = find(text, MARKER, start)?;
    let part = &text[start..first];
    let is_list = strip_start(part).starts_with('[');
    let opening = if is_list { Some(0) } else { find(part, "{", 0) };
    opening.map_or(Some(first), |opening| find_outside(text, MARKER, start + opening))
}

/// `name{…}`. Arguments that are no JSON stay as they are.
fn named_call(part: &str) -> Result<ParsedCall, NoCall> {
    let lacking = |what| NoCall::Other(format!("{} after `{MARKER}` has no {what}", excerpt(part)));
    let brace = find(part, "{", 0).ok_or_else(|| lacking("arguments"))?;
    let (head, arguments) = part.split_at(brace);
    let (name, id) = name_and_id(head);
    if name.is_empty() {
        return Err(lacking("name"));
    }
    let arguments = loads(arguments).map_or_else(|_| arguments.to_owned(), |value| value.dumps());
    Ok(ParsedCall { id, ..ParsedCall::new(name, arguments) })
}

fn name_and_id(head: &str) -> (&str, Option<String>) {
    let head = strip(head);
    let head = head.strip_suffix(ARGS).unwrap_or(head);
    match head.split_once(CALL_ID) {
        Some((name, id)) => (strip(name), Some(strip(id).to_owned())),
        None => (strip(head), None),
    }
}

/// The calls of a list, of several lists, or of objects without one.
fn listed_calls(part: &str) -> Vec<Result<ParsedCall, NoCall>> {
    let (mut calls, mut broken) = (Vec::new(), Vec::new());
    let mut unread = None;
    for found in Containers::new(part, &['[', '{']) {
        broken.extend(found.complaint(part));
        match found.value {
            Ok(Json::List(list)) => calls.extend(list.iter().map(listed_call)),
            Ok(object) => calls.push(listed_call(&object)),
            Err(bad) => unread = unread.or(Some(bad)),
        }
    }
    if calls.is_empty() && broken.is_empty() {
        broken.extend(unread.map(|bad| bad.describe(part)));
    }
    calls.extend(broken.into_iter().map(|why| Err(NoCall::Other(why))));
    calls
}

fn listed_call(item: &Json) -> Result<ParsedCall, NoCall> {
    call_of(item, &item.dumps(), |arguments| match arguments {
        None => Ok("{}".to_owned()),
        Some(Json::Text(text)) => Ok(text.clone()),
        Some(arguments @ Json::Object(_)) => Ok(arguments.dumps()),
        Some(other) => {
            let why = format!("{} as `arguments` is neither an object nor text", excerpt(&other.dumps()));
            Err(NoCall::Broken(why))
        }
    })
}
