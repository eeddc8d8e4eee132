//! A model whose answers are kept: the ledger is asked first, and what the model answers is stored before it is used.
//!
//! Owns [`Ledgered`]. It stands outside of budgets, so that what is found costs nothing, gives every draw its seed, and
//! knows whose the answers are that it handed out. An answer that lacks a number is never kept: it is asked for again,
//! twice at most. Where answers are kept is the business of `ledger`, whose they are that of `versions`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;

use super::blocks;
use super::ledger::Ledger;
use super::record::{Block, Record};
use super::stamp::{Origin, Stamp, Whose};
use super::versions::{Checks, Patience, Versions};
use crate::model::budget::ModelRole;
use crate::model::endpoint::hashed;
use crate::model::key::{Key, ModelId, seed_for};
use crate::model::route::{self, Endpoints};
use crate::model::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Sampling, Scored,
};
use backsight_core::episode::{TokenVersion, Version};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::TokenSpan;

/// How often one call is asked for in one run: an answer that lacks a number, or that the weights changed under, is
/// asked for again.
const ASKED_AT_MOST: u32 = 3;

/// Where draws are made: the stage they belong to, whichever command works on it, and the `--seed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlace {
    /// Draws of different stages are different draws.
    pub stage: &'static str,
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

/// Whether what was made of scores may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stands {
    /// All of them are of one version, which has this name where it could be measured.
    Yes(Option<String>),
    /// The weights changed around one of them: what was made is to be made again.
    No,
}

/// A model whose answers are kept.
pub struct Ledgered {
    ledger: Arc<Ledger>,
    inner: Arc<dyn Model>,
    versions: Arc<Versions>,
    role: ModelRole,
    place: RunPlace,
    /// Where its calls go while weights belong to endpoints.
    home: Option<u64>,
    counts: Counts,
    /// Those of everybody who shares the model.
    all: Arc<Counts>,
    handed: Mutex<Handed>,
}

#[derive(Default)]
struct Counts {
    found: AtomicU64,
    paid: AtomicU64,
    sent: AtomicU64,
}

impl Counts {
    fn lookups(&self) -> Lookups {
        Lookups { found: self.found.load(Ordering::Relaxed), paid: self.paid.load(Ordering::Relaxed) }
    }
}

/// Whose the answers are that were handed out.
#[derive(Default)]
struct Handed {
    scores: BTreeSet<Whose>,
    /// Stretches of draws, each with the weights as the server names them.
    draws: Vec<(Whose, TokenVersion)>,
}

/// An answer, and whose it is.
type Found<R> = (R, BTreeSet<Whose>);

/// Something that is paid once: how it is asked for, and how its answer is known and found.
trait PaidCall: Sync {
    /// What is answered.
    type Answer: Record + Send + Sync;

    /// The key of the answer of a model.
    fn key(&self, of: &Ledgered, model: ModelId) -> Key;

    /// Asks for all of them.
    fn ask(
        calls: &[&Self],
        inner: &dyn Model,
    ) -> impl Future<Output = Vec<Result<Self::Answer, Error>>> + Send;

    /// What is stored of a model's answer.
    fn find(
        &self,
        of: &Ledgered,
        model: ModelId,
    ) -> impl Future<Output = Result<Option<Found<Self::Answer>>, Error>> + Send {
        async move {
            let found = of.ledger.get(self.key(of, model), of.role).await?;
            Ok(found.map(|(answer, whose)| (answer, [whose].into())))
        }
    }

    /// The answer's numbers by position, under the keys of what stands before them.
    fn blocks(&self, _: &Ledgered, _: ModelId, _: &Self::Answer) -> Vec<(Key, Block)> {
        Vec::new()
    }
}

impl PaidCall for GenerateRequest {
    type Answer = Generated;

    fn key(&self, of: &Ledgered, model: ModelId) -> Key {
        let top_k = of.inner.top_k_limit().unwrap_or(usize::MAX).min(self.top_k);
        Key::of_generate(model, of.place.stage, &Self { top_k, ..self.clone() })
    }

    async fn ask(calls: &[&Self], inner: &dyn Model) -> Vec<Result<Generated, Error>> {
        join_all(calls.iter().map(|call| inner.generate(call))).await
    }
}

impl PaidCall for ChatRequest {
    type Answer = ChatAnswer;

