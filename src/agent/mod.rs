//! The agent: what a student may do while it works on a task, and how its work is checked.
//!
//! Owns the sandbox an episode lives in, the tools it calls, the verifier that runs a task's hidden
//! tests, and the reward. Models and their formats are left to `model` and `chat`.

pub mod reward;
pub mod sandbox;
pub mod tools;
pub mod verifier;
