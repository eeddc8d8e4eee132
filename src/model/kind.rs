//! What is to be known of a kind of server before it is asked, and what it says when it is.
//!
//! Owns [`Kind`], the shape of a row of the table in `kinds`, and [`Remote`], what a client is made of. Whoever treats
//! servers differently asks a row what differs; nobody asks which row it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::notice::Notices;
use super::secret::Secret;
use super::transport::{Auth, Settings, Transport};
use super::{Error, Limits, Model, check_ids, check_length};
use crate::wire::openai::Listed;
use backsight_core::tokens::TokenId;

/// A route that only servers of one kind have, and what refuses an answer that is not theirs.
pub type Sign = (&'static str, fn(&[u8]) -> Result<(), String>);

/// What a server says about the model it is asked for, or about its only one.
pub type Told<'a> = BoxFuture<'a, Result<(ServerInfo, Limits), Error>>;

/// A kind of server.
pub struct Kind {
    /// The name used on the command line, in files and in messages.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// What it is recognised by; one without signs has to be named.
    pub signs: &'static [Sign],
    /// What it can do, as far as that is known before it is asked; so also what a plan for it costs.
    pub limits: Limits,
    /// Whether an id too large ends it, so that it is sent none while the size of its vocabulary is unknown.
    pub needs_vocab: bool,
    /// Whether it tells the ids of a text, so that its tokenizer can be compared with ours.
    pub tokenizes: bool,
    /// How it is shown an API key.
    pub auth: fn(Secret) -> Auth,
    /// What every request to it says besides.
    pub headers: &'static [(&'static str, &'static str)],
    /// Who speaks to it; nobody has to speak to a model in this process.
    pub client: Option<Client>,
}

/// How a server is spoken to.
pub struct Client {
    /// Asks what it is.
    pub ask: for<'a> fn(&'a Transport, Option<&'a str>) -> Told<'a>,
    /// Makes a model of it, without asking anything.
    pub make: fn(Remote) -> Arc<dyn Model>,
}

impl Kind {
    /// A row in which only what differs has to be said.
    pub const PLAIN: Self = Self {
        name: "",
        about: "",
        signs: &[],
        limits: Limits::CHAT,
        needs_vocab: false,
        tokenizes: false,
        auth: |key| Auth { header: "authorization", prefix: "Bearer ", key },
        headers: &[],
        client: None,
    };

    /// Whether the model runs in this process.
    pub fn is_here(&self) -> bool {
        self.client.is_none()
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A model that somebody wants: plain values, from flags or from the keys of any role.
#[derive(Clone, Default)]
pub struct Wanted {
    /// Its servers; none for a model in this process.
    pub urls: Vec<String>,
    /// What they are; found out if it is not given.
    pub kind: Option<&'static Kind>,
    /// Its name; without one the server must have exactly one.
    pub model: Option<String>,
    /// Its tokenizer: a directory, or a name on the hub.
    pub tokenizer: Option<PathBuf>,
    /// Whether texts are to become its tokens. Then its name tells where its tokenizer is, when nothing else does.
    pub needs_text: bool,
    /// The size of its vocabulary, where that is known without a tokenizer.
    pub vocab_size: Option<usize>,
    /// The API key.
    pub key: Option<Secret>,
    /// How its servers are reached.
    pub settings: Settings,
    /// Where to tell what a person should know.
    pub notices: Notices,
}

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// What it is.
    pub kind: &'static Kind,
    /// Its version, where it tells.
    pub version: Option<String>,
    /// The model we ask.
    pub model: String,
    /// The models it lists; empty when it lists none.
    pub models: Vec<String>,
    /// Where it has the weights from: a directory or a hub's name.
    pub model_path: Option<String>,
    /// Where it has the tokenizer from.
    pub tokenizer_path: Option<String>,
    /// Which weights, as a trainer that updates them counts.
    pub weight_version: Option<String>,
}

impl ServerInfo {
    /// What a list of models tells of one of them.
    pub fn listed(kind: &'static Kind, model: &Listed, all: Vec<Listed>) -> Self {
        Self {
            kind,
            version: None,
            model: model.id.clone(),
            models: all.into_iter().map(|it| it.id).collect(),
            model_path: model.root.clone(),
            tokenizer_path: None,
            weight_version: None,
        }
    }
}

/// A server that is ready to be asked, as all clients need it.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The way to it.
    pub transport: Transport,
    /// What it says about itself.
    pub info: ServerInfo,
    /// What it can do.
    pub limits: Limits,
    /// Where to tell what a person should know.
    pub notices: Notices,
}

impl Remote {
    /// Asks a server of this kind what it is.
    pub async fn ask(transport: Transport, kind: &'static Kind, wanted: &Wanted) -> Result<Self, Error> {
        let Some(client) = &kind.client else {
            let what = format!("{} is a server, not a model in this process", transport.server());
            return Err(Error::invalid(what, "leave out the address, or name another --kind"));
        };
        let (info, limits) = (client.ask)(&transport.briefly(), wanted.model.as_deref()).await?;
        let remote = Self { transport, info, limits, notices: wanted.notices.clone() };
        Ok(remote.knowing_vocab(wanted.vocab_size))
    }

    /// Refuses ids that it must not be sent.
    pub fn check(&self, ids: &[TokenId]) -> Result<(), Error> {
        let Limits { vocab_size, context_length, .. } = self.limits;
        if self.info.kind.needs_vocab && vocab_size.is_none() {
            let what = format!(
                "be sent token ids while the size of its vocabulary is unknown: one id too large ends an {} server",
                self.info.kind.about
            );
            let help = "name the model's tokenizer with --tokenizer";
            return Err(Error::unsupported(self.transport.server(), what, help));
        }
        check_ids(ids, vocab_size)?;
        check_length(ids.len(), context_length)
    }

    /// The same with a vocabulary of that size, if there is one; what the server told stands otherwise.
    pub fn knowing_vocab(mut self, size: Option<usize>) -> Self {
        self.limits.vocab_size = size.or(self.limits.vocab_size);
        if self.info.kind.needs_vocab {
            (self.limits.token_ids, self.limits.scores) =
                (self.limits.vocab_size.is_some(), self.limits.vocab_size.is_some());
        }
        self
    }
}
