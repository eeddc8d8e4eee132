//! Which weights an answer came from: measured before it and after it, never assumed.
//!
//! Owns [`Versions`]: when the probe text is measured again, what counts as a change, and what becomes of the answers
//! between two measurements that differ. An answer is provisional until a measurement that began after it agrees with
//! the one before it. Where the weights changed, scores in between are dropped and asked for again; draws are kept,
//! and lie between two versions. Versions belong to endpoints: replicas are synced one after another, so an answer is of
//! the version that the endpoint had which gave it. How measurements are compared is `fingerprint`'s business, where they are kept the
//! ledger's.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, RwLock, RwLockReadGuard};
use tokio::time::Instant;

use super::fingerprint::{Fingerprint, differs};
use super::ledger::Ledger;
use super::stamp::{Origin, Stamp};
pub use crate::config::parts::NewWeights;
use crate::model::budget::ModelRole;
use crate::model::key::ModelId;
use crate::model::noise::tolerance;
use crate::model::route::Endpoints;
use crate::model::{Error, Transport};

/// When weights are measured again, and what a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightRules {
    /// After so many answers.
    pub answers: u64,
    /// After this long, once an answer comes.
    pub time: Duration,
    /// What a change means.
    pub new_weights: NewWeights,
}

impl Default for WeightRules {
    fn default() -> Self {
        Self { answers: 200, time: Duration::from_secs(60), new_weights: NewWeights::Stop }
    }
}

/// How long a measurement may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is one of many.
    Brief,
    /// What was made waits for it.
    Full,
}

/// Measures the fingerprint of one endpoint.
pub type Measure = Box<dyn Fn(Patience) -> BoxFuture<'static, Result<Fingerprint, Error>> + Send + Sync>;

/// One endpoint, as its weights are measured.
pub struct Gauge {
    /// Its address, for messages.
    pub server: String,
    /// Measures it.
    pub measure: Measure,
    /// What it gave when it was opened.
    pub expected: Fingerprint,
    /// How much it differed from itself meanwhile.
    pub noise: f64,
    /// How often it was measured to find that out.
    pub n_measured: u64,
}

/// What measuring has cost and shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Checks {
    /// How often the probe text was scored.
    pub requests: u64,
    /// Of how many tokens it was made, in all.
    pub tokens: u64,
    /// How often the weights had changed.
    pub changes: u64,
    /// The mean difference of logprobs from which on a change is seen.
    pub smallest_change: f64,
}

/// The versions of one model over one run.
pub struct Versions {
    ledger: Arc<Ledger>,
    role: ModelRole,
    rules: WeightRules,
    transport: Option<Transport>,
    gauges: Vec<Gauge>,
    state: Mutex<Knowledge>,
    /// One measurement at a time; whoever comes meanwhile finds what it showed.
    measuring: AsyncMutex<()>,
    /// Read while a request is under way, so that it can be waited for until none is.
    asking: RwLock<()>,
    /// Read while an answer is being kept, so that a change never comes between its stamp and the ledger.
    keeping: RwLock<()>,
}

struct Knowledge {
    order: Order,
    /// What each endpoint gave last, and how much it differs from itself.
    expected: Vec<(Fingerprint, f64)>,
    names: HashMap<ModelId, String>,
    checks: Checks,
    /// Since the last measurement.
    answers: u64,
    since: Instant,
    disruptions: u64,
    is_checking: bool,
    /// How much each endpoint had answered when the last measurement that settled anything began.
    seen: Vec<u64>,
    stopped_by: Option<Error>,
}

/// What a measurement showed of an endpoint.
enum Finding {
    Same,
    /// It cannot be reached.
    Gone,
    /// It has other weights, which were measured unless it refuses the probe text.
    Changed(Option<Fingerprint>),
}

