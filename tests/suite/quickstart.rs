//! `quickstart` on the real model, where `BACKSIGHT_SMOLLM2_GGUF` names `SmolLM2-135M-Instruct.Q4_1.gguf`, and
//! interrupted, on one with random weights.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::backsight;
use crate::signals::send;
use crate::support::tiny;
use serde_json::{Value, json};
use tempfile::TempDir;

fn finite(values: &Value) -> Vec<f64> {
    let values: Vec<f64> = values.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
    assert!(values.iter().all(|it| it.is_finite() && *it <= 0.0));
    values
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn every_step_is_scored_under_both_lenses_and_has_credit() {
    let Ok(model) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("SKIPPED: set BACKSIGHT_SMOLLM2_GGUF to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let dir = TempDir::new().unwrap();
    let output = backsight(dir.path(), &["quickstart", "--model", &model]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| -> Value {
        let path = dir.path().join("runs/quickstart/episodes/fix_failing_test").join(name);
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let (scores, tokens) = (read("hindsight_scores.json"), read("hindsight_tokens.json"));
    assert_eq!(tokens["lenses"], json!(["outcome-first", "plain"]));
    let steps = scores["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &scores["partial"]), (24, &Value::Bool(false)));
    for (step, of_step) in steps.iter().zip(tokens["steps"].as_array().unwrap()) {
        let (outcome, plain) = (finite(&of_step["logprobs"][0]), finite(&of_step["logprobs"][1]));
        assert_ne!(plain, outcome, "the outcome must be seen");
        assert!((mean(&outcome) - step["mean_logprob"].as_f64().unwrap()).abs() < 1e-9);
        assert!((mean(&plain) - step["plain_mean_logprob"].as_f64().unwrap()).abs() < 1e-9);
        let rho = step["rho"].as_f64().unwrap();
        assert!((0.8..=1.2).contains(&rho) && step["q_h"].as_f64().unwrap() > 0.0, "{step}");
    }
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains("\n  write_file solution.py\n    | def ") && shown.contains("reward: 0.7 x "),
        "{shown}"
    );
    assert!(shown.contains("24 steps") && shown.contains("rho") && shown.contains("--recompute"), "{shown}");
    check_live(dir.path(), &shown);
    check_distilled(dir.path(), &shown);
    check_again(dir.path(), &shown);
}

/// Six episodes were run, each with well-formed calls, and are shown.
fn check_live(dir: &Path, shown: &str) {
    let records = fs::read_dir(dir.join("runs/quickstart/live/episodes")).unwrap();
    let records: Vec<Value> = records
        .map(|it| serde_json::from_str(&fs::read_to_string(it.unwrap().path()).unwrap()).unwrap())
        .collect();
    assert_eq!(records.len(), 6);
    for record in &records {
        let (id, steps) = (record["id"].as_str().unwrap(), record["steps"].as_array().unwrap());
        assert!(shown.contains(&format!("\n{id}  reward ")), "{id} is not shown: {shown}");
        assert!(record["verification"].is_object() && record["tokens"] == "exact", "{record}");
        let called = |step: &Value| {
            let message = &record["messages"][step["message_idx"].as_u64().unwrap() as usize];
            message["tool_calls"][0]["function"]["name"].as_str().unwrap().to_owned()
        };
        assert_eq!(steps.iter().map(called).collect::<Vec<_>>(), ["write_file", "terminal"], "{record}");
    }
}

/// Two of the episodes are judged and distilled, and the files hold what is shown.
fn check_distilled(dir: &Path, shown: &str) {
    assert!(
        shown.contains("\nDistilled: ") && shown.contains("forced into form") && shown.contains("\n  step ")
    );
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(dir.join("runs/quickstart/live").join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(lines("verdicts.jsonl").len(), 4);
    let mut n_rows = 0;
    for group in lines("groups.jsonl") {
        let rows = group["distill_token_ids"][0].as_array().unwrap();
        for (row, token) in rows.iter().zip(group["tokens"][0].as_array().unwrap()) {
            let row = row.as_array().unwrap();
            assert!(row.is_empty() || row.len() == 20 && row.contains(token));
            n_rows += usize::from(!row.is_empty());
        }
    }
    assert!(shown.contains(&format!(" trained tokens, {n_rows} with targets")), "{n_rows}: {shown}");
}

/// The commands it suggests work as they stand; the first computes the credit anew, from the files alone.
fn check_again(dir: &Path, shown: &str) {
    let (_, suggested) = shown.split_once("What to try next:\n").unwrap();
    let suggested: Vec<&str> = suggested.lines().map(str::trim).collect();
    let expected =
        format!("{} credit --episodes runs/quickstart/episode.jsonl ", env!("CARGO_BIN_EXE_backsight"));
    assert!(suggested.len() == 6 && suggested[0].starts_with(&expected), "{suggested:?}");
    let output = Command::new("sh").args(["-c", suggested[0]]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = dir.join("runs/quickstart/episodes/fix_failing_test/hindsight_scores.json");
    let scores: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(scores["hyperparams"]["gamma"], 0.9);
    assert_eq!(
        scores["steps"][22]["q_h"].as_f64().unwrap(),
        scores["steps"][22]["rho"].as_f64().unwrap() * 0.9
    );
}

/// Runs quickstart until it has said `word` on stderr, or on stdout, and then interrupts it; gives its exit code and
/// what it said on stdout.
fn interrupted(dir: &Path, signal: &str, word: &str, on_stdout: bool) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.current_dir(dir).args(["quickstart", "--model", "model"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut heard, mut other): (Box<dyn BufRead>, Box<dyn Read>) = match on_stdout {
        true => (Box::new(BufReader::new(stdout)), Box::new(stderr)),
        false => (Box::new(BufReader::new(stderr)), Box::new(stdout)),
    };
    let mut said = String::new();
    while !said.contains(word) {
        assert!(heard.read_line(&mut said).unwrap() > 0, "never said {word:?}: {said}");
    }
    send(signal, &child);
    let (mut rest, mut unheard) = (String::new(), String::new());
    heard.read_to_string(&mut rest).unwrap();
    other.read_to_string(&mut unheard).unwrap();
    let (stdout, stderr) = if on_stdout { (said + &rest, unheard) } else { (unheard, said + &rest) };
    let code = child.wait().unwrap().code();
    assert!(stderr.contains("error: interrupted\nhelp: "), "{code:?} after {word:?}: {stderr}");
    (code, stdout)
}

#[test]
fn one_signal_ends_it_at_any_moment_and_the_same_command_continues() {
    let dir = TempDir::new().unwrap();
    tiny::write_model(&dir.path().join("model"), json!({"max_position_embeddings": 65536}));
    let began = |n: usize| {
        let events = fs::read_to_string(dir.path().join("runs/quickstart/live/events.jsonl")).unwrap();
        let began = |it: &&str| it.contains("\"event\":\"began\"") && it.contains("\"stage\":\"collect\"");
        assert_eq!(events.lines().filter(began).count(), n, "{events}");
    };
    assert_eq!(interrupted(dir.path(), "INT", "loading", false), (Some(130), String::new()));
    assert_eq!(interrupted(dir.path(), "TERM", "collect: 6 episodes", false), (Some(143), String::new()));
    began(1);
    let (code, shown) = interrupted(dir.path(), "INT", "Live: ", true);
    assert_eq!(code, Some(130));
    assert!(!shown.contains("What to try next"), "{shown}");
    began(2);
    let output = backsight(dir.path(), &["quickstart", "--model", "model"]);
    let (said, shown) =
        (String::from_utf8(output.stderr).unwrap(), String::from_utf8(output.stdout).unwrap());
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("6 of them are there already") && shown.contains("What to try next"),
        "{said}{shown}"
    );
    began(3);
    let again = ["credit", "--episodes", "runs/quickstart/episode.jsonl", "--run", "runs/quickstart"];
    let model = ["--kind", "embedded", "--model", "model", "--tool-text", "auto"];
    let output = backsight(dir.path(), &[&again[..], &model].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("24 of 24 steps already, left alone"), "{said}");
}

#[test]
fn with_no_arguments_a_newcomer_is_told_of_it() {
    let output = backsight(Path::new("."), &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("backsight quickstart"));
}
