//! Signals while a server is being opened: every command says so and ends with the signal's number.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::stand_in::{Dialect, Fault, Setup, StandIn};

/// Sends a signal by its name.
pub fn send(name: &str, child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
}

/// Interrupts a command that waits for a server which never answers.
async fn check(dir: &Path, arguments: &[&str], as_json: bool) {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let server = StandIn::start(Setup::new(Dialect::Vllm).faults(|_| Some(Fault::Hang))).await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(dir).args(arguments).arg(if arguments[0] == "probe" { "--" } else { "--url" });
        command.arg(server.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        while server.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        send(name, &child);
        let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        let words = match as_json {
            true => "\"message\":\"interrupted\",\"help\":\"",
            false => "error: interrupted\nhelp: ",
        };
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_a_server_is_opened_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let job = r#"{"id": 1, "tokens": [5, 6], "spans": [[1, 2]]}"#;
    fs::write(dir.path().join("jobs.jsonl"), job).unwrap();
    let talk = r#"{"messages": [{"role": "user", "content": "count"}, {"role": "assistant", "content": "1"}], "reward": 1}"#;
    fs::write(dir.path().join("talks.jsonl"), talk).unwrap();
    check(dir.path(), &["probe"], false).await;
    check(dir.path(), &["score", "--jobs", "jobs.jsonl", "--out", "out.jsonl"], false).await;
    check(dir.path(), &["score", "--jobs", "jobs.jsonl", "--out", "out.jsonl", "--json"], true).await;
    check(dir.path(), &["credit", "--episodes", "talks.jsonl"], false).await;
    check(dir.path(), &["collect", "--tasks", "fizzbuzz"], false).await;
    check(dir.path(), &["evaluate", "--tasks", "fizzbuzz"], false).await;
}
