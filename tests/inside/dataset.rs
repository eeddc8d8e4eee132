//! The recorded datasets, byte for byte, and what ours add to them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use backsight::credit::advantage::{AdvantageOptions, EpisodeCredit, Normalise, advantages};
use backsight::ship::actions::{Action, MessageForm};
use backsight::ship::dataset::{Dataset, LeftOut, RowOptions, ScoredEpisode, build, scored_episode, write};
use backsight::store::episodes::{find, load};
use backsight::store::hindsight;
use backsight::wire::hindsight::{HindsightTokens, StepTokens, TOKENS_FORMAT, TOKENS_VERSION};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo")
}

/// The recorded episodes with the scores of one of the recorded datasets.
fn scored(kind: &str, form: MessageForm) -> Vec<ScoredEpisode> {
    let loaded = load(find(&fixtures().join("episodes")).unwrap()).map(Result::unwrap);
    let with_scores = loaded.map(|loaded| {
        let scores = fixtures().join("dataset").join(kind).join(&loaded.episode.id);
        scored_episode(&loaded, hindsight::read(&scores, hindsight::PUBLISHED_LENS).unwrap().unwrap(), form)
            .unwrap()
            .0
    });
    with_scores.collect()
}

fn lines(dataset: &Dataset) -> String {
    dataset.rows.iter().map(|row| row.to_line() + "\n").collect()
}

#[test]
fn the_recorded_rows_are_reproduced_exactly() {
    for (kind, n_rows) in [("compat", 3), ("plan_fixed", 2)] {
        let dataset = build(scored(kind, MessageForm::Published), &RowOptions::default());
        let recorded =
            fs::read_to_string(fixtures().join("dataset").join(kind).join("hcapo_train.jsonl")).unwrap();
        assert_eq!(dataset.rows.len(), n_rows);
        assert_eq!(lines(&dataset).trim_end(), recorded.trim_end(), "{kind}");
    }
}

#[test]
fn the_recorded_advantages_are_equal_to_the_bit() {
    for kind in ["compat", "plan_fixed"] {
        let episodes = scored(kind, MessageForm::Published);
        let credit = |it: &ScoredEpisode| -> Vec<_> {
            it.hindsight.scores.steps.iter().map(|step| step.credit(true)).collect()
        };
        let reward = |it: &ScoredEpisode| it.hindsight.scores.reward.as_f64().unwrap();
        let input: Vec<_> = episodes
            .iter()
            .map(|it| EpisodeCredit { task: &it.task, reward: reward(it), q: credit(it) })
            .collect();
        let found = advantages(&input, &AdvantageOptions { omega: 1.0, normalise: Normalise::Global });
        let path = fixtures().join("dataset").join(kind).join("advantages.json");
        let recorded: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        for (idx, found) in found.iter().enumerate() {
            assert_eq!(json!(found.steps), recorded["raw"][idx], "{kind} {idx}");
            assert_eq!(json!(found.weights), recorded["normalized"][idx], "{kind} {idx}");
        }
    }
}

#[test]
fn the_full_form_keeps_thinking_and_whole_results() {
    let dataset = build(scored("plan_fixed", MessageForm::Full), &RowOptions::default());
    let row: Value = serde_json::from_str(&dataset.rows[0].to_line()).unwrap();
    assert_eq!(row["messages"][1]["reasoning_content"], "I should look at the code first.");
    assert!(row["messages"][1]["tool_calls"][0]["function"]["arguments"].is_string());
    let long =
        row["messages"].as_array().unwrap().iter().map(|it| it["content"].as_str().unwrap_or("").len()).max();
    assert!(long.unwrap() > 4100, "results are uncut");
    assert_eq!(row["step_message_indices"], json!([1, 3, 5, 7, 9, 11, 13, 16, 18]));
}

#[test]
fn episodes_without_weight_or_reward_are_left_out_and_counted() {
    let episodes = scored("plan_fixed", MessageForm::Published);
    let dataset = build(episodes.clone(), &RowOptions::default());
    let expected = json!({
        "total_episodes_loaded": 3, "episodes_in_dataset": 2, "total_steps": 19, "nonzero_steps": 19,
        "advantage_stats": {"min": 0.1012, "max": 2.2215, "mean": 1.0, "nonzero_mean": 1.0},
        "config": {"omega": 1.0, "min_reward": 0.2, "use_smoothed": true, "normalise": "global"},
        "steps_without_credit": 0, "episodes_below_min_reward": 0, "episodes_without_weight": 1,
    });
    assert_eq!(dataset.summary, expected);
    let richer = build(episodes.clone(), &RowOptions { min_reward: 0.6, ..RowOptions::default() });
    assert_eq!(richer.summary["total_episodes_loaded"], 1);
    assert_eq!(richer.summary["episodes_below_min_reward"], 2);
    let left_out = |why| vec![("episode_001".to_owned(), why), ("episode_002".to_owned(), why)];
    assert_eq!(richer.left_out, left_out(LeftOut::BelowMinReward));
}

