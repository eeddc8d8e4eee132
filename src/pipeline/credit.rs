//! Hindsight credit for recorded episodes, end to end: load, read, plan, ask, compute, write.
//!
//! Owns the order of things. One thread loads and reads episodes ahead of the model; several episodes
//! are asked for at once; each is written as soon as it is complete. Whatever goes wrong with a step
//! or an episode is its own loss; what makes going on pointless stops the run, and nothing is written that a
//! stop cut short: the answers are in the ledger. Nor does a file with losses take the place of a more complete one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;

use super::ask::{Answers, Asking, Jobs};
use super::flight::{Flight, n_bytes};
use super::outline::{Framing, Outline, outline};
use super::read::{ReadEpisode, ReadStep, ReadView};
use super::reader::{Reader, Texts};
use super::report::{Done, Fate, Report};
use super::resume::{Asked, OldScores, differences, is_complete, no_scores, reusable};
use super::stopped::Brake;
use super::{Loss, Reason, Stopped};
use crate::event::{Event, Tell};
use crate::model::Model;
use crate::model::planned::Pace;
use crate::store::episodes::{BadFile, Loaded, Source, load, natural};
use crate::store::hindsight::{
    Hindsight, Measured, MeasuredStep, assemble, directory_of, n_scored, read, recompute, write,
};
use crate::store::run::RunDir;
use crate::store::{Ledgered, Stands};
use crate::wire::hindsight::Provenance;
use backsight_core::credit::hcapo::Ratio;
use backsight_core::episode::TokenSource;
use backsight_core::lens::{Lens, Lenses};
use backsight_core::model::Limits;
use backsight_core::plan::Figures;
use backsight_core::subtasks::PlanPlace;
use backsight_core::tokens::{Logprob, TokenId};
use backsight_core::tree::Tip;

/// An episode around whose scores the weights changed is asked for again so often before it is lost.
const ASKED_AT_MOST: u32 = 3;

/// The text of all episodes that are read ahead or asked for has so many bytes at most; a longer episode is alone.
const IN_FLIGHT: usize = 64 << 20;

/// What is asked for.
pub struct Options {
    /// What conversations lack.
    pub framing: Framing,
    /// What steps are seen through: hindsight's lens first, then what its ratio compares with, then whatever else.
    pub lenses: Lenses,
    /// Hyper-parameters, and where the numbers come from as far as it is the same for all episodes.
    pub asked: Asked,
    /// Episodes below this reward are skipped.
    pub min_reward: f64,
    /// Whether what is there is made again.
    pub overwrite: bool,
    /// The most tokens a sequence may have.
    pub limit: Option<usize>,
    /// At most this many requests of one episode at once.
    pub requests_at_once: usize,
    /// At most this many episodes at once.
    pub episodes_at_once: usize,
    /// Where files go that have no directory of their own.
    pub run_dir: PathBuf,
}

/// The lenses that credit with this ratio needs.
pub fn lenses(hindsight: Arc<dyn Lens>, ratio: Ratio) -> Lenses {
    let needed = Lenses::default().and(hindsight, 0);
    ratio.reference().into_iter().fold(needed, |all, lens| all.and(lens, 0))
}

/// Who re-reads the episodes.
pub struct Teacher {
    /// The model, whose every answer is kept.
    pub model: Arc<Ledgered>,
    /// Its tokenizer and template.
    pub texts: Texts,
}

impl Options {
    /// What an earlier run left of an episode in its directory.
    pub(super) fn left(&self, directory: &Path) -> Result<Option<Hindsight>, BadFile> {
        if self.overwrite { Ok(None) } else { read(directory, &self.lenses.result()) }
    }
}

/// An episode's jobs, the scores that an earlier run left, the plan for the others, and why it takes more passes than the
/// episode has texts.
pub(super) fn planned(
    read: &mut ReadEpisode,
    outline: &Outline,
    old: Option<&Hindsight>,
    asked: &Asked,
    lenses: &Lenses,
    limits: &Limits,
) -> (Jobs, Vec<OldScores>, Asking, Option<String>) {
    let jobs = Jobs::new(read, lenses, asked.settings.max_logprob_tokens);
    let old = match old {
        Some(old) => reusable(old, read, asked, lenses),
        None => no_scores(read, lenses),
    };
    let asking = jobs.plan(read, |step, lens| old[step][lens].is_none(), limits);
    let more_passes = more_passes(outline, read, &old, asking.figures());
    (jobs, old, asking, more_passes)
}

