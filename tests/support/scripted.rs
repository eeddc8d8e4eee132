//! A model without weights: deterministic, instant, and as strict as a real one.
//!
//! Owns a distribution over a small vocabulary that is a pure function of the token prefix, so that
//! scores, candidates and samples agree with each other as they do in a real model: what it samples
//! it also scores the same, and probabilities add up to one. What it says can be scripted by request,
//! failures can be injected, and calls are counted. Deliberately
//! absent: nucleus and top-k sampling; only the temperature is applied.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;

use backsight::model::{
    ChatAnswer, ChatRequest, Error, Finish, GenerateRequest, Generated, Limits, Model, Place, SampledToken,
    Sampling, Scored, Usage, check_ids, check_length, check_prompt,
};
use backsight_core::episode::{Content, Message, Role};
use backsight_core::needed::{Candidate, Needed, absent, token_score};
use backsight_core::score::{Absence, ScoreJob, TokenScore};
use backsight_core::tokens::TokenId;

/// How much likelier the likeliest token may be than the unlikeliest, as a difference of logprobs.
const SPREAD: f64 = 9.0;

/// What was asked of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked<'a> {
    /// A continuation.
    Generate(&'a GenerateRequest),
    /// Scores.
    Score(&'a ScoreJob),
    /// An answer to a conversation.
    Chat(&'a ChatRequest),
}

/// How often a model was asked what, failures included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Continuations.
    pub generate: u64,
    /// Scores.
    pub score: u64,
    /// Conversations.
    pub chat: u64,
    /// Tokens that were sent, of calls that succeeded.
    pub prompt_tokens: u64,
}

type GenerateScript = Box<dyn Fn(&GenerateRequest) -> Option<Vec<TokenId>> + Send + Sync>;
type ChatScript = Box<dyn Fn(&ChatRequest) -> Option<Message> + Send + Sync>;
type FailureScript = Box<dyn Fn(Asked<'_>, u64) -> Option<Error> + Send + Sync>;

/// A model that follows a script.
pub struct Scripted {
    seed: u64,
    vocab_size: usize,
    limits: Limits,
    generates: GenerateScript,
    chats: ChatScript,
    fails: FailureScript,
    n_asked: AtomicU64,
    n_generate: AtomicU64,
    n_score: AtomicU64,
    n_chat: AtomicU64,
    n_prompt_tokens: AtomicU64,
}

impl Scripted {
    /// A model with that many tokens and no script: it samples from its own distribution.
    pub fn new(vocab_size: usize) -> Self {
        let vocab_size = vocab_size.max(1);
        let limits = Limits {
            vocab_size: Some(vocab_size),
            token_ids: true,
            scores: true,
            start_index: true,
            ..Limits::default()
        };
        Self {
            seed: 0,
            vocab_size,
            limits,
            generates: Box::new(|_| None),
            chats: Box::new(|_| None),
            fails: Box::new(|_, _| None),
            n_asked: AtomicU64::new(0),
            n_generate: AtomicU64::new(0),
            n_score: AtomicU64::new(0),
            n_chat: AtomicU64::new(0),
            n_prompt_tokens: AtomicU64::new(0),
        }
    }

    /// Other weights: another seed makes another distribution.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Other limits; what they exclude is refused.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Says these ids where the script gives any, as many as are asked for.
    pub fn on_generate(
        mut self,
        script: impl Fn(&GenerateRequest) -> Option<Vec<TokenId>> + Send + Sync + 'static,
    ) -> Self {
        self.generates = Box::new(script);
        self
    }

    /// Answers with this message where the script gives one.
    pub fn on_chat(
        mut self,
        script: impl Fn(&ChatRequest) -> Option<Message> + Send + Sync + 'static,
    ) -> Self {
        self.chats = Box::new(script);
        self
    }

    /// Fails where the script gives an error; it is told which call of all this is, from 0.
    pub fn failing(
        mut self,
        script: impl Fn(Asked<'_>, u64) -> Option<Error> + Send + Sync + 'static,
    ) -> Self {
        self.fails = Box::new(script);
        self
    }

    /// How often it was asked.
    pub fn calls(&self) -> Calls {
        Calls {
            generate: self.n_generate.load(Relaxed),
            score: self.n_score.load(Relaxed),
            chat: self.n_chat.load(Relaxed),
            prompt_tokens: self.n_prompt_tokens.load(Relaxed),
        }
    }

    fn count(&self, asked: Asked<'_>) -> Result<(), Error> {
        let counter = match asked {
            Asked::Generate(_) => &self.n_generate,
            Asked::Score(_) => &self.n_score,
            Asked::Chat(_) => &self.n_chat,
        };
        counter.fetch_add(1, Relaxed);
        (self.fails)(asked, self.n_asked.fetch_add(1, Relaxed)).map_or(Ok(()), Err)
    }

    fn usage(&self, n_sent: usize, n_sampled: usize) -> Usage {
        self.n_prompt_tokens.fetch_add(n_sent as u64, Relaxed);
        Usage { prompt_tokens: n_sent as u64, cached_tokens: None, completion_tokens: n_sampled as u64 }
    }

    fn check(&self, can: bool, what: &str, ids: &[TokenId]) -> Result<(), Error> {
        if !can {
            return Err(Error::Unsupported {
                server: "the scripted model".to_owned(),
                what: what.to_owned(),
                help: "give it limits that allow it".to_owned(),
            });
        }
        check_ids(ids, self.limits.vocab_size)?;
        check_length(ids.len(), self.limits.context_length)
    }

    fn top_k(&self, asked: usize) -> usize {
        asked.min(self.limits.max_top_k.unwrap_or(asked))
    }

    /// The logprob of every token after a prefix.
    fn distribution(&self, prefix: Prefix) -> Vec<f64> {
        let logits = (0..self.vocab_size as u64).map(|id| SPREAD * unit(mix(prefix.0 ^ mix(id + 1))));
        let mut logits: Vec<f64> = logits.collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let log_total = total.ln();
        logits.iter_mut().for_each(|logit| *logit -= log_total);
        logits
    }

    fn token_score(&self, prefix: Prefix, given: TokenId, top_k: usize) -> TokenScore {
        let logprobs = self.distribution(prefix);
        let row = best(&logprobs, top_k);
        token_score(given, logprobs.get(given as usize).copied(), &row, top_k, None)
    }

    fn sample(&self, prefix: Prefix, sampling: &Sampling, draw: u64) -> TokenId {
        let logprobs = self.distribution(prefix);
        if sampling.temperature <= 0.0 {
            return best(&logprobs, 1).first().map_or(0, |candidate| candidate.0);
        }
        let weights: Vec<f64> = logprobs.iter().map(|it| (it / sampling.temperature).exp()).collect();
        let mut left = unit(draw) * weights.iter().sum::<f64>();
        let passed = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        passed.unwrap_or(self.vocab_size - 1) as TokenId
    }

    /// Samples until a stop token or the limit.
    fn continued(&self, request: &GenerateRequest) -> Vec<TokenId> {
        let mut prefix = Prefix::of(self.seed, &request.prompt);
        let draw = mix(request.sampling.seed.unwrap_or(0) ^ place_hash(&request.place));
        let mut ids = Vec::new();
        while ids.len() < request.sampling.max_tokens && !ends(&ids, request) {
            let id = self.sample(prefix, &request.sampling, mix(draw ^ ids.len() as u64));
            prefix = prefix.then(id);
            ids.push(id);
        }
        ids
    }

    fn sampled(&self, request: &GenerateRequest, ids: &[TokenId]) -> Vec<SampledToken> {
        let top_k = self.top_k(request.top_k);
        let mut prefix = Prefix::of(self.seed, &request.prompt);
        let token = |&id: &TokenId| {
            let score = self.token_score(prefix, id, top_k);
            prefix = prefix.then(id);
            SampledToken { id, logprob: score.logprob.ok(), top: score.top }
        };
        ids.iter().map(token).collect()
    }
}

#[async_trait]
impl Model for Scripted {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        self.count(Asked::Generate(request))?;
        check_prompt(&request.prompt)?;
        self.check(self.limits.token_ids, "take token ids", &request.prompt)?;
        let scripted = (self.generates)(request);
        if scripted.is_none() && request.sampling.constraint.is_some() {
            self.check(false, "keep to a constraint without a script", &[])?;
        }
        let mut ids = scripted.unwrap_or_else(|| self.continued(request));
        ids.truncate(request.sampling.max_tokens);
        let finish = if ends(&ids, request) { Finish::Stop } else { Finish::Length };
        let tokens = self.sampled(request, &ids);
        let usage = self.usage(request.prompt.len(), ids.len());
        Ok(Generated { tokens, finish, versions: vec![], usage })
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.count(Asked::Score(job))?;
        let n_sent = job.end_needed();
        self.check(self.limits.scores, "score a prompt", &job.tokens()[..n_sent])?;
        let (needed, top_k) = (Needed::new(job), self.top_k(job.top_k()));
        let mut positions = needed.positions().peekable();
        let mut prefix = Prefix::of(self.seed, &[]);
        let mut scores = Vec::with_capacity(needed.len());
        for (position, &given) in job.tokens()[..n_sent].iter().enumerate() {
            if positions.next_if_eq(&position).is_some() {
                scores.push(match position {
                    0 => absent(Absence::NoContext),
                    _ => self.token_score(prefix, given, top_k),
                });
            }
            prefix = prefix.then(given);
        }
        drop(positions);
        let invalid = |what| Error::Invalid { what, help: "check the spans".to_owned() };
        let spans = needed.into_spans(job, scores).map_err(invalid)?;
        Ok(Scored { spans, version: None, usage: self.usage(n_sent, 0) })
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.count(Asked::Chat(request))?;
        let message = (self.chats)(request).unwrap_or_else(|| self.answer(request));
        let calls = !message.tool_calls.is_empty();
        let finish = if calls { Finish::ToolCalls } else { Finish::Stop };
        let words =
            |message: &Message| message.content.as_ref().map_or(0, |it| it.text().split_whitespace().count());
        let n_sent = request.messages.iter().map(words).sum();
        Ok(ChatAnswer { finish, usage: self.usage(n_sent, words(&message)), message })
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl Scripted {
    /// An answer of its own: another one for every conversation and every place.
    fn answer(&self, request: &ChatRequest) -> Message {
        let texts = request.messages.iter().filter_map(|message| message.content.as_ref()).map(Content::text);
        let bytes = texts.flat_map(String::into_bytes).map(TokenId::from).collect::<Vec<_>>();
        let hash = mix(Prefix::of(self.seed, &bytes).0 ^ place_hash(&request.place));
        Message::text(Role::Assistant, format!("scripted answer {hash:016x}"))
    }
}

/// Everything before a position, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix(u64);

impl Prefix {
    fn of(seed: u64, tokens: &[TokenId]) -> Self {
        tokens.iter().fold(Self(mix(seed)), |prefix, &id| prefix.then(id))
    }

    fn then(self, id: TokenId) -> Self {
        Self(mix(self.0.wrapping_add(u64::from(id)).wrapping_add(1)))
    }
}

fn ends(ids: &[TokenId], request: &GenerateRequest) -> bool {
    ids.last().is_some_and(|last| request.stop_ids.contains(last))
}

/// The `k` likeliest tokens.
fn best(logprobs: &[f64], k: usize) -> Vec<Candidate> {
    let mut row: Vec<Candidate> = (0..).zip(logprobs.iter().copied().map(Some)).collect();
    let likelier = |a: &Candidate, b: &Candidate| b.1.unwrap_or(f64::MIN).total_cmp(&a.1.unwrap_or(f64::MIN));
    if k < row.len() {
        row.select_nth_unstable_by(k, likelier);
        row.truncate(k);
    }
    row.sort_by(likelier);
    row
}

/// A place as one number, the same in every run and on every machine.
fn place_hash(place: &Place) -> u64 {
    let task: Vec<TokenId> = place.task.bytes().map(TokenId::from).collect();
    let numbers = [place.episode, place.step, place.vote];
    numbers.iter().fold(Prefix::of(1, &task).0, |hash, &number| mix(hash ^ mix(number as u64)))
}

/// A number whose bits depend on all bits of another one.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from 0 up to, but not with, 1.
fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}
