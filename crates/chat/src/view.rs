//! Which part of a conversation is rendered: the question that spans ask a template.

/// Which part of a conversation is to be rendered, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// How many messages, from the first.
    pub n_messages: usize,
    /// Whether the generation prompt stands behind them.
    pub generation_prompt: bool,
    /// Messages that say these words and nothing else, neither reasoning nor calls.
    pub said: &'a [(usize, &'a str)],
}

impl View<'static> {
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
pub type Render<'r, E> = dyn FnMut(View<'_>) -> Result<String, E> + 'r;
