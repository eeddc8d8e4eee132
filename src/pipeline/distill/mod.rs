//! On-policy distillation of recorded episodes, end to end: pair, judge, read under hints, ask, write.
//!
//! Owns the order of things. All pairs of an episode are judged at once, and what a verdict gives is read and asked for as
//! soon as it is there (`judged`, `taught`); the student's own numbers come beside that (`own`). An episode is written
//! when all of it is known, groups when all episodes are (`shipped`). Everything paid for is in the ledger, so
//! whatever is asked differently later costs only what is new.

mod early;
mod forecast;
mod judged;
mod lost;
mod own;
mod shipped;
mod taught;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

pub use self::early::Early;
pub use self::forecast::{Forecast, Forecaster};
pub use self::judged::Judging;
use self::judged::{Judged, Verdicts, watched};
use self::lost::{Lost, What};
use self::own::Own;
pub use self::shipped::{Shipping, ship};
use self::taught::{Taught, Through};
use super::ask::Jobs;
use super::batch::now;
use super::flight::{Flight, n_bytes};
use super::outline::{Framing, outline};
use super::read::ReadEpisode;
use super::reader::{Reader, Texts};
use super::stopped::Brake;
use super::{Loss, Reason, Stopped};
use crate::event::{Event, Tell};
use crate::judge::Judge;
use crate::model::planned::Pace;
use crate::ship::compact::{ActionPlace, ActionRows, Distilled, Sequence};
use crate::store::episodes::{Loaded, Source, load};
use crate::store::hindsight::file_name;
use crate::store::run::RunDir;
use crate::store::summary::Summary;
use crate::store::{Ledgered, Stands};
use backsight_core::credit::distill::{Audit, rows};
use backsight_core::episode::Episode;
use backsight_core::hint::Pairs;
use backsight_core::lens::{Given, Lens, Lenses, PlainLens};
use backsight_core::score::SpanScore;
use backsight_core::tokens::TokenId;

/// Where what is distilled from each episode is kept.
pub const DISTILLED: &str = "distilled";

/// What the student says of actions it read again is kept under this name, beside the lenses.
pub const STUDENT: &str = "student";

/// Whether what is said through a lens is for the student to learn.
fn teaches(lens: &str) -> bool {
    lens != STUDENT && !lens.starts_with("placebo")
}

/// An episode around whose numbers the weights changed is asked for again so often before it is lost.
const ASKED_AT_MOST: u32 = 3;
/// The texts and the numbers of all episodes in flight have so many bytes at most, about; a longer episode is alone.
const IN_FLIGHT: usize = 256 << 20;

/// What is asked for.
pub struct Options {
    /// What conversations lack.
    pub framing: Framing,
    /// Which actions are paired with what.
    pub pairs: Pairs,
    /// Characters of each part of a next state that a judge is shown.
    pub max_chars: usize,
    /// How hints are found; none where every action is re-read as it is.
    pub judging: Option<Judging>,
    /// Whether a teacher is asked at all; without one, only the student's own numbers are.
    pub distils: bool,
    /// Candidates at each position.
    pub k: usize,
    /// The candidates that were asked for, of which the teacher may give fewer.
    pub wanted_k: usize,
    /// The student's own candidates at each position of what it reads again.
    pub student_k: usize,
    /// Whether the teacher is asked about those of the student instead of its own.
    pub at_student: bool,
    /// Which actions are read again although the student's logprobs are known.
    pub audit: Audit,
    /// An action whose numbers then differ by more than this on average quarantines its episode, in nats.
    pub audit_max_mean_diff: f64,
    /// What decides how an episode comes out, by name; with another value it is made again.
    pub settings: Value,
    /// The same, as far as it was found out.
    pub found: Value,
    /// The most tokens a sequence may have: the student's, the teacher's.
    pub limits: [Option<usize>; 2],
    /// At most this many requests of one episode at once.
    pub requests_at_once: usize,
    /// At most this many episodes at once.
    pub episodes_at_once: usize,
    /// Whether what is there is made again.
    pub overwrite: bool,
    /// Whether what other weights said is kept where it is whole.
    pub keeps_versions: bool,
    /// Whether the teacher's weights are the student's, which move as it is trained.
    pub teacher_is_live: bool,
    /// What seeds choices: which action is looked at again, which words a placebo says.
    pub seed: u64,
}

