//! `score`: the scoring primitive over a file of jobs.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use toml::Table;

use super::block_on;
use super::call::Call;
use super::failure::Failure;
use super::interrupt::Orderly;
use super::output;
use super::pulse::with_pulse;
use super::server::ServerArgs;
use super::stdout;
use super::voice::{self, Voice};
use crate::config::Config;
use crate::event::{Event, counted, if_any};
use crate::model::JobScores;
use crate::model::Opened;
use crate::model::budget::{ModelRole, Spent};
use crate::model::notice::Notices;
use crate::model::planned::{Planned, score_planned};
use crate::model::probe::require_scores;
use crate::model::transport::Transport;
use crate::model::{Error, Limits, Model};
use crate::pipeline::Stopped;
use crate::pipeline::batch::now;
use crate::pipeline::paid::Paid;
use crate::store::episodes::BOM;
use crate::store::run::{RunDir, RunError};
use crate::store::spool::Spool;
use crate::store::summary::{Naive, Summary};
use crate::store::{Ledgered, LockError};
use crate::wire::score_jobs;
use backsight_core::plan::Figures;
use backsight_core::score::{Absence, ScoreJob, SpanScore};

/// One line of the jobs file.
struct Line {
    id: score_jobs::Id,
    job: Result<ScoreJob, String>,
}

/// Answers on their way into the file.
struct Rows {
    spool: Spool,
    /// The jobs that are asked for, as the plan counts them.
    asked: Vec<Row>,
    /// What was lost of the jobs, and left.
    summary: Summary,
    unwritable: Option<io::Error>,
}

/// A job that is asked for.
struct Row {
    id: score_jobs::Id,
    job: ScoreJob,
    place: usize,
    /// Why it has no numbers, or not all of them.
    lack: Option<&'static str>,
    /// Whether it is left with that when something stops all of them: it was not come to, or nobody answered it.
    is_open: bool,
    /// Since when the weights were never in doubt when the first of its numbers was asked for, and what had been
    /// measured when the last was there; none where no weights are behind it.
    measured: Option<(u64, u64)>,
}

/// A job around whose answers the weights changed is asked for again so often before it is lost.
const ASKED_AT_MOST: usize = 3;

/// What was asked for.
struct ScoreArgs<'a> {
    config: &'a Config,
    jobs: PathBuf,
    out: PathBuf,
    server: ServerArgs,
}

/// Reads and checks everything before anybody is asked.
pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (jobs, out, server) = (call.get("jobs")?, call.get("out")?, ServerArgs::read(&call.config)?);
    let args = &ScoreArgs { config: &call.config, jobs, out, server };
    args.server.check()?;
    let lines = read_jobs(&args.jobs, call.get("top_k")?)?;
    refuse_overwriting(&args.jobs, &args.out)?;
    let run = RunDir::open(&run_dir(&args.out), "score").map_err(locked)?;
    let voice = Voice::new(run, call.talk("job"));
    let (summary, stopped) = block_on(work(args, lines, &voice))??;
    if call.is_json() {
        stdout::json(&summary.to_json())?;
    } else {
        told(&args.out, &summary);
    }
    verdict(&summary, stopped)
}

async fn work(
    args: &ScoreArgs<'_>,
    mut lines: Vec<Line>,
    voice: &Arc<Voice>,
) -> Result<(Summary, Option<Stopped>), Failure> {
    let (run, notices) = (&voice.run, &voice.notices);
    let opened = args.server.open(notices, voice.teller()).await?;
    require_scores(&opened).await?;
    run.keep_found(&args.config.seen_from(run.dir()), found(args, &opened), &[])?;
    cap(&mut lines, opened.model.limits(), notices);
    let terms = args.server.terms(ModelRole::Teacher, "score", 0);
    let paid = Paid::open(&opened, run, terms).await?;
    paid.note(notices, &args.out, args.out.exists()).await?;
    let (mut orderly, n) = (Orderly::begin(), lines.len());
    let (made, stopped) = tokio::select! {
        done = score(args, lines, &opened.info.model, &paid.model, voice) => done?,
        // Nothing is made before the end; what was answered is in the ledger.
        signal = orderly.signal() => (Summary { left: n as u64, ..Summary::default() }, Some(Stopped::Signal(signal))),
    };
    let mut summary = completed(made, n, &args.out);
    summary.stopped_by = stopped.as_ref().map(Stopped::to_string);
    voice.end(&mut summary, &[&paid]).await?;
    let (made, lost) = (summary.made("jobs"), summary.lost("jobs"));
    let row = json!({"time": now(), "score/jobs": made, "score/lost": lost, "score/requests": summary.spent.requests});
    run.add_metrics(&row)?;
    run.keep_summary(&summary)?;
    Ok((summary, stopped))
}

