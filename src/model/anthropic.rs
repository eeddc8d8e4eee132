//! Anthropic's Messages API: for judges, and for collecting without ids.
//!
//! Owns what is asked of Anthropic's servers. They cannot score and take no ids, seeds or
//! constraints, and thinking of earlier turns cannot be sent back; the first two are refused, the
//! last is left out with a notice. Deliberately absent: the formats, which are in `wire::anthropic`,
//! and the `x-api-key` and `anthropic-version` headers, which are the transport's.

use async_trait::async_trait;

use super::openai::{chat_answer, chat_tokens, unsupported};
use super::remote::{self, Kind, OpenOptions, ServerInfo};
use super::transport::{Answer, Body, Call, Method, Transport};
use super::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored};
use crate::wire::anthropic::{self as wire, MessagesRequest};
use crate::wire::openai;
use backsight_core::score::ScoreJob;

/// The API version whose formats we speak; sent as the header `anthropic-version`.
pub const API_VERSION: &str = "2023-06-01";

/// A model of Anthropic's.
pub struct Anthropic {
    transport: Transport,
    info: ServerInfo,
    limits: Limits,
    options: OpenOptions,
}

impl Anthropic {
    /// Asks which models there are, and takes the named one. An alias is listed nowhere, so the
    /// server is asked whether it knows it.
    pub async fn open(transport: Transport, options: OpenOptions) -> Result<Self, Error> {
        let brief = transport.briefly();
        let listed = remote::ask_if_known(&brief, "/v1/models?limit=1000", openai::models).await?;
        let mut listed = listed.unwrap_or_default();
        let name = options.model.as_deref().map(wire::model_name);
        if let Some(name) = name.as_ref().filter(|name| listed.iter().all(|it| it.id != **name)) {
            let path = format!("/v1/models/{name}");
            let known = remote::ask_if_known(&brief, &path, wire::model_id).await?;
            listed.extend(known.map(|_| openai::Listed { id: name.clone(), ..Default::default() }));
        }
        let model = remote::choose(&transport.server(), &listed, name.as_deref())?;
        let info = ServerInfo {
            kind: Kind::Anthropic,
            version: Some(API_VERSION.to_owned()),
            model: model.id,
            models: listed.into_iter().map(|it| it.id).collect(),
            model_path: None,
            tokenizer_path: None,
            weight_version: None,
        };
        Ok(Self::new(transport, info, Limits::default(), options))
    }

    /// A client that asks nothing beforehand.
    pub fn new(transport: Transport, info: ServerInfo, limits: Limits, options: OpenOptions) -> Self {
        Self { transport, info, limits, options }
    }

    /// What the server said about itself.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    fn messages_request(&self, request: &ChatRequest) -> Result<MessagesRequest<'_>, Error> {
        let sampling = &request.sampling;
        if sampling.constraint.is_some() {
            return Err(unsupported(&self.transport, "force an answer into a shape"));
        }
        if !(0.0..=1.0).contains(&sampling.temperature) {
            let what =
                format!("temperature {} is outside 0 to 1, which Anthropic takes", sampling.temperature);
            return Err(Error::Invalid { what, help: "choose one of at most 1".to_owned() });
        }
        if request.messages.iter().any(|message| message.reasoning.is_some()) {
            self.options.notices.add("thinking of earlier turns cannot be sent to Anthropic; it is left out");
        }
        let invalid = |what| Error::Invalid { what, help: "change the conversation".to_owned() };
        let conversation = wire::conversation(&request.messages).map_err(invalid)?;
        let tools = request.tools.iter().map(wire::tool).collect::<Result<_, _>>().map_err(invalid)?;
        Ok(MessagesRequest {
            model: &self.info.model,
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
        Err(unsupported(&self.transport, "take token ids"))
    }

    async fn score(&self, _job: &ScoreJob) -> Result<Scored, Error> {
        Err(unsupported(&self.transport, "score a prompt"))
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let call = Call {
            method: Method::POST,
            path: "/v1/messages",
            body: Body::Same(remote::body(&self.messages_request(request)?)?),
            tokens: chat_tokens(request),
            sticky: remote::sticky_step(&request.place),
            max_answer: remote::max_chat_answer(request.sampling.max_tokens),
            timeout: None,
        };
        let decode = |answer: &Answer<'_>| wire::answered(answer.body);
        Ok(chat_answer(self.transport.call(&call, &decode).await?))
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}
