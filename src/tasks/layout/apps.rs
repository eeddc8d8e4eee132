//! APPS and TACO.
//!
//! Columns: `question`, `input_output` (JSON: `inputs`, `outputs`, and `fn_name` where a function is called instead of
//! a program run), `starter_code`, `solutions` (JSON list), `time_limit`. No test is marked as public; the question
//! tells its examples itself.

use serde_json::Value;

use super::{Problem, contests, question};
use crate::tasks::calls::{Arrangement, Target, script};
use crate::tasks::check::{Case, Check, Stdio, same_length};
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, json, json_text, text};

/// Of several solutions so many are tried: some were written for another Python.
const MAX_REFERENCES: usize = 3;
/// What these suites import before a solution, which its author could rely on.
const IMPORTS: &str = "import sys, math, re, string, heapq, bisect, itertools, functools, collections, operator, random\n\
    from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\nfrom heapq import *\n\
    from bisect import *\nfrom math import *\n\n";

pub(super) fn read(row: &Row) -> Result<Problem, String> {
    let tests = json_text(row, "input_output").ok_or("it has no `input_output`")?;
    let found = self::tests(row, &tests)?;
    let solutions = json(row, "solutions").ok().flatten();
    let solutions =
        solutions.as_ref().and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let imports = if found.wanted == Wanted::Program { "" } else { IMPORTS };
    let references = solutions.take(MAX_REFERENCES).map(|code| format!("{imports}{code}")).collect();
    Ok(Problem { question: question(row, &["question"])?, references, ..found })
}

/// Tests of this layout, with what is to be written for them.
pub(super) fn tests(row: &Row, text: &str) -> Result<Problem, String> {
    let tests: Value =
        serde_json::from_str(text).map_err(|error| format!("its tests are no JSON: {error}"))?;
    let list = |key: &str| tests[key].as_array().filter(|it| !it.is_empty());
    let (Some(inputs), Some(outputs)) = (list("inputs"), list("outputs")) else {
        return Err("its tests have no `inputs` and `outputs`".to_owned());
    };
    same_length(inputs, outputs)?;
    let (check, wanted) = match tests["fn_name"].as_str() {
        Some(name) => calls(row, name, text, inputs)?,
        None => {
            let (cases, time) = (Case::pairs(inputs, outputs)?, contests::time_limit(row));
            (Check::Stdio(Stdio { cases, packed: None, time }), Wanted::Program)
        }
    };
    Ok(Problem { wanted, check: Some(check), ..Problem::default() })
}

fn calls(row: &Row, name: &str, tests: &str, inputs: &[Value]) -> Result<(Check, Wanted), String> {
    if !inputs.iter().all(Value::is_array) {
        return Err("its tests have arguments that are no list".to_owned());
    }
    let starter = text(row, &["starter_code"]);
    let shown = starter.clone().or_else(|| json_text(row, "solutions")).unwrap_or_default();
    let target = Target::new(name, &shown)?;
    let check = Check::Script(script(&target, Arrangement::Lists, tests, inputs.len()));
    Ok((check, starter.map_or_else(|| Wanted::Names(vec![target.defined]), Wanted::Code)))
}
