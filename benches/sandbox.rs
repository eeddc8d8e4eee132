//! How long a sandbox takes to start, against `sh -c true` on the bare machine, in one run; and how long a program is
//! judged by hundreds of inputs, each in a sandbox of its own, against running it as often on the bare machine.
//!
//! What is compared is measured by turns, so that a busy machine disturbs both alike. Prints the median and the least of
//! each and the ratio of the medians; with `--check` a ratio of starts above 5 fails.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures and may fail by panicking"
)]

use std::path::PathBuf;
use std::process::{Command as Plain, ExitCode};
use std::time::{Duration, Instant};

use backsight::agent::Verifier;
use backsight::sandbox::{Command, SandboxConfig, Sandboxes};
use backsight::tasks::{Case, Check, Stdio};

const ROUNDS: usize = 200;
const N_CASES: usize = 300;
const CASE_ROUNDS: usize = 3;
const LIMIT: f64 = 5.0;

/// The times of one thing that was done again and again.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn take(&mut self, began: Instant) {
        self.0.push(began.elapsed());
    }

    fn median(&mut self) -> f64 {
        self.0.sort();
        self.0[self.0.len() / 2].as_secs_f64() * 1e3
    }

    fn least(&self) -> f64 {
        self.0.iter().min().unwrap().as_secs_f64() * 1e3
    }
}

/// A line for each thing, with its ratio to the first.
fn print(lines: &mut [(&str, Times)]) {
    let first = lines[0].1.median();
    for (name, times) in lines {
        let median = times.median();
        let (least, ratio) = (times.least(), median / first);
        println!("{name:42} median {median:9.2} ms  least {least:9.2} ms  {ratio:5.2} x");
    }
}

/// Measures starts; how many times as long as a shell a sandbox takes.
async fn measure_starts(sandboxes: &Sandboxes) -> f64 {
    // The first one starts the launcher and looks at the machine.
    sandboxes.start().await.unwrap().stop().await;
    let [mut plain, mut start, mut run, mut stop] = std::array::from_fn(|_| Times::default());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        assert!(Plain::new("sh").args(["-c", "true"]).status().unwrap().success());
        plain.take(began);
        let began = Instant::now();
        let sandbox = sandboxes.start().await.unwrap();
        start.take(began);
        sandbox.run(Command::argv(["sh", "-c", "true"])).await.unwrap();
        run.take(began);
        let began = Instant::now();
        sandbox.stop().await;
        stop.take(began);
    }
    println!("{ROUNDS} rounds");
    let ratio = start.median() / plain.median();
    let names = ["sh -c true", "sandbox start", "sandbox start and sh -c true in it", "sandbox stop"];
    print(&mut [(names[0], plain), (names[1], start), (names[2], run), (names[3], stop)]);
    ratio
}

/// Measures a program that is judged by what it prints for hundreds of inputs.
async fn measure_cases(sandboxes: &Sandboxes) {
    let case = |n: usize| Case { input: n.to_string(), output: (2 * n).to_string() };
    let check = Check::Stdio(Stdio { cases: (0..N_CASES).map(case).collect(), ..Stdio::default() });
    let [mut plain, mut judged] = std::array::from_fn(|_| Times::default());
    // The one of the search path may be a script that looks for it, which sandboxes do once.
    let python =
        Plain::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output().unwrap();
    let python = String::from_utf8(python.stdout).unwrap();
    for _ in 0..CASE_ROUNDS {
        let began = Instant::now();
        for _ in 0..N_CASES {
            assert!(Plain::new(&python).args(["-c", "print(2 * 21)"]).output().unwrap().status.success());
        }
        plain.take(began);
        let episode = sandboxes.start().await.unwrap();
        episode.workspace().write("solution.py", b"print(2 * int(input()))").unwrap();
        let began = Instant::now();
        let report =
            Verifier::new(sandboxes, Duration::from_secs(600)).judge(&episode, &check).await.unwrap();
        judged.take(began);
        assert_eq!(report.n_passed as usize, N_CASES);
    }
    println!("{CASE_ROUNDS} rounds of {N_CASES} cases");
    print(&mut [("python3, one after the other", plain), ("judged", judged)]);
}

#[tokio::main]
async fn main() -> ExitCode {
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    let sandboxes = Sandboxes::new(SandboxConfig { init, ..SandboxConfig::default() });
    let ratio = measure_starts(&sandboxes).await;
    measure_cases(&sandboxes).await;
    let is_slow = std::env::args().any(|it| it == "--check") && ratio > LIMIT;
    if is_slow {
        println!("a sandbox starts {ratio:.2} times as slowly as a shell; {LIMIT} is allowed");
    }
    ExitCode::from(u8::from(is_slow))
}
