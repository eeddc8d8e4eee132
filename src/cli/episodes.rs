//! What `collect` and `evaluate` share: from a configuration to episodes in a run directory.
//!
//! Everything that can be refused is refused before anything is paid for: the configuration, the tasks,
//! the run directory, the server, the sandbox, in that order.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::stream;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::interrupt::{self, Orderly, unless_interrupted};
use super::keys::config_failure;
use super::now;
use super::pulse::with_pulse;
use super::server::{ServerArgs, model_failure};
use super::talk::Talk;
use super::voice::Voice;
use crate::agent::{AgentSetting, OnStep, Speech};
use crate::config::Config;
use crate::config::parts::{AgentPart, RewardPart, RunPart, SandboxPart, TaskPart};
use crate::event::{Event, counted};
use crate::hf::HuggingFace;
use crate::metrics::Digest;
use crate::model::budget::{Meter, ModelRole};
use crate::model::notice::Notices;
use crate::model::probe::probe;
use crate::model::{Model, Opened};
use crate::pipeline::batch::{self, Batch, Done, Stopped};
use crate::pipeline::census::Census;
use crate::pipeline::paid::Paid;
use crate::pipeline::references::{Bench, Tried};
use crate::pipeline::slots::{Chosen, Slot};
use crate::pipeline::student;
use crate::pipeline::watch::{TellTurn, Watched};
use crate::store::fingerprint::differs;
use crate::store::layout::EPISODES;
use crate::store::ledger::Recognition;
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
use crate::store::{Ledger, NewWeights, RunPlace};
use crate::tasks::source::{TaskSource, load_all};
use crate::tasks::{Check, CodingTask, TaskError, check};
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
    pub(super) talk: Arc<Talk>,
    /// The sampling temperature.
    pub(super) temperature: f64,
}

/// Chooses the episodes there are to be, of the tasks there are.
pub(super) type Choose<'a> = &'a dyn Fn(&TaskPart, &[TaskSource], Vec<CodingTask>) -> Result<Chosen, Failure>;

/// What became of it.
pub(super) struct Finished {
    pub(super) run: Arc<RunDir>,
    pub(super) model: String,
    pub(super) slots: Vec<Slot>,
    pub(super) digests: Vec<Option<Digest>>,
    pub(super) stopped: Option<Stopped>,
    pub(super) summary: Summary,
}

