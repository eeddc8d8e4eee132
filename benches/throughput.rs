//! What a request costs the client: 2,000 scoring jobs against a server that answers at once.
//!
//! `cargo bench --bench throughput` prints requests per second and CPU time per request of the client
//! process alone (the server is a process of its own), for the transport, for the transport under a
//! budget and a durable ledger, and for the same loop in Python with httpx. Since httpx needs less CPU
//! when it has one request in flight, that is measured too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]
#![allow(dead_code, reason = "the stand-in can do more than is needed here")]

#[path = "../tests/support/stand_in.rs"]
mod stand_in;
#[path = "../tests/support/toy.rs"]
mod toy;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use backsight::model::budget::{Allowance, Budgeted, Meter, ModelRole};
use backsight::model::transport::{Answer, Call, Method, Settings, Transport};
use backsight::model::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored, Usage,
};
use backsight::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight::store::ledger::RunPlace;
use backsight::store::{Fingerprint, Identity, Ledger, Ledgered, RunLock};
use backsight::tokens::{Logprob, TokenSpan, TopK};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};

use stand_in::{Dialect, Setup, StandIn};

const N_JOBS: u32 = 2_000;
const CONCURRENCY: usize = 32;
const N_TOKENS: u32 = 256;
const SPAN: usize = 32;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if std::env::args().any(|arg| arg == "serve") {
        return runtime.block_on(serve());
    }
    let (mut server, url) = start_server();
    let rows = [
        ("transport", runtime.block_on(transport_only(&url))),
        ("transport + budget + ledger", runtime.block_on(with_ledger(&url))),
        ("python httpx", httpx(&url, CONCURRENCY)),
        ("python httpx, one at a time", httpx(&url, 1)),
    ];
    server.kill().unwrap();
    print_table(&rows);
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

fn client(url: &str) -> Arc<Client> {
    let mut settings = Settings::default();
    settings.pool.concurrency = CONCURRENCY;
    let limits = Limits { scores: true, ..Limits::default() };
    Arc::new(Client { transport: Transport::open(&[url], settings).unwrap(), limits })
}

async fn transport_only(url: &str) -> Cost {
    measure(client(url)).await
}

async fn with_ledger(url: &str) -> Cost {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(Arc::new(RunLock::acquire(dir.path()).unwrap())).unwrap();
    let client = client(url);
    let fingerprint = Fingerprint::measure(&*client, Identity::default(), &[1, 2, 3]).await.unwrap();
    let (id, _) = ledger.identify(&fingerprint).await.unwrap();
    let meter = Meter::new(ModelRole::Teacher, Allowance::default());
    let place = RunPlace { run: "bench".into(), seed: 0 };
    let budgeted = Arc::new(Budgeted::new(client, meter));
    let ledgered = Arc::new(Ledgered::new(ledger, budgeted, id, ModelRole::Teacher, place));
    measure(ledgered).await
}

async fn measure(model: Arc<dyn Model>) -> Cost {
    // Opens the first connection; the job is none of those that are measured, because a ledger would know it.
    model.score(&job(N_JOBS)).await.unwrap();
    let (begun, cpu) = (Instant::now(), cpu_time());
    let next = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let workers = (0..CONCURRENCY).map(|_| {
        let (model, next) = (Arc::clone(&model), Arc::clone(&next));
        tokio::spawn(async move {
            let mut sums = Vec::new();
            loop {
                let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if n >= N_JOBS {
                    return sums;
                }
                let scored = model.score(&job(n)).await.unwrap();
                sums.push(scored.spans[0].logprobs().map(|it| it.unwrap().get()).sum::<f64>());
            }
        })
    });
    let mut sums = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        sums.extend(worker.await.unwrap());
    }
    let cpu_seconds = (cpu_time() - cpu).as_secs_f64();
    Cost { seconds: begun.elapsed().as_secs_f64(), cpu_seconds, sum: sums.iter().sum() }
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

/// SGLang's scoring route and nothing else.
struct Client {
    transport: Transport,
    limits: Limits,
}

#[derive(Deserialize)]
struct Body {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    prompt_tokens: u64,
    cached_tokens: u64,
    input_token_logprobs: Vec<(Option<f64>, u32, Option<String>)>,
}

fn decode(answer: &Answer<'_>, span: TokenSpan) -> Result<Scored, String> {
    let body: Body = serde_json::from_slice(answer.body).map_err(|why| why.to_string())?;
    let score = |row: &(Option<f64>, u32, Option<String>)| {
        let logprob = row.0.map(Logprob::new).transpose().map_err(|why| why.to_string())?;
        Ok(TokenScore { logprob: logprob.ok_or(Absence::NotReturned), top: TopK::default() })
    };
    let rows = body.meta_info.input_token_logprobs.iter().skip(1);
    let scores = rows.map(score).collect::<Result<_, String>>()?;
    let spans = vec![SpanScore::new(span, scores).map_err(|why| why.to_string())?];
    let Meta { prompt_tokens, cached_tokens, .. } = body.meta_info;
    Ok(Scored {
        spans,
        usage: Usage { prompt_tokens, cached_tokens: Some(cached_tokens), completion_tokens: 0 },
    })
}

#[async_trait]
impl Model for Client {
    async fn generate(&self, _: &GenerateRequest) -> Result<Generated, Error> {
        unreachable!("only scores are measured")
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        let span = job.spans()[0];
        let ids: &[u32] = job.tokens();
        let body = json!({
            "input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": true, "logprob_start_len": span.start().max(1) - 1, "top_logprobs_num": 0,
        });
        let call = Call {
            method: Method::POST,
            path: "/generate",
            body: Some(body.to_string().into_bytes()),
            tokens: ids.len() as u64,
            sticky: u64::from(ids[0]),
            max_answer: 1 << 20,
            timeout: None,
        };
        // The first row of an answer has no logprob; a span from 0 on has it as its own first.
        let scored = TokenSpan::new(span.start().max(1), span.end()).unwrap();
        self.transport.call(&call, &move |answer| decode(answer, scored)).await
    }

    async fn chat(&self, _: &ChatRequest) -> Result<ChatAnswer, Error> {
        unreachable!("only scores are measured")
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}
