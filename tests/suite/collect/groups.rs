//! What a run makes, file by file, and that the same command makes nothing twice.

use serde_json::{Value, json};

use crate::collect::place::{Place, Server, scripted};
use crate::student::tokenizer;
use crate::support::hub_stand_in::{plain, stand_in};
use crate::support::schema;
use crate::support::stand_in::{Dialect, Setup};

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect()
}

#[test]
fn groups_of_exact_episodes_are_made_and_summed_up() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let ran = place.collect(&server, &["--group-size", "2", "--student-topk", "3"]).expect(0);
    assert!(ran.stdout.starts_with("episodes   6 made, 0 lost, 0 left\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("6 of 6  "), "a line for each episode: {}", ran.stderr);
    let episodes = place.episodes("runs/collect");
    assert_eq!(episodes.len(), 6);
    assert!(
        ["add-0.json", "add-1.json", "twice-0.json", "twice-1.json"]
            .iter()
            .all(|it| episodes.contains_key(*it))
    );
    for (name, episode) in &episodes {
        check_episode(name, episode);
    }
    let summary = place.summary();
    assert_eq!(schema::check(include_str!("../../../docs/summary.schema.json"), &summary), None);
    assert_eq!((&summary["made"]["episodes"], &summary["made"]["rendered_episodes"]), (&json!(6), &json!(0)));
    let draws = server.draws();
    assert_eq!(summary["requests"].as_u64().unwrap() as usize, draws.len(), "every paid draw is counted");
    assert_eq!(draws.len(), 18);
    check_metrics(&place, &summary);
}

/// The ids in the record are those that were sent and sampled; the outcome is that of the hidden tests.
fn check_episode(name: &str, episode: &Value) {
    assert_eq!(schema::check(include_str!("../../../docs/episode.schema.json"), episode), None, "{name}");
    assert_eq!((&episode["tokens"], &episode["stop"]), (&json!("exact"), &json!("answered")), "{name}");
    assert_eq!(episode["started_at"], json!(1_700_000_000));
    let solved = episode["messages"][2]["tool_calls"][0]["function"]["arguments"]["content"]
        .as_str()
        .is_some_and(|content| !content.contains("nothing"));
    let correctness = &episode["outcome"]["components"]["correctness"];
    assert_eq!(correctness == &json!(1.0), solved, "{name}");
    let ids = numbers(&episode["sequences"][0]);
    let text = tokenizer().decode(&ids.iter().map(|it| *it as u32).collect::<Vec<_>>()).unwrap();
    assert_eq!(text.matches("<|im_start|>assistant\n").count(), 3, "{name}: {text}");
    assert_eq!(episode["steps"].as_array().unwrap().len(), 3);
    for step in episode["steps"].as_array().unwrap() {
        let n_top = step["action"]["top"].as_array().unwrap().iter().map(|row| row.as_array().unwrap().len());
        assert!(n_top.into_iter().all(|n| n >= 3), "{name}");
    }
}

fn check_metrics(place: &Place, summary: &Value) {
    let rows = place.lines("runs/collect/metrics.jsonl");
    let mut groups: Vec<u64> = rows.iter().map(|row| row["group"].as_u64().unwrap()).collect();
    groups.sort_unstable();
    assert_eq!(groups, [0, 1, 2]);
    let mean: f64 = rows.iter().map(|row| row["train/mean_reward"].as_f64().unwrap()).sum::<f64>() / 3.0;
    assert!((mean - summary["train/mean_reward"].as_f64().unwrap()).abs() < 1e-12);
    let events = place.lines("runs/collect/events.jsonl");
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("began", "ended"));
    assert_eq!(names.iter().filter(|name| **name == "episode").count(), 6);
}

#[test]
fn the_same_command_again_pays_nothing_and_changes_nothing() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.collect(&server, &["--groups", "2", "--group-size", "2"]).expect(0);
    let (before, n_paid) = (place.episodes("runs/collect"), server.draws().len());
    // The server may have moved, and there may be more of everything that does not decide the result.
    let more =
        ["--groups", "2", "--group-size", "2", "--concurrency", "7", "--max-requests", "1000", "--json"];
    let ran = place.collect(&server, &more).expect(0);
    assert_eq!((place.episodes("runs/collect"), server.draws().len()), (before, n_paid));
    assert_eq!(ran.json()["made"]["episodes"], json!(4));
    let began: Value = serde_json::from_str(ran.stderr.lines().next().unwrap()).unwrap();
    assert_eq!((&began["event"], &began["found"]), (&json!("began"), &json!(4)), "{}", ran.stderr);
}

