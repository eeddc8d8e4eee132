//! Talk: what people and machines are told on stderr.

use std::io::{self, IsTerminal, Write};

use crate::event::counted;
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

/// Hostile text must not draw on the terminal or fake further lines.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A number to three digits; a dash where there is none.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"))
}

/// The beginning of a text on one line, so many characters wide at most.
pub(super) fn clipped(text: &str, width: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(width) {
        Some(_) => line.chars().take(width - 1).chain(['…']).collect(),
        None => line,
    }
}
