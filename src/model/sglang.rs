//! SGLang: ids in, ids and logprobs out, prompts scored from a start index over a warm cache.
//!
//! Owns what is asked of an SGLang server over its own route. An id outside the vocabulary kills
//! such a server, so nothing is sent while the size of the vocabulary is unknown. Scoring starts one
//! token before the first needed one, whose value the server leaves out, and costs only what lies
//! behind that start when the beginning is cached. Deliberately absent: the formats, which are in
//! `wire::sglang`.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::echo;
use super::kind::{Client, Kind, Remote, ServerInfo};
use super::openai::{self, Dialect};
use super::remote::{self, Size};
use super::sampled::Sampled;
use super::transport::{Answer, Decode, Transport};
use super::{
    ChatAnswer, ChatRequest, Constraint, Error, GenerateRequest, Generated, Limits, Model, Scored,
    check_chosen, check_ids, check_top_k,
};
use crate::wire::OneOrMany;
use crate::wire::sglang::{self as wire, SamplingParams, Window};
use backsight_core::model::LEAST_SHARE;
use backsight_core::score::ScoreJob;

/// An SGLang server. It accepts any name, so a name is checked against what it lists.
pub static SGLANG: Kind = Kind {
    name: "sglang",
    about: "SGLang",
    signs: &[
        ("/get_model_info", |body| wire::model_info(body).map(drop)),
        ("/model_info", |body| wire::model_info(body).map(drop)),
    ],
    limits: Limits {
        token_ids: true,
        scores: true,
        start_index: true,
        cached_scores: true,
        least_share: LEAST_SHARE,
        chosen: true,
        batches: true,
        ..Limits::CHAT
    },
    needs_vocab: true,
    tokenizes: true,
    client: Some(Client {
        ask: |transport, model| Box::pin(ask(transport, model)),
        make: |it| Arc::new(Sglang::new(it)),
    }),
    ..Kind::PLAIN
};

async fn ask(transport: &Transport, model: Option<&str>) -> Result<(ServerInfo, Limits), Error> {
    let told = told(transport).await?;
    let listed = remote::listed(transport).await?;
    let model = remote::choose(&transport.server(), &listed, model)?;
    let limits = Limits {
        context_length: model.context_length().or(told.context_length),
        cached_scores: told.disable_radix_cache != Some(true),
        ..SGLANG.limits.clone()
    };
    let info = ServerInfo {
        version: told.version,
        model_path: told.model_path,
        tokenizer_path: told.tokenizer_path,
        weight_version: told.weight_version,
        ..ServerInfo::listed(&SGLANG, &model, listed)
    };
    Ok((info, limits))
}

/// A model behind an SGLang server.
pub struct Sglang {
    /// The server.
    pub remote: Remote,
    sampled: Sampled,
}

impl Sglang {
    /// A client that asks nothing beforehand.
    pub fn new(remote: Remote) -> Self {
        Self { remote, sampled: Sampled::default() }
    }

    /// What is to be sent for a job; nothing when none of its positions has a context.
    fn window(&self, job: &ScoreJob) -> Result<Option<Window>, Error> {
        let Some(window) = Window::of(job) else { return Ok(None) };
        self.remote.check(&job.tokens()[..window.end])?;
        check_top_k(job.top_k(), self.remote.limits.vocab_size)?;
        check_chosen(job, &self.remote.limits)?;
        Ok(Some(window))
    }

    async fn post<T>(
        &self,
        transport: &Transport,
        request: &wire::GenerateRequest<'_>,
        size: Size,
        decode: &Decode<'_, T>,
    ) -> Result<T, Error> {
        let write = |id: &str| named(request, id);
        transport.call(&size.call("/generate", &write), decode).await
    }

    async fn score_window(&self, job: &ScoreJob, window: Window) -> Result<Scored, Error> {
        let request = wire::score_request(job, window);
        let decode = |answer: &Answer<'_>| answer.attempt.own(wire::scores(answer.body, job, window)?);
        self.post(&self.remote.transport, &request, size(&[(job, window)]), &decode).await
    }

    /// One request for several jobs: the scores of those whose part of the answer is usable as it stands.
    async fn score_batch(&self, jobs: &[&ScoreJob]) -> Vec<Option<Scored>> {
        let sent: Vec<_> = jobs.iter().filter_map(|job| Some((*job, Window::of(job)?))).collect();
        let decode = |answer: &Answer<'_>| {
            let all = wire::batch_scores(answer.body, &sent)?.into_iter().enumerate();
            Ok(all.map(|(idx, scores)| answer.attempt.own_prompt(idx, scores?)).collect::<Vec<_>>())
        };
        let transport = self.remote.transport.only_when_busy();
        let all = self.post(&transport, &wire::batch_request(&sent), size(&sent), &decode).await;
        all.map_or_else(|_| Vec::new(), |all| all.into_iter().map(Result::ok).collect())
    }

    async fn draw(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let (n_sent, max_tokens) = (request.prompt.len(), self.room(request));
        let params = sampling_params(request, max_tokens);
        let body = wire::GenerateRequest::new(&request.prompt, params, request.top_k);
        let size = Size {
            tokens: n_sent + max_tokens,
            top_k: request.top_k,
            sticky: remote::sticky_episode(&request.place),
        };
        let decode =
            |answer: &Answer<'_>| answer.attempt.own(wire::drawn(answer.body, n_sent, request.top_k)?);
        self.post(&self.remote.transport, &body, size, &decode).await
    }

    /// How many tokens may be sampled: SGLang refuses a limit beyond the context instead of clipping it.
    fn room(&self, request: &GenerateRequest) -> usize {
        let left =
            self.remote.limits.context_length.map(|length| length.saturating_sub(request.prompt.len()));
        left.map_or(request.sampling.max_tokens, |left| left.min(request.sampling.max_tokens))
    }
}

