//! Looking through text: searching, Python's idea of whitespace, excerpts for messages.
//!
//! Everything that looks at bytes of the text goes through here or through the JSON and literal
//! readers, and reports how many it looked at. Tests use that to show that the work grows with the
//! text and no faster; in a build without tests the report is nothing.

#[cfg(test)]
thread_local! {
    /// How many bytes were looked at on this thread.
    pub(super) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Reports that `n_bytes` were looked at.
#[inline]
pub(super) fn looked_at(n_bytes: usize) {
    #[cfg(test)]
    WORK.set(WORK.get() + n_bytes);
    #[cfg(not(test))]
    let _ = n_bytes;
}

/// Where `needle` is in `text`, at or after `from`.
pub(super) fn find(text: &str, needle: &str, from: usize) -> Option<usize> {
    let found = text[from..].find(needle).map(|offset| from + offset);
    looked_at(found.map_or(text.len(), |at| at + needle.len()) - from);
    found
}

/// The first of several markers at or after `from`: where it is and which one. All markers open with `<`.
pub(super) fn find_marker<'m>(text: &str, markers: &[&'m str], from: usize) -> Option<(usize, &'m str)> {
    let mut at = from;
    while let Some(open) = find(text, "<", at) {
        looked_at(markers.len());
        if let Some(marker) = markers.iter().find(|&&marker| text[open..].starts_with(marker)) {
            return Some((open, marker));
        }
        at = open + 1;
    }
    None
}

/// What follows each `open`, up to where `find_end` says that what begins there ends, or to the end of the text.
pub(super) fn pieces<'a>(
    text: &'a str,
    open: &str,
    find_end: impl Fn(usize) -> Option<usize>,
) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(start) = find(text, open, at).map(|found| found + open.len()) {
        at = find_end(start).unwrap_or(text.len());
        pieces.push(&text[start..at]);
    }
    pieces
}

/// The text without the whitespace around it.
pub(super) fn strip(text: &str) -> &str {
    let stripped = text.trim_matches(is_space);
    looked_at(text.len() - stripped.len());
    stripped
}

/// The text without the whitespace before it.
pub(super) fn strip_start(text: &str) -> &str {
    let stripped = text.trim_start_matches(is_space);
    looked_at(text.len() - stripped.len());
    stripped
}

/// Whitespace to Python: four separators more than Unicode's property has.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The beginning of a piece of text in backticks, on one line, for a message about it.
pub(super) fn excerpt(text: &str) -> String {
    const N_CHARS: usize = 40;
    let end = text.char_indices().nth(N_CHARS).map_or(text.len(), |(at, _)| at);
    let shown: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let rest = if end < text.len() { "…" } else { "" };
    format!("`{}{rest}`", shown.trim())
}
