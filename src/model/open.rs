//! Opening a model: finding out what kind of server it is, and what must be known before anything is sent.
//!
//! Owns [`open`] and [`open_embedded`], which every command that needs a model goes through. The size of the vocabulary comes
//! from the tokenizer that was named, else from the directory the server names if it is readable here. A server's only
//! model may be asked for under another name if its tokenizer is ours. Several servers are one model only if they say so;
//! whether their weights are the same is measured later, where it is known how much each differs from itself. Questions
//! are asked briefly, because a person waits.

use std::path::Path;
use std::sync::Arc;

use super::anthropic::Anthropic;
use super::openai::OpenAi;
use super::opened::{Opened, client};
use super::probe::{probe_logprobs, tokenizer_agrees};
use super::remote::{self, Kind, OpenOptions, ServerInfo};
use super::sglang::Sglang;
use super::tokenizers::{Found, Sought, load};
use super::transport::Transport;
use super::vllm::Vllm;
use super::{Error, Model, endpoint};
use crate::wire::{self, openai::Listed};
use backsight_engine::model::Embedded;

/// Opens the servers behind `transport`; `kind` is found out if it is not given.
pub async fn open(
    transport: Transport,
    kind: Option<Kind>,
    tokenizer: Option<&Path>,
    options: OpenOptions,
) -> Result<Opened, Error> {
    let each = transport.each()?;
    if each.len() == 1 {
        return open_one(transport, kind, tokenizer, options).await;
    }
    let (mut up, mut looked_at, mut down) = (Vec::new(), Vec::new(), None);
    for (idx, one) in each.into_iter().enumerate() {
        match look(one, kind, tokenizer, options.clone()).await {
            Ok(one) => {
                up.push(idx);
                looked_at.push(one);
            }
            Err(error) if error.may_pass() => {
                options.notices.add(format!("{error}; going on without it"));
                down.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    check_same_model(&looked_at)?;
    if looked_at.is_empty() {
        return Err(down.unwrap_or_else(endpoint::no_endpoint));
    }
    together(transport.only(&up)?, looked_at, options).ok_or_else(endpoint::no_endpoint)
}

/// Opens one server of several, and sees that it scores if it says so.
async fn look(
    transport: Transport,
    kind: Option<Kind>,
    tokenizer: Option<&Path>,
    options: OpenOptions,
) -> Result<Opened, Error> {
    let opened = open_one(transport, kind, tokenizer, options).await?;
    probe_logprobs(&opened).await.map(|_| opened)
}

/// Several servers as one model, which can do what all of them can.
fn together(transport: Transport, opened: Vec<Opened>, options: OpenOptions) -> Option<Opened> {
    let limits = opened.iter().map(|it| it.model.limits().clone()).reduce(|a, b| a.and(&b))?;
    let first = opened.into_iter().next()?;
    let model = client(transport.clone(), first.info.clone(), limits, options);
    Some(Opened { model, transport: Some(transport), ..first })
}

/// Refuses servers that say they serve different models.
fn check_same_model(looked_at: &[Opened]) -> Result<(), Error> {
    let Some((first, others)) = looked_at.split_first() else { return Ok(()) };
    let model = |it: &Opened| (it.info.kind, it.info.model.clone());
    let Some(other) = others.iter().find(|it| model(it) != model(first)) else { return Ok(()) };
    let name = |it: &Opened| it.transport.as_ref().map(Transport::server).unwrap_or_default();
    let says = |it: &Opened| format!("`{}` ({})", it.info.model, it.info.kind.name());
    Err(Error::Invalid {
        what: format!("{} serves {}, {} {}", name(first), says(first), name(other), says(other)),
        help: "name servers of one model, and that model with --model".to_owned(),
    })
}

/// Opens the one server behind `transport`, or several that are known to be the same.
async fn open_one(
    transport: Transport,
    kind: Option<Kind>,
    tokenizer: Option<&Path>,
    mut options: OpenOptions,
) -> Result<Opened, Error> {
    let kind = match kind {
        Some(kind) => kind,
        None => detect(&transport.briefly()).await?,
    };
    let other_name = other_name(&transport, kind, options.model.as_deref()).await?;
    let named = match (tokenizer, &other_name) {
        (Some(path), _) => Some(load(path)?),
        // A directory in place of the name says itself what the server's tokenizer must agree with.
        (None, Some(name)) => load(Path::new(&name.wanted)).ok(),
        (None, None) => None,
    };
    options.vocab_size = named.as_ref().map(|(_, tokenizer)| tokenizer.vocab_size()).or(options.vocab_size);
    let model = options.model.clone().filter(|_| options.needs_text || other_name.is_some());
    let (sought, notices) = (Sought { named, model, is_needed: options.needs_text }, options.notices.clone());
    if let Some(name) = &other_name {
        options.model = Some(name.served.clone());
    }
    let opened = connect(transport, kind, sought, options).await?;
    if let Some(name) = other_name {
        notices.add(name.check(&opened).await?);
    }
    Ok(opened)
}

/// Asks the server what it is, and finds its tokenizer.
async fn connect(
    transport: Transport,
    kind: Kind,
    sought: Sought,
    options: OpenOptions,
) -> Result<Opened, Error> {
    let way = Some(transport.clone());
    let (model, info, tokenizer): (Arc<dyn Model>, ServerInfo, Option<Found>) = match kind {
        Kind::Vllm => {
            let mut client = Vllm::open(transport, options).await?;
            let info = client.info().clone();
            let tokenizer = sought.find(&info).await?;
            if let Some((_, tokenizer)) = &tokenizer {
                client = client.with_vocab_size(tokenizer.vocab_size());
            }
            (Arc::new(client), info, tokenizer)
        }
        Kind::Sglang => {
            let mut client = Sglang::open(transport, options).await?;
            let info = client.info().clone();
            let tokenizer = sought.find(&info).await?;
            if let Some((_, tokenizer)) = &tokenizer {
                client = client.with_vocab_size(tokenizer.vocab_size());
            }
            (Arc::new(client), info, tokenizer)
        }
        Kind::OpenAi => {
            let client = OpenAi::open(transport, options).await?;
            let info = client.info().clone();
            (Arc::new(client), info, sought.named)
        }
        Kind::Anthropic => {
            let client = Anthropic::open(transport, options).await?;
            let info = client.info().clone();
            (Arc::new(client), info, sought.named)
        }
        Kind::Embedded => {
            return Err(Error::Invalid {
                what: format!("{} is a server, not a model in this process", transport.server()),
                help: "leave out the address, or name another --kind".to_owned(),
            });
        }
    };
    Ok(Opened { model, info, tokenizer, transport: way })
}

/// The name of a server's only model, and another that it was asked for by.
struct OtherName {
    served: String,
    wanted: String,
}

/// Both names, where they differ and the server can be asked whether its tokenizer is ours.
async fn other_name(
    transport: &Transport,
    kind: Kind,
    wanted: Option<&str>,
) -> Result<Option<OtherName>, Error> {
    let (Some(wanted), Kind::Vllm | Kind::Sglang) = (wanted, kind) else { return Ok(None) };
    Ok(match remote::listed(&transport.briefly()).await?.as_slice() {
        [Listed { id, .. }] if id != wanted => {
            Some(OtherName { served: id.clone(), wanted: wanted.to_owned() })
        }
        _ => None,
    })
}

impl OtherName {
    /// What is to be told where the only model is meant, because its tokenizer is ours; else there is no model of that name.
    async fn check(self, opened: &Opened) -> Result<String, Error> {
        let Self { served, wanted } = self;
        let server = opened.transport.as_ref().map(Transport::server).unwrap_or_default();
        let agrees = tokenizer_agrees(opened, &mut Vec::new()).await;
        match (agrees, &opened.tokenizer) {
            (Some(true), Some((path, _))) => Ok(format!(
                "{server} has no model `{wanted}`; its only one, `{served}`, is taken for it, because its tokenizer is the one at {}",
                path.display()
            )),
            _ => Err(remote::no_such_model(&server, vec![&served], &wanted)),
        }
    }
}

/// Loads the model at `path` into this process; `name` is what it is called in reports and ledgers.
pub fn open_embedded(name: &str, path: &Path, tokenizer: Option<&Path>) -> Result<Opened, Error> {
    let model = Embedded::load(path, tokenizer)?;
    let text_path = tokenizer.unwrap_or(path);
    let tokenizer = model.tokenizer().ok().map(|it| (text_path.to_owned(), Arc::clone(it)));
    let info = ServerInfo {
        kind: Kind::Embedded,
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        model: name.to_owned(),
        models: vec![name.to_owned()],
        model_path: Some(path.display().to_string()),
        tokenizer_path: tokenizer.as_ref().map(|(path, _)| path.display().to_string()),
        weight_version: None,
    };
    Ok(Opened { model: Arc::new(model), info, tokenizer, transport: None })
}

/// SGLang tells of its model, vLLM its version; whatever else lists models speaks OpenAI's protocol.
async fn detect(transport: &Transport) -> Result<Kind, Error> {
    for path in ["/get_model_info", "/model_info"] {
        match remote::ask_if_known(transport, path, wire::sglang::model_info).await {
            Err(error @ (Error::Unreachable { .. } | Error::Unavailable { .. })) => return Err(error),
            Ok(Some(_)) => return Ok(Kind::Sglang),
            Ok(None) | Err(_) => {}
        }
    }
    if let Ok(Some(_)) = remote::ask_if_known(transport, "/version", wire::vllm::version).await {
        return Ok(Kind::Vllm);
    }
    match remote::ask(transport, "/v1/models", wire::openai::models).await {
        Ok(_) => Ok(Kind::OpenAi),
        // A server that is not well, or wants another key, is no unknown one.
        Err(error) if error.may_pass() || error.is_denied() => Err(error),
        Err(error) => Err(Error::Invalid {
            what: format!("what {} is cannot be found out: {error}", transport.server()),
            help: "say it with --kind vllm, sglang, openai or anthropic".to_owned(),
        }),
    }
}
