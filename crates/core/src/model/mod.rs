//! The seam where worlds meet: one small trait for every model, wherever it runs.
//!
//! Owns [`Model`] and the requests and answers it takes. Embedded, remote and scripted models are
//! equal citizens behind it; so is the ledger, which wraps another model. Deliberately absent: any
//! knowledge of episodes, lenses or credit.

mod check;
mod error;

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::Value;

pub use self::check::{check_chosen, check_ids, check_length, check_prompt, check_top_k};
pub use self::error::Error;
use crate::episode::Message;
use crate::score::{ScoreJob, SpanScore};
use crate::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// A language model that can be sampled from, asked for logprobs, and talked to.
#[async_trait]
pub trait Model: Send + Sync {
    /// Samples a continuation of token ids.
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error>;

    /// Scores spans of given tokens.
    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error>;

    /// Scores several jobs at once; one job's failure is not another's.
    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        join_all(jobs.iter().map(|job| self.score(job))).await
    }

    /// Answers a conversation; the server renders it.
    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error>;

    /// Answers several conversations at once, best where they are one that is answered several times; one's failure is
    /// not another's.
    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        join_all(requests.iter().map(|request| self.chat(request))).await
    }

    /// What the model can do, as found out when it was opened.
    fn limits(&self) -> &Limits;

    /// The largest K it accepts, as far as is known by now: a server that came back may accept less than before.
    fn top_k_limit(&self) -> Option<usize> {
        self.limits().max_top_k
    }

    /// Since when its weights were never in doubt, by whatever it counts; answers from before and after another value
    /// do not belong together.
    fn unbroken_since(&self) -> u64 {
        0
    }
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: f64,
    /// Keep this many of the likeliest tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Makes a draw repeatable where the server honours it.
    pub seed: Option<u64>,
    /// At most this many tokens.
    pub max_tokens: usize,
    /// What the text must look like, if anything.
    pub constraint: Option<Constraint>,
}

impl Sampling {
    /// The likeliest tokens, so many of them.
    pub fn greedy(max_tokens: usize) -> Self {
        Self { temperature: 0.0, top_p: 1.0, top_k: None, seed: Some(0), max_tokens, constraint: None }
    }
}

/// A shape the sampled text is forced into.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// A JSON value that satisfies this schema.
    JsonSchema(Value),
    /// A text that matches this regular expression as a whole.
    Regex(String),
}

/// Which draw this is. Two draws of equal prompts are different samples when their places differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The task's id.
    pub task: String,
    /// Which episode of the group.
    pub episode: usize,
    /// Which step of the episode.
    pub step: usize,
    /// Which vote of the judge, or which attempt.
    pub vote: usize,
}

/// A request for a continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The context, as ids.
    pub prompt: Vec<TokenId>,
    /// How to draw.
    pub sampling: Sampling,
    /// Ids after which to stop; the stop token is part of the answer.
    pub stop_ids: Vec<TokenId>,
    /// How many alternatives to report at each sampled token.
    pub top_k: usize,
    /// Which draw this is.
    pub place: Place,
}

/// Why sampling ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was sampled.
    Stop,
    /// The token limit or the context's end was reached.
    Length,
    /// The answer calls tools.
    ToolCalls,
    /// Anything else the server says.
    Other(String),
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: TokenId,
    /// The student's own logprob of it, where the server told.
    pub logprob: Option<Logprob>,
    /// The alternatives that were asked for.
    pub top: TopK,
}

/// The weights that computed some of the tokens, as the server names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldVersion {
    /// The name.
    pub version: String,
    /// Which tokens, counted from the first sampled one.
    pub span: TokenSpan,
}

/// A sampled continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The tokens, the stop token included.
    pub tokens: Vec<SampledToken>,
    /// Why it ended.
    pub finish: Finish,
    /// The weights behind the tokens, in order and without overlap; empty where the server tells none.
    pub versions: Vec<ToldVersion>,
    /// What it cost.
    pub usage: Usage,
}

