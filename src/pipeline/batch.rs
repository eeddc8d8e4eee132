//! Runs the episodes of a run that are not there yet, several at a time.
//!
//! Owns [`run`]. An episode is in the run directory before anything is said about it, and one that is
//! there with an outcome is not run again. One that failed by its server, its sandbox or its time is, behind all others
//! and so often; what it paid is in the ledger, so only what is missing is asked for. Unless its task's tests are unusable: that ends the task, and no attempt at
//! it is run again or begun. Tests that stay undecided end their episode alone. A failure is its own episode's; only what ends all of them (a budget, a
//! server that is gone, a full disk, a signal) stops the work, and then nothing new is begun.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};

use super::slots::Slot;
use super::watch::Watched;
use crate::agent::{AgentSetting, EpisodePlace, run_episode};
use crate::event::Event;
use crate::metrics::{self, Digest};
use crate::model::{Error, Model};
use crate::store::Ledgered;
use crate::store::run::{RunDir, RunError};
use backsight_core::episode::{Episode, TokenVersion};

/// What a batch of episodes is run with.
pub struct Batch {
    /// The stage it belongs to.
    pub stage: &'static str,
    /// What the student is called.
    pub model: String,
    /// How each is run; every episode gets a student of its own.
    pub setting: AgentSetting,
    /// The student, whose every answer is kept.
    pub student: Arc<Ledgered>,
    /// Who knows whether there is a point in going on.
    pub watched: Arc<Watched>,
    /// Where they are kept.
    pub run: Arc<RunDir>,
    /// How many at once.
    pub concurrency: usize,
    /// How often one that failed is run again.
    pub retries: u32,
    /// Seconds since 1970 that templates are told.
    pub started_at: i64,
}

/// What stopped a batch.
#[derive(Debug)]
pub enum Stopped {
    /// The model cannot be asked any more.
    Model(Error),
    /// The run directory cannot be written to.
    Run(RunError),
    /// A signal of this number.
    Signal(u8),
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Run(error) => error.fmt(f),
            Self::Signal(number) => write!(f, "signal {number}"),
        }
    }
}

/// What became of the slots.
#[derive(Debug)]
pub struct Done {
    /// What is there of each; none where it was not come to.
    pub digests: Vec<Option<Digest>>,
    /// What stopped the work before its end.
    pub stopped: Option<Stopped>,
}

/// Who is told of events.
pub type Tell<'a> = &'a (dyn Fn(&Event) + Sync);

/// Runs every slot that is not there yet; `interrupted` ends the work with the number of a signal.
pub async fn run(
    batch: &Batch,
    slots: &[Slot],
    tell: Tell<'_>,
    interrupted: impl Future<Output = u8>,
) -> Done {
    let mut work = Work::new(batch, slots, tell);
    let mut interrupted = std::pin::pin!(interrupted);
    loop {
        work.fill();
        let ended = tokio::select! {
            ended = work.under_way.join_next() => ended,
            signal = &mut interrupted => {
                work.stopped = Some(Stopped::Signal(signal));
                work.under_way.shutdown().await;
                None
            }
        };
        match ended {
            Some(ended) => work.take(ended),
            None => break,
        }
        if work.stopped.is_some() {
            work.under_way.shutdown().await;
        }
    }
    let stopped = work.stopped.take().or_else(|| batch.watched.outlook().ended_by().map(Stopped::Model));
    Done { digests: work.digests, stopped }
}

/// An episode that ended, and how long it took.
struct Ran {
    idx: usize,
    episode: Episode,
    seconds: f64,
}

/// The state of a batch under way.
struct Work<'a> {
    batch: &'a Batch,
    slots: &'a [Slot],
    tell: Tell<'a>,
    waiting: VecDeque<usize>,
    /// How often each was run again.
    retried: HashMap<usize, u32>,
    under_way: JoinSet<Ran>,
    digests: Vec<Option<Digest>>,
    n_ended: usize,
    stopped: Option<Stopped>,
}

impl<'a> Work<'a> {
    fn new(batch: &'a Batch, slots: &'a [Slot], tell: Tell<'a>) -> Self {
        let digests: Vec<Option<Digest>> = slots.iter().map(|slot| found(&batch.run, slot)).collect();
        let waiting: VecDeque<usize> = (0..slots.len()).filter(|idx| digests[*idx].is_none()).collect();
        let n_ended = slots.len() - waiting.len();
        let (under_way, retried) = (JoinSet::new(), HashMap::new());
        let mut work =
            Self { batch, slots, tell, waiting, retried, under_way, digests, n_ended, stopped: None };
        (0..slots.len()).for_each(|idx| work.end_task(idx));
        let (stage, model) = (batch.stage, batch.model.clone());
        work.say(Event::Began { stage, model, asked: slots.len(), found: n_ended });
        work.note_missing_groups();
        work
    }

    /// Begins episodes while there is room and a point in it.
    fn fill(&mut self) {
        while self.under_way.len() < self.batch.concurrency {
            if self.stopped.is_some() || self.batch.watched.outlook().is_stopped() {
                return;
            }
            let Some(idx) = self.waiting.pop_front() else { return };
            let own = Arc::new(self.batch.student.counted_apart());
            let student = Arc::new(self.batch.watched.over(Arc::clone(&own) as Arc<dyn Model>));
            let setting = AgentSetting { student, ..self.batch.setting.clone() };
            let task = Arc::clone(&self.slots[idx].task);
            let place = EpisodePlace { episode: self.slots[idx].episode, started_at: self.batch.started_at };
            self.under_way.spawn(async move {
                let began = Instant::now();
                let mut episode = run_episode(&setting, &task, place).await;
                let seconds = began.elapsed().as_secs_f64();
                episode.versions = versions(&episode, &own).await;
                Ran { idx, episode, seconds }
            });
        }
    }

