//! What was lost of an episode: counted by what it was and why, with the words of each reason's first case.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Value, json};

use backsight_core::named;

/// What can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum What {
    /// An answer of the judge.
    Votes,
    /// What the teacher or the student would have said of an action.
    Readings,
}

named!(What: Votes = "votes", Readings = "readings");

/// Losses by what they are of, and by reason.
#[derive(Default)]
pub(super) struct Lost(BTreeMap<(What, &'static str), (u64, String)>);

impl Lost {
    /// One more for a reason; `why` says what it was in this case, if there is more to say.
    pub(super) fn lose(&mut self, what: What, reason: &'static str, why: impl Display) {
        self.0.entry((what, reason)).or_insert_with(|| (0, why.to_string())).0 += 1;
    }

    /// How many there are, by what was lost and by reason; an empty object where nothing was.
    pub(super) fn counts(&self) -> Value {
        let mut all = json!({});
        for ((what, reason), (n, _)) in &self.0 {
            all[what.name()][*reason] = json!(n);
        }
        all
    }

    /// All of it in words, to be put behind others; empty where nothing was lost.
    pub(super) fn told(&self) -> String {
        let one = |((_, reason), (n, why)): (&(What, &str), &(u64, String))| match why.is_empty() {
            true => format!("; {n} lost: {reason}"),
            false => format!("; {n} lost: {reason} ({why})"),
        };
        self.0.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_and_the_first_is_told() {
        let mut lost = Lost::default();
        assert_eq!((lost.told(), lost.counts()), (String::new(), json!({})));
        lost.lose(What::Readings, "not answered", "reset");
        lost.lose(What::Readings, "not answered", "reset again");
        lost.lose(What::Readings, "no logprob", "");
        lost.lose(What::Votes, "vote failed", "");
        assert_eq!(lost.told(), "; 1 lost: vote failed; 1 lost: no logprob; 2 lost: not answered (reset)");
        let counts = json!({"votes": {"vote failed": 1}, "readings": {"no logprob": 1, "not answered": 2}});
        assert_eq!(lost.counts(), counts);
    }
}