    fn key(&self, of: &Ledgered, model: ModelId) -> Key {
        Key::of_chat(model, of.place.stage, self)
    }

    async fn ask(calls: &[&Self], inner: &dyn Model) -> Vec<Result<ChatAnswer, Error>> {
        let requests: Vec<Self> = calls.iter().copied().cloned().collect();
        inner.chat_many(&requests).await
    }
}

/// A score has as many candidates as the model gives now. That is asked again after the answer, because the largest K
/// may have become less meanwhile, and an answer with fewer candidates is never kept as one with more.
impl PaidCall for ScoreJob {
    type Answer = Scored;

    fn key(&self, of: &Ledgered, model: ModelId) -> Key {
        Key::of_score(model, &self.within(of.inner.top_k_limit()))
    }

    async fn ask(calls: &[&Self], inner: &dyn Model) -> Vec<Result<Scored, Error>> {
        let jobs: Vec<Self> = calls.iter().copied().cloned().collect();
        inner.score_many(&jobs).await
    }

    async fn find(&self, of: &Ledgered, model: ModelId) -> Result<Option<Found<Scored>>, Error> {
        of.ledger.scores(model, &self.within(of.inner.top_k_limit()), of.role).await
    }

    fn blocks(&self, of: &Ledgered, model: ModelId, answer: &Scored) -> Vec<(Key, Block)> {
        let job = self.within(of.inner.top_k_limit());
        let blocks = blocks::cut(&job, answer);
        let keys = Key::of_prefixes(model, &job, blocks.keys().copied());
        keys.into_iter().zip(blocks.into_values()).collect()
    }
}

/// What became of an answer.
enum Kept<R> {
    /// It is in the ledger.
    Stored(Found<R>),
    /// It lacks a number.
    Incomplete(R, Stamp),
    /// The weights changed while it was under way, and what they were is unknown.
    Straddles,
}

impl Ledgered {
    /// `inner`, whose versions are watched, working for `role`.
    pub fn new(
        ledger: Arc<Ledger>,
        inner: Arc<dyn Model>,
        versions: Arc<Versions>,
        role: ModelRole,
        place: RunPlace,
    ) -> Self {
        let (counts, all, handed) = (Counts::default(), Arc::default(), Mutex::default());
        Self { ledger, inner, versions, role, place, home: None, counts, all, handed }
    }

    /// The same model with counts of its own, from zero, and nothing handed out. Where endpoints may have different
    /// weights, all its calls go to one of them while that is there.
    #[must_use]
    pub fn at_home(&self, episode: &str) -> Self {
        let home = self.versions.may_differ().then(|| hashed(episode));
        Self { home, ..self.counted_apart() }
    }

    /// The same model with counts of its own, from zero, and nothing handed out.
    #[must_use]
    pub fn counted_apart(&self) -> Self {
        let (ledger, inner) = (Arc::clone(&self.ledger), Arc::clone(&self.inner));
        let own = Self::new(ledger, inner, Arc::clone(&self.versions), self.role, self.place.clone());
        Self { all: Arc::clone(&self.all), ..own }
    }

    /// What was found and what was paid through this model.
    pub fn lookups(&self) -> Lookups {
        self.counts.lookups()
    }

    /// The same of everybody who shares it.
    pub fn all_lookups(&self) -> Lookups {
        self.all.lookups()
    }

