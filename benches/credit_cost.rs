//! What scoring one long episode costs, side by side: the published script at its defaults and `backsight credit`.
//!
//! `cargo bench --bench credit_cost -- --published-script DIR [--python PYTHON] [--tokenizer DIR] [--rounds N]`
//!
//! `--serve` starts the server alone. The episode is made up: 101 steps, planning and five subtasks, about 75k tokens of Qwen3. The server is a stand-in
//! that answers at once, keeps SGLang's rule of what a cache may serve, and counts. CPU time is that of the whole
//! client process, from start to end. The exit code is 1 when a promised ratio is missed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]
#![allow(dead_code, reason = "the shared parts can do more than is needed here")]

#[path = "support/sides.rs"]
mod sides;
#[path = "../tests/support/stand_in.rs"]
mod stand_in;
#[path = "support/synthetic.rs"]
mod synthetic;
#[path = "../tests/support/toy.rs"]
mod toy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use backsight::chat::tokenizer::Tokenizer;

use sides::{Published, Took, measure, median, n_scored, option, ours, range};
use stand_in::{Dialect, Setup, StandIn};

const N_STEPS: usize = 101;
const MIN_FIRST: f64 = 7.0;
const MIN_LAST: f64 = 16.0;
const MIN_CPU: f64 = 50.0;
const MAX_REQUESTS: u64 = 10;

fn main() -> ExitCode {
    if std::env::args().any(|it| it == "--serve") {
        return serve();
    }
    let Some(script) = option("--published-script") else {
        println!(
            "credit_cost: nothing to compare with; name the published script's directory with --published-script"
        );
        return ExitCode::SUCCESS;
    };
    let python = option("--python").unwrap_or_else(|| "python3".to_owned());
    let published = Published { script: PathBuf::from(script), python };
    let tokenizer = option("--tokenizer").map_or_else(qwen3, PathBuf::from);
    let n_rounds: usize = option("--rounds").map_or(1, |it| it.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(StandIn::start(setup(&tokenizer)));
    let url = server.url();
    let mut sides = [Side::new("published script"), Side::new("ours, first"), Side::new("ours, last")];
    for _ in 0..n_rounds {
        sides[0].round(&server, |dir, log| measure(&mut published.command(dir, &url, &tokenizer), log));
        sides[1].round(&server, |dir, log| measure(&mut ours(dir, &url, &tokenizer, "first"), log));
        sides[2].round(&server, |dir, log| measure(&mut ours(dir, &url, &tokenizer, "last"), log));
    }
    report(&sides)
}

/// Answers until it is stopped, for looking at one side alone.
fn serve() -> ExitCode {
    let tokenizer = option("--tokenizer").map_or_else(qwen3, PathBuf::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = StandIn::start(setup(&tokenizer)).await;
        println!("{}", server.url());
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

fn qwen3() -> PathBuf {
    let root = std::env::var("BACKSIGHT_TOKENIZERS").map(PathBuf::from).unwrap_or_else(|_| {
        PathBuf::from(std::env::var("HOME").unwrap()).join(".cache/backsight-tests/tokenizers")
    });
    root.join("qwen3")
}

/// A server with the tokenizer's ids, which also takes text as the published script sends it.
fn setup(tokenizer: &Path) -> Setup {
    let tokenizer = Tokenizer::open(tokenizer).unwrap();
    Setup {
        keeps_requests: false,
        vocab_size: tokenizer.vocab_size() as u64,
        encode: Some(Box::new(move |text| tokenizer.encode(text).unwrap().ids)),
        ..Setup::new(Dialect::Sglang)
    }
}

/// One way of scoring, and what its rounds took.
struct Side {
    name: &'static str,
    took: Vec<Took>,
    sent: u64,
    computed: u64,
    /// Scoring requests, those that only find out who the server is included.
    requests: u64,
}

impl Side {
    fn new(name: &'static str) -> Self {
        Self { name, took: Vec::new(), sent: 0, computed: 0, requests: 0 }
    }

    /// Scores a fresh episode against a server that remembers nothing.
    fn round(&mut self, server: &StandIn, run: impl Fn(&Path, &Path) -> Took) {
        let directory = tempfile::tempdir().unwrap();
        let episode = directory.path().join("episode_001");
        synthetic::write(&episode, &synthetic::Shape::default()).unwrap();
        server.forget();
        self.took.push(run(directory.path(), &directory.path().join("log.txt")));
        assert_eq!(n_scored(&episode), N_STEPS, "{}", self.name);
        let work = server.work();
        (self.sent, self.computed, self.requests) =
            (work.sent, work.computed, server.requests_on("/generate"));
    }

    fn cpu(&self) -> f64 {
        median(self.took.iter().map(|took| took.cpu_seconds).collect())
    }

    fn seconds(&self) -> f64 {
        median(self.took.iter().map(|took| took.seconds).collect())
    }
}

fn report(sides: &[Side; 3]) -> ExitCode {
    let [published, first, last] = sides;
    println!(
        "{:<18}{:>10}{:>12}{:>12}{:>9}{:>12}{:>9}{:>10}",
        "", "requests", "sent", "computed", "ratio", "client CPU", "ratio", "seconds"
    );
    for side in sides {
        let fewer = published.computed as f64 / side.computed as f64;
        println!(
            "{:<18}{:>10}{:>12}{:>12}{:>8.2}x{:>10.3} s{:>8.1}x{:>10.2}",
            side.name,
            side.requests,
            side.sent,
            side.computed,
            fewer,
            side.cpu(),
            published.cpu() / side.cpu(),
            side.seconds()
        );
    }
    for side in sides.iter().filter(|side| side.took.len() > 1) {
        let (least, most) = range(&side.took.iter().map(|took| took.cpu_seconds).collect::<Vec<_>>());
        println!("{:<18}client CPU {least:.3} to {most:.3} s in {} rounds", side.name, side.took.len());
    }
    let computed = |side: &Side| published.computed as f64 / side.computed as f64;
    let cpu = |side: &Side| published.cpu() / side.cpu();
    let promises = [
        ("computed tokens, first", computed(first), MIN_FIRST),
        ("computed tokens, last", computed(last), MIN_LAST),
        ("client CPU, first", cpu(first), MIN_CPU),
        ("client CPU, last", cpu(last), MIN_CPU),
    ];
    let mut kept = first.requests <= MAX_REQUESTS;
    println!("requests, first: {} of at most {MAX_REQUESTS}", first.requests);
    for (what, ratio, least) in promises {
        println!("{what}: {ratio:.1}x of at least {least}x");
        kept &= ratio >= least;
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
