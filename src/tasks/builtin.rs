//! The built-in tasks: one folder each, compiled into the program.

use toml::Table;

use backsight_core::episode::Task;

use super::check::Check;
use super::prompt::{Wanted, task_prompt};
use super::{CodingTask, TaskError};

macro_rules! folder {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../tasks/", $name, "/task.toml")),
            include_str!(concat!("../../tasks/", $name, "/tests.py")),
        )
    };
}

/// Name, description and hidden tests of each.
const FOLDERS: [(&str, &str, &str); 8] = [
    folder!("fizzbuzz"),
    folder!("palindrome"),
    folder!("two_sum"),
    folder!("flatten"),
    folder!("longest_common_prefix"),
    folder!("group_anagrams"),
    folder!("valid_parentheses"),
    folder!("merge_intervals"),
];

/// All built-in tasks, in a fixed order.
pub fn builtin() -> Result<Vec<CodingTask>, TaskError> {
    FOLDERS.iter().map(|(name, description, tests)| read(name, description, tests)).collect()
}

fn read(name: &'static str, description: &str, tests: &str) -> Result<CodingTask, TaskError> {
    let bad = |reason: String| TaskError::BadBuiltin { name, reason };
    let table: Table = description.parse().map_err(|error: toml::de::Error| bad(error.to_string()))?;
    let text =
        |key: &str| table.get(key).and_then(|it| it.as_str()).ok_or_else(|| bad(format!("{key} is missing")));
    let task = Task {
        id: text("id")?.to_owned(),
        // The tests go beyond the examples in the description, so they are never shown.
        prompt: task_prompt(text("prompt")?, &Wanted::Module, None),
        difficulty: Some(text("difficulty")?.to_owned()),
    };
    let check = Some(Check::Script(tests.to_owned()));
    let asked = text("prompt")?.trim().to_owned();
    Ok(CodingTask { task, asked, check, tests_shown: false, references: Vec::new() })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn script(check: &Option<Check>) -> &str {
        check.as_ref().unwrap().texts()[1]
    }

    #[test]
    fn there_are_eight_and_each_says_what_to_write() {
        let tasks = builtin().unwrap();
        let ids: Vec<&str> = tasks.iter().map(|it| it.task.id.as_str()).collect();
        let names: Vec<&str> = FOLDERS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(ids, names);
        for CodingTask { task, check, .. } in &tasks {
            let test_code = script(check);
            assert!(task.prompt.contains("`solution.py`"), "{} names no file", task.id);
            assert!(task.prompt.contains("Signature: `def "), "{} has no signature", task.id);
            assert!(task.prompt.contains("Examples:"), "{} has no examples", task.id);
            assert!(["easy", "medium"].contains(&task.difficulty.as_deref().unwrap()));
            assert!(test_code.matches("assert ").count() >= 8, "{} has few tests", task.id);
        }
    }

    #[test]
    fn hidden_tests_are_not_in_the_prompt() {
        for CodingTask { task, check, .. } in builtin().unwrap() {
            let shown = script(&check)
                .lines()
                .filter(|line| line.starts_with("assert ") && task.prompt.contains(line))
                .count();
            assert_eq!(shown, 0, "{}", task.id);
        }
    }
}
