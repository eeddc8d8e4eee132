//! Every paid call is stored before its result is used, and never paid twice.
//!
//! Owns [`Ledger`], the durable record of one run directory, and [`Ledgered`], the model that looks
//! there first. What is guaranteed: once an answer has been handed to a caller it is on the disk, and
//! the same call is answered from there ever after. What cannot be: a call that the server had answered
//! when the process was killed, but whose answer was not yet committed, is asked again; the window is
//! one commit long.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::disk::{self, Disk};
use super::fingerprint::{Fingerprint, Identity, LARGEST_MEAN_DIFFERENCE};
use super::lock::RunLock;
use super::record::Record;
use crate::model::budget::{ModelRole, Spent};
use crate::model::key::{Key, ModelId, seed_for};
use crate::model::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Sampling, Scored,
};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::Logprob;

/// The ledger's file in a run directory.
pub const LEDGER_FILE: &str = "ledger.sqlite";

/// The record of every paid call of one run directory.
pub struct Ledger {
    disk: Disk,
    flights: Flights,
    n_damaged: AtomicU64,
    // The directory stays ours for as long as its ledger is open.
    _lock: Arc<RunLock>,
}

/// What a ledger knew of a model it was shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recognition {
    /// It has no answers of any model that says so of itself.
    New,
    /// It has answers of this model.
    Known,
    /// It has answers of a model with the same name, which was another one: the probe's logprobs
    /// differ by this much on average, where they can be compared. None of them will be used.
    Changed(Option<f64>),
}

impl Ledger {
    /// Opens the ledger of a locked run directory.
    pub fn open(lock: Arc<RunLock>) -> Result<Arc<Self>, Error> {
        let disk = Disk::open(&lock.dir().join(LEDGER_FILE))?;
        Ok(Arc::new(Self { disk, flights: Flights::default(), n_damaged: AtomicU64::new(0), _lock: lock }))
    }

    /// The id of the model with this fingerprint: the one it has, or a new one.
    pub async fn identify(&self, fingerprint: &Fingerprint) -> Result<(ModelId, Recognition), Error> {
        let known = self.disk.read(stored_models).await?;
        let known: Vec<(ModelId, Fingerprint)> =
            known.into_iter().map(|row| self.model_from(row)).collect::<Result<_, _>>()?;
        let distances = known.iter().filter_map(|(id, it)| Some((*id, it.mean_difference(fingerprint)?)));
        let nearest = distances.min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((id, _)) = nearest.filter(|it| it.1 <= LARGEST_MEAN_DIFFERENCE) {
            return Ok((id, Recognition::Known));
        }
        let named_so = known.iter().any(|(_, it)| it.identity.model == fingerprint.identity.model);
        let recognition =
            if named_so { Recognition::Changed(nearest.map(|it| it.1)) } else { Recognition::New };
        let row = ModelRow::from(fingerprint);
        let id = self.disk.write(move |connection| row.insert(connection)).await?;
        Ok((ModelId(id), recognition))
    }

    /// What each role has paid in this run directory, however many processes it took.
    pub async fn paid(&self) -> Result<Vec<(ModelRole, Spent)>, Error> {
        let paid = self.disk.read(stored_totals).await?;
        let role = |name: &str| ModelRole::ALL.into_iter().find(|role| role.name() == name);
        Ok(paid.into_iter().filter_map(|(name, spent)| Some((role(&name)?, spent))).collect())
    }

    /// The stored answer to the call with this key.
    async fn get<R: Record>(&self, key: Key) -> Result<Option<R>, Error> {
        let found = self.disk.read(move |connection| stored_answer(connection, &key)).await?;
        let Some((bytes, sum)) = found else { return Ok(None) };
        if sum != checksum(&key, &bytes) {
            // Bits flipped on the disk: this answer is lost, and those beside it are not.
            self.forget(key).await?;
            return Ok(None);
        }
        R::decode(&bytes).map(Some).map_err(|why| self.damaged(&why.to_string()))
    }

