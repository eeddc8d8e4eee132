//! What is refused before anything is paid for, and in which words.

use crate::place::{Place, Ran, Server, scripted};
use crate::support::stand_in::Dialect;

/// The words of a refusal.
fn refused(ran: Ran, code: i32, words: &[&str]) {
    let ran = ran.expect(code);
    assert!(ran.stderr.contains("error: ") && ran.stderr.contains("help: "), "{}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "`{word}` is not in: {}", ran.stderr);
    }
}

#[test]
fn bad_configurations() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("bad.toml", "group_size = 4\ngruop = 1\n");
    place.write("broken.toml", "group_size = [\n");
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--config", "bad.toml"], &["bad.toml: there is no key `gruop`", "backsight config"]),
        (&["--config", "broken.toml"], &["broken.toml line "]),
        (&["--config", "missing.toml"], &["missing.toml: No such file"]),
        (&["--group-size", "0"], &["--group-size is 0, which is not a whole number from 1 up"]),
        (
            &["--agent-temperature", "-1"],
            &["--agent-temperature is -1.0, which is not a number from 0 to 10"],
        ),
        (&["--dataset-name", "a/b"], &["give --tasks or --dataset-name, not both"]),
        (&["--tool-call-parser", "xml"], &["no tool-call parser is called `xml`", "--tool-call-parser"]),
        (&["--system-prompt", "none.txt"], &["none.txt: No such file", "check --system-prompt"]),
        (&["--api-key-env", "A", "--api-key-file", "b"], &["give --api-key-env or --api-key-file, not both"]),
    ];
    for (more, words) in cases {
        refused(place.collect(&server, more), 2, words);
    }
    let json = place.collect(&server, &["--groups", "none", "--json"]).expect(2);
    let event: serde_json::Value = serde_json::from_str(json.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((event["event"].as_str(), event["code"].as_u64()), (Some("error"), Some(2)));
    assert!(server.draws().is_empty());
}

#[test]
fn a_run_belongs_to_one_configuration() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.collect(&server, &["--groups", "1", "--group-size", "1"]).expect(0);
    let other = place.collect(&server, &["--groups", "2", "--group-size", "1", "--seed", "9"]);
    refused(other, 2, &["groups (was 1, now 2), seed (was 0, now 9)", "--run"]);
    place.write("tasks.jsonl", &crate::place::TASKS.replace("twice(4) == 8", "twice(4) == 9"));
    refused(place.collect(&server, &["--groups", "1", "--group-size", "1"]), 2, &["tasks_sha256 (was "]);
    // The record of a run can be given back as a configuration.
    place.write("tasks.jsonl", crate::place::TASKS);
    let url = server.url();
    let again = ["collect", "--config", "runs/collect/config.toml", "--url", &url, "--run", "again"];
    place.run(&again).expect(0);
    assert_eq!(place.episodes("again"), place.episodes("runs/collect"));
    assert_eq!(place.read("again/config.toml"), place.read("runs/collect/config.toml"));
}

#[test]
fn bad_tasks() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("empty.jsonl", "\n");
    place.write("no_tests.jsonl", "{\"task\": \"t\"}\n");
    let run = |tasks: &[&str]| {
        let url = server.url();
        let all = ["collect", "--url", &url, "--kind", "vllm", "--tokenizer", "model"];
        place.run(&[&all[..], tasks].concat())
    };
    refused(
        run(&["--tasks", "nowhere.jsonl"]),
        2,
        &["tasks cannot be read from nowhere.jsonl", "check --tasks"],
    );
    refused(run(&["--tasks", "empty.jsonl"]), 2, &["empty holds no usable task"]);
    refused(run(&["--tasks", "no_tests.jsonl"]), 2, &["it has no `test_code` and no `tests`"]);
    refused(
        run(&["--tasks", "tasks.jsonl"]),
        2,
        &["3 tasks with 10 held out leave none to train on", "--eval-size"],
    );
    refused(run(&["--dataset-name", "no such"]), 2, &["is no name of a dataset"]);
    refused(run(&["--dataset-name", "a/b"]), 2, &["HF_HUB_OFFLINE is set"]);
    assert!(server.draws().is_empty());
    place.write("mixed.jsonl", &format!("{}{{\"task\": 7}}\nnot json\n", crate::place::TASKS));
    let mixed =
        run(&["--tasks", "mixed.jsonl", "--eval-size", "0", "--groups", "1", "--group-size", "1"]).expect(0);
    assert!(mixed.stderr.contains("mixed.jsonl: 2 rows are no tasks (row 4: "), "{}", mixed.stderr);
}

#[test]
fn servers_that_cannot_be_used() {
    let place = Place::new();
    let none = place.run(&["collect", "--tasks", "tasks.jsonl", "--eval-size", "0"]);
    refused(none, 2, &["no server was named", "--kind embedded"]);
    let gone = place.run(
        &Place::arguments("http://127.0.0.1:9", &[])
            .iter()
            .map(|it| if *it == "vllm" { "auto" } else { it })
            .collect::<Vec<_>>(),
    );
    refused(gone, 3, &["127.0.0.1:9 cannot be reached"]);
    let server = Server::start(scripted(Dialect::Vllm));
    let url = server.url();
    let all =
        ["collect", "--url", &url, "--tasks", "tasks.jsonl", "--eval-size", "0", "--eval-split-ratio", "0"];
    refused(place.run(&all), 2, &["the tokenizer of toy is not on this machine", "--tokenizer"]);
    place.write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}");
    refused(
        place.collect(&server, &[]),
        2,
        &["writes tool calls in a format that is not known", "--tool-call-parser"],
    );
    assert!(server.draws().is_empty());
}

#[test]
fn another_student_does_not_continue_a_run() {
    let place = Place::new();
    let first = Server::start(scripted(Dialect::Vllm));
    place.collect(&first, &["--groups", "1", "--group-size", "1"]).expect(0);
    let mut setup = scripted(Dialect::Vllm);
    setup.toy.weights = 2;
    let second = Server::start(setup);
    let ran = place.collect(&second, &["--groups", "1", "--group-size", "1"]);
    refused(ran, 2, &["toy is not the model this run began with", "--run"]);
}

#[test]
fn the_unprotected_sandbox_warns_loudly() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let ran = place.collect(&server, &["--sandbox", "none", "--groups", "1", "--group-size", "1"]).expect(0);
    assert!(ran.stderr.contains("UNPROTECTED"), "{}", ran.stderr);
}

#[test]
fn every_key_is_listed_and_is_a_flag() {
    let place = Place::new();
    let keys: serde_json::Value = place.run(&["config", "--json"]).expect(0).json();
    let help =
        ["collect", "evaluate"].map(|command| (command, place.run(&[command, "--help"]).expect(0).stdout));
    for key in keys.as_array().unwrap() {
        for command in key["commands"].as_array().unwrap() {
            let (_, text) = help.iter().find(|(name, _)| *command == *name).unwrap();
            assert!(
                text.contains(&format!("{} ", key["flag"].as_str().unwrap())),
                "{key} is no flag of {command}"
            );
        }
    }
    assert!(place.run(&["config"]).expect(0).stdout.contains("agent_temperature"));
}
