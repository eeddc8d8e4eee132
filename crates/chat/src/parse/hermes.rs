//! JSON between tags: `<tool_call>{"name": …, "arguments": …}</tool_call>`.
//!
//! A last call without its closing tag is read to the end of the text. One piece of broken JSON
//! voids all calls; an object without a name is passed over.

use super::json::{Json, loads};
use super::scan::{find, pieces, strip};
use super::{NoCall, Parsed, ParsedCall, call_of};

/// The tags around a call.
pub(super) type Tags = [&'static str; 2];

pub(super) const HERMES: Tags = ["<tool_call>", "</tool_call>"];
pub(super) const LONGCAT: Tags = ["<longcat_tool_call>", "</longcat_tool_call>"];

/// Reads what stands between tags, given how the closing one of a call that begins somewhere is found.
pub(super) fn parse(
    text: &str,
    [open, close]: Tags,
    find_close: fn(&str, &str, usize) -> Option<usize>,
) -> Parsed {
    // A last call may be unclosed.
    let pieces = pieces(text, open, |start| find_close(text, close, start));
    let calls = pieces.into_iter().map(|piece| call(strip(piece), open));
    Parsed::new(text, find(text, open, 0), calls)
}

fn call(piece: &str, open: &str) -> Result<ParsedCall, NoCall> {
    if piece.is_empty() {
        return Err(NoCall::Other(format!("`{open}` has nothing in it")));
    }
    let value = loads(piece).map_err(|bad| NoCall::Broken(bad.describe(piece)))?;
    let dumps = |arguments: Option<&Json>| Ok(arguments.map_or_else(|| "{}".to_owned(), Json::dumps));
    call_of(&value, piece, dumps)
}
