//! The reward's levels against the recorded vectors of the published environment.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::agent::reward::{RewardWeights, efficiency, reward, tool_usage};
use serde_json::Value;

/// Correctness as published: by the exit status and the words of a test run.
fn published_correctness(exit_code: i32, output: &str) -> f64 {
    let output = output.to_lowercase();
    match exit_code {
        0 if output.contains("passed") => 1.0,
        0 => 0.8,
        _ if output.contains("assert") && output.contains("error") => 0.2,
        _ => 0.1,
    }
}

#[test]
fn all_recorded_rewards_are_reproduced() {
    let recorded: Value = serde_json::from_str(include_str!("../fixtures/opd/pure_functions.json")).unwrap();
    let vectors = recorded["reward"].as_array().unwrap();
    assert_eq!(vectors.len(), 280);
    for vector in vectors {
        let number = |key: &str| vector[key].as_f64().unwrap();
        let count = |key: &str| vector[key].as_u64().unwrap() as usize;
        let terminal = &vector["terminal"];
        // A run that did not even give a status counts as failed.
        let exit_code = terminal["exit_code"].as_i64().unwrap_or(1) as i32;
        let correctness = published_correctness(exit_code, terminal["output"].as_str().unwrap_or(""));
        let tools = vector["tools"].as_array().unwrap().iter().filter_map(Value::as_str);
        let (efficiency, tool_usage) = (efficiency(count("turns"), count("max_turns")), tool_usage(tools));
        let levels = (correctness, efficiency, tool_usage);
        assert_eq!(levels, (number("correctness"), number("efficiency"), number("tool_usage")), "{vector}");
        let outcome = reward(Some(levels.0), levels.1, levels.2, &RewardWeights::default());
        assert_eq!(outcome.reward, number("reward"), "{vector}");
        assert_eq!(
            outcome.components.iter().map(|it| it.1).collect::<Vec<_>>(),
            [levels.0, levels.1, levels.2]
        );
    }
}
