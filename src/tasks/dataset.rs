//! Datasets as JSON lines: one task per line, fields as the published environment names them.

use std::path::Path;

use serde_json::{Map, Value};

use backsight_core::episode::Task;

use super::prompt::{Tests, task_prompt};
use super::{CodingTask, TaskError};

/// How rows become tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetOptions {
    /// The field with the task, before `task` is looked for.
    pub prompt_field: String,
    /// Whether students see the tests.
    pub show_tests: bool,
    /// Whether a row without tests is no task: nobody else could say what a solution is worth.
    pub needs_tests: bool,
}

impl Default for DatasetOptions {
    fn default() -> Self {
        Self { prompt_field: "prompt".to_owned(), show_tests: true, needs_tests: true }
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let mut dataset = Dataset { tasks: Vec::new(), skipped: Vec::new() };
    for (idx, line) in lines {
        let row = serde_json::from_str::<Value>(line).map_err(|error| format!("it is no JSON: {error}"));
        match row.and_then(|row| read_row(&row, name, idx, options)) {
            Ok(task) => dataset.tasks.push(task),
            Err(reason) => dataset.skipped.push(Skipped { line: idx + 1, reason }),
        }
    }
    require_tasks(dataset, name)
}

/// Refuses a dataset in which nothing can be used.
pub fn require_tasks(dataset: Dataset, name: &str) -> Result<Dataset, TaskError> {
    if !dataset.tasks.is_empty() {
        return Ok(dataset);
    }
    let reason = dataset.skipped.into_iter().next().map(|it| it.reason);
    Err(TaskError::Empty { name: name.to_owned(), reason })
}

/// The task in a row, or why there is none.
pub fn read_row(row: &Value, name: &str, idx: usize, options: &DatasetOptions) -> Result<CodingTask, String> {
    let row = row.as_object().ok_or("it is no object")?;
    let fields = [options.prompt_field.as_str(), "task"];
    let prompt = text_of(row, &fields).ok_or_else(|| format!("it has no `{}` and no `task`", fields[0]))?;
    let entry_point = row.get("entry_point").and_then(Value::as_str);
    let test_code = text_of(row, &["test_code", "tests"]).map(|it| with_entry_point(it, entry_point));
    if options.needs_tests && test_code.is_none() {
        return Err("it has no `test_code` and no `tests`".to_owned());
    }
    let shown = match &test_code {
        Some(test_code) if options.show_tests => Tests::Shown(test_code),
        _ => Tests::Hidden,
    };
    let id = ["id", "task_id"].into_iter().find_map(|key| word_of(row.get(key)?));
    let task = Task {
        id: id.unwrap_or_else(|| format!("{name}-{idx}")),
        prompt: task_prompt(&prompt, shown),
        difficulty: row.get("difficulty").and_then(word_of),
    };
    Ok(CodingTask { task, asked: prompt, test_code })
}

/// Tests that only define `check(candidate)` call it with the function that the row names.
fn with_entry_point(test_code: String, entry_point: Option<&str>) -> String {
    let has = |start: &str| test_code.lines().any(|line| line.starts_with(start));
    match entry_point {
        Some(name) if has("def check(") && !has("check(") => format!("{test_code}\n\ncheck({name})\n"),
        _ => test_code,
    }
}

/// The first field that holds text: a string, or lines as a list.
fn text_of(row: &Map<String, Value>, fields: &[&str]) -> Option<String> {
    let text = |field: &&str| match row.get(*field)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => {
            let lines: Option<Vec<&str>> = lines.iter().map(Value::as_str).collect();
            Some(lines?.join("\n"))
        }
        _ => None,
    };
    fields.iter().filter_map(text).find(|text| !text.trim().is_empty())
}

/// A short value as text.
fn word_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Dataset, TaskError> {
        parse_jsonl(text, "set", &DatasetOptions::default())
    }

    #[test]
    fn a_check_is_called_with_the_entry_point() {
        let check = |row: &str, expected: &str| {
            assert_eq!(parse(row).unwrap().tasks[0].test_code.as_deref(), Some(expected), "{row}");
        };
        check(
            r#"{"task": "T", "tests": "def check(c):\n    assert c(1)", "entry_point": "f"}"#,
            "def check(c):\n    assert c(1)\n\ncheck(f)\n",
        );
        check(
            r#"{"task": "T", "tests": "def check(c):\n    assert c(1)\ncheck(g)", "entry_point": "f"}"#,
            "def check(c):\n    assert c(1)\ncheck(g)",
        );
        check(r#"{"task": "T", "tests": "assert f(1)", "entry_point": "f"}"#, "assert f(1)");
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
            let CodingTask { task, asked, test_code: read } = parse(line).unwrap().tasks.remove(0);
            assert_eq!(
                (task.id.as_str(), read.as_deref(), task.difficulty.as_deref()),
                (id, Some(test_code), difficulty)
            );
            assert_eq!(asked, prompt);
            assert!(task.prompt.contains(&format!("## Task\n{prompt}\n")), "{}", task.prompt);
            assert!(task.prompt.contains(test_code), "tests are shown by default");
        }
    }

    #[test]
    fn tests_can_be_kept_from_the_student() {
        let options = DatasetOptions { show_tests: false, prompt_field: "q".into(), needs_tests: true };
        let line = r#"{"q": "Q", "test_code": "assert secret()"}"#;
        let task = parse_jsonl(line, "set", &options).unwrap().tasks.remove(0);
        assert!(!task.task.prompt.contains("secret"));
        assert_eq!(task.test_code.as_deref(), Some("assert secret()"));
    }

    #[test]
    fn tests_are_not_needed_where_something_else_decides() {
        let options = DatasetOptions { needs_tests: false, ..DatasetOptions::default() };
        let task = parse_jsonl(r#"{"task": "T"}"#, "set", &options).unwrap().tasks.remove(0);
        assert_eq!(task.test_code, None);
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
        let expected = [
            (3, "it is no JSON"),
            (4, "it is no object"),
            (5, "it has no `prompt` and no `task`"),
            (6, "it has no `test_code` and no `tests`"),
        ];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_dataset_without_tasks_is_an_error() {
        let error = parse("{\"task\": \"T\"}\n").unwrap_err().to_string();
        assert!(
            error.starts_with(
                "set holds no usable task (first row: it has no `test_code` and no `tests`)\nhelp: "
            ),
            "{error}"
        );
        assert!(parse("").unwrap_err().to_string().starts_with("set holds no usable task\nhelp: "));
        let missing = read_jsonl(Path::new("/nowhere/x.jsonl"), &DatasetOptions::default());
        assert!(missing.unwrap_err().to_string().contains("/nowhere/x.jsonl"));
    }
}
