//! `score`: the scoring primitive over a file of jobs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::args::ScoreArgs;
use super::failure::Failure;
use super::server::model_failure;
use super::{block_on, output};
use crate::model::budget::{Allowance, Meter, ModelRole};
use crate::model::notice::Notices;
use crate::model::open::Opened;
use crate::model::{Error, Model};
use crate::pipeline::paid::Paid;
use crate::score::ScoreJob;
use crate::store::{Ledgered, RunLock};
use crate::wire::score_jobs;

/// Jobs that wait for a permit cost memory for nothing; more than this many are never under way.
const UNDER_WAY: usize = 256;

/// One line of the jobs file, by its place.
struct Line {
    id: Value,
    job: Result<ScoreJob, String>,
}

impl Line {
    /// Asks for no more candidates than the server gives, so that the ledger knows what was really asked.
    fn capped(self, limit: Option<usize>, notices: &Notices) -> Self {
        let job = self.job.and_then(|job| match limit {
            Some(limit) if job.top_k() > limit => {
                notices.add(format!(
                    "the server gives at most {limit} candidates per position; more were asked for"
                ));
                ScoreJob::new(job.tokens().clone(), job.spans().to_vec(), limit)
                    .map_err(|error| error.to_string())
            }
            _ => Ok(job),
        });
        Self { job, ..self }
    }
}

/// What became of the jobs.
#[derive(Default)]
struct Outcome {
    rows: Vec<Option<Value>>,
    n_failed: usize,
    stopped_by: Option<Error>,
}

pub(super) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    args.server.check(&args.url)?;
    let lines = read_jobs(&args.jobs, args.top_k)?;
    let run_dir = run_dir(&args.out);
    let lock = RunLock::acquire(&run_dir).map_err(|error| Failure::stopped(&error, error.help()))?;
    let notices = Notices::default();
    let (outcome, meter) = block_on(async {
        let opened = args.server.open_any(&args.url, &notices).await?;
        refuse_without_scores(&opened)?;
        let allowance = Allowance { max_requests: args.max_requests, max_tokens: args.max_tokens };
        let meter = Meter::new(ModelRole::Teacher, allowance);
        let lines =
            lines.into_iter().map(|line| line.capped(opened.model.limits().max_top_k, &notices)).collect();
        let paid = Paid::open(&opened, lock, meter.clone(), "score").await.map_err(model_failure)?;
        if let Some(notice) = paid.notice() {
            output::talk(&format!("note: {notice}"));
        }
        Ok((score_all(lines, paid.model, &notices).await, meter))
    })??;
    write_rows(&args.out, &outcome.rows)?;
    summarise(args, &outcome, &meter, &notices)
}

pub(super) fn refuse_without_scores(opened: &Opened) -> Result<(), Failure> {
    if opened.model.limits().scores {
        return Ok(());
    }
    let name = opened.info.kind.name();
    let what = format!("a server of kind {name} as it stands cannot score prompts");
    Err(Failure::stopped(what, "use vLLM or SGLang, and name the tokenizer with --tokenizer"))
}

/// Scores every job that can be, several at a time; a failure is its own job's.
async fn score_all(lines: Vec<Line>, model: Arc<Ledgered>, notices: &Notices) -> Outcome {
    let bar = ProgressBar::new(lines.len() as u64).with_style(style());
    let mut outcome = Outcome { rows: vec![None; lines.len()], ..Outcome::default() };
    let under_way = Arc::new(Semaphore::new(UNDER_WAY));
    let mut tasks = JoinSet::new();
    for (idx, line) in lines.into_iter().enumerate() {
        match line.job {
            Err(why) => outcome.fail(idx, &line.id, &why),
            Ok(_) if outcome.stopped_by.is_some() => {
                outcome.fail(idx, &line.id, "not asked: the run was stopped")
            }
            Ok(job) => {
                let (model, under_way) = (Arc::clone(&model), Arc::clone(&under_way));
                tasks.spawn(async move {
                    let _permit = under_way.acquire_owned().await;
                    let scored = model.score(&job).await;
                    (idx, line.id, job, scored)
                });
            }
        }
        while tasks.len() > UNDER_WAY || (outcome.stopped_by.is_some() && !tasks.is_empty()) {
            outcome.take(tasks.join_next().await, &bar, notices);
        }
    }
    while !tasks.is_empty() {
        outcome.take(tasks.join_next().await, &bar, notices);
    }
    bar.finish_and_clear();
    outcome
}

