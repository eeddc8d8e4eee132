//! The recorded credit of the published scorer, bit for bit.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight_core::credit::hcapo::{NoCredit, Params, Smoothing, StepCredit, StepScore, credit};
use serde_json::Value;

fn params(json: &Value) -> Params {
    let default = Params::default();
    let number = |key: &str, default| json.get(key).map_or(default, |it| it.as_f64().unwrap());
    let flag = |key: &str| json.get(key).is_none_or(|it| it.as_bool().unwrap());
    Params {
        t_temp: number("t_temp", default.t_temp),
        gamma: number("gamma", default.gamma),
        alpha: number("alpha", default.alpha),
        smoothing: if flag("smooth") { Smoothing::Recursive } else { Smoothing::None },
        dense_rewards: flag("use_dense_rewards"),
        ..default
    }
}

fn step(json: &Value) -> StepScore<'_> {
    let group = json["subtask_id"].as_str().or(json["phase"].as_str()).unwrap_or("planning");
    StepScore {
        lens: json["mean_logprob"].as_f64(),
        plain: None,
        group,
        reward: json["subtask_reward"].as_f64(),
    }
}

fn bits(value: Option<f64>) -> Option<u64> {
    value.map(f64::to_bits)
}

fn check_step(found: StepCredit, expected: &Value, what: &str) {
    let keys = ["pi_hind", "rho", "q_h", "q_h_smoothed"];
    let values = [found.pi_hind, found.rho, found.q_h, found.q_h_smoothed];
    for (key, value) in keys.into_iter().zip(values) {
        assert_eq!(bits(Some(value)), bits(expected[key].as_f64()), "{what} {key}");
    }
}

#[test]
fn the_recorded_cases() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../../tests/fixtures/hcapo/qh_cases.json")).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 21);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let steps: Vec<_> = case["steps"].as_array().unwrap().iter().map(step).collect();
        let found = credit(&steps, case["episode_reward"].as_f64().unwrap(), &params(&case["params"]));
        if name == "missing_keys" {
            check_missing_keys(&found.steps, found.pi_mean);
            continue;
        }
        assert_eq!(bits(found.pi_mean), bits(case["pi_mean"].as_f64()), "{name}");
        let expected = case["expected"].as_array().unwrap();
        assert_eq!(found.steps.len(), expected.len(), "{name}");
        for (t, (found, expected)) in found.steps.iter().zip(expected).enumerate() {
            check_step(found.unwrap(), expected, &format!("{name} step {t}"));
        }
    }
}

/// Deviation: the published scorer takes a missing logprob for 0.0, which is certainty. Here that step has no
/// credit, and the other one is its own mean.
fn check_missing_keys(steps: &[Result<StepCredit, NoCredit>], pi_mean: Option<f64>) {
    let pi_hind = (-1.0_f64 / 5.0).exp();
    assert_eq!(pi_mean, Some(pi_hind));
    let second = StepCredit { pi_hind, rho: 1.0, q_h: 0.5, q_h_smoothed: 0.5 };
    assert_eq!(steps, [Err(NoCredit::NoScore), Ok(second)]);
}