/// Says how many passes an episode needs beyond those that its messages and lenses ask for, and why.
fn more_passes(outline: &Outline, read: &ReadEpisode, old: &[OldScores], figures: Figures) -> Option<String> {
    let (expected, _) = outline.n_requests(&|step, lens| old[step][lens].is_none());
    let more = figures.passes.checked_sub(expected as u64).filter(|more| *more > 0)?;
    let why = if read.steps.iter().flatten().any(ReadStep::is_shortened) {
        "contexts that are shortened to fit do not begin alike"
    } else if read.source == TokenSource::Exact {
        "the recorded tokens of a turn differ from those in the history behind it"
    } else {
        "the template writes a turn otherwise once others follow it, thinking for example, so a step needs its own"
    };
    Some(format!("{more} passes more than the {expected} its texts need: {why}"))
}

/// Whether an earlier run left any.
fn has_any(old: &[OldScores]) -> bool {
    old.iter().flatten().any(Option::is_some)
}

/// Scores the episodes in `sources` and writes their credit; `interrupted` ends the work with the number of a signal.
pub async fn run(
    sources: Vec<Source>,
    teacher: Teacher,
    options: Options,
    run: Arc<RunDir>,
    tell: Tell,
    interrupted: impl Future<Output = u8>,
) -> Done {
    let (flight, reports) = (Flight::of(IN_FLIGHT), Mutex::default());
    let shared = Arc::new(Shared { teacher, options, run, tell, flight, brake: Brake::default(), reports });
    let stopped = tokio::select! {
        () = Arc::clone(&shared).work(sources) => shared.brake.stopped(),
        number = interrupted => Some(Stopped::Signal(number)),
    };
    let mut reports = std::mem::take(&mut *shared.reports());
    reports.sort_by(|a, b| natural(&a.id, &b.id));
    Done { reports, stopped }
}

/// An episode ready to be asked for.
struct Work {
    loaded: Loaded,
    asked: Asked,
    directory: PathBuf,
    places: Vec<PlanPlace>,
    read: ReadEpisode,
    jobs: Jobs,
    /// What everything costs.
    figures: Figures,
    old: Vec<OldScores>,
    /// What no earlier run left.
    asking: Asking,
    notes: Vec<String>,
    /// Its room among the episodes in flight, once it has some.
    _room: Option<OwnedSemaphorePermit>,
}

struct Shared {
    teacher: Teacher,
    options: Options,
    run: Arc<RunDir>,
    tell: Tell,
    /// Room for episodes in flight.
    flight: Flight,
    brake: Brake<1>,
    reports: Mutex<Vec<Report>>,
}

impl Shared {
    async fn work(self: Arc<Self>, sources: Vec<Source>) {
        let (sender, mut works) = mpsc::channel(1);
        let producer = {
            let (shared, runtime) = (Arc::clone(&self), Handle::current());
            tokio::task::spawn_blocking(move || shared.produce(sources, &sender, &runtime))
        };
        let mut tasks = JoinSet::new();
        while let Some(work) = works.recv().await {
            let shared = Arc::clone(&self);
            tasks.spawn(async move { shared.score(work).await });
            while tasks.len() >= self.options.episodes_at_once.max(1) {
                tasks.join_next().await;
            }
        }
        while tasks.join_next().await.is_some() {}
        // A producer that panicked has told the test or the log; what it had handed over is done.
        let _ = producer.await;
    }

