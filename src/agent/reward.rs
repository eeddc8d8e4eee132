//! The reward of an episode: correctness, efficiency and use of tools, weighted.
//!
//! The levels are those of the published environment. Its own measure of correctness, which reads
//! the output of a test file that the student wrote, stays here as a pure function for comparison
//! and for custom commands; we compute correctness from the verifier's report. Custom rewards come
//! from a command that gets the episode as JSON and answers a number.

use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use backsight_core::episode::Outcome;

/// What each part of the reward counts.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardWeights {
    /// Whether the task is solved.
    pub correctness: f64,
    /// How few turns it took.
    pub efficiency: f64,
    /// Whether tools were used to good effect.
    pub tool_usage: f64,
}

impl Default for RewardWeights {
    fn default() -> Self {
        Self { correctness: 0.7, efficiency: 0.15, tool_usage: 0.15 }
    }
}

/// A command that gives the reward instead of the levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomReward {
    /// A line for the shell.
    pub command: String,
    /// How long it may take.
    pub timeout: Duration,
}

/// How an episode is rewarded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardRule {
    /// What each part counts.
    pub weights: RewardWeights,
    /// The command that has the last word, if there is one; the parts are recorded all the same.
    pub custom: Option<CustomReward>,
}

/// Fewer turns are better, in four levels.
pub fn efficiency(n_turns: usize, max_turns: usize) -> f64 {
    match n_turns {
        n if n <= 3 => 1.0,
        n if n <= max_turns / 2 => 0.8,
        n if n <= max_turns * 3 / 4 => 0.5,
        _ => 0.2,
    }
}

/// Writing files and running them is best; `tools` are the names that were called.
pub fn tool_usage<'a>(tools: impl IntoIterator<Item = &'a str>) -> f64 {
    let tools: Vec<&str> = tools.into_iter().collect();
    let used = |name| tools.contains(&name);
    match used("terminal") {
        true if used("write_file") || used("patch") => 1.0,
        true => 0.6,
        false if !tools.is_empty() => 0.3,
        false => 0.0,
    }
}

/// The reward with its parts; correctness is none of them where no tests ran.
pub fn reward(
    correctness: Option<f64>,
    efficiency: f64,
    tool_usage: f64,
    weights: &RewardWeights,
) -> Outcome {
    let parts = [
        ("correctness", correctness, weights.correctness),
        ("efficiency", Some(efficiency), weights.efficiency),
        ("tool_usage", Some(tool_usage), weights.tool_usage),
    ];
    let known = || parts.iter().filter_map(|(name, level, weight)| Some((*name, (*level)?, *weight)));
    let sum = known().map(|(_, level, weight)| level * weight).sum::<f64>();
    let components = known().map(|(name, level, _)| (name.to_owned(), level)).collect();
    Outcome { reward: sum.clamp(0.0, 1.0), components }
}

/// Kills a process group with all that is in it when dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Nothing of it may be left.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Asks a shell command for a reward: the episode on its standard input, one number on its output. Why there is none
/// is said with the next action.
///
/// It is the user's own program and runs as the user, outside any sandbox; whatever it leaves running in its
/// process group ends with it, also when its time is over.
pub async fn custom_reward(command: &str, episode: &Value, timeout: Duration) -> Result<f64, String> {
    let late = |_| {
        let seconds = timeout.as_secs();
        format!(
            "the reward command `{command}` did not answer within {seconds} seconds\nhelp: make it faster"
        )
    };
    let broken = |error| {
        format!("the reward command `{command}` cannot be run: {error}\nhelp: check --reward-command")
    };
    let output = tokio::time::timeout(timeout, run(command, episode)).await.map_err(late)?.map_err(broken)?;
    read_answer(command, &output)
}

async fn run(command: &str, episode: &Value) -> std::io::Result<Output> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let _group = Group(child.id().and_then(|it| i32::try_from(it).ok()).and_then(Pid::from_raw));
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read everything may still know the answer.
            let _ = stdin.write_all(episode.to_string().as_bytes()).await;
        }
    };
    tokio::join!(feed, child.wait_with_output()).1
}

fn read_answer(command: &str, output: &Output) -> Result<f64, String> {
    if !output.status.success() {
        let complaint: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(500).collect();
        let complaint = if complaint.is_empty() { complaint } else { format!(": {complaint}") };
        let status = output.status;
        return Err(format!(
            "the reward command `{command}` failed ({status}){complaint}\nhelp: it must exit with status 0"
        ));
    }
    let answer = String::from_utf8_lossy(&output.stdout);
    if let Some(number) = answer.trim().parse().ok().filter(|number: &f64| number.is_finite()) {
        return Ok(number);
    }
    let answer: String = answer.trim().chars().take(200).collect();
    Err(format!(
        "the reward command `{command}` answered {answer:?}, which is no finite number\nhelp: it must print one number"
    ))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    async fn ask(command: &str) -> Result<f64, String> {
        let episode = json!({ "reward": 0.5, "big": "x".repeat(300_000) });
        let answer = custom_reward(command, &episode, Duration::from_secs(20)).await;
        answer.map_err(|error| error.lines().next().unwrap().to_owned())
    }

    #[tokio::test]
    async fn a_command_answers_a_number() {
        assert_eq!(
            ask("python3 -c 'import json,sys; print(json.load(sys.stdin)[\"reward\"] * 2)'").await,
            Ok(1.0)
        );
        assert_eq!(ask("echo -0.25").await, Ok(-0.25));
    }

    #[tokio::test]
    async fn a_command_that_gives_none_says_why() {
        assert_eq!(
            ask("echo good").await,
            Err("the reward command `echo good` answered \"good\", which is no finite number".to_owned())
        );
        assert_eq!(
            ask("echo nan").await,
            Err("the reward command `echo nan` answered \"nan\", which is no finite number".to_owned())
        );
        let failed = ask("echo no >&2; exit 3").await.unwrap_err();
        assert_eq!(failed, "the reward command `echo no >&2; exit 3` failed (exit status: 3): no");
        assert_eq!(ask("exit 3").await.unwrap_err(), "the reward command `exit 3` failed (exit status: 3)");
        let slow = custom_reward("sleep 60", &json!({}), Duration::from_millis(50)).await.unwrap_err();
        assert!(slow.contains("did not answer within"), "{slow}");
    }

    #[tokio::test]
    async fn nothing_of_a_command_outlives_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("alive");
        let command = format!("(sleep 1; echo x > {}) & sleep 60", mark.display());
        let slow = custom_reward(&command, &json!({}), Duration::from_millis(200)).await.unwrap_err();
        assert!(slow.contains("did not answer within"), "{slow}");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!mark.exists(), "its child went on");
    }

    proptest! {
        #[test]
        fn rewards_stay_between_zero_and_one(c in 0.0f64..=1.0, n_turns in 0usize..40, max in 0usize..40, weight in 0.0f64..=5.0) {
            let weights = RewardWeights { correctness: weight, ..RewardWeights::default() };
            let outcome = reward(Some(c), efficiency(n_turns, max), tool_usage(["terminal"]), &weights);
            prop_assert!((0.0..=1.0).contains(&outcome.reward));
        }
    }
}
