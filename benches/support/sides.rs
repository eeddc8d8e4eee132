//! Running the published scorer and ours as a user would, and what each run took.
//!
//! Owns the two command lines and the measuring of a child process: wall clock, and the CPU time of it and of whatever
//! it started. The published script is named on the command line and never part of this project.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// By the clock.
    pub seconds: f64,
    /// User and system time of the process and its children.
    pub cpu_seconds: f64,
}

/// Runs a program to its end; its talk goes to a file, which is shown if it fails.
pub fn measure(command: &mut Command, log: &Path) -> Took {
    let talk = File::create(log).unwrap();
    command.stdin(Stdio::null()).stdout(talk.try_clone().unwrap()).stderr(talk);
    let (begun, cpu) = (Instant::now(), children_cpu());
    let status = command.status().unwrap();
    let took = Took { seconds: begun.elapsed().as_secs_f64(), cpu_seconds: children_cpu() - cpu };
    assert!(status.success(), "{command:?} ended with {status}:\n{}", fs::read_to_string(log).unwrap());
    took
}

/// Seconds of CPU time of all children that have ended.
#[allow(unsafe_code, reason = "there is no safe way to ask for the CPU time of children")]
fn children_cpu() -> f64 {
    // SAFETY: all fields are plain numbers, for which zero is a value, and the call writes only into this struct.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The published scorer at its defaults, with the plan kept that its loader drops.
pub struct Published {
    /// The directory with `compute_hindsight_scores.py`.
    pub script: PathBuf,
    /// A Python with httpx, transformers and jinja2.
    pub python: String,
}

impl Published {
    pub fn command(&self, episodes: &Path, url: &str, tokenizer: &Path) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.script.join("compute_hindsight_scores.py"));
        command.arg("--input-dir").arg(episodes).args(["--api-base", url, "--model", "model"]);
        command.arg("--tokenizer").arg(tokenizer);
        command
            .env("BACKSIGHT_KEEP_PLAN", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// `backsight credit`, the program that was built with this benchmark.
pub fn ours(episodes: &Path, url: &str, tokenizer: &Path, placement: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.arg("credit").arg("--input-dir").arg(episodes).args(["--url", url, "--placement", placement]);
    command.arg("--tokenizer").arg(tokenizer);
    command
}

/// How many steps an episode's scores have, all of which must be scored.
pub fn n_scored(episode: &Path) -> usize {
    let names =
        ["hindsight_scores.json", "hindsight_scores.outcome-last.json"].map(|name| episode.join(name));
    let text = fs::read_to_string(names.iter().find(|it| it.exists()).unwrap()).unwrap();
    let scores: Value = serde_json::from_str(&text).unwrap();
    let steps = scores["steps"].as_array().unwrap();
    for step in steps {
        assert!(step.get("error").is_none() && step["mean_logprob"].as_f64().unwrap() < 0.0, "{step}");
    }
    steps.len()
}

/// The value behind a flag.
pub fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|it| it != name).nth(1)
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The least and the largest, for people who want to know how much a median hides.
pub fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}
