//! vLLM: ids in, ids and logprobs out, prompts scored by `prompt_logprobs`.
//!
//! Owns what is asked of a vLLM server. Scoring recomputes the whole prompt whatever is cached, so
//! only the tokens up to the last needed one are sent; K beyond the server's `--max-logprobs` is
//! capped, with a notice. Deliberately absent: the formats, which are in `wire::vllm`.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::openai::{self, Dialect};
use super::remote::{self, Kind, OpenOptions, ServerInfo};
use super::sampled::{self, Reported};
use super::transport::{Answer, Body, Call, LOOK_UP, Method, Transport};
use super::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored, check_ids,
    check_length, check_prompt,
};
use crate::wire::Drawn;
use crate::wire::vllm::{self as wire, CompletionRequest, LogprobLimit};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::TopK;

/// What an answer may have beside its candidates, and for each of them: a number, a rank and a text.
const MAX_ANSWER: (usize, usize) = (1 << 20, 256);
/// More candidates than any vocabulary has tokens.
const BEYOND_ANY: i64 = 1 << 30;

/// A model behind a vLLM server.
pub struct Vllm {
    transport: Transport,
    info: ServerInfo,
    limits: Limits,
    options: OpenOptions,
    /// The largest K the server accepts, as far as it is known; `usize::MAX` when there is no limit.
    max_top_k: AtomicUsize,
    reported: OnceCell<Reported>,
}

impl Vllm {
    /// Asks the server what it is, and takes one of its models.
    pub async fn open(transport: Transport, options: OpenOptions) -> Result<Self, Error> {
        let brief = transport.briefly();
        let version = remote::ask_if_known(&brief, "/version", wire::version).await?;
        let listed = remote::listed(&brief).await?;
        let model = remote::choose(&transport.server(), &listed, options.model.as_deref())?;
        let limit = ask_limit(&brief, &model.id).await?;
        let limits = Limits {
            context_length: model.context_length,
            vocab_size: options.vocab_size.or(limit.and_then(|limit| limit.vocab_size)),
            max_top_k: limit.map(|limit| limit.allowed),
            token_ids: true,
            scores: true,
            start_index: false,
            cached_scores: false,
            batches: false,
        };
        let info = ServerInfo {
            kind: Kind::Vllm,
            version,
            model: model.id,
            models: listed.into_iter().map(|it| it.id).collect(),
            model_path: model.root.clone(),
            tokenizer_path: model.root,
            weight_version: None,
        };
        Ok(Self::new(transport, info, limits, options))
    }

    /// With the vocabulary's size, where the server did not tell it; ids at or above it are never sent.
    pub fn with_vocab_size(mut self, vocab_size: usize) -> Self {
        self.limits.vocab_size.get_or_insert(vocab_size);
        self
    }

    /// A client that asks nothing beforehand.
    pub fn new(transport: Transport, info: ServerInfo, limits: Limits, options: OpenOptions) -> Self {
        let max_top_k = AtomicUsize::new(limits.max_top_k.unwrap_or(usize::MAX));
        Self { transport, info, limits, options, max_top_k, reported: OnceCell::new() }
    }

