//! The recorded datasets, byte for byte, and what ours add to them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use backsight::credit::advantage::{EpisodeCredit, Normalise, Options as AdvantageOptions, advantages};
use backsight::ship::dataset::{Dataset, MessageForm, Options, ScoredEpisode, build, scored_episode, write};
use backsight::store::episodes::{find, load};
use backsight::store::hindsight;
use backsight::wire::hindsight::{HindsightTokens, StepTokens, TOKENS_FORMAT};
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
        scored_episode(&loaded, hindsight::read(&scores).unwrap().unwrap(), form).unwrap()
    });
    with_scores.collect()
}

fn lines(dataset: &Dataset) -> String {
    dataset.rows.iter().map(|row| row.to_line() + "\n").collect()
}

#[test]
fn the_recorded_rows_are_reproduced_exactly() {
    for (kind, n_rows) in [("compat", 3), ("plan_fixed", 2)] {
        let dataset = build(&scored(kind, MessageForm::Published), &Options::default());
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
fn the_faithful_form_keeps_thinking_and_whole_results() {
    let dataset = build(&scored("plan_fixed", MessageForm::Faithful), &Options::default());
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
    let dataset = build(&episodes, &Options::default());
    let expected = json!({
        "total_episodes_loaded": 3, "episodes_in_dataset": 2, "total_steps": 19, "nonzero_steps": 19,
        "advantage_stats": {"min": 0.1012, "max": 2.2215, "mean": 1.0, "nonzero_mean": 1.0},
        "config": {"omega": 1.0, "min_reward": 0.2, "use_smoothed": true, "normalise": "global"},
        "steps_without_credit": 0,
    });
    assert_eq!(dataset.summary, expected);
    let richer = build(&episodes, &Options { min_reward: 0.6, ..Options::default() });
    assert_eq!(richer.summary["total_episodes_loaded"], 1);
    let mut failed = episodes.clone();
    failed[0].hindsight.scores.steps[1].error = Some("gone".into());
    let dataset = build(&failed, &Options::default());
    assert_eq!((dataset.rows[0].step_weights[1], &dataset.summary["steps_without_credit"]), (0.0, &json!(1)));
    failed[2].hindsight.scores.steps.pop();
    let dataset = build(&failed, &Options::default());
    assert_eq!(
        dataset.notes,
        ["episode 3 has 10 assistant messages and 9 scored steps; the rest is left out"]
    );
    assert_eq!(dataset.rows[1].step_messages.len(), 9);
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
        version: 1,
        episode_id: json!(1),
        tokens: "exact".into(),
        sequences: vec![(0..10 * episode.messages.len() as u32).collect()],
        steps: episode.hindsight.scores.steps.iter().enumerate().map(step).collect(),
    });
}

#[test]
fn tokens_are_weighed_by_their_step() {
    let mut episodes = scored("plan_fixed", MessageForm::Published);
    add_tokens(&mut episodes[0]);
    let dataset = build(&episodes, &Options::default());
    let tokens = dataset.rows[0].tokens.as_ref().unwrap();
    assert_eq!(tokens.spans[1], Some([0, 32, 38]));
    assert_eq!((tokens.weights[0][31], tokens.weights[0][32], tokens.weights[0][38]), (0.0, 0.743821, 0.0));
    assert_eq!(tokens.ids[0].len(), tokens.weights[0].len());
    let line: Value = serde_json::from_str(&dataset.rows[0].to_line()).unwrap();
    assert_eq!(line["step_spans"][1], json!([0, 32, 38]));
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
    let dataset = build(&episodes, &Options::default());
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