/// Runs what is missing of the episodes that `choose` chooses.
pub(super) async fn run(mut ask: Ask<'_>, choose: Choose<'_>) -> Result<Finished, Failure> {
    let began = Instant::now();
    let notices = Notices::default();
    if !ask.config.left_out().is_empty() {
        let names = ask.config.left_out().join(", ");
        notices.add(format!("these settings of the file mean nothing to {}: {names}", ask.stage));
    }
    let (chosen, census) = chosen(&mut ask, choose).await?;
    let run = Arc::new(RunDir::open(ask.dir, ask.stage).map_err(run_failure)?);
    let started_at = started_at(&mut ask.config, &run)?;
    let voice = Voice { run: Arc::clone(&run), talk: Arc::clone(&ask.talk), notices };
    voice.news();
    let (opened, speech) = open_student(&ask, &voice).await?;
    ask.config.set("kind", opened.info.kind.name);
    ask.config.set("model", opened.info.model.clone());
    run.keep_config(&seen_from(run.dir(), &ask.config)?).map_err(run_failure)?;
    let sandboxes = unless_interrupted(sandboxes(&ask, &voice)).await??;
    let slots = slots(&ask, &chosen, census, &sandboxes, &voice).await?;
    let meter = meter(&ask.config)?;
    let paid = student(&ask, &opened, &run, Arc::clone(&meter), &voice).await?;
    let watched = Watched::new(Arc::clone(&paid.model) as Arc<dyn Model>, tell_turns(&ask.talk));
    let setting = setting(&ask, &opened, speech, Arc::clone(&watched), sandboxes, &voice)?;
    let (concurrency, RunPart { episode_retries: retries, .. }) =
        (concurrency(&ask.config, &opened)?, part(&ask.config)?);
    let model = format!("{} ({})", opened.info.model, opened.info.kind.name);
    let (stage, run_too) = (ask.stage, Arc::clone(&run));
    let student = Arc::clone(&paid.model);
    let batch =
        Batch { stage, model, setting, student, watched, run: run_too, concurrency, retries, started_at };
    let done = work(&batch, slots, &voice).await;
    let mut summary = summary(ask.stage, &done);
    summary.paid = paid.ledger.paid().await.map_err(model_failure)?;
    summary.more.insert("found_in_ledger".to_owned(), paid.model.all_lookups().found.into());
    summary.seconds = (began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
    paid.ledger.notice().into_iter().for_each(|notice| voice.notices.add(notice));
    summary.notices = voice.notices.all();
    summary.spent = meter.spent();
    summary.weights = paid.model.checks();
    voice.ended(&summary);
    let Done { slots, digests, stopped } = done;
    Ok(Finished { run, model: opened.info.model, slots, digests, stopped, summary })
}

/// One part of the configuration.
pub(super) fn part<T: DeserializeOwned>(config: &Config) -> Result<T, Failure> {
    config.read().map_err(config_failure)
}

/// The tasks, and what there is to be of them.
async fn chosen(ask: &mut Ask<'_>, choose: Choose<'_>) -> Result<(Chosen, Census), Failure> {
    let tasks: TaskPart = part(&ask.config)?;
    let sources = tasks.sources();
    let hub =
        HuggingFace::from_env(|name| std::env::var(name).ok()).map_err(|error| task_failure(error.into()))?;
    let loaded = load_all(&sources, &tasks.options(), &hub).await.map_err(task_failure)?;
    let census = Census::of(&loaded);
    let sum = sum_of(&loaded.tasks);
    if let Some(wanted) = tasks.tasks_sha256.as_ref().filter(|wanted| **wanted != sum) {
        let what =
            format!("the tasks are others than tasks_sha256 says (they have {sum}, wanted is {wanted})");
        return Err(Failure::input(what, "give back the tasks as they were, or leave out --tasks-sha256"));
    }
    ask.config.set("tasks_sha256", sum);
    let chosen = choose(&tasks, &sources, loaded.tasks).inspect_err(|_| ask.talk.tell(&census.event()))?;
    if ask.stage == "collect" {
        // Written down as a number, so that a later run can see whether it asks for more.
        ask.config.set("groups", chosen.n_groups as i64);
    }
    Ok((chosen, census))
}

/// The episodes there are to be, of the tasks that can be used.
async fn slots(
    ask: &Ask<'_>,
    chosen: &Chosen,
    mut census: Census,
    sandboxes: &Sandboxes,
    voice: &Voice,
) -> Result<Vec<Slot>, Failure> {
    let (tasks, agent): (TaskPart, AgentPart) = (part(&ask.config)?, part(&ask.config)?);
    let usable = match tasks.check_references {
        true => {
            let time = agent.options(ask.temperature, None).verifier_time;
            let bench = Bench { sandboxes, time, run: &voice.run, n_tried: AtomicUsize::new(0) };
            let tried = unless_interrupted(try_out(&bench, chosen, voice)).await??;
            census.add(&tried, bench.n_tried.into_inner());
            tried.usable
        }
        false => chosen.tasks.clone(),
    };
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

/// A sum over everything in the tasks, in their order.
fn sum_of(tasks: &[CodingTask]) -> String {
    check::sum_of(tasks.iter().flat_map(|CodingTask { task, check, .. }| {
        [task.id.as_str(), &task.prompt].into_iter().chain(check.iter().flat_map(Check::texts))
    }))
}

/// A hub that does not answer is bad luck, everything else about tasks the user's to mend.
pub(super) fn task_failure(error: TaskError) -> Failure {
    let is_luck = matches!(&error, TaskError::Hub(error) if !error.is_usage());
    Failure::from_text(&error, !is_luck)
}

pub(super) fn run_failure(error: RunError) -> Failure {
    let help = error.help();
    if error.is_usage() { Failure::input(error, help) } else { Failure::stopped(error, help) }
}

/// The time templates are told: what was typed, else when the run began, else now.
fn started_at(config: &mut Config, run: &RunDir) -> Result<i64, Failure> {
    let part: RunPart = part(config)?;
    let stored = run.stored_config().map_err(run_failure)?;
    let stored = stored.as_ref().and_then(|it| it.get("now")).and_then(|it| it.as_str().map(str::to_owned));
    let seconds = match part.now.or(stored) {
        Some(text) => now::parse(&text)?.unix_seconds(),
        None => batch::now() as i64,
    };
    config.set("now", seconds.to_string());
    Ok(seconds)
}

/// The configuration as a file in `dir` has it: paths begin there, however they were typed, so that a directory can
/// be moved with what it was made from. Only what has nothing in common with it but the root is told from there.
pub(super) fn seen_from(dir: &Path, config: &Config) -> Result<Config, Failure> {
    let unreadable = |error| Failure::stopped(format!("{}: {error}", dir.display()), "mend the directory");
    let dir = dir.canonicalize().map_err(unreadable)?;
    Ok(config.with_paths(|path| way(&dir, &settled(path))))
}

/// A path without links and `..` in the directories it goes through.
fn settled(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (whole.parent().map(Path::canonicalize), whole.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => whole,
    }
}

/// The way from one directory to another place.
fn way(from: &Path, to: &Path) -> PathBuf {
    let n_common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    if n_common <= 1 {
        return to.to_owned();
    }
    let up = from.components().skip(n_common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(n_common)).collect()
}

/// Opens the model, looks at it, and finds out how to speak to it.
async fn open_student(ask: &Ask<'_>, voice: &Voice) -> Result<(Opened, Speech), Failure> {
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&ask.config)? };
    let talk = Arc::clone(&voice.talk);
    let opened = server.open(&voice.notices, Arc::new(move |text: &str| talk.note(text))).await?;
    let report = probe(&opened).await;
    student::check_server(&opened, &report, &voice.notices).map_err(model_failure)?;
    let speech = student::speech(&opened, &part(&ask.config)?).map_err(model_failure)?;
    voice.news();
    Ok((opened, speech))
}

