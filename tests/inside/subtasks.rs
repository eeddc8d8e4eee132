//! The recorded mappings of steps to subtasks, with every deliberate deviation named.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::chat::messages::list_from_json;
use backsight::episode::Progress;
use backsight::subtasks::{PlanPlace, places, read_plan, submitted_plan};
use serde_json::{Value, json};

/// A step's subtask or phase, and its reward.
type Found = (&'static str, f64);

/// Where we differ from the recordings on purpose: case, the phases and subtasks we find with their rewards, why.
const DEVIATIONS: &[(&str, &[Found], &str)] = &[
    (
        "plan_missing",
        &[("planning", 0.8), ("S1", 0.5), ("S1", 0.5), ("S2", 0.4)],
        "without a plan, the subtask scores name the subtasks in the plan's order",
    ),
    (
        "bash_then_plan_in_one_message",
        &[("planning", 0.8), ("S1", 0.5)],
        "the second result answers the second call, so the plan was accepted",
    ),
    (
        "aborted_advance_false_positive",
        &[("planning", 0.8), ("S1", 0.5), ("S1", 0.5), ("S1", 0.5)],
        "what bash prints is no answer to the call of `advance` that was never answered",
    ),
];

fn progress(episode: &Value) -> Progress {
    let scores = episode["frozen_scores"].as_object().unwrap();
    Progress {
        plan_score: episode["plan_score"].as_f64(),
        plan: episode["plan"].as_array().map(|plan| read_plan(plan).unwrap()),
        subtask_scores: scores.iter().map(|(id, score)| (id.clone(), score.as_f64().unwrap())).collect(),
        ..Progress::default()
    }
}

fn shown(place: &PlanPlace) -> Value {
    json!({"phase": place.phase.name(), "subtask_id": place.subtask, "subtask_reward": place.reward})
}

fn place_names(steps: &[PlanPlace]) -> Vec<&str> {
    steps.iter().map(|place| place.subtask.as_deref().unwrap_or(place.phase.name())).collect()
}

#[test]
fn the_recorded_cases() {
    let cases: Value =
        serde_json::from_str(include_str!("../fixtures/hcapo/subtask_map_cases.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 18);
    let mut n_deviations = 0;
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let messages = list_from_json(&case["messages"]).unwrap();
        let found = places(&messages, &[], &progress(&case["episode"])).steps;
        let as_recorded = Value::Array(found.iter().map(shown).collect());
        match DEVIATIONS.iter().find(|deviation| deviation.0 == name) {
            None => assert_eq!(as_recorded, case["expected"], "{name}"),
            Some((_, expected, why)) => {
                let rewards = found.iter().map(|place| place.reward.unwrap());
                let found: Vec<_> = place_names(&found).into_iter().zip(rewards).collect();
                assert_eq!(found, *expected, "{name}: {why}");
                assert_ne!(as_recorded, case["expected"], "{name} deviates no more");
                n_deviations += 1;
            }
        }
    }
    assert_eq!(n_deviations, DEVIATIONS.len());
}

fn call(id: &str, name: &str, arguments: Value) -> Value {
    json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "content": text, "tool_call_id": id})
}

#[test]
fn a_long_answer_is_read_uncut() {
    let answer = json!({"feedback": "x".repeat(9000), "phase": "EXECUTING"}).to_string();
    let talk =
        json!([call("a", "submit_plan", json!({})), result("a", &answer), call("b", "bash", json!({}))]);
    let messages = list_from_json(&talk).unwrap();
    let progress = Progress { subtask_scores: vec![("S1".into(), 0.5)], ..Progress::default() };
    assert_eq!(place_names(&places(&messages, &[], &progress).steps), ["planning", "S1"]);
    assert_eq!(place_names(&places(&messages, &[1], &progress).steps), ["planning", "planning"]);
}

#[test]
fn results_may_come_in_any_order() {
    let talk = json!([
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "function": {"name": "submit_plan", "arguments": {}}},
            {"id": "b", "function": {"name": "bash", "arguments": {}}},
        ]},
        result("b", "{\"error\": 1}"),
        result("a", "{}"),
        {"role": "assistant", "content": "done"},
    ]);
    let messages = list_from_json(&talk).unwrap();
    let places = places(&messages, &[], &Progress::default());
    assert_eq!(place_names(&places.steps), ["planning", "executing"]);
    assert_eq!(places.steps[1].reward, None, "no subtask is known, so the episode's reward counts");
}

#[test]
fn a_plan_is_recovered_from_the_call_that_submitted_it() {
    let plan =
        json!({"subtasks": [{"id": "S1", "description": "d", "acceptance_criteria": "c"}, {"id": "S2"}]});
    let envelopes = [
        call("a", "submit_plan", plan.clone()),
        call("a", "mcp", json!({"tool": "openenv_submit_plan", "args": plan.to_string()})),
        call("a", "mcp", json!({"tool": "openenv_submit_plan", "args": plan})),
        call("a", "openenv_submit_plan", json!({"subtasks": plan["subtasks"].to_string()})),
    ];
    for envelope in envelopes {
        let messages = list_from_json(&json!([envelope, result("a", "{}")])).unwrap();
        let found = submitted_plan(&messages, &[]).unwrap();
        assert_eq!(found.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["S1", "S2"]);
        assert_eq!(found[0].acceptance.as_deref(), Some("c"));
        assert_eq!(submitted_plan(&messages, &[1]), None, "a refused plan is none");
    }
}

#[test]
fn completed_subtasks_are_those_the_student_left() {
    let talk = json!([
        call("a", "submit_plan", json!({})),
        result("a", "{}"),
        call("b", "advance", json!({})),
        result("b", "{\"next_subtask_id\": \"S2\"}"),
        call("c", "advance", json!({})),
        result("c", "{\"error\": \"not yet\"}"),
    ]);
    let messages = list_from_json(&talk).unwrap();
    let scores = ["S1", "S2"].map(|id| (id.to_owned(), 0.5)).to_vec();
    let progress = Progress { subtask_scores: scores, ..Progress::default() };
    assert_eq!(places(&messages, &[], &progress).completed, 1);
}
