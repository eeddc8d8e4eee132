//! Shortens what a tool says to what a student should read.
//!
//! Pure. Owns cutting text in the middle and taking away what terminals draw with.

use std::sync::LazyLock;

use regex::Regex;

/// Whether a text has more than `max` characters.
pub fn is_longer(text: &str, max: usize) -> bool {
    text.len() > max && text.chars().nth(max).is_some()
}

/// Keeps at most `max` characters of `text`: two fifths from the beginning, the rest from the end,
/// with a line in between that says how much is missing, and `note`. None when nothing has to go.
pub fn cut_middle(text: &str, max: usize, note: &str) -> Option<String> {
    let n_chars = text.chars().count();
    if n_chars <= max {
        return None;
    }
    let n_head = max / 5 * 2;
    let head_end = char_offset(text, n_head);
    let tail_start = char_offset(text, n_chars - (max - n_head));
    let n_omitted = n_chars - max;
    let (head, tail) = (&text[..head_end], &text[tail_start..]);
    Some(format!("{head}\n\n... [{n_omitted} of {n_chars} characters omitted{note}] ...\n\n{tail}"))
}

/// The beginning of a line, with `mark` behind it where it has more than `max` characters.
pub fn cut_line(line: &str, max: usize, mark: &str) -> String {
    let end = char_offset(line, max);
    format!("{}{}", &line[..end], if end < line.len() { mark } else { "" })
}

/// The longest that texts of these lengths may stay so that all of them together are at most `max`:
/// the longest ones give way first.
pub fn shared_limit(lengths: &[usize], max: usize) -> usize {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let mut left = max;
    for (idx, &length) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - idx);
        if length > share {
            return share;
        }
        left -= length;
    }
    usize::MAX
}

fn char_offset(text: &str, n_chars: usize) -> usize {
    text.char_indices().nth(n_chars).map_or(text.len(), |(offset, _)| offset)
}

/// What terminals draw with, as far as it is there: a control sequence up to a letter or one of a few signs, a command
/// of the operating system up to a bell or another escape, a choice of characters, or anything of one character.
static ESCAPES: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?s)\x1b(\[[^@-~]*[@-~]?|\][^\x07\x1b]*[\x07\x1b]?\\*|[()#].?|.|)").ok());

/// Takes away terminal escape sequences: colours, cursor movements, titles.
pub fn strip_ansi(text: &str) -> String {
    // That it can be read is a test's to say.
    ESCAPES.as_ref().map_or(text.into(), |escapes| escapes.replace_all(text, "")).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_cut(text: &str, max: usize, expected: Option<&str>) {
        assert_eq!(cut_middle(text, max, "").as_deref(), expected);
    }

    #[test]
    fn the_middle_goes() {
        check_cut("0123456789", 10, None);
        check_cut("0123456789a", 10, Some("0123\n\n... [1 of 11 characters omitted] ...\n\n56789a"));
        check_cut("éàüöñçßøåæœ", 5, Some("éà\n\n... [6 of 11 characters omitted] ...\n\nåæœ"));
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(cut_line(&"é".repeat(600), 500, "..."), "é".repeat(500) + "...");
        assert_eq!(cut_line("é", 1, "..."), "é");
    }

    #[test]
    fn what_is_missing_can_be_found() {
        let cut = cut_middle("0123456789", 5, "; see x");
        assert_eq!(cut.as_deref(), Some("01\n\n... [5 of 10 characters omitted; see x] ...\n\n789"));
    }

    #[test]
    fn the_longest_give_way() {
        assert_eq!(shared_limit(&[3, 4], 7), usize::MAX);
        assert_eq!(shared_limit(&[3, 100, 50], 63), 30);
        assert_eq!(shared_limit(&[3, 100, 20], 63), 40);
        assert_eq!(shared_limit(&[], 0), usize::MAX);
    }

    #[test]
    fn escapes_go() {
        let cases = [
            ("plain", "plain"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]0;title\u{1b}\\text", "text"),
            ("\u{1b}(Btext", "text"),
            ("end\u{1b}", "end"),
            ("end\u{1b}[", "end"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_ansi(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_cut_and_stripped(text in ".*", max in 0usize..40) {
            let cut = cut_middle(&text, max, "");
            prop_assert_eq!(cut.is_some(), text.chars().count() > max);
            let escape = char::from(0x1b);
            prop_assert!(!strip_ansi(&text).contains(escape));
        }
    }
}
