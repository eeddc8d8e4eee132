//! Twenty rows in each published layout, with a right, a wrong and a hostile solution of each: every verdict.

use std::path::Path;
use std::time::Duration;

use backsight::agent::{TestReport, Verifier};
use backsight::sandbox::{Limits, SandboxKind, Sandboxes};
use backsight::tasks::{CodingTask, DatasetOptions, read_jsonl};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use super::sandboxes;

/// Long enough for any machine; no verdict here waits for it.
const TIMEOUT: Duration = Duration::from_secs(120);

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/datasets/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn tasks(name: &str) -> Vec<CodingTask> {
    let dataset =
        read_jsonl(Path::new(&fixture(&format!("{name}.jsonl"))), &DatasetOptions::default()).unwrap();
    assert_eq!((dataset.tasks.len(), dataset.skipped), (20, vec![]));
    dataset.tasks
}

fn solutions(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(&format!("{name}.solutions.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn judge(sandboxes: &Sandboxes, task: &CodingTask, solution: &str) -> TestReport {
    let episode = sandboxes.start().await.unwrap_or_else(|error| panic!("{error}"));
    episode.workspace().write("solution.py", solution.as_bytes()).unwrap();
    Verifier::new(sandboxes, TIMEOUT)
        .of_task(&task.asked)
        .judge(&episode, task.check.as_ref().unwrap())
        .await
        .unwrap()
}

/// What is wrong with the verdict on a solution of a row.
async fn fault(sandboxes: &Sandboxes, task: &CodingTask, row: &Value, kind: &str) -> Option<String> {
    let report = judge(sandboxes, task, row[kind].as_str().unwrap()).await;
    let level = report.correctness();
    let is_right = match kind {
        "right" => level == Some(1.0),
        "wrong" => level == row["wrong_level"].as_f64(),
        _ => level.is_some_and(|level| level < 1.0),
    };
    (!is_right)
        .then(|| format!("{} {kind}: {level:?}\n{}\n{report:#?}", task.task.id, row[kind].as_str().unwrap()))
}

async fn check(name: &str) {
    let sandboxes = sandboxes(SandboxKind::Namespaces, Limits::default());
    let (tasks, rows) = (tasks(name), solutions(name));
    let all = tasks
        .iter()
        .zip(&rows)
        .flat_map(|(task, row)| ["right", "wrong", "hostile"].map(|kind| (task, row, kind)));
    let faults =
        stream::iter(all).map(|(task, row, kind)| fault(&sandboxes, task, row, kind)).buffer_unordered(2);
    let faults: Vec<String> = faults.filter_map(std::future::ready).collect().await;
    assert!(faults.is_empty(), "{} of 60 verdicts are wrong\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn mbpp() {
    check("mbpp").await;
}

#[tokio::test]
async fn humaneval() {
    check("humaneval").await;
}

#[tokio::test]
async fn apps() {
    check("apps").await;
}

#[tokio::test]
async fn livecodebench() {
    check("livecodebench").await;
}
