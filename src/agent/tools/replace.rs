//! Replaces the text a student names, also when it was not quoted exactly.
//!
//! Pure. The exact text comes first. If it is nowhere, whole lines are compared, each time with less care (see
//! `lines`). The first way that finds something decides; if it finds more than one place and not all are wanted, that
//! is an error, not a guess. Time is linear in the text, and so is the new text.

use std::collections::HashSet;
use std::ops::Range;

use backsight_sandbox::{Allowance, Stopped};

use super::ToolError;
use super::lines::{Position, Runs, WAYS, Way, indentation, reindent};

/// In more places nothing is replaced.
const MAX_PLACES: usize = 100_000;

/// A text with replacements made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The whole new text.
    pub text: String,
    /// In how many places.
    pub n_places: usize,
    /// How they were found.
    pub by: Way,
}

/// What to replace by what.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    /// The text to find.
    pub old: &'a str,
    /// The text to put there.
    pub new: &'a str,
    /// Whether it may be in several places.
    pub all: bool,
    /// How many bytes the new text may have.
    pub max_len: usize,
}

/// Replaces a text in the only place it is in, or in all. What cannot be done is worded for the student.
pub fn replace(text: &str, wish: Replacement<'_>, allowance: &Allowance) -> Result<Replaced, ToolError> {
    if wish.old.is_empty() {
        let why = "old_string is empty; give the text to replace, or use write_file for a whole file";
        return Err(why.to_owned().into());
    }
    if wish.old == wish.new {
        return Err("old_string and new_string are the same".to_owned().into());
    }
    allowance.spend(text.len())?;
    let exact = text.match_indices(wish.old).map(|(at, old)| at..at + old.len());
    let exact: Vec<Range<usize>> = exact.take(MAX_PLACES + 1).collect();
    let (places, by) =
        if exact.is_empty() { similar(text, wish.old, allowance)? } else { (exact, Way::Exact) };
    let why = match places.len() {
        0 => {
            let nearest = nearest_line(text, wish.old, allowance)?;
            format!("old_string was not found{nearest}; read the file again and quote it exactly")
        }
        n_places if n_places > MAX_PLACES => {
            format!("old_string is in more than {MAX_PLACES} places; use the terminal")
        }
        n_places if n_places > 1 && !wish.all => {
            format!("old_string was found in {n_places} places; add lines around it, or set replace_all")
        }
        n_places => return Ok(Replaced { text: put(text, &places, wish, by)?, n_places, by }),
    };
    Err(why.into())
}

/// The places where whole lines are like those of `old`, by the first way that finds any.
fn similar(text: &str, old: &str, allowance: &Allowance) -> Result<(Vec<Range<usize>>, Way), Stopped> {
    let wanted: Vec<&str> = old.trim_matches('\n').lines().collect();
    // Blank lines alone are everywhere.
    let is_blank = wanted.iter().all(|line| line.trim().is_empty());
    for way in WAYS.into_iter().skip(1).filter(|_| !is_blank) {
        let mut found: Vec<Range<usize>> = Vec::new();
        for run in Runs::new(text, Position::default(), &wanted, way, allowance) {
            let place = run?.bytes;
            if found.last().is_none_or(|last| last.end <= place.start) && found.len() <= MAX_PLACES {
                found.push(place);
            }
        }
        if !found.is_empty() {
            return Ok((found, way));
        }
    }
    Ok((Vec::new(), Way::Exact))
}

fn put(text: &str, places: &[Range<usize>], wish: Replacement<'_>, by: Way) -> Result<String, String> {
    let mut result = String::new();
    let mut end = 0;
    let given = indentation(wish.old.lines());
    for place in places {
        result.push_str(&text[end..place.start]);
        match by {
            Way::Exact => result.push_str(wish.new),
            _ => result.push_str(&fit(&text[place.clone()], given, wish.new)),
        }
        end = place.end;
        if result.len() > wish.max_len {
            break;
        }
    }
    result.push_str(&text[end..]);
    let too_long = || format!("the file would have more than {} MiB; use the terminal", wish.max_len >> 20);
    if result.len() > wish.max_len { Err(too_long()) } else { Ok(result) }
}

/// `new` for a place that holds whole lines: without surrounding line ends, and indented as the place is.
fn fit(found: &str, given: &str, new: &str) -> String {
    let there = indentation(found.lines());
    let lines = new.trim_matches('\n').lines().map(|line| reindent(line, given, there));
    lines.collect::<Vec<_>>().join("\n")
}

