//! MBPP, and MBPP+ with a longer script in `test`.
//!
//! Columns: `text` or `prompt`, `test_list`, `test_setup_code`, `test_imports`, `challenge_test_list`, `code`. The
//! assertions name what they test without importing it: it is what the reference `code` defines and they mention.

use super::{Problem, question, source};
use crate::tasks::check::Check;
use crate::tasks::prompt::Wanted;
use crate::tasks::row::{Row, text};

pub(super) fn read(row: &Row) -> Result<Problem, String> {
    let part = |column: &str| text(row, &[column]);
    let shown = [part("test_imports"), part("test_setup_code"), part("test_list")];
    let shown = shown.into_iter().flatten().collect::<Vec<_>>().join("\n");
    let deciding = [part("test_setup_code"), part("test").or(part("test_list")), part("challenge_test_list")];
    let deciding = deciding.into_iter().flatten().collect::<Vec<_>>().join("\n");
    let code = part("code");
    let names = source::tested(code.as_deref().unwrap_or_default(), &deciding);
    let import = [part("test_imports").unwrap_or_default(), source::import(&names)].join("\n");
    let wanted = if names.is_empty() { Wanted::Module } else { Wanted::Names(names) };
    Ok(Problem {
        question: question(row, &["text", "prompt"])?,
        wanted,
        check: Some(Check::Script(format!("{}\n\n{deciding}\n", import.trim_start()))),
        shown: Some(Check::Script(shown)),
        references: code.into_iter().collect(),
    })
}
