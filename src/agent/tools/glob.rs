//! File-name patterns: `*`, `?`, `[abc]`, `**`, `{a,b}`.
//!
//! Pure. A pattern becomes a regular expression, which takes time linear in the name whatever the
//! pattern is.

use regex::Regex;

use super::search::{build, short};

/// A pattern for paths.
#[derive(Clone, Debug)]
pub struct Glob {
    regex: Regex,
    whole_path: bool,
}

impl Glob {
    /// Reads a pattern. One with a slash is compared with the whole path, another with the name alone.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let pattern = short(pattern.trim_start_matches("./"))?;
        let regex = build(&format!("^(?s:{})$", translate(pattern)))?;
        Ok(Self { regex, whole_path: pattern.contains('/') })
    }

    /// Whether a path, relative to the workspace, fits.
    pub fn matches(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.regex.is_match(if self.whole_path { path } else { name })
    }
}

fn translate(pattern: &str) -> String {
    let mut regex = String::new();
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let (piece, n_bytes) = match c {
            '*' if rest.starts_with("**/") => ("(?:.*/)?".to_owned(), 3),
            '*' if rest.starts_with("**") => (".*".to_owned(), 2),
            '*' => ("[^/]*".to_owned(), 1),
            '?' => ("[^/]".to_owned(), 1),
            '[' => class(rest).unwrap_or_else(|| ("\\[".to_owned(), 1)),
            '{' => alternatives(rest).unwrap_or_else(|| ("\\{".to_owned(), 1)),
            c => (regex::escape(c.encode_utf8(&mut [0; 4])), c.len_utf8()),
        };
        regex.push_str(&piece);
        rest = &rest[n_bytes..];
    }
    regex
}

/// A character class at the beginning of `rest`, if it is closed.
fn class(rest: &str) -> Option<(String, usize)> {
    let end = rest[1..].find(']').filter(|&end| end > 0)? + 1;
    let body = &rest[1..end];
    let (sign, body) = body.strip_prefix('!').map_or(("", body), |body| ("^", body));
    let body: String =
        body.chars().map(|c| if c == '-' { "-".to_owned() } else { regex::escape(&c.to_string()) }).collect();
    Some((format!("[{sign}{body}]"), end + 1))
}

/// Alternatives in braces at the beginning of `rest`, if they are closed; they may hold patterns.
fn alternatives(rest: &str) -> Option<(String, usize)> {
    let end = rest.find('}')?;
    let body = &rest[1..end];
    if body.contains('{') {
        return None;
    }
    let choices: Vec<String> = body.split(',').map(translate).collect();
    Some((format!("(?:{})", choices.join("|")), end + 1))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, path: &str, expected: bool) {
        assert_eq!(Glob::new(pattern).unwrap().matches(path), expected, "{pattern} on {path}");
    }

    #[test]
    fn patterns_match_as_shells_do() {
        check("*.py", "a.py", true);
        check("*.py", "dir/a.py", true);
        check("*.py", "a.pyc", false);
        check("dir/*.py", "dir/a.py", true);
        check("dir/*.py", "dir/sub/a.py", false);
        check("**/*.py", "a.py", true);
        check("dir/**/*.py", "dir/x/y/a.py", true);
        check("./a?.txt", "ab.txt", true);
        check("[ab].txt", "b.txt", true);
        check("[!ab].txt", "b.txt", false);
        check("[0-9].txt", "5.txt", true);
        check("*.{py,txt}", "a.txt", true);
        check("*.{py,txt}", "a.md", false);
        check("a+b.txt", "a+b.txt", true);
        check("[", "[", true);
        check("{", "{", true);
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in ".*", path in ".*") {
            let _ = Glob::new(&pattern).map(|glob| glob.matches(&path));
        }
    }
}