    /// Takes a damaged record away, so that its call can be paid and stored again.
    async fn forget(&self, key: Key) -> Result<(), Error> {
        let delete = move |connection: &Connection| {
            let mut delete = connection.prepare_cached("DELETE FROM answers WHERE key = ?1")?;
            delete.execute([key.bytes()]).map(|n_rows| n_rows as i64)
        };
        self.disk.write(delete).await?;
        self.n_damaged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// What a person should know about records that were found damaged and are paid again.
    pub fn notice(&self) -> Option<String> {
        match self.n_damaged.load(Ordering::Relaxed) {
            0 => None,
            n => Some(format!(
                "{n} stored answers were damaged on the disk ({}); they are asked for again",
                self.disk.path().display()
            )),
        }
    }

    /// Stores an answer; returns once it is safe.
    async fn put<R: Record>(
        &self,
        key: Key,
        model: ModelId,
        role: ModelRole,
        answer: &R,
    ) -> Result<(), Error> {
        let (bytes, usage) = (answer.encode(), answer.usage());
        let sum = checksum(&key, &bytes);
        let write = move |connection: &Connection| {
            let mut insert = connection.prepare_cached(
                "INSERT INTO answers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING",
            )?;
            let n_rows = insert.execute(params![
                key.bytes(),
                R::KIND,
                model.0,
                role.name(),
                signed(usage.prompt_tokens),
                usage.cached_tokens.map(signed),
                signed(usage.completion_tokens),
                sum,
                bytes
            ])?;
            Ok(n_rows as i64)
        };
        self.disk.write(write).await.map(drop)
    }

    fn model_from(&self, (id, row): (i64, ModelRow)) -> Result<(ModelId, Fingerprint), Error> {
        let fingerprint = row.fingerprint().map_err(|why| self.damaged(&format!("model {id}: {why}")))?;
        Ok((ModelId(id), fingerprint))
    }

    fn damaged(&self, why: &str) -> Error {
        disk::damaged(self.disk.path(), why)
    }
}

/// SQLite's integers are signed; counts of tokens never reach the difference.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Catches bits that flipped on the disk, and records that sit under another's key.
fn checksum(key: &Key, bytes: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(key.bytes());
    hash.update(bytes);
    hash.finalize()[..8].to_vec()
}

fn stored_answer(connection: &Connection, key: &Key) -> rusqlite::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut select = connection.prepare_cached("SELECT answer, checksum FROM answers WHERE key = ?1")?;
    select.query_row([key.bytes()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

fn stored_totals(connection: &Connection) -> rusqlite::Result<Vec<(String, Spent)>> {
    let mut select = connection.prepare(
        "SELECT role, COUNT(*), SUM(prompt_tokens), COALESCE(SUM(cached_tokens), 0), SUM(completion_tokens)
         FROM answers GROUP BY role ORDER BY role",
    )?;
    let rows = select.query_map([], |row| {
        let number = |idx| row.get::<_, i64>(idx).map(i64::unsigned_abs);
        let spent = Spent {
            requests: number(1)?,
            prompt_tokens: number(2)?,
            cached_tokens: number(3)?,
            completion_tokens: number(4)?,
        };
        Ok((row.get(0)?, spent))
    })?;
    rows.collect()
}

/// A fingerprint as the ledger's file has it: JSON that a person can read.
struct ModelRow {
    identity: String,
    probe: String,
    logprobs: String,
}

impl From<&Fingerprint> for ModelRow {
    fn from(fingerprint: &Fingerprint) -> Self {
        let numbers: Vec<Option<f64>> = fingerprint.logprobs.iter().map(|it| it.map(Logprob::get)).collect();
        // Strings and finite numbers always serialise.
        Self {
            identity: serde_json::to_string(&fingerprint.identity).unwrap_or_default(),
            probe: serde_json::to_string(&fingerprint.probe).unwrap_or_default(),
            logprobs: serde_json::to_string(&numbers).unwrap_or_default(),
        }
    }
}

impl ModelRow {
    fn insert(&self, connection: &Connection) -> rusqlite::Result<i64> {
        connection.execute(
            "INSERT INTO models (identity, probe, logprobs) VALUES (?1, ?2, ?3)",
            [&self.identity, &self.probe, &self.logprobs],
        )?;
        Ok(connection.last_insert_rowid())
    }

    fn fingerprint(&self) -> Result<Fingerprint, String> {
        let text = |why: serde_json::Error| why.to_string();
        let identity: Identity = serde_json::from_str(&self.identity).map_err(text)?;
        let numbers: Vec<Option<f64>> = serde_json::from_str(&self.logprobs).map_err(text)?;
        let logprobs = numbers.into_iter().map(|it| it.map(Logprob::new).transpose());
        let logprobs = logprobs.collect::<Result<_, _>>().map_err(|why| why.to_string())?;
        Ok(Fingerprint { identity, probe: serde_json::from_str(&self.probe).map_err(text)?, logprobs })
    }
}

fn stored_models(connection: &Connection) -> rusqlite::Result<Vec<(i64, ModelRow)>> {
    let mut select = connection.prepare("SELECT id, identity, probe, logprobs FROM models ORDER BY id")?;
    let rows = select.query_map([], |row| {
        Ok((row.get(0)?, ModelRow { identity: row.get(1)?, probe: row.get(2)?, logprobs: row.get(3)? }))
    })?;
    rows.collect()
}

/// The calls under way, so that of equal calls at the same time one is paid and the others find its answer.
#[derive(Default)]
struct Flights(Mutex<HashMap<Key, Arc<AsyncMutex<()>>>>);

impl Flights {
    /// Waits until no equal call is under way, and keeps others waiting until dropped.
    async fn enter(&self, key: Key) -> Flight<'_> {
        let cell = Arc::clone(self.lock().entry(key).or_default());
        let mut flight = Flight { flights: self, key, cell: Some(Arc::clone(&cell)), guard: None };
        flight.guard = Some(cell.lock_owned().await);
        flight
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<AsyncMutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Flight<'a> {
    flights: &'a Flights,
    key: Key,
    cell: Option<Arc<AsyncMutex<()>>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Flight<'_> {
    /// The last to leave takes the entry along, so the map holds only what is under way.
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        (self.guard, self.cell) = (None, None);
        if flights.get(&self.key).is_some_and(|cell| Arc::strong_count(cell) == 1) {
            flights.remove(&self.key);
        }
    }
}

/// Where draws are made: the run's name and its `--seed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlace {
    /// Stays the same when the run is continued.
    pub run: String,
    /// From which every draw's seed is derived.
    pub seed: u64,
}

/// How often a [`Ledgered`] model could answer from its ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Calls answered from the ledger.
    pub found: u64,
    /// Calls that were paid and stored.
    pub paid: u64,
}

