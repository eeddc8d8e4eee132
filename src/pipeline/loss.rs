//! Why a step or an episode was lost: a reason that can be counted, and the words that name the case.

use std::fmt::Display;

use backsight_core::named;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The episode's files cannot be read.
    Unreadable,
    /// The episode has no reward, so there is no outcome to tell.
    NoReward,
    /// The lens has no text for it.
    Lens,
    /// The template or the tokenizer refuses it.
    Rendering,
    /// No message stands before the action that a lens could be written into.
    NoPlace,
    /// The lens cannot be written into the recorded tokens.
    Recorded,
    /// It does not fit the model's context.
    Context,
    /// The server gave no answer.
    Server,
    /// The server gave no logprob for a token of it.
    Logprob,
    /// No credit follows from its scores.
    Credit,
    /// What an earlier run left cannot be used.
    Left,
}

named!(
    Reason: Unreadable = "unreadable", NoReward = "no reward", Lens = "no lens text", Rendering = "not rendered",
    NoPlace = "no place for the lens", Recorded = "recorded tokens unclear", Context = "context too small",
    Server = "not answered", Logprob = "no logprob", Credit = "no credit", Left = "old scores unusable",
);

/// Something that was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Loss {
    /// What kind of thing went wrong.
    pub reason: Reason,
    /// What exactly.
    pub why: String,
}

impl Loss {
    /// A loss in words.
    pub fn new(reason: Reason, why: impl Display) -> Self {
        Self { reason, why: why.to_string() }
    }
}
