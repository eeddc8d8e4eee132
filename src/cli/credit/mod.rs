//! `credit`: hindsight credit for recorded episodes.

pub(super) mod args;
mod dry;
mod pace;
mod recompute;
pub(super) mod setup;
pub(super) mod table;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use toml::{Table, Value};

use self::args::CreditArgs;
use self::pace::Pace;
use self::setup::Shown;
use super::block_on;
use super::call::Call;
use super::failure::Failure;
use super::interrupt::Orderly;
use super::pulse::with_pulse;
use super::sources::sources;
use super::stdout;
use super::voice::{self, Voice};
use crate::event::{Event, if_any};
use crate::model::Opened;
use crate::model::budget::ModelRole;
use crate::pipeline::Texts;
use crate::pipeline::credit::{Options, Teacher, lenses, run as score};
use crate::pipeline::paid::Paid;
use crate::pipeline::report::Done;
use crate::pipeline::resume::Asked;
use crate::pipeline::weighed::{self, Weighing};
use crate::store::RunReader;
use crate::store::episodes::Source;
use crate::store::hindsight::{Settings, credit_file, find, result_of};
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
use crate::wire::hindsight::Provenance;
use backsight_core::lens::PlainLens;

/// Episodes asked for at once: enough to keep a server busy while others are read and written.
const EPISODES_AT_ONCE: usize = 8;

/// What decides the numbers of every episode. What matters only to episodes that lack something is looked at file by file.
const MEASURED: [&str; 4] = ["model", "tokenizer_sha256", "template_sha256", "lens_sha256"];

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let args = &CreditArgs::read(call, |name| std::env::var(name).ok())?;
    if call.config.is("recompute") {
        return recompute::run(args);
    }
    if call.config.is("dry_run") {
        let (settings, shown) = (args.settings()?, Shown::read(args)?);
        return dry::run(args, shown, sources(&args.inputs)?, settings);
    }
    let (summary, done) = scored(args)?;
    if call.is_json() {
        stdout::json(&summary.to_json())?;
    } else {
        stdout::data(table::episodes(&done.reports).as_bytes())?;
        stdout::data(table::totals(&summary).as_bytes())?;
    }
    verdict(&summary, &done)
}

/// Another way of measuring takes the place of the first only where that was asked for.
pub(super) fn refused(error: RunError) -> Failure {
    match error.is_usage() {
        true => {
            Failure::input(error, "give the same, make all again with --overwrite, or name another --run")
        }
        false => error.into(),
    }
}

/// Refuses what cannot be asked for, before anything is begun.
pub(super) fn check(args: &CreditArgs<'_>) -> Result<(), Failure> {
    args.settings()?;
    Shown::read(args).map(drop)
}

/// Scores what is asked for, and keeps the summary.
pub(super) fn scored(args: &CreditArgs<'_>) -> Result<(Summary, Done), Failure> {
    let (settings, shown) = (args.settings()?, Shown::read(args)?);
    let sources = sources(&args.inputs)?;
    args.check_server()?;
    let run = RunDir::open(&args.run_dir, "credit")?;
    let voice = Voice::new(run.for_result(result_of(&shown.lens.key())), args.call.talk("episode"));
    let (summary, done) = block_on(work(args, settings, shown, sources, &voice))??;
    voice.run.keep_summary(&summary)?;
    Ok((summary, done))
}

async fn work(
    args: &CreditArgs<'_>,
    settings: Settings,
    mut shown: Shown,
    sources: Vec<Source>,
    voice: &Arc<Voice>,
) -> Result<(Summary, Done), Failure> {
    let (opened, texts, tokenizer_sha256) = setup::open(args, &shown, voice).await?;
    shown.settle(args, &texts);
    let terms = args.server.terms(ModelRole::Teacher, "credit", 0);
    let paid = Paid::open(&opened, &voice.run, terms).await?;
    let (inputs, lens, dir) = (&args.inputs, shown.lens.key(), voice.run.dir());
    let has_scores = |input: &PathBuf| find(input, dir, &lens).is_ok_and(|made| !made.is_empty());
    let is_made = inputs.iter().any(has_scores);
    paid.note(&voice.notices, &inputs[0], is_made).await?;
    let version = opened.info.version.as_deref().map(|it| format!(" {it}")).unwrap_or_default();
    let provenance = Provenance {
        model: Some(opened.info.model.clone()),
        server: Some(format!("{}{version}", opened.info.kind.name)),
        version: paid.model.version_now(),
        tokenizer_sha256: Some(tokenizer_sha256),
        template_sha256: Some(texts.template_sha256()),
        ..shown.provenance.clone()
    };
    let context_length = opened.model.limits().context_length;
    let options = options(args, settings, shown, provenance, context_length)?;
    let decide = if args.call.config.is("overwrite") { &[][..] } else { &MEASURED };
    let asked = args.call.config.seen_from(dir);
    voice.run.keep_found(&asked, found(args, &options), decide).map_err(refused)?;
    let (model, n) = (opened.info.model.clone(), sources.iter().map(n_episodes).sum());
    let (weighing, all) = (weighing(args.call, lens, voice.run.reader())?, sources.clone());
    voice.say(&Event::Began { stage: "credit", model, unit: "episode", asked: n, found: 0 });
    tell_absences(args, &opened, &texts, &sources, voice, options.framing.tool_text.is_some());
    let teacher = Teacher { model: Arc::clone(&paid.model), texts };
    let done = watched(sources, teacher, options, Pace::new(n, Arc::clone(&paid.meter)), voice).await;
    done.notices().into_iter().for_each(|notice| voice.notices.add(notice));
    let mut summary = done.summary(n);
    if done.stopped.is_none() {
        weigh(all, voice.run.dir(), &weighing)?;
    }
    voice.end(&mut summary, &[&paid]).await?;
    Ok((summary, done))
}