impl Options {
    /// How many candidates a row of a group has.
    pub fn width(&self) -> usize {
        if self.at_student { self.student_k } else { self.k }
    }

    /// Whose candidates those are.
    fn candidates(&self) -> &'static str {
        if self.at_student { "student" } else { "teacher" }
    }
}

/// Who works on it.
pub struct Roles {
    /// Whose tokens are trained.
    pub student: Arc<Ledgered>,
    /// Who re-reads them.
    pub teacher: Arc<Ledgered>,
    /// Who votes, where anybody does.
    pub judge: Option<(Arc<Ledgered>, crate::judge::Manner)>,
    /// The tokenizer they share, and the student's template.
    pub texts: Texts,
}

/// What became of an episode.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It is distilled.
    Made,
    /// It was already.
    Kept,
    /// It could not be done.
    Lost(Loss),
    /// The run was stopped before it was done.
    Unfinished,
}

/// An episode's end.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The episode.
    pub id: String,
    /// What became of it.
    pub fate: Fate,
    /// In words.
    pub text: String,
    /// In numbers, by the names of metrics.
    pub numbers: Value,
}

/// What became of all of them.
pub struct Reports {
    /// One for each episode of which something was heard.
    pub reports: Vec<Report>,
    /// What stopped the work before its end.
    pub stopped: Option<Stopped>,
}

impl Reports {
    /// Counts the episodes, of so many that were asked for.
    pub fn count(&self, summary: &mut Summary, n_asked: usize) {
        summary.made.extend([("episodes", 0), ("kept_episodes", 0)]);
        for report in &self.reports {
            let mut count = |what| *summary.made.entry(what).or_default() += 1;
            match &report.fate {
                Fate::Made => count("episodes"),
                Fate::Kept => count("kept_episodes"),
                Fate::Lost(loss) => summary.lose("episodes", loss.reason.name()),
                Fate::Unfinished => summary.left += 1,
            }
        }
        if self.stopped.is_some() {
            summary.left += n_asked.saturating_sub(self.reports.len()) as u64;
        }
        summary.stopped_by = self.stopped.as_ref().map(Stopped::to_string);
    }
}

struct Shared {
    roles: Roles,
    options: Options,
    run: Arc<RunDir>,
    tell: Tell,
    flight: Flight,
    /// For the student, the teacher and the judge.
    brake: Brake<3>,
    reports: Mutex<Vec<Report>>,
}

/// Distils the episodes in `sources`; `interrupted` ends the work with the number of a signal.
pub async fn run(
    sources: Vec<Source>,
    roles: Roles,
    options: Options,
    run: Arc<RunDir>,
    tell: Tell,
    interrupted: impl Future<Output = u8>,
) -> Reports {
    let shared = Arc::new(Shared::new(roles, options, run, tell));
    let stopped = tokio::select! {
        () = Arc::clone(&shared).work(sources) => shared.brake.stopped(),
        number = interrupted => Some(Stopped::Signal(number)),
    };
    let reports = std::mem::take(&mut *lock(&shared.reports));
    Reports { reports, stopped }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of what is distilled from an episode.
pub fn file_of(run: &Path, episode: &str) -> PathBuf {
    run.join(DISTILLED).join(format!("{}.safetensors", file_name(episode)))
}

/// What is asked for now.
#[derive(Clone, Copy)]
pub struct Current<'a> {
    /// As it was typed.
    pub settings: &'a Value,
    /// As it was found out.
    pub found: &'a Value,
}

impl Current<'_> {
    /// Whether a file was made with it.
    fn is_of(self, about: &Value) -> bool {
        about["settings"] == *self.settings && about["found"] == *self.found
    }
}

fn ended(id: String, fate: Fate, text: &str) -> Report {
    Report { id, fate, text: text.to_owned(), numbers: Value::Null }
}