    fn reports(&self) -> MutexGuard<'_, Vec<Report>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, report: Report) {
        // What is made is what matters; a journal that cannot be written harms none of it.
        let _ = self.run.add_metrics(&report.metrics());
        let event = report.event();
        self.reports().push(report);
        (self.tell)(&event);
    }

    /// Loads and reads episodes until there are no more or the run is stopped.
    fn produce(&self, sources: Vec<Source>, works: &mpsc::Sender<Box<Work>>, runtime: &Handle) {
        for loaded in load(sources) {
            if self.brake.is_stopped() {
                return;
            }
            let ready = match loaded {
                Ok(loaded) => {
                    let room = runtime.block_on(self.flight.room_for(n_bytes(&loaded.episode)));
                    self.prepare(loaded).map(|work| Work { _room: room, ..work })
                }
                Err(error) => {
                    let name = error.episode();
                    let fate = Fate::Lost(Loss::new(Reason::Unreadable, error));
                    Err(Box::new(Report::new(&name, None, fate)))
                }
            };
            match ready {
                Err(report) => self.finish(*report),
                Ok(work) => {
                    // Nobody listens once the run has ended.
                    if works.blocking_send(Box::new(work)).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Everything up to the first request, or how the episode ends without one.
    fn prepare(&self, loaded: Loaded) -> Result<Work, Box<Report>> {
        let options = &self.options;
        let reward = loaded.episode.outcome.as_ref().ok().map(|outcome| outcome.reward);
        let directory = directory_of(&loaded, &options.run_dir);
        let ended = |fate| {
            let report = Report::new(&loaded.episode.id, reward, fate);
            Box::new(Report { directory: Some(directory.clone()), ..report })
        };
        if reward.is_some_and(|reward| reward < options.min_reward) {
            return Err(ended(Fate::Skipped));
        }
        let lost = |loss| ended(Fate::Lost(loss));
        if let Err(why) = &loaded.episode.outcome {
            return Err(lost(Loss::new(Reason::NoReward, why)));
        }
        let asked = options.asked.for_episode(&loaded.episode, &options.framing);
        let old = options.left(&directory).map_err(|error| {
            lost(Loss::new(Reason::Left, format!("{error}; help: score it again with --overwrite")))
        })?;
        if let Some(old) = old.as_ref().filter(|old| is_complete(old, &asked, &options.lenses)) {
            let n_steps = old.scores.steps.len();
            let complete = *ended(self.complete(&directory, old, &asked));
            return Err(Box::new(Report { n_steps, n_credited: n_steps, ..complete }));
        }
        let n_tokens = |text: &str| self.teacher.texts.n_tokens(text);
        let outline = outline(&loaded.episode, &options.framing, &options.lenses, &n_tokens).map_err(lost)?;
        Ok(self.read(loaded, asked, directory, outline, old))
    }

    /// A complete file is left alone, unless other hyper-parameters are asked for and its scores give that credit too.
    /// What others have written stays as they wrote it.
    fn complete(&self, directory: &Path, old: &Hindsight, asked: &Asked) -> Fate {
        let differences = differences(&old.scores, asked);
        if !differences.are_computed() || old.scores.provenance.is_none() {
            return Fate::Kept(differences);
        }
        let scores = match recompute(old, &asked.settings) {
            Ok(scores) => scores,
            Err(error) => return Fate::Lost(Loss::new(Reason::Credit, error)),
        };
        match write(directory, &self.options.lenses.result(), &Hindsight { scores, tokens: None }) {
            Ok(()) => Fate::Recomputed,
            Err(error) => self.unwritable(&error),
        }
    }

    fn unwritable(&self, error: &BadFile) -> Fate {
        self.brake.unwritable(error.to_string());
        Fate::Unfinished
    }

    fn read(
        &self,
        loaded: Loaded,
        asked: Asked,
        directory: PathBuf,
        outline: Outline,
        old: Option<Hindsight>,
    ) -> Work {
        let options = &self.options;
        let (id, steps) = (loaded.episode.id.clone(), outline.places.len());
        (self.tell)(&Event::Reading { id, steps });
        let reader = Reader { texts: &self.teacher.texts, framing: &options.framing, limit: options.limit };
        let mut read = reader.read(&loaded.episode, &outline);
        let mut notes = notes(&loaded, &options.framing);
        let limits = self.teacher.model.limits();
        let (jobs, reused, asking, more_passes) =
            planned(&mut read, &outline, old.as_ref(), &asked, &options.lenses, limits);
        notes.extend(old.and_then(|old| nothing_reused(&old, &reused)));
        let figures = match asking.n_scores() == jobs.len() {
            true => asking.figures(),
            false => self.asking_for_all(&jobs, &read).figures(),
        };
        notes.extend(more_passes);
        let (places, old, _room) = (outline.places, reused, None);
        Work { loaded, asked, directory, places, read, jobs, figures, old, asking, notes, _room }
    }

    /// The plan for all of an episode's scores.
    fn asking_for_all(&self, jobs: &Jobs, read: &ReadEpisode) -> Asking {
        jobs.plan(read, |_, _| true, self.teacher.model.limits())
    }

    /// Asks for what is missing, and writes what follows from it once it is known whose the answers are.
    async fn score(self: Arc<Self>, mut work: Box<Work>) {
        let own = Arc::new(self.teacher.model.at_home(&work.loaded.episode.id));
        let mut n_asked = 0;
        let (figures, report) = loop {
            own.begin_again();
            n_asked += 1;
            let figures = work.asking.figures();
            let answers = self.ask(&work, &own).await;
            match self.stands(&mut work, &own, answers.as_ref()).await {
                Some(true) => break (figures, self.written(work, answers).await),
                Some(false) if n_asked < ASKED_AT_MOST => {}
                Some(false) => {
                    let why = format!("the weights changed while it was scored, {ASKED_AT_MOST} times");
                    break (figures, work.report(Fate::Lost(Loss::new(Reason::Server, why))));
                }
                None => break (figures, work.report(Fate::Unfinished)),
            }
        };
        self.finish(Report { figures, n_sent: own.sent(), n_found: own.lookups().found, ..report });
    }

    /// Asks for what no earlier run left; no answers when the run was stopped before all were there.
    async fn ask(&self, work: &Work, own: &Arc<Ledgered>) -> Option<Answers> {
        let id = &work.loaded.episode.id;
        let pace = Pace { at_once: self.options.requests_at_once, outlook: self.brake.outlooks[0].clone() };
        let asking = &work.asking;
        let (tokens, scores) = (asking.figures().computed_tokens(), asking.n_scores() as u64);
        (self.tell)(&Event::Begun { id: id.clone(), scores, tokens });
        let mut n_settled = 0;
        let settled = || {
            n_settled += 1;
            let share = tokens * n_settled / scores - tokens * (n_settled - 1) / scores;
            (self.tell)(&Event::Settled { id: id.clone(), tokens: share });
            !self.brake.is_stopped()
        };
        let model: Arc<dyn Model> = Arc::clone(own) as Arc<dyn Model>;
        let answers = asking.ask(&model, &pace, settled).await;
        let is_cut = self.brake.is_stopped() && asking.is_cut_short(&answers);
        (!is_cut).then_some(answers)
    }

    /// Whether all scores of an episode are of one version; nothing if that cannot be found out any more. What an
    /// earlier run left counts only if it is of the same.
    async fn stands(&self, work: &mut Work, own: &Ledgered, answers: Option<&Answers>) -> Option<bool> {
        answers?;
        let version = match own.settle().await {
            Ok(Stands::Yes(version)) => version,
            // A change that ends the run has ended it by now.
            Ok(Stands::No) => return own.is_going_on().is_ok().then_some(false),
            Err(error) => {
                self.brake.outlooks[0].stop(error);
                return None;
            }
        };
        let is_other = version.is_some() && version != work.asked.provenance.version;
        work.asked.provenance.version = version.or(work.asked.provenance.version.take());
        if is_other && has_any(&work.old) {
            work.old = no_scores(&work.read, &self.options.lenses);
            work.asking = self.asking_for_all(&work.jobs, &work.read);
            return Some(false);
        }
        Some(true)
    }

    /// Writes an episode's files, off the threads that ask.
    async fn written(self: &Arc<Self>, work: Box<Work>, answers: Option<Answers>) -> Report {
        let unfinished = work.report(Fate::Unfinished);
        let Some(answers) = answers else { return unfinished };
        let shared = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || shared.write(*work, &answers)).await;
        written.unwrap_or(unfinished)
    }

    fn write(&self, work: Work, answers: &Answers) -> Report {
        let mut report = Report {
            n_steps: work.read.steps.len(),
            n_shortened: work.read.steps.iter().flatten().filter(|step| step.is_shortened()).count(),
            notes: work.notes.clone(),
            directory: Some(work.directory.clone()),
            ..work.report(Fate::Made)
        };
        let measured = work.measured(answers, &self.options.lenses);
        let made = assemble(&work.loaded, &work.places, measured, &work.asked.settings);
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                report.fate = Fate::Lost(Loss::new(Reason::Credit, error));
                return report;
            }
        };
        report.lost_steps = work.lost_steps(&made, answers);
        report.n_credited = report.n_steps - report.lost_steps.len();
        if !report.lost_steps.is_empty() {
            let n_before = n_scored(&work.directory, &self.options.lenses.result());
            if n_before > report.n_credited {
                report.fate = Fate::Spared(n_before);
                return report;
            }
            report.fate = Fate::Partial;
        }
        if let Err(error) = write(&work.directory, &self.options.lenses.result(), &made) {
            report.fate = self.unwritable(&error);
        }
        report
    }
}

