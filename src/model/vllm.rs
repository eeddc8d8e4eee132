//! vLLM: ids in, ids and logprobs out, prompts scored by `prompt_logprobs`.
//!
//! Owns what is asked of a vLLM server. Scoring recomputes the whole prompt whatever is cached, so
//! only the tokens up to the last needed one are sent; K beyond the server's `--max-logprobs` is
//! capped, with a notice. Deliberately absent: the formats, which are in `wire::vllm`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;

use super::endpoint::hashed;
use super::kind::{Client, Kind, Remote, ServerInfo};
use super::openai::{self, Dialect};
use super::remote::{self, Size};
use super::sampled::Sampled;
use super::transport::{Answer, LOOK_UP, Outgoing, Transport};
use super::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored, check_chosen,
};
use crate::wire::vllm::{self as wire, CompletionRequest, LogprobLimit};
use backsight_core::score::ScoreJob;

/// Where prompts are scored and continued.
const ROUTE: &str = "/v1/completions";
/// More candidates than any vocabulary has tokens.
const BEYOND_ANY: i64 = 1 << 30;

/// A vLLM server.
pub static VLLM: Kind = Kind {
    name: "vllm",
    about: "vLLM",
    signs: &[("/version", |body| wire::version(body).map(drop))],
    limits: Limits { token_ids: true, scores: true, ..Limits::CHAT },
    tokenizes: true,
    client: Some(Client {
        ask: |transport, model| Box::pin(ask(transport, model)),
        make: |it| Arc::new(Vllm::new(it)),
    }),
    ..Kind::PLAIN
};

async fn ask(transport: &Transport, model: Option<&str>) -> Result<(ServerInfo, Limits), Error> {
    let version = remote::ask_if_known(transport, "/version", wire::version).await?;
    let listed = remote::listed(transport).await?;
    let model = remote::choose(&transport.server(), &listed, model)?;
    let (max_top_k, vocab_size) = ask_limit(transport, &model.id).await?;
    let limits =
        Limits { context_length: model.context_length(), vocab_size, max_top_k, ..VLLM.limits.clone() };
    let tokenizer_path = model.root.clone();
    Ok((ServerInfo { version, tokenizer_path, ..ServerInfo::listed(&VLLM, &model, listed) }, limits))
}

/// A model behind a vLLM server.
pub struct Vllm {
    /// The server.
    pub remote: Remote,
    /// The largest K the server accepts, as far as it is known; `usize::MAX` when there is no limit.
    max_top_k: AtomicUsize,
    sampled: Sampled,
}

impl Vllm {
    /// A client that asks nothing beforehand.
    pub fn new(remote: Remote) -> Self {
        let max_top_k = AtomicUsize::new(remote.limits.max_top_k.unwrap_or(usize::MAX));
        Self { remote, max_top_k, sampled: Sampled::default() }
    }

    /// K within the server's limit.
    fn capped(&self, top_k: usize) -> usize {
        let limit = self.max_top_k.load(Relaxed);
        if top_k > limit {
            self.remote.notices.add(format!(
                "{} gives at most {limit} candidates per position, {top_k} were asked for; \
                 start it with --max-logprobs {top_k} to get them",
                self.remote.transport.server()
            ));
        }
        top_k.min(limit)
    }

    /// Asks with K within the limit, and again with less as long as that turns out to be too much.
    async fn within_limit<T, F>(
        &self,
        top_k: usize,
        ask: impl Fn(usize) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        loop {
            let sent = self.capped(top_k);
            match ask(sent).await {
                Err(error) if self.learn_limit(&error) && self.max_top_k.load(Relaxed) < sent => {}
                other => return other,
            }
        }
    }

    /// Whether a call failed because K was too large; from now on the limit is known.
    fn learn_limit(&self, error: &Error) -> bool {
        let Error::Refused { message, .. } = error else { return false };
        let Some(limit) = wire::logprob_limit(message) else { return false };
        self.max_top_k.fetch_min(limit.allowed, Relaxed);
        true
    }

