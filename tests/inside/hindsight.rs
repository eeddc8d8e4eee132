//! Score files: published ones are read and written byte for byte, and credit is computed again from them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;

use backsight::credit::hcapo::{Params, Ratio, Smoothing};
use backsight::episode::TokenSource;
use backsight::lens::Window;
use backsight::store::episodes::load_directory;
use backsight::store::hindsight::{
    Hindsight, Measured, MeasuredStep, PUBLISHED_LENS, Settings, assemble, credited, read, recompute, write,
};
use backsight::subtasks::places;
use backsight::tokens::{Logprob, TokenSpan};
use backsight::wire::hindsight::{
    HindsightScores, HindsightTokens, Provenance, ScoredStep, StepTokens, TOKENS_FORMAT, TOKENS_VERSION,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn recorded() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/dataset");
    let names = ["compat", "plan_fixed"]
        .into_iter()
        .flat_map(|kind| (1..=3).map(move |idx| format!("{kind}/episode_{idx:03}")));
    names
        .map(|name| {
            (name.clone(), fs::read_to_string(root.join(name).join("hindsight_scores.json")).unwrap())
        })
        .collect()
}

fn published(text: &str) -> Hindsight {
    Hindsight { scores: HindsightScores::parse(text).unwrap(), tokens: None }
}

#[test]
fn recorded_files_are_written_as_they_were_read() {
    assert_eq!(recorded().len(), 6);
    for (name, text) in recorded() {
        assert_eq!(HindsightScores::parse(&text).unwrap().to_text().unwrap(), text, "{name}");
    }
}

#[test]
fn recorded_credit_is_recomputed_to_the_bit() {
    for (name, text) in recorded() {
        let old = published(&text);
        let mut new = recompute(&old, &Settings::recorded(&old.scores.hyperparams)).unwrap();
        assert_eq!(new.partial.take(), Some(false), "{name}");
        assert_eq!(new.hyperparams.params(), old.scores.hyperparams.params());
        new.hyperparams = old.scores.hyperparams.clone();
        assert_eq!(new.to_text().unwrap(), text, "{name}");
    }
}

#[test]
fn another_hyper_parameter_needs_no_server() {
    let old = published(&recorded()[0].1);
    let recorded = Settings::recorded(&old.scores.hyperparams);
    let params = Params { t_temp: 1.0, smoothing: Smoothing::None, dense_rewards: false, ..recorded.params };
    let new = recompute(&old, &Settings { params, ..recorded }).unwrap();
    let first = &new.steps[0];
    assert_eq!(first.pi_hind, Some(first.mean_logprob.unwrap().exp()));
    assert_eq!(first.q_h, first.q_h_smoothed);
    assert_eq!((new.dense_rewards_used, new.hyperparams.smooth), (Some(false), false));
    assert_eq!(new.hyperparams.params(), params);
    let shorter = recompute(&old, &Settings { max_logprob_tokens: 7, ..recorded }).unwrap_err();
    assert!(
        shorter
            .to_string()
            .starts_with("the tokens' logprobs are not recorded, so max_logprob_tokens must stay 2048")
    );
    let params = Params { ratio: Ratio::Lift, ..recorded.params };
    let lift = recompute(&old, &Settings { params, ..recorded }).unwrap_err();
    assert!(lift.to_string().starts_with("no step has a score under the plain lens"));
}

/// A recorded file without what follows from the measured values.
fn bare(text: &str) -> Value {
    let mut json: Value = serde_json::from_str(text).unwrap();
    json.as_object_mut().unwrap().retain(|key, _| ["reward", "steps"].contains(&key.as_str()));
    let measured = ["mean_logprob", "step_index", "message_index", "subtask_id", "subtask_reward", "phase"];
    for step in json["steps"].as_array_mut().unwrap() {
        step.as_object_mut().unwrap().retain(|key, _| measured.contains(&key.as_str()));
    }
    json
}

