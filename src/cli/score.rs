//! `score`: the scoring primitive over a file of jobs.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::ScoreArgs;
use super::failure::Failure;
use super::server::model_failure;
use super::{block_on, output};
use crate::model::budget::{Allowance, Meter, ModelRole, Spent};
use crate::model::notice::Notices;
use crate::model::planned::{Planned, score_planned};
use crate::model::probe::require_scores;
use crate::model::{Error, Limits, Model};
use crate::pipeline::paid::Paid;
use crate::score::{ScoreJob, SpanScore};
use crate::store::spool::Spool;
use crate::store::{Ledger, LockError, RunLock};
use crate::wire::score_jobs;

/// One line of the jobs file.
struct Line {
    id: Value,
    job: Result<ScoreJob, String>,
}

/// Answers on their way into the file.
struct Rows {
    spool: Spool,
    /// The ids and the places of the jobs that are asked for, as the plan counts them.
    asked: Vec<(Value, usize)>,
    n_failed: usize,
    unwritable: Option<io::Error>,
}

/// What was paid, by this command and by all that worked on the same answers.
struct Cost {
    role: ModelRole,
    now: Spent,
    in_all: Spent,
}

pub(super) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    args.server.check(&args.url)?;
    let lines = read_jobs(&args.jobs, args.top_k)?;
    refuse_overwriting(&args.jobs, &args.out)?;
    let run_dir = run_dir(&args.out);
    let lock = RunLock::acquire(&run_dir).map_err(locked)?;
    let notices = Notices::default();
    block_on(async {
        let opened = args.server.open_any(&args.url, &notices).await?;
        tell(&notices, None);
        require_scores(&opened).await.map_err(model_failure)?;
        let lines = lines.into_iter().map(|line| line.capped(opened.model.limits(), &notices)).collect();
        let allowance = Allowance { max_requests: args.max_requests, max_tokens: args.max_tokens };
        let meter = Meter::new(ModelRole::Teacher, allowance);
        let paid = Paid::open(&opened, lock, meter.clone(), "score").await.map_err(model_failure)?;
        if let Some(notice) = paid.notice() {
            output::talk(&format!("note: {notice}"));
        }
        let model: Arc<dyn Model> = paid.model.clone();
        let done = score(args, lines, &model, &notices).await?;
        let cost = Cost::read(&paid.ledger, &meter).await?;
        summarise(args, &done, &cost, &notices)
    })?
}

/// What became of all jobs.
struct Done {
    n: usize,
    n_failed: usize,
    planned: Planned,
}

/// Scores every job that can be and writes all rows; a failure is its own job's.
async fn score(
    args: &ScoreArgs,
    lines: Vec<Line>,
    model: &Arc<dyn Model>,
    notices: &Notices,
) -> Result<Done, Failure> {
    let unwritable = |error: io::Error| {
        let help = "free some space; the same command continues";
        Failure::stopped(format!("{}: {error}", args.out.display()), help)
    };
    let n = lines.len();
    let (mut rows, jobs) = Rows::begin(&args.out, lines).map_err(unwritable)?;
    let bar = ProgressBar::new(jobs.len() as u64).with_style(style());
    let mut settle = |job: usize, scored| {
        bar.inc(1);
        tell(notices, Some(&bar));
        rows.take(job, &jobs[job], scored)
    };
    let planned = score_planned(model, &jobs, &mut settle).await;
    bar.finish_and_clear();
    let n_failed = rows.n_failed;
    rows.finish(&args.out).map_err(unwritable)?;
    Ok(Done { n, n_failed, planned })
}

impl Line {
    /// Asks for no more candidates than the model gives, so that the ledger knows what was really asked.
    fn capped(self, limits: &Limits, notices: &Notices) -> Self {
        let limit = limits.max_top_k.into_iter().chain(limits.vocab_size).min();
        let job = self.job.and_then(|job| match limit {
            Some(limit) if job.top_k() > limit => {
                notices.add(format!(
                    "the model gives at most {limit} candidates per position; more were asked for"
                ));
                ScoreJob::new(job.tokens().clone(), job.spans().to_vec(), limit)
                    .map_err(|error| error.to_string())
            }
            _ => Ok(job),
        });
        Self { job, ..self }
    }
}

impl Rows {
    /// Writes the rows of what is no job; the others are to be asked for.
    fn begin(out: &Path, lines: Vec<Line>) -> io::Result<(Self, Vec<ScoreJob>)> {
        let spool = Spool::create(&run_dir(out).join("rows.spool"), lines.len())?;
        let mut rows = Self { spool, asked: Vec::new(), n_failed: 0, unwritable: None };
        let mut jobs = Vec::new();
        for (place, line) in lines.into_iter().enumerate() {
            match line.job {
                Ok(job) => {
                    rows.asked.push((line.id, place));
                    jobs.push(job);
                }
                Err(why) => {
                    rows.n_failed += 1;
                    rows.spool.put(place, &score_jobs::failure(&line.id, &why).to_string())?;
                }
            }
        }
        Ok((rows, jobs))
    }