/// The sandboxes, one of which was made to see that they can be, and what they do not hold.
async fn sandboxes(ask: &Ask<'_>, voice: &Voice) -> Result<Arc<Sandboxes>, Failure> {
    let part: SandboxPart = part(&ask.config)?;
    let config = part.sandbox();
    if let Some(warning) = config.kind.warning() {
        voice.warn(warning);
    }
    let sandboxes = Arc::new(Sandboxes::new(config));
    let containment = sandboxes.try_out().await.map_err(|error| Failure::from_text(&error, false))?;
    sandboxes.config().caveats(containment).into_iter().for_each(|caveat| voice.notices.add(caveat));
    voice.news();
    Ok(sandboxes)
}

/// Who hears of each turn, where somebody wants to.
fn tell_turns(talk: &Arc<Talk>) -> Option<TellTurn> {
    let talk = Arc::clone(talk);
    talk.is_verbose().then(|| Arc::new(move |event: &Event| talk.tell(event)) as TellTurn)
}

/// What the student may cost.
fn meter(config: &Config) -> Result<Arc<Meter>, Failure> {
    Ok(Meter::new(ModelRole::Student, ServerArgs::read(config)?.allowance()))
}

/// The model behind its budget and the ledger of the run directory.
async fn student(
    ask: &Ask<'_>,
    opened: &Opened,
    run: &RunDir,
    meter: Arc<Meter>,
    voice: &Voice,
) -> Result<Paid, Failure> {
    let part: RunPart = part(&ask.config)?;
    let rules = ServerArgs::read(&ask.config)?.weight_rules();
    let place = RunPlace { stage: ask.stage, seed: part.seed };
    let ledger = Ledger::open(run.lock()).map_err(model_failure)?;
    let paid = Paid::open(opened, &ledger, meter, place, rules).await.map_err(model_failure)?;
    if rules.new_weights == NewWeights::Stop {
        check_recognition(&paid, &opened.info.model)?;
    }
    let episodes = run.dir().join(EPISODES);
    let are_there = std::fs::read_dir(&episodes).is_ok_and(|mut it| it.next().is_some());
    let forgotten = paid.forgotten(&episodes, are_there).await.map_err(model_failure)?;
    paid.notice().into_iter().chain(forgotten).for_each(|notice| voice.notices.add(notice));
    Ok(paid)
}

/// Episodes of two students are no group.
fn check_recognition(paid: &Paid, model: &str) -> Result<(), Failure> {
    let Recognition::Changed(Some(by)) = paid.recognition else { return Ok(()) };
    Err(Failure::input(
        format!("{model} is not the model this run began with: {}", differs(Some(by))),
        "choose another directory with --run",
    ))
}