/// A model whose answers are kept. Stands outside of budgets, so that what is found costs nothing.
///
/// It also gives every draw its seed: a request without one gets `seed_for` its place.
pub struct Ledgered {
    ledger: Arc<Ledger>,
    inner: Arc<dyn Model>,
    model: ModelId,
    role: ModelRole,
    place: RunPlace,
    found: AtomicU64,
    paid: AtomicU64,
    sent: AtomicU64,
}

impl Ledgered {
    /// `inner`, known to the ledger as `model`, working for `role`.
    pub fn new(
        ledger: Arc<Ledger>,
        inner: Arc<dyn Model>,
        model: ModelId,
        role: ModelRole,
        place: RunPlace,
    ) -> Self {
        let [found, paid, sent] = [0; 3].map(AtomicU64::new);
        Self { ledger, inner, model, role, place, found, paid, sent }
    }

    /// The same model with counts of its own, from zero.
    #[must_use]
    pub fn counted_apart(&self) -> Self {
        let (ledger, inner) = (Arc::clone(&self.ledger), Arc::clone(&self.inner));
        Self::new(ledger, inner, self.model, self.role, self.place.clone())
    }

    /// What was found and what was paid through this model.
    pub fn lookups(&self) -> Lookups {
        Lookups { found: self.found.load(Ordering::Relaxed), paid: self.paid.load(Ordering::Relaxed) }
    }

