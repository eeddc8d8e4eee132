//! Our own layout: a question, and tests whose shape says what they are.
//!
//! Columns: `prompt` or `task`; `test_code` or `tests`; where there are any `entry_point`, `canonical_solution` or
//! `code`. Tests are a script of assertions (a text or a list of lines), `{"inputs", "outputs", "fn_name"?}`, or a
//! list of `{"input", "output"}`.

use serde_json::Value;

use super::{Problem, apps, question, source};
use crate::tasks::calls::is_identifier;
use crate::tasks::check::{Case, Check, Stdio};
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, json, text, text_of};

/// Where a question may stand.
pub(super) const QUESTIONS: [&str; 6] =
    ["prompt", "task", "text", "question", "question_content", "description"];

pub(super) fn read(row: &Row) -> Result<Problem, String> {
    let column = if row.get("test_code").is_some_and(super::holds) { "test_code" } else { "tests" };
    let tests = row.get(column).ok_or("it has no tests")?;
    let found = match text_of(tests) {
        Some(text) if json(row, column).is_ok_and(|it| it.is_some_and(|it| it.is_object())) => {
            apps::tests(row, &text)?
        }
        Some(script) => scripted(row, &script)?,
        None if tests.is_object() => apps::tests(row, &tests.to_string())?,
        None => listed(tests)?,
    };
    Ok(Problem { question: question(row, &QUESTIONS)?, references: references(row), ..found })
}

/// A row whose solutions somebody else judges.
pub(super) fn untested(row: &Row) -> Result<Problem, String> {
    Ok(Problem { question: question(row, &QUESTIONS)?, ..Problem::default() })
}

fn scripted(row: &Row, tests: &str) -> Result<Problem, String> {
    let script = match text(row, &["entry_point"]) {
        Some(name) if !is_identifier(&name) => return Err(format!("{name:?} is no name of a function")),
        Some(name) if source::imports_solution(tests) => source::checking(tests, &name),
        Some(name) => format!("from solution import {name}\n\n{}", source::checking(tests, &name)),
        None => tests.to_owned(),
    };
    let check = Some(Check::Script(script));
    Ok(Problem { shown: check.clone(), check, ..Problem::default() })
}

fn listed(tests: &Value) -> Result<Problem, String> {
    let check = Some(Check::Stdio(Stdio { cases: Case::list(tests)?, ..Stdio::default() }));
    Ok(Problem { wanted: Wanted::Program, check, ..Problem::default() })
}

fn references(row: &Row) -> Vec<String> {
    text(row, &["canonical_solution", "code"]).into_iter().collect()
}
