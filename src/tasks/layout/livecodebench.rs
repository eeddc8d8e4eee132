//! LiveCodeBench's code generation.
//!
//! Columns: `question_content`, `starter_code`, `public_test_cases` (JSON list of `{"input", "output", "testtype"}`),
//! `private_test_cases` (the same, or packed), `metadata` (JSON with `func_name` where a function is called, with
//! one argument in JSON on each line of an input).

use serde_json::{Value, json};

use super::{Problem, question};
use crate::tasks::calls::{Arrangement, Target, script};
use crate::tasks::check::{Case, Check, Stdio};
use crate::tasks::packed::unpack;
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, json as json_of, text};

const PRIVATE: &str = "private_test_cases";

pub(super) fn read(row: &Row) -> Result<Problem, String> {
    let public = json_of(row, "public_test_cases")?.unwrap_or_else(|| json!([]));
    let private = private(row)?;
    let are_calls = public.as_array().into_iter().chain(private.as_array()).flatten().any(is_call);
    let (public, private) = (Case::list(&public)?, Case::list(&private)?);
    let (check, wanted) = match are_calls {
        true => calls(row, &[public.as_slice(), &private].concat())?,
        false => programs(row, &public, private)?,
    };
    Ok(Problem {
        question: question(row, &["question_content"])?,
        wanted,
        check: Some(check),
        shown: Check::examples(public),
        references: Vec::new(),
    })
}

/// The private tests, whether they are packed or not.
fn private(row: &Row) -> Result<Value, String> {
    let Some(packed) = packed(row) else { return Ok(json_of(row, PRIVATE)?.unwrap_or_else(|| json!([]))) };
    let unpacked = unpack(packed).map_err(|why| format!("its `{PRIVATE}` cannot be read: {why}"))?;
    serde_json::from_str(&unpacked).map_err(|error| format!("its `{PRIVATE}` are no JSON: {error}"))
}

/// The private tests where they are packed.
fn packed(row: &Row) -> Option<&str> {
    let text = row.get(PRIVATE)?.as_str()?;
    (!text.trim().is_empty() && !text.trim_start().starts_with('[')).then_some(text)
}

fn is_call(case: &Value) -> bool {
    case["testtype"] == json!("functional")
}

fn programs(row: &Row, public: &[Case], private: Vec<Case>) -> Result<(Check, Wanted), String> {
    if public.is_empty() && private.is_empty() {
        return Err("it has no test cases".to_owned());
    }
    let packed = packed(row).map(str::to_owned);
    let cases = if packed.is_some() { public.to_owned() } else { [public, &private].concat() };
    Ok((Check::Stdio(Stdio { cases, packed, time: None }), Wanted::Program))
}

fn calls(row: &Row, cases: &[Case]) -> Result<(Check, Wanted), String> {
    let metadata = json_of(row, "metadata")?.unwrap_or_default();
    let name = metadata["func_name"].as_str().ok_or("its `metadata` names no `func_name`")?;
    let starter = text(row, &["starter_code"]);
    let target = Target::new(name, starter.as_deref().unwrap_or_default())?;
    let tests: Vec<Value> = cases.iter().map(|case| json!([case.input, case.output])).collect();
    let check =
        Check::Script(script(&target, Arrangement::Lines, &Value::from(tests).to_string(), cases.len()));
    Ok((check, starter.map_or_else(|| Wanted::Names(vec![target.defined]), Wanted::Code)))
}
