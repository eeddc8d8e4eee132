//! Looking for a pattern in texts.
//!
//! Pure. Owns finding lines and choosing those around them; which files there are and reading
//! them is left to the tool.

use regex::{Regex, RegexBuilder};

use backsight_sandbox::{Allowance, Stopped};

/// Of longer lines so many bytes are searched: nobody can interrupt the search of one.
const MAX_SEARCHED: usize = 64 << 10;
/// A compiled pattern may take this much memory, and search takes time in proportion.
const MAX_REGEX: usize = 256 << 10;
/// No longer pattern is read.
const MAX_PATTERN: usize = 2000;

/// A line that was found, or one around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit<'a> {
    /// Its number, from 1.
    pub line: usize,
    /// What it says.
    pub text: &'a str,
    /// Whether the pattern is in it; otherwise it is only near one.
    pub is_match: bool,
}

/// Reads a pattern; one that is no regular expression is taken literally.
pub fn pattern(text: &str) -> Result<Regex, String> {
    let text = short(text)?;
    build(text).or_else(|_| build(&regex::escape(text)))
}

/// A pattern, if it is not too long to be looked at.
pub(super) fn short(pattern: &str) -> Result<&str, String> {
    let too_long = || format!("it has more than {MAX_PATTERN} bytes");
    Some(pattern).filter(|it| it.len() <= MAX_PATTERN).ok_or_else(too_long)
}

/// A regular expression that needs neither much memory nor much time.
pub(super) fn build(regex: &str) -> Result<Regex, String> {
    RegexBuilder::new(regex).size_limit(MAX_REGEX).build().map_err(|error| error.to_string())
}

/// The lines of `text` in which the pattern is, with `n_context` lines around each.
pub fn hits<'a>(
    text: &'a str,
    pattern: &Regex,
    n_context: usize,
    allowance: &Allowance,
) -> Result<impl Iterator<Item = Hit<'a>>, Stopped> {
    let lines: Vec<&str> = text.lines().collect();
    let mut matches = Vec::with_capacity(lines.len());
    for line in &lines {
        allowance.spend(line.len() + 1)?;
        matches.push(pattern.is_match(&line[..line.floor_char_boundary(MAX_SEARCHED)]));
    }
    let is_near = move |at: usize, matches: &[bool]| {
        let around = at.saturating_sub(n_context)..(at + n_context + 1).min(matches.len());
        matches[around].contains(&true)
    };
    let hit = move |at: usize| {
        is_near(at, &matches).then(|| Hit { line: at + 1, text: lines[at], is_match: matches[at] })
    };
    Ok((0..text.lines().count()).filter_map(hit))
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
        let found: Vec<_> = hits(text, &pattern(wanted).unwrap(), n_context, &Allowance::new(999))
            .unwrap()
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
    fn searching_counts_and_patterns_are_short() {
        let stopped = hits("aaaa", &pattern("b").unwrap(), 0, &Allowance::new(4)).err();
        assert_eq!(stopped, Some(Stopped::TooMuch(4)));
        assert_eq!(
            pattern(&"(".repeat(MAX_PATTERN + 1)).err(),
            Some("it has more than 2000 bytes".to_owned())
        );
    }
}