#[test]
fn a_lost_episode_is_run_again_from_the_ledger() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("fail", "");
    let reward = "if [ -e fail ]; then echo no >&2; exit 3; fi; echo 0.25";
    let arguments = ["--group-size", "1", "--reward-command", reward];
    let ran = place.collect(&server, &arguments).expect(1);
    assert!(ran.stdout.contains("0 made, 3 lost, 0 left"), "{}", ran.stdout);
    assert!(ran.stdout.contains("3 lost: the reward command"), "{}", ran.stdout);
    let n_paid = server.draws().len();
    std::fs::remove_file(place.path("fail")).unwrap();
    place.collect(&server, &arguments).expect(0);
    assert_eq!(server.draws().len(), n_paid, "what was paid is found in the ledger");
    for episode in place.episodes("runs/collect").values() {
        assert_eq!(episode["outcome"]["reward"], json!(0.25));
        assert!(episode["outcome"]["components"]["correctness"].is_number());
    }
    let rows = place.lines("runs/collect/metrics.jsonl");
    let lost: Vec<u64> = rows.iter().map(|row| row["lost"].as_u64().unwrap()).collect();
    assert_eq!(lost, [1, 1, 1, 0, 0, 0]);
}

#[test]
fn the_seed_decides_and_concurrency_does_not() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let run = |name: &str, seed: &str, concurrency: &str| {
        let more = ["--run", name, "--seed", seed, "--concurrency", concurrency, "--group-size", "2", "-q"];
        place.collect(&server, &more).expect(0);
        place.episodes(name)
    };
    let (one, same, other) = (run("a", "1", "1"), run("b", "1", "6"), run("c", "2", "6"));
    assert_eq!(one, same);
    assert_ne!(one, other);
    let [first, second] = ["add-0.json", "add-1.json"].map(|name| one[name]["messages"].clone());
    assert_ne!(first, second, "the attempts of a group are draws of their own");
}

#[test]
fn sglang_serves_as_well() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Sglang)));
    let url = server.url();
    let mut arguments = Place::arguments(&url, &["--group-size", "1"]);
    arguments[4] = "auto";
    place.run(&arguments).expect(0);
    let config = place.read("runs/collect/config.toml");
    assert!(config.contains("kind = \"sglang\"") && config.contains("model = \"toy\""), "{config}");
    assert!(place.episodes("runs/collect").values().all(|it| it["tokens"] == json!("exact")));
}

#[test]
fn a_server_without_ids_gives_rendered_episodes_and_says_so() {
    let talks = |body: &Value| {
        let messages = body["messages"].as_array().unwrap();
        let n_turns = messages.iter().filter(|it| it["role"] == "assistant").count();
        let content = "def add(a, b):\n    return a + b\n";
        let arguments = json!({"path": "solution.py", "content": content}).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}});
        Some(match n_turns {
            _ if body["tools"].is_null() => json!({"role": "assistant", "content": "backsight"}),
            0 => json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            _ => json!({"role": "assistant", "content": "Done."}),
        })
    };
    let (place, server) = (Place::new(), Server::start(Setup::new(Dialect::Vllm).talks(talks)));
    let url = server.url();
    let arguments =
        ["collect", "--url", &url, "--kind", "openai", "--tasks", "tasks.jsonl", "--eval-size", "0"];
    let ran =
        place.run(&[&arguments[..], &["--eval-split-ratio", "0", "--group-size", "1"]].concat()).expect(0);
    assert!(
        ran.stderr.contains("takes no token ids, so episodes are recorded as rendered text"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.contains("3 episodes have no sampled ids (rendered)"), "{}", ran.stdout);
    let episodes = place.episodes("runs/collect");
    assert_eq!(episodes["add-0.json"]["tokens"], json!("rendered"));
    assert_eq!(episodes["add-0.json"]["outcome"]["components"]["correctness"], json!(1.0));
    assert_eq!(episodes["twice-0.json"]["outcome"]["components"]["correctness"], json!(0.1));
}