    fn take(&mut self, ended: Result<Ran, JoinError>) {
        // A task that was aborted has nothing to tell; the episode stays waiting for another time.
        let Ok(Ran { idx, episode, seconds }) = ended else { return };
        if let Err(error) = self.batch.run.keep_episode(&episode) {
            self.stopped.get_or_insert(Stopped::Run(error));
            return;
        }
        let digest = Digest::of(&episode);
        if self.run_again(idx, &digest) {
            return;
        }
        self.digests[idx] = Some(digest.clone());
        self.n_ended += 1;
        self.say(Event::Episode {
            id: digest.id.clone(),
            nth: self.n_ended,
            asked: self.slots.len(),
            solved: digest.is_solved(),
            reward: digest.outcome.map(|it| it.reward),
            stop: digest.stop,
            steps: digest.steps,
            seconds,
        });
        self.end_task(idx);
        self.note_group(self.slots[idx].group);
    }

    /// Puts an episode that failed behind those that wait, unless that was done often enough or there is no point in it.
    fn run_again(&mut self, idx: usize, digest: &Digest) -> bool {
        let Some(why) = digest.loss().filter(|_| !digest.is_final()) else { return false };
        let nth = self.retried.get(&idx).copied().unwrap_or(0) + 1;
        if nth > self.batch.retries || self.stopped.is_some() || self.batch.watched.outlook().is_stopped() {
            return false;
        }
        self.retried.insert(idx, nth);
        self.waiting.push_back(idx);
        self.say(Event::Retry { id: digest.id.clone(), why, nth, of: self.batch.retries });
        true
    }

    /// Begins no further attempt at the task of a slot whose episode found its tests unusable.
    fn end_task(&mut self, idx: usize) {
        let Some(why) = self.digests[idx].as_ref().and_then(Digest::unusable_tests).map(str::to_owned) else {
            return;
        };
        let task = &self.slots[idx].task.task.id;
        let (ended, waiting): (VecDeque<usize>, _) =
            self.waiting.iter().partition(|it| self.slots[**it].task.task.id == *task);
        self.waiting = waiting;
        self.n_ended += ended.len();
        for it in &ended {
            self.digests[*it] = Some(Digest::of_unusable(self.slots[*it].id(), task.clone(), &why));
        }
        let own = self.slots[idx].group;
        let others: BTreeSet<usize> =
            ended.iter().map(|it| self.slots[*it].group).filter(|it| *it != own).collect();
        others.into_iter().for_each(|group| self.note_group(group));
    }

    /// Writes the metrics of groups that were complete when a process was killed before it could.
    fn note_missing_groups(&mut self) {
        let row_of = |row: &Value| row["group"].as_u64().filter(|_| row["lost"] == json!(0));
        let noted: HashSet<u64> = self.batch.run.metrics().iter().filter_map(row_of).collect();
        let groups: BTreeSet<usize> = self.slots.iter().map(|slot| slot.group).collect();
        for group in groups.into_iter().filter(|group| !noted.contains(&(*group as u64))) {
            self.note_group(group);
        }
    }

    /// Writes the metrics of a group whose episodes have all ended.
    fn note_group(&mut self, group: usize) {
        let Some(row) = self.group_row(group) else { return };
        let versions: Vec<&str> =
            row["versions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if versions.len() > 1 {
            let names = versions.join(", ");
            self.say(Event::Note(format!("group {group} was sampled by different weights: {names}")));
        }
        if let Err(error) = self.batch.run.add_metrics(&row) {
            self.stopped.get_or_insert(Stopped::Run(error));
        }
    }

    fn group_row(&self, group: usize) -> Option<Value> {
        let begin = self.slots.partition_point(|slot| slot.group < group);
        let end = self.slots.partition_point(|slot| slot.group <= group);
        let members: Vec<&Digest> =
            self.digests[begin..end].iter().map(Option::as_ref).collect::<Option<_>>()?;
        let n_lost = members.iter().filter(|it| it.outcome.is_err()).count();
        let versions: BTreeSet<&String> = members.iter().flat_map(|it| &it.versions).collect();
        let task = &members.first()?.task;
        let mut row =
            json!({"time": now(), "group": group, "task": task, "lost": n_lost, "versions": versions});
        if let Value::Object(keys) = &mut row {
            keys.extend(metrics::train(members));
        }
        Some(row)
    }

    fn say(&mut self, event: Event) {
        if let Err(error) = self.batch.run.add_event(&event.to_json(now())) {
            self.stopped.get_or_insert(Stopped::Run(error));
        }
        (self.tell)(&event);
    }
}

/// Which weights sampled the actions of an episode. One that failed is run again, so nothing is measured for it.
async fn versions(episode: &Episode, student: &Ledgered) -> Vec<TokenVersion> {
    let drawn = student.drawn_by(episode.outcome.is_ok()).await;
    let n_steps = episode.steps().iter().filter(|step| step.tokens.is_some()).count();
    drawn.into_iter().filter(|it| it.step < n_steps).collect()
}

/// The episode of a slot, if it is there and need not be run again.
fn found(run: &RunDir, slot: &Slot) -> Option<Digest> {
    let digest = Digest::of(&run.view().episode(&slot.id())?);
    (digest.outcome.is_ok() || digest.is_final()).then_some(digest)
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64())
}