    /// How many calls were handed on because the ledger had no answer, whatever came of them.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The stored answer, or the one `ask` gives, stored.
    ///
    /// `key` says under which key: asked again after the answer, because the largest K may have become less meanwhile,
    /// and an answer with fewer candidates is never kept as one with more.
    async fn once<R: Record>(
        &self,
        key_now: impl Fn() -> Key,
        ask: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let key = key_now();
        let _flight = self.ledger.flights.enter(key).await;
        if let Some(answer) = self.ledger.get(key).await? {
            self.found.fetch_add(1, Ordering::Relaxed);
            return Ok(answer);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        let answer = ask.await;
        self.keep(key_now(), answer).await
    }

    /// Scores jobs under distinct keys: what is stored, and for the rest what is answered now, stored.
    async fn once_many(&self, jobs: &BTreeMap<Key, &ScoreJob>) -> BTreeMap<Key, Result<Scored, Error>> {
        let (mut answers, mut missing, mut flights) = (BTreeMap::new(), Vec::new(), Vec::new());
        // Keys are entered in their order by everybody, so that no two callers wait for each other.
        for (&key, &job) in jobs {
            let flight = self.ledger.flights.enter(key).await;
            match self.ledger.get(key).await.transpose() {
                Some(answer) => {
                    self.found.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
                    answers.insert(key, answer);
                }
                None => {
                    flights.push(flight);
                    missing.push((key, job.clone()));
                }
            }
        }
        self.sent.fetch_add(missing.len() as u64, Ordering::Relaxed);
        let (keys, jobs): (Vec<Key>, Vec<ScoreJob>) = missing.into_iter().unzip();
        let scored = if jobs.is_empty() { Vec::new() } else { self.inner.score_many(&jobs).await };
        let stored = jobs.iter().zip(scored).map(|(job, scored)| self.keep(self.score_key(job), scored));
        answers.extend(keys.iter().copied().zip(join_all(stored).await));
        answers
    }

    /// Stores an answer before it is handed on.
    async fn keep<R: Record>(&self, key: Key, answer: Result<R, Error>) -> Result<R, Error> {
        let answer = answer?;
        self.ledger.put(key, self.model, self.role, &answer).await?;
        self.paid.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }

    /// The key of a score with as many candidates as the model gives now.
    fn score_key(&self, job: &ScoreJob) -> Key {
        Key::of_score(self.model, &job.within(self.inner.top_k_limit()))
    }

    fn generate_key(&self, request: &GenerateRequest) -> Key {
        match self.inner.top_k_limit().filter(|limit| request.top_k > *limit) {
            Some(top_k) => {
                Key::of_generate(self.model, &self.place.run, &GenerateRequest { top_k, ..request.clone() })
            }
            None => Key::of_generate(self.model, &self.place.run, request),
        }
    }

    fn seeded(&self, sampling: &Sampling, place: &Place) -> Sampling {
        let seed = sampling.seed.or_else(|| Some(seed_for(self.place.seed, place)));
        Sampling { seed, ..sampling.clone() }
    }
}

#[async_trait]
impl Model for Ledgered {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let sampling = self.seeded(&request.sampling, &request.place);
        let request = GenerateRequest { sampling, ..request.clone() };
        self.once(|| self.generate_key(&request), self.inner.generate(&request)).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.once(|| self.score_key(job), self.inner.score(job)).await
    }

    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let keys: Vec<Key> = jobs.iter().map(|job| self.score_key(job)).collect();
        let distinct: BTreeMap<Key, &ScoreJob> = keys.iter().copied().zip(jobs).collect();
        let answers = self.once_many(&distinct).await;
        keys.iter().map(|key| answers[key].clone()).collect()
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let sampling = self.seeded(&request.sampling, &request.place);
        let request = ChatRequest { sampling, ..request.clone() };
        let key = Key::of_chat(self.model, &self.place.run, &request);
        self.once(|| key, self.inner.chat(&request)).await
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn top_k_limit(&self) -> Option<usize> {
        self.inner.top_k_limit()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::model::{Finish, SampledToken, Usage};
    use backsight_core::episode::{Message, Role};
    use backsight_core::score::{Absence, SpanScore, TokenScore};
    use backsight_core::tokens::{TokenId, TokenSpan, TopK};
    use std::path::Path;

    /// Answers by arithmetic: scores from the tokens and its weights, samples from the seed.
    struct Arithmetic {
        weights: f64,
        asked: AtomicU64,
        broken: bool,
        limits: Limits,
    }

    impl Arithmetic {
        fn new(weights: f64) -> Arc<Self> {
            let limits = Limits { scores: true, ..Limits::default() };
            Arc::new(Self { weights, asked: AtomicU64::new(0), broken: false, limits })
        }

        async fn ask(&self) -> Result<Usage, Error> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if self.broken {
                return Err(Error::Unreachable { server: "s".into(), why: "reset".into() });
            }
            Ok(Usage { prompt_tokens: 10, cached_tokens: Some(4), completion_tokens: 1 })
        }

        fn score_of(&self, tokens: &[TokenId], position: usize) -> TokenScore {
            let value = -self.weights - f64::from(tokens[position]) / 7.0;
            let logprob =
                if position == 0 { Err(Absence::NoContext) } else { Ok(Logprob::new(value).unwrap()) };
            TokenScore { logprob, top: TopK::new(vec![(3, Logprob::new(value - 1.0).unwrap())]) }
        }
    }

