//! Runs the episodes of a run that are not there yet, several at a time.
//!
//! Owns [`run`]. An episode is in the run directory before anything is said about it, and one that is
//! there with an outcome is not run again. One that failed by its server, its sandbox or its time is, behind all others
//! and so often; what it paid is in the ledger, so only what is missing is asked for. Unless its task's tests are unusable: that ends the task, and no attempt at
//! it is run again or begun. Tests that stay undecided end their episode alone. A failure is its own episode's; only what ends all of them (a budget, a
//! server that is gone, a full disk, a signal) stops the work, and then nothing new is begun.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures_util::{Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};

use super::Stopped;
use super::slots::Slot;
use super::watch::Watched;
use crate::agent::{AgentSetting, EpisodePlace, OnStep, run_episode};
use crate::event::Event;
use crate::metrics::{self, Digest};
use crate::model::Model;
use crate::store::Ledgered;
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
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
    /// Who is told of every episode that is there with a reward.
    pub on_episode: Option<OnEpisode>,
}

/// Is told of an episode.
pub type OnEpisode = Arc<dyn Fn(&Episode) + Send + Sync>;

/// What became of the slots.
#[derive(Debug)]
pub struct Done {
    /// Those that were come to.
    pub slots: Vec<Slot>,
    /// What is there of each; none where it was not come to.
    pub digests: Vec<Option<Digest>>,
    /// What stopped the work before its end.
    pub stopped: Option<Stopped>,
}

impl Done {
    /// What was made and what was lost.
    pub fn summary(&self, stage: &'static str) -> Summary {
        let ended = || self.digests.iter().flatten();
        let made: Vec<&Digest> = ended().filter(|it| it.outcome.is_ok()).collect();
        let count = |is: &dyn Fn(&Digest) -> bool| made.iter().filter(|it| is(it)).count() as u64;
        let counts = [
            ("episodes", made.len() as u64),
            ("solved_episodes", count(&Digest::is_solved)),
            ("rendered_episodes", count(&|it| !it.is_exact)),
        ];
        let left = self.digests.iter().filter(|it| it.is_none()).count() as u64;
        let stopped_by = self.stopped.as_ref().map(Stopped::to_string);
        let mut summary = Summary { stage, made: counts.into(), left, stopped_by, ..Summary::default() };
        ended().filter_map(Digest::loss).for_each(|why| summary.lose("episodes", &why));
        summary
    }
}

/// Tells a run directory of every step that has ended, for those who follow it.
pub fn step_journal(run: Arc<RunDir>) -> OnStep {
    Arc::new(move |so_far, step| {
        // A journal that cannot be written stops the run where episodes are kept.
        let _ = run.add_event(&Event::Step { id: so_far.id().to_owned(), step }.to_json(now()));
    })
}

/// Runs every episode that is not there yet, group by group; `interrupted` ends the work with the number of a signal.
///
/// Groups come in the order of their numbers. Those that the stream is known to have are counted at the beginning; any
/// other is asked for when there is room for it, so a stream that is not ready pauses the work.
pub async fn run(
    batch: &Batch,
    groups: impl Stream<Item = Vec<Slot>>,
    tell: &(dyn Fn(&Event) + Sync),
    interrupted: impl Future<Output = u8>,
) -> Done {
    let (mut groups, mut interrupted) = (pin!(groups.fuse()), pin!(interrupted));
    let mut work = Work::new(batch, tell);
    while groups.size_hint().0 > 0
        && let Some(group) = groups.next().await
    {
        work.add(group);
    }
    work.begin();
    loop {
        work.fill();
        let is_over = groups.is_done() || work.is_stopped();
        if is_over && work.under_way.is_empty() {
            break;
        }
        tokio::select! {
            Some(ended) = work.under_way.join_next() => work.take(ended),
            group = groups.next(), if work.has_room() && !is_over => group.into_iter().for_each(|it| work.add_later(it)),
            signal = &mut interrupted => {
                work.stopped = Some(Stopped::Signal(signal));
                work.under_way.shutdown().await;
            }
        }
        if work.stopped.is_some() {
            work.under_way.shutdown().await;
        }
    }
    let stopped = work.stopped.take().or_else(|| batch.watched.outlook().ended_by().map(Stopped::Model));
    Done { slots: work.slots, digests: work.digests, stopped }
}