#[test]
fn credit_follows_from_what_was_measured_alone() {
    for (name, text) in recorded() {
        let whole = published(&text);
        let bare = published(&bare(&text).to_string());
        let new = recompute(&bare, &Settings::recorded(&bare.scores.hyperparams)).unwrap();
        let credit = |scores: &HindsightScores| {
            let steps = scores.steps.iter().map(|it| [it.pi_hind, it.rho, it.q_h, it.q_h_smoothed]);
            (steps.collect::<Vec<_>>(), scores.pi_hind_mean.clone(), scores.num_steps)
        };
        assert_eq!(credit(&new), credit(&whole.scores), "{name}");
        assert_eq!(
            (&new.num_subtasks_covered, &new.subtask_reward_range),
            (&whole.scores.num_subtasks_covered, &whole.scores.subtask_reward_range),
            "{name}"
        );
        assert_eq!(new.hyperparams.max_logprob_tokens, None, "over which tokens the means are, nobody said");
        assert_eq!(credited(bare).unwrap().scores, new, "{name}");
        assert_eq!(credited(whole.clone()).unwrap(), whole, "{name}");
    }
}

#[test]
fn what_was_measured_is_missed_by_its_name() {
    let recorded = &recorded()[0].1;
    let without = |change: &dyn Fn(&mut Value)| {
        let mut json = bare(recorded);
        change(&mut json);
        match HindsightScores::parse(&json.to_string()) {
            Err(fault) => fault.to_string(),
            Ok(scores) => credited(Hindsight { scores, tokens: None }).unwrap_err().to_string(),
        }
    };
    let remove = |json: &mut Value, key: &str| drop(json.as_object_mut().unwrap().remove(key).unwrap());
    assert_eq!(without(&|json| remove(json, "reward")), "line 1: missing field `reward`");
    assert_eq!(without(&|json| remove(json, "steps")), "line 1: missing field `steps`");
    let index = without(&|json| remove(&mut json["steps"][2], "message_index"));
    assert_eq!(index, "line 1: missing field `message_index`");
    let mean = without(&|json| remove(&mut json["steps"][2], "mean_logprob"));
    assert!(mean.starts_with("step 2 has no `mean_logprob` and no `error`, and no logprobs"), "{mean}");
    let old = published(&bare(recorded).to_string());
    let tail = Settings { max_logprob_tokens: 7, ..Settings::recorded(&old.scores.hyperparams) };
    let error = recompute(&old, &tail).unwrap_err().to_string();
    assert!(error.contains("so max_logprob_tokens must stay what it was; help: "), "{error}");
}

#[test]
fn a_published_failure_is_not_certainty() {
    let mut json: Value = serde_json::from_str(&recorded()[0].1).unwrap();
    json["steps"][2]["error"] = "".into();
    json["steps"][2]["mean_logprob"] = 0.0.into();
    json["steps"][4]["skipped"] = "empty_action".into();
    let old = published(&json.to_string());
    assert!(!old.scores.is_complete());
    let new = recompute(&old, &Settings::recorded(&old.scores.hyperparams)).unwrap();
    assert_eq!(new.partial, Some(true));
    let written: Value = serde_json::from_str(&new.to_text().unwrap()).unwrap();
    for idx in [2, 4] {
        let step = written["steps"][idx].as_object().unwrap();
        assert_eq!(step["error"], "the action has no score");
        for key in ["mean_logprob", "pi_hind", "rho", "q_h", "q_h_smoothed"] {
            assert!(!step.contains_key(key), "step {idx} has {key}");
        }
    }
    assert!(written["steps"][3].get("error").is_none());
}

