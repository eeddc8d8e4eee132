//! Problems of programming contests: inputs of a program with what it should print.
//!
//! Codeforces style: `description`, `input_format`, `output_format`, `note`, `examples` and `official_tests` as lists of
//! `{"input", "output"}`, `time_limit`. As in code_contests: `public_tests`, `private_tests` and `generated_tests` as
//! `{"input": […], "output": […]}`, `solutions` by language. Problems with several right answers need a program that
//! judges them, which is not run here.

use std::time::Duration;

use serde_json::Value;

use super::{Problem, holds, question};
use crate::tasks::check::{Case, Check, Stdio};
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, json, text, text_of};

/// What code_contests calls Python 3.
const PYTHON3: u64 = 3;
const MAX_REFERENCES: usize = 3;

pub(super) fn read_codeforces(row: &Row) -> Result<Problem, String> {
    for column in ["generated_checker", "interaction_format"] {
        if row.get(column).is_some_and(holds) {
            return Err(format!("it has a `{column}`, which cannot be run"));
        }
    }
    if text(row, &["input_mode"]).is_some_and(|mode| mode != "stdio") {
        return Err("its `input_mode` is not stdio".to_owned());
    }
    let cases = |column: &str| json(row, column)?.map_or_else(|| Ok(Vec::new()), |it| Case::list(&it));
    let (public, official) = (cases("examples")?, cases("official_tests")?);
    let parts = [
        ("", "description"),
        ("## Input\n", "input_format"),
        ("## Output\n", "output_format"),
        ("## Note\n", "note"),
    ];
    let part = |(head, column): (&str, &str)| text(row, &[column]).map(|it| format!("{head}{}", it.trim()));
    let asked: Vec<String> = parts.into_iter().filter_map(part).collect();
    problem(row, asked.join("\n\n"), public, official, Vec::new())
}

pub(super) fn read_code_contests(row: &Row) -> Result<Problem, String> {
    let cases = |column: &str| json(row, column)?.map_or_else(|| Ok(Vec::new()), |it| columns(&it));
    let hidden = [cases("private_tests")?, cases("generated_tests")?].concat();
    problem(row, question(row, &["description"])?, cases("public_tests")?, hidden, solutions(row))
}

fn problem(
    row: &Row,
    question: String,
    public: Vec<Case>,
    hidden: Vec<Case>,
    references: Vec<String>,
) -> Result<Problem, String> {
    let cases = [public.as_slice(), &hidden].concat();
    if cases.is_empty() {
        return Err("it has no test cases".to_owned());
    }
    Ok(Problem {
        question,
        wanted: Wanted::Program,
        check: Some(Check::Stdio(Stdio { cases, packed: None, time: time_limit(row) })),
        shown: Check::examples(public),
        references,
    })
}

/// Cases as `{"input": […], "output": […]}`.
fn columns(table: &Value) -> Result<Vec<Case>, String> {
    match (table["input"].as_array(), table["output"].as_array()) {
        (Some(inputs), Some(outputs)) => Case::pairs(inputs, outputs),
        _ => Err("its tests are no lists of `input` and `output`".to_owned()),
    }
}

/// The first solutions in Python.
fn solutions(row: &Row) -> Vec<String> {
    let Ok(Some(table)) = json(row, "solutions") else { return Vec::new() };
    let list = |key: &str| table[key].as_array().cloned().unwrap_or_default();
    let both = list("language").into_iter().zip(list("solution"));
    let python = both.filter(|(language, _)| language.as_u64() == Some(PYTHON3));
    python.filter_map(|(_, code)| text_of(&code)).take(MAX_REFERENCES).collect()
}

/// How long a case may take: a number of seconds, a text that begins with one, or `{"seconds", "nanos"}`.
pub(super) fn time_limit(row: &Row) -> Option<Duration> {
    let seconds = match row.get("time_limit")? {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.split_whitespace().next()?.parse().ok()?,
        Value::Object(parts) => {
            let part = |key: &str| parts.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            part("seconds") + part("nanos") * 1e-9
        }
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|it| !it.is_zero())
}