/// What should be known about an episode before it is scored.
pub fn notes(loaded: &Loaded, framing: &Framing) -> Vec<String> {
    let idle = framing.idle_for(&loaded.episode);
    let change = if idle.len() == 1 { "changes" } else { "change" };
    let idle =
        (!idle.is_empty()).then(|| format!("{} {change} nothing: its tokens are recorded", idle.join(", ")));
    loaded.notes.iter().cloned().chain(idle).collect()
}

/// What to say when nothing of a partial file could be used.
fn nothing_reused(old: &Hindsight, reused: &[OldScores]) -> Option<String> {
    let had_scores = old.scores.steps.iter().any(|step| step.mean_logprob.is_some() && step.error.is_none());
    (had_scores && !has_any(reused))
        .then(|| "its partial scores were measured otherwise; all steps are scored again".to_owned())
}

impl Work {
    /// How it ends, as far as that says.
    fn report(&self, fate: Fate) -> Report {
        let reward = self.loaded.episode.outcome.as_ref().ok().map(|outcome| outcome.reward);
        Report::new(&self.loaded.episode.id, reward, fate)
    }

    fn measured(&self, answers: &Answers, lenses: &Lenses) -> Measured {
        let steps = self.read.steps.iter().enumerate();
        let steps = steps.map(|(idx, step)| self.measured_step(idx, step, answers)).collect();
        let source = self.read.source.name();
        let provenance = Provenance {
            tokens: Some(source.to_owned()),
            plan: Some(self.figures.into()),
            ..self.asked.provenance.clone()
        };
        let (sequences, token_source) = (self.sequences(), self.read.source);
        Measured { lenses: lenses.keys(), sequences, token_source, steps, provenance }
    }