/// An episode of three steps of four tokens, the last one unscored.
fn ours(logprobs: Vec<Option<f64>>) -> Hindsight {
    let scores = json!({
        "episode_id": 1, "reward": 1, "frozen_scores": {}, "dense_rewards_used": false, "num_steps": 0,
        "num_subtasks_covered": 0, "subtask_reward_range": [0, 0], "partial": true, "steps": [],
        "hyperparams": {"t_temp": 5.0, "gamma": 0.95, "c_min": 0.8, "c_max": 1.2, "alpha": 0.5, "smooth": true, "dense_rewards": true, "max_logprob_tokens": 0},
    });
    let mut scores = HindsightScores::parse(&scores.to_string()).unwrap();
    let step = |step_index: usize| ScoredStep {
        step_index,
        message_index: 2 * step_index + 1,
        phase: Some("planning".into()),
        logprob_start_len: Some(10),
        skipped_action_tokens: Some(0),
        error: (step_index == 2).then(|| "the server is gone".to_owned()),
        ..ScoredStep::default()
    };
    scores.steps = (0..3).map(step).collect();
    let step = |step_index: usize, numbers: Option<Vec<Option<f64>>>| {
        let of = |it: &Option<f64>| it.map(|it| Logprob::new(it).unwrap());
        let logprobs = numbers.map(|it| it.iter().map(of).collect::<Vec<_>>());
        StepTokens {
            step_index,
            sequence: Some(0),
            span: Some([4 * step_index, 4 * step_index + 4]),
            logprobs: vec![logprobs.clone(), logprobs.filter(|_| step_index == 0)],
        }
    };
    let tokens = HindsightTokens {
        format: TOKENS_FORMAT.into(),
        version: TOKENS_VERSION,
        episode_id: json!(1),
        tokens: "rendered".into(),
        lenses: vec!["outcome-first".into(), "plain".into()],
        sequences: vec![(0..12).collect()],
        shared: Vec::new(),
        steps: vec![
            step(0, Some(vec![Some(-1.0), Some(-2.0), Some(-3.0), Some(-4.0)])),
            step(1, Some(logprobs)),
            step(2, None),
        ],
    };
    Hindsight { scores, tokens: Some(tokens) }
}

#[test]
fn sequences_are_written_without_what_they_share() {
    let mut tokens = ours(vec![Some(-1.0); 4]).tokens.unwrap();
    (tokens.sequences, tokens.shared) = (vec![(0..12).collect(), vec![20, 21]], vec![0, 3]);
    let read = HindsightTokens::parse(&tokens.to_text().unwrap()).unwrap();
    assert_eq!((&read, read.whole_sequences()), (&tokens, vec![(0..12).collect(), vec![0, 1, 2, 20, 21]]));
    tokens.shared[1] = 13;
    assert!(HindsightTokens::parse(&tokens.to_text().unwrap()).is_err());
}

fn settings(max_logprob_tokens: usize) -> Settings {
    Settings { params: Params::default(), max_logprob_tokens }
}

#[test]
fn the_sidecar_says_which_tokens_count() {
    let full = vec![Some(-0.5); 4];
    let whole = recompute(&ours(full.clone()), &settings(0)).unwrap();
    let means: Vec<_> = whole.steps.iter().map(|step| step.mean_logprob).collect();
    assert_eq!(means, [Some(-2.5), Some(-0.5), None]);
    assert_eq!(whole.steps[2].error.as_deref(), Some("the server is gone"));
    let tail = recompute(&ours(full.clone()), &settings(1)).unwrap();
    let first = &tail.steps[0];
    assert_eq!(
        (first.mean_logprob, first.action_token_count, first.skipped_action_tokens),
        (Some(-4.0), Some(1), Some(3))
    );
    assert_eq!((first.total_action_tokens, first.logprob_start_len), (Some(4), Some(13)));
    let error = recompute(&ours(full[1..].to_vec()), &settings(0)).unwrap_err().to_string();
    assert!(
        error.starts_with("step 1: 4 of its tokens are asked for and the last 3 were scored; help: "),
        "{error}"
    );
    let hole = recompute(&ours(vec![Some(-0.5), None, Some(-0.5), Some(-0.5)]), &settings(0)).unwrap();
    assert_eq!(hole.steps[1].error.as_deref(), Some("a token of the action has no logprob"));
    assert_eq!((hole.steps[1].mean_logprob, hole.partial), (None, Some(true)));
}

#[test]
fn a_step_without_a_plain_score_loses_credit_but_not_its_score() {
    let lift = Settings { params: Params { ratio: Ratio::Lift, ..Params::default() }, max_logprob_tokens: 0 };
    let old = ours(vec![Some(-0.5); 4]);
    let lifted = recompute(&old, &lift).unwrap();
    assert_eq!(lifted.steps[0].rho, Some(1.0));
    let second = &lifted.steps[1];
    assert_eq!((second.mean_logprob, second.rho), (Some(-0.5), None));
    assert_eq!(second.error.as_deref(), Some("the action has no score under the plain lens"));
    let back = recompute(&Hindsight { scores: lifted, tokens: None }, &settings(0)).unwrap();
    assert_eq!(back.steps[1].q_h, recompute(&old, &settings(0)).unwrap().steps[1].q_h);
}