#[test]
fn a_step_without_credit_weighs_nothing_and_enters_no_mean() {
    let mut episodes = scored("plan_fixed", MessageForm::Published);
    episodes[0].hindsight.scores.steps[1].error = Some("gone".into());
    let with = build(episodes.clone(), &RowOptions::default());
    assert_eq!((with.rows[0].step_weights[1], with.rows[0].weights()[1]), (None, 0.0));
    assert_eq!(
        (&with.summary["steps_without_credit"], &with.summary["total_steps"]),
        (&json!(1), &json!(19))
    );
    // The same without that step: every mean is the same, and so is every other weight.
    episodes[0].hindsight.scores.steps.remove(1);
    let mut actions = episodes[0].actions.clone();
    actions.remove(1);
    let renumbered = |(step, action): (usize, &Action)| Action { step: Some(step), ..*action };
    episodes[0].actions = actions.iter().enumerate().map(renumbered).collect();
    let without = build(episodes, &RowOptions::default());
    assert_eq!(with.summary["advantage_stats"], without.summary["advantage_stats"]);
    let mut weights = with.rows[0].weights();
    weights.remove(1);
    assert_eq!((weights, with.rows[1].weights()), (without.rows[0].weights(), without.rows[1].weights()));
}

/// Gives an episode made-up tokens: ten for each message, the action in the middle of its own.
fn add_tokens(episode: &mut ScoredEpisode) {
    let step = |(step_index, step): (usize, &backsight::wire::hindsight::ScoredStep)| StepTokens {
        step_index,
        sequence: Some(0),
        span: Some([10 * step.message_index + 2, 10 * step.message_index + 8]),
        ..StepTokens::default()
    };
    episode.hindsight.tokens = Some(HindsightTokens {
        format: TOKENS_FORMAT.into(),
        version: TOKENS_VERSION,
        episode_id: json!(1),
        tokens: "exact".into(),
        lenses: Vec::new(),
        sequences: vec![(0..10 * episode.messages.len() as u32).collect()],
        shared: Vec::new(),
        steps: episode.hindsight.scores.steps.iter().enumerate().map(step).collect(),
    });
}

#[test]
fn tokens_are_weighed_by_their_step() {
    let mut episodes = scored("plan_fixed", MessageForm::Published);
    add_tokens(&mut episodes[0]);
    let dataset = build(episodes.clone(), &RowOptions::default());
    let tokens = dataset.rows[0].tokens.as_ref().unwrap();
    let weights = tokens.weights(&dataset.rows[0].step_weights);
    assert_eq!(tokens.spans[1], Some([0, 32, 38]));
    assert_eq!((weights[0][31], weights[0][32], weights[0][38]), (0.0, 0.743821, 0.0));
    assert_eq!(tokens.ids[0].len(), weights[0].len());
    let line: Value = serde_json::from_str(&dataset.rows[0].to_line()).unwrap();
    assert_eq!(line["step_spans"][1], json!([0, 32, 38]));
}

