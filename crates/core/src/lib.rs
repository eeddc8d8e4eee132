//! The pure middle of Backsight: what is scored, how it is asked for, and what it is worth.
//!
//! Nothing here reads a file, a clock or a socket. A [`Model`](model::Model) is only described;
//! those that exist are elsewhere.
//!
//! ```
//! use backsight_core::model::Limits;
//! use backsight_core::plan::plan;
//! use backsight_core::score::ScoreJob;
//! use backsight_core::tokens::TokenSpan;
//!
//! // The first job's tokens begin the second's, so one request scores both.
//! let job = |tokens: &[u32], at| ScoreJob::new(tokens.into(), vec![TokenSpan::at(at, 1)], 0).unwrap();
//! let plan = plan(&[job(&[5, 6, 7], 2), job(&[5, 6, 7, 8], 3)], &Limits::CACHING);
//! assert_eq!(plan.requests.len(), 1);
//! ```

pub mod credit;
pub mod episode;
pub mod hash;
pub mod hint;
pub mod lens;
pub mod mix;
pub mod model;
pub mod names;
pub mod needed;
pub mod plan;
pub mod python;
pub mod score;
pub mod subtasks;
pub mod tokens;
pub mod tree;