/// What is told of so many jobs, of which some were lost or left; what it cost is for others to tell.
fn completed(summary: Summary, n: usize, out: &Path) -> Summary {
    let (n, n_failed) = (n as u64, summary.lost("jobs") + summary.left);
    let more = json!({"jobs": n, "scored": n - n_failed, "failed": n_failed, "out": out});
    Summary {
        stage: "score",
        made: [("jobs", n - n_failed)].into(),
        naive: summary.naive.or(Some(Naive::default())),
        more: more.as_object().cloned().unwrap_or_default(),
        ..summary
    }
}

/// Scores every job that can be and writes all rows; a failure is its own job's. A row is written when it is known
/// whose its numbers are; one that the weights changed around is asked for again.
async fn score(
    args: &ScoreArgs<'_>,
    lines: Vec<Line>,
    name: &str,
    model: &Arc<Ledgered>,
    voice: &Voice,
) -> Result<(Summary, Option<Stopped>), Failure> {
    let failed = |error: io::Error| unwritable(&args.out, &error);
    let n = lines.len();
    let mut rows = Rows::begin(&args.out, lines).map_err(failed)?;
    voice.news();
    voice.say(&Event::Began { stage: "score", model: name.to_owned(), unit: "job", asked: n, found: 0 });
    voice.talk.advance(rows.summary.lost("jobs"));
    let as_model = Arc::clone(model) as Arc<dyn Model>;
    let (mut planned, mut wanted) = (Planned::default(), (0..rows.asked.len()).collect::<Vec<_>>());
    for _ in 0..ASKED_AT_MOST {
        let chosen: Vec<ScoreJob> = wanted.iter().map(|&idx| rows.asked[idx].job.clone()).collect();
        let mut settle = |idx: usize, scored| {
            voice.talk.advance(1);
            voice.news();
            rows.take(wanted[idx], scored, model.n_measured())
        };
        let asked = score_planned(&as_model, &chosen, &mut settle);
        planned = planned.and(with_pulse(asked, || voice.pulse()).await);
        wanted = rows.doubtful(&wanted, model, &mut planned).await;
        if wanted.is_empty() || planned.stopped_by.is_some() || rows.unwritable.is_some() {
            break;
        }
    }
    rows.withdraw(&wanted).map_err(failed)?;
    let mut summary = rows.finish(&args.out, planned.stopped_by.is_some()).map_err(failed)?;
    let Figures { naive_tokens: tokens, naive_requests: requests, .. } = planned.figures;
    summary.naive = Some(Naive { tokens, requests });
    Ok((summary, planned.stopped_by.map(Stopped::Model)))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::stopped(format!("{}: {error}", path.display()), "free some space; the same command continues")
}

/// What was asked for this time, and of whom.
fn found(args: &ScoreArgs<'_>, opened: &Opened) -> Table {
    let server = opened.transport.as_ref().map(Transport::server).unwrap_or_default();
    let found = json!({
        "jobs": args.jobs, "out": args.out, "kind": opened.info.kind.name, "model": opened.info.model,
        "server": server,
    });
    Table::try_from(found).unwrap_or_default()
}

/// Asks for no more candidates than the model gives, so that the ledger knows what was really asked.
fn cap(lines: &mut [Line], limits: &Limits, notices: &Notices) {
    let limit = limits.max_top_k.into_iter().chain(limits.vocab_size).min();
    for job in lines.iter_mut().filter_map(|line| line.job.as_mut().ok()) {
        if let Some(limit) = limit.filter(|limit| job.top_k() > *limit) {
            notices.add(fewer_candidates(limit, job.top_k(), limits));
            *job = job.within(Some(limit)).into_owned();
        }
    }
}

