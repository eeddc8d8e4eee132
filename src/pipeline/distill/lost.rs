//! What was lost of an episode: counted by reason, with the words of each reason's first case.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::Value;

/// Losses by reason.
#[derive(Default)]
pub(super) struct Lost(BTreeMap<&'static str, (u64, String)>);

impl Lost {
    /// One more for a reason; `why` says what it was in this case, if there is more to say.
    pub(super) fn lose(&mut self, reason: &'static str, why: impl Display) {
        self.0.entry(reason).or_insert_with(|| (0, why.to_string())).0 += 1;
    }

    /// How many there are, by reason.
    pub(super) fn counts(&self) -> Value {
        self.0.iter().map(|(reason, (n, _))| (*reason, Value::from(*n))).collect()
    }

    /// All of it in words, to be put behind others; empty where nothing was lost.
    pub(super) fn told(&self) -> String {
        let one = |(reason, (n, why)): (&&str, &(u64, String))| match why.is_empty() {
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
        assert_eq!((lost.told(), lost.counts()), (String::new(), serde_json::json!({})));
        lost.lose("not answered", "reset");
        lost.lose("not answered", "reset again");
        lost.lose("no logprob", "");
        assert_eq!(lost.told(), "; 1 lost: no logprob; 2 lost: not answered (reset)");
        assert_eq!(lost.counts(), serde_json::json!({"no logprob": 1, "not answered": 2}));
    }
}