    /// Writes the row of a job; when that is not possible nothing more need be asked for.
    fn take(&mut self, idx: usize, job: &ScoreJob, scored: Result<Vec<SpanScore>, Error>) -> ControlFlow<()> {
        let (id, place) = &self.asked[idx];
        self.n_failed += usize::from(scored.is_err());
        let row = match scored {
            Ok(spans) => score_jobs::answer(id, job, &spans),
            Err(error) => score_jobs::failure(id, &error.to_string()),
        };
        self.unwritable = self.spool.put(*place, &row.to_string()).err();
        if self.unwritable.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(self, out: &Path) -> io::Result<()> {
        match self.unwritable {
            Some(error) => Err(error),
            None => self.spool.finish(out),
        }
    }
}

fn tell(notices: &Notices, bar: Option<&ProgressBar>) {
    for notice in notices.take() {
        let talk = || output::talk(&format!("note: {notice}"));
        bar.map_or_else(talk, |bar| bar.suspend(talk));
    }
}

fn read_jobs(path: &Path, top_k: usize) -> Result<Vec<Line>, Failure> {
    let unreadable =
        |error: io::Error| Failure::input(format!("{}: {error}", path.display()), "check the path");
    let file = File::open(path).map_err(unreadable)?;
    let mut lines = Vec::new();
    for (n, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (id, job) = score_jobs::read(&line, top_k);
        lines.push(Line { id, job: job.map_err(|why| format!("{} line {}: {why}", path.display(), n + 1)) });
    }
    Ok(lines)
}

fn locked(error: LockError) -> Failure {
    let help = match &error {
        LockError::InUse { .. } => "wait for it or stop it, or choose another --out",
        LockError::Failed { .. } => "choose a place that can be written to with --out",
    };
    Failure::stopped(error, help)
}

/// The answers must not take the place of the jobs.
fn refuse_overwriting(jobs: &Path, out: &Path) -> Result<(), Failure> {
    let real = |path: &Path| fs::canonicalize(path).ok();
    if out.is_dir() {
        return Err(Failure::input(format!("{} is a directory", out.display()), "name a file with --out"));
    }
    match real(jobs).filter(|jobs| real(out).as_ref() == Some(jobs)) {
        Some(_) => Err(Failure::input(
            format!("{} is the file of the jobs", out.display()),
            "name another file with --out",
        )),
        None => Ok(()),
    }
}

/// The ledger stands beside the answers.
fn run_dir(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".backsight");
    out.with_file_name(name)
}

impl Cost {
    async fn read(ledger: &Ledger, meter: &Meter) -> Result<Self, Failure> {
        let role = meter.role();
        let in_all = ledger.paid().await.map_err(model_failure)?;
        let in_all = in_all.into_iter().find(|it| it.0 == role).map(|it| it.1).unwrap_or_default();
        Ok(Self { role, now: meter.spent(), in_all })
    }

    fn json(&self) -> Value {
        let spent = |spent: Spent| {
            json!({
                "requests": spent.requests, "prompt_tokens": spent.prompt_tokens,
                "cached_tokens": spent.cached_tokens, "completion_tokens": spent.completion_tokens,
            })
        };
        json!({self.role.name(): {"now": spent(self.now), "in_all": spent(self.in_all)}})
    }

    fn line(&self) -> String {
        let (now, in_all) = (self.now, self.in_all);
        format!(
            "paid by the {}: {}, {} sent, {} sampled; in all runs {}, {} sent",
            self.role.name(),
            output::count(now.requests, "request"),
            output::count(now.prompt_tokens, "token"),
            now.completion_tokens,
            output::count(in_all.requests, "request"),
            output::count(in_all.prompt_tokens, "token"),
        )
    }
}

/// What was made, what was lost and why, what was paid and what the plan saved.
fn summarise(args: &ScoreArgs, done: &Done, paid: &Cost, notices: &Notices) -> Result<(), Failure> {
    let Done { n, n_failed, planned } = done;
    if args.json {
        let summary = json!({
            "jobs": n, "scored": n - n_failed, "failed": n_failed, "out": args.out, "notices": notices.all(),
            "requests": planned.figures.requests, "tokens": tokens(planned), "paid": paid.json(),
        });
        output::data(format!("{summary}\n").as_bytes())?;
    }
    let jobs = output::count(*n as u64, "job");
    output::talk(&format!("{} of {jobs} scored, in {}", n - n_failed, args.out.display()));
    output::talk(&plan_line(planned));
    output::talk(&paid.line());
    match &planned.stopped_by {
        Some(error) => Err(model_failure(error.clone())),
        None if *n_failed > 0 => Err(Failure::losses(
            format!("{n_failed} of {jobs} failed; their rows say why"),
            "mend the cause; the same command asks only for what is missing",
        )),
        None => Ok(()),
    }
}

/// Tokens if each job were sent alone, and those that were: sent, found in a cache, computed.
fn tokens(planned: &Planned) -> Value {
    let (sent, cached) = (planned.usage.prompt_tokens, planned.usage.cached_tokens);
    let computed = cached.map(|cached| sent.saturating_sub(cached));
    json!({"naive": planned.figures.naive_tokens, "sent": sent, "cached": cached, "computed": computed})
}

fn plan_line(planned: &Planned) -> String {
    let (figures, usage) = (planned.figures, planned.usage);
    let cached = usage.cached_tokens.filter(|&cached| cached > 0);
    let cached = cached.map(|cached| format!(", {cached} of them found in the cache")).unwrap_or_default();
    format!(
        "job by job: {}, {}; as planned: {}, {}{cached}",
        output::count(figures.naive_requests, "request"),
        output::count(figures.naive_tokens, "token"),
        output::count(figures.requests, "request"),
        output::count(usage.prompt_tokens, "token"),
    )
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} jobs  {per_sec}  {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