fn lost(id: String, loss: Loss) -> Report {
    let text = format!("lost: {loss}");
    ended(id, Fate::Lost(loss), &text)
}

impl Shared {
    fn new(roles: Roles, options: Options, run: Arc<RunDir>, tell: Tell) -> Self {
        let (flight, brake) = (Flight::of(IN_FLIGHT), Brake::default());
        Self { roles, options, run, tell, flight, brake, reports: Mutex::default() }
    }

    async fn work(self: Arc<Self>, sources: Vec<Source>) {
        let mut tasks = JoinSet::new();
        let mut episodes = load(sources);
        loop {
            let next = tokio::task::spawn_blocking(move || (episodes.next(), episodes)).await;
            let Ok((Some(loaded), rest)) = next else { break };
            episodes = rest;
            if self.brake.is_stopped() {
                break;
            }
            match loaded {
                Ok(loaded) => {
                    let room = self.flight.room_for(self.n_bytes(&loaded.episode)).await;
                    let shared = Arc::clone(&self);
                    tasks.spawn(async move {
                        let _room = room;
                        let report = shared.episode(loaded).await;
                        shared.finish(report);
                    });
                }
                Err(error) => {
                    self.finish(lost(error.episode(), Loss::new(Reason::Unreadable, &error)));
                }
            }
            while tasks.len() >= self.options.episodes_at_once.max(1) {
                tasks.join_next().await;
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// About how many bytes of text and numbers an episode has: an id and a logprob for each candidate, as they came and
    /// as they are written.
    fn n_bytes(&self, episode: &Episode) -> usize {
        let actions = episode.steps().iter().filter_map(|step| Some(step.tokens.as_ref()?.span.len()));
        n_bytes(episode) + actions.sum::<usize>() * (self.options.k + 1) * 32
    }

    fn finish(&self, report: Report) {
        let mut keys = json!({"episode": report.id, "text": report.text});
        if let (Some(keys), Some(numbers)) = (keys.as_object_mut(), report.numbers.as_object()) {
            let row = json!({"time": now(), "episode": report.id});
            let row = row.as_object().into_iter().flatten().chain(numbers);
            // What is made is what matters; a journal that cannot be written harms none of it.
            let _ = self.run.add_metrics(&row.map(|(key, it)| (key.clone(), it.clone())).collect());
            keys.extend(numbers.clone());
        }
        (self.tell)(&Event::Scored { id: report.id.clone(), text: report.text.clone(), keys });
        lock(&self.reports).push(report);
    }

    async fn episode(self: &Arc<Self>, loaded: Loaded) -> Report {
        let id = loaded.episode.id.clone();
        let path = file_of(self.run.dir(), &id);
        let is_made = !self.options.overwrite
            && crate::ship::compact::about(&path).is_ok_and(|about| self.is_made(&about));
        match (&loaded.episode.outcome, is_made) {
            (Err(why), _) => lost(id, Loss::new(Reason::NoReward, why)),
            (Ok(_), true) => ended(id, Fate::Kept, "distilled already, left alone"),
            (Ok(_), false) => self.distil(Arc::new(loaded.episode)).await,
        }
    }

    /// Whether a file holds what is asked for, all of it.
    fn is_made(&self, about: &Value) -> bool {
        let current = Current { settings: &self.options.settings, found: &self.options.found };
        let is_of = |key: &str, model: &Ledgered| {
            let (then, now) = (about[key].as_str(), model.version_now());
            self.options.keeps_versions || then.is_none() || now.is_none() || then == now.as_deref()
        };
        let (student, teacher) = (&self.roles.student, &self.roles.teacher);
        let is_same = is_of("student_version", student) && is_of("teacher_version", teacher);
        current.is_of(about) && about["lost"] == json!({}) && is_same
    }

    /// Distils an episode, again if the weights changed around its numbers.
    async fn distil(self: &Arc<Self>, episode: Arc<Episode>) -> Report {
        let id = episode.id.clone();
        let mut work = match Work::new(self, &episode).await {
            Ok(work) => work,
            Err(loss) => return lost(id, loss),
        };
        for _ in 0..ASKED_AT_MOST {
            work.begin_again();
            let (own, verdicts) = tokio::join!(work.own(), work.verdicts());
            let (Some(own), Some(verdicts)) = (own, verdicts) else {
                return ended(id, Fate::Unfinished, "not finished");
            };
            match work.stand().await {
                Some(Some(versions)) => return work.written(own, &verdicts, &versions).await,
                Some(None) => {}
                None => return ended(id, Fate::Unfinished, "not finished"),
            }
        }
        let why = format!("the weights changed while it was read, {ASKED_AT_MOST} times");
        lost(id, Loss::new(Reason::Server, why))
    }

    /// Reads an episode through lenses, off the threads that ask.
    async fn read(
        self: &Arc<Self>,
        episode: &Arc<Episode>,
        lenses: Lenses,
        limit: Option<usize>,
    ) -> Result<(ReadEpisode, Jobs), Loss> {
        let (shared, episode) = (Arc::clone(self), Arc::clone(episode));
        let read = tokio::task::spawn_blocking(move || {
            let (texts, framing) = (&shared.roles.texts, &shared.options.framing);
            let outline = outline(&episode, framing, &lenses, &|text: &str| texts.n_tokens(text))?;
            let read = Reader { texts, framing, limit }.read(&episode, &outline);
            let jobs = Jobs::new(&read, &lenses, 0);
            Ok((read, jobs))
        });
        read.await.unwrap_or_else(|error| Err(Loss::new(Reason::Unreadable, error)))
    }
}

/// An episode under way.
struct Work<'s> {
    shared: &'s Arc<Shared>,
    episode: Arc<Episode>,
    /// The episode as the student saw it, and the jobs of that.
    plain: ReadEpisode,
    plain_jobs: Jobs,
    /// Each action's place and ids, where it could be read.
    actions: Vec<Option<ActionIds>>,
    student: Arc<Ledgered>,
    teacher: Arc<Ledgered>,
    judge: Option<Judge>,
    judging: Option<Arc<Ledgered>>,
    /// The student's numbers once they are known; nothing inside where the run was stopped before.
    own: OnceCell<Option<Own>>,
}

/// Where an action is, and its tokens.
struct ActionIds {
    sequence: usize,
    first: usize,
    ids: Vec<TokenId>,
}

/// The names of the weights that gave an episode's numbers, where they could be measured.
struct Versions {
    student: Option<String>,
    teacher: Option<String>,
}

impl<'s> Work<'s> {
    async fn new(shared: &'s Arc<Shared>, episode: &Arc<Episode>) -> Result<Self, Loss> {
        let options = &shared.options;
        let lens = Lenses::default().and(Arc::new(PlainLens), options.student_k);
        let (plain, plain_jobs) = shared.read(episode, lens, options.limits[0]).await?;
        let action = |step: &Result<super::ReadStep, Loss>| {
            let (sequence, span) = step.as_ref().ok()?.place;
            let ids = plain.tree.tokens(*plain.sequences.get(sequence)?, span.range());
            Some(ActionIds { sequence, first: span.start(), ids })
        };
        let actions = plain.steps.iter().map(action).collect();
        let at_home = |role: &Arc<Ledgered>| Arc::new(role.at_home(&episode.id));
        let judging = shared.roles.judge.as_ref().map(|(model, manner)| (at_home(model), *manner));
        let judge = judging.as_ref().map(|(model, manner)| Judge {
            model: watched(model, &shared.brake.outlooks[2]),
            manner: *manner,
        });
        Ok(Self {
            shared,
            episode: Arc::clone(episode),
            plain_jobs,
            actions,
            plain,
            student: at_home(&shared.roles.student),
            teacher: at_home(&shared.roles.teacher),
            judge,
            judging: judging.map(|(model, _)| model),
            own: OnceCell::new(),
        })
    }

    fn begin_again(&mut self) {
        self.own = OnceCell::new();
        [&self.student, &self.teacher].into_iter().chain(&self.judging).for_each(|it| it.begin_again());
    }

    fn pace(&self, role: usize) -> Pace {
        let (at_once, outlook) =
            (self.shared.options.requests_at_once, self.shared.brake.outlooks[role].clone());
        Pace { at_once, outlook }
    }

    /// Whether all numbers of a role are of one version; nothing in the outer place where that cannot be found out
    /// any more.
    async fn stand(&self) -> Option<Option<Versions>> {
        let mut names = Vec::new();
        for (role, model) in [&self.student, &self.teacher].into_iter().enumerate() {
            match model.settle().await {
                Ok(Stands::Yes(name)) => names.push(name.or_else(|| model.version_now())),
                Ok(Stands::No) if model.is_going_on().is_ok() => return Some(None),
                // A change that ends the run has ended it by now.
                stands => {
                    let error = stands.err().or_else(|| model.is_going_on().err())?;
                    self.shared.brake.outlooks[role].stop(error);
                    return None;
                }
            }
        }
        let (teacher, student) = (names.pop().flatten(), names.pop().flatten());
        Some(Some(Versions { student, teacher }))
    }

    /// What is said about every action that is read again: judged first, or as it is. Nothing where the run was stopped.
    async fn verdicts(&self) -> Option<Verdicts> {
        match (&self.shared.options.judging, &self.judge) {
            (Some(judging), Some(judge)) => self.judged(judging, judge, |_| true).await,
            _ if !self.shared.options.distils => Some(Verdicts { judged: Vec::new(), taught: Vec::new() }),
            _ => {
                let every = (0..self.actions.len()).map(|step| (step, Given::Text(String::new()))).collect();
                let taught = self.taught(self.under(&Through::Plain, every).await).await?;
                Some(Verdicts { judged: Vec::new(), taught: vec![taught] })
            }
        }
    }

    /// Writes what is known of the episode.
    async fn written(&self, own: &Own, verdicts: &Verdicts, versions: &Versions) -> Report {
        let (distilled, lost) = self.distilled(own, verdicts, versions);
        let path = file_of(self.shared.run.dir(), &self.episode.id);
        let lines = verdicts.lines(&self.episode.id, own, &self.shared.options);
        let written = lines
            .iter()
            .try_for_each(|line| self.shared.run.add_verdict(line))
            .map_err(|error| error.to_string())
            .and_then(|()| crate::ship::compact::keep(&path, &distilled).map_err(|error| error.to_string()));
        if let Err(why) = written {
            self.shared.brake.unwritable(why);
            return ended(self.episode.id.clone(), Fate::Unfinished, "not written");
        }
        let read = distilled.rows.iter().filter(|(lens, _)| teaches(lens));
        let actions: Vec<&ActionRows> = read.flat_map(|(_, actions)| actions).collect();
        let n_rows: usize = actions.iter().map(|it| it.rows.iter().flatten().count()).sum();
        let n_hints = verdicts.judged.iter().filter(|it| it.verdict.hintable).count();
        let lost = lost.told();
        let quarantine = own
            .quarantine(self.shared.options.audit_max_mean_diff)
            .map_or(String::new(), |why| format!("; {why}"));
        let n_pairs = verdicts.judged.len();
        let counts = &distilled.about["counts"];
        let numbers = json!({
            "opd/pairs": n_pairs, "opd/votes": counts["votes"], "opd/hints": counts["hints"],
            "opd/scored_turns": actions.len(), "opd/scored_tokens": n_rows,
        });
        let text = format!("{n_hints} of {n_pairs} steps hintable, {n_rows} tokens read{lost}{quarantine}");
        Report { numbers, ..ended(self.episode.id.clone(), Fate::Made, &text) }
    }

    /// Everything about the episode in one, and what was lost, by reason.
    fn distilled(&self, own: &Own, verdicts: &Verdicts, versions: &Versions) -> (Distilled, Lost) {
        let mut lost = Lost::default();
        let of_votes = verdicts.judged.iter().flat_map(Judged::losses);
        of_votes.for_each(|(reason, why)| lost.lose(What::Votes, reason, why));
        let mut lose = |reason, why: std::fmt::Arguments<'_>| lost.lose(What::Readings, reason, why);
        let mut rows_of: BTreeMap<String, Vec<ActionRows>> = BTreeMap::new();
        for Taught { step, lens, score } in verdicts.taught_rows(own, &self.shared.options) {
            match (&self.actions[step], score) {
                (_, Err(loss)) => lose(loss.reason.name(), format_args!("step {step}: {loss}")),
                (None, Ok(_)) => lose(Reason::Unreadable.name(), format_args!("step {step}")),
                (Some(action), Ok(score)) => {
                    for (_, why) in score.absent() {
                        lose("no logprob of the teacher for a token", format_args!("step {step}: {why}"));
                    }
                    rows_of.entry(lens).or_default().push(self.rows(action, step, own, &score));
                }
            }
        }
        for (step, why) in &own.lost {
            lose("the student's own reading failed", format_args!("step {step}: {why}"));
        }
        let quarantined = own.quarantine(self.shared.options.audit_max_mean_diff);
        if quarantined.is_some() {
            rows_of.clear();
        }
        for (step, score) in &own.read {
            if let Some(action) = self.actions[*step].as_ref().filter(|_| self.shared.options.student_k > 0) {
                let rows = self.rows(action, *step, own, score);
                rows_of.entry(STUDENT.to_owned()).or_default().push(rows);
            }
        }
        rows_of.values_mut().for_each(|rows| rows.sort_by_key(|it| it.step));
        let sequences = self.sequences(own);
        let about = json!({
            "episode": self.episode.id, "task": self.episode.task.id, "settings": self.shared.options.settings,
            "found": self.shared.options.found,
            "reward": self.episode.outcome.as_ref().ok().map(|it| it.reward), "tokens": self.plain.source.name(),
            "k": self.shared.options.width(), "candidates": self.shared.options.candidates(),
            "wanted_k": self.shared.options.wanted_k, "student_version": versions.student, "teacher_version": versions.teacher,
            "teacher": if self.shared.options.teacher_is_live { "live" } else { "frozen" },
            "quarantined": quarantined, "audit": own.audit_row(), "lost": lost.counts(),
            "pairs": verdicts.judged.len(), "counts": verdicts.counts(),
        });
        let episodes = vec![0; sequences.len()];
        (Distilled { sequences, episodes, actions: self.places(), rows: rows_of, about }, lost)
    }

    /// Where the actions are that could be read.
    fn places(&self) -> Vec<ActionPlace> {
        let place = |(step, action): (usize, &Option<ActionIds>)| {
            let ActionIds { sequence, first, ids } = action.as_ref()?;
            Some(ActionPlace { sequence: *sequence, step, first: *first, len: ids.len() })
        };
        self.actions.iter().enumerate().filter_map(place).collect()
    }

    fn rows(&self, action: &ActionIds, step: usize, own: &Own, score: &SpanScore) -> ActionRows {
        let ActionIds { sequence, first, ref ids } = *action;
        ActionRows { sequence, step, first, rows: rows(ids, &own.logprobs[step], score) }
    }

    /// The episode's sequences with the student's numbers.
    fn sequences(&self, own: &Own) -> Vec<Sequence> {
        let tree = &self.plain.tree;
        let blank = |tip: &backsight_core::tree::Tip| Sequence {
            tokens: tree.tokens(*tip, 0..tip.len()),
            sampled: vec![false; tip.len()],
            student: vec![None; tip.len()],
        };
        let mut sequences: Vec<Sequence> = self.plain.sequences.iter().map(blank).collect();
        for (action, logprobs) in self.actions.iter().zip(&own.logprobs) {
            let Some(action) = action else { continue };
            let sequence = &mut sequences[action.sequence];
            for (position, logprob) in (action.first..action.first + action.ids.len()).zip(logprobs) {
                sequence.sampled[position] = true;
                sequence.student[position] = *logprob;
            }
        }
        sequences
    }
}