    /// Each of the conversation's sequences: how many tokens it begins with of the one before it, and the rest.
    fn sequences(&self) -> Vec<(usize, Vec<TokenId>)> {
        let (tree, tips) = (&self.read.tree, &self.read.sequences);
        let before = std::iter::once(&Tip::EMPTY).chain(tips);
        let own = |(before, tip): (&Tip, &Tip)| {
            let shared = tree.shared(*before, *tip);
            (shared, tree.tokens(*tip, shared..tip.len()))
        };
        before.zip(tips).map(own).collect()
    }

    fn measured_step(&self, idx: usize, step: &Result<ReadStep, Loss>, answers: &Answers) -> MeasuredStep {
        let step = match step {
            Ok(step) => step,
            Err(loss) => return MeasuredStep::lost(loss.to_string()),
        };
        let score = |(lens, old): (usize, &Option<Vec<Option<Logprob>>>)| {
            let seen = step.view(lens)?;
            let asked = || match seen {
                Err(loss) => Err(loss.to_string()),
                Ok(_) => self.jobs.score(idx, lens, answers).map(|score| score.logprobs().collect()),
            };
            Some(old.clone().map_or_else(asked, Ok))
        };
        let first = step.views.first().and_then(|view| view.seen.as_ref().ok());
        MeasuredStep {
            place: Some(step.place),
            n_context: first.map_or(0, |seen| seen.n_context),
            views: self.old[idx].iter().enumerate().map(score).collect(),
            window: step.window.clone(),
        }
    }

    /// Why each step without credit has none.
    fn lost_steps(&self, made: &Hindsight, answers: &Answers) -> Vec<Loss> {
        let of_step = |(idx, step): (usize, &Result<ReadStep, Loss>)| {
            let error = made.scores.steps.get(idx)?.error.clone()?;
            let reason = match step {
                Err(loss) => loss.reason,
                Ok(step) => self.reason(idx, step, answers),
            };
            Some(Loss { reason, why: error })
        };
        self.read.steps.iter().enumerate().filter_map(of_step).collect()
    }

    /// Why a step that was asked for has no credit: the first of its scores that is not whole.
    fn reason(&self, idx: usize, step: &ReadStep, answers: &Answers) -> Reason {
        let of = |view: &ReadView| match &view.seen {
            Err(loss) => Some(loss.reason),
            Ok(_) if self.old[idx][view.lens].is_some() => None,
            Ok(_) => match self.jobs.score(idx, view.lens, answers) {
                Err(_) => Some(Reason::Server),
                Ok(score) => score.absent().next().map(|_| Reason::Logprob),
            },
        };
        step.views.iter().find_map(of).unwrap_or(Reason::Credit)
    }
}
