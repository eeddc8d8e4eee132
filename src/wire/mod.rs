//! Foreign formats: one file per producer, each headed by who produces it, which version, and the surprise.
//!
//! Owns the bytes that other programs write and read, and their conversion to domain values by
//! hand. Deliberately absent: sockets, retries and every decision about what to ask; those are the
//! business of `model`.

pub mod anthropic;
pub mod atropos;
pub mod episode_record;
pub mod error;
pub mod fault;
pub mod hindsight;
pub mod hints;
pub(crate) mod named;
pub mod openai;
pub mod openai_episodes;
pub mod pi_result;
pub mod pi_session;
pub mod published;
mod rows;
pub mod scan;
pub mod score_jobs;
pub mod served;
pub mod sglang;
mod skim;
mod strict;
mod versions;
pub mod vllm;

use serde::{Deserialize, Serialize};

use backsight_core::model::ToldVersion;
use backsight_core::score::SpanScore;
use backsight_core::tokens::{Logprob, TokenId, TopK};

/// One value for all prompts, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// For all.
    One(T),
    /// For each.
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    /// The value for the prompt at `idx`, if there is one.
    pub fn get(&self, idx: usize) -> Option<T> {
        match self {
            Self::One(value) => Some(*value),
            Self::Many(values) => values.get(idx).copied(),
        }
    }
}

/// Tokens of one call as a server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Tokens sent.
    pub prompt_tokens: u64,
    /// Of those, found in the server's cache, where it says so.
    pub cached_tokens: Option<u64>,
    /// Tokens sampled.
    pub completion_tokens: u64,
}

impl Counts {
    /// Refuses an answer to a prompt of another length, where the server counts.
    fn check_sent(self, n_sent: usize) -> Result<(), String> {
        match self.prompt_tokens {
            0 => Ok(()),
            n if n == n_sent as u64 => Ok(()),
            n => Err(format!("the server read {n} tokens, {n_sent} were sent")),
        }
    }
}

/// A sampled continuation as a server told it: one logprob and one row per id.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The id of the request, where the server tells it.
    pub id: Option<String>,
    /// The sampled ids, the stop token included.
    pub ids: Vec<TokenId>,
    /// The logprob of each, where there is one.
    pub logprobs: Vec<Option<Logprob>>,
    /// The alternatives at each; empty rows when none were asked for.
    pub top: Vec<TopK>,
    /// Why it ended, in the server's word.
    pub finish: Option<String>,
    /// The weights behind the ids, where the server tells.
    pub versions: Vec<ToldVersion>,
    /// What it cost.
    pub counts: Counts,
}

/// The scores of a job, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The id of the request, where the server tells it.
    pub id: Option<String>,
    /// One per span.
    pub spans: Vec<SpanScore>,
    /// The weights that read the prompt, where the server tells.
    pub version: Option<String>,
    /// What the server counted.
    pub counts: Counts,
    /// The logprobs of chosen ids at each needed position, where they were asked for.
    pub chosen: Vec<TopK>,
}

/// The logprob and the alternatives of each sampled token.
type Values = (Vec<Option<Logprob>>, Vec<TopK>);
