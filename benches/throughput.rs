//! What a request costs the client: 2,000 scoring jobs against a server that answers at once.
//!
//! `cargo bench --bench throughput` prints requests per second and CPU time per request of the client
//! process alone (the server is a process of its own), for the SGLang client one request a job, for the
//! same through a plan as every command goes, for that under a budget and a durable ledger, and for the
//! loop in Python with httpx. Since httpx needs less CPU when it has one request in flight, that is
//! measured too. It fails when httpx takes less than ten times the CPU time of the client.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]
#![allow(dead_code, reason = "the stand-in can do more than is needed here")]

#[path = "../tests/support/stand_in.rs"]
mod stand_in;
#[path = "../tests/support/toy.rs"]
mod toy;

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backsight::model::Opened;
use backsight::model::{Allowance, Meter, ModelRole};
use backsight::model::{Error, Model};
use backsight::model::{JobScores, score_planned};
use backsight::model::{Settings, Wanted, kind_named};
use backsight::score::{ScoreJob, SpanScore};
use backsight::store::{Ledger, RunLock, RunPlace, WeightRules, keep};
use backsight::tokens::TokenSpan;
use futures_util::{StreamExt, stream};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use stand_in::{Dialect, Setup, StandIn};

const N_JOBS: u32 = 2_000;
const CONCURRENCY: usize = 32;
const N_TOKENS: u32 = 256;
const SPAN: usize = 32;
/// So many times the CPU time of ours is what httpx must at least take.
const LEAST_RATIO: f64 = 10.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if std::env::args().any(|arg| arg == "serve") {
        runtime.block_on(serve());
        return ExitCode::SUCCESS;
    }
    let (mut server, url) = start_server();
    let rows = [
        ("client, one request a job", runtime.block_on(one_by_one(&url))),
        ("client, planned", runtime.block_on(planned(&url))),
        ("planned + budget + ledger", runtime.block_on(with_ledger(&url))),
        ("python httpx", httpx(&url, CONCURRENCY)),
        ("python httpx, one at a time", httpx(&url, 1)),
    ];
    server.kill().unwrap();
    print_table(&rows);
    // The same loop as in Python, and the way every command goes; what is kept on a disk Python does not keep.
    let httpx = &rows[3].1;
    let slow = rows[..2].iter().find(|(_, cost)| httpx.cpu_seconds < LEAST_RATIO * cost.cpu_seconds);
    match slow {
        Some((name, _)) => {
            println!("{name}: httpx takes less than {LEAST_RATIO} times its CPU time");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// What one way of doing the jobs took.
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    /// Of all logprobs; equal for all who did the same work.
    sum: f64,
}

fn print_table(rows: &[(&str, Cost)]) {
    let [.., (_, python), (_, serial)] = rows else { return };
    println!("{N_JOBS} jobs of {N_TOKENS} tokens, {SPAN} scored, {CONCURRENCY} at a time");
    println!(
        "{:<30}{:>12}{:>16}{:>12}{:>16}",
        "client", "requests/s", "CPU us/request", "httpx/this", "serial httpx"
    );
    for (name, cost) in rows {
        assert!(
            (cost.sum - python.sum).abs() < 1e-6,
            "{name} got other numbers: {} {}",
            cost.sum,
            python.sum
        );
        let (speed, cpu) = (f64::from(N_JOBS) / cost.seconds, cost.cpu_seconds * 1e6 / f64::from(N_JOBS));
        let ratio = |other: &Cost| format!("{:.1}x", other.cpu_seconds / cost.cpu_seconds);
        println!("{name:<30}{speed:>12.0}{cpu:>16.1}{:>12}{:>16}", ratio(python), ratio(serial));
    }
}

async fn serve() {
    let setup = Setup { keeps_requests: false, ..Setup::new(Dialect::Sglang) };
    let server = StandIn::start(setup).await;
    println!("{}", server.url());
    // Ends with the process that started it.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
}

fn start_server() -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    (child, url.trim().to_owned())
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn job(n: u32) -> ScoreJob {
    let token = |i: u32| ((u64::from(n) * 7_919 + u64::from(i) * 31) % toy::VOCAB) as u32;
    let span = TokenSpan::at(N_TOKENS as usize - SPAN, SPAN);
    ScoreJob::new((0..N_TOKENS).map(token).collect(), vec![span], 0).unwrap()
}

/// The client as every command gets it.
async fn open(url: &str) -> Opened {
    let mut settings = Settings::default();
    settings.pool.concurrency = CONCURRENCY;
    let (urls, kind, vocab_size) = (vec![url.to_owned()], kind_named("sglang"), Some(toy::VOCAB as usize));
    backsight::model::open(&Wanted { urls, kind, vocab_size, settings, ..Wanted::default() }).await.unwrap()
}

async fn one_by_one(url: &str) -> Cost {
    let model = open(url).await.model;
    measure(model, async |model, jobs| {
        let one = |job: &ScoreJob| {
            let (model, job) = (Arc::clone(&model), job.clone());
            async move { model.score(&job).await.unwrap().spans }
        };
        let scored = stream::iter(&jobs).map(one).buffer_unordered(CONCURRENCY);
        scored.map(|spans| sum(&spans)).fold(0.0, async |all, one| all + one).await
    })
    .await
}

async fn planned(url: &str) -> Cost {
    measure(open(url).await.model, all_planned).await
}

async fn with_ledger(url: &str) -> Cost {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(Arc::new(RunLock::acquire(dir.path()).unwrap())).unwrap();
    let meter = Meter::new(ModelRole::Teacher, Allowance::default());
    let place = RunPlace { stage: "bench", seed: 0 };
    let (model, _) = keep(&open(url).await, ledger, meter, place, WeightRules::default()).await.unwrap();
    measure(Arc::new(model), all_planned).await
}

async fn all_planned(model: Arc<dyn Model>, jobs: Vec<ScoreJob>) -> f64 {
    let mut all = 0.0;
    let mut settle = |_, scored: Result<JobScores, Error>| {
        all += sum(&scored.unwrap().spans);
        ControlFlow::Continue(())
    };
    score_planned(&model, &jobs, &mut settle).await;
    all
}

fn sum(spans: &[SpanScore]) -> f64 {
    spans.iter().flat_map(SpanScore::logprobs).map(|it| it.unwrap().get()).sum()
}

async fn measure(
    model: Arc<dyn Model>,
    work: impl AsyncFnOnce(Arc<dyn Model>, Vec<ScoreJob>) -> f64,
) -> Cost {
    // Opens the first connection; the job is none of those that are measured, because a ledger would know it.
    model.score(&job(N_JOBS)).await.unwrap();
    let jobs = (0..N_JOBS).map(job).collect();
    let (begun, cpu) = (Instant::now(), cpu_time());
    let sum = work(model, jobs).await;
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    Cost { seconds: begun.elapsed().as_secs_f64(), cpu_seconds, sum }
}

/// Python with httpx: the one named by `PYTHON`, or a virtual environment made for the purpose.
fn httpx(url: &str, concurrency: usize) -> Cost {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/httpx_loop.py");
    let mut command = Command::new(python());
    let arguments = [script, url, &N_JOBS.to_string(), &concurrency.to_string()];
    let output = command.args(arguments).stderr(Stdio::inherit()).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| json[key].as_f64().unwrap();
    Cost { seconds: number("seconds"), cpu_seconds: number("cpu_seconds"), sum: number("sum") }
}

fn python() -> String {
    let named = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_httpx = |python: &str| {
        let import = Command::new(python).args(["-c", "import httpx"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    };
    if has_httpx(&named) {
        return named;
    }
    let venv = std::env::temp_dir().join("backsight-httpx");
    let inside = venv.join("bin/python").to_str().unwrap().to_owned();
    if !has_httpx(&inside) {
        let make = Command::new(&named).args(["-m", "venv"]).arg(&venv).status();
        assert!(make.unwrap().success(), "{named} cannot make a virtual environment");
        let install = Command::new(&inside).args(["-m", "pip", "install", "--quiet", "httpx"]).status();
        assert!(install.unwrap().success(), "httpx cannot be installed");
    }
    inside
}
