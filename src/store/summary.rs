//! `summary.json`: what a run made, what it lost and why, and what it cost.
//!
//! Owns the file's shape, which `docs/summary.schema.json` describes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::atomic;
use crate::model::budget::Spent;
use crate::plan::Figures;

/// The file in a run directory.
pub const SUMMARY: &str = "summary.json";

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// `backsight.summary`.
    pub format: &'static str,
    /// 1.
    pub version: u64,
    /// Which command.
    pub command: &'static str,
    /// This program's version.
    pub backsight: &'static str,
    /// What was made.
    pub made: Made,
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
    /// What should be known.
    pub notices: Vec<String>,
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

impl Summary {
    /// An empty summary of a command.
    pub fn new(command: &'static str) -> Self {
        let (format, version) = ("backsight.summary", 1);
        Self { format, version, command, backsight: env!("CARGO_PKG_VERSION"), ..Self::default() }
    }

    /// Writes it into a run directory.
    pub fn write(&self, run_dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from)?;
        atomic::write(&run_dir.join(SUMMARY), format!("{text}\n").as_bytes())
    }
}