impl Versions {
    /// The versions of a model whose endpoints were just measured and are known to the ledger as `models`; of one without
    /// endpoints there is one version.
    pub fn new(
        ledger: Arc<Ledger>,
        role: ModelRole,
        rules: WeightRules,
        transport: Option<Transport>,
        gauges: Vec<Gauge>,
        (models, names): (Vec<ModelId>, HashMap<ModelId, String>),
    ) -> Arc<Self> {
        let state = Knowledge {
            order: Order::new(models),
            expected: gauges.iter().map(|it| (it.expected.clone(), it.noise)).collect(),
            names,
            checks: Checks {
                requests: gauges.iter().map(|it| it.n_measured).sum(),
                tokens: gauges.iter().map(|it| it.n_measured * it.expected.probe.len() as u64).sum(),
                ..Checks::default()
            },
            answers: 0,
            since: Instant::now(),
            disruptions: transport.as_ref().map_or(0, Transport::disruptions),
            is_checking: false,
            seen: transport.as_ref().map(Transport::answers).unwrap_or_default(),
            stopped_by: None,
        };
        let (state, measuring) = (Mutex::new(state), AsyncMutex::new(()));
        let (asking, keeping) = (RwLock::new(()), RwLock::new(()));
        Arc::new(Self { ledger, role, rules, transport, gauges, state, measuring, asking, keeping })
    }

    /// How many measurements have been begun when a request is sent now; fails once a change has ended the run.
    pub fn current(&self) -> Result<u64, Error> {
        let state = self.lock();
        state.stopped_by.clone().map_or(Ok(state.order.begun), Err)
    }

    /// What `ask` finds in the order of measurements and changes.
    pub(super) fn order<T>(&self, ask: impl FnOnce(&Order) -> T) -> T {
        ask(&self.lock().order)
    }

    /// The versions that a call may be answered by now: its home's, or those of all endpoints.
    pub fn serving(&self, home: Option<u64>) -> Vec<ModelId> {
        let home = home.zip(self.transport.as_ref()).map(|(home, transport)| transport.home(home));
        let mut models = self.lock().order.models(home.map_or(Endpoints::ALL, Endpoints::one));
        let mut seen = HashSet::new();
        models.retain(|it| seen.insert(*it));
        models
    }

    /// Whether endpoints may have different versions.
    pub fn may_differ(&self) -> bool {
        self.gauges.len() > 1 && self.rules.new_weights == NewWeights::Continue
    }

    /// Whether nothing at all was in doubt from then on until so many measurements had been begun; waits until that is
    /// known.
    pub async fn is_unbroken(&self, since: u64, until: u64) -> Result<bool, Error> {
        self.wait_for(|order| order.is_settled(until, Endpoints::ALL).then_some(())).await?;
        let state = self.lock();
        Ok(state.order.is_settled(until, Endpoints::ALL) && state.order.is_unbroken(since, until))
    }

    /// The name of a version; none where there was nothing to measure.
    pub fn name(&self, model: ModelId) -> Option<String> {
        self.lock().names.get(&model).cloned()
    }

    /// What measuring has cost and shown so far; nothing where weights cannot change, or cannot be measured.
    pub fn checks(&self) -> Option<Checks> {
        let state = self.lock();
        let smallest_change = state.expected.iter().map(|it| tolerance(it.1)).fold(0.0, f64::max);
        (!self.gauges.is_empty()).then_some(Checks { smallest_change, ..state.checks })
    }

