//! What `collect` and `evaluate` share: from a configuration to episodes in a run directory.
//!
//! Everything that can be refused is refused before anything is paid for: the configuration, the tasks,
//! the run directory, the server, the sandbox, in that order.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;

use super::call::Call;
use super::distill::Early;
use super::failure::Failure;
use super::interrupt::{Orderly, unless_interrupted};
use super::now;
use super::pulse::with_pulse;
use super::server::ServerArgs;
use super::stdout;
use super::talk::Talk;
use super::voice::{self, Voice};
use crate::agent::{AgentSetting, OnStep, Speech};
use crate::config::{Config, parts};
use crate::event::{Event, Tell, counted};
use crate::hf::HuggingFace;
use crate::model::budget::ModelRole;
use crate::model::probe::probe;
use crate::model::{Model, Opened};
use crate::pipeline::batch::{self, Batch, Done};
use crate::pipeline::census::Census;
use crate::pipeline::paid::Paid;
use crate::pipeline::references::{Bench, Tried};
use crate::pipeline::slots::{Chosen, Slot};
use crate::pipeline::student;
use crate::pipeline::watch::Watched;
use crate::store::NewWeights;
use crate::store::fingerprint::differs;
use crate::store::layout::EPISODES;
use crate::store::ledger::Recognition;
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
use crate::tasks::source::{TaskSource, load_all};
use crate::tasks::split::SplitOptions;
use crate::tasks::{self, CodingTask, TaskError};
use backsight_sandbox::Sandboxes;

/// Episodes at once where nothing else is said: for servers, and for a model on this machine's own cores.
const CONCURRENCY: (usize, usize) = (16, 4);

/// What is to be run.
pub(super) struct Ask<'a> {
    /// The stage.
    pub(super) stage: &'static str,
    /// Its configuration.
    pub(super) config: Config,
    /// The run directory.
    pub(super) dir: &'a Path,
    /// Who is told.
    pub(super) talk: Talk,
    /// Of what is distilled as soon as it has happened, the configuration.
    pub(super) early: Option<Config>,
}

/// Chooses the episodes there are to be, of the tasks there are.
pub(super) type Choose<'a> =
    &'a dyn Fn(&SplitOptions, &[TaskSource], Vec<CodingTask>) -> Result<Chosen, Failure>;

/// What became of it.
pub(super) struct Finished {
    pub(super) run: Arc<RunDir>,
    pub(super) model: String,
    pub(super) done: Done,
    pub(super) summary: Summary,
}

/// Runs what is missing of the episodes that `choose` chooses.
pub(super) async fn run(ask: Ask<'_>, choose: Choose<'_>) -> Result<Finished, Failure> {
    let Ask { stage, mut config, dir, talk, early } = ask;
    let (chosen, census) = chosen(stage, &mut config, &talk, choose).await?;
    let voice = Voice::new(RunDir::open(dir, stage)?, talk);
    if !config.left_out().is_empty() {
        let names = config.left_out().join(", ");
        voice.notices.add(format!("these settings of the file mean nothing to {stage}: {names}"));
    }
    let started_at = started_at(&mut config, &voice.run)?;
    voice.news();
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&config)? };
    let (opened, speech) = open_student(&server, &config, &voice).await?;
    config.set("kind", opened.info.kind.name);
    config.set("model", opened.info.model.clone());
    voice.run.keep_config(&config.seen_from(voice.run.dir()))?;
    let sandboxes = unless_interrupted(sandboxes(&config, &voice)).await??;
    let slots = slots(&config, &chosen, census, &sandboxes, &voice).await?;
    let terms = server.terms(ModelRole::Student, stage, config.get("seed")?);
    let new_weights = terms.rules.new_weights;
    let paid = Paid::open(&opened, &voice.run, terms).await?;
    check_student(&paid, new_weights, &opened, &voice).await?;
    let talk = Arc::clone(&voice.talk);
    let tell = talk.is_verbose().then(|| Arc::new(move |event: &Event| talk.tell(event)) as Tell);
    let watched = Watched::new(Arc::clone(&paid.model) as Arc<dyn Model>, tell);
    let early = match &early {
        Some(config) => Some(Early::open(config, &opened, &chosen.tasks, &voice).await?),
        None => None,
    };
    let at_once = if opened.info.kind.is_here() { CONCURRENCY.1 } else { CONCURRENCY.0 };
    let batch = Batch {
        stage,
        model: format!("{} ({})", opened.info.model, opened.info.kind.name),
        setting: setting(&config, &opened, speech, Arc::clone(&watched), sandboxes, &voice, early.as_ref())?,
        student: Arc::clone(&paid.model),
        watched,
        run: Arc::clone(&voice.run),
        concurrency: server.part.concurrency.unwrap_or(at_once),
        retries: config.get("episode_retries")?,
        started_at,
        on_episode: early.as_ref().and_then(Early::on_episode),
    };
    let done = work(&batch, slots, &voice).await;
    let mut summary = done.summary(stage);
    if let Some(early) = &early {
        early.finish(done.stopped.is_some()).await;
    }
    let all_paid = std::iter::once(&paid).chain(early.iter().flat_map(Early::paid));
    voice.end(&mut summary, &all_paid.collect::<Vec<_>>()).await?;
    Ok(Finished { run: batch.run, model: opened.info.model, done, summary })
}

