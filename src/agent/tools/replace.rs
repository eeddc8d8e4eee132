//! Finds the text a student wants replaced, also when it was not quoted exactly.
//!
//! Pure. The exact text comes first. If it is nowhere, whole lines are compared, each time with
//! less care: without trailing white space, without indentation, with white space collapsed, with
//! typographic signs made plain. The first way that finds something decides; if it finds more than
//! one place and not all are wanted, that is an error, not a guess.

use std::ops::Range;

/// How the text was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// As it was given.
    Exact,
    /// Without white space at the ends of lines.
    LineEnds,
    /// Without indentation; the new text was indented alike.
    Indentation,
    /// With white space collapsed.
    WhiteSpace,
    /// With quotes, dashes and spaces made plain.
    Typography,
}

/// A text with replacements made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The whole new text.
    pub text: String,
    /// In how many places.
    pub n_places: usize,
    /// How they were found.
    pub by: Match,
}

/// Why nothing was replaced. Worded for the student, who can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// There is nothing to look for.
    #[error("old_string is empty; give the text to replace, or use write_file for a whole file")]
    Empty,
    /// Both are the same.
    #[error("old_string and new_string are the same")]
    Same,
    /// It is nowhere.
    #[error("old_string was not found{}; read the file again and quote it exactly", nearest(.0))]
    NotFound(Option<String>),
    /// It is in several places.
    #[error("old_string was found in {0} places; add lines around it, or set replace_all")]
    Ambiguous(usize),
}

fn nearest(line: &Option<String>) -> String {
    line.as_ref().map_or(String::new(), |line| format!(" (the nearest line is {line:?})"))
}

/// Replaces `old` by `new` in `text`: in the only place it is in, or in all.
pub fn replace(text: &str, old: &str, new: &str, all: bool) -> Result<Replaced, ReplaceError> {
    if old.is_empty() {
        return Err(ReplaceError::Empty);
    }
    if old == new {
        return Err(ReplaceError::Same);
    }
    let exact: Vec<Range<usize>> = text.match_indices(old).map(|(at, _)| at..at + old.len()).collect();
    let (places, by) = if exact.is_empty() { similar(text, old) } else { (exact, Match::Exact) };
    match places.len() {
        0 => Err(ReplaceError::NotFound(nearest_line(text, old))),
        n_places if n_places > 1 && !all => Err(ReplaceError::Ambiguous(n_places)),
        n_places => Ok(Replaced { text: put(text, &places, old, new, by), n_places, by }),
    }
}

type Normalise = fn(&str) -> String;

const WAYS: &[(Match, Normalise)] = &[
    (Match::LineEnds, |line| line.trim_end().to_owned()),
    (Match::Indentation, |line| line.trim().to_owned()),
    (Match::WhiteSpace, collapse),
    (Match::Typography, |line| collapse(&line.chars().map(plain).collect::<String>())),
];

