//! What we write is what our JSON Schemas say.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use crate::inside::support::schema;

use std::path::Path;

use backsight::model::budget::{ModelRole, Spent};
use backsight::store::episodes::{find, load};
use backsight::store::summary::Summary;
use backsight::wire::episode_record;
use serde_json::{Value, json};

fn check_summary(value: &Value) -> Option<String> {
    schema::check(include_str!("../../docs/summary.schema.json"), value)
}

fn check(value: &Value) -> Option<String> {
    schema::check(include_str!("../../docs/episode.schema.json"), value)
}

#[test]
fn episode_records_are_as_their_schema_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/episodes");
    for loaded in load(find(&root).unwrap()) {
        let record = episode_record::to_json(&loaded.unwrap().episode).unwrap();
        assert_eq!(check(&record), None);
        assert!(episode_record::from_json(&record).is_ok());
    }
}

#[test]
fn a_record_with_everything_is_one_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/episodes/episode_001");
    let mut record =
        episode_record::to_json(&load(find(&root).unwrap()).next().unwrap().unwrap().episode).unwrap();
    record["sequences"] = json!([[1, 2, 3, 4]]);
    record["tokens"] = json!("exact");
    record["tool_text"] = json!("hermes");
    record["compactions"] =
        json!([{"at": 4, "kept_from": 2, "summary": {"role": "user", "content": "so far"}}]);
    let action = json!({"sequence": 0, "span": [1, 3], "logprobs": [-0.5, null], "top": [[[7, -0.25], [2, -0.5]], []]});
    record["steps"][0]["action"] = action;
    let written = episode_record::to_json(&episode_record::from_json(&record).unwrap()).unwrap();
    assert_eq!((check(&written), &written["steps"][0]), (None, &record["steps"][0]));
    assert_eq!(written["compactions"], record["compactions"]);
}

#[test]
fn what_is_no_record_is_found_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/episodes/episode_001");
    let record =
        episode_record::to_json(&load(find(&root).unwrap()).next().unwrap().unwrap().episode).unwrap();
    for (pointer, wrong) in [
        ("/version", json!(2)),
        ("/tokens", json!("guessed")),
        ("/messages/1/role", json!("robot")),
        ("/steps/0/next_state", json!([1])),
        ("/outcome", json!({})),
        ("/progress/subtask_scores/S1", json!(null)),
        ("/messages/1/tool_calls/0/function/arguments", json!(7)),
    ] {
        let mut changed = record.clone();
        *changed.pointer_mut(pointer).unwrap() = wrong;
        assert!(check(&changed).is_some(), "{pointer}");
    }
}

#[test]
fn summaries_are_as_their_schema_says() {
    let spent = Spent { requests: 2, prompt_tokens: 90, cached_tokens: 10, completion_tokens: 4 };
    let mut summary = Summary {
        stage: "collect",
        made: [("episodes", 7)].into(),
        lost: [("episodes", [("the server is gone".to_owned(), 1)].into())].into(),
        seconds: 0.25,
        paid: vec![(ModelRole::Student, spent)],
        ..Summary::default()
    };
    assert_eq!(check_summary(&summary.to_json()), None);
    summary.stopped_by = Some("the limit of 2 requests is reached".to_owned());
    let json = summary.to_json();
    assert_eq!(check_summary(&json), None);
    for pointer in [
        "/made/episodes",
        "/lost/episodes",
        "/tokens/computed",
        "/paid/student/sent",
        "/seconds",
        "/stopped_by",
    ] {
        let mut changed = json.clone();
        *changed.pointer_mut(pointer).unwrap() = json!(-1);
        assert!(check_summary(&changed).is_some(), "{pointer}");
    }
}
