//! What went wrong between text and tokens, in words: nobody does more with it than tell the user.

use std::fmt::Display;

/// Why something cannot be read, rendered or encoded, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TextError {
    what: String,
    help: &'static str,
}

impl TextError {
    pub(crate) fn new(what: impl Display, help: &'static str) -> Self {
        Self { what: what.to_string(), help }
    }

    /// What to do about it.
    pub fn help(&self) -> &'static str {
        self.help
    }
}
