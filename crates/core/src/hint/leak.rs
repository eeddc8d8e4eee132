//! Whether a hint gives away what it must not: the next state word for word, or a line of hidden tests.

use std::collections::HashSet;

use crate::named;

/// A line of tests that is shorter says nothing of its own.
const SHORTEST_LINE: usize = 20;

/// What a hint gives away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leak {
    /// It repeats the next state.
    NextState,
    /// It repeats hidden tests.
    Tests,
}

named!(Leak: NextState = "next_state", Tests = "tests");

/// What hints on one episode must not repeat.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    n_words: usize,
    lines: Vec<String>,
}

impl Leaks {
    /// Runs of `n_words` words of a next state (0: none is too long), and the lines of the hidden tests, if there are any.
    pub fn new(n_words: usize, tests: Option<&str>) -> Self {
        let lines = tests.unwrap_or_default().lines().map(folded);
        let tells = |line: &String| line.chars().count() >= SHORTEST_LINE && !is_import(line);
        Self { n_words, lines: lines.filter(tells).collect() }
    }

    /// What a hint drawn from this next state gives away, if anything.
    pub fn find(&self, hint: &str, next_state: &str) -> Option<Leak> {
        let folded = folded(hint);
        if self.lines.iter().any(|line| folded.contains(line.as_str())) {
            Some(Leak::Tests)
        } else {
            shares_run(hint, next_state, self.n_words).then_some(Leak::NextState)
        }
    }
}

/// With every run of white space as one space, so that another indentation hides nothing.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_import(line: &str) -> bool {
    line.starts_with("import ") || line.starts_with("from ")
}

/// Whether both texts have the same `n` words somewhere, in the same order with nothing between them.
fn shares_run(a: &str, b: &str, n: usize) -> bool {
    if n == 0 {
        return false;
    }
    let (a, b) = (words(a), words(b));
    let runs: HashSet<&[String]> = a.windows(n).collect();
    b.windows(n).any(|run| runs.contains(run))
}

/// The words, without punctuation around them and in lower case.
fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_words_is_a_leak() {
        let leaks = Leaks::new(4, None);
        let state = "Traceback: the file \"a.py\" was not found";
        let found = |hint: &str| leaks.find(hint, state);
        assert_eq!(found("Remember that the file a.py  WAS missing"), Some(Leak::NextState));
        assert_eq!(found("Remember that the file 'b.py' was not found"), None);
        assert_eq!(found("not found was the file"), None);
        assert_eq!(Leaks::new(0, None).find(state, state), None);
    }

    #[test]
    fn a_line_of_the_tests_is_a_leak() {
        let tests =
            "from solution import flatten\n    assert flatten([1,  [2]]) == [1, 2]\nassert f(1) == 2\n";
        let leaks = Leaks::new(12, Some(tests));
        let found = |hint: &str| leaks.find(hint, "");
        assert_eq!(found("make sure that assert flatten([1, [2]]) == [1, 2] holds"), Some(Leak::Tests));
        assert_eq!(found("begin with from solution import flatten"), None);
        assert_eq!(found("assert f(1) == 2 is what counts here"), None);
    }
}