/// How credit becomes advantages.
fn weighing(call: &Call, lens: String, run: &RunReader) -> Result<Weighing, Failure> {
    let (omega, smoothed) = (call.get("omega")?, call.get("smoothed")?);
    Ok(Weighing { lens, omega, smoothed, group_size: run.group_size() })
}

/// Weighs the steps of all episodes that are scored by now. Those of a run that was stopped wait for the rest: a group's
/// episodes are compared with each other.
fn weigh(sources: Vec<Source>, run_dir: &Path, weighing: &Weighing) -> Result<(), Failure> {
    weighed::keep(sources, run_dir, weighing).map_err(|error| {
        let name = run_dir.join(credit_file(&weighing.lens));
        let help = "free some space or mend the directory; the same command continues";
        Failure::stopped(format!("{}: {error}", name.display()), help)
    })
}

/// Scores, and tells how far that is.
async fn watched(
    sources: Vec<Source>,
    teacher: Teacher,
    options: Options,
    pace: Pace,
    voice: &Arc<Voice>,
) -> Done {
    let (pace, told) = (Mutex::new(pace), Arc::clone(voice));
    let heed = Arc::new(move |event: Option<&Event>| {
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        event.into_iter().for_each(|event| pace.heed(event));
        told.talk.show(pace.message());
        drop(pace);
        match event {
            Some(Event::Settled { .. }) => {}
            Some(event) => told.say(event),
            None => told.pulse(),
        }
        told.news();
    });
    let (mut orderly, run, heeding) = (Orderly::begin(), Arc::clone(&voice.run), Arc::clone(&heed));
    let tell = Arc::new(move |event: &Event| heeding(Some(event)));
    let work = score(sources, teacher, options, run, tell, orderly.signal());
    with_pulse(work, || heed(None)).await
}

/// How many episodes a source probably has.
pub(super) fn n_episodes(source: &Source) -> usize {
    let Source::Lines(path) = source else { return 1 };
    let lines = File::open(path).map(|file| BufReader::new(file).split(b'\n').map_while(Result::ok).count());
    lines.unwrap_or(1)
}

/// What is asked of the pipeline, of a model with this context.
fn options(
    args: &CreditArgs<'_>,
    settings: Settings,
    shown: Shown,
    provenance: Provenance,
    context_length: Option<usize>,
) -> Result<Options, Failure> {
    let is_here = args.server.is_here();
    let most = args.server.part.concurrency.unwrap_or(usize::MAX);
    let requests_at_once = Some(args.call.get("episode_requests")?).filter(|n| *n > 0).unwrap_or(usize::MAX);
    let needed = lenses(shown.lens, settings.params.ratio);
    Ok(Options {
        framing: shown.framing,
        lenses: if args.with_plain { needed.and(Arc::new(PlainLens), 0) } else { needed },
        asked: Asked { settings, provenance },
        min_reward: args.call.get::<Option<f64>>("min_reward")?.unwrap_or(f64::NEG_INFINITY),
        overwrite: args.call.config.is("overwrite"),
        limit: args.limit(context_length)?,
        // One engine computes one thing at a time, best in the plan's order.
        requests_at_once: if is_here { 1 } else { requests_at_once },
        episodes_at_once: if is_here { 1 } else { EPISODES_AT_ONCE.min(most) },
        run_dir: args.run_dir.clone(),
    })
}

/// What recorded sessions lack and nobody supplied, and what the template ignores.
fn tell_absences(
    args: &CreditArgs<'_>,
    opened: &Opened,
    texts: &Texts,
    sources: &[Source],
    voice: &Voice,
    has_tool_text: bool,
) {
    let ignored = texts.ignored(args.has("tools")).join(", ");
    if !ignored.is_empty() && !has_tool_text {
        let origin = texts.template(args.has("tools")).origin();
        voice.notices.add(format!("{origin} ignores {ignored}"));
    }
    if !args.server.is_here() && opened.model.limits().context_length.is_none() {
        let what = "the server does not tell its context; nothing is shortened unless --max-context says so";
        voice.notices.add(what);
    }
    setup::absences(args, sources).into_iter().for_each(|text| voice.notices.add(text));
    voice.news();
}

/// What is measured with what, for people and for comparing runs.
fn found(args: &CreditArgs<'_>, options: &Options) -> Table {
    let mut found = Table::try_from(&options.asked.provenance).unwrap_or_default();
    found.insert(
        "input".to_owned(),
        args.inputs.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().into(),
    );
    found.extend(options.limit.map(|limit| ("max_context".to_owned(), Value::Integer(limit as i64))));
    found
}

/// The exit code and its words.
pub(super) fn verdict(summary: &Summary, done: &Done) -> Result<(), Failure> {
    let (n_lost, n_steps) = (summary.lost("episodes"), summary.lost("steps"));
    let spared = summary.made("spared_episodes");
    let spared = if_any(spared, |n| format!("; {n} keep the more complete files they had"));
    let what =
        format!("{n_lost} episodes and {n_steps} steps of others have no credit; each says why{spared}");
    let help = "mend the causes; the same command asks only for what is missing";
    voice::verdict(done.stopped.as_ref(), n_lost + n_steps, what, help)
}
