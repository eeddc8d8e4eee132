//! The text around a task: what is asked, the tests if they are shown, how to go about it.

/// Whether a student sees the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tests<'a> {
    /// It does not.
    Hidden,
    /// It sees these.
    Shown(&'a str),
}

/// The whole prompt for a task.
pub fn task_prompt(task: &str, tests: Tests<'_>) -> String {
    let task = task.trim();
    let tests = match tests {
        Tests::Hidden => String::new(),
        Tests::Shown(code) => {
            let fence = fence(code);
            format!(
                "## Tests\nYour solution will be checked with these tests:\n\n{fence}python\n{}\n{fence}\n\n",
                code.trim()
            )
        }
    };
    format!("Solve this programming task.\n\n## Task\n{task}\n\n{tests}{INSTRUCTIONS}")
}

const INSTRUCTIONS: &str = "## How to work\n\
    1. Write the solution to `solution.py`.\n\
    2. Write tests of your own to `test_solution.py`, also for cases the task does not show.\n\
    3. Run them with the terminal, and fix the solution until they pass.\n\
    4. Then say in one or two sentences what you did.";

/// A code fence longer than any in the code.
fn fence(code: &str) -> String {
    let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_quoted_only_when_shown() {
        let hidden = task_prompt("Add.", Tests::Hidden);
        assert!(
            hidden.starts_with("Solve this programming task.\n\n## Task\nAdd.\n\n## How to work\n1. "),
            "{hidden}"
        );
        let shown = task_prompt("Add.", Tests::Shown("assert add(1, 1) == 2\n"));
        assert!(shown.contains("```python\nassert add(1, 1) == 2\n```\n\n## How to work"), "{shown}");
    }

    #[test]
    fn a_fence_is_longer_than_those_it_holds() {
        assert_eq!(fence("x"), "```");
        assert_eq!(fence("```\n````"), "`````");
    }
}