    /// Held while a request is under way.
    pub async fn asking(&self) -> RwLockReadGuard<'_, ()> {
        self.asking.read().await
    }

    /// Held while an answer gets its stamp and its place in the ledger.
    pub async fn keeping(&self) -> RwLockReadGuard<'_, ()> {
        self.keeping.read().await
    }

    /// Whether an answer names other weights than those that were measured where it came from.
    pub fn contradicts(&self, told: Option<&str>, by: Endpoints) -> bool {
        let state = self.lock();
        let mut expected = (0..).zip(&state.expected).filter(|(idx, _)| by.contain(*idx));
        told.is_some() && expected.any(|(_, (it, _))| it.identity.weights.as_deref() != told)
    }

    /// Takes note of an answer, and measures again beside the work when it is time.
    pub fn answered(self: &Arc<Self>, told: Option<&str>, by: Endpoints) {
        let contradicts = self.contradicts(told, by);
        if self.gauges.is_empty() || !self.is_due(contradicts) {
            return;
        }
        let versions = Arc::clone(self);
        tokio::spawn(async move {
            // What cannot be measured now is measured another time, at the latest when something is to be settled.
            let _ = versions.check(Patience::Brief).await;
            versions.lock().is_checking = false;
        });
    }

    fn is_due(&self, contradicts: bool) -> bool {
        let disruptions = self.transport.as_ref().map_or(0, Transport::disruptions);
        let mut state = self.lock();
        state.answers += 1;
        let is_time = state.answers >= self.rules.answers || state.since.elapsed() >= self.rules.time;
        let is_suspect = contradicts || state.disruptions != disruptions;
        let is_due = (is_time || is_suspect) && !state.is_checking;
        (state.disruptions, state.is_checking) = (disruptions, state.is_checking || is_due);
        is_due
    }

    /// Measures the weights now.
    pub async fn check(&self, patience: Patience) -> Result<(), Error> {
        let _measuring = self.measuring.lock().await;
        self.measure(patience).await
    }

    /// Returns once it is known which weights an answer came from.
    pub async fn settle(&self, stamp: Stamp) -> Result<Origin, Error> {
        let origin = self.wait_for(|order| order.origin(stamp)).await?;
        // A measurement settles everything from before it began, one way or the other; what it did not is not vouched for.
        Ok(origin.unwrap_or(Origin::Between(stamp.model, stamp.model)))
    }

    /// What `known` finds, if need be after a measurement.
    async fn wait_for<T>(&self, known: impl Fn(&Order) -> Option<T>) -> Result<Option<T>, Error> {
        let now = || known(&self.lock().order);
        if let Some(known) = now() {
            return Ok(Some(known));
        }
        let _measuring = self.measuring.lock().await;
        // Whoever was measuring may have settled it.
        if let Some(known) = now() {
            return Ok(Some(known));
        }
        self.measure(Patience::Full).await?;
        Ok(now())
    }

    async fn measure(&self, patience: Patience) -> Result<(), Error> {
        // What an endpoint answers from now on is for the next measurement to vouch for.
        let seen = self.answers_by_endpoint();
        let began = self.begin();
        for (idx, read) in self.read_all(patience).await?.into_iter().enumerate() {
            match self.judge(idx, read, patience).await? {
                Finding::Gone if self.answered_since(idx) => self.doubt(idx).await?,
                // From one that is gone and gave no answer there is nothing to settle.
                Finding::Same | Finding::Gone => self.lock().order.agree(idx, began),
                Finding::Changed(new) => self.change(idx, new).await?,
            }
        }
        self.ledger.settle(self.role, began).await?;
        let mut state = self.lock();
        // What cannot be measured is one model for good.
        if self.gauges.is_empty() {
            state.order.agree(0, began);
        }
        state.seen = seen;
        Ok(())
    }

    fn begin(&self) -> u64 {
        let mut state = self.lock();
        (state.answers, state.since) = (0, Instant::now());
        state.order.begin()
    }

    /// Measures every endpoint. One of several that is gone need not be waited for; when all are, that is the error.
    async fn read_all(&self, patience: Patience) -> Result<Vec<Result<Fingerprint, Error>>, Error> {
        let all = |patience| join_all((0..self.gauges.len()).map(move |idx| self.read(idx, patience)));
        let is_only = self.gauges.len() == 1;
        let mut found = all(if is_only { patience } else { Patience::Brief }).await;
        let is_gone = |it: &Result<Fingerprint, Error>| it.as_ref().is_err_and(Error::may_pass);
        if patience == Patience::Full && !is_only && found.iter().all(is_gone) {
            found = all(Patience::Full).await;
        }
        let is_any_here = !found.iter().all(is_gone);
        match found.first() {
            Some(Err(error)) if !is_any_here => Err(error.clone()),
            _ => Ok(found),
        }
    }

    async fn read(&self, idx: usize, patience: Patience) -> Result<Fingerprint, Error> {
        let found = (self.gauges[idx].measure)(patience).await;
        if let Ok(found) = &found {
            let mut state = self.lock();
            state.checks.requests += 1;
            state.checks.tokens += found.probe.len() as u64;
        }
        found
    }

    async fn judge(
        &self,
        idx: usize,
        read: Result<Fingerprint, Error>,
        patience: Patience,
    ) -> Result<Finding, Error> {
        let (expected, noise) = self.lock().expected[idx].clone();
        let by = match read {
            Ok(found) if found.agrees(&expected, noise) => return Ok(Finding::Same),
            // A server that names its new weights needs no further witness.
            Ok(found) if found.identity != expected.identity => return Ok(Finding::Changed(Some(found))),
            Ok(found) => found.mean_difference(&expected),
            Err(error) if error.may_pass() => return Ok(Finding::Gone),
            // The same model would take the same text.
            Err(Error::Refused { .. }) => return Ok(Finding::Changed(None)),
            Err(error) => return Err(error),
        };
        // What two more measurements do not both confirm was noise. Where a change would end the run nothing else is
        // under way meanwhile, so that company cannot be the reason.
        let _quiet = match self.rules.new_weights {
            NewWeights::Stop => Some(self.asking.write().await),
            NewWeights::Continue => None,
        };
        let mut last = None;
        for _ in 0..2 {
            let again = self.read(idx, patience).await?;
            if again.agrees(&expected, noise) {
                let noise = &mut self.lock().expected[idx].1;
                *noise = noise.max(by.unwrap_or(0.0));
                return Ok(Finding::Same);
            }
            last = Some(again);
        }
        Ok(Finding::Changed(last))
    }

    /// Whether an endpoint has answered since everything was settled.
    fn answered_since(&self, idx: usize) -> bool {
        self.answers_by_endpoint().get(idx) != self.lock().seen.get(idx)
    }

    fn answers_by_endpoint(&self) -> Vec<u64> {
        self.transport.as_ref().map(Transport::answers).unwrap_or_default()
    }

    /// An endpoint is gone before its last answers could be settled: nobody can say which they are.
    async fn doubt(&self, idx: usize) -> Result<(), Error> {
        let _keeping = self.keeping.write().await;
        let model = self.lock().order.model(idx);
        self.ledger.doubt(self.role, Endpoints::one(idx), model).await?;
        self.lock().order.change(idx, model);
        Ok(())
    }

    /// An endpoint has other weights; `new` says which, unless it does not even take the probe text.
    async fn change(&self, idx: usize, new: Option<Fingerprint>) -> Result<(), Error> {
        let (old, noise) = self.lock().expected[idx].clone();
        let model = match &new {
            Some(new) => self.ledger.identify(new, noise).await?.0,
            None => self.order(|it| it.model(idx)),
        };
        let _keeping = self.keeping.write().await;
        self.ledger.doubt(self.role, Endpoints::one(idx), model).await?;
        let mut state = self.lock();
        state.order.change(idx, model);
        state.checks.changes += 1;
        if self.rules.new_weights == NewWeights::Stop || new.is_none() {
            let server = self.gauges[idx].server.clone();
            state.stopped_by = Some(Error::Changed { server, why: reason(new.as_ref(), &old) });
        }
        if let Some(new) = new {
            state.names.extend(new.version().map(|name| (model, name)));
            state.expected[idx].0 = new;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Knowledge> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How weights show that they are others than those that were measured before, or elsewhere.
pub fn reason(new: Option<&Fingerprint>, old: &Fingerprint) -> String {
    let told = |it: &Fingerprint| it.identity.weights.clone().unwrap_or_else(|| "nothing".to_owned());
    match new {
        Some(new) if told(new) != told(old) => {
            format!("it calls its weights `{}`, not `{}`", told(new), told(old))
        }
        Some(new) => differs(new.mean_difference(old)),
        None => "it refuses a probe text that it took before".to_owned(),
    }
}

/// The order of measurements and changes, by which an answer's origin is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Measurements that were begun.
    pub(super) begun: u64,
    endpoints: Vec<Line>,
}

/// What is known of one endpoint.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// What came in before this measurement was begun is settled.
    settled: u64,
    current: ModelId,
    /// Stretches between measurements that differ.
    doubts: Vec<(Range<u64>, ModelId, ModelId)>,
}