    /// What the server said about itself.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// K within the server's limit.
    fn capped(&self, top_k: usize) -> usize {
        let limit = self.max_top_k.load(Relaxed);
        if top_k > limit {
            self.options.notices.add(format!(
                "{} gives at most {limit} candidates per position, {top_k} were asked for; \
                 start it with --max-logprobs {top_k} to get them",
                self.transport.server()
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
        let request = CompletionRequest::score(&self.info.model, prompt, top_k as i64);
        let call = Call {
            method: Method::POST,
            path: "/v1/completions",
            body: Body::Named(&|id| named(&request, id)),
            tokens: n_sent as u64 + 1,
            // Scoring reads no cache, so the work is spread over all endpoints.
            sticky: remote::hashed(prompt),
            max_answer: max_answer(n_sent, top_k),
            timeout: None,
        };
        let decode = |answer: &Answer<'_>| {
            let scores = wire::scores(answer.body, job, n_sent, top_k)?;
            answer.attempt.check(scores.id.as_deref()).map(|()| scores)
        };
        let scores = self.transport.call(&call, &decode).await?;
        let usage = remote::usage(scores.counts, n_sent);
        Ok(Scored { spans: scores.spans, version: scores.version, usage })
    }

    async fn draw(&self, request: &GenerateRequest, top_k: usize) -> Result<Drawn, Error> {
        let (n_sent, max_tokens) = (request.prompt.len(), request.sampling.max_tokens);
        let body = completion(&self.info.model, request, top_k);
        let call = Call {
            method: Method::POST,
            path: "/v1/completions",
            body: Body::Named(&|id| named(&body, id)),
            tokens: (n_sent + max_tokens) as u64,
            sticky: remote::sticky_episode(&request.place),
            max_answer: max_answer(n_sent + max_tokens, top_k),
            timeout: None,
        };
        let decode = |answer: &Answer<'_>| {
            let drawn = wire::drawn(answer.body, &request.prompt, top_k)?;
            answer.attempt.check(drawn.id.as_deref()).map(|()| drawn)
        };
        self.transport.call(&call, &decode).await
    }

    /// Whether the logprobs of what is sampled are the model's own.
    async fn own_logprobs(&self, request: &GenerateRequest) -> Result<bool, Error> {
        let server = self.transport.server();
        if request.sampling.constraint.is_some() {
            self.options.notices.add(sampled::constrained(&server));
            return Ok(false);
        }
        if sampled::is_neutral(request.sampling.temperature) {
            return Ok(true);
        }
        let reported = self.reported.get_or_try_init(|| self.probe_temperature(request)).await?;
        if *reported == Reported::Other {
            let help = "start it with --logprobs-mode raw_logprobs";
            self.options.notices.add(sampled::scaled(&server, help));
        }
        Ok(*reported == Reported::Own)
    }

    async fn probe_temperature(&self, request: &GenerateRequest) -> Result<Reported, Error> {
        let id = request.prompt.first().copied().unwrap_or_default();
        let mut rows = [TopK::default(), TopK::default()];
        for (row, temperature) in rows.iter_mut().zip(sampled::PROBE_TEMPERATURES) {
            let probe = sampled::probe_request(id, temperature);
            let drawn = self.within_limit(sampled::PROBE_TOP_K, |top_k| self.draw(&probe, top_k)).await?;
            *row = drawn.top.into_iter().next().unwrap_or_default();
        }
        Ok(sampled::judge(&rows[0], &rows[1]))
    }
}

#[async_trait]
impl Model for Vllm {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        check_prompt(&request.prompt)?;
        check_ids(&request.prompt, self.limits.vocab_size)?;
        check_length(request.prompt.len(), self.limits.context_length)?;
        let own = self.own_logprobs(request).await?;
        let drawn = self.within_limit(request.top_k, |top_k| self.draw(request, top_k)).await?;
        Ok(remote::generated(drawn, request.prompt.len(), own))
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        if job.first_needed().is_none() {
            return remote::nothing_to_score(job);
        }
        let sent = &job.tokens()[..job.end_needed()];
        check_ids(sent, self.limits.vocab_size)?;
        check_length(sent.len(), self.limits.context_length)?;
        self.within_limit(job.top_k(), |top_k| self.score_with(job, top_k)).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        openai::chat(&self.transport, &self.info.model, Dialect::Vllm, request).await
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn top_k_limit(&self) -> Option<usize> {
        Some(self.max_top_k.load(Relaxed)).filter(|limit| *limit < usize::MAX)
    }
}

fn max_answer(n_tokens: usize, top_k: usize) -> usize {
    let per_token = MAX_ANSWER.1.saturating_mul(top_k + 2);
    MAX_ANSWER.0.saturating_add(per_token.saturating_mul(n_tokens))
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

/// What the server's refusal of too large a K tells.
#[derive(Clone, Copy)]
struct Told {
    allowed: usize,
    vocab_size: Option<usize>,
}

/// The largest K, by asking for too much: "all" is read as the size of the vocabulary, which the
/// refusal then names too. Nothing is computed for a request that is refused, and next to nothing
/// for one that is not.
async fn ask_limit(transport: &Transport, model: &str) -> Result<Option<Told>, Error> {
    for top_k in [-1, BEYOND_ANY] {
        match refusal(transport, model, top_k).await? {
            Refusal::None => return Ok(None),
            Refusal::Limit(LogprobLimit { asked, allowed }) => {
                return Ok(Some(Told { allowed, vocab_size: (top_k == -1).then_some(asked) }));
            }
            Refusal::Other(error) if top_k == BEYOND_ANY => return Err(error),
            Refusal::Other(_) => {}
        }
    }
    Ok(None)
}

enum Refusal {
    None,
    Limit(LogprobLimit),
    Other(Error),
}

async fn refusal(transport: &Transport, model: &str, top_k: i64) -> Result<Refusal, Error> {
    let request = CompletionRequest::score(model, &[0], top_k);
    let call = Call {
        method: Method::POST,
        path: "/v1/completions",
        body: Body::Same(remote::body(&request)?),
        tokens: 2,
        sticky: 0,
        max_answer: MAX_ANSWER.0,
        timeout: Some(LOOK_UP),
    };
    match transport.call(&call, &|_: &Answer<'_>| Ok(())).await {
        Ok(()) => Ok(Refusal::None),
        Err(Error::Refused { server, status, message }) => match wire::logprob_limit(&message) {
            Some(limit) => Ok(Refusal::Limit(limit)),
            None => Ok(Refusal::Other(Error::Refused { server, status, message })),
        },
        Err(error) => Err(error),
    }
}
