//! The text around a task: what is asked, the tests if they are shown, how to go about it.

use super::check::{Case, Check, Stdio};

/// What a student is to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// What the task says.
    #[default]
    Module,
    /// A module that defines these names.
    Names(Vec<String>),
    /// A module that begins like this.
    Code(String),
    /// A program that reads and prints.
    Program,
}

/// The whole prompt for a task.
pub fn task_prompt(task: &str, wanted: &Wanted, tests: Option<&Check>) -> String {
    let task = described(task.trim(), wanted);
    let tests = tests.map(quoted).unwrap_or_default();
    let solution = solution(wanted);
    format!(
        "Solve this programming task.\n\n## Task\n{task}\n\n{tests}## How to work\n1. {solution}\n{INSTRUCTIONS}"
    )
}

const INSTRUCTIONS: &str = "\
    2. Write tests of your own to `test_solution.py`, also for cases the task does not show.\n\
    3. Run them with the terminal, and fix the solution until they pass.\n\
    4. Then say in one or two sentences what you did.";

/// The task with the code that the solution begins with, if there is any; it may be all of the task.
fn described(task: &str, wanted: &Wanted) -> String {
    match wanted {
        Wanted::Code(code) if code.trim() == task => {
            format!("Complete this code:\n\n{}", fenced("python", code))
        }
        Wanted::Code(code) => {
            format!("{task}\n\nThe solution begins like this:\n\n{}", fenced("python", code))
        }
        _ => task.to_owned(),
    }
}

fn solution(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Module => "Write the solution to `solution.py`.".to_owned(),
        Wanted::Names(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("Write the solution to `solution.py`. It must define {}.", names.join(", "))
        }
        Wanted::Code(_) => {
            "Write the solution to `solution.py`: the whole code, with the imports it needs.".to_owned()
        }
        Wanted::Program => {
            "Write the solution to `solution.py`: a program that is run as `python3 solution.py`, \
                            reads its input from standard input, and prints the answer and nothing else."
                .to_owned()
        }
    }
}

fn quoted(tests: &Check) -> String {
    match tests {
        Check::Script(code) => {
            format!(
                "## Tests\nYour solution will be checked with these tests:\n\n{}\n\n",
                fenced("python", code.trim())
            )
        }
        Check::Stdio(Stdio { cases, .. }) => {
            let case = |case: &Case| {
                let (input, output) = (fenced("", &case.input), fenced("", &case.output));
                format!("Input:\n\n{input}\n\nOutput:\n\n{output}\n\n")
            };
            let cases: String = cases.iter().map(case).collect();
            format!("## Tests\nYour solution will be checked with these examples and with others:\n\n{cases}")
        }
    }
}

/// Text between fences longer than any in it.
fn fenced(language: &str, text: &str) -> String {
    let fence = fence(text);
    format!("{fence}{language}\n{}\n{fence}", text.trim_end())
}

fn fence(code: &str) -> String {
    let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(wanted: Wanted, tests: Option<&Check>) -> String {
        task_prompt("Add.", &wanted, tests)
    }

    #[test]
    fn tests_are_quoted_only_when_shown() {
        let hidden = prompt(Wanted::Module, None);
        assert!(
            hidden.starts_with("Solve this programming task.\n\n## Task\nAdd.\n\n## How to work\n1. Write "),
            "{hidden}"
        );
        let script = Check::Script("assert add(1, 1) == 2\n".to_owned());
        let shown = prompt(Wanted::Module, Some(&script));
        assert!(shown.contains("```python\nassert add(1, 1) == 2\n```\n\n## How to work"), "{shown}");
        let cases = vec![Case { input: "1 1\n".to_owned(), output: "2\n".to_owned() }];
        let shown = prompt(Wanted::Program, Check::examples(cases).as_ref());
        assert!(
            shown.contains("Input:\n\n```\n1 1\n```\n\nOutput:\n\n```\n2\n```\n\n## How to work"),
            "{shown}"
        );
    }

    #[test]
    fn what_is_to_be_written_is_said() {
        let check = |wanted: Wanted, expected: &str| {
            let text = prompt(wanted, None);
            assert!(text.contains(expected), "{text}");
        };
        check(
            Wanted::Names(vec!["add".into(), "Node".into()]),
            "`solution.py`. It must define `add`, `Node`.\n2. ",
        );
        check(Wanted::Program, "run as `python3 solution.py`, reads its input from standard input");
        let begins = "Add.\n\nThe solution begins like this:\n\n```python\ndef add(a, b):\n```\n\n## How";
        check(Wanted::Code("def add(a, b):\n".into()), begins);
        check(Wanted::Code("Add.".into()), "## Task\nComplete this code:\n\n```python\nAdd.\n```\n\n## How");
    }

    #[test]
    fn a_fence_is_longer_than_those_it_holds() {
        assert_eq!(fence("x"), "```");
        assert_eq!(fence("```\n````"), "`````");
    }
}