    /// How many calls were asked of the server because the ledger had no answer, whatever came of them.
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }

    fn count(&self, what: impl Fn(&Counts) -> &AtomicU64, n: u64) {
        for counts in [&self.counts, &*self.all] {
            what(counts).fetch_add(n, Ordering::Relaxed);
        }
    }

    /// What measuring the weights has cost and shown, where they can change.
    pub fn checks(&self) -> Option<Checks> {
        self.versions.checks()
    }

    /// Measures the weights once more if anything waits for that; tells whether the scores handed out so far stand.
    pub async fn settle(&self) -> Result<Stands, Error> {
        let handed = self.handed().scores.clone();
        let mut origins = BTreeSet::new();
        for whose in handed {
            origins.insert(self.origin(whose).await?);
        }
        let mut origins = origins.into_iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(Stands::Yes(None)),
            (Some(Origin::Known(model)), None) => Ok(Stands::Yes(self.versions.name(model))),
            _ => Ok(Stands::No),
        }
    }

    /// Fails once a change of the weights has ended the run.
    pub fn is_going_on(&self) -> Result<(), Error> {
        self.versions.current().map(drop)
    }

    /// What the weights are called that answer now, where they could be measured and are the same everywhere.
    pub fn version_now(&self) -> Option<String> {
        self.versions.name(self.versions.order(|it| it.stamp(Endpoints::ALL))?.model)
    }

    /// How many measurements of the weights have been begun.
    pub fn n_measured(&self) -> u64 {
        self.versions.order(|it| it.begun)
    }

    /// Whether the weights were the same all the time from when they were `unbroken_since` until `n_measured`
    /// measurements had been begun; waits until that is known.
    pub async fn vouches_for(&self, unbroken_since: u64, n_measured: u64) -> Result<bool, Error> {
        self.versions.is_unbroken(unbroken_since, n_measured).await
    }

    /// Forgets what was handed out, because it is made again.
    pub fn begin_again(&self) {
        *self.handed() = Handed::default();
    }

    /// Which weights sampled the draws handed out so far, by step. Waits until that is known if `to_the_end`; what
    /// cannot be found out stays unknown.
    pub async fn drawn_by(&self, to_the_end: bool) -> Vec<TokenVersion> {
        let draws = std::mem::take(&mut self.handed().draws);
        let mut all = Vec::new();
        for (whose, drawn) in draws {
            let origin = match whose {
                Whose::Provisional(stamp) if !to_the_end => self.versions.order(|it| it.origin(stamp)),
                whose => self.origin(whose).await.ok(),
            };
            let version = origin.map_or(Version::Unknown, |origin| self.version(origin));
            all.push(TokenVersion { version, ..drawn });
        }
        all.sort_by_key(|it| (it.step, it.span.start()));
        all
    }

    async fn origin(&self, whose: Whose) -> Result<Origin, Error> {
        match whose {
            Whose::Provisional(stamp) => self.versions.settle(stamp).await,
            Whose::Settled(origin) => Ok(origin),
        }
    }

    fn version(&self, origin: Origin) -> Version {
        let name = |model| self.versions.name(model);
        match origin {
            Origin::Known(model) => name(model).map_or(Version::Unknown, Version::Known),
            Origin::Between(before, after) => match (name(before), name(after)) {
                (Some(before), Some(after)) => Version::Between(before, after),
                _ => Version::Unknown,
            },
        }
    }

    /// The stored answer, or the one that is given now, stored.
    async fn once<C: PaidCall>(&self, call: &C, mut n_asked: u32) -> Result<Found<C::Answer>, Error> {
        loop {
            self.versions.current()?;
            let models = self.versions.serving(self.home);
            n_asked += 1;
            let kept = self.once_each(&models, &[(call.key(self, models[0]), call)].into()).await;
            for kept in kept.into_values() {
                match kept? {
                    Kept::Stored(found) => return Ok(found),
                    // The numbers that did come are good; whoever needs the others sees that they are absent.
                    Kept::Incomplete(answer, stamp) if n_asked >= ASKED_AT_MOST => {
                        return Ok((answer, [Whose::Provisional(stamp)].into()));
                    }
                    Kept::Straddles if n_asked >= ASKED_AT_MOST => return Err(never_still()),
                    Kept::Incomplete(..) => {}
                    Kept::Straddles => self.versions.check(Patience::Brief).await?,
                }
            }
        }
    }

    /// What is stored of calls under distinct keys, and for the rest what is answered now, stored. They are asked for
    /// together, and once.
    async fn once_each<C: PaidCall>(
        &self,
        models: &[ModelId],
        calls: &BTreeMap<Key, &C>,
    ) -> BTreeMap<Key, Result<Kept<C::Answer>, Error>> {
        let (mut answers, mut missing, mut flights) = (BTreeMap::new(), Vec::new(), Vec::new());
        // Keys are entered in their order by everybody, so that no two callers wait for each other.
        for (&key, &call) in calls {
            let flight = self.ledger.flights.enter(key).await;
            if let Some(found) = self.find(call, models).await.transpose() {
                answers.insert(key, found.map(Kept::Stored));
            } else {
                flights.push(flight);
                missing.push((key, call));
            }
        }
        if missing.is_empty() {
            return answers;
        }
        let (keys, missing): (Vec<Key>, Vec<&C>) = missing.into_iter().unzip();
        let _asking = self.versions.asking().await;
        match self.versions.current() {
            Ok(sent) => {
                let (asked, by) = route::follow(self.home, C::ask(&missing, &*self.inner)).await;
                let kept = missing.iter().zip(asked).map(|(call, it)| self.keep((sent, by), *call, it));
                answers.extend(keys.into_iter().zip(join_all(kept).await));
            }
            Err(error) => answers.extend(keys.into_iter().map(|key| (key, Err(error.clone())))),
        }
        answers
    }

    /// The stored answers, or those that are given now, stored; what is asked twice is asked for once.
    async fn once_all<C: PaidCall>(&self, calls: &[C]) -> Vec<Result<Found<C::Answer>, Error>>
    where
        C::Answer: Clone,
    {
        let serving = self.versions.serving(self.home);
        let &[model] = &serving[..] else {
            // Who answers one of them decides only about that one.
            return join_all(calls.iter().map(|call| self.once(call, 0))).await;
        };
        let keys: Vec<Key> = calls.iter().map(|call| call.key(self, model)).collect();
        let distinct: BTreeMap<Key, &C> = keys.iter().copied().zip(calls).collect();
        let kept = self.once_each(&serving, &distinct).await.into_iter();
        let answers = kept.zip(distinct.into_values()).map(|((key, kept), call)| async move {
            match kept {
                Ok(Kept::Stored(found)) => (key, Ok(found)),
                Ok(Kept::Incomplete(..) | Kept::Straddles) => (key, self.once(call, 1).await),
                Err(error) => (key, Err(error)),
            }
        });
        let answers: BTreeMap<Key, _> = join_all(answers).await.into_iter().collect();
        keys.iter().map(|key| answers[key].clone()).collect()
    }

    /// What is stored of one of these models.
    async fn find<C: PaidCall>(
        &self,
        call: &C,
        models: &[ModelId],
    ) -> Result<Option<Found<C::Answer>>, Error> {
        for model in models {
            if let Some(found) = call.find(self, *model).await? {
                self.count(|it| &it.found, 1);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Stores an answer before it is handed on; it was sent when so many measurements had been begun.
    async fn keep<C: PaidCall>(
        &self,
        (sent, by): (u64, Endpoints),
        call: &C,
        answer: Result<C::Answer, Error>,
    ) -> Result<Kept<C::Answer>, Error> {
        let never_left = |error: &Error| {
            matches!(error, Error::Budget { .. } | Error::Invalid { .. } | Error::Unsupported { .. })
        };
        let left = !answer.as_ref().is_err_and(never_left);
        self.count(|it| &it.sent, u64::from(left));
        let answer = answer?;
        let _keeping = self.versions.keeping().await;
        let is_still = self.versions.order(|it| it.unbroken_since(by)) <= sent;
        let is_told = !self.versions.contradicts(answer.told(), by);
        let whose = match self.versions.order(|it| it.stamp(by)) {
            Some(stamp) if is_still && (is_told || C::Answer::IS_DRAW) => Whose::Provisional(stamp),
            _ if C::Answer::IS_DRAW => Whose::Settled(self.versions.order(|it| it.between(sent, by))),
            _ => {
                self.ledger.spend(self.role, answer.usage()).await?;
                return Ok(Kept::Straddles);
            }
        };
        if let (false, Whose::Provisional(stamp)) = (answer.is_whole(), whose) {
            self.ledger.spend(self.role, answer.usage()).await?;
            return Ok(Kept::Incomplete(answer, stamp));
        }
        let (key, blocks) = (call.key(self, whose.model()), call.blocks(self, whose.model(), &answer));
        self.ledger.put(key, whose, self.role, &answer, blocks).await?;
        self.count(|it| &it.paid, 1);
        self.versions.answered(answer.told(), by);
        Ok(Kept::Stored((answer, [whose].into())))
    }

    /// Takes note of whose a score is; it says so itself from now on.
    fn hand_out(&self, (scored, whose): Found<Scored>) -> Scored {
        let name = whose.first().and_then(|it| self.versions.name(it.model()));
        let version = name.or(scored.version);
        self.handed().scores.extend(whose);
        Scored { version, ..scored }
    }

    fn note_draw(&self, place: &Place, generated: &Generated, whose: Whose) {
        let all = TokenSpan::at(0, generated.tokens.len());
        let told: Vec<_> = generated.versions.iter().map(|it| (it.span, Some(it.version.clone()))).collect();
        let told = if told.is_empty() { vec![(all, None)] } else { told };
        let (step, version) = (place.step, Version::Unknown);
        let drawn = |(span, told)| (whose, TokenVersion { step, span, version: version.clone(), told });
        self.handed().draws.extend(told.into_iter().map(drawn));
    }

    fn handed(&self) -> MutexGuard<'_, Handed> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seeded_chat(&self, request: &ChatRequest) -> ChatRequest {
        ChatRequest { sampling: self.seeded(&request.sampling, &request.place), ..request.clone() }
    }

    fn seeded(&self, sampling: &Sampling, place: &Place) -> Sampling {
        let seed = sampling.seed.or_else(|| Some(seed_for(self.place.seed, place)));
        Sampling { seed, ..sampling.clone() }
    }
}

fn never_still() -> Error {
    Error::garbled("the model", format!("its weights changed while it answered, {ASKED_AT_MOST} times"))
}

#[async_trait]
impl Model for Ledgered {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let sampling = self.seeded(&request.sampling, &request.place);
        let request = GenerateRequest { sampling, ..request.clone() };
        let (generated, whose) = self.once(&request, 0).await?;
        // A draw has one.
        whose.into_iter().for_each(|it| self.note_draw(&request.place, &generated, it));
        Ok(generated)
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        Ok(self.hand_out(self.once(job, 0).await?))
    }

    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let found = self.once_all(jobs).await.into_iter();
        found.map(|found| found.map(|found| self.hand_out(found))).collect()
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        Ok(self.once(&self.seeded_chat(request), 0).await?.0)
    }

    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        let requests: Vec<ChatRequest> = requests.iter().map(|request| self.seeded_chat(request)).collect();
        self.once_all(&requests).await.into_iter().map(|found| found.map(|(answer, _)| answer)).collect()
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn top_k_limit(&self) -> Option<usize> {
        self.inner.top_k_limit()
    }

    fn unbroken_since(&self) -> u64 {
        self.versions.order(|it| it.unbroken_since(Endpoints::ALL))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::model::budget::Spent;
    use crate::model::{Finish, SampledToken, Usage};
    use crate::store::fingerprint::{Fingerprint, Identity};
    use crate::store::ledger::{LEDGER_FILE, Recognition};
    use crate::store::lock::RunLock;
    use crate::store::versions::{Gauge, Measure, NewWeights, WeightRules};
    use backsight_core::episode::{Message, Role};
    use backsight_core::score::{Absence, SpanScore, TokenScore};
    use backsight_core::tokens::{Logprob, TokenId, TopK};
    use rusqlite::Connection;
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;

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
            let top = TopK::new(vec![(3, Logprob::new(value - 1.0).unwrap())]);
            TokenScore { logprob, top: if position == 0 { TopK::default() } else { top } }
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
        let (id, recognition) = ledger.identify(&fingerprint, 0.003).await.unwrap();
        (kept(ledger, Arc::<Arithmetic>::clone(model), id), recognition)
    }

    /// A model that cannot change.
    fn kept(ledger: &Arc<Ledger>, inner: Arc<dyn Model>, id: ModelId) -> Ledgered {
        kept_for(ModelRole::Judge, ledger, inner, id)
    }

    fn kept_for(role: ModelRole, ledger: &Arc<Ledger>, inner: Arc<dyn Model>, id: ModelId) -> Ledgered {
        let place = RunPlace { stage: "run", seed: 7 };
        let known = (vec![id], Default::default());
        let versions = Versions::new(Arc::clone(ledger), role, WeightRules::default(), None, vec![], known);
        Ledgered::new(Arc::clone(ledger), inner, versions, role, place)
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
            assert_eq!(ledgered.score(&job(&[1, 2, 3])).await.unwrap().spans, first.spans);
            assert_eq!(ledgered.lookups(), Lookups { found: 1, paid: 1 });
            assert_eq!(asked(&model), 1);
            first
        };
        let (ledgered, recognition) = ledgered(&open(dir.path()), &model).await;
        assert_eq!(recognition, Recognition::Known);
        assert_eq!(ledgered.score(&job(&[1, 2, 3])).await.unwrap().spans, first.spans);
        assert_eq!(asked(&model), 0);
    }

    #[tokio::test]
    async fn what_waits_for_the_measurement_of_one_role_is_not_found_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, model) = (open(dir.path()), Arithmetic::new(0.1));
        let (judge, _) = ledgered(&ledger, &model).await;
        let id = judge.versions.order(|it| it.stamp(Endpoints::ALL)).unwrap().model;
        let teacher = kept_for(ModelRole::Teacher, &ledger, Arc::<Arithmetic>::clone(&model), id);
        let first = judge.score(&job(&[1, 2, 3])).await.unwrap();
        assert_eq!(teacher.score(&job(&[1, 2, 3])).await.unwrap().spans, first.spans);
        assert_eq!((asked(&model), teacher.lookups()), (2, Lookups { found: 0, paid: 1 }));
        let paid: Vec<_> =
            ledger.paid().await.unwrap().into_iter().map(|(_, spent)| spent.requests).collect();
        assert_eq!(paid, [1, 1], "what either paid is counted");
        // The teacher's measurement settles its own, which everybody may then use.
        ledger.settle(ModelRole::Judge, u64::MAX >> 1).await.unwrap();
        assert!(judge.find(&job(&[1, 2, 3]), &[id]).await.unwrap().is_none());
        ledger.settle(ModelRole::Teacher, u64::MAX >> 1).await.unwrap();
        let found = judge.score(&job(&[1, 2, 3])).await.unwrap();
        assert_eq!((found.spans, asked(&model)), (first.spans, 2));
    }

    #[tokio::test]
    async fn what_was_found_by_a_larger_call_serves_a_smaller() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let tokens: Vec<TokenId> = (0..200).collect();
        let job = |end: usize, start: usize, top_k| {
            ScoreJob::new(tokens[..end].into(), vec![TokenSpan::new(start, end).unwrap()], top_k).unwrap()
        };
        let wide = ledgered(&open(dir.path()), &model).await.0.score(&job(200, 20, 1)).await.unwrap();
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        for small in [job(200, 150, 1), job(130, 20, 1), job(70, 60, 0)] {
            let found = ledgered.score(&small).await.unwrap();
            let logprobs: Vec<_> = found.spans[0].logprobs().collect();
            let skipped = small.spans()[0].start() - 20;
            assert_eq!(
                logprobs,
                wide.spans[0].logprobs().skip(skipped).take(logprobs.len()).collect::<Vec<_>>()
            );
        }
        assert_eq!((asked(&model), ledgered.lookups()), (0, Lookups { found: 3, paid: 0 }));
        ledgered.score(&job(200, 19, 1)).await.unwrap();
        ledgered.score(&job(200, 20, 2)).await.unwrap();
        assert_eq!(asked(&model), 2, "more than that is asked for");
    }

    #[tokio::test]
    async fn of_several_jobs_only_what_is_not_stored_is_paid() {
        let dir = tempfile::tempdir().unwrap();
        let model = Arithmetic::new(0.1);
        let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
        let alone = ledgered.score(&job(&[1, 2])).await.unwrap();
        let jobs = [job(&[1, 2]), job(&[3, 4]), job(&[5, 6]), job(&[3, 4])];
        let answers: Vec<_> =
            ledgered.score_many(&jobs).await.into_iter().map(|it| it.unwrap().spans).collect();
        assert_eq!((&answers[0], &answers[1]), (&alone.spans, &answers[3]));
        assert_ne!(answers[1], answers[2]);
        assert_eq!(asked(&model), 3);
        assert_eq!(ledgered.score(&job(&[5, 6])).await.unwrap().spans, answers[2]);
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

    /// A process that was killed left scores behind it that no measurement had settled.
    #[tokio::test]
    async fn what_nothing_settled_stands_only_if_the_next_run_finds_the_same_weights() {
        for (weights, n_paid_again) in [(0.1, 0), (0.5, 1)] {
            let dir = tempfile::tempdir().unwrap();
            let ledger = open(dir.path());
            let model = Arithmetic::new(0.1);
            let (before, _) = ledgered(&ledger, &model).await;
            before.score(&job(&[1, 2])).await.unwrap();
            let id = ledgered(&ledger, &Arithmetic::new(weights))
                .await
                .0
                .versions
                .order(|it| it.stamp(Endpoints::ALL))
                .unwrap()
                .model;
            ledger.resume(ModelRole::Judge, &[id]).await.unwrap();
            // The old weights are back, and only what is known to be theirs is used.
            let (after, _) = ledgered(&ledger, &model).await;
            after.score(&job(&[1, 2])).await.unwrap();
            assert_eq!(asked(&model), n_paid_again);
            assert_eq!(ledger.paid().await.unwrap()[0].1.requests, 1 + n_paid_again, "both were paid");
        }
    }

    #[tokio::test]
    async fn a_failed_call_is_not_stored() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let model = Arithmetic::new(0.1);
        let (healthy, _) = ledgered(&ledger, &model).await;
        let limits = model.limits.clone();
        let broken = Arc::new(Arithmetic { weights: 0.1, asked: AtomicU64::new(0), broken: true, limits });
        let failing =
            kept(&ledger, broken, healthy.versions.order(|it| it.stamp(Endpoints::ALL)).unwrap().model);
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
            connection.query_row("SELECT found FROM scores", [], |row| row.get(0)).unwrap();
        let middle = answer.len() / 2;
        answer[middle] ^= 1;
        connection.execute("UPDATE scores SET found = ?1", [answer]).unwrap();
        let again = ledgered.score(&job(&[1, 2])).await.unwrap();
        assert_eq!((again, asked(&model)), (first, 2));
        let said = ledgered.ledger.notice().unwrap();
        assert!(said.starts_with("1 stored records were damaged on the disk ("), "{said}");
        ledgered.score(&job(&[1, 2])).await.unwrap();
        assert_eq!(asked(&model), 2, "what is paid again is stored again");
    }

    /// One flipped byte in whatever is text: the record is dropped, its answer is paid again, and that is all.
    #[tokio::test]
    async fn a_flipped_byte_in_a_text_is_no_end() {
        for flip in [
            "UPDATE models SET known = CAST(x'ff' || substr(known, 2) AS TEXT)",
            "UPDATE models SET known = replace(known, '-', '+')",
            "UPDATE models SET known = CAST(x'80' AS TEXT)",
            "UPDATE answers SET role = CAST(x'ff75646765' AS TEXT)",
            "UPDATE answers SET kind = CAST(x'ff' AS TEXT)",
            "UPDATE answers SET checksum = 'text'",
            "PRAGMA foreign_keys = OFF; UPDATE answers SET model = model + 64",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let model = Arithmetic::new(0.1);
            let first = ledgered(&open(dir.path()), &model).await.0.score(&job(&[1, 2])).await.unwrap();
            Connection::open(dir.path().join(LEDGER_FILE)).unwrap().execute_batch(flip).unwrap();
            let (ledgered, _) = ledgered(&open(dir.path()), &model).await;
            let again = ledgered.score(&job(&[1, 2])).await.unwrap();
            assert_eq!(again.spans, first.spans, "{flip}");
            assert!(matches!(ledgered.settle().await, Ok(Stands::Yes(_))), "{flip}");
            ledgered.ledger.paid().await.unwrap();
        }
    }

    /// Its weights are others while it is asked the first time, which is measured, and then the old ones again.
    struct Flickering {
        inner: Arc<Arithmetic>,
        other: Arc<Arithmetic>,
        is_other: Arc<AtomicBool>,
        versions: OnceLock<Arc<Versions>>,
    }

    impl Flickering {
        async fn be(&self, is_other: bool) {
            self.is_other.store(is_other, Ordering::SeqCst);
            self.versions.get().unwrap().check(Patience::Full).await.unwrap();
        }
    }

    #[async_trait]
    impl Model for Flickering {
        async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
            self.inner.generate(request).await
        }

        async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
            if asked(&self.other) > 0 {
                return self.inner.score(job).await;
            }
            self.be(true).await;
            let scored = self.other.score(job).await;
            self.be(false).await;
            scored
        }

        async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
            self.inner.chat(request).await
        }

        fn limits(&self) -> &Limits {
            self.inner.limits()
        }
    }

    /// A gauge of a server that has one model or another.
    async fn gauge(models: [Arc<Arithmetic>; 2], is_other: Arc<AtomicBool>) -> Gauge {
        let of = |idx: usize| {
            let model = Arc::clone(&models[idx]);
            let identity = Identity { kind: "test".into(), model: "m".into(), ..Identity::default() };
            async move {
                let limits = model.limits.clone();
                let probed =
                    Arithmetic { weights: model.weights, asked: AtomicU64::new(0), broken: false, limits };
                Fingerprint::measure(&probed, identity, &[5, 6, 7]).await.unwrap()
            }
        };
        let found = [of(0).await, of(1).await];
        let expected = found[0].clone();
        let measure: Measure = Box::new(move |_| {
            let found = found[usize::from(is_other.load(Ordering::SeqCst))].clone();
            Box::pin(async move { Ok(found) })
        });
        Gauge { server: "s".into(), measure, expected, noise: 0.0, n_measured: 0 }
    }

    #[tokio::test]
    async fn weights_that_were_others_while_it_was_asked_give_no_number_though_they_are_back() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let (inner, other, is_other) = (Arithmetic::new(0.1), Arithmetic::new(0.5), Arc::default());
        let right = inner.score(&job(&[1, 2])).await.unwrap().spans;
        let gauge = gauge([Arc::clone(&inner), Arc::clone(&other)], Arc::clone(&is_other)).await;
        let (id, _) = ledger.identify(&gauge.expected, 0.0).await.unwrap();
        let (role, place) = (ModelRole::Teacher, RunPlace { stage: "run", seed: 7 });
        let rules = WeightRules { new_weights: NewWeights::Continue, ..WeightRules::default() };
        let names = ledger.names().await.unwrap();
        let versions = Versions::new(Arc::clone(&ledger), role, rules, None, vec![gauge], (vec![id], names));
        let model = Arc::new(Flickering { inner, other, is_other, versions: OnceLock::new() });
        let _ = model.versions.set(Arc::clone(&versions));
        let ledgered = Ledgered::new(ledger, model, versions, role, place);
        assert_eq!(ledgered.score(&job(&[1, 2])).await.unwrap().spans, right);
        assert!(matches!(ledgered.settle().await, Ok(Stands::Yes(Some(_)))));
    }

    /// An answer without a number, as often as it lacks one.
    struct Lacking {
        inner: Arc<Arithmetic>,
        left: AtomicU64,
    }

    #[async_trait]
    impl Model for Lacking {
        async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
            self.inner.generate(request).await
        }

        async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
            let scored = self.inner.score(job).await?;
            let less = |left: u64| left.checked_sub(1);
            if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                return Ok(scored);
            }
            let lacking = |span: &SpanScore| {
                let score = TokenScore { logprob: Err(Absence::NotReturned), top: TopK::default() };
                SpanScore::new(span.span(), vec![score; span.span().len()]).unwrap()
            };
            Ok(Scored { spans: scored.spans.iter().map(lacking).collect(), ..scored })
        }

        async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
            self.inner.chat(request).await
        }

        fn limits(&self) -> &Limits {
            self.inner.limits()
        }
    }

    #[tokio::test]
    async fn an_answer_without_a_number_is_asked_for_again_twice_and_never_kept() {
        for (lacks, together) in [(2, false), (2, true), (3, false), (3, true)] {
            let dir = tempfile::tempdir().unwrap();
            let arithmetic = Arithmetic::new(0.1);
            let ledger = open(dir.path());
            let id = ledgered(&ledger, &arithmetic)
                .await
                .0
                .versions
                .order(|it| it.stamp(Endpoints::ALL))
                .unwrap()
                .model;
            let inner = Arc::new(Lacking { inner: Arc::clone(&arithmetic), left: AtomicU64::new(lacks) });
            let ledgered = kept(&ledger, inner, id);
            let score = async || match together {
                true => ledgered.score_many(&[job(&[1, 2])]).await.remove(0).unwrap(),
                false => ledgered.score(&job(&[1, 2])).await.unwrap(),
            };
            let first = score().await;
            assert_eq!((first.is_whole(), asked(&arithmetic)), (lacks == 2, 3));
            assert!(score().await.is_whole());
            assert_eq!(asked(&arithmetic), 3 + u64::from(lacks == 3), "what is whole is kept");
            let spent = ledger.paid().await.unwrap()[0].1.requests;
            assert_eq!(spent, asked(&arithmetic), "every answer was paid");
        }
    }
}