/// The tasks, and what there is to be of them.
async fn chosen(
    stage: &str,
    config: &mut Config,
    talk: &Talk,
    choose: Choose<'_>,
) -> Result<(Chosen, Census), Failure> {
    let sources = parts::sources(config)?;
    let hub = HuggingFace::from_env(|name| std::env::var(name).ok()).map_err(TaskError::from)?;
    let options = parts::dataset(config)?;
    let loaded = load_all(&sources, &options, &hub).await?;
    let census = Census::of(&loaded);
    let sum = tasks::sum_of(&loaded.tasks);
    let wanted: Option<String> = config.get("tasks_sha256")?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != sum) {
        let what =
            format!("the tasks are others than tasks_sha256 says (they have {sum}, wanted is {wanted})");
        return Err(Failure::input(what, "give back the tasks as they were, or leave out --tasks-sha256"));
    }
    config.set("tasks_sha256", sum);
    let chosen =
        choose(&parts::split(config)?, &sources, loaded.tasks).inspect_err(|_| talk.tell(&census.event()))?;
    if stage == "collect" {
        // Written down as a number, so that a later run can see whether it asks for more.
        config.set("groups", chosen.n_groups as i64);
    }
    Ok((chosen, census))
}

/// The episodes there are to be, of the tasks that can be used.
async fn slots(
    config: &Config,
    chosen: &Chosen,
    mut census: Census,
    sandboxes: &Sandboxes,
    voice: &Voice,
) -> Result<Vec<Slot>, Failure> {
    let mut usable = chosen.tasks.clone();
    if config.is("check_references") {
        let time = parts::seconds(config, "verifier_seconds")?;
        let bench = Bench { sandboxes, time, run: &voice.run, n_tried: AtomicUsize::new(0) };
        let tried = unless_interrupted(try_out(&bench, chosen, voice)).await??;
        census.add(&tried, bench.n_tried.into_inner());
        usable = tried.usable;
    }
    voice.count(&census);
    match usable.is_empty() {
        true => Err(Failure::input(
            "every task is refused: none of their own solutions passes their tests",
            "mend the tests, or take the tasks as they are with --check-references false",
        )),
        false => Ok(chosen.slots(&usable)),
    }
}

/// Tries the tasks' own solutions; every minute it is said how far that is.
async fn try_out(bench: &Bench<'_>, chosen: &Chosen, voice: &Voice) -> Result<Tried, Failure> {
    let say = || {
        let n_tried = bench.n_tried.load(Ordering::Relaxed);
        voice.talk.note(format!("{} tried with their own solutions so far", counted(n_tried as u64, "task")));
    };
    let tried = with_pulse(bench.first_usable(&chosen.tasks, chosen.n_wanted()), say).await;
    tried.map_err(|error| Failure::from_text(&error, false))
}

/// A hub that does not answer is bad luck, everything else about tasks the user's to mend.
impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let is_luck = matches!(&error, TaskError::Hub(error) if !error.is_usage());
        Self::from_text(&error, !is_luck)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let help = error.help();
        if error.is_usage() { Self::input(error, help) } else { Self::stopped(error, help) }
    }
}

/// The time templates are told: what was typed, else when the run began, else now.
fn started_at(config: &mut Config, run: &RunDir) -> Result<i64, Failure> {
    let stored = run.stored_config()?;
    let stored = stored.as_ref().and_then(|it| it.get("now")).and_then(|it| it.as_str().map(str::to_owned));
    let typed: Option<String> = config.get("now")?;
    let seconds = match typed.or(stored) {
        Some(text) => now::parse(&text)?.unix_seconds(),
        None => batch::now() as i64,
    };
    config.set("now", seconds.to_string());
    Ok(seconds)
}

/// Opens the model, looks at it, and finds out how to speak to it.
async fn open_student(
    server: &ServerArgs,
    config: &Config,
    voice: &Arc<Voice>,
) -> Result<(Opened, Speech), Failure> {
    let opened = server.open(&voice.notices, voice.teller()).await?;
    let report = probe(&opened).await;
    student::check_server(&opened, &report, &voice.notices)?;
    let part = config.read()?;
    let speech = student::speech(&opened, &part)?;
    voice.news();
    Ok((opened, speech))
}

/// The sandboxes, one of which was made to see that they can be, and what they do not hold.
async fn sandboxes(config: &Config, voice: &Voice) -> Result<Arc<Sandboxes>, Failure> {
    let config = parts::sandbox(config)?;
    if let Some(warning) = config.kind.warning() {
        voice.warn(warning);
    }
    let sandboxes = Arc::new(Sandboxes::new(config));
    let containment = sandboxes.try_out().await.map_err(|error| Failure::from_text(&error, false))?;
    sandboxes.config().caveats(containment).into_iter().for_each(|caveat| voice.notices.add(caveat));
    voice.news();
    Ok(sandboxes)
}

