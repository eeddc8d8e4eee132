//! How long a sandbox takes to start, against `sh -c true` on the bare machine, in one run.
//!
//! Both are measured by turns, so that a busy machine disturbs both alike. Prints the median and the least of each
//! and the ratio of the medians; with `--check` a ratio above 5 fails.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures and may fail by panicking"
)]

use std::path::PathBuf;
use std::process::{Command as Plain, ExitCode};
use std::time::{Duration, Instant};

use backsight::sandbox::{Command, SandboxConfig, Sandboxes};

const ROUNDS: usize = 200;
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

#[tokio::main]
async fn main() -> ExitCode {
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    let sandboxes = Sandboxes::new(SandboxConfig { init, ..SandboxConfig::default() });
    // The first one starts the launcher and looks at the machine.
    sandboxes.start().await.unwrap().stop().await;
    let (mut plain, mut start, mut run, mut stop) =
        (Times::default(), Times::default(), Times::default(), Times::default());
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
    let of_plain = plain.median();
    let line = |name: &str, times: &mut Times| {
        let median = times.median();
        println!(
            "{name:34} median {median:7.2} ms  least {:7.2} ms  {:5.2} x",
            times.least(),
            median / of_plain
        );
    };
    println!("{ROUNDS} rounds");
    line("sh -c true", &mut plain);
    line("sandbox start", &mut start);
    line("sandbox start and sh -c true in it", &mut run);
    line("sandbox stop", &mut stop);
    let ratio = start.median() / of_plain;
    let is_slow = std::env::args().any(|it| it == "--check") && ratio > LIMIT;
    if is_slow {
        println!("a sandbox starts {ratio:.2} times as slowly as a shell; {LIMIT} is allowed");
    }
    ExitCode::from(u8::from(is_slow))
}
