//! Looking for a pattern in texts.
//!
//! Pure. Owns finding lines and choosing those around them; which files there are and reading
//! them is left to the tool.

use regex::{Regex, RegexBuilder};

/// Lines longer than this are cut.
const MAX_LINE: usize = 500;
/// A compiled pattern may take this much memory.
const MAX_REGEX: usize = 1 << 20;

/// A line that was found, or one around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its number, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
    /// Whether the pattern is in it; otherwise it is only near one.
    pub is_match: bool,
}

/// Reads a pattern; one that is no regular expression is taken literally.
pub fn pattern(text: &str) -> Result<Regex, regex::Error> {
    let build = |text: &str| RegexBuilder::new(text).size_limit(MAX_REGEX).build();
    build(text).or_else(|_| build(&regex::escape(text)))
}

/// The lines of `text` in which the pattern is, with `n_context` lines around each.
pub fn hits(text: &str, pattern: &Regex, n_context: usize) -> Vec<Hit> {
    let lines: Vec<&str> = text.lines().collect();
    let matches: Vec<bool> = lines.iter().map(|line| pattern.is_match(line)).collect();
    let is_near = |at: usize| {
        let around = at.saturating_sub(n_context)..(at + n_context + 1).min(lines.len());
        matches[around].contains(&true)
    };
    let hit = |at: usize| Hit { line: at + 1, text: cut(lines[at]), is_match: matches[at] };
    (0..lines.len()).filter(|&at| is_near(at)).map(hit).collect()
}

fn cut(line: &str) -> String {
    let cut: String = line.chars().take(MAX_LINE).collect();
    if cut.len() < line.len() { cut + "..." } else { cut }
}

/// Whether a file's beginning looks like something else than text.
pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8192).any(|&byte| byte == 0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn check(text: &str, wanted: &str, n_context: usize, expected: &[(usize, bool)]) {
        let found: Vec<_> = hits(text, &pattern(wanted).unwrap(), n_context)
            .iter()
            .map(|hit| (hit.line, hit.is_match))
            .collect();
        assert_eq!(found, expected, "{wanted} in {text:?}");
    }

    #[test]
    fn lines_are_found() {
        check("a\nb\nab\n", "a", 0, &[(1, true), (3, true)]);
        check("a\nb\nc\nd\n", "^c$", 1, &[(2, false), (3, true), (4, false)]);
        check("a\nb\n", "z", 3, &[]);
    }

    #[test]
    fn what_is_no_pattern_is_taken_literally() {
        check("f(x\ng\n", "f(x", 0, &[(1, true)]);
        check("[a\n", "[a", 0, &[(1, true)]);
        let huge = "((a{1000}){1000}){1000}";
        check("a\n", huge, 0, &[]);
    }

    #[test]
    fn long_lines_are_cut() {
        let line = "é".repeat(600);
        let hit = &hits(&line, &pattern("é").unwrap(), 0)[0];
        assert_eq!(hit.text.chars().count(), MAX_LINE + 3);
    }
}
