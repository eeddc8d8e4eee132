//! `--kind embedded` through the program: what works, and what is refused before any work.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::program::backsight;
use crate::support::tiny::{fixture, write_enormous, write_model};
use backsight::engine::engine::Engine;
use backsight::score::ScoreJob;
use backsight::tokens::TokenSpan;
use serde_json::{Value, json};
use tempfile::TempDir;

const JOB: &str = r#"{"id": "a", "tokens": [5, 6, 7, 8, 9], "spans": [[2, 5]], "top_k": 2}"#;
const PROBE_KEYS: [&str; 17] = [
    "kind",
    "version",
    "model",
    "models",
    "context_length",
    "ids_in",
    "ids_out",
    "ids_echoed",
    "prompt_logprobs",
    "max_top_k",
    "start_index",
    "prefix_cache_with_logprobs",
    "tokenizer_agrees",
    "template_drops",
    "deterministic",
    "smallest_change",
    "self_test",
];
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
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(keys, PROBE_KEYS);
    assert_eq!(report["prefix_cache_with_logprobs"], true);
}

/// Exit code 2, an error that names the thing, and help.
fn check_refused(dir: &Path, more: &[&str], expected: &str) {
    let (code, said) = score(dir, more);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(expected) && said.contains("help: "), "expected {expected:?} in {said}");
    assert!(!dir.join("out.jsonl").exists());
}

/// The model at `dir/model` is refused by every command that would load it, at once and in the same words.
fn check_unusable(dir: &Path, expected: &str) {
    let commands: [&[&str]; 4] = [
        &["score", "--jobs", "jobs.jsonl", "--out", "out.jsonl", "--kind", "embedded", "--model", "model"],
        &["probe", "--kind", "embedded", "--model", "model"],
        &["model", "serve", "--port", "0", "--model", "model"],
        &["quickstart", "--model", "model"],
    ];
    fs::write(dir.join("jobs.jsonl"), JOB).unwrap();
    for command in commands {
        let output = backsight(dir, command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{command:?}: {said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap();
        assert!(error.contains(expected), "{command:?}: {said}");
        assert!(said.lines().last().unwrap().starts_with("help: "), "{command:?}: {said}");
    }
    assert!(!dir.join("out.jsonl").exists() && !dir.join("runs").exists());
}

#[test]
fn models_that_cannot_be_used_are_refused() {
    let dir = TempDir::new().unwrap();
    let (dir, model) = (dir.path(), dir.path().join("model"));
    write_model(&model, json!({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}));
    check_unusable(dir, "the architecture MambaForCausalLM is not supported");
    write_model(&model, json!({"num_hidden_layers": 3}));
    check_unusable(dir, "the tensor model.layers.2.");
    write_model(&model, json!({"intermediate_size": 64}));
    check_unusable(
        dir,
        "the tensor model.layers.0.mlp.gate_proj.weight has the shape [48, 32] instead of [64, 32]",
    );
    write_model(&model, json!({"vocab_size": 700}));
    check_unusable(dir, "[720, 32] instead of [700, 32]");
    write_model(&model, json!({}));
    let whole = fs::read(model.join("model.safetensors")).unwrap();
    fs::write(model.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    check_unusable(dir, "the file is cut: ");
    write_model(&model, json!({}));
    fs::write(model.join("tokenizer.json"), "{").unwrap();
    check_unusable(dir, "tokenizer.json");
    fs::remove_dir_all(&model).unwrap();
    write_enormous(&model);
    check_unusable(dir, " MiB of memory, ");
    fs::remove_dir_all(&model).unwrap();
    fs::create_dir(&model).unwrap();
    check_unusable(dir, "model/config.json: No such file or directory");
    fs::remove_dir(&model).unwrap();
    fs::write(&model, "no model").unwrap();
    check_unusable(dir, "it does not begin with `GGUF`");
    fs::remove_file(&model).unwrap();
    check_unusable(dir, "no model `model`: it is neither a known name nor a path that exists");
}

#[test]
fn ids_can_be_scored_without_a_tokenizer() {
    let dir = TempDir::new().unwrap();
    write_model(&dir.path().join("model"), json!({}));
    fs::remove_file(dir.path().join("model/tokenizer.json")).unwrap();
    let (code, said) = score(dir.path(), &["--kind", "embedded", "--model", "model"]);
    assert_eq!(code, Some(0), "{said}");
}

/// A prompt longer than the context, an id outside the vocabulary: the job's own loss, before anything is computed.
#[test]
fn a_job_that_does_not_fit_is_its_own_loss() {
    let dir = TempDir::new().unwrap();
    write_model(&dir.path().join("model"), json!({}));
    let job = |id: u32, tokens: Vec<u32>| {
        let n = tokens.len();
        format!("{}\n", json!({"id": id, "tokens": tokens, "spans": [[n - 2, n]]}))
    };
    let jobs =
        [job(0, vec![7; 513]), job(1, vec![7; 512]), job(2, vec![7, 8, 720]), job(3, vec![7, 8, 9])].concat();
    fs::write(dir.path().join("jobs.jsonl"), jobs).unwrap();
    let output = backsight(dir.path(), &[&SCORE[..], &["--kind", "embedded", "--model", "model"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = fs::read_to_string(dir.path().join("out.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["error"], "513 tokens do not fit into the model's context of 512");
    assert_eq!(rows[2]["error"], "token 720 at position 2 is outside the vocabulary of 720");
    assert!(rows[1].get("error").is_none() && rows[3].get("error").is_none(), "{rows:?}");
}

#[test]
fn an_episode_longer_than_the_context_is_refused_before_it_is_read() {
    let dir = TempDir::new().unwrap();
    write_model(&dir.path().join("model"), json!({}));
    let output = backsight(dir.path(), &["quickstart", "--model", "model"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(" tokens do not fit into the model's context of 512") && said.contains("help: "),
        "{said}"
    );
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
