//! Datasets as JSON lines: one task per line, in any of the layouts that are known.

use std::path::Path;

use serde_json::Value;

use backsight_core::episode::Task;

use super::layout::{self, Named, Problem};
use super::prompt::task_prompt;
use super::row::word;
use super::{CodingTask, TaskError};

/// How rows become tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetOptions {
    /// The columns that were named.
    pub named: Named,
    /// Whether students see the tests that are published for them.
    pub show_tests: bool,
    /// Whether a row without tests is no task: nobody else could say what a solution is worth.
    pub needs_tests: bool,
}

impl Default for DatasetOptions {
    fn default() -> Self {
        Self { named: Named::default(), show_tests: true, needs_tests: true }
    }
}

/// A row that is no task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Which line, from 1.
    pub line: usize,
    /// Why.
    pub reason: String,
}

/// A dataset that was read: its tasks, and the rows that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// The tasks in the order of their rows.
    pub tasks: Vec<CodingTask>,
    /// The other rows.
    pub skipped: Vec<Skipped>,
}

/// Reads a file of JSON lines.
pub fn read_jsonl(path: &Path, options: &DatasetOptions) -> Result<Dataset, TaskError> {
    let unreadable = |error| TaskError::Unreadable { path: path.to_owned(), error };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let name = path.file_stem().map_or_else(|| "dataset".into(), |it| it.to_string_lossy());
    parse_jsonl(&text, &name, options)
}

/// Reads JSON lines; `name` begins the ids of rows that have none.
pub fn parse_jsonl(text: &str, name: &str, options: &DatasetOptions) -> Result<Dataset, TaskError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut dataset = Dataset::default();
    for (idx, line) in lines {
        let row = serde_json::from_str(line).map_err(|error| format!("it is no JSON: {error}"));
        dataset.take(idx, row.and_then(|row| read_row(&row, name, idx, options)));
    }
    dataset.or_empty(name)
}

impl Dataset {
    /// Takes what was found in the row at `idx`.
    pub fn take(&mut self, idx: usize, task: Result<CodingTask, String>) {
        match task {
            Ok(task) => self.tasks.push(task),
            Err(reason) => self.skipped.push(Skipped { line: idx + 1, reason }),
        }
    }

    /// Refuses a dataset in which nothing can be used.
    pub fn or_empty(self, name: &str) -> Result<Self, TaskError> {
        if !self.tasks.is_empty() {
            return Ok(self);
        }
        let reason = self.skipped.into_iter().next().map(|it| it.reason);
        Err(TaskError::Empty { name: name.to_owned(), reason })
    }
}

/// Columns that hold a task's id.
const IDS: [&str; 5] = ["id", "task_id", "question_id", "problem_id", "name"];