/// An episode whose second turn was aborted: the published loader keeps the turn, ours does not.
fn with_an_aborted_turn(directory: &Path) {
    let entry = |id: &str, parent: Option<&str>, message: Value| {
        json!({"type": "message", "id": id, "parentId": parent, "message": message}).to_string()
    };
    let says = |text: &str, stop: &str| json!({"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": stop});
    let asks = |text: &str| json!({"role": "user", "content": [{"type": "text", "text": text}]});
    let session = [
        json!({"type": "session", "version": 3, "id": "s"}).to_string(),
        entry("a", None, asks("go")),
        entry("b", Some("a"), says("one", "stop")),
        entry("c", Some("b"), asks("on")),
        entry("d", Some("c"), says("hm", "aborted")),
        entry("e", Some("d"), says("two", "stop")),
    ];
    fs::write(directory.join("pi_session.jsonl"), session.join("\n")).unwrap();
    fs::write(directory.join("result.json"), r#"{"episode_id": 7, "episode_reward": 1.0}"#).unwrap();
}

fn scores_at(messages: &[usize]) -> hindsight::Hindsight {
    let step = |(idx, message): (usize, &usize)| {
        json!({"mean_logprob": -0.5, "step_index": idx, "message_index": message, "subtask_id": null,
               "subtask_reward": 1.0, "phase": "planning", "pi_hind": 0.9, "rho": 1.0, "q_h": idx, "q_h_smoothed": idx})
    };
    let scores = json!({
        "episode_id": 7, "reward": 1.0, "frozen_scores": {}, "dense_rewards_used": true, "num_steps": messages.len(),
        "num_subtasks_covered": 1, "subtask_reward_range": [1.0, 1.0],
        "steps": messages.iter().enumerate().map(step).collect::<Vec<_>>(), "pi_hind_mean": 0.9,
        "hyperparams": {"t_temp": 5.0, "gamma": 0.95, "c_min": 0.8, "c_max": 1.2, "alpha": 0.5, "smooth": true,
                        "dense_rewards": true, "max_logprob_tokens": 2048},
    });
    let scores = backsight::wire::hindsight::HindsightScores::parse(&scores.to_string()).unwrap();
    hindsight::Hindsight { scores, tokens: None }
}

#[test]
fn a_weight_stands_at_its_own_message_whichever_loader_counted() {
    let directory = tempfile::tempdir().unwrap();
    with_an_aborted_turn(directory.path());
    let loaded = backsight::store::episodes::load_directory(directory.path()).unwrap();
    let actions = |messages: &[usize], form| {
        let (found, notes) = scored_episode(&loaded, scores_at(messages), form).unwrap();
        let said =
            |it: &Action| (found.messages[it.message]["content"].as_str().unwrap().to_owned(), it.step);
        (found.actions.iter().map(said).collect::<Vec<_>>(), notes.len())
    };
    let told = |all: &[(&str, Option<usize>)]| -> Vec<(String, Option<usize>)> {
        all.iter().map(|(text, step)| ((*text).to_owned(), *step)).collect()
    };
    let both = told(&[("one", Some(0)), ("two", Some(1))]);
    let with_aborted = told(&[("one", Some(0)), ("hm", None), ("two", Some(1))]);
    let (full, published) = (MessageForm::Full, MessageForm::Published);
    assert_eq!(actions(&[1, 3], full), (both, 0));
    assert_eq!(actions(&[1, 3], published), (with_aborted, 1));
    assert_eq!(actions(&[1, 3, 4], full), (told(&[("one", Some(0)), ("two", Some(2))]), 1));
    let all = told(&[("one", Some(0)), ("hm", Some(1)), ("two", Some(2))]);
    assert_eq!(actions(&[1, 3, 4], published), (all, 0));
    assert_eq!(actions(&[1], full), (told(&[("one", Some(0)), ("two", None)]), 1));
    let misfit = scored_episode(&loaded, scores_at(&[1, 2]), full).unwrap_err().to_string();
    assert!(
        misfit.contains("the 2 scored steps are not the 2 assistant messages of the episode"),
        "{misfit}"
    );
}

fn row_value(row: &Row) -> Value {
    row.get_column_iter().map(|(name, field)| (name.clone(), field_value(field))).collect()
}

fn field_value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Int(value) => json!(value),
        Field::Long(value) => json!(value),
        Field::Double(value) => json!(value),
        Field::Str(value) => json!(value),
        Field::ListInternal(list) => list.elements().iter().map(field_value).collect(),
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn the_files_say_the_same() {
    let mut episodes = scored("plan_fixed", MessageForm::Published);
    add_tokens(&mut episodes[0]);
    episodes[0].hindsight.tokens.as_mut().unwrap().steps[2].span = None;
    let dataset = build(episodes.clone(), &RowOptions::default());
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("datasets");
    write(&out, &dataset).unwrap();
    let lines = fs::read_to_string(out.join("hcapo_train.jsonl")).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let reader = SerializedFileReader::new(fs::File::open(out.join("hcapo_train.parquet")).unwrap()).unwrap();
    let columns: Vec<Value> =
        reader.get_row_iter(None).unwrap().map(|row| row_value(&row.unwrap())).collect();
    assert_eq!(columns.len(), rows.len());
    for (line, column) in rows.iter().zip(&columns) {
        let messages: Value = serde_json::from_str(column["messages"].as_str().unwrap()).unwrap();
        assert_eq!(messages, line["messages"]);
        assert_eq!(column["_episode_id"], line["_episode_id"].to_string());
        for key in ["step_advantages", "step_message_indices", "_reward", "_grpo_advantage", "_num_steps"] {
            assert_eq!(column[key], line[key], "{key}");
        }
        for key in ["token_ids", "token_weights"] {
            assert_eq!(column[key], *line.get(key).unwrap_or(&Value::Null), "{key}");
        }
    }
    assert_eq!(
        (&columns[0]["step_spans"][1], &columns[0]["step_spans"][2]),
        (&json!([0, 32, 38]), &json!([]))
    );
    let summary: Value =
        serde_json::from_str(&fs::read_to_string(out.join("hcapo_summary.json")).unwrap()).unwrap();
    assert_eq!(summary, dataset.summary);
}
