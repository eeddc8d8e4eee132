//! Backsight turns LLM-agent trajectories into dense training signal.
//!
//! From a known outcome it looks back along an episode and says what every step, and every token,
//! was worth: it asks a model for the log-probabilities of the student's own tokens under a context
//! that knows more. ARCHITECTURE.md is the map; the modules below are listed from the pure middle
//! outwards.

pub mod credit;
pub mod episode;
pub mod lens;
pub mod plan;
pub mod python;
pub mod score;
pub mod tokens;

pub mod hf;
pub mod wire;

pub mod chat;
pub mod model;
pub mod ship;
pub mod store;

pub mod tasks;

pub mod agent;
pub mod config;
pub mod event;
pub mod metrics;
pub mod pipeline;
pub mod quickstart;

pub mod cli;
