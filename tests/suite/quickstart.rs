//! `quickstart` on the real model, where `BACKSIGHT_SMOLLM2_GGUF` names `SmolLM2-135M-Instruct.Q4_1.gguf`.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;

use crate::program::backsight;
use serde_json::Value;
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
    let steps = scores["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &scores["partial"]), (24, &Value::Bool(false)));
    for (step, of_step) in steps.iter().zip(tokens["steps"].as_array().unwrap()) {
        let (outcome, plain) = (finite(&of_step["logprobs"]), finite(&of_step["plain_logprobs"]));
        assert_ne!(plain, outcome, "the outcome must be seen");
        assert!((mean(&outcome) - step["mean_logprob"].as_f64().unwrap()).abs() < 1e-9);
        assert!((mean(&plain) - step["plain_mean_logprob"].as_f64().unwrap()).abs() < 1e-9);
        let rho = step["rho"].as_f64().unwrap();
        assert!((0.8..=1.2).contains(&rho) && step["q_h"].as_f64().unwrap() > 0.0, "{step}");
    }
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("24 steps") && shown.contains("rho") && shown.contains("--recompute"), "{shown}");
    check_live(dir.path(), &shown);
    check_again(dir.path());
}

/// Four episodes were run, each with well-formed calls, and are shown.
fn check_live(dir: &std::path::Path, shown: &str) {
    let records = fs::read_dir(dir.join("runs/quickstart/live/episodes")).unwrap();
    let records: Vec<Value> = records
        .map(|it| serde_json::from_str(&fs::read_to_string(it.unwrap().path()).unwrap()).unwrap())
        .collect();
    assert_eq!(records.len(), 4);
    for record in &records {
        let (id, steps) = (record["id"].as_str().unwrap(), record["steps"].as_array().unwrap());
        assert!(shown.contains(&format!("\n{id}  reward ")), "{id} is not shown: {shown}");
        assert!(
            !steps.is_empty() && record["verification"].is_object() && record["tokens"] == "exact",
            "{record}"
        );
        let first = &record["messages"][steps[0]["message_idx"].as_u64().unwrap() as usize];
        assert!(first["tool_calls"].is_array(), "{first}");
    }
}

/// The command it suggests computes the credit anew, from the files alone.
fn check_again(dir: &std::path::Path) {
    let own = ["credit", "--episodes", "runs/quickstart/episode.jsonl", "--run", "runs/quickstart"];
    let output =
        backsight(dir, &[&own[..], &["--recompute", "--gamma", "0.9", "--smoothing", "paper"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = dir.join("runs/quickstart/episodes/fix_failing_test/hindsight_scores.json");
    let scores: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(scores["hyperparams"]["gamma"], 0.9);
    assert_eq!(
        scores["steps"][22]["q_h"].as_f64().unwrap(),
        scores["steps"][22]["rho"].as_f64().unwrap() * 0.9
    );
}

#[test]
fn with_no_arguments_a_newcomer_is_told_of_it() {
    let output = backsight(std::path::Path::new("."), &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("backsight quickstart"));
}
