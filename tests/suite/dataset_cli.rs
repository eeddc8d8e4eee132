//! `backsight dataset` as a user runs it.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo")
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// A directory with `trajectories`: the recorded episodes with the scores of a recorded dataset beside them.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(kind: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["episode_001", "episode_002", "episode_003"] {
            let own = place.path("trajectories").join(name);
            fs::create_dir_all(&own).unwrap();
            for file in ["result.json", "pi_session.jsonl"] {
                fs::copy(fixtures().join("episodes").join(name).join(file), own.join(file)).unwrap();
            }
            let scores = fixtures().join("dataset").join(kind).join(name).join("hindsight_scores.json");
            fs::copy(scores, own.join("hindsight_scores.json")).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn episode(&self, name: &str, file: &str) -> PathBuf {
        self.path("trajectories").join(name).join(file)
    }

    fn edit(&self, name: &str, change: impl Fn(&mut Value)) {
        let path = self.episode(name, "hindsight_scores.json");
        let mut scores: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut scores);
        fs::write(path, scores.to_string()).unwrap();
    }

    /// Runs the command in the directory, so that the default paths are used.
    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        let output = command.arg("dataset").args(arguments).current_dir(self.dir.path()).output().unwrap();
        // What to try next is looked at with the other commands.
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            text.split_inclusive('\n').filter(|line| !line.starts_with("next: ")).collect::<String>()
        };
        Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("datasets").join(name)).unwrap()
    }

    fn rows(&self) -> Vec<Value> {
        self.read("hcapo_train.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Compares everything that is said, with the exit code in the last line.
fn check(ran: &Ran, expected: Expect) {
    expected.assert_eq(&format!("{}{}exit code {}\n", ran.stdout, ran.stderr, ran.code));
}

#[test]
fn the_recorded_datasets_are_reproduced_byte_for_byte() {
    for kind in ["compat", "plan_fixed"] {
        let place = Place::new(kind);
        let ran = place.run(&["--message-form", "published"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{kind}");
        let recorded = fixtures().join("dataset").join(kind).join("hcapo_train.jsonl");
        assert_eq!(place.read("hcapo_train.jsonl"), fs::read_to_string(recorded).unwrap(), "{kind}");
    }
}

#[test]
fn the_account_says_what_was_made_and_left_out() {
    let place = Place::new("plan_fixed");
    check(
        &place.run(&[]),
        expect![[r#"
            episodes                3
              in the dataset        2  0 with weights for each token
              left out              1  no step of it is better than the average
            steps                  19
              with weight          19  mean 1
            made datasets/hcapo_train.jsonl
            made datasets/hcapo_train.parquet
            made datasets/hcapo_summary.json
            exit code 0
        "#]],
    );
    let summary: Value = serde_json::from_str(&place.read("hcapo_summary.json")).unwrap();
    assert_eq!(summary["episodes_without_weight"], 1);
    let files: Vec<_> =
        fs::read_dir(place.path("datasets")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(files.len(), 3, "nothing else is left there: {files:?}");
}

#[test]
fn the_default_keeps_thinking_and_uncut_results() {
    let place = Place::new("plan_fixed");
    place.run(&[]);
    let full = place.rows();
    place.run(&["--message-form", "published"]);
    let published = place.rows();
    let longest = |rows: &[Value]| {
        let contents = rows[0]["messages"].as_array().unwrap().iter().filter_map(|it| it["content"].as_str());
        contents.map(|content| content.chars().count()).max().unwrap()
    };
    assert!(longest(&full) > longest(&published) && longest(&published) <= 4060);
    assert_eq!(full[0]["messages"][1]["reasoning_content"], "I should look at the code first.");
    assert_eq!(published[0]["messages"][1].get("reasoning_content"), None);
    let arguments = &full[0]["messages"][1]["tool_calls"][0]["function"]["arguments"];
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"command": "ls -la && cat src/main.zig"}));
    assert_eq!(full[0]["step_advantages"], published[0]["step_advantages"]);
}

#[test]
fn a_bad_episode_fails_alone() {
    let place = Place::new("plan_fixed");
    fs::remove_file(place.episode("episode_002", "hindsight_scores.json")).unwrap();
    fs::create_dir(place.path("trajectories/episode_010")).unwrap();
    fs::create_dir(place.path("trajectories/episode_9")).unwrap();
    fs::write(place.episode("episode_9", "result.json"), "{\"episode_id\": 9,\n\"episode_reward\": null}")
        .unwrap();
    fs::write(place.episode("episode_9", "pi_session.jsonl"), "").unwrap();
    check(
        &place.run(&[]),
        expect![[r#"
        episodes                5
          in the dataset        1  0 with weights for each token
          left out              1  no step of it is better than the average
          lost                  1  episode_002: not scored; help: run backsight credit first
          lost                  1  episode_010: trajectories/episode_010/result.json: the file is missing
          lost                  1  episode_9: trajectories/episode_9/result.json line 2: `episode_reward` must be a number, not null
        steps                  10
          with weight          10  mean 1
        made datasets/hcapo_train.jsonl
        made datasets/hcapo_train.parquet
        made datasets/hcapo_summary.json
        error: 3 of 5 episodes could not be used
        help: mend what is said about each; the same command makes the dataset again
        exit code 1
    "#]],
    );
    assert_eq!(place.rows().len(), 1);
}

#[test]
fn steps_without_credit_are_counted() {
    let place = Place::new("plan_fixed");
    place.edit("episode_001", |scores| {
        let step = scores["steps"][1].as_object_mut().unwrap();
        step.retain(|key, _| {
            !["mean_logprob", "pi_hind", "rho", "q_h", "q_h_smoothed"].contains(&key.as_str())
        });
        step.insert("error".into(), "the server was gone".into());
    });
    let ran = place.run(&["--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let account: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(account["summary"]["steps_without_credit"], 1);
    assert_eq!(account["files"][0], "datasets/hcapo_train.jsonl");
    assert_eq!(
        account["left_out"],
        json!([{"episode": "episode_002", "why": "no step of it is better than the average"}])
    );
    assert_eq!(place.rows()[0]["step_advantages"][1], 0.0);
    let means: Value = serde_json::from_str(&place.read("hcapo_summary.json")).unwrap();
    assert_eq!(means["advantage_stats"]["mean"], 1.0, "18 weights of 19 steps");
}

#[test]
fn credit_that_is_missing_follows_from_what_was_measured() {
    let place = Place::new("plan_fixed");
    for name in ["episode_001", "episode_002", "episode_003"] {
        place.edit(name, |scores| {
            scores.as_object_mut().unwrap().retain(|key, _| ["reward", "steps"].contains(&key.as_str()));
            for step in scores["steps"].as_array_mut().unwrap() {
                let derived = ["pi_hind", "rho", "q_h", "q_h_smoothed"];
                step.as_object_mut().unwrap().retain(|key, _| !derived.contains(&key.as_str()));
            }
        });
    }
    let ran = place.run(&["--message-form", "published"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let recorded = fixtures().join("dataset/plan_fixed/hcapo_train.jsonl");
    assert_eq!(place.read("hcapo_train.jsonl"), fs::read_to_string(recorded).unwrap());
    place.edit("episode_001", |scores| {
        scores["steps"][3].as_object_mut().unwrap().remove("mean_logprob").unwrap();
    });
    let ran = place.run(&[]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stdout.contains("episode_001: step 3 has no `mean_logprob` and no `error`"),
        "{}",
        ran.stdout
    );
}

#[test]
fn nothing_is_written_when_there_is_nothing_to_write() {
    let place = Place::new("plan_fixed");
    place.run(&[]);
    let before = place.read("hcapo_train.jsonl");
    check(
        &place.run(&["--min-reward", "0.9"]),
        expect![[r#"
        episodes                3
          left out              3  its reward is below 0.9
        error: no episode has a row, so no dataset was written
        help: lower --min-reward: the best reward is 0.7044
        exit code 1
    "#]],
    );
    assert_eq!(place.read("hcapo_train.jsonl"), before);
    for name in ["episode_001", "episode_002", "episode_003"] {
        fs::remove_file(place.episode(name, "hindsight_scores.json")).unwrap();
    }
    check(
        &place.run(&[]),
        expect![[r#"
        episodes                3
          lost                  3  episode_001, episode_002, episode_003: not scored; help: run backsight credit first
        error: no episode has a row, so no dataset was written
        help: score the episodes with backsight credit first
        exit code 1
    "#]],
    );
}

#[test]
fn what_cannot_be_asked_or_read_ends_with_2() {
    let place = Place::new("plan_fixed");
    check(
        &place.run(&["--input-dir", "nowhere"]),
        expect![[r#"
        error: nowhere: No such file or directory (os error 2)
        help: name the directory of the episodes with --input-dir, or files with --episodes
        exit code 2
    "#]],
    );
    fs::create_dir(place.path("empty")).unwrap();
    check(
        &place.run(&["--input-dir", "empty"]),
        expect![[r#"
        error: empty: no episodes here
        help: it needs episode_*/ with result.json and pi_session.jsonl, or .json and .jsonl files
        exit code 2
    "#]],
    );
    for arguments in
        [["--omega", "nan"], ["--min-reward", "x"], ["--normalise", "all"], ["--message-form", "raw"]]
    {
        let ran = place.run(&arguments);
        assert_eq!(ran.code, 2, "{arguments:?}");
        assert!(ran.stderr.contains(arguments[1]), "{}", ran.stderr);
    }
    assert!(!place.path("datasets").exists());
}

#[test]
fn a_directory_that_cannot_be_written_ends_with_3() {
    let place = Place::new("plan_fixed");
    fs::write(place.path("taken"), "a file").unwrap();
    let ran = place.run(&["--output-dir", "taken/datasets"]);
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("taken/datasets") && ran.stderr.contains("help: "), "{}", ran.stderr);
}

#[test]
fn numbers_follow_the_flags() {
    let place = Place::new("plan_fixed");
    let config = |arguments: &[&str]| {
        let ran = place.run(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let account: Value = serde_json::from_str(&ran.stdout).unwrap();
        (account["summary"]["config"].clone(), place.rows()[0]["step_advantages"].clone())
    };
    let (config_default, default) = config(&[]);
    assert_eq!(
        config_default,
        json!({"omega": 1.0, "min_reward": 0.2, "use_smoothed": true, "normalise": "global"})
    );
    let (other, rough) = config(&["--no-smooth", "--omega", "0.5", "--min-reward=-1", "--normalise", "task"]);
    assert_eq!(other, json!({"omega": 0.5, "min_reward": -1.0, "use_smoothed": false, "normalise": "task"}));
    assert_ne!(default, rough);
    // Without a step's own part every step of an episode weighs the same.
    let (_, flat) = config(&["--omega", "0"]);
    let flat: Vec<f64> = flat.as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
    assert!(flat.iter().all(|weight| *weight == flat[0] && *weight > 0.0), "{flat:?}");
}

/// Two episodes in a file, with scores where `credit` keeps them; the first has its tokens beside.
fn episodes_in_a_file(place: &Place) {
    let talk = json!([{"role": "user", "content": "go"}, {"role": "assistant", "content": "one"},
                      {"role": "user", "content": "on"}, {"role": "assistant", "content": null, "tool_calls":
                        [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": {"path": "."}}}]}]);
    let line = |id: &str, reward: f64| {
        json!({"id": id, "task": "t", "messages": talk, "reward": reward}).to_string()
    };
    fs::create_dir(place.path("talks")).unwrap();
    fs::write(place.path("talks/all.jsonl"), [line("a", 1.0), line("b/2", 0.5)].join("\n")).unwrap();
    let steps = json!([{"step_index": 0, "sequence": 0, "span": [2, 4], "logprobs": [[-0.5, -0.5]]},
                       {"step_index": 1, "sequence": 0, "span": [5, 8], "logprobs": [[-0.5, -0.5, -1.0]]}]);
    let tokens = json!({"format": "backsight.hindsight_tokens", "version": 2, "episode_id": "a", "tokens": "rendered",
                        "lenses": ["outcome-first"], "sequences": [[10, 11, 12, 13, 14, 15, 16, 17]], "steps": steps});
    let scores = fs::read_to_string(place.episode("episode_001", "hindsight_scores.json")).unwrap();
    let mut scores: Value = serde_json::from_str(&scores).unwrap();
    scores["steps"].as_array_mut().unwrap().truncate(2);
    let sum: String = Sha256::digest(tokens.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
    scores["provenance"] = json!({"backsight": "0", "sidecar_sha256": sum});
    for (name, id, reward) in [("a", "a", 1.0), ("b%2F2", "b/2", 0.5)] {
        (scores["episode_id"], scores["reward"]) = (json!(id), json!(reward));
        let own = place.path("talks/.backsight/episodes").join(name);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("hindsight_scores.json"), scores.to_string()).unwrap();
    }
    fs::write(place.path("talks/.backsight/episodes/a/hindsight_tokens.json"), tokens.to_string()).unwrap();
}

#[test]
fn episodes_in_files_have_their_scores_in_the_run_directory() {
    let place = Place::new("plan_fixed");
    episodes_in_a_file(&place);
    for arguments in [
        &["--input-dir", "talks"][..],
        &["--episodes", "talks/all.jsonl"],
        &["--episodes", "talks/all.jsonl", "--run", "talks/.backsight"],
    ] {
        let ran = place.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(ran.stdout.contains("1 with weights for each token"), "{}", ran.stdout);
        let row = &place.rows()[0];
        assert_eq!((&row["_episode_id"], &row["step_message_indices"]), (&json!("a"), &json!([1, 3])));
        let weights: Vec<f64> =
            row["step_advantages"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        let (one, two) = (weights[0], weights[1]);
        assert_eq!(row["token_weights"], json!([[0.0, 0.0, one, one, 0.0, two, two, two]]));
        assert_eq!(row["step_spans"], json!([[0, 2, 4], [0, 5, 8]]));
        let call = &row["messages"][3]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(call, &json!(r#"{"path":"."}"#));
    }
    let published = place.run(&["--input-dir", "talks", "--message-form", "published", "--json"]);
    let note: Value = serde_json::from_str(published.stderr.lines().next().unwrap()).unwrap();
    assert_eq!(note["event"], "note");
    assert_eq!(note["text"], "a: without a session file its messages are written in full");
}

#[test]
fn a_reward_that_changed_since_is_told() {
    let place = Place::new("plan_fixed");
    let path = place.episode("episode_001", "result.json");
    let text = fs::read_to_string(&path).unwrap().replace("0.5391", "0.75");
    fs::write(path, text).unwrap();
    let ran = place.run(&[]);
    assert_eq!(ran.code, 0);
    expect![[r#"
        note: episode_001: its reward is 0.75 now, but its credit was computed with 0.5391, which is used
    "#]]
    .assert_eq(&ran.stderr);
}

#[test]
fn help_shows_examples() {
    let ran = Place::new("plan_fixed").run(&["--help"]);
    assert_eq!(ran.code, 0);
    for word in [
        "Examples:",
        "--normalise",
        "--message-form",
        "published",
        "[default: datasets]",
        "hcapo_train.parquet",
    ] {
        assert!(ran.stdout.contains(word), "{word}");
    }
}