/// The line of `text` that has most words of the first line of `old`, as the student is told about it.
fn nearest_line(text: &str, old: &str, allowance: &Allowance) -> Result<String, Stopped> {
    let first = old.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let wanted: HashSet<&str> = first.split_whitespace().collect();
    let mut best = (0, "");
    for line in text.lines() {
        allowance.spend(line.len() + 1)?;
        let n_shared = line.split_whitespace().filter(|word| wanted.contains(word)).count();
        if n_shared >= best.0 {
            best = (n_shared, line);
        }
    }
    let shown: String = best.1.trim().chars().take(200).collect();
    Ok(if best.0 > 0 { format!(" (the nearest line is {shown:?})") } else { String::new() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, old: &str, new: &str, all: bool, expected: Result<(&str, usize, Way), &str>) {
        let result = replace(text, Replacement { old, new, all, max_len: 1000 }, &Allowance::new(1 << 20));
        let got =
            result.as_ref().map(|it| (it.text.as_str(), it.n_places, it.by)).map_err(ToString::to_string);
        assert_eq!(got, expected.map_err(str::to_owned), "{old:?} in {text:?}");
    }

    /// Why nothing is replaced.
    fn said(text: &str, wish: Replacement<'_>, allowance: &Allowance) -> String {
        replace(text, wish, allowance).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn exact_text_is_replaced() {
        check("a b a", "b", "c", false, Ok(("a c a", 1, Way::Exact)));
        check("a b a", "a", "c", true, Ok(("c b c", 2, Way::Exact)));
        check("x\n  y\n", "  y", "  z", false, Ok(("x\n  z\n", 1, Way::Exact)));
        check("abc", "b", "", false, Ok(("ac", 1, Way::Exact)));
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
        check("a  \nb\nc\n", "a\nb", "x", false, Ok(("x\nc\n", 1, Way::LineEnds)));
        check(
            "    if x:\n        y()\n",
            "if x:\n    y()",
            "if z:\n    y()",
            false,
            Ok(("    if z:\n        y()\n", 1, Way::Indentation)),
        );
        check("a =  1\n", "a  = 1", "a = 2", false, Ok(("a = 2\n", 1, Way::WhiteSpace)));
        check(
            "say(\u{201c}hi\u{201d})\n",
            "say(\"hi\")",
            "say(\"ho\")",
            false,
            Ok(("say(\"ho\")\n", 1, Way::Typography)),
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

    /// What took time quadratic in the text: many lines that begin as the wanted ones do, and many wanted words.
    #[test]
    fn work_is_linear_in_the_text() {
        let text = "x\n".repeat(50_000);
        let old = "x\n".repeat(5000) + &"y ".repeat(50_000);
        let wish = Replacement { old: &old, new: "z", all: false, max_len: 1 << 20 };
        // Read once exactly, once in each other way, once for the nearest line.
        let allowance = Allowance::new(6 * text.len() as u64);
        let missing =
            "old_string was not found (the nearest line is \"x\"); read the file again and quote it exactly";
        assert_eq!(said(&text, wish, &allowance), missing);
        let little = Allowance::new(3 * text.len() as u64);
        let stopped = "this would go through more than 0 MiB of text; ask for less, or use the terminal";
        assert_eq!(said(&text, wish, &little), stopped);
    }

    #[test]
    fn the_new_text_is_bounded() {
        let text = "a".repeat(1000);
        let new = "b".repeat(1000);
        let wish = Replacement { old: "a", new: &new, all: true, max_len: 1 << 16 };
        let allowance = Allowance::new(1 << 20);
        assert_eq!(said(&text, wish, &allowance), "the file would have more than 0 MiB; use the terminal");
        let everywhere = "a".repeat(MAX_PLACES + 1);
        let wish = Replacement { max_len: 1 << 30, ..wish };
        assert_eq!(
            said(&everywhere, wish, &allowance),
            "old_string is in more than 100000 places; use the terminal"
        );
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[ab \n\té]*", old in "[ab \n\té]*", new in "[ab \n\té]*", all: bool) {
            let wish = Replacement { old: &old, new: &new, all, max_len: 100 };
            let _ = replace(&text, wish, &Allowance::new(1 << 20));
        }

        #[test]
        fn exact_replacement_is_that_of_the_standard_library(text in "[ab\n]*", new in "[xy]*") {
            let wish = Replacement { old: "a", new: &new, all: true, max_len: 1 << 20 };
            if let Ok(replaced) = replace(&text, wish, &Allowance::new(1 << 20)) {
                prop_assert_eq!(replaced.text, text.replace('a', &new));
            }
        }
    }
}