#[async_trait]
impl Model for Sglang {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        check_ids(&request.stop_ids, self.remote.limits.vocab_size)?;
        let help = "start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1";
        let draw = async |request: GenerateRequest| self.draw(&request).await;
        self.sampled.draw(request, &self.remote, help, draw).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        let Some(window) = self.window(job)? else { return remote::nothing_to_score(job) };
        self.score_window(job, window).await
    }

    /// One request for each endpoint that knows the beginnings of some of the jobs. Whatever goes wrong with it, but for
    /// a busy server, may be one job's fault: then each that has no scores yet is asked for alone.
    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let mut groups: BTreeMap<Result<(usize, bool), usize>, (Vec<usize>, Vec<&ScoreJob>)> =
            BTreeMap::new();
        for (idx, job) in jobs.iter().enumerate() {
            let home = || self.remote.transport.home(remote::sticky_prompt(job.tokens()));
            let chooses = !job.all_chosen().is_empty();
            // What cannot be sent is in nobody's way.
            let group = self.window(job).ok().flatten().map(|_| (home(), chooses)).ok_or(idx);
            let (places, together) = groups.entry(group).or_default();
            places.push(idx);
            together.push(job);
        }
        let scored = groups.into_values().map(|(places, together)| async move {
            let batch = if together.len() > 1 { self.score_batch(&together).await } else { Vec::new() };
            let found = batch.into_iter().chain(std::iter::repeat(None));
            let all = together.into_iter().zip(found).map(|(job, found)| async move {
                match found {
                    Some(scored) => Ok(scored),
                    None => self.score(job).await,
                }
            });
            places.into_iter().zip(join_all(all).await).collect::<Vec<_>>()
        });
        let scored: BTreeMap<usize, _> = join_all(scored).await.into_iter().flatten().collect();
        scored.into_values().collect()
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        openai::only(openai::chat(&self.remote, Dialect::Sglang, std::slice::from_ref(request), &[]).await)
    }

    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        openai::chat_many(requests, |draws| openai::chat(&self.remote, Dialect::Sglang, draws, &[])).await
    }

    fn limits(&self) -> &Limits {
        &self.remote.limits
    }
}

/// The request, each of its prompts under an id of its own.
fn named(request: &wire::GenerateRequest<'_>, id: &str) -> Result<Vec<u8>, Error> {
    let rid = match &request.input_ids {
        Some(OneOrMany::Many(all)) => {
            OneOrMany::Many((0..all.len()).map(|idx| echo::of_prompt(id, idx)).collect())
        }
        _ => OneOrMany::One(id.to_owned()),
    };
    remote::body(&wire::GenerateRequest { rid: Some(rid), ..request.clone() })
}

fn size(sent: &[(&ScoreJob, Window)]) -> Size {
    // Every position is told with all that is chosen anywhere.
    let top_k = sent.iter().map(|(job, _)| job.top_k() + job.all_chosen().len()).max().unwrap_or(0);
    let tokens = sent.iter().map(|(_, window)| window.end).sum();
    let sticky = sent.first().map_or(0, |(job, _)| remote::sticky_prompt(job.tokens()));
    Size { tokens, top_k, sticky }
}

fn sampling_params(request: &GenerateRequest, max_new_tokens: usize) -> SamplingParams {
    let sampling = &request.sampling;
    let (json_schema, regex) = match &sampling.constraint {
        None => (None, None),
        Some(Constraint::JsonSchema(schema)) => (Some(schema.to_string()), None),
        Some(Constraint::Regex(regex)) => (None, Some(regex.clone())),
    };
    SamplingParams {
        max_new_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k.map_or(-1, |top_k| top_k as i64),
        sampling_seed: sampling.seed.map(remote::signed),
        stop_token_ids: request.stop_ids.clone(),
        json_schema,
        regex,
        ..SamplingParams::none()
    }
}

/// What both information routes tell, under their old and their new names.
async fn told(transport: &Transport) -> Result<wire::Info, Error> {
    let mut told = wire::Info::default();
    for paths in [["/get_model_info", "/model_info"], ["/get_server_info", "/server_info"]] {
        for path in paths {
            if let Some(info) = remote::ask_if_known(transport, path, wire::info).await? {
                told = told.or(info);
                break;
            }
        }
    }
    Ok(told)
}