/// The state of a batch under way.
struct Work<'a> {
    batch: &'a Batch,
    slots: Vec<Slot>,
    tell: &'a (dyn Fn(&Event) + Sync),
    waiting: VecDeque<usize>,
    /// How often each was run again.
    retried: HashMap<usize, u32>,
    /// Each gives its number, what became of it, and the seconds it took.
    under_way: JoinSet<(usize, Episode, f64)>,
    digests: Vec<Option<Digest>>,
    /// The groups whose metrics an earlier process wrote.
    noted: HashSet<u64>,
    n_ended: usize,
    stopped: Option<Stopped>,
}

impl<'a> Work<'a> {
    fn new(batch: &'a Batch, tell: &'a (dyn Fn(&Event) + Sync)) -> Self {
        let row_of = |row: &Value| row["group"].as_u64().filter(|_| row["lost"] == json!(0));
        Self {
            batch,
            slots: Vec::new(),
            tell,
            waiting: VecDeque::new(),
            retried: HashMap::new(),
            under_way: JoinSet::new(),
            digests: Vec::new(),
            noted: batch.run.metrics().iter().filter_map(row_of).collect(),
            n_ended: 0,
            stopped: None,
        }
    }

    /// Takes a group, of which some episodes may be there.
    fn add(&mut self, group: Vec<Slot>) {
        for slot in group {
            let digest = found(&self.batch.run, &slot);
            match digest.is_some() {
                true => self.n_ended += 1,
                false => self.waiting.push_back(self.slots.len()),
            }
            self.digests.push(digest);
            self.slots.push(slot);
        }
    }

    /// Takes one that came while others were run.
    fn add_later(&mut self, group: Vec<Slot>) {
        let number = group.first().map(|slot| slot.group);
        self.add(group);
        (0..self.slots.len()).for_each(|idx| self.end_task(idx));
        number.into_iter().for_each(|group| self.note_missing_group(group));
    }

    fn begin(&mut self) {
        (0..self.slots.len()).for_each(|idx| self.end_task(idx));
        let (stage, model) = (self.batch.stage, self.batch.model.clone());
        self.say(Event::Began {
            stage,
            model,
            unit: "episode",
            asked: self.slots.len(),
            found: self.n_ended,
        });
        let groups: BTreeSet<usize> = self.slots.iter().map(|slot| slot.group).collect();
        groups.into_iter().for_each(|group| self.note_missing_group(group));
    }

    /// Whether there is no point in beginning anything.
    fn is_stopped(&self) -> bool {
        self.stopped.is_some() || self.batch.watched.outlook().is_stopped()
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < self.batch.concurrency
    }

