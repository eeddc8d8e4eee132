//! Foreign formats: one file per producer, each headed by who produces it, which version, and the surprise.
//!
//! Owns the bytes that other programs write and read, and their conversion to domain values by
//! hand. Deliberately absent: sockets, retries and every decision about what to ask; those are the
//! business of `model`.

pub mod anthropic;
mod aside;
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
pub mod vllm;

use serde::{Deserialize, Serialize};

use backsight_core::episode::Message;
use backsight_core::model::{ChatAnswer, Finish, SampledToken, Usage};
use backsight_core::needed::{Candidate, token_score};
use backsight_core::score::TokenScore;
use backsight_core::tokens::TopK;

/// One value for all prompts, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "rid, input_ids, logprob_start_len and top_logprobs_num must be one value, or a list with one for each prompt"
)]
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

/// What a server answered, behind the id of the request where the server tells it.
pub type Signed<T> = (Option<String>, T);

/// What an answer to `n_sent` tokens cost. One to a prompt of another length is refused; a server that does not count
/// is charged for what was sent.
fn paid(counted: Usage, n_sent: usize) -> Result<Usage, String> {
    match counted.prompt_tokens {
        0 => Ok(Usage { prompt_tokens: n_sent as u64, ..counted }),
        n if n == n_sent as u64 => Ok(counted),
        n => Err(format!("the server read {n} tokens, {n_sent} were sent")),
    }
}

/// The answer of a model that said this. A server may say `stop` beside a tool call.
fn chat_answer(message: Message, word: Option<&str>, usage: Usage) -> ChatAnswer {
    let finish = match finish(word) {
        Finish::Stop if !message.tool_calls.is_empty() => Finish::ToolCalls,
        finish => finish,
    };
    ChatAnswer { message, finish, usage }
}

/// Sampled tokens with their own logprobs and the rows of their alternatives, `top_k` in each; `check` refuses a row that
/// contradicts itself. What is no logprob is absent.
fn sampled(
    own: &[Candidate],
    rows: &[Vec<Candidate>],
    (top_k, floor): (usize, f64),
    check: impl Fn(Candidate, &[Candidate], &TopK) -> Result<(), &'static str>,
) -> Result<Vec<SampledToken>, String> {
    if top_k > 0 && rows.len() != own.len() {
        return Err(format!("{} sampled tokens have {} rows of alternatives", own.len(), rows.len()));
    }
    let token = |(index, &(id, value)): (usize, &Candidate)| {
        let row = rows.get(index).map_or(&[][..], Vec::as_slice);
        let TokenScore { logprob, top } = token_score(id, value, row, top_k, Some(floor));
        if logprob.is_ok() {
            check((id, value), row, &top).map_err(|why| format!("sampled token {index} {why}"))?;
        }
        Ok(SampledToken { id, logprob: logprob.ok(), top })
    };
    own.iter().enumerate().map(token).collect()
}

/// Why sampling ended, from a server's word for it.
fn finish(word: Option<&str>) -> Finish {
    match word {
        Some("stop" | "end_turn" | "stop_sequence") => Finish::Stop,
        Some("length" | "max_tokens" | "model_context_window_exceeded") => Finish::Length,
        Some("tool_calls" | "function_call" | "tool_use") => Finish::ToolCalls,
        Some(other) => Finish::Other(other.to_owned()),
        None => Finish::Other("not told".to_owned()),
    }
}
