//! The agent: what a student may do while it works on a task, and how its work is checked.
//!
//! Owns the loop in which a student works on a task, the sandbox an episode lives in, the tools it
//! calls, the verifier that runs a task's hidden tests, and the reward. `episode_loop` is the place to
//! begin reading. Models and their formats are left to `model` and `chat`.

pub mod episode_loop;
pub mod force;
pub mod options;
pub mod reward;
pub mod sandbox;
pub mod tools;
mod transcript;
mod turn;
pub mod verifier;
