//! Which portion of a conversation is rendered: the question that spans ask a template.
//!
//! Owns [`Talk`], whoever answers it.

use std::ops::Range;

use super::error::TextError;
use backsight_core::lens::Edit;

/// Which part of a conversation is to be rendered, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion<'a> {
    /// How many messages, from the first.
    pub n_messages: usize,
    /// Whether the generation prompt stands behind them.
    pub generation_prompt: bool,
    /// Messages that say these words and nothing else, neither reasoning nor calls.
    pub said: &'a [(usize, &'a str)],
}

impl Portion<'static> {
    /// The first messages.
    pub fn messages(n_messages: usize) -> Self {
        Self { n_messages, generation_prompt: false, said: &[] }
    }

    /// The first messages and the generation prompt.
    pub fn prompt(n_messages: usize) -> Self {
        Self { generation_prompt: true, ..Self::messages(n_messages) }
    }
}

/// Renders a part of a conversation.
pub type Render<'r> = dyn FnMut(Portion<'_>) -> Result<String, TextError> + 'r;

/// A conversation that can be rendered, also as if some of its messages were not in it.
pub trait Talk {
    /// Renders a part of it.
    fn render(&mut self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TextError>;

    /// Renders the prompt before the message at `message_idx` with something added to it; to a conversation that is only
    /// looked at nothing ever is.
    fn edited(
        &mut self,
        message_idx: usize,
        _edit: Edit<'_>,
        without: &Range<usize>,
    ) -> Result<String, TextError> {
        self.render(Portion::prompt(message_idx), without)
    }
}
