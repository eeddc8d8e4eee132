//! JSON between tags: `<tool_call>{"name": …, "arguments": …}</tool_call>`.
//!
//! A last call without its closing tag is read to the end of the text. One piece of broken JSON
//! voids all calls; an object without a name is passed over.

use super::json::{Json, find_outside, loads};
use super::scan::{find, pieces, strip};
use super::{NoCall, Parsed, ParsedCall, call_of};

/// The tags around a call.
pub(super) struct Tags {
    open: &'static str,
    close: &'static str,
    /// Finds the closing tag of the call that begins somewhere.
    find_close: fn(&str, &str, usize) -> Option<usize>,
}

/// A closing tag in a string ends the call and breaks it: the recorded vectors hold Hermes to that.
pub(super) const HERMES: Tags = Tags { open: "<tool_call>", close: "</tool_call>", find_close: find };
pub(super) const LONGCAT: Tags =
    Tags { open: "<longcat_tool_call>", close: "</longcat_tool_call>", find_close: find_outside };

pub(super) fn parse(text: &str, tags: &Tags) -> Parsed {
    // A last call may be unclosed.
    let pieces = pieces(text, tags.open, |start| (tags.find_close)(text, tags.close, start));
    let calls = pieces.into_iter().map(|piece| call(strip(piece), tags));
    Parsed::new(text, find(text, tags.open, 0), calls)
}

fn call(piece: &str, tags: &Tags) -> Result<ParsedCall, NoCall> {
    if piece.is_empty() {
        return Err(NoCall::Other(format!("`{}` has nothing in it", tags.open)));
    }
    let value = loads(piece).map_err(|bad| NoCall::Broken(bad.describe(piece)))?;
    let dumps = |arguments: Option<&Json>| Ok(arguments.map_or_else(|| "{}".to_owned(), Json::dumps));
    call_of(&value, piece, dumps)
}
