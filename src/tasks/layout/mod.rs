//! Datasets as they are published: each layout is recognised by its own columns.
//!
//! [`LAYOUTS`] is the one list of them; a layout is a small pure function from a row to what is asked, how it
//! is judged, what a student may see of the tests, and solutions that are known.

mod apps;
mod contests;
mod humaneval;
mod livecodebench;
mod mbpp;
mod own;
mod source;

use std::borrow::Cow;

use serde_json::Value;

use super::check::Check;
use super::prompt::Wanted;
use super::row::{Row, text};

/// A row that could be read: what is asked, and how a solution is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// What is asked, as its author wrote it.
    pub question: String,
    /// What is to be written.
    pub wanted: Wanted,
    /// How it is judged, if the row says it.
    pub check: Option<Check>,
    /// The tests that are published for whoever solves it.
    pub shown: Option<Check>,
    /// Solutions that are known, never shown.
    pub references: Vec<String>,
}

/// One layout: the columns by which it is recognised, and how it is read.
struct Layout {
    /// One of these holds the question.
    question: &'static [&'static str],
    /// One of these holds tests.
    tests: &'static [&'static str],
    /// And all of these are there.
    beside: &'static [&'static str],
    read: fn(&Row) -> Result<Problem, String>,
}

/// All layouts; the first that fits is taken.
const LAYOUTS: &[Layout] = &[
    Layout { question: &["prompt", "task"], tests: &["test_code", "tests"], beside: &[], read: own::read },
    Layout { question: &["text", "prompt"], tests: &["test_list"], beside: &[], read: mbpp::read },
    Layout { question: &["prompt"], tests: &["test"], beside: &["entry_point"], read: humaneval::read },
    Layout { question: &["question"], tests: &["input_output"], beside: &[], read: apps::read },
    Layout {
        question: &["question_content"],
        tests: &["private_test_cases", "public_test_cases"],
        beside: &[],
        read: livecodebench::read,
    },
    Layout {
        question: &["description"],
        tests: &["official_tests", "examples"],
        beside: &[],
        read: contests::read_codeforces,
    },
    Layout {
        question: &["description"],
        tests: &["private_tests", "generated_tests", "public_tests"],
        beside: &[],
        read: contests::read_code_contests,
    },
];

/// Which columns were named, and win over what is recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The question.
    pub prompt: Option<String>,
    /// The tests.
    pub test: Option<String>,
    /// The function that the tests are about.
    pub entry_point: Option<String>,
}

/// What a row says, or which columns were looked for.
pub fn read(row: &Row, named: &Named, needs_tests: bool) -> Result<Problem, String> {
    let row = renamed(row, named)?;
    let row = row.as_ref();
    let mut found = match LAYOUTS.iter().find(|layout| layout.fits(row)) {
        _ if named.test.is_some() => own::read(row)?,
        Some(layout) => (layout.read)(row)?,
        None if needs_tests => return Err(missing(row)),
        None => own::untested(row)?,
    };
    if let Some(column) = &named.prompt {
        found.question = question(row, &[column])?;
    }
    Ok(found)
}

/// The row with named columns under the names by which layouts know them.
fn renamed<'a>(row: &'a Row, named: &Named) -> Result<Cow<'a, Row>, String> {
    if *named == Named::default() {
        return Ok(Cow::Borrowed(row));
    }
    let mut row = row.clone();
    if let Some(column) = &named.prompt {
        let question = question(&row, &[column])?;
        let missing = own::QUESTIONS.into_iter().filter(|name| !row.get(*name).is_some_and(holds));
        for name in missing.collect::<Vec<_>>() {
            row.insert(name.to_owned(), question.clone().into());
        }
    }
    for (own, column) in [("tests", &named.test), ("entry_point", &named.entry_point)] {
        let Some(column) = column else { continue };
        let value = row.get(column).filter(|value| holds(value)).cloned();
        row.insert(own.to_owned(), value.ok_or_else(|| format!("it has no `{column}`"))?);
    }
    if named.test.is_some() {
        row.remove("test_code");
    }
    Ok(Cow::Owned(row))
}