/// The task in a row, or why there is none.
pub fn read_row(row: &Value, name: &str, idx: usize, options: &DatasetOptions) -> Result<CodingTask, String> {
    let row = row.as_object().ok_or("it is no object")?;
    let Problem { question, wanted, check, shown, references } =
        layout::read(row, &options.named, options.needs_tests)?;
    let shown = shown.filter(|_| options.show_tests);
    let task = Task {
        id: word(row, &IDS).unwrap_or_else(|| format!("{name}-{idx}")),
        prompt: task_prompt(&question, &wanted, shown.as_ref()),
        difficulty: word(row, &["difficulty"]),
    };
    Ok(CodingTask { task, asked: question, check, tests_shown: shown.is_some(), references })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::check::Check;

    fn parse(text: &str) -> Result<Dataset, TaskError> {
        parse_jsonl(text, "set", &DatasetOptions::default())
    }

    #[test]
    fn a_check_is_called_with_the_entry_point() {
        let check = |row: &str, expected: &str| {
            let expected = Check::Script(expected.to_owned());
            assert_eq!(parse(row).unwrap().tasks[0].check, Some(expected), "{row}");
        };
        check(
            r#"{"task": "T", "tests": "def check(c):\n    assert c(1)", "entry_point": "f"}"#,
            "from solution import f\n\ndef check(c):\n    assert c(1)\n\ncheck(f)\n",
        );
        check(
            r#"{"task": "T", "tests": "def check(c):\n    assert c(1)\ncheck(g)", "entry_point": "f"}"#,
            "from solution import f\n\ndef check(c):\n    assert c(1)\ncheck(g)",
        );
        let imported = "from solution import f\nassert f(1)";
        check(
            r#"{"task": "T", "tests": "from solution import f\nassert f(1)", "entry_point": "f"}"#,
            imported,
        );
    }

    #[test]
    fn fields_are_found_under_their_names() {
        let cases = [
            (r#"{"task": "T", "test_code": "A"}"#, "set-0", "T", "A", None),
            (
                r#"{"prompt": "P", "task": "T", "tests": "B", "difficulty": "hard"}"#,
                "set-0",
                "P",
                "B",
                Some("hard"),
            ),
            (
                r#"{"task": "T", "test_code": "", "tests": ["a", "b"], "task_id": 7, "difficulty": 3}"#,
                "7",
                "T",
                "a\nb",
                Some("3"),
            ),
        ];
        for (line, id, prompt, test_code, difficulty) in cases {
            let CodingTask { task, asked, check, tests_shown, .. } = parse(line).unwrap().tasks.remove(0);
            assert_eq!((task.id.as_str(), task.difficulty.as_deref()), (id, difficulty));
            assert_eq!((check, tests_shown), (Some(Check::Script(test_code.to_owned())), true));
            assert_eq!(asked, prompt);
            assert!(task.prompt.contains(&format!("## Task\n{prompt}\n")), "{}", task.prompt);
            assert!(task.prompt.contains(test_code), "tests are shown by default");
        }
    }

    #[test]
    fn tests_can_be_kept_from_the_student() {
        let options = DatasetOptions { show_tests: false, ..DatasetOptions::default() };
        let line = r#"{"task": "Q", "test_code": "assert secret()"}"#;
        let task = parse_jsonl(line, "set", &options).unwrap().tasks.remove(0);
        assert!(!task.task.prompt.contains("secret") && !task.tests_shown);
        assert_eq!(task.check, Some(Check::Script("assert secret()".to_owned())));
    }

    #[test]
    fn named_columns_win_over_those_that_are_recognised() {
        let named = |prompt: &str, test: &str, entry_point: &str| {
            let name = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
            Named { prompt: name(prompt), test: name(test), entry_point: name(entry_point) }
        };
        let read = |named: Named| {
            let row = json!({"prompt": "P", "q": "Q", "test_list": ["assert f(1)"], "t": ["assert g(2)"], "e": "g",
                             "io": "{\"inputs\": [\"1\"], \"outputs\": [\"2\"]}"});
            let options = DatasetOptions { named, ..DatasetOptions::default() };
            let task = read_row(&row, "set", 0, &options)?;
            Ok((task.asked, task.check.unwrap().texts().join("|")))
        };
        let check = |named: Named, asked: &str, tests: &str| {
            assert_eq!(read(named), Ok::<_, String>((asked.to_owned(), tests.to_owned())));
        };
        check(named("q", "", ""), "Q", "script|from solution import *\n\nassert f(1)\n");
        check(named("", "t", ""), "P", "script|assert g(2)");
        check(named("q", "t", "e"), "Q", "script|from solution import g\n\nassert g(2)");
        check(named("q", "io", ""), "Q", "stdio|1|2");
        let only = json!({"q": "Q", "test_list": ["assert f(1)"]});
        let options = DatasetOptions { named: named("q", "", ""), ..DatasetOptions::default() };
        assert_eq!(read_row(&only, "set", 0, &options).unwrap().asked, "Q");
        assert_eq!(read(named("", "x", "")), Err("it has no `x`".to_owned()));
        assert_eq!(read(named("x", "", "")), Err("it has no `x`".to_owned()));
    }

    #[test]
    fn tests_are_not_needed_where_something_else_decides() {
        let options = DatasetOptions { needs_tests: false, ..DatasetOptions::default() };
        let task = parse_jsonl(r#"{"task": "T"}"#, "set", &options).unwrap().tasks.remove(0);
        assert_eq!(task.check, None);
        assert!(!task.task.prompt.contains("## Tests"), "{}", task.task.prompt);
    }

    #[test]
    fn a_byte_order_mark_is_passed_over() {
        let dataset = parse("\u{feff}{\"task\": \"T\", \"tests\": \"A\"}\n").unwrap();
        assert_eq!((dataset.tasks.len(), dataset.skipped), (1, vec![]));
    }

    #[test]
    fn bad_rows_are_skipped_with_their_reason() {
        let text =
            "{\"task\": \"T\", \"tests\": \"A\"}\n\nnot json\n[1]\n{\"tests\": \"A\"}\n{\"task\": \"T\"}\n";
        let dataset = parse(text).unwrap();
        assert_eq!(dataset.tasks.len(), 1);
        let reasons: Vec<_> =
            dataset.skipped.iter().map(|it| (it.line, it.reason.split(':').next().unwrap())).collect();
        let expected =
            [(3, "it is no JSON"), (4, "it is no object"), (5, "it has no question"), (6, "it has no tests")];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_dataset_without_tasks_is_an_error() {
        let error = parse("{\"task\": \"T\"}\n").unwrap_err().to_string();
        assert!(
            error.starts_with(
                "set holds no usable task (first row: it has no tests: looked for `test_code` or `tests`, `test_list`, "
            ),
            "{error}"
        );
        assert!(parse("").unwrap_err().to_string().starts_with("set holds no usable task\nhelp: "));
        let missing = read_jsonl(Path::new("/nowhere/x.jsonl"), &DatasetOptions::default());
        assert!(missing.unwrap_err().to_string().contains("/nowhere/x.jsonl"));
    }
}
