//! Backsight turns LLM-agent trajectories into dense training signal.
//!
//! From a known outcome it looks back along an episode and says what every step, and every token,
//! was worth: it asks a model for the log-probabilities of the student's own tokens under a context
//! that knows more.
//!
//! The pure middle and the parts that are useful alone are crates of their own and are found here
//! under short names. ARCHITECTURE.md is the map.
//!
//! What a step was worth follows from how likely its action is to a reader who knows the outcome:
//!
//! ```
//! use backsight::credit::hcapo::{Params, StepScore, credit};
//!
//! // Mean logprobs of three actions under the outcome lens; the second has none, so it gets no credit.
//! let step = |lens| StepScore { lens, plain: None, group: "fix the test", reward: None };
//! let found = credit(&[step(Some(-0.2)), step(None), step(Some(-1.6))], 1.0, &Params::default());
//! assert!(found.steps[0].unwrap().rho > found.steps[2].unwrap().rho);
//! assert!(found.steps[1].is_err());
//! ```
//!
//! The logprobs come from a model: [`model::open()`] finds out what a server is, [`pipeline::Reader`] puts an
//! episode's actions behind contexts that know more, and [`model::score_planned`] asks for as little as it can.

pub use backsight_chat as chat;
pub use backsight_core::{credit, episode, lens, needed, plan, python, score, subtasks, tokens, tree};
pub use backsight_engine as engine;
pub use backsight_sandbox as sandbox;

pub mod agent;
pub mod cli;
mod config;
mod event;
mod hf;
mod http;
mod judge;
mod metrics;
pub mod model;
pub mod pipeline;
mod quickstart;
mod ship;
pub mod store;
pub mod tasks;
mod wire;

/// What the benchmarks measure beside the public surface.
#[doc(hidden)]
pub mod measured {
    pub use crate::wire::vllm::scores as vllm_scores;
}

// The tests name the library as everybody does.
#[cfg(test)]
extern crate self as backsight;
#[cfg(test)]
#[path = "../tests/inside/mod.rs"]
mod inside;