/// Episodes of two students are no group, unless that is wanted.
async fn check_student(
    paid: &Paid,
    new_weights: NewWeights,
    opened: &Opened,
    voice: &Voice,
) -> Result<(), Failure> {
    if let (NewWeights::Stop, Recognition::Changed(Some(by))) = (new_weights, paid.recognition) {
        let model = &opened.info.model;
        return Err(Failure::input(
            format!("{model} is not the model this run began with: {}", differs(Some(by))),
            "choose another directory with --run",
        ));
    }
    let episodes = voice.run.dir().join(EPISODES);
    let are_there = std::fs::read_dir(&episodes).is_ok_and(|mut it| it.next().is_some());
    paid.note(&voice.notices, &episodes, are_there).await.map_err(Failure::from)
}

fn setting(
    config: &Config,
    opened: &Opened,
    speech: Speech,
    student: Arc<Watched>,
    sandboxes: Arc<Sandboxes>,
    voice: &Voice,
    early: Option<&Early>,
) -> Result<AgentSetting, Failure> {
    let part = config.read()?;
    let instructions = student::instructions(&part)?;
    let mut options = parts::agent(config, instructions)?;
    if let Some(most) = opened.model.limits().max_top_k.filter(|most| *most < options.student_topk) {
        voice.notices.add(format!(
            "the server gives at most {most} candidates for a token, not {}",
            options.student_topk
        ));
        options.student_topk = most;
    }
    let (tool_limits, reward) = (parts::tools(config)?, parts::reward(config)?);
    let journal = batch::step_journal(Arc::clone(&voice.run));
    let on_step: Option<OnStep> = Some(match early.and_then(Early::on_step) {
        None => journal,
        Some(distil) => Arc::new(move |so_far, step| {
            journal(so_far, step);
            distil(so_far, step);
        }),
    });
    let setting = AgentSetting { student, speech, sandboxes, tool_limits, reward, options, on_step };
    setting.checked().map_err(|error| Failure::from_text(&error, true))
}

async fn work(batch: &Batch, slots: Vec<Slot>, voice: &Voice) -> Done {
    let tell = |event: &Event| {
        voice.talk.tell(event);
        voice.news();
    };
    let mut orderly = Orderly::begin();
    let groups: Vec<Vec<Slot>> = slots.chunk_by(|a, b| a.group == b.group).map(<[Slot]>::to_vec).collect();
    with_pulse(batch::run(batch, stream::iter(groups), &tell, orderly.signal()), || voice.pulse()).await
}

/// The table's lines that both commands share.
pub(super) fn table(finished: &Finished) -> String {
    let summary = &finished.summary;
    let (made, lost) = (summary.made("episodes"), summary.lost("episodes"));
    let rendered_episodes = summary.made("rendered_episodes");
    let mut text = format!("episodes   {made} made, {lost} lost, {} left\n", summary.left);
    for (why, n) in summary.lost.values().flatten() {
        text.push_str(&format!("{:<10} {n} lost: {}\n", "", super::output::one_line(why)));
    }
    if rendered_episodes > 0 {
        let have = if rendered_episodes == 1 { "has" } else { "have" };
        let n = counted(rendered_episodes, "episode");
        text.push_str(&format!("tokens     {n} {have} no sampled ids (rendered)\n"));
    }
    for (role, paid) in &summary.paid {
        text.push_str(&format!(
            "paid       {}: {}, {} tokens sent ({} of them cached), {} sampled\n",
            role.name(),
            counted(paid.requests, "request"),
            paid.prompt_tokens,
            paid.cached_tokens,
            paid.completion_tokens
        ));
    }
    text.extend(
        super::output::weights(summary).map(|line| line.replacen("weights ", "weights    ", 1) + "\n"),
    );
    text.push_str(&format!("run        {}, {:.1} s\n", finished.run.dir().display(), summary.seconds));
    text
}

/// Shows the summary, or the table of a command, and says how it ends.
pub(super) fn end(call: &Call, finished: &Finished, table: fn(&Finished) -> String) -> Result<(), Failure> {
    match call.is_json() {
        true => stdout::json(&finished.summary.to_json())?,
        false => stdout::data(table(finished).as_bytes())?,
    }
    verdict(finished)
}

/// How the command ends: stopped, with losses, or well.
pub(super) fn verdict(finished: &Finished) -> Result<(), Failure> {
    let n_lost = finished.summary.lost("episodes");
    let episodes = counted(finished.done.slots.len() as u64, "episode");
    let what = format!("{n_lost} of {episodes} failed; their records say why");
    let help = "mend the cause; the same command runs them again";
    voice::verdict(finished.done.stopped.as_ref(), n_lost, what, help)
}
