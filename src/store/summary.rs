//! `summary.json`: what a run made, what it lost and why, and what it cost.
//!
//! Owns the file's shape, which `docs/summary.schema.json` describes. What is made differs from command
//! to command; everything else is the same for all of them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::atomic;
use crate::model::budget::{ModelRole, Spent};
use crate::plan::Figures;

/// The file in a run directory.
pub const SUMMARY: &str = "summary.json";

/// What a run came to; `M` is what its command makes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary<M = Made> {
    /// `backsight.summary`.
    pub format: &'static str,
    /// 1.
    pub version: u64,
    /// Which command.
    pub command: &'static str,
    /// This program's version.
    pub backsight: &'static str,
    /// What was made.
    pub made: M,
    /// What was lost, by reason.
    pub lost: Lost,
    /// Tokens of this run.
    pub tokens: Tokens,
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that were answered from the ledger.
    pub found_in_ledger: u64,
    /// How long it took.
    pub seconds: f64,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// All that was ever paid in this run directory.
    pub paid: Paid,
    /// The same for each role, where a command has several or says which it has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<&'static str, Paid>,
    /// What should be known.
    pub notices: Vec<String>,
    /// What only this command tells, under names of its own.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What `collect` and `evaluate` make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MadeEpisodes {
    /// Episodes with an outcome.
    pub episodes: u64,
    /// Of those, the ones whose hidden tests passed.
    pub solved_episodes: u64,
    /// Of those, the ones whose tokens are not the sampled ones.
    pub rendered_episodes: u64,
    /// Episodes the run did not come to.
    pub unfinished_episodes: u64,
}

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Made {
    /// Episodes all of whose steps have credit now.
    pub episodes: u64,
    /// Steps that have credit now, those of partial episodes included.
    pub steps: u64,
    /// Episodes some of whose steps have none.
    pub partial_episodes: u64,
    /// Episodes that were complete and left alone.
    pub kept_episodes: u64,
    /// Episodes that were not wanted.
    pub skipped_episodes: u64,
    /// Episodes the run did not come to the end of.
    pub unfinished_episodes: u64,
}

/// What was lost, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Whole episodes.
    pub episodes: BTreeMap<String, u64>,
    /// Steps of partial episodes.
    pub steps: BTreeMap<String, u64>,
}

/// Tokens: what each step alone would have taken, and what was really sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Every step sent alone, without a cache.
    pub naive: u64,
    /// Requests that would have taken.
    pub naive_requests: u64,
    /// Sent.
    pub sent: u64,
    /// Of those, found in the server's cache, as far as it told.
    pub cached: u64,
    /// Computed by the server.
    pub computed: u64,
}

impl Tokens {
    /// The plans' naive figures beside what was paid.
    pub fn new(planned: &Figures, spent: &Spent) -> Self {
        Self {
            naive: planned.naive_tokens,
            naive_requests: planned.naive_requests,
            sent: spent.prompt_tokens,
            cached: spent.cached_tokens,
            computed: spent.prompt_tokens.saturating_sub(spent.cached_tokens),
        }
    }
}

/// What was paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Paid {
    /// Calls.
    pub requests: u64,
    /// Tokens sent.
    pub prompt_tokens: u64,
    /// Of those, found in a cache.
    pub cached_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
}

impl From<Spent> for Paid {
    fn from(spent: Spent) -> Self {
        let Spent { requests, prompt_tokens, cached_tokens, completion_tokens } = spent;
        Self { requests, prompt_tokens, cached_tokens, completion_tokens }
    }
}

impl<M: Default + Serialize> Summary<M> {
    /// An empty summary of a command.
    pub fn new(command: &'static str) -> Self {
        let (format, version) = ("backsight.summary", 1);
        Self { format, version, command, backsight: env!("CARGO_PKG_VERSION"), ..Self::default() }
    }

    /// Says what each role has paid in this run directory, however many processes it took. Without a plan,
    /// what was sent is what would have been sent without one.
    pub fn pay(&mut self, paid: &[(ModelRole, Spent)]) {
        let mut sum = Spent::default();
        for (role, spent) in paid {
            self.roles.insert(role.name(), (*spent).into());
            sum.requests += spent.requests;
            sum.prompt_tokens += spent.prompt_tokens;
            sum.cached_tokens += spent.cached_tokens;
            sum.completion_tokens += spent.completion_tokens;
        }
        let unplanned =
            Figures { naive_tokens: sum.prompt_tokens, naive_requests: sum.requests, ..Figures::default() };
        self.tokens = Tokens::new(&unplanned, &sum);
        self.requests = sum.requests;
        self.paid = sum.into();
    }

    /// How many episodes were lost.
    pub fn n_lost(&self) -> u64 {
        self.lost.episodes.values().sum()
    }

    /// Writes it into a run directory.
    pub fn write(&self, run_dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from)?;
        atomic::write(&run_dir.join(SUMMARY), format!("{text}\n").as_bytes())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_are_told_apart_and_together() {
        let spent = |requests, prompt_tokens, cached_tokens, completion_tokens| Spent {
            requests,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
        };
        let mut summary = Summary::<MadeEpisodes>::new("collect");
        summary.pay(&[(ModelRole::Student, spent(2, 100, 60, 9)), (ModelRole::Judge, spent(3, 50, 0, 1))]);
        summary.lost.episodes = [("timeout".to_owned(), 2), ("server gone".to_owned(), 1)].into();
        summary.more.insert("train/mean_reward".to_owned(), json!(0.5));
        let json = serde_json::to_value(&summary).unwrap();
        let tokens = json!({"naive": 150, "naive_requests": 5, "sent": 150, "cached": 60, "computed": 90});
        assert_eq!((&json["tokens"], &json["requests"], summary.n_lost()), (&tokens, &json!(5), 3));
        assert_eq!(json["roles"]["judge"]["prompt_tokens"], json!(50));
        assert_eq!(
            (&json["paid"]["completion_tokens"], &json["train/mean_reward"]),
            (&json!(10), &json!(0.5))
        );
        let credit = serde_json::to_value(Summary::<Made>::new("credit")).unwrap();
        assert_eq!(credit.get("roles"), None);
    }
}