fn fewer_candidates(limit: usize, asked: usize, limits: &Limits) -> String {
    let what = format!("the model gives at most {limit} candidates per position, {asked} were asked for");
    // Only a server's own setting can be changed, not the size of its vocabulary.
    match limits.max_top_k == Some(limit) {
        true => format!("{what}; start the server with --max-logprobs {asked} to get them"),
        false => what,
    }
}

impl Rows {
    /// Writes the rows of what is no job; the others are to be asked for.
    fn begin(out: &Path, lines: Vec<Line>) -> io::Result<Self> {
        let spool = Spool::create(&run_dir(out).join("rows.spool"), lines.len())?;
        let mut rows = Self { spool, asked: Vec::new(), summary: Summary::default(), unwritable: None };
        for (place, line) in lines.into_iter().enumerate() {
            match line.job {
                Ok(job) => {
                    let (lack, is_open, measured) = (Some("not asked"), true, None);
                    rows.asked.push(Row { id: line.id, job, place, lack, is_open, measured });
                }
                Err(why) => {
                    rows.summary.lose("jobs", "no job");
                    rows.spool.put(place, &score_jobs::failure(&line.id, &why))?;
                }
            }
        }
        Ok(rows)
    }

    /// Takes the row of a job; when that is not possible nothing more need be asked for.
    fn take(&mut self, idx: usize, scored: Result<JobScores, Error>, n_measured: u64) -> ControlFlow<()> {
        let row = &mut self.asked[idx];
        let text = match &scored {
            Ok(JobScores { spans, version, unbroken_since }) => {
                row.lack = spans.iter().any(lacks_a_number).then_some("numbers are absent");
                row.is_open = false;
                // A job that needs no answer has no weights either.
                row.measured = version.as_ref().map(|_| (*unbroken_since, n_measured));
                score_jobs::answer(&row.id, &row.job, spans, version.as_deref())
            }
            Err(error) => {
                (row.lack, row.is_open, row.measured) = (Some(reason(error)), error.leaves_open(), None);
                score_jobs::failure(&row.id, &error.to_string())
            }
        };
        self.unwritable = self.spool.put(row.place, &text).err();
        if self.unwritable.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Which of these jobs have numbers that nobody vouches for. What keeps that from being found out stops the run.
    async fn doubtful(&self, jobs: &[usize], model: &Ledgered, planned: &mut Planned) -> Vec<usize> {
        let mut doubtful = Vec::new();
        for &job in jobs {
            let Some((unbroken_since, n_measured)) = self.asked[job].measured else { continue };
            let is_sure = model.vouches_for(unbroken_since, n_measured).await;
            let is_sure = is_sure.map_err(|error| planned.stop(error)).unwrap_or(false);
            doubtful.extend((!is_sure).then_some(job));
        }
        if let Err(error) = model.is_going_on() {
            planned.stop(error);
        }
        doubtful
    }

    /// Takes numbers back that nobody vouches for.
    fn withdraw(&mut self, jobs: &[usize]) -> io::Result<()> {
        for &job in jobs {
            let row = &mut self.asked[job];
            (row.lack, row.is_open) = (Some("weights changed"), true);
            let text = score_jobs::failure(&row.id, "the weights changed while it was scored");
            self.spool.put(row.place, &text)?;
        }
        Ok(())
    }

    /// Puts all rows in place; how many jobs were lost, by reason, and how many were not come to.
    fn finish(mut self, out: &Path, is_stopped: bool) -> io::Result<Summary> {
        self.unwritable.map_or(Ok(()), Err)?;
        for row in &self.asked {
            match row.lack {
                Some(_) if row.is_open && is_stopped => self.summary.left += 1,
                Some(why) => self.summary.lose("jobs", why),
                None => {}
            }
        }
        self.spool.finish(out).map(|()| self.summary)
    }
}

/// Whether a position has no number although it has a context.
fn lacks_a_number(span: &SpanScore) -> bool {
    span.absent().any(|(_, why)| *why != Absence::NoContext)
}

/// The kind of failure, for counting.
fn reason(error: &Error) -> &'static str {
    match error {
        Error::Unreachable { .. } | Error::Unavailable { .. } => "not answered",
        Error::Garbled { .. } => "answer unusable",
        Error::Refused { .. } => "refused",
        Error::Invalid { .. } => "cannot be asked",
        Error::Unsupported { .. } | Error::Budget { .. } | Error::Changed { .. } | Error::Ledger { .. } => {
            "stopped"
        }
    }
}

