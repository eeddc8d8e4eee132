//! From next states to hints: what a judge is shown, what its votes say, and which hint they leave.
//!
//! Pure. Owns [`Pairs`] (which actions have a next state worth reading), [`Vote`] (one answer of a judge, read),
//! [`Verdict`] (what the votes decide together) and the checks that a hint gives nothing away. Deliberately absent:
//! asking the judge, and the hint lens, which only writes what it is given.

mod leak;
mod pairs;
mod question;
mod vote;

pub use leak::{Leak, Leaks};
pub use pairs::{Pair, Pairs, Said, cut_middle, pairs, verdict_of_tests};
pub use question::Question;
pub use vote::{Choice, Quorum, SHORTEST_HINT, Verdict, Vote, by_length, read_evaluation, read_exchange};

/// What the published functions gave, by section.
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
fn recorded(section: &str) -> Vec<serde_json::Value> {
    let text = include_str!("../../../../tests/fixtures/opd/pure_functions.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    all[section].as_array().unwrap().clone()
}