/// The scores of a job's spans, in the job's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// One per span.
    pub spans: Vec<SpanScore>,
    /// The weights that read the tokens, as the server names them, where it does.
    pub version: Option<String>,
    /// What it cost.
    pub usage: Usage,
}

/// A conversation to be answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// JSON schemas of the tools the model may call.
    pub tools: Vec<Value>,
    /// How to draw.
    pub sampling: Sampling,
    /// Which draw this is.
    pub place: Place,
}

impl ChatRequest {
    /// Whether another one asks the same, as another draw.
    pub fn is_another_draw_of(&self, other: &Self) -> bool {
        let sampling = Sampling { seed: other.sampling.seed, ..self.sampling.clone() };
        self.messages == other.messages && self.tools == other.tools && sampling == other.sampling
    }
}

/// The answer to a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatAnswer {
    /// What the model said.
    pub message: Message,
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub usage: Usage,
}

/// Tokens of one call, as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens sent.
    pub prompt_tokens: u64,
    /// Of those, found in the server's cache; `None` when it does not say.
    pub cached_tokens: Option<u64>,
    /// Tokens sampled.
    pub completion_tokens: u64,
}

impl Usage {
    /// Nothing, of which none was cached.
    pub const NOTHING: Self = Self { prompt_tokens: 0, cached_tokens: Some(0), completion_tokens: 0 };
}

impl std::ops::AddAssign for Usage {
    /// What was cached is known of both together only where it is known of each.
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens = self.cached_tokens.zip(other.cached_tokens).map(|(a, b)| a + b);
        self.completion_tokens += other.completion_tokens;
    }
}

/// Tokens that a server computes in less time than a request takes to come and go.
pub const LEAST_SHARE: usize = 256;

impl Limits {
    /// Nothing is known of it, and it only chats.
    pub const CHAT: Self = Self {
        context_length: None,
        vocab_size: None,
        max_top_k: None,
        token_ids: false,
        scores: false,
        start_index: false,
        cached_scores: false,
        least_share: 0,
        max_scored: None,
        chosen: false,
        batches: false,
    };

    /// It scores from any position on, and reuses what it computed before.
    pub const CACHING: Self =
        Self { scores: true, start_index: true, cached_scores: true, least_share: LEAST_SHARE, ..Self::CHAT };

    /// What two servers of one model can both do.
    pub fn and(&self, other: &Self) -> Self {
        let least = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        Self {
            context_length: least(self.context_length, other.context_length),
            vocab_size: least(self.vocab_size, other.vocab_size),
            max_top_k: least(self.max_top_k, other.max_top_k),
            token_ids: self.token_ids && other.token_ids,
            scores: self.scores && other.scores,
            start_index: self.start_index && other.start_index,
            cached_scores: self.cached_scores && other.cached_scores,
            least_share: self.least_share.max(other.least_share),
            max_scored: least(self.max_scored, other.max_scored),
            chosen: self.chosen && other.chosen,
            batches: self.batches && other.batches,
        }
    }
}

/// What a model can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokens a sequence may have, prompt and continuation together.
    pub context_length: Option<usize>,
    /// Ids at or above this must never be sent.
    pub vocab_size: Option<usize>,
    /// The largest K it accepts; `None` when there is no limit.
    pub max_top_k: Option<usize>,
    /// Whether it takes token ids as a prompt and returns the sampled ids.
    pub token_ids: bool,
    /// Whether it can score a prompt.
    pub scores: bool,
    /// Whether scoring can begin in the middle of a prompt.
    pub start_index: bool,
    /// Whether scoring reuses the prefix cache.
    pub cached_scores: bool,
    /// So many tokens at least are worth waiting until another request leaves them in the cache.
    pub least_share: usize,
    /// At most this many positions are best scored in one request.
    pub max_scored: Option<usize>,
    /// Whether it gives the logprobs of chosen candidates, however likely they are.
    pub chosen: bool,
    /// Whether short jobs are better sent together, by [`Model::score_many`], than one by one.
    pub batches: bool,
}