    #[async_trait]
    impl Model for Arithmetic {
        async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
            let usage = self.ask().await?;
            let id = (request.sampling.seed.unwrap() % 50_000) as TokenId;
            let tokens = vec![SampledToken { id, logprob: None, top: TopK::default() }];
            Ok(Generated { tokens, finish: Finish::Stop, versions: vec![], usage })
        }

        async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
            let usage = self.ask().await?;
            let score = |span: &TokenSpan| {
                let scores = span.range().map(|position| self.score_of(job.tokens(), position)).collect();
                SpanScore::new(*span, scores).unwrap()
            };
            Ok(Scored { spans: job.spans().iter().map(score).collect(), version: None, usage })
        }

        async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
            let usage = self.ask().await?;
            let message = Message::text(Role::Assistant, format!("{:?}", request.sampling.seed));
            Ok(ChatAnswer { message, finish: Finish::Stop, usage })
        }

        fn limits(&self) -> &Limits {
            &self.limits
        }
    }

    fn open(dir: &Path) -> Arc<Ledger> {
        Ledger::open(Arc::new(RunLock::acquire(dir).unwrap())).unwrap()
    }

    async fn ledgered(ledger: &Arc<Ledger>, model: &Arc<Arithmetic>) -> (Ledgered, Recognition) {
        let identity = Identity { kind: "test".into(), model: "m".into(), ..Identity::default() };
        let fingerprint = Fingerprint::measure(&**model, identity, &[5, 6, 7]).await.unwrap();
        model.asked.store(0, Ordering::Relaxed);
        let (id, recognition) = ledger.identify(&fingerprint).await.unwrap();
        let place = RunPlace { run: "run".into(), seed: 7 };
        let inner: Arc<dyn Model> = Arc::<Arithmetic>::clone(model);
        (Ledgered::new(Arc::clone(ledger), inner, id, ModelRole::Judge, place), recognition)
    }

    fn job(tokens: &[TokenId]) -> ScoreJob {
        ScoreJob::new(tokens.into(), vec![TokenSpan::at(0, tokens.len())], 1).unwrap()
    }

    fn sampling() -> Sampling {
        Sampling { temperature: 1.0, top_p: 1.0, top_k: None, seed: None, max_tokens: 9, constraint: None }
    }

    fn place(episode: usize, vote: usize) -> Place {
        Place { task: "t".into(), episode, step: 0, vote }
    }

    fn asked(model: &Arithmetic) -> u64 {
        model.asked.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_score_is_paid_once_also_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let first = {
            let (ledgered, recognition) = ledgered(&open(dir.path()), &model).await;
            assert_eq!(recognition, Recognition::New);
            let first = ledgered.score(&job(&[1, 2, 3])).await.unwrap();
            assert_eq!(ledgered.score(&job(&[1, 2, 3])).await.unwrap(), first);
            assert_eq!(ledgered.lookups(), Lookups { found: 1, paid: 1 });
            assert_eq!(asked(&model), 1);
            first
        };
        let (ledgered, recognition) = ledgered(&open(dir.path()), &model).await;
        assert_eq!(recognition, Recognition::Known);
        assert_eq!(ledgered.score(&job(&[1, 2, 3])).await.unwrap(), first);
        assert_eq!(asked(&model), 0);
    }

    #[tokio::test]
    async fn of_several_jobs_only_what_is_not_stored_is_paid() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let alone = ledgered.score(&job(&[1, 2])).await.unwrap();
        let jobs = [job(&[1, 2]), job(&[3, 4]), job(&[5, 6]), job(&[3, 4])];
        let answers: Vec<Scored> =
            ledgered.score_many(&jobs).await.into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!((&answers[0], &answers[1]), (&alone, &answers[3]));
        assert_ne!(answers[1], answers[2]);
        assert_eq!(asked(&model), 3);
        assert_eq!(ledgered.score(&job(&[5, 6])).await.unwrap(), answers[2]);
        assert_eq!((asked(&model), ledgered.lookups()), (3, Lookups { found: 2, paid: 3 }));
        assert!(ledgered.ledger.flights.lock().is_empty());
    }

    /// Each asks for the same jobs in another order: nobody waits for ever, and nothing is paid twice.
    #[tokio::test(flavor = "multi_thread")]
    async fn overlapping_groups_of_jobs_do_not_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let ledgered = Arc::new(ledgered);
        let calls: Vec<_> = (0..30u32)
            .map(|n| {
                let ledgered = Arc::clone(&ledgered);
                let jobs: Vec<ScoreJob> = (0..10).map(|it| job(&[7, (it * 7 + n) % 10])).collect();
                tokio::spawn(async move { ledgered.score_many(&jobs).await })
            })
            .collect();
        for call in calls {
            let answers =
                tokio::time::timeout(std::time::Duration::from_secs(60), call).await.unwrap().unwrap();
            assert!(answers.iter().all(Result::is_ok));
        }
        assert_eq!(asked(&model), 10);
    }

    #[tokio::test]
    async fn equal_calls_at_the_same_time_are_paid_once() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let ledgered = Arc::new(ledgered);
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let ledgered = Arc::clone(&ledgered);
                tokio::spawn(async move { ledgered.score(&job(&[1, 2, 3])).await })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(asked(&model), 1);
        assert!(ledgered.ledger.flights.lock().is_empty());
    }

    #[tokio::test]
    async fn three_votes_are_three_draws() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let mut answers = Vec::new();
        for vote in [0, 1, 2, 0, 1, 2] {
            let messages = vec![Message::text(Role::User, "what do you think?")];
            let request =
                ChatRequest { messages, tools: vec![], sampling: sampling(), place: place(0, vote) };
            answers.push(ledgered.chat(&request).await.unwrap().message);
        }
        assert_eq!(asked(&model), 3);
        assert_eq!(answers[..3], answers[3..]);
        assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2]);
    }

    #[tokio::test]
    async fn the_four_episodes_of_a_group_differ() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let mut ids = std::collections::HashSet::new();
        for episode in 0..4 {
            let place = place(episode, 0);
            let request = GenerateRequest {
                prompt: vec![1, 2],
                sampling: sampling(),
                stop_ids: vec![],
                top_k: 0,
                place,
            };
            let first = ledgered.generate(&request).await.unwrap();
            assert_eq!(ledgered.generate(&request).await.unwrap(), first);
            ids.insert(first.tokens[0].id);
        }
        assert_eq!((ids.len(), asked(&model)), (4, 4));
    }

    #[tokio::test]
    async fn other_weights_behind_the_same_name_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let mut values = Vec::new();
        let mut seen = Vec::new();
        for weights in [0.1, 0.11, 0.5, 0.1] {
            let model = Arithmetic::new(weights);
            let (ledgered, recognition) = ledgered(&ledger, &model).await;
            let scored = ledgered.score(&job(&[1, 2])).await.unwrap();
            values.push(scored.spans[0].scores()[1].logprob.clone().unwrap().get());
            seen.push((recognition, asked(&model)));
        }
        let changed =
            |seen: &Recognition| matches!(seen, Recognition::Changed(Some(by)) if (by - 0.4).abs() < 0.02);
        assert_eq!(seen[0], (Recognition::New, 1));
        assert_eq!(seen[1], (Recognition::Known, 0), "noise is no other model");
        assert!(changed(&seen[2].0) && seen[2].1 == 1, "{seen:?}");
        assert_eq!(seen[3], (Recognition::Known, 0), "the old answers are found again");
        assert_eq!((values[0], values[1], values[3]), (values[0], values[0], values[0]));
        assert!(values[2] < values[0] - 0.3);
    }

    #[tokio::test]
    async fn a_failed_call_is_not_stored() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let model = Arithmetic::new(0.1);
        let (healthy, _) = ledgered(&ledger, &model).await;
        let limits = model.limits.clone();
        let broken = Arc::new(Arithmetic { weights: 0.1, asked: AtomicU64::new(0), broken: true, limits });
        let place = RunPlace { run: "run".into(), seed: 7 };
        let failing = Ledgered::new(Arc::clone(&ledger), broken, healthy.model, ModelRole::Judge, place);
        assert!(failing.score(&job(&[1, 2])).await.is_err());
        healthy.score(&job(&[1, 2])).await.unwrap();
        assert_eq!(asked(&model), 1);
    }

    #[tokio::test]
    async fn what_was_paid_is_told_by_role() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let (ledgered, _) = ledgered(&ledger, &Arithmetic::new(0.1)).await;
        for n in 1..4 {
            ledgered.score(&job(&[n, 2])).await.unwrap();
            ledgered.score(&job(&[n, 2])).await.unwrap();
        }
        let spent = Spent { requests: 3, prompt_tokens: 30, cached_tokens: 12, completion_tokens: 3 };
        assert_eq!(ledger.paid().await.unwrap(), [(ModelRole::Judge, spent)]);
    }

    #[tokio::test]
    async fn a_flipped_bit_is_paid_again_and_never_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let first = ledgered.score(&job(&[1, 2])).await.unwrap();
        let connection = Connection::open(dir.path().join(LEDGER_FILE)).unwrap();
        let mut answer: Vec<u8> =
            connection.query_row("SELECT answer FROM answers", [], |row| row.get(0)).unwrap();
        let middle = answer.len() / 2;
        answer[middle] ^= 1;
        connection.execute("UPDATE answers SET answer = ?1", [answer]).unwrap();
        let again = ledgered.score(&job(&[1, 2])).await.unwrap();
        assert_eq!((again, asked(&model)), (first, 2));
        let said = ledgered.ledger.notice().unwrap();
        assert!(said.starts_with("1 stored answers were damaged on the disk ("), "{said}");
        ledgered.score(&job(&[1, 2])).await.unwrap();
        assert_eq!(asked(&model), 2, "what is paid again is stored again");
    }
}
