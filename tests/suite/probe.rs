//! `backsight probe` as a user runs it, against stand-ins: what is measured, what is not, and what is told of it.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use backsight::chat::tokenizer::Tokenizer;
use backsight::model::PROBE_TEXT;
use serde_json::{Value, json};

/// Exit code, findings and what was said.
async fn probe(url: &str, more: &[&str]) -> (i32, Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.args(["probe", url, "--json"]).args(more);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let findings = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), findings, String::from_utf8(output.stderr).unwrap())
}

fn tokenizer() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml").display().to_string()
}

fn parts(findings: &Value, keys: &[&str]) -> Vec<Value> {
    keys.iter().map(|key| findings[key].clone()).collect()
}

const MEASURED: [&str; 6] =
    ["kind", "ids_in", "ids_out", "ids_echoed", "prompt_logprobs", "prefix_cache_with_logprobs"];

#[tokio::test(flavor = "multi_thread")]
async fn both_servers_are_measured_with_and_without_a_tokenizer() {
    let tokenizer = tokenizer();
    for (dialect, name, caches) in [(Dialect::Vllm, "vllm", false), (Dialect::Sglang, "sglang", true)] {
        // What it samples is in the tokenizer's vocabulary.
        let server = StandIn::start(Setup::new(dialect).says(|_, _| Some((600..612).collect()))).await;
        for more in [&[][..], &["--tokenizer", &tokenizer]] {
            let (code, findings, said) = probe(&server.url(), more).await;
            assert_eq!(code, 0, "{said}");
            let expected = [json!(name), json!(true), json!(true), json!(true), json!(true), json!(caches)];
            assert_eq!(parts(&findings, &MEASURED), expected, "{dialect:?} {more:?}: {said}");
            assert_eq!(findings["self_test"]["ok"], true, "{said}");
            let smallest = findings["smallest_change"].as_f64().unwrap();
            assert!((1e-7..1e-5).contains(&smallest), "{smallest}");
            let is_told =
                said.contains("is not on this machine") && said.contains("name it with --tokenizer");
            assert_eq!(is_told, dialect == Dialect::Sglang && more.is_empty(), "{said}");
            assert!(said.lines().all(|it| serde_json::from_str::<Value>(it).is_ok()), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_model_may_have_another_name_if_its_tokenizer_agrees() {
    let tokenizer = tokenizer();
    let ids = Tokenizer::open(Path::new(&tokenizer)).unwrap().encode(PROBE_TEXT).unwrap().ids;
    let agrees = Setup { tokenizes: Some(ids), ..Setup::new(Dialect::Vllm) };
    let server = StandIn::start(agrees.says(|_, _| Some((600..612).collect()))).await;
    let more = ["--model", "other", "--tokenizer", &tokenizer];
    let (code, findings, said) = probe(&server.url(), &more).await;
    assert_eq!((code, &findings["model"]), (0, &json!("toy")), "{said}");
    assert!(said.contains("has no model `other`; its only one, `toy`, is taken for it"), "{said}");
    let (code, _, said) = probe(&server.url(), &more[..2]).await;
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("has no model `other`; it lists `toy`"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_measured_is_null() {
    let broken = |asked: &Asked| (!asked.body.is_empty()).then_some(Fault::Reset);
    let server = StandIn::start(Setup::new(Dialect::Sglang).faults(broken)).await;
    let (code, findings, said) = probe(&server.url(), &[]).await;
    assert_eq!(code, 0, "{said}");
    let expected = [json!("sglang"), Value::Null, Value::Null, Value::Null, Value::Null, Value::Null];
    assert_eq!(parts(&findings, &MEASURED), expected, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_names_requests_itself_is_told_of() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let server = StandIn::start(Setup { echoes: false, ..Setup::new(dialect) }).await;
        let (code, findings, said) = probe(&server.url(), &[]).await;
        assert_eq!((code, &findings["ids_echoed"]), (0, &json!(false)), "{said}");
        assert_eq!(findings["prompt_logprobs"], true, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_self_test_is_a_failure() {
    // What is sampled is said to be less likely than it is.
    let setup = Setup { sampled_shift: -0.5, ..Setup::new(Dialect::Sglang) };
    let server = StandIn::start(setup).await;
    let (code, findings, said) = probe(&server.url(), &[]).await;
    assert_eq!((code, &findings["self_test"]["ok"]), (1, &json!(false)), "{said}");
    assert!(said.contains("the self-test failed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_waited_for_briefly() {
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(|_| Some(Fault::Hang))).await;
    let begun = Instant::now();
    let (code, _, said) = probe(&server.url(), &[]).await;
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("no answer within 10 s"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_is_known_by_its_own_route() {
    // Anything may answer a route it does not know with JSON; newer servers have only the second name.
    let strange = |asked: &Asked| {
        let answer = Fault::Status(200, String::new(), "{\"status\": \"ok\"}".to_owned());
        (asked.route == "/get_model_info").then_some(answer)
    };
    for (dialect, name) in [(Dialect::Vllm, "vllm"), (Dialect::Sglang, "sglang")] {
        let server = StandIn::start(Setup::new(dialect).faults(strange)).await;
        let (code, findings, said) = probe(&server.url(), &[]).await;
        assert_eq!((code, &findings["kind"]), (0, &json!(name)), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collect_needs_the_tokenizer_of_an_sglang_server() {
    let server = StandIn::start(Setup::new(Dialect::Sglang)).await;
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.current_dir(dir.path()).args([
        "collect",
        "--url",
        &server.url(),
        "--run",
        "run",
        "--tasks",
        "fizzbuzz",
    ]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let words =
        "error: the tokenizer of toy is not on this machine\nhelp: name a directory with its tokenizer.json";
    assert!(said.contains(words), "{said}");
    assert!(!said.contains("rendered"), "{said}");
}
