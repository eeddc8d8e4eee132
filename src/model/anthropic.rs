//! Anthropic's Messages API: for judges, and for collecting without ids.
//!
//! Owns what is asked of Anthropic's servers. They cannot score and take no ids, seeds or
//! constraints, and thinking of earlier turns cannot be sent back; the first two are refused, the
//! last is left out with a notice. Deliberately absent: the formats, which are in `wire::anthropic`.

use std::sync::Arc;

use async_trait::async_trait;

use super::kind::{Client, Kind, Remote, ServerInfo};
use super::openai::{post_chat, unsupported};
use super::remote;
use super::transport::{Auth, Transport};
use super::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored};
use crate::wire::anthropic::{self as wire, MessagesRequest};
use crate::wire::openai;
use backsight_core::score::ScoreJob;

/// The API version whose formats we speak.
const API_VERSION: &str = "2023-06-01";

/// Anthropic's servers.
pub static ANTHROPIC: Kind = Kind {
    name: "anthropic",
    about: "Anthropic's Messages API",
    auth: |key| Auth { header: "x-api-key", prefix: "", key },
    headers: &[("anthropic-version", API_VERSION)],
    client: Some(Client {
        ask: |transport, model| Box::pin(ask(transport, model)),
        make: |it| Arc::new(Anthropic::new(it)),
    }),
    ..Kind::PLAIN
};

/// An alias is listed nowhere, so the server is asked whether it knows it.
async fn ask(transport: &Transport, model: Option<&str>) -> Result<(ServerInfo, Limits), Error> {
    let listed = remote::ask_if_known(transport, "/v1/models?limit=1000", openai::models).await?;
    let mut listed = listed.unwrap_or_default();
    let name = model.map(wire::model_name);
    if let Some(name) = name.as_ref().filter(|name| listed.iter().all(|it| it.id != **name)) {
        let known = remote::ask_if_known(transport, &format!("/v1/models/{name}"), wire::model_id).await?;
        listed.extend(known.map(|_| openai::Listed { id: name.clone(), ..Default::default() }));
    }
    let model = remote::choose(&transport.server(), &listed, name.as_deref())?;
    let version = Some(API_VERSION.to_owned());
    Ok((ServerInfo { version, ..ServerInfo::listed(&ANTHROPIC, &model, listed) }, ANTHROPIC.limits.clone()))
}

/// A model of Anthropic's.
pub struct Anthropic {
    /// The server.
    pub remote: Remote,
}

impl Anthropic {
    /// A client that asks nothing beforehand.
    pub fn new(remote: Remote) -> Self {
        Self { remote }
    }

    fn messages_request(&self, request: &ChatRequest) -> Result<MessagesRequest<'_>, Error> {
        let sampling = &request.sampling;
        if sampling.constraint.is_some() {
            return Err(unsupported(&self.remote.transport, "force an answer into a shape"));
        }
        if !(0.0..=1.0).contains(&sampling.temperature) {
            let what =
                format!("temperature {} is outside 0 to 1, which Anthropic takes", sampling.temperature);
            return Err(Error::invalid(what, "choose one of at most 1"));
        }
        if request.messages.iter().any(|message| message.reasoning.is_some()) {
            self.remote.notices.add("thinking of earlier turns cannot be sent to Anthropic; it is left out");
        }
        let invalid = |what: String| Error::invalid(what, "change the conversation");
        let conversation = wire::conversation(&request.messages).map_err(invalid)?;
        let tools = request.tools.iter().map(wire::tool).collect::<Result<_, _>>().map_err(invalid)?;
        Ok(MessagesRequest {
            model: &self.remote.info.model,
            max_tokens: sampling.max_tokens,
            system: conversation.system,
            messages: conversation.messages,
            tools,
            temperature: (sampling.temperature < 1.0).then_some(sampling.temperature),
            top_p: (sampling.top_p < 1.0).then_some(sampling.top_p),
            top_k: sampling.top_k,
        })
    }
}

#[async_trait]
impl Model for Anthropic {
    async fn generate(&self, _request: &GenerateRequest) -> Result<Generated, Error> {
        Err(unsupported(&self.remote.transport, "take token ids"))
    }

    async fn score(&self, _job: &ScoreJob) -> Result<Scored, Error> {
        Err(unsupported(&self.remote.transport, "score a prompt"))
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let body = self.messages_request(request)?;
        post_chat(
            &self.remote.transport,
            "/v1/messages",
            &body,
            std::slice::from_ref(request),
            wire::answered,
        )
        .await
    }

    fn limits(&self) -> &Limits {
        &self.remote.limits
    }
}
