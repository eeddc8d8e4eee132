//! Python source as far as tests are put together from it.

use std::collections::HashSet;

use crate::tasks::calls::is_identifier;

/// How a line begins that defines something.
const STARTS: [&str; 3] = ["def ", "async def ", "class "];

/// What code defines at its top.
pub(super) fn defined(code: &str) -> Vec<&str> {
    let rests = code.lines().filter_map(|line| STARTS.iter().find_map(|start| line.strip_prefix(start)));
    let names = rests.filter_map(|rest| words(rest).next());
    names.filter(|name| is_identifier(name)).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The names that code defines and tests mention.
pub(super) fn tested(code: &str, tests: &str) -> Vec<String> {
    let words: Vec<&str> = words(tests).collect();
    let mut seen = HashSet::new();
    let names = defined(code).into_iter().filter(|name| words.contains(name) && seen.insert(*name));
    names.map(str::to_owned).collect()
}

/// Imports what tests are about: the names, or everything where none is known.
pub(super) fn import(names: &[String]) -> String {
    match names {
        [] => "from solution import *".to_owned(),
        names => format!("from solution import {}", names.join(", ")),
    }
}

/// Tests that only define `check(candidate)` call it with the function they are about.
pub(super) fn checking(tests: &str, entry_point: &str) -> String {
    let has = |start: &str| tests.lines().any(|line| line.starts_with(start));
    match has("def check(") && !has("check(") {
        true => format!("{}\n\ncheck({entry_point})\n", tests.trim_end()),
        false => tests.to_owned(),
    }
}

/// Whether tests import the solution themselves.
pub(super) fn imports_solution(tests: &str) -> bool {
    let line = |line: &str| {
        line.trim_start().starts_with("from solution") || line.trim_start().starts_with("import solution")
    };
    tests.lines().any(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_defined_and_mentioned_is_imported() {
        let code = "import math\nclass Node:\n    def left(self): pass\ndef helper(): pass\nasync def f(x): pass\ndef f(x): pass\n";
        assert_eq!(defined(code), ["Node", "helper", "f", "f"]);
        assert_eq!(tested(code, "assert f(Node(1)) == helpers"), ["Node", "f"]);
        assert_eq!(import(&tested(code, "assert f(1)")), "from solution import f");
        assert_eq!(import(&[]), "from solution import *");
    }

    #[test]
    fn a_check_that_is_only_defined_is_called() {
        assert_eq!(
            checking("def check(c):\n    assert c(1)", "f"),
            "def check(c):\n    assert c(1)\n\ncheck(f)\n"
        );
        assert_eq!(checking("def check(c):\n    pass\ncheck(g)", "f"), "def check(c):\n    pass\ncheck(g)");
        assert_eq!(checking("assert f(1)", "f"), "assert f(1)");
    }
}
