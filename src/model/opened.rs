//! A model that was opened: the client, and what is known of the server behind it.

use std::path::PathBuf;
use std::sync::Arc;

use super::kind::{Remote, ServerInfo};
use super::notice::Notices;
use super::transport::Transport;
use super::{Limits, Model};
use backsight_chat::tokenizer::Tokenizer;

/// A server that is ready to be asked.
#[derive(Clone)]
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

impl Opened {
    /// A model behind a server.
    pub(super) fn new(remote: Remote, tokenizer: Option<(PathBuf, Arc<Tokenizer>)>) -> Option<Self> {
        let (info, transport) = (remote.info.clone(), Some(remote.transport.clone()));
        let model = (info.kind.client.as_ref()?.make)(remote);
        Some(Self { model, info, tokenizer, transport })
    }

    /// What it is called in messages.
    pub fn server(&self) -> String {
        self.transport.as_ref().map_or_else(|| "the embedded model".to_owned(), Transport::server)
    }

    /// The model over another way, such as to one of its endpoints; nothing is asked. One in this process has no other.
    pub fn over(&self, transport: Transport) -> Arc<dyn Model> {
        self.within(transport, self.model.limits().clone())
    }

    /// The same with other limits.
    pub(super) fn within(&self, transport: Transport, limits: Limits) -> Arc<dyn Model> {
        let remote = Remote { transport, info: self.info.clone(), limits, notices: Notices::default() };
        let client = self.info.kind.client.as_ref();
        client.map_or_else(|| Arc::clone(&self.model), |client| (client.make)(remote))
    }
}
