//! Episodes of the real model in this process, where `BACKSIGHT_SMOLLM2_GGUF` names `SmolLM2-135M-Instruct.Q4_1.gguf`.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use serde_json::{Value, json};

use crate::collect::place::Place;

#[test]
fn the_embedded_model_works_on_a_task() {
    let Ok(model) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("SKIPPED: set BACKSIGHT_SMOLLM2_GGUF to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let place = Place::new();
    let model = ["--kind", "embedded", "--model", &model];
    let agent =
        ["--tasks", "fizzbuzz", "--group-size", "2", "--max-agent-turns", "2", "--max-turn-tokens", "120"];
    let forced = ["--forced-calls", "2", "--forced-text", "40", "--now", "0"];
    let arguments = [&["collect"][..], &model, &agent, &forced].concat();
    let ran = place.run(&arguments).expect(0);
    assert!(ran.stdout.contains("2 made, 0 lost, 0 left"), "{}", ran.stdout);
    let episodes = place.episodes("runs/collect");
    for (name, episode) in &episodes {
        assert_eq!(
            (&episode["tokens"], &episode["tool_text"]),
            (&json!("exact"), &json!("hermes")),
            "{name}"
        );
        assert_eq!(episode["steps"].as_array().unwrap().len(), 2);
        let calls = episode["messages"].as_array().unwrap().iter().filter(|it| it["tool_calls"].is_array());
        assert!(calls.count() >= 1, "{name}: forced calls are well formed: {episode}");
    }
    assert_ne!(episodes["fizzbuzz-0.json"]["sequences"], episodes["fizzbuzz-1.json"]["sequences"]);
    let summary = place.summary();
    assert!(summary["tokens"]["cached"].as_u64().unwrap() > 0, "later turns find their prefix: {summary}");
    check_again(&place, &arguments, &episodes);
}

/// A second run somewhere else comes to the same, and the first run again costs nothing.
fn check_again(place: &Place, arguments: &[&str], episodes: &std::collections::BTreeMap<String, Value>) {
    place.run(&[arguments, &["--run", "other", "--concurrency", "1"]].concat()).expect(0);
    assert_eq!(&place.episodes("other"), episodes);
    let again = place.run(&[arguments, &["--json"]].concat()).expect(0).json();
    assert_eq!((&again["made"]["episodes"], &again["found_in_ledger"]), (&json!(2), &json!(0)));
}