#[test]
fn a_dataset_of_the_hub_is_fetched_once_and_kept() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let file = include_bytes!("../../fixtures/datasets/tasks.zstd.parquet");
    let list = br#"{"sha": "c0ffee", "siblings": [{"rfilename": "default/train/0000.parquet"}]}"#;
    let hub = stand_in(&[
        ("/api/datasets/org/tasks/revision/refs%2Fconvert%2Fparquet", plain(list)),
        ("/datasets/org/tasks/resolve/c0ffee/default/train/0000.parquet", plain(file)),
    ]);
    let (url, home) = (server.url(), place.path("hf").display().to_string());
    let tasks = ["--dataset-name", "org/tasks", "--eval-size", "1", "--group-size", "1"];
    let arguments =
        [&["collect", "--url", &url, "--kind", "vllm", "--tokenizer", "model"][..], &tasks].concat();
    let variables = [("HF_ENDPOINT", hub.url.as_str()), ("HF_HOME", &home), ("HF_HUB_OFFLINE", "0")];
    let ran = place.run_with(&variables, &arguments).expect(0);
    assert!(
        ran.stderr.contains(
            "tasks: 2 of 3 usable, 1 refused\n  1 refused: it has no question (first: org/tasks row 2: looked for `prompt`, "
        ),
        "{}",
        ran.stderr
    );
    let episodes = place.episodes("runs/collect");
    assert_eq!(episodes.len(), 1, "one of two tasks is held out");
    // Without the hub the copy serves.
    let offline = [("HF_HOME", home.as_str()), ("HF_HUB_OFFLINE", "1")];
    place.run_with(&offline, &arguments).expect(0);
    let missing = ["--dataset-name", "org/tasks", "--dataset-split", "test", "--run", "other"];
    let missing =
        [&["collect", "--url", &url, "--kind", "vllm", "--tokenizer", "model"][..], &missing].concat();
    let refused = place.run_with(&variables, &missing).expect(2);
    assert!(refused.stderr.contains("has no split \"test\"; it has default/train"), "{}", refused.stderr);
}

#[test]
fn docker_is_driven_by_its_client() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("docker", include_str!("docker.sh"));
    std::process::Command::new("chmod").args(["+x"]).arg(place.path("docker")).status().unwrap();
    let program = place.path("docker").display().to_string();
    let more = ["--sandbox", "docker", "--docker-program", &program, "--group-size", "1", "--seed", "3"];
    place.collect(&server, &more).expect(0);
    let solved = |it: &Value| it["outcome"]["components"]["correctness"] == json!(1.0);
    assert!(place.episodes("runs/collect").values().all(solved));
    assert!(place.read("docker.log").contains("--network none"), "{}", place.read("docker.log"));
}

/// A run may grow: what is there stays as it is.
#[test]
fn more_groups_can_be_asked_for_later() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.collect(&server, &["--groups", "2", "--group-size", "1"]).expect(0);
    let before = place.episodes("runs/collect");
    let n_draws = server.draws().len();
    place.collect(&server, &["--groups", "4", "--group-size", "1"]).expect(0);
    let after = place.episodes("runs/collect");
    assert_eq!((before.len(), after.len(), server.draws().len()), (2, 4, 2 * n_draws));
    assert!(before.iter().all(|(name, episode)| after[name] == *episode));
    let fewer = place.collect(&server, &["--groups", "3", "--group-size", "1"]).expect(2);
    assert!(fewer.stderr.contains("groups (was 4, now 3)"), "{}", fewer.stderr);
}

#[test]
fn tasks_without_tests_are_for_a_command_to_reward() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("tasks.jsonl", "{\"id\": \"add\", \"task\": \"Write add(a, b).\"}\n");
    let reward = "python3 -c 'import json, sys; print(len(json.load(sys.stdin)[\"messages\"]))'";
    place.collect(&server, &["--group-size", "1", "--reward-command", reward]).expect(0);
    let episode = place.episodes("runs/collect").into_values().next().unwrap();
    assert!(episode["outcome"]["reward"].as_f64().unwrap() > 3.0, "{}", episode["outcome"]);
    let components = episode["outcome"]["components"].as_object().unwrap();
    assert!(
        components.contains_key("efficiency") && !components.contains_key("correctness"),
        "{components:?}"
    );
    assert!(episode.get("verification").is_none_or(Value::is_null), "{episode}");
    assert!(!episode["task"]["prompt"].as_str().unwrap().contains("## Tests"));
    assert_eq!(place.summary()["train/mean_correctness"], Value::Null);
}