impl Order {
    /// After a first measurement, which found `models`.
    fn new(models: Vec<ModelId>) -> Self {
        let line = |current| Line { settled: 1, current, doubts: Vec::new() };
        Self { begun: 1, endpoints: models.into_iter().map(line).collect() }
    }

    fn lines(&self, by: Endpoints) -> impl Iterator<Item = &Line> {
        (0..).zip(&self.endpoints).filter(move |(idx, _)| by.contain(*idx)).map(|(_, line)| line)
    }

    fn models(&self, by: Endpoints) -> Vec<ModelId> {
        self.lines(by).map(|it| it.current).collect()
    }

    fn model(&self, idx: usize) -> ModelId {
        self.endpoints[idx].current
    }

    /// What an answer is stamped with that comes in now from these endpoints; none if they have different versions.
    pub(super) fn stamp(&self, by: Endpoints) -> Option<Stamp> {
        let mut models = self.lines(by).map(|it| it.current);
        let model = models.next()?;
        models.all(|it| it == model).then_some(Stamp { after: self.begun, by, model })
    }

    /// The first measurement after the last doubt about these endpoints. What was sent before it and came in after is
    /// of nobody knows whom.
    pub(super) fn unbroken_since(&self, by: Endpoints) -> u64 {
        self.lines(by).filter_map(|it| it.doubts.last()).map(|it| it.0.end).max().unwrap_or(0)
    }

