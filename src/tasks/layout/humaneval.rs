//! HumanEval, and HumanEval+.
//!
//! Columns: `prompt` (the beginning of a module, up to a function's description), `entry_point`, `test` (which
//! defines `check`), `canonical_solution` (the function's body, which continues the prompt). What the prompt
//! defines before the function may be used by the tests, which have their own copy of it.

use super::{Problem, question, source};
use crate::tasks::calls::is_identifier;
use crate::tasks::check::Check;
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, text};

pub(super) fn read(row: &Row) -> Result<Problem, String> {
    let prompt = question(row, &["prompt"])?;
    let entry_point = question(row, &["entry_point"])?;
    if !is_identifier(&entry_point) {
        return Err(format!("{entry_point:?} is no name of a function"));
    }
    let tests = source::checking(&question(row, &["test"])?, &entry_point);
    let script = format!("{}\nfrom solution import {entry_point}\n\n{tests}", before(&prompt, &entry_point));
    let reference = text(row, &["canonical_solution"]).map(|body| format!("{prompt}{body}"));
    Ok(Problem {
        wanted: Wanted::Code(prompt.clone()),
        question: prompt,
        check: Some(Check::Script(script)),
        shown: Some(Check::Script(tests)),
        references: reference.into_iter().collect(),
    })
}

/// What a prompt says before its function.
fn before<'a>(prompt: &'a str, entry_point: &str) -> &'a str {
    let start = format!("def {entry_point}(");
    let place = if prompt.starts_with(&start) { Some(0) } else { prompt.rfind(&format!("\n{start}")) };
    place.map_or("", |place| &prompt[..place])
}
