//! Talk: what people and machines are told on stderr.

use std::io::{self, IsTerminal, Write};

use serde_json::{Value, json};

use crate::event::counted;
use crate::pipeline::batch::now;
use crate::store::summary::Summary;

/// How the weights were watched, where they can change.
pub(super) fn weights(summary: &Summary) -> Option<String> {
    let checks = summary.weights?;
    let changes = match checks.changes {
        0 => "no change".to_owned(),
        n => counted(n, "change"),
    };
    let (times, by) = (counted(checks.requests, "time"), checks.smallest_change);
    Some(format!("weights measured {times}: {changes}; a change by {by:.0e} nats on average would show"))
}

/// Takes away the bar that may stand where the next line of talk goes.
pub(super) fn clear_line() {
    if io::stderr().is_terminal() {
        // Nobody can be told that stderr is gone.
        let _ = write!(io::stderr().lock(), "\r\x1b[2K");
    }
}

/// Writes one line of talk.
pub(super) fn talk(line: &str) {
    // Nobody can be told that stderr is gone.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes one line of talk for machines.
pub(super) fn event(name: &str, fields: Value) {
    talk(&event_of(name, fields).to_string());
}

/// Tells one thing: the event `name` with its text for machines, or the text after that name.
pub(super) fn tell(as_json: bool, name: &str, text: &str) {
    match as_json {
        true => event(name, json!({"text": text})),
        false => talk(&format!("{name}: {}", one_line(text))),
    }
}

/// Something that happened now, as an object.
pub(super) fn event_of(name: &str, fields: Value) -> Value {
    let mut event = json!({"time": now(), "event": name});
    if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
        event.extend(fields);
    }
    event
}

/// Hostile text must not draw on the terminal or fake further lines.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