fn collapse(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plain(c: char) -> char {
    match c {
        '\u{2018}' | '\u{2019}' | '\u{201b}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{a0}' | '\u{202f}' => ' ',
        c => c,
    }
}

/// The places where whole lines are like those of `old`, by the first way that finds any.
fn similar(text: &str, old: &str) -> (Vec<Range<usize>>, Match) {
    for (by, normalise) in WAYS {
        let wanted: Vec<String> = old.trim_matches('\n').lines().map(normalise).collect();
        let places = windows(text, &wanted, *normalise);
        if !places.is_empty() && wanted.iter().any(|line| !line.is_empty()) {
            return (places, *by);
        }
    }
    (Vec::new(), Match::Exact)
}

/// Where runs of lines of `text`, normalised, equal `wanted`; without the last line's end.
fn windows(text: &str, wanted: &[String], normalise: Normalise) -> Vec<Range<usize>> {
    let lines = lines(text);
    let normal: Vec<String> = lines.iter().map(|line| normalise(&text[line.clone()])).collect();
    let mut places = Vec::new();
    let mut at = 0;
    while at + wanted.len() <= lines.len() && !wanted.is_empty() {
        if normal[at..at + wanted.len()] == *wanted {
            places.push(lines[at].start..lines[at + wanted.len() - 1].end);
            at += wanted.len();
        } else {
            at += 1;
        }
    }
    places
}

/// The ranges of the lines of a text, without their ends.
fn lines(text: &str) -> Vec<Range<usize>> {
    let mut start = 0;
    text.split_inclusive('\n')
        .map(|line| {
            let range = start..start + line.trim_end_matches(['\n', '\r']).len();
            start += line.len();
            range
        })
        .collect()
}

fn put(text: &str, places: &[Range<usize>], old: &str, new: &str, by: Match) -> String {
    let mut result = String::new();
    let mut end = 0;
    for place in places {
        result.push_str(&text[end..place.start]);
        let found = &text[place.clone()];
        result.push_str(&if by == Match::Exact { new.to_owned() } else { fit(found, old, new) });
        end = place.end;
    }
    result.push_str(&text[end..]);
    result
}

/// `new` for a place that holds whole lines: without surrounding line ends, and indented as the
/// place is compared with `old`.
fn fit(found: &str, old: &str, new: &str) -> String {
    let (there, given) = (indentation(found), indentation(old.trim_matches('\n')));
    let new = new.trim_matches('\n');
    let indented = |line: &str| {
        if line.trim().is_empty() {
            return line.trim_end().to_owned();
        }
        match line.strip_prefix(given) {
            Some(rest) => format!("{there}{rest}"),
            None => line.to_owned(),
        }
    };
    new.lines().map(indented).collect::<Vec<_>>().join("\n")
}

/// The white space before the first line that is not blank.
fn indentation(text: &str) -> &str {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    &line[..line.len() - line.trim_start().len()]
}

/// The line of `text` that has most words of the first line of `old`.
fn nearest_line(text: &str, old: &str) -> Option<String> {
    let wanted: Vec<&str> = old.lines().find(|line| !line.trim().is_empty())?.split_whitespace().collect();
    let shared = |line: &str| line.split_whitespace().filter(|word| wanted.contains(word)).count();
    let best = text.lines().max_by_key(|line| shared(line)).filter(|line| shared(line) > 0)?;
    Some(best.trim().chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, old: &str, new: &str, all: bool, expected: Result<(&str, usize, Match), &str>) {
        let result = replace(text, old, new, all);
        let got =
            result.as_ref().map(|it| (it.text.as_str(), it.n_places, it.by)).map_err(ToString::to_string);
        assert_eq!(got, expected.map_err(str::to_owned), "{old:?} in {text:?}");
    }

    #[test]
    fn exact_text_is_replaced() {
        check("a b a", "b", "c", false, Ok(("a c a", 1, Match::Exact)));
        check("a b a", "a", "c", true, Ok(("c b c", 2, Match::Exact)));
        check("x\n  y\n", "  y", "  z", false, Ok(("x\n  z\n", 1, Match::Exact)));
        check("abc", "b", "", false, Ok(("ac", 1, Match::Exact)));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        check(
            "a b a",
            "a",
            "c",
            false,
            Err("old_string was found in 2 places; add lines around it, or set replace_all"),
        );
        check(
            "a",
            "",
            "c",
            false,
            Err("old_string is empty; give the text to replace, or use write_file for a whole file"),
        );
        check("a", "a", "a", false, Err("old_string and new_string are the same"));
        check(
            "a",
            "zzz",
            "c",
            false,
            Err("old_string was not found; read the file again and quote it exactly"),
        );
        let near = "old_string was not found (the nearest line is \"def foo(x):\"); read the file again and quote it exactly";
        check("def foo(x):\n  pass\n", "def bar(y):", "c", false, Err(near));
    }

    #[test]
    fn lines_are_found_with_less_and_less_care() {
        check("a  \nb\nc\n", "a\nb", "x", false, Ok(("x\nc\n", 1, Match::LineEnds)));
        check(
            "    if x:\n        y()\n",
            "if x:\n    y()",
            "if z:\n    y()",
            false,
            Ok(("    if z:\n        y()\n", 1, Match::Indentation)),
        );
        check("a =  1\n", "a  = 1", "a = 2", false, Ok(("a = 2\n", 1, Match::WhiteSpace)));
        check(
            "say(\u{201c}hi\u{201d})\n",
            "say(\"hi\")",
            "say(\"ho\")",
            false,
            Ok(("say(\"ho\")\n", 1, Match::Typography)),
        );
    }

    #[test]
    fn similar_lines_in_several_places_are_no_guess() {
        check(
            "\ta\nb\n\t\ta\n",
            " a",
            "x",
            false,
            Err("old_string was found in 2 places; add lines around it, or set replace_all"),
        );
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[ab \n\té]*", old in "[ab \n\té]*", new in "[ab \n\té]*", all: bool) {
            let _ = replace(&text, &old, &new, all);
        }

        #[test]
        fn exact_replacement_is_that_of_the_standard_library(text in "[ab\n]*", new in "[xy]*") {
            if let Ok(replaced) = replace(&text, "a", &new, true) {
                prop_assert_eq!(replaced.text, text.replace('a', &new));
            }
        }
    }
}
