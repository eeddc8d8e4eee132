//! Opening a model: finding out what kind of server it is, and what must be known before anything is sent.
//!
//! Owns [`open`], which every command that needs a model goes through. The size of the vocabulary comes from the
//! tokenizer that was named, else from the directory the server names if it is readable here. A server's only model may
//! be asked for under another name if its tokenizer is ours. Several servers are one model only if they say so; whether
//! their weights are the same is measured later, where it is known how much each differs from itself. Questions are asked
//! briefly, because a person waits.

use std::path::{Path, PathBuf};

use super::kind::{Kind, Remote, Wanted};
use super::opened::Opened;
use super::probe::{probe_logprobs, tokenizer_agrees};
use super::tokenizers::{TokenizerAt, find, load};
use super::transport::Transport;
use super::weights::Weights;
use super::{Error, embedded, endpoint, kinds, remote};
use crate::hf::{HuggingFace, hub_name};
use crate::wire::openai::Listed;

impl Wanted {
    /// Whether the model runs in this process.
    pub fn is_here(&self) -> bool {
        self.kind.is_some_and(Kind::is_here)
    }

    /// Checks that there are servers to ask, or that none are needed.
    pub fn check(&self) -> Result<(), Error> {
        match (self.urls.first(), self.is_here()) {
            (Some(url), true) => {
                let url = endpoint::masked(url);
                let what = format!("{url} was named, but a model in this process asks no server");
                Err(Error::invalid(what, "leave out the address, or name another --kind"))
            }
            (None, false) => Err(endpoint::no_endpoint()),
            _ => Ok(()),
        }
    }

    /// A way to the servers.
    fn transport(&self) -> Result<Transport, Error> {
        let mut settings = self.settings.clone();
        settings.auth = self.key.clone().map(self.kind.map_or(Kind::PLAIN.auth, |kind| kind.auth));
        settings.headers.extend(self.kind.into_iter().flat_map(|kind| kind.headers));
        Transport::open(&self.urls, settings)
    }
}

