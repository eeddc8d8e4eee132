//! The engine: a loaded model, what it remembers, and the jobs it can do.
//!
//! Owns loading, scoring and the reuse of prefixes. A prefix is reused to the token, and since every
//! number is computed the same way whatever it is computed with, scores with and without reuse are
//! equal to the bit. Sampling is in `generate`. Deliberately absent: text, and waiting.

use std::path::Path;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::config::Config;
use super::constrain::Grammars;
use super::forward::{Machine, Reading};
use super::head::Ask;
use super::kv::{Cache, KvTree, PAGE};
use super::load::{WeightSource, check_memory};
use super::simd::Isa;
use super::weights::Weights;
use backsight_core::model::{Error, Limits, Scored, Usage, check_chosen, check_top_k};
use backsight_core::needed::{Needed, absent};
use backsight_core::score::{Absence, ScoreJob};
use backsight_core::tokens::{TokenId, check_ids};
use backsight_core::tree::common;

/// Rows read in one pass at most: bounds the memory of a long prompt.
const PASS_ROWS: usize = 4096;
/// Jobs with few new tokens are read together up to this many rows, so that each weight is used more often.
const BATCH_ROWS: usize = 512;

const TOKENIZER_HELP: &str = "use the tokenizer that came with the model";

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
    pub(super) isa: Isa,
    pool: ThreadPool,
    pub(super) tree: KvTree,
    pub(super) counters: Counters,
    pub(super) grammars: Option<Grammars>,
}

impl Engine {
    /// Loads the model at `path`: a Hugging Face directory or a GGUF file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::load_with(path, &EngineOptions::default())
    }

    /// Loads the model at `path` with settings of one's own.
    pub fn load_with(path: &Path, options: &EngineOptions) -> Result<Self, Error> {
        let pool = ThreadPoolBuilder::new().num_threads(options.threads.max(1));
        let pool = pool.build();
        let pool =
            pool.map_err(|why| no_threads(format!("the engine's threads cannot be started: {why}")))?;
        let (source, config) = WeightSource::open(path)?;
        let weights = pool.install(|| Weights::load(&source, &config))?;
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
    pub fn check_vocabulary(&self, tokenizer: usize) -> Result<(), Error> {
        let model = self.config.vocab;
        if tokenizer <= model {
            return Ok(());
        }
        let what = format!("the tokenizer has {tokenizer} tokens, the model only {model}");
        Err(Error::invalid(what, TOKENIZER_HELP))
    }

    /// Scores the spans of one job.
    pub fn score(&mut self, job: &ScoreJob) -> Result<Scored, Error> {
        self.score_many(std::slice::from_ref(job))
            .pop()
            .unwrap_or_else(|| Err(garbled("a job has no result")))
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
                    results.extend(self.score_together(&rest[..n]));
                }
            }
        }
        results
    }

    fn check_job(&self, job: &ScoreJob) -> Result<(), Error> {
        check_top_k(job.top_k(), Some(self.config.vocab))?;
        check_chosen(job, &self.limits())?;
        self.check_tokens(&job.tokens()[..job.end_needed()], self.config.context)
    }

    /// Refuses what cannot be read: unknown ids, more tokens than the context has, more than the memory holds.
    pub(super) fn check_tokens(&self, tokens: &[TokenId], limit: usize) -> Result<(), Error> {
        let (n_tokens, context) = (tokens.len(), self.config.context);
        if n_tokens > limit {
            let what = format!("{n_tokens} tokens do not fit into the model's context of {context}");
            return Err(Error::invalid(what, "shorten the context, or use a model with a longer one"));
        }
        check_ids(tokens, self.config.vocab).map_err(|why| Error::invalid(why, TOKENIZER_HELP))?;
        let needed = (n_tokens.div_ceil(PAGE) * self.config.kv_shape().page_bytes()) as u64;
        let help = "close other programs, or shorten the context";
        check_memory(format_args!("{n_tokens} tokens need"), needed, help)
    }

    /// How many of the first jobs can be read together: few new tokens, and none waits for what another one computes.
    fn joint(&self, jobs: &[ScoreJob]) -> usize {
        let new = |job: &ScoreJob| read_for(job).len().saturating_sub(self.reusable(job));
        let mut rows = new(&jobs[0]);
        let mut n = 1;
        while let Some(job) = jobs.get(n) {
            rows += new(job);
            let shared =
                jobs[..n].iter().map(|other| common(other.tokens(), job.tokens())).max().unwrap_or(0);
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

    fn score_together(&mut self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let mut caches: Vec<Cache> =
            jobs.iter().map(|job| self.remembered(&job.tokens()[..reuse_limit(job)])).collect();
        let reused: Vec<usize> = caches.iter().map(Cache::len).collect();
        let reading = |(job, cache)| Reading { tokens: read_for(job), cache, wanted_from: reuse_limit(job) };
        let hidden = self.read(&mut jobs.iter().zip(&mut caches).map(reading).collect::<Vec<_>>());
        let width = self.config.hidden_padded();
        let (mut rows, mut asks) = (Vec::new(), Vec::new());
        for (job, hidden) in jobs.iter().zip(&hidden) {
            for position in Needed::new(job).positions().filter(|&it| it > 0) {
                let row = position - job.first_needed().unwrap_or(position);
                rows.extend_from_slice(&hidden[row * width..(row + 1) * width]);
                asks.push(Ask { token: job.tokens()[position], top_k: job.top_k() });
            }
        }
        self.counters.predicted += asks.len() as u64;
        let mut answers = self.with_machine(|machine| machine.answer(&rows, &asks)).into_iter();
        jobs.iter().zip(&caches).for_each(|(job, cache)| self.tree.insert(read_for(job), cache));
        let scored = jobs.iter().zip(reused).map(|(job, reused)| {
            let needed = Needed::new(job);
            let no_context = || absent(Absence::NoContext);
            let score = |position: usize| if position == 0 { Some(no_context()) } else { answers.next() };
            let scores = needed.positions().map_while(score).collect();
            let spans = needed.into_spans(job, scores).map_err(|why| garbled(&why))?;
            let (prompt_tokens, cached_tokens) = (read_for(job).len() as u64, Some(reused as u64));
            let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 0 };
            Ok(Scored { spans, version: None, usage })
        });
        scored.collect()
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
            let read = self.with_machine(|machine| machine.forward(readings, PASS_ROWS));
            hidden.iter_mut().zip(read).for_each(|(hidden, rows)| hidden.extend(rows));
        }
        hidden
    }

    pub(super) fn with_machine<T: Send>(&self, work: impl FnOnce(Machine<'_>) -> T + Send) -> T {
        let machine = Machine { config: &self.config, weights: &self.weights, isa: self.isa };
        self.pool.install(|| work(machine))
    }
}

pub(super) fn no_threads(what: String) -> Error {
    Error::invalid(what, "check the limit on processes (ulimit -u)")
}

pub(super) fn garbled(why: &str) -> Error {
    Error::garbled("the embedded model", why)
}

/// The tokens before the one whose hidden state predicts the first needed token; only these can be reused.
fn reuse_limit(job: &ScoreJob) -> usize {
    job.first_needed().map_or(0, |first| first - 1)
}

/// What has to be read for a job: all that precedes the last needed token, which is predicted.
fn read_for(job: &ScoreJob) -> &[TokenId] {
    &job.tokens()[..job.first_needed().map_or(0, |_| job.end_needed() - 1)]
}