fn setting(
    ask: &Ask<'_>,
    opened: &Opened,
    speech: Speech,
    student: Arc<Watched>,
    sandboxes: Arc<Sandboxes>,
    voice: &Voice,
) -> Result<AgentSetting, Failure> {
    let agent: AgentPart = part(&ask.config)?;
    let instructions = student::instructions(&agent).map_err(model_failure)?;
    let mut options = agent.options(ask.temperature, instructions);
    if let Some(most) = opened.model.limits().max_top_k.filter(|most| *most < options.student_topk) {
        voice.notices.add(format!(
            "the server gives at most {most} candidates for a token, not {}",
            options.student_topk
        ));
        options.student_topk = most;
    }
    let reward: RewardPart = part(&ask.config)?;
    let (tool_limits, reward) = (agent.tools(), reward.rule());
    let on_step: Option<OnStep> = Some(batch::step_journal(Arc::clone(&voice.run)));
    let setting = AgentSetting { student, speech, sandboxes, tool_limits, reward, options, on_step };
    setting.checked().map_err(|error| Failure::from_text(&error, true))
}

fn concurrency(config: &Config, opened: &Opened) -> Result<usize, Failure> {
    let server = ServerArgs::read(config)?;
    Ok(server.part.concurrency.unwrap_or(if opened.info.kind.is_here() {
        CONCURRENCY.1
    } else {
        CONCURRENCY.0
    }))
}

async fn work(batch: &Batch, slots: Vec<Slot>, voice: &Voice) -> Done {
    let tell = |event: &Event| {
        voice.talk.tell(event);
        voice.news();
    };
    let mut orderly = Orderly::begin();
    let groups: Vec<Vec<Slot>> = slots.chunk_by(|a, b| a.group == b.group).map(<[Slot]>::to_vec).collect();
    with_pulse(batch::run(batch, stream::iter(groups), &tell, orderly.signal()), || voice.talk.pulse()).await
}

/// What was made and what was lost.
fn summary(stage: &'static str, done: &Done) -> Summary {
    let ended = || done.digests.iter().flatten();
    let made: Vec<&Digest> = ended().filter(|it| it.outcome.is_ok()).collect();
    let count = |is: &dyn Fn(&Digest) -> bool| made.iter().filter(|it| is(it)).count() as u64;
    let counts = [
        ("episodes", made.len() as u64),
        ("solved_episodes", count(&Digest::is_solved)),
        ("rendered_episodes", count(&|it| !it.is_exact)),
    ];
    let mut summary = Summary {
        stage,
        made: counts.into(),
        left: done.digests.iter().filter(|it| it.is_none()).count() as u64,
        stopped_by: done.stopped.as_ref().map(Stopped::to_string),
        ..Summary::default()
    };
    ended().filter_map(Digest::loss).for_each(|why| summary.lose("episodes", &why));
    summary
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

/// The summary on one line.
pub(super) fn as_json(finished: &Finished) -> String {
    format!("{}\n", finished.summary.to_json())
}

/// How the command ends: stopped, with losses, or well.
pub(super) fn verdict(finished: &Finished) -> Result<(), Failure> {
    let continues = "the same command continues";
    match &finished.stopped {
        Some(Stopped::Signal(number)) => Err(interrupt::failure(*number)),
        Some(Stopped::Run(error)) => Err(Failure::stopped(error, error.help())),
        Some(Stopped::Model(error)) => Err(Failure::stopped(error, error.help().unwrap_or(continues))),
        None => match finished.summary.lost("episodes") {
            0 => Ok(()),
            n => Err(Failure::losses(
                format!(
                    "{n} of {} failed; their records say why",
                    counted(finished.slots.len() as u64, "episode")
                ),
                "mend the cause; the same command runs them again",
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_lead_from_one_place_to_another() {
        let check = |from: &str, to: &str, expected: &str| {
            assert_eq!(way(Path::new(from), Path::new(to)), Path::new(expected), "{from} to {to}");
        };
        check("/home/ann/runs/a", "/home/ann/tasks.jsonl", "../../tasks.jsonl");
        check("/home/ann/runs/a", "/home/ann/runs/a/x", "x");
        check("/home/ann/runs/a", "/data/x", "/data/x");
        check("/home/ann", "/home/ben/x", "../ben/x");
    }
}
