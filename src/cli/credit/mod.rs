//! `credit`: hindsight credit for recorded episodes.

mod args;
mod dry;
mod progress;
mod recompute;
mod setup;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use toml::{Table, Value};

use self::args::CreditArgs;
use self::progress::Progress;
pub(super) use self::progress::{as_json, metrics, summarise};
use self::setup::{Ready, Shown};
use super::block_on;
use super::call::Call;
use super::episodes::{run_failure, seen_from};
use super::failure::Failure;
use super::interrupt::{self, Orderly};
use super::pulse::with_pulse;
use super::server::model_failure;
use super::sources::sources;
use super::stdout;
use crate::model::budget::{Meter, ModelRole};
use crate::model::notice::Notices;
use crate::pipeline::credit::{Options, Report, Stop, Teacher, lenses, run as score};
use crate::pipeline::paid::Paid;
use crate::pipeline::resume::Asked;
use crate::store::episodes::Source;
use crate::store::hindsight::{Settings, find, result_of};
use crate::store::run::{RunDir, RunError};
use crate::store::summary::{Naive, Summary};
use crate::store::{Ledger, RunPlace};
use crate::wire::hindsight::Provenance;

/// Episodes asked for at once: enough to keep a server busy while others are read and written.
const EPISODES_AT_ONCE: usize = 8;

/// What decides the numbers of every episode. What matters only to episodes that lack something is looked at file by file.
const MEASURED: [&str; 4] = ["model", "tokenizer_sha256", "template_sha256", "lens_sha256"];

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let args = &CreditArgs::read(call, |name| std::env::var(name).ok())?;
    if call.config.is("recompute") {
        return recompute::run(args);
    }
    let settings = args.settings()?;
    let shown = Shown::read(args)?;
    let sources = sources(&args.inputs)?;
    if call.config.is("dry_run") {
        return dry::run(args, shown, sources, settings);
    }
    args.check_server()?;
    let run = RunDir::open(&args.run_dir, "credit").map_err(run_failure)?;
    let run = Arc::new(run.for_result(result_of(&shown.lens.key())));
    let (summary, ended) = block_on(scored(args, settings, shown, sources, &run))??;
    run.keep_summary(&summary).map_err(run_failure)?;
    if args.json {
        let text = summary.to_json().to_string();
        stdout::data(format!("{text}\n").as_bytes())?;
    } else {
        stdout::data(table::episodes(&ended.reports).as_bytes())?;
        stdout::data(table::totals(&summary).as_bytes())?;
    }
    verdict(&summary, ended)
}

/// Another way of measuring takes the place of the first only where that was asked for.
fn refused(error: RunError) -> Failure {
    match error.is_usage() {
        true => {
            Failure::input(error, "give the same, score all again with --overwrite, or name another --run")
        }
        false => run_failure(error),
    }
}

/// How a run ended.
struct Ended {
    reports: Vec<Report>,
    stop: Option<Stop>,
    /// The number of the signal that ended it.
    signal: Option<u8>,
}

