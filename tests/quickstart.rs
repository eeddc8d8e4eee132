//! `quickstart` on the real model, where `BACKSIGHT_SMOLLM2_GGUF` names `SmolLM2-135M-Instruct.Q4_1.gguf`.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod tiny;

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use tiny::backsight;

fn finite(values: &Value) -> Vec<f64> {
    let values: Vec<f64> = values.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
    assert!(values.iter().all(|it| it.is_finite() && *it <= 0.0));
    values
}

#[test]
fn every_step_is_scored_under_both_lenses() {
    let Ok(model) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("SKIPPED: set BACKSIGHT_SMOLLM2_GGUF to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let dir = TempDir::new().unwrap();
    let output = backsight(dir.path(), &["quickstart", "--model", &model]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let scores = fs::read_to_string(dir.path().join("runs/quickstart/scores.jsonl")).unwrap();
    let rows: Vec<Value> = scores.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 24);
    for row in &rows {
        let (plain, outcome) = (finite(&row["logprobs"]["plain"]), finite(&row["logprobs"]["outcome"]));
        assert_eq!((plain.len(), plain.len()), (outcome.len(), row["tokens"].as_array().unwrap().len()));
        assert_ne!(plain, outcome, "the outcome must be seen");
        let change = outcome.iter().sum::<f64>() / outcome.len() as f64
            - plain.iter().sum::<f64>() / plain.len() as f64;
        assert!((change - row["mean"]["change"].as_f64().unwrap()).abs() < 1e-9);
    }
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("24 steps") && shown.contains("backsight score --kind embedded"), "{shown}");
    check_again(dir.path(), &model, &rows);
}

/// The command it suggests gives the same numbers.
fn check_again(dir: &std::path::Path, model: &str, rows: &[Value]) {
    let jobs = ["--jobs", "runs/quickstart/jobs.jsonl", "--out", "again.jsonl"];
    let output = backsight(dir, &[&["score", "--kind", "embedded", "--model", model][..], &jobs].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again = fs::read_to_string(dir.join("again.jsonl")).unwrap();
    let again = again.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let spans: Vec<Value> = again.flat_map(|row| row["spans"].as_array().unwrap().clone()).collect();
    let lens = |name: &'static str| rows.iter().map(move |row| &row["logprobs"][name]);
    let expected: Vec<&Value> = lens("plain").chain(lens("outcome")).collect();
    assert_eq!(spans.iter().map(|span| &span["logprobs"]).collect::<Vec<_>>(), expected);
}

#[test]
fn with_no_arguments_a_newcomer_is_told_of_it() {
    let output = backsight(std::path::Path::new("."), &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("backsight quickstart"));
}