fn read_jobs(path: &Path, top_k: usize) -> Result<Vec<Line>, Failure> {
    let unreadable =
        |error: io::Error| Failure::input(format!("{}: {error}", path.display()), "check the path");
    let file = File::open(path).map_err(unreadable)?;
    let mut lines = Vec::new();
    for (n, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(unreadable)?;
        let line = line.strip_prefix(BOM).filter(|_| n == 0).unwrap_or(&line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (id, job) = score_jobs::read(line, top_k);
        lines.push(Line { id, job: job.map_err(|why| format!("{} line {}: {why}", path.display(), n + 1)) });
    }
    if lines.is_empty() {
        let help = "write one job a line; `score --help` shows what a job is";
        return Err(Failure::input(format!("{}: there is no job in the file", path.display()), help));
    }
    Ok(lines)
}

/// The run directory follows from where the answers go, so that is what to change.
fn locked(error: RunError) -> Failure {
    let help = match &error {
        RunError::Lock(LockError::InUse { .. }) => "wait for it or stop it, or choose another --out",
        RunError::Lock(LockError::Failed { .. }) => "choose a place that can be written to with --out",
        other => other.help(),
    };
    Failure::stopped(&error, help)
}

/// The answers must not take the place of the jobs.
fn refuse_overwriting(jobs: &Path, out: &Path) -> Result<(), Failure> {
    let real = |path: &Path| fs::canonicalize(path).ok();
    let (what, help) = match fs::metadata(out) {
        Ok(there) if there.is_dir() => ("a directory", "name a file with --out"),
        // The answers replace a file; a pipe or a device cannot be replaced.
        Ok(there) if !there.is_file() => ("no file", "name a file with --out"),
        Ok(_) if real(jobs) == real(out) => ("the file of the jobs", "name another file with --out"),
        _ => return Ok(()),
    };
    Err(Failure::input(format!("{} is {what}", out.display()), help))
}

/// The ledger stands beside the answers.
fn run_dir(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".backsight");
    out.with_file_name(name)
}

fn told(out: &Path, summary: &Summary) {
    let (made, lost) = (summary.made("jobs"), summary.lost("jobs"));
    let jobs = counted(made + lost + summary.left, "job");
    output::talk(&format!("{made} of {jobs} scored, in {}", out.display()));
    output::talk(&plan_line(summary));
    output::talk(&paid_line(summary));
    output::weights(summary).into_iter().for_each(|line| output::talk(&line));
}

fn verdict(summary: &Summary, stopped: Option<Stopped>) -> Result<(), Failure> {
    let n_failed = summary.lost("jobs") + summary.left;
    let jobs = counted(summary.made("jobs") + n_failed, "job");
    let what = format!("{n_failed} of {jobs} failed; their rows say why");
    let help = "mend the cause; the same command asks only for what is missing";
    voice::verdict(stopped.as_ref(), n_failed, what, help)
}

/// What each job alone would have taken, and what was sent.
fn plan_line(summary: &Summary) -> String {
    let (naive, spent) = (summary.naive(), &summary.spent);
    let cached = if_any(spent.cached_tokens, |n| format!(", {n} of them found in the cache"));
    let found = summary.number("found_in_ledger");
    let found = if_any(found, |n| format!("; {} found in the ledger", counted(n, "answer")));
    format!(
        "job by job: {}, {}; as planned: {}, {}{cached}{found}",
        counted(naive.requests, "request"),
        counted(naive.tokens, "token"),
        counted(spent.requests, "request"),
        counted(spent.prompt_tokens, "token"),
    )
}

/// What was paid, by this command and by all that worked on the same answers.
fn paid_line(summary: &Summary) -> String {
    let now = &summary.spent;
    let in_all = summary.paid.iter().find(|it| it.0 == ModelRole::Teacher).map(|it| it.1);
    let in_all: Spent = in_all.unwrap_or_default();
    format!(
        "paid by the {}: {}, {} sent, {} sampled; in all runs {}, {} sent",
        ModelRole::Teacher.name(),
        counted(now.requests, "request"),
        counted(now.prompt_tokens, "token"),
        now.completion_tokens,
        counted(in_all.requests, "request"),
        counted(in_all.prompt_tokens, "token"),
    )
}
