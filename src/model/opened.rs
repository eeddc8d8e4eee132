//! A model that was opened: the client, and what is known of the server behind it.

use std::path::PathBuf;
use std::sync::Arc;

use super::anthropic::Anthropic;
use super::openai::OpenAi;
use super::remote::{Kind, OpenOptions, ServerInfo};
use super::sglang::Sglang;
use super::transport::Transport;
use super::vllm::Vllm;
use super::{Limits, Model};
use backsight_chat::tokenizer::Tokenizer;

/// A server that is ready to be asked.
pub struct Opened {
    /// The model behind it.
    pub model: Arc<dyn Model>,
    /// What it says about itself.
    pub info: ServerInfo,
    /// Its tokenizer, if one was named or found, and where.
    pub tokenizer: Option<(PathBuf, Arc<Tokenizer>)>,
    /// The way to it; a model in this process has none.
    pub transport: Option<Transport>,
}

/// What is known of a model behind a server, apart from the way to it.
#[derive(Clone, Debug)]
pub struct Known {
    info: ServerInfo,
    limits: Limits,
}

impl Known {
    /// The same, trusting every id: for whoever sends only ids that every vocabulary has, and those it was given.
    pub fn trusting_ids(mut self) -> Self {
        self.limits.vocab_size = Some(usize::MAX);
        (self.limits.token_ids, self.limits.scores) = (true, true);
        self
    }

    /// The model over another way, such as to one of its endpoints; nothing is asked.
    pub fn over(&self, transport: Transport) -> Arc<dyn Model> {
        client(transport, self.info.clone(), self.limits.clone(), OpenOptions::default())
    }
}

impl Opened {
    /// What is known of it by now.
    pub fn known(&self) -> Known {
        Known { info: self.info.clone(), limits: self.model.limits().clone() }
    }
}

/// A client for what is already known of a server.
pub(super) fn client(
    transport: Transport,
    info: ServerInfo,
    limits: Limits,
    options: OpenOptions,
) -> Arc<dyn Model> {
    match info.kind {
        Kind::Vllm => Arc::new(Vllm::new(transport, info, limits, options)),
        Kind::Sglang => Arc::new(Sglang::new(transport, info, limits, options)),
        Kind::Anthropic => Arc::new(Anthropic::new(transport, info, limits, options)),
        // A model in this process has no way to it; nobody asks for one.
        Kind::OpenAi | Kind::Embedded => Arc::new(OpenAi::new(transport, info, limits, options)),
    }
}