    /// Begins episodes while there is room and a point in it.
    fn fill(&mut self) {
        while self.has_room() && !self.is_stopped() {
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
                (idx, episode, seconds)
            });
        }
    }

    fn take(&mut self, ended: Result<(usize, Episode, f64), JoinError>) {
        // A task that was aborted has nothing to tell; the episode stays waiting for another time.
        let Ok((idx, episode, seconds)) = ended else { return };
        if let Err(error) = self.batch.run.keep_episode(&episode) {
            self.end_by(&error);
            return;
        }
        let digest = Digest::of(&episode);
        if self.run_again(idx, &digest) {
            return;
        }
        if digest.outcome.is_ok() {
            self.batch.on_episode.iter().for_each(|tell| tell(&episode));
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
        if nth > self.batch.retries || self.is_stopped() {
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

    /// Writes the metrics of a group that was complete when a process was killed before it could.
    fn note_missing_group(&mut self, group: usize) {
        if !self.noted.contains(&(group as u64)) {
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
            self.end_by(&error);
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

    /// The first failure of several is the one that is told.
    fn end_by(&mut self, error: &RunError) {
        self.stopped.get_or_insert(Stopped::Disk(error.to_string()));
    }

    fn say(&mut self, event: Event) {
        if let Err(error) = self.batch.run.add_event(&event.to_json(now())) {
            self.end_by(&error);
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
    let digest = Digest::of(&run.reader().episode(&slot.id())?);
    (digest.outcome.is_ok() || digest.is_final()).then_some(digest)
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::agent::{LoopOptions, RewardRule, Speech, ToolLimits};
    use crate::model::budget::ModelRole;
    use crate::model::key::ModelId;
    use crate::model::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Scored};
    use crate::pipeline::slots::groups;
    use crate::pipeline::slots::tests::task;
    use crate::store::{Ledger, RunPlace, Versions, WeightRules};
    use backsight_core::episode::Outcome;
    use backsight_core::score::ScoreJob;
    use backsight_sandbox::{SandboxConfig, Sandboxes};
    use futures_util::stream;
    use tokio::sync::mpsc;

    /// A student that nobody should ask.
    struct Silent(Limits);

    #[async_trait::async_trait]
    impl Model for Silent {
        async fn generate(&self, _: &GenerateRequest) -> Result<Generated, Error> {
            Err(self.nothing())
        }

        async fn score(&self, _: &ScoreJob) -> Result<Scored, Error> {
            Err(self.nothing())
        }

        async fn chat(&self, _: &ChatRequest) -> Result<ChatAnswer, Error> {
            Err(self.nothing())
        }

        fn limits(&self) -> &Limits {
            &self.0
        }
    }

    impl Silent {
        fn nothing(&self) -> Error {
            Error::Invalid { what: "nothing is to be asked".into(), help: String::new() }
        }
    }

    fn batch(run: &Arc<RunDir>) -> Batch {
        let (ledger, role) = (Ledger::open(run.lock()).unwrap(), ModelRole::Student);
        let silent: Arc<dyn Model> = Arc::new(Silent(Limits::default()));
        let known = (vec![ModelId(1)], HashMap::new());
        let versions = Versions::new(Arc::clone(&ledger), role, WeightRules::default(), None, vec![], known);
        let place = RunPlace { stage: "collect", seed: 0 };
        let student = Arc::new(Ledgered::new(ledger, Arc::clone(&silent), versions, role, place));
        let setting = AgentSetting {
            student: Arc::clone(&silent),
            speech: Speech::Chat(None),
            sandboxes: Arc::new(Sandboxes::new(SandboxConfig::default())),
            tool_limits: ToolLimits::default(),
            reward: RewardRule::default(),
            options: LoopOptions::default(),
            on_step: None,
        };
        Batch {
            stage: "collect",
            model: "m".to_owned(),
            setting,
            student,
            watched: Watched::new(silent, None),
            run: Arc::clone(run),
            concurrency: 2,
            retries: 0,
            started_at: 0,
            on_episode: None,
        }
    }

    /// Every episode is there already, so that a group is over as soon as it has come.
    #[tokio::test]
    async fn groups_are_taken_as_they_come_and_a_stream_that_waits_pauses_the_work() {
        let dir = tempfile::tempdir().unwrap();
        let run = Arc::new(RunDir::open(dir.path(), "collect").unwrap());
        let slots = groups(&[task("a"), task("b")], 2, 2);
        for slot in &slots {
            let mut episode = Episode::new(slot.id(), slot.task.task.clone(), Vec::new());
            episode.outcome = Ok(Outcome { reward: 1.0, components: Vec::new() });
            run.keep_episode(&episode).unwrap();
        }
        let (more, coming) = mpsc::unbounded_channel::<Vec<Slot>>();
        let coming = stream::unfold(coming, async |mut coming| Some((coming.recv().await?, coming)));
        let (batch, (seen, mut events)) = (batch(&run), mpsc::unbounded_channel());
        let tell = move |event: &Event| seen.send(event.clone()).unwrap();
        let work = super::run(&batch, coming, &tell, std::future::pending());
        let feed = async {
            assert!(matches!(events.recv().await, Some(Event::Began { asked: 0, .. })));
            for (n, group) in slots.chunk_by(|a, b| a.group == b.group).enumerate() {
                more.send(group.to_vec()).unwrap();
                while run.metrics().len() <= n {
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(run.metrics().len(), 2);
            drop(more);
        };
        let (done, ()) = tokio::join!(work, feed);
        assert_eq!((done.slots.len(), done.digests.iter().flatten().count()), (4, 4));
        assert!(done.stopped.is_none());
    }
}
