//! `--kind embedded` through the program: what works, and what is refused before any work.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod tiny;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use backsight::model::embedded::engine::Engine;
use backsight::score::ScoreJob;
use backsight::tokens::TokenSpan;
use serde_json::{Value, json};
use tempfile::TempDir;
use tiny::{backsight, fixture, write_model};

const JOB: &str = r#"{"id": "a", "tokens": [5, 6, 7, 8, 9], "spans": [[2, 5]], "top_k": 2}"#;
const SCORE: [&str; 5] = ["score", "--jobs", "jobs.jsonl", "--out", "out.jsonl"];

/// Runs `score` on the model in `dir/model`; gives the exit code and what was said.
fn score(dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    fs::write(dir.join("jobs.jsonl"), JOB).unwrap();
    let output = backsight(dir, &[&SCORE[..], more].concat());
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn score_gives_the_engines_own_numbers() {
    let dir = TempDir::new().unwrap();
    write_model(&dir.path().join("model"), json!({}));
    let (code, said) = score(dir.path(), &["--kind", "embedded", "--model", "model"]);
    assert_eq!(code, Some(0), "{said}");
    let row: Value =
        serde_json::from_str(fs::read_to_string(dir.path().join("out.jsonl")).unwrap().trim()).unwrap();
    let job = ScoreJob::new(Arc::from([5, 6, 7, 8, 9]), vec![TokenSpan::at(2, 3)], 2).unwrap();
    let scored = Engine::load(&dir.path().join("model")).unwrap().score(&job).unwrap();
    let expected: Vec<f64> = scored.spans[0].logprobs().map(|it| it.unwrap().get()).collect();
    assert_eq!(row["spans"][0]["logprobs"], json!(expected));
}

#[test]
fn probe_finds_the_embedded_model_sound() {
    let dir = TempDir::new().unwrap();
    write_model(dir.path(), json!({}));
    let output = backsight(dir.path(), &["probe", "--kind", "embedded", "--model", ".", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["kind"], &report["self_test"]["ok"]), (&json!("embedded"), &json!(true)), "{report}");
    assert_eq!(report["prefix_cache_with_logprobs"], true);
}

/// Exit code 2, an error that names the thing, and help.
fn check_refused(dir: &Path, more: &[&str], expected: &str) {
    let (code, said) = score(dir, more);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(expected) && said.contains("help: "), "expected {expected:?} in {said}");
    assert!(!dir.join("out.jsonl").exists());
}

#[test]
fn models_that_cannot_be_used_are_refused() {
    let dir = TempDir::new().unwrap();
    let (dir, model) = (dir.path(), dir.path().join("model"));
    let embedded = ["--kind", "embedded", "--model", "model"];
    write_model(&model, json!({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}));
    check_refused(dir, &embedded, "amba");
    write_model(&model, json!({"num_hidden_layers": 3}));
    check_refused(dir, &embedded, "the tensor model.layers.2.");
    write_model(&model, json!({"intermediate_size": 64}));
    check_refused(dir, &embedded, "has the shape");
    write_model(&model, json!({}));
    let whole = fs::read(model.join("model.safetensors")).unwrap();
    fs::write(model.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    check_refused(dir, &embedded, "cut");
    write_model(&model, json!({}));
    fs::write(model.join("tokenizer.json"), "{").unwrap();
    check_refused(dir, &embedded, "tokenizer.json");
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    let (code, said) = score(dir, &embedded);
    assert_eq!(code, Some(0), "without a tokenizer ids can still be scored: {said}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let dir = TempDir::new().unwrap();
    let (model, tokenizer) = (fixture("tiny-llama"), fixture("tokenizers/chatml"));
    let named = [
        "--kind",
        "embedded",
        "--model",
        model.to_str().unwrap(),
        "--tokenizer",
        tokenizer.to_str().unwrap(),
    ];
    check_refused(dir.path(), &named, "the tokenizer has 707 tokens, the model only 131");
}

#[test]
fn a_truncated_gguf_file_is_refused() {
    let dir = TempDir::new().unwrap();
    let whole = fs::read(fixture("tiny-llama/model.gguf")).unwrap();
    fs::write(dir.path().join("cut.gguf"), &whole[..whole.len() - 1000]).unwrap();
    check_refused(dir.path(), &["--kind", "embedded", "--model", "cut.gguf"], "cut.gguf");
}

#[test]
fn either_a_server_or_the_embedded_model_is_needed() {
    let dir = TempDir::new().unwrap();
    check_refused(dir.path(), &[], "no server was named");
    check_refused(dir.path(), &["--kind", "embedded", "--url", "http://x"], "asks no server");
    check_refused(dir.path(), &["--kind", "embedded", "--model", "nowhere"], "no model `nowhere`");
}