fn question(row: &Row, columns: &[&str]) -> Result<String, String> {
    text(row, columns).ok_or_else(|| format!("it has no {}", listed(columns, " and no ")))
}

impl Layout {
    fn fits(&self, row: &Row) -> bool {
        let has = |column: &&str| row.get(*column).is_some_and(holds);
        self.question.iter().any(has) && self.tests.iter().any(has) && self.beside.iter().all(has)
    }

    /// The columns its tests are recognised by.
    fn sought(&self) -> String {
        let tests = listed(self.tests, " or ");
        if self.beside.is_empty() { tests } else { format!("{tests} with {}", listed(self.beside, " and ")) }
    }
}

/// What a row lacks: a question, or tests beside the question it has.
fn missing(row: &Row) -> String {
    if text(row, &own::QUESTIONS).is_none() {
        return format!("it has no question: looked for {}", listed(&own::QUESTIONS, ", "));
    }
    let sought: Vec<String> = LAYOUTS.iter().map(Layout::sought).collect();
    format!("it has no tests: looked for {}", sought.join(", "))
}

fn listed(columns: &[&str], between: &str) -> String {
    columns.iter().map(|column| format!("`{column}`")).collect::<Vec<_>>().join(between)
}

/// Whether a column holds anything.
fn holds(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::tasks::Stdio;

    fn found(row: &Value) -> Result<Problem, String> {
        read(row.as_object().unwrap(), &Named::default(), true)
    }

    fn texts(found: &Problem) -> String {
        found.check.as_ref().unwrap().texts().join("|")
    }

    /// What judges, what is shown, how many solutions are known.
    fn check(row: Value, judges: &str, shows: Option<&str>, n_references: usize) {
        let found = found(&row).unwrap();
        let shown = found.shown.as_ref().map(|it| match it {
            Check::Script(code) => code.clone(),
            Check::Stdio(Stdio { cases, .. }) => {
                cases.iter().map(|it| format!("{}>{}", it.input, it.output)).collect()
            }
        });
        assert_eq!((texts(&found).as_str(), shown.as_deref()), (judges, shows), "{row}");
        assert_eq!(found.references.len(), n_references, "{row}");
    }

    #[test]
    fn each_layout_is_recognised_by_its_columns() {
        let code = "def f(x):\n    return x\n";
        let mbpp = "script|import math\nfrom solution import f\n\nassert f(1) == 1\n";
        check(
            json!({"text": "T", "test_list": ["assert f(1) == 1"], "test_imports": ["import math"], "code": code}),
            mbpp,
            Some("import math\nassert f(1) == 1"),
            1,
        );
        // MBPP+ judges by a longer script than it shows.
        check(
            json!({"prompt": "T", "test_list": ["assert f(1) == 1"], "test": "assert f(2) == 2", "code": code}),
            "script|from solution import f\n\nassert f(2) == 2\n",
            Some("assert f(1) == 1"),
            1,
        );
        check(
            json!({"prompt": "import re\ndef g(): pass\ndef f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1)"}),
            "script|import re\ndef g(): pass\nfrom solution import f\n\ndef check(c):\n    assert c(1)\n\ncheck(f)\n",
            Some("def check(c):\n    assert c(1)\n\ncheck(f)\n"),
            0,
        );
        let tests = r#"{"inputs": ["1\n", ["2", "3"]], "outputs": ["a", "b"]}"#;
        check(
            json!({"question": "Q", "input_output": tests, "solutions": "[\"a\", \"b\", \"c\", \"d\"]"}),
            "stdio|1\n|a|2\n3|b",
            None,
            3,
        );
        check(
            json!({"description": "D", "public_tests": {"input": ["1"], "output": ["2"]}, "generated_tests": {"input": ["3"], "output": ["4"]},
                   "solutions": {"language": [2, 3], "solution": ["int main", "print(1)"]}}),
            "stdio|1|2|3|4",
            Some("1>2"),
            1,
        );
        check(
            json!({"description": "D", "input_format": "I", "examples": [{"input": "1", "output": "2"}],
                   "official_tests": [{"input": "3", "output": "4"}], "input_mode": "stdio", "generated_checker": null}),
            "stdio|1|2|3|4",
            Some("1>2"),
            0,
        );
        check(json!({"task": "T", "tests": [{"input": "1", "output": "2"}]}), "stdio|1|2", None, 0);
    }

    #[test]
    fn what_is_packed_stays_packed_until_it_is_used() {
        let row = json!({"question_content": "Q", "public_test_cases": "[]", "private_test_cases": "eJxrYJnKzgABPczRhrFT9AAb7QNb"});
        assert_eq!(found(&row).unwrap_err(), "its tests are no list of `input` and `output`");
        let packed =
            include_str!("../../../tests/fixtures/datasets/livecodebench.jsonl").lines().next().unwrap();
        let found = found(&serde_json::from_str(packed).unwrap()).unwrap();
        let Some(Check::Stdio(stdio)) = &found.check else { panic!("{found:?}") };
        let outputs: Vec<String> = stdio.all().unwrap().iter().map(|it| it.output.clone()).collect();
        assert_eq!(outputs, ["3\n", "0\n", "1000000000001\n"]);
        assert!(texts(&found).starts_with("stdio|1 2\n|3\n|eJ"), "{}", texts(&found));
    }

    #[test]
    fn time_limits_are_read_in_every_form() {
        for (limit, expected) in [
            (json!(2.5), Some(2500)),
            (json!("4.0 seconds"), Some(4000)),
            (json!({"seconds": 3, "nanos": 500_000_000}), Some(3500)),
            (json!(null), None),
            (json!("fast"), None),
            (json!(-1), None),
        ] {
            let row = json!({"time_limit": limit});
            assert_eq!(
                contests::time_limit(row.as_object().unwrap()),
                expected.map(Duration::from_millis),
                "{row}"
            );
        }
    }

    #[test]
    fn what_cannot_be_judged_says_why() {
        let check = |row: Value, expected: &str| assert_eq!(found(&row).unwrap_err(), expected, "{row}");
        check(
            json!({"a": 1, "tests": "x"}),
            "it has no question: looked for `prompt`, `task`, `text`, `question`, `question_content`, `description`",
        );
        check(
            json!({"prompt": "P", "test": "x", "test_list": []}),
            "it has no tests: looked for `test_code` or `tests`, `test_list`, `test` with `entry_point`, `input_output`, \
             `private_test_cases` or `public_test_cases`, `official_tests` or `examples`, \
             `private_tests` or `generated_tests` or `public_tests`",
        );
        let io = |tests: &str| json!({"question": "Q", "input_output": tests});
        check(io("{}"), "its tests have no `inputs` and `outputs`");
        check(io(r#"{"inputs": ["1", "2"], "outputs": ["1"]}"#), "its tests have 2 inputs and 1 outputs");
        check(
            io(r#"{"inputs": [1], "outputs": ["1"]}"#),
            "its tests have inputs or outputs that are no text",
        );
        let name = r#"{"fn_name": "f; import os", "inputs": [[1]], "outputs": [1]}"#;
        check(io(name), "\"f; import os\" is no name of a function");
        let cases = json!([{"input": "1", "output": "2"}]);
        let checker = json!({"description": "D", "examples": cases, "generated_checker": "code"});
        check(checker, "it has a `generated_checker`, which cannot be run");
        check(
            json!({"description": "D", "examples": cases, "input_mode": "file"}),
            "its `input_mode` is not stdio",
        );
    }
}