type Finished = (usize, Value, ScoreJob, Result<crate::model::Scored, Error>);

impl Outcome {
    fn take(
        &mut self,
        finished: Option<Result<Finished, tokio::task::JoinError>>,
        bar: &ProgressBar,
        notices: &Notices,
    ) {
        let Some(Ok((idx, id, job, scored))) = finished else { return };
        match scored {
            Ok(scored) => self.rows[idx] = Some(score_jobs::answer(&id, &job, &scored.spans)),
            Err(error) => {
                self.fail(idx, &id, &error.to_string());
                if error.stops_the_run() {
                    self.stopped_by.get_or_insert(error);
                }
            }
        }
        bar.inc(1);
        for notice in notices.take() {
            bar.suspend(|| output::talk(&format!("note: {notice}")));
        }
    }

    fn fail(&mut self, idx: usize, id: &Value, why: &str) {
        self.n_failed += 1;
        self.rows[idx] = Some(score_jobs::failure(id, why));
    }
}

fn read_jobs(path: &Path, top_k: usize) -> Result<Vec<Line>, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::input(format!("{}: {error}", path.display()), "check the path");
    let file = File::open(path).map_err(unreadable)?;
    let mut lines = Vec::new();
    for (n, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(unreadable)?;
        if line.trim().is_empty() {
            continue;
        }
        let (id, job) = score_jobs::read(&line, top_k);
        lines.push(Line { id, job: job.map_err(|why| format!("{} line {}: {why}", path.display(), n + 1)) });
    }
    Ok(lines)
}

/// The ledger stands beside the answers.
fn run_dir(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".backsight");
    out.with_file_name(name)
}

/// All rows or none: what is there under the final name is whole.
fn write_rows(out: &Path, rows: &[Option<Value>]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::stopped(format!("{}: {error}", out.display()), "free some space; the same command continues")
    };
    let partial = run_dir(out).join("rows.partial");
    let mut file = BufWriter::new(File::create(&partial).map_err(failed)?);
    for row in rows.iter().flatten() {
        writeln!(file, "{row}").map_err(failed)?;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    fs::rename(&partial, out).map_err(failed)
}

/// What was made, what was lost and why, what was paid.
fn summarise(args: &ScoreArgs, outcome: &Outcome, meter: &Meter, notices: &Notices) -> Result<(), Failure> {
    let (n, n_failed, spent) = (outcome.rows.len(), outcome.n_failed, meter.spent());
    if args.json {
        let summary = json!({
            "jobs": n, "failed": n_failed, "out": args.out, "notices": notices.all(),
            "paid": {"requests": spent.requests, "prompt_tokens": spent.prompt_tokens, "cached_tokens": spent.cached_tokens,
                     "completion_tokens": spent.completion_tokens},
        });
        output::data(format!("{summary}\n").as_bytes())?;
    }
    output::talk(&format!("{} of {n} jobs scored, in {}", n - n_failed, args.out.display()));
    output::talk(&format!("paid now: {} requests, {} tokens sent", spent.requests, spent.prompt_tokens));
    match &outcome.stopped_by {
        Some(error) => Err(model_failure(error.clone())),
        None if n_failed > 0 => Err(Failure::losses(
            format!("{n_failed} of {n} jobs failed; their rows say why"),
            "mend the cause; the same command asks only for what is missing",
        )),
        None => Ok(()),
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} jobs  {per_sec}  {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
