//! The engine: a loaded model, what it remembers, and the jobs it can do.
//!
//! Owns loading, scoring and the reuse of prefixes. A prefix is reused to the token, and since every
//! number is computed the same way whatever it is computed with, scores with and without reuse are
//! equal to the bit. Sampling is in `generate`. Deliberately absent: text, and waiting.

use std::collections::BTreeSet;
use std::path::Path;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::config::Config;
use super::constrain::Grammars;
use super::forward::{Machine, Stretch};
use super::head::{Answer, Ask};
use super::kv::{Cache, KvTree, PAGE, common_prefix};
use super::load::{LoadError, WeightSource, available_memory};
use super::simd::Isa;
use super::weights::Weights;
use backsight_core::model::check_top_k;
use backsight_core::model::{Error, Limits, Scored, Usage};
use backsight_core::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight_core::tokens::check_ids;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// Rows read in one pass at most: bounds the memory of a long prompt.
const PASS_ROWS: usize = 4096;
/// Jobs with few new tokens are read together up to this many rows, so that each weight is used more often.
const BATCH_ROWS: usize = 512;

/// What every engine can do. So many positions are scored at a time that progress can be told.
pub const LIMITS: Limits = Limits {
    token_ids: true,
    scores: true,
    start_index: true,
    cached_scores: true,
    max_scored: Some(512),
    batches: true,
    ..Limits::CHAT
};

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Threads to compute with.
    pub threads: usize,
    /// Bytes of keys and values to remember for reuse.
    pub cache_bytes: usize,
    /// The vector instructions to use.
    pub isa: Isa,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, cache_bytes: 1 << 30, isa: Isa::best() }
    }
}

/// What was computed and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens that went through the layers.
    pub computed: u64,
    /// Tokens whose keys and values were remembered instead.
    pub reused: u64,
    /// Positions whose logits were computed for scores.
    pub predicted: u64,
}

/// A loaded model.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: Config,
    weights: Weights,
    isa: Isa,
    pool: ThreadPool,
    pub(super) tree: KvTree,
    pub(super) counters: Counters,
    pub(super) grammars: Option<Grammars>,
}

/// Tokens to be read after what is remembered of them.
pub(super) struct Reading<'a> {
    /// All tokens of the sequence, up to the last one to be read.
    pub tokens: &'a [TokenId],
    /// Remembers the first of them, and all of them afterwards.
    pub cache: Cache,
    /// From which position on the hidden states are wanted.
    pub wanted_from: usize,
}