#[test]
fn files_are_written_and_read_back() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(read(directory.path(), PUBLISHED_LENS).unwrap(), None);
    let mut hindsight = ours(vec![Some(-0.5); 4]);
    hindsight.scores = recompute(&hindsight, &settings(0)).unwrap();
    write(directory.path(), PUBLISHED_LENS, &hindsight).unwrap();
    let mut found = read(directory.path(), PUBLISHED_LENS).unwrap().unwrap();
    let named = found.scores.provenance.take().and_then(|it| it.sidecar_sha256);
    assert_eq!((found, named.map(|it| it.len())), (hindsight, Some(64)));
    let path = directory.path().join("hindsight_scores.json");
    let check = |content: &str, expected: &str| {
        fs::write(&path, content).unwrap();
        let error = read(directory.path(), PUBLISHED_LENS).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    };
    check("{\n\"a\": NaN}", "hindsight_scores.json line 2: not JSON: expected value");
    check("{}", "hindsight_scores.json line 1: missing field `reward`");
    let tokens = fs::read_to_string(directory.path().join("hindsight_tokens.json")).unwrap();
    let error = HindsightTokens::parse(&tokens.replace("[8,12]", "[8,13]")).unwrap_err();
    assert!(
        error.why.ends_with("the span of step 2 does not fit its sequence or its logprobs"),
        "{}",
        error.why
    );
}

/// Whoever is killed between the two files leaves new tokens beside old scores.
#[test]
fn tokens_count_only_beside_the_scores_that_were_made_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let [old, new] = [-0.5, -0.75].map(|logprob| {
        let mut hindsight = ours(vec![Some(logprob); 4]);
        hindsight.scores = recompute(&hindsight, &settings(0)).unwrap();
        hindsight
    });
    write(directory.path(), PUBLISHED_LENS, &old).unwrap();
    let (scores, tokens) =
        ["hindsight_scores.json", "hindsight_tokens.json"].map(|it| fs::read(at(it)).unwrap()).into();
    write(directory.path(), PUBLISHED_LENS, &new).unwrap();
    fs::write(at(".hindsight_scores.json.17.tmp"), "half").unwrap();
    fs::write(at("hindsight_scores.json"), scores).unwrap();
    let found = read(directory.path(), PUBLISHED_LENS).unwrap().unwrap();
    assert_eq!((found.scores.steps, found.tokens), (old.scores.steps.clone(), None));
    fs::write(at("hindsight_tokens.json"), tokens).unwrap();
    assert_eq!(read(directory.path(), PUBLISHED_LENS).unwrap().unwrap().tokens, old.tokens);
    // Nor beside published scores, which name none.
    fs::write(at("hindsight_scores.json"), &recorded()[0].1).unwrap();
    assert_eq!(read(directory.path(), PUBLISHED_LENS).unwrap().unwrap().tokens, None);
    write(directory.path(), PUBLISHED_LENS, &new).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing that was left is left");
}

#[test]
fn what_was_scored_is_kept_although_lift_lacks_its_plain_scores() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/episodes/episode_001");
    let loaded = load_directory(&path).unwrap();
    let places = places(&loaded.episode.messages, &loaded.episode.failed_results, &loaded.episode.progress);
    let step = |idx: usize| MeasuredStep {
        place: Some((0, TokenSpan::at(10 * idx, 3))),
        n_context: 100,
        views: vec![Some(Ok(vec![Logprob::new(-0.5).ok(); 3])), Some(Err("the server is gone".into()))],
        window: Window::default(),
    };
    let measured = Measured {
        lenses: vec!["outcome-first".into(), "plain".into()],
        sequences: vec![(0, (0..100).collect())],
        token_source: TokenSource::Rendered,
        steps: (0..9).map(step).collect(),
        provenance: Provenance::default(),
    };
    let lift = Settings { params: Params { ratio: Ratio::Lift, ..Params::default() }, max_logprob_tokens: 0 };
    let made = assemble(&loaded, &places.steps, measured, &lift).unwrap();
    assert_eq!(made.scores.partial, Some(true));
    for step in &made.scores.steps {
        assert_eq!((step.mean_logprob, step.q_h), (Some(-0.5), None));
        assert!(step.error.as_ref().unwrap().ends_with("the server is gone"), "{step:?}");
    }
    assert!(recompute(&made, &lift).unwrap_err().to_string().contains("without --recompute"));
    let mean = Settings { params: Params::default(), ..lift };
    let again = recompute(&made, &mean).unwrap();
    assert!(again.steps.iter().all(|step| step.error.is_none() && step.q_h.is_some()));
}