async fn scored(
    args: &CreditArgs<'_>,
    settings: Settings,
    mut shown: Shown,
    sources: Vec<Source>,
    run: &Arc<RunDir>,
) -> Result<(Summary, Ended), Failure> {
    let began = Instant::now();
    let notices = Notices::default();
    let ready = setup::open(args, &shown, &notices).await?;
    shown.settle(args, &ready.texts);
    let meter = Meter::new(ModelRole::Teacher, args.server.allowance());
    let (rules, place) = (args.server.weight_rules(), RunPlace { stage: "credit", seed: 0 });
    let ledger = Ledger::open(run.lock()).map_err(model_failure)?;
    let paid =
        Paid::open(&ready.opened, &ledger, meter.clone(), place, rules).await.map_err(model_failure)?;
    let (inputs, lens) = (&args.inputs, shown.lens.key());
    let has_scores = |input: &PathBuf| find(input, run.dir(), &lens).is_ok_and(|made| !made.is_empty());
    let is_made = inputs.iter().any(has_scores);
    let forgotten = paid.forgotten(&inputs[0], is_made).await.map_err(model_failure)?;
    paid.notice().into_iter().chain(forgotten).for_each(|notice| notices.add(notice));
    let progress =
        Arc::new(Progress::new(&sources, args.json, meter.clone(), notices.clone(), Arc::clone(run)));
    let provenance = Provenance {
        model: Some(ready.opened.info.model.clone()),
        server: Some(setup::server_name(&ready.opened)),
        version: paid.model.version_now(),
        tokenizer_sha256: Some(ready.tokenizer_sha256.clone()),
        template_sha256: Some(ready.texts.template_sha256()),
        ..shown.provenance.clone()
    };
    let context_length = ready.opened.model.limits().context_length;
    let options = options(args, settings, shown, provenance, context_length)?;
    let decide = if args.overwrite { &[][..] } else { &MEASURED };
    let asked = seen_from(run.dir(), &args.call.config)?;
    run.keep_found(&asked, found(args, &options), decide).map_err(refused)?;
    progress.began(&ready.opened.info.model);
    tell_absences(args, &ready, &sources, &progress, options.framing.tool_text.is_some());
    let teacher = Teacher { model: paid.model.clone(), texts: ready.texts };
    let watched = Arc::clone(&progress);
    let work = score(sources, teacher, options, Arc::new(move |event| watched.tell(event)));
    let mut orderly = Orderly::begin();
    let (stop, signal) = tokio::select! {
        stop = with_pulse(work, || progress.pulse()) => (stop, None),
        number = orderly.signal() => (None, Some(number)),
    };
    paid.ledger.notice().into_iter().for_each(|notice| notices.add(notice));
    let reports = progress.finish();
    let mut summary = summarise(&reports, &notices);
    if signal.is_some() {
        summary.left += progress.n_unheard(&reports);
    }
    let planned = table::planned(&reports);
    summary.naive = Some(Naive { tokens: planned.naive_tokens, requests: planned.naive_requests });
    summary.spent = meter.spent();
    summary.weights = paid.model.checks();
    summary.more.insert("planned_tokens".to_owned(), planned.computed_tokens().into());
    let n_found: u64 = reports.iter().map(|report| report.n_found).sum();
    summary.more.insert("found_in_ledger".to_owned(), n_found.into());
    summary.seconds = began.elapsed().as_secs_f64();
    summary.paid = paid.ledger.paid().await.map_err(model_failure)?;
    let stopped_by = stop.as_ref().map(|stop| match stop {
        Stop::Model(error) => error.to_string(),
        Stop::Disk(why) => why.clone(),
    });
    summary.stopped_by = stopped_by.or_else(|| signal.map(|number| format!("signal {number}")));
    progress.ended(&summary);
    Ok((summary, Ended { reports, stop, signal }))
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
    Ok(Options {
        framing: shown.framing,
        lenses: lenses(shown.lens, settings.params.ratio),
        asked: Asked { settings, provenance },
        min_reward: args.min_reward,
        overwrite: args.overwrite,
        limit: args.limit(context_length)?,
        // One engine computes one thing at a time, best in the plan's order.
        requests_at_once: if is_here { 1 } else { args.requests_at_once()? },
        episodes_at_once: if is_here { 1 } else { EPISODES_AT_ONCE.min(most) },
        run_dir: args.run_dir.clone(),
    })
}

/// What recorded sessions lack and nobody supplied, and what the template ignores.
fn tell_absences(
    args: &CreditArgs<'_>,
    ready: &Ready,
    sources: &[Source],
    progress: &Progress,
    has_tool_text: bool,
) {
    let ignored = ready.texts.ignored(args.has("tools")).join(", ");
    if !ignored.is_empty() && !has_tool_text {
        let origin = ready.texts.template(args.has("tools")).origin();
        progress.note(&format!("{origin} ignores {ignored}"));
    }
    if !args.server.is_here() && ready.opened.model.limits().context_length.is_none() {
        progress
            .note("the server does not tell its context; nothing is shortened unless --max-context says so");
    }
    setup::absences(args, sources).into_iter().for_each(|text| progress.note(&text));
}

/// What is measured with what, for people and for comparing runs.
fn found(args: &CreditArgs<'_>, options: &Options) -> Table {
    let mut found = Table::try_from(&options.asked.provenance).unwrap_or_default();
    found.insert("input".to_owned(), args.inputs.iter().map(|it| shown_path(it)).collect::<Vec<_>>().into());
    found.extend(options.limit.map(|limit| ("max_context".to_owned(), Value::Integer(limit as i64))));
    found
}

/// The exit code and its words.
fn verdict(summary: &Summary, ended: Ended) -> Result<(), Failure> {
    if let Some(number) = ended.signal {
        return Err(interrupt::failure(number));
    }
    match ended.stop {
        Some(Stop::Model(error)) => return Err(model_failure(error)),
        Some(Stop::Disk(why)) => {
            return Err(Failure::stopped(why, "make room or give write access; the same command continues"));
        }
        None => {}
    }
    let (n_lost, n_steps) = (summary.lost("episodes"), summary.lost("steps"));
    if n_lost + n_steps == 0 {
        return Ok(());
    }
    let spared = match summary.made("spared_episodes") {
        0 => String::new(),
        n => format!("; {n} keep the more complete files they had"),
    };
    Err(Failure::losses(
        format!("{n_lost} episodes and {n_steps} steps of others have no credit; each says why{spared}"),
        "mend the causes; the same command asks only for what is missing",
    ))
}

/// A path as people write it.
fn shown_path(path: &Path) -> String {
    path.display().to_string()
}