    fn is_unbroken(&self, since: u64, until: u64) -> bool {
        let mut doubts = self.lines(Endpoints::ALL).flat_map(|it| &it.doubts);
        !doubts.any(|it| (since + 1..=until).contains(&it.0.end) || it.0.contains(&until))
    }

    fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// The measurement that was begun as number `began` found at an endpoint what the last one found there.
    fn agree(&mut self, idx: usize, began: u64) {
        let line = &mut self.endpoints[idx];
        line.settled = line.settled.max(began);
    }

    /// The last measurement found another model at an endpoint: nobody knows when it changed.
    fn change(&mut self, idx: usize, model: ModelId) {
        let line = &mut self.endpoints[idx];
        line.doubts.push((line.settled..self.begun + 1, line.current, model));
        self.begun += 1;
        (line.settled, line.current) = (self.begun, model);
    }

    /// What a draw is of that was sent when so many measurements had been begun, and came in from these endpoints after
    /// a change.
    pub(super) fn between(&self, sent: u64, by: Endpoints) -> Origin {
        let at = |line: &Line| line.doubts.iter().find(|it| it.0.end > sent).map_or(line.current, |it| it.1);
        let (before, after) = (self.lines(by).next().map(at), self.lines(by).last().map(|it| it.current));
        // Somebody has answered, so there is a line.
        let (before, after) = (before.unwrap_or(ModelId(0)), after.unwrap_or(ModelId(0)));
        Origin::Between(before, after)
    }

    /// Whether measurements have come after everything that came in from these endpoints when so many had been begun.
    fn is_settled(&self, after: u64, by: Endpoints) -> bool {
        self.lines(by).all(|it| after < it.settled)
    }