#[test]
fn a_newly_scored_episode_has_the_published_keys_in_their_order() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo/episodes/episode_001");
    let loaded = load_directory(&path).unwrap();
    let places = places(&loaded.episode.messages, &loaded.episode.failed_results, &loaded.episode.progress);
    let step = |idx: usize| MeasuredStep {
        place: Some((0, TokenSpan::at(10 * idx, 3))),
        n_context: 100 + 10 * idx,
        views: vec![Some(match idx {
            4 => Err("the server is gone".into()),
            _ => Ok(vec![Logprob::new(-0.5).ok(); 3]),
        })],
        window: if idx == 8 { Window { dropped: 1..5, n_dropped_tokens: 40 } } else { Window::default() },
    };
    let provenance =
        Provenance { backsight: "0.1.0".into(), placement: Some("first".into()), ..Provenance::default() };
    let measured = Measured {
        lenses: vec!["outcome-first".into(), "plain".into()],
        sequences: vec![(0, (0..100).collect())],
        token_source: TokenSource::Rendered,
        steps: (0..9).map(step).collect(),
        provenance,
    };
    let made = assemble(&loaded, &places.steps, measured, &settings(2)).unwrap();
    let json: Value = serde_json::from_str(&made.scores.to_text().unwrap()).unwrap();
    let published: Value = serde_json::from_str(&recorded()[3].1).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json)[..10], keys(&published), "and ours follow");
    assert_eq!(keys(&json["steps"][0]), keys(&published["steps"][0]));
    for key in
        ["episode_id", "reward", "frozen_scores", "num_steps", "num_subtasks_covered", "subtask_reward_range"]
    {
        assert_eq!(json[key], published[key], "{key}");
    }
    let place = |value: &Value| {
        ["subtask_id", "subtask_reward", "phase", "message_index"].map(|key| value[key].clone())
    };
    for idx in 0..9 {
        assert_eq!(place(&json["steps"][idx]), place(&published["steps"][idx]), "step {idx}");
    }
    let first = &made.scores.steps[0];
    assert_eq!(
        (first.logprob_start_len, first.action_token_count, first.skipped_action_tokens),
        (Some(100), Some(2), Some(1))
    );
    assert_eq!(
        (json["partial"].clone(), json["steps"][4]["error"].clone()),
        (json!(true), json!("the server is gone"))
    );
    assert_eq!(
        (&json["steps"][8]["dropped_messages"], &json["steps"][8]["dropped_tokens"]),
        (&json!([1, 5]), &json!(40))
    );
    assert_eq!(json["provenance"], json!({"backsight": "0.1.0", "placement": "first"}));
    let tokens = made.tokens.unwrap();
    assert_eq!(HindsightTokens::parse(&tokens.to_text().unwrap()), Ok(tokens));
}

proptest! {
    #[test]
    fn recomputing_forth_and_back_changes_nothing(t_temp in 0.1..9.0, gamma in 0.0..1.0, dense in any::<bool>()) {
        for (_, text) in recorded() {
            let old = published(&text);
            let there = Settings::recorded(&old.scores.hyperparams);
            let first = recompute(&old, &there).unwrap();
            let params = Params { t_temp, gamma, dense_rewards: dense, ..there.params };
            let other = recompute(&published(&first.to_text().unwrap()), &Settings { params, ..there }).unwrap();
            let back = recompute(&published(&other.to_text().unwrap()), &there).unwrap();
            prop_assert_eq!(back.to_text().unwrap(), first.to_text().unwrap());
        }
    }
}