    async fn score_with(&self, job: &ScoreJob, top_k: usize) -> Result<Scored, Error> {
        let n_sent = job.end_needed();
        let prompt = &job.tokens()[..n_sent];
        let request = CompletionRequest::score(&self.remote.info.model, prompt, top_k as i64);
        let write = |id: &str| named(&request, id);
        // Scoring reads no cache, so the work is spread over all endpoints.
        let size = Size { tokens: n_sent + 1, top_k, sticky: hashed(prompt) };
        let decode = |answer: &Answer<'_>| answer.attempt.own(wire::scores(answer.body, job, n_sent, top_k)?);
        self.remote.transport.call(&size.call(ROUTE, &write), &decode).await
    }

    async fn draw(&self, request: &GenerateRequest, top_k: usize) -> Result<Generated, Error> {
        let body = completion(&self.remote.info.model, request, top_k);
        let write = |id: &str| named(&body, id);
        let tokens = request.prompt.len() + request.sampling.max_tokens;
        let size = Size { tokens, top_k, sticky: remote::sticky_episode(&request.place) };
        let decode =
            |answer: &Answer<'_>| answer.attempt.own(wire::drawn(answer.body, &request.prompt, top_k)?);
        self.remote.transport.call(&size.call(ROUTE, &write), &decode).await
    }
}

#[async_trait]
impl Model for Vllm {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let draw = async |request: GenerateRequest| {
            self.within_limit(request.top_k, |top_k| self.draw(&request, top_k)).await
        };
        self.sampled.draw(request, &self.remote, "start it with --logprobs-mode raw_logprobs", draw).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        if job.first_needed().is_none() {
            return remote::nothing_to_score(job);
        }
        self.remote.check(&job.tokens()[..job.end_needed()])?;
        check_chosen(job, &self.remote.limits)?;
        self.within_limit(job.top_k(), |top_k| self.score_with(job, top_k)).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        openai::only(openai::chat(&self.remote, Dialect::Vllm, std::slice::from_ref(request), &[]).await)
    }

    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        openai::chat_many(requests, |draws| openai::chat(&self.remote, Dialect::Vllm, draws, &[])).await
    }

    fn limits(&self) -> &Limits {
        &self.remote.limits
    }

    fn top_k_limit(&self) -> Option<usize> {
        Some(self.max_top_k.load(Relaxed)).filter(|limit| *limit < usize::MAX)
    }
}

/// The request under its id.
fn named(request: &CompletionRequest<'_>, id: &str) -> Result<Vec<u8>, Error> {
    remote::body(&CompletionRequest { request_id: Some(id), ..request.clone() })
}

fn completion<'a>(model: &'a str, request: &'a GenerateRequest, top_k: usize) -> CompletionRequest<'a> {
    let sampling = &request.sampling;
    CompletionRequest {
        max_tokens: sampling.max_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k.unwrap_or(0),
        seed: sampling.seed.map(remote::signed),
        stop_token_ids: &request.stop_ids,
        logprobs: Some(top_k),
        prompt_logprobs: None,
        return_tokens_as_token_ids: true,
        structured_outputs: sampling.constraint.as_ref().map(openai::structured_outputs),
        ..CompletionRequest::score(model, &request.prompt, 0)
    }
}

/// The largest K and the size of the vocabulary, by asking for too much: "all" is read as the size of the vocabulary,
/// which the refusal then names too. Nothing is computed for a request that is refused, and next to nothing for one that
/// is not.
async fn ask_limit(transport: &Transport, model: &str) -> Result<(Option<usize>, Option<usize>), Error> {
    let all = too_much(transport, model, -1).await;
    let (limit, is_all) = match all {
        Err(Error::Refused { .. }) => (too_much(transport, model, BEYOND_ANY).await?, false),
        other => (other?, true),
    };
    Ok(limit.map_or((None, None), |it| (Some(it.allowed), is_all.then_some(it.asked))))
}

/// The limit that a refusal of so many candidates names; none where they are not refused.
async fn too_much(transport: &Transport, model: &str, top_k: i64) -> Result<Option<LogprobLimit>, Error> {
    let request = CompletionRequest::score(model, &[0], top_k);
    let write = |_: &str| remote::body(&request);
    let call = Outgoing { tokens: 2, timeout: Some(LOOK_UP), ..Outgoing::post(ROUTE, &write) };
    match transport.call(&call, &|_: &Answer<'_>| Ok(())).await {
        Err(Error::Refused { server, status, message }) => match wire::logprob_limit(&message) {
            None => Err(Error::Refused { server, status, message }),
            limit => Ok(limit),
        },
        other => other.map(|()| None),
    }
}