impl Engine {
    /// Loads the model at `path`: a Hugging Face directory or a GGUF file.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Self::load_with(path, &EngineOptions::default())
    }

    /// Loads the model at `path` with settings of one's own.
    pub fn load_with(path: &Path, options: &EngineOptions) -> Result<Self, LoadError> {
        let pool = ThreadPoolBuilder::new().num_threads(options.threads.max(1));
        let pool = pool.build().map_err(|why| LoadError::Threads(why.to_string()))?;
        let (source, config) = WeightSource::open(path)?;
        let weights = pool.install(|| Weights::load(&source, &config, 0))?;
        let tree = KvTree::new(config.kv_shape(), options.cache_bytes);
        Ok(Self {
            config,
            weights,
            isa: options.isa,
            pool,
            tree,
            counters: Counters::default(),
            grammars: None,
        })
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the engine can do.
    pub fn limits(&self) -> Limits {
        let (context_length, vocab_size) = (Some(self.config.context), Some(self.config.vocab));
        Limits { context_length, vocab_size, ..LIMITS }
    }

    /// What was computed and reused since the engine was loaded.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Refuses a tokenizer with ids the model does not know. Fewer ids are common: embeddings are padded.
    pub fn check_vocabulary(&self, tokenizer: usize) -> Result<(), LoadError> {
        let model = self.config.vocab;
        if tokenizer > model { Err(LoadError::Vocabulary { tokenizer, model }) } else { Ok(()) }
    }

    /// Scores the spans of one job.
    pub fn score(&mut self, job: &ScoreJob) -> Result<Scored, Error> {
        self.score_many(std::slice::from_ref(job)).pop().unwrap_or_else(|| Err(nothing_came_back()))
    }

    /// Scores jobs in their order. Jobs that share a prefix should stand beside each other, the longest trunk first.
    pub fn score_many(&mut self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let mut results = Vec::with_capacity(jobs.len());
        while results.len() < jobs.len() {
            let rest = &jobs[results.len()..];
            match self.check_job(&rest[0]) {
                Err(error) => results.push(Err(error)),
                Ok(()) => {
                    let n = self.joint(rest);
                    results.extend(self.score_together(&rest[..n]).into_iter().map(Ok));
                }
            }
        }
        results
    }

    fn check_job(&self, job: &ScoreJob) -> Result<(), Error> {
        check_top_k(job.top_k(), Some(self.config.vocab))?;
        self.check_tokens(&job.tokens()[..job.end_needed()], self.config.context)
    }

    /// Refuses what cannot be read: unknown ids, more tokens than the context has, more than the memory holds.
    pub(super) fn check_tokens(&self, tokens: &[TokenId], limit: usize) -> Result<(), Error> {
        if tokens.len() > limit {
            let what = format!(
                "{} tokens do not fit into the model's context of {}",
                tokens.len(),
                self.config.context
            );
            return Err(Error::Invalid {
                what,
                help: "shorten the context, or use a model with a longer one".to_owned(),
            });
        }
        check_ids(tokens, self.config.vocab).map_err(|what| Error::Invalid {
            what,
            help: "use the tokenizer that came with the model".to_owned(),
        })?;
        self.check_memory(tokens.len())
    }

    fn check_memory(&self, n_tokens: usize) -> Result<(), Error> {
        let needed = (n_tokens.div_ceil(PAGE) * self.config.kv_shape().page_bytes()) as u64;
        match available_memory() {
            Some(available) if needed > available => Err(Error::Invalid {
                what: format!(
                    "{n_tokens} tokens need {} MiB of memory, {} MiB are available",
                    needed >> 20,
                    available >> 20
                ),
                help: "close other programs, or shorten the context".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// How many of the first jobs can be read together: few new tokens, and none waits for what another one computes.
    fn joint(&self, jobs: &[ScoreJob]) -> usize {
        let new = |job: &ScoreJob| last_read(job).saturating_sub(self.reusable(job));
        let mut rows = new(&jobs[0]);
        let mut n = 1;
        while let Some(job) = jobs.get(n) {
            rows += new(job);
            let shared =
                jobs[..n].iter().map(|other| common_prefix(other.tokens(), job.tokens())).max().unwrap_or(0);
            let waits = shared.min(reuse_limit(job)) >= self.reusable(job) + PAGE;
            if rows > BATCH_ROWS || waits || self.check_job(job).is_err() {
                break;
            }
            n += 1;
        }
        n
    }

    /// How many tokens of a job are remembered and need not be read again.
    fn reusable(&self, job: &ScoreJob) -> usize {
        self.tree.matched(&job.tokens()[..reuse_limit(job)])
    }

    fn score_together(&mut self, jobs: &[ScoreJob]) -> Vec<Scored> {
        let mut readings: Vec<Reading<'_>> = jobs.iter().map(|job| self.reading(job)).collect();
        let reused: Vec<usize> = readings.iter().map(|reading| reading.cache.len()).collect();
        let hidden = self.read(&mut readings);
        let width = self.config.hidden_padded();
        let (mut rows, mut asks) = (Vec::new(), Vec::new());
        for (job, hidden) in jobs.iter().zip(&hidden) {
            for position in needed(job) {
                let row = position - job.first_needed().unwrap_or(position);
                rows.extend_from_slice(&hidden[row * width..(row + 1) * width]);
                asks.push(Ask { token: job.tokens()[position], top_k: job.top_k() });
            }
        }
        self.counters.predicted += asks.len() as u64;
        let mut answers = self.with_machine(|machine| machine.answer(&rows, &asks)).into_iter();
        for reading in &readings {
            self.tree.insert(reading.tokens, &reading.cache);
        }
        let scored = jobs.iter().zip(reused).map(|(job, reused)| {
            let positions: Vec<usize> = needed(job).collect();
            let answers: Vec<Answer> = answers.by_ref().take(positions.len()).collect();
            Scored { spans: spans(job, &positions, &answers), version: None, usage: usage(job, reused) }
        });
        scored.collect()
    }

    /// What has to be read for a job: all that precedes the last needed token.
    fn reading<'a>(&mut self, job: &'a ScoreJob) -> Reading<'a> {
        let cache = self.remembered(&job.tokens()[..reuse_limit(job)]);
        Reading { tokens: &job.tokens()[..last_read(job)], cache, wanted_from: reuse_limit(job) }
    }

    /// The cache of the longest prefix of `tokens` that is remembered.
    pub(super) fn remembered(&mut self, tokens: &[TokenId]) -> Cache {
        let cache = self.tree.find(tokens);
        self.counters.reused += cache.len() as u64;
        cache
    }

    /// Reads tokens; gives back the wanted hidden states of each sequence.
    pub(super) fn read(&mut self, readings: &mut [Reading<'_>]) -> Vec<Vec<f32>> {
        let new = readings.iter().map(|reading| (reading.tokens.len() - reading.cache.len()) as u64);
        self.counters.computed += new.sum::<u64>();
        let mut hidden = vec![Vec::new(); readings.len()];
        while readings.iter().any(|reading| reading.cache.len() < reading.tokens.len()) {
            self.read_pass(readings, &mut hidden);
        }
        hidden
    }

    /// One pass over at most [`PASS_ROWS`] tokens.
    fn read_pass(&self, readings: &mut [Reading<'_>], hidden: &mut [Vec<f32>]) {
        let (mut room, mut stretches, mut counts) = (PASS_ROWS, Vec::new(), Vec::new());
        for (i, reading) in readings.iter_mut().enumerate() {
            let start = reading.cache.len();
            let n = (reading.tokens.len() - start).min(room);
            if n > 0 {
                room -= n;
                let wanted_from = reading.wanted_from.saturating_sub(start).min(n);
                counts.push((i, n - wanted_from));
                let tokens = &reading.tokens[start..start + n];
                stretches.push(Stretch { tokens, cache: &mut reading.cache, wanted_from });
            }
        }
        let rows = self.with_machine(|machine| machine.forward(&mut stretches));
        let mut rest = rows.as_slice();
        for (i, n) in counts {
            let (own, others) = rest.split_at(n * self.config.hidden_padded());
            hidden[i].extend_from_slice(own);
            rest = others;
        }
    }

    pub(super) fn with_machine<T: Send>(&self, work: impl FnOnce(Machine<'_>) -> T + Send) -> T {
        let machine = Machine { config: &self.config, weights: &self.weights, isa: self.isa };
        self.pool.install(|| work(machine))
    }

    pub(super) fn isa(&self) -> Isa {
        self.isa
    }
}

fn nothing_came_back() -> Error {
    Error::Garbled { server: "the embedded model".to_owned(), why: "a job has no result".to_owned() }
}

/// The tokens before the one whose hidden state predicts the first needed token; only these can be reused.
fn reuse_limit(job: &ScoreJob) -> usize {
    job.first_needed().map_or(0, |first| first - 1)
}

/// How many tokens are read: the last needed token is predicted, not read.
fn last_read(job: &ScoreJob) -> usize {
    job.first_needed().map_or(0, |_| job.end_needed() - 1)
}

/// The positions of a job whose logprobs are needed, each once, in order.
fn needed(job: &ScoreJob) -> impl Iterator<Item = usize> + use<> {
    let positions: BTreeSet<usize> =
        job.spans().iter().flat_map(|span| span.range()).filter(|&it| it > 0).collect();
    positions.into_iter()
}

fn spans(job: &ScoreJob, positions: &[usize], answers: &[Answer]) -> Vec<SpanScore> {
    let score = |position: usize| match positions.binary_search(&position) {
        Ok(i) => token_score(&answers[i], job.tokens()[position], job.top_k()),
        Err(_) => TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() },
    };
    let span_score = |&span: &TokenSpan| SpanScore::new(span, span.range().map(score).collect()).ok();
    job.spans().iter().filter_map(span_score).collect()
}

fn token_score(answer: &Answer, token: TokenId, top_k: usize) -> TokenScore {
    match Logprob::new(answer.logprob) {
        Err(why) => TokenScore { logprob: Err(Absence::NotALogprob(why.to_string())), top: TopK::default() },
        Ok(logprob) if top_k == 0 => TokenScore { logprob: Ok(logprob), top: TopK::default() },
        Ok(logprob) => TokenScore { logprob: Ok(logprob), top: top_row(answer, token, logprob) },
    }
}

/// The likeliest tokens and the given one.
pub(super) fn top_row(answer: &Answer, token: TokenId, logprob: Logprob) -> TopK {
    let top = answer.top.iter().filter_map(|&(id, value)| Some((id, Logprob::new(value).ok()?)));
    TopK::new(top.chain([(token, logprob)]).collect())
}

fn usage(job: &ScoreJob, reused: usize) -> Usage {
    Usage { prompt_tokens: last_read(job) as u64, cached_tokens: Some(reused as u64), completion_tokens: 0 }
}
