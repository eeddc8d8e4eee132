//! How this program is called here, so that what it suggests works as it stands.
//!
//! One rule: a suggested command begins with the word the program was started by. That is `backsight` where it was
//! found on the search path, and the path of the binary where it was started by that or by cargo.

use std::ffi::OsStr;
use std::sync::OnceLock;

static CALLED: OnceLock<String> = OnceLock::new();

/// Takes note of what the program was started as.
pub(super) fn started_as(word: &OsStr) {
    // A program is started once; only tests do it twice.
    let _ = CALLED.set(word.to_string_lossy().into_owned());
}

/// A command of this program, to be typed as it is.
pub(super) fn command<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let called = CALLED.get().map_or("backsight", String::as_str);
    let words = std::iter::once(called).chain(words).map(quoted);
    words.collect::<Vec<_>>().join(" ")
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_the_shell_needs_it() {
        let check = |word: &str, expected: &str| assert_eq!(quoted(word), expected);
        check("runs/a-b_1.jsonl", "runs/a-b_1.jsonl");
        check("my runs", "'my runs'");
        check("it's", r"'it'\''s'");
        check("", "''");
        check("$HOME", "'$HOME'");
    }
}
