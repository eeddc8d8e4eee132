//! Talk of the parts of `credit` that have no progress to show: a line for people, an event for machines.

use serde_json::json;

use crate::cli::failure::one_line;
use crate::cli::output;

/// Tells one thing: the event `name` with its text, or the text after that name.
pub(super) fn tell(as_json: bool, name: &str, text: &str) {
    match as_json {
        true => output::event(name, json!({"text": text})),
        false => output::talk(&format!("{name}: {}", one_line(text))),
    }
}