    /// Which weights an answer came from, if that is known by now.
    pub(super) fn origin(&self, stamp: Stamp) -> Option<Origin> {
        let mut doubts = self.lines(stamp.by).flat_map(|it| &it.doubts);
        match doubts.find(|it| it.0.contains(&stamp.after)) {
            Some(&(_, before, after)) => Some(Origin::Between(before, after)),
            None => self.is_settled(stamp.after, stamp.by).then_some(Origin::Known(stamp.model)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::store::fingerprint::Identity;
    use crate::store::lock::RunLock;
    use backsight_core::tokens::Logprob;
    use tokio::sync::mpsc;

    const OLD: ModelId = ModelId(1);
    const NEW: ModelId = ModelId(2);
    const ONE: Endpoints = Endpoints(1);

    fn origins(order: &Order) -> Vec<Option<Origin>> {
        (1..=order.begun).map(|after| order.origin(Stamp { after, by: ONE, model: order.model(0) })).collect()
    }

    #[test]
    fn an_answer_is_settled_by_a_measurement_that_began_after_it() {
        let mut order = Order::new(vec![OLD]);
        assert_eq!(origins(&order), [None]);
        let began = order.begin();
        assert_eq!(origins(&order), [None, None]);
        order.agree(0, began);
        assert_eq!(origins(&order), [Some(Origin::Known(OLD)), None]);
    }

    #[test]
    fn what_lies_between_two_measurements_that_differ_is_of_either() {
        let mut order = Order::new(vec![OLD]);
        let began = order.begin();
        order.agree(0, began);
        order.begin();
        order.change(0, NEW);
        let between = Some(Origin::Between(OLD, NEW));
        let known = Stamp { after: 1, by: ONE, model: OLD };
        assert_eq!(order.origin(known), Some(Origin::Known(OLD)));
        assert_eq!(origins(&order)[1..], [between, between, None]);
        let began = order.begin();
        order.agree(0, began);
        assert_eq!(origins(&order)[1..], [between, between, Some(Origin::Known(NEW)), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn weights_are_measured_again_after_so_many_answers_or_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Arc::new(RunLock::acquire(dir.path()).unwrap())).unwrap();
        let expected = Fingerprint {
            identity: Identity::default(),
            probe: vec![1],
            logprobs: vec![Logprob::new(-1.0).ok()],
        };
        let (found, (measured, mut measurements)) = (expected.clone(), mpsc::unbounded_channel());
        let measure: Measure = Box::new(move |_| {
            measured.send(()).unwrap();
            let found = found.clone();
            Box::pin(async move { Ok(found) })
        });
        let gauge = Gauge { server: "s".into(), measure, expected, noise: 0.0, n_measured: 0 };
        let rules = WeightRules { answers: 3, time: Duration::from_secs(60), ..WeightRules::default() };
        let (role, known) = (ModelRole::Teacher, (vec![OLD], HashMap::new()));
        let versions = Versions::new(ledger, role, rules, None, vec![gauge], known);
        for n_answers in [3, 3] {
            for _ in 1..n_answers {
                versions.answered(None, ONE);
            }
            assert!(!versions.lock().is_checking);
            versions.answered(None, ONE);
            measurements.recv().await.unwrap();
            // What this one shows is waited for.
            versions
                .settle(Stamp { after: versions.order(|it| it.begun) - 1, by: ONE, model: OLD })
                .await
                .unwrap();
            versions.lock().is_checking = false;
        }
        tokio::time::advance(Duration::from_secs(59)).await;
        versions.answered(None, ONE);
        assert!(!versions.lock().is_checking);
        tokio::time::advance(Duration::from_secs(1)).await;
        versions.answered(None, ONE);
        measurements.recv().await.unwrap();
        assert!(measurements.try_recv().is_err());
    }

    /// Also where the model is the same again: an endpoint is gone, or the old weights are back.
    #[test]
    fn what_was_sent_before_a_doubt_is_told_from_what_is_sent_after_it() {
        let mut order = Order::new(vec![OLD]);
        for model in [OLD, NEW, OLD] {
            order.begin();
            let (sent, since) = (order.begun, order.unbroken_since(ONE));
            assert!(since <= sent && order.is_unbroken(since, sent));
            order.change(0, model);
            assert!(order.unbroken_since(ONE) > sent);
            assert!(!order.is_unbroken(since, sent) && !order.is_unbroken(since, order.begun));
        }
    }

    /// The first of two endpoints is synced, then the second: whatever each of them answers has its own version.
    #[test]
    fn a_change_of_one_endpoint_is_no_change_of_another() {
        let (first, second) = (Endpoints::one(0), Endpoints::one(1));
        let mut order = Order::new(vec![OLD, OLD]);
        let [early, other] = [first, second].map(|by| order.stamp(by).unwrap());
        let began = order.begin();
        order.change(0, NEW);
        order.agree(1, began);
        assert_eq!(order.origin(early), Some(Origin::Between(OLD, NEW)));
        assert_eq!(order.origin(other), Some(Origin::Known(OLD)));
        assert_eq!((order.stamp(first).unwrap().model, order.stamp(second).unwrap().model), (NEW, OLD));
        assert_eq!((order.stamp(Endpoints::ALL), order.models(Endpoints::ALL)), (None, vec![NEW, OLD]));
        assert_eq!(order.between(1, first), Origin::Between(OLD, NEW));
        assert!(order.unbroken_since(first) > 1 && order.unbroken_since(second) == 0);
        order.begin();
        order.change(1, NEW);
        assert_eq!(order.stamp(Endpoints::ALL).unwrap().model, NEW);
        assert_eq!(order.origin(other), Some(Origin::Known(OLD)));
    }
}
