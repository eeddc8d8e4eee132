//! Looking through text: searching, Python's idea of whitespace, excerpts for messages.
//!
//! Everything that looks at bytes of the text goes through here or through the JSON and literal
//! readers, and reports how many it looked at. Tests use that to show that the work grows with the
//! text and no faster; in a build without tests the report is nothing.

use backsight_core::python::is_space;

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

/// Reads values from a text, from any place on.
pub(super) struct Reader<'a> {
    text: &'a str,
    pub(super) at: usize,
    /// The brackets that are open, the outermost first.
    pub(super) open: Vec<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, at: usize) -> Self {
        Self { text, at, open: Vec::new() }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// What was passed since `start`.
    pub(super) fn since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn advance(&mut self, n_bytes: usize) {
        looked_at(n_bytes);
        self.at += n_bytes;
    }

    /// Passes a character.
    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.advance(c.len_utf8());
        Some(c)
    }

    /// Passes `token` if it stands here.
    pub(super) fn take(&mut self, token: &str) -> bool {
        looked_at(1);
        let is_here = self.rest().starts_with(token);
        self.advance(if is_here { token.len() } else { 0 });
        is_here
    }

    /// Passes the characters that are as asked and returns them.
    pub(super) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let (start, rest) = (self.at, self.rest());
        self.advance(rest.find(|c| !wanted(c)).unwrap_or(rest.len()));
        self.since(start)
    }
}

/// The beginning of a piece of text in backticks, on one line, for a message about it.
pub(super) fn excerpt(text: &str) -> String {
    const N_CHARS: usize = 40;
    let end = text.char_indices().nth(N_CHARS).map_or(text.len(), |(at, _)| at);
    let shown: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let rest = if end < text.len() { "…" } else { "" };
    format!("`{}{rest}`", shown.trim())
}