/// Opens the model that is wanted.
pub async fn open(wanted: &Wanted) -> Result<Opened, Error> {
    wanted.check()?;
    let tokenizer = match &wanted.tokenizer {
        Some(named) => Some(tokenizer_path(named).await?),
        None => None,
    };
    let wanted = &Wanted { tokenizer, ..wanted.clone() };
    if wanted.is_here() {
        return open_here(wanted);
    }
    let transport = wanted.transport()?;
    let each = transport.each()?;
    if each.len() == 1 {
        return open_one(transport, wanted).await;
    }
    let (mut up, mut opened, mut down) = (Vec::new(), Vec::new(), None);
    for (idx, one) in each.into_iter().enumerate() {
        match look(one, wanted).await {
            Ok(one) => {
                up.push(idx);
                opened.push(one);
            }
            Err(error) if error.may_pass() => {
                wanted.notices.add(format!("{error}; going on without it"));
                down.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    check_same_model(&opened)?;
    if opened.is_empty() {
        return Err(down.unwrap_or_else(endpoint::no_endpoint));
    }
    together(transport.only(&up)?, opened, wanted).ok_or_else(endpoint::no_endpoint)
}

/// Loads the model that was named, else the default that was pulled.
fn open_here(wanted: &Wanted) -> Result<Opened, Error> {
    let found = Weights::from_env(|name| std::env::var(name).ok());
    let found = found.and_then(|weights| embedded::find(&weights, wanted.model.as_deref()));
    let (name, path) = found.map_err(|error| Error::invalid(&error, error.help()))?;
    embedded::load(&name, &path, wanted.tokenizer.as_deref())
}

/// Opens one server of several, and sees that it scores if it says so.
async fn look(transport: Transport, wanted: &Wanted) -> Result<Opened, Error> {
    let opened = open_one(transport, wanted).await?;
    probe_logprobs(&opened).await.map(|_| opened)
}

/// Several servers as one model, which can do what all of them can.
fn together(transport: Transport, opened: Vec<Opened>, wanted: &Wanted) -> Option<Opened> {
    let limits = opened.iter().map(|it| it.model.limits().clone()).reduce(|a, b| a.and(&b))?;
    let Opened { info, tokenizer, .. } = opened.into_iter().next()?;
    Opened::new(Remote { transport, info, limits, notices: wanted.notices.clone() }, tokenizer)
}

/// Refuses servers that say they serve different models.
fn check_same_model(opened: &[Opened]) -> Result<(), Error> {
    let Some((first, others)) = opened.split_first() else { return Ok(()) };
    let model = |it: &Opened| (it.info.kind, it.info.model.clone());
    let Some(other) = others.iter().find(|it| model(it) != model(first)) else { return Ok(()) };
    let says = |it: &Opened| format!("`{}` ({})", it.info.model, it.info.kind.name);
    let what = format!("{} serves {}, {} {}", first.server(), says(first), other.server(), says(other));
    Err(Error::invalid(what, "name servers of one model, and that model with --model"))
}

/// Opens the one server behind `transport`: asks it what it is, and finds its tokenizer.
async fn open_one(transport: Transport, wanted: &Wanted) -> Result<Opened, Error> {
    let kind = match wanted.kind {
        Some(kind) => kind,
        None => kinds::recognise(&transport.briefly()).await?,
    };
    // The name of its only model, where that is another and its tokenizer can be compared with ours.
    let served = match &wanted.model {
        Some(wanted) if kind.tokenizes => match remote::listed(&transport.briefly()).await?.as_slice() {
            [Listed { id, .. }] if id != wanted => Some(id.clone()),
            _ => None,
        },
        _ => None,
    };
    let named = match (&wanted.tokenizer, &wanted.model) {
        (Some(path), _) => Some(load(path)?),
        // A directory in place of the name says itself what the server's tokenizer must agree with.
        (None, Some(name)) if served.is_some() => load(Path::new(name)).ok(),
        _ => None,
    };
    let asked = Wanted { model: served.clone().or_else(|| wanted.model.clone()), ..wanted.clone() };
    let size = |found: &Option<TokenizerAt>| found.as_ref().map(|(_, tokenizer)| tokenizer.vocab_size());
    let remote = Remote::ask(transport, kind, &asked).await?.knowing_vocab(size(&named));
    let tokenizer = if named.is_none() && kind.tokenizes {
        let model = wanted.model.as_deref().filter(|_| wanted.needs_text || served.is_some());
        find(model, &remote.info, wanted.needs_text).await?
    } else {
        named
    };
    let vocab_size = remote.limits.vocab_size.or(size(&tokenizer).filter(|_| kind.tokenizes));
    let opened =
        Opened::new(remote.knowing_vocab(vocab_size), tokenizer).ok_or_else(endpoint::no_endpoint)?;
    if let (Some(served), Some(name)) = (served, &wanted.model) {
        wanted.notices.add(check_name(&opened, &served, name).await?);
    }
    Ok(opened)
}

/// What is to be told where the only model is meant, because its tokenizer is ours; else there is no model of that name.
async fn check_name(opened: &Opened, served: &str, wanted: &str) -> Result<String, Error> {
    let server = opened.server();
    let agrees = tokenizer_agrees(opened, &mut Vec::new()).await;
    match (agrees, &opened.tokenizer) {
        (Some(true), Some((path, _))) => Ok(format!(
            "{server} has no model `{wanted}`; its only one, `{served}`, is taken for it, because its tokenizer is the one at {}",
            path.display()
        )),
        _ => Err(remote::no_such_model(&server, vec![served], wanted)),
    }
}

/// Where a tokenizer is that was named by its directory, or by its model's name on the hub.
pub async fn tokenizer_path(named: &Path) -> Result<PathBuf, Error> {
    let Some(repo) = hub_name(named) else { return Ok(named.to_owned()) };
    let Ok(hub) = HuggingFace::from_env(|name| std::env::var(name).ok()) else { return Ok(named.to_owned()) };
    hub.tokenizer(repo).await.map_err(|error| {
        let what = format!("`{repo}` is no directory here, and its tokenizer cannot be had: {error}");
        let help = format!("name a directory with tokenizer.json; or else {}", error.help());
        match error.is_unreachable() {
            true => Error::Unreachable { server: "the hub".to_owned(), why: what },
            false => Error::Invalid { what, help },
        }
    })
}
