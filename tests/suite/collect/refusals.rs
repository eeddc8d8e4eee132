//! What is refused before anything is paid for, and in which words.

use crate::collect::place::{Place, Ran, Server, scripted};
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
    place.write("modal.yaml", "env:\n  terminal_backend: modal\n");
    let cases: [(&[&str], &[&str]); 11] = [
        (&["--config", "modal.yaml"], &["modal.yaml: ", "terminal_backend \"modal\"", "`local`", "`docker`"]),
        (&["--config", "bad.toml"], &["bad.toml: there is no key `gruop`", "`groups`", "backsight config"]),
        (&["--config", "broken.toml"], &["broken.toml line "]),
        (&["--config", "missing.toml"], &["missing.toml: No such file"]),
        (&["--group-size", "0"], &["--group-size is 0, which is not a whole number from 1 up"]),
        (
            &["--agent-temperature", "-1"],
            &["--agent-temperature is -1.0, which is not a number from 0 to 10"],
        ),
        (&["--dataset-name", "a/b"], &["give --tasks or --dataset-name, not both"]),
        (&["--tool-text", "flatten"], &["`flatten` cannot be read back", "--tool-text hermes or auto"]),
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
    refused(other, 2, &["configuration: seed (was 0, now 9)", "--run"]);
    place.write("tasks.jsonl", &crate::collect::place::TASKS.replace("twice(4) == 8", "twice(4) == 9"));
    refused(place.collect(&server, &["--groups", "1", "--group-size", "1"]), 2, &["tasks_sha256 (was "]);
    // The record of a run can be given back as a configuration.
    place.write("tasks.jsonl", crate::collect::place::TASKS);
    let url = server.url();
    let again = ["collect", "--config", "runs/collect/config.toml", "--url", &url, "--run", "again"];
    place.run(&again).expect(0);
    assert_eq!(place.episodes("again"), place.episodes("runs/collect"));
    // Paths in it are relative to where it is.
    let of =
        |run: &str, up: &str| place.read(&format!("{run}/config.toml")).replace(&format!("\"{up}/"), "\"");
    assert_eq!(of("again", ".."), of("runs/collect", "../.."));
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
    let sought = "it has no tests: looked for `test_code` or `tests`, `test_list`, `test` with `entry_point`, `input_output`";
    refused(run(&["--tasks", "no_tests.jsonl"]), 2, &[sought, "--test-field"]);
    refused(
        run(&["--tasks", "tasks.jsonl"]),
        2,
        &["3 tasks with 10 held out leave none to train on", "--eval-size"],
    );
    refused(run(&["--dataset-name", "no such"]), 2, &["is no name of a dataset"]);
    refused(run(&["--dataset-name", "a/b"]), 2, &["HF_HUB_OFFLINE is set"]);
    assert!(server.draws().is_empty());
    place.write(
        "mixed.jsonl",
        &format!("{}{{\"task\": 7}}\n{{\"tests\": \"x\"}}\nnot json\n", crate::collect::place::TASKS),
    );
    let mixed =
        run(&["--tasks", "mixed.jsonl", "--eval-size", "0", "--groups", "1", "--group-size", "1"]).expect(0);
    let counted = [
        "tasks: 3 of 6 usable, 3 refused",
        " 2 refused: it has no question (first: mixed.jsonl row 4: looked for `prompt`, `task`, `text`, `question`, `question_content`, `description`)",
        " 1 refused: it is no JSON (first: mixed.jsonl row 6: expected ident at line 1 column 2)",
    ];
    assert!(mixed.stderr.contains(&counted.join("\n ")), "{}", mixed.stderr);
    let summary = place.summary();
    let noted = counted.join(";");
    assert!(summary["notices"].as_array().unwrap().iter().any(|it| *it == noted), "{summary}");
}

#[test]
fn servers_that_cannot_be_used() {
    let place = Place::new();
    let none = place.run(&["collect", "--tasks", "tasks.jsonl", "--eval-size", "0"]);
    refused(none, 2, &["no server was named", "--url http://HOST:PORT", "--kind embedded"]);
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
    let words = ["UNPROTECTED", "forge any reward"];
    for (run, more) in [("a", &[][..]), ("b", &["-q"]), ("c", &["--json"]), ("d", &["--json", "-q"])] {
        let all = ["--sandbox", "none", "--groups", "1", "--group-size", "1", "--run", run];
        let ran = place.collect(&server, &[&all[..], more].concat()).expect(0);
        let line =
            ran.stderr.lines().find(|it| it.contains(words[0])).unwrap_or_else(|| panic!("{}", ran.stderr));
        assert!(line.contains(words[1]), "{line}");
        if more.contains(&"--json") {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["event"], "warning");
            assert!(event["help"].as_str().unwrap().starts_with("use this only"), "{event}");
        } else {
            assert!(line.starts_with("warning: --sandbox none: "), "{line}");
            assert!(ran.stderr.contains("\nhelp: use this only inside a machine"), "{}", ran.stderr);
        }
        if more.contains(&"-q") {
            let n_lines = if more.contains(&"--json") { 1 } else { 2 };
            assert_eq!(ran.stderr.lines().count(), n_lines, "nothing but the warning: {}", ran.stderr);
        }
        let summary = place.json(&format!("{run}/summary.json"))["collect"].clone();
        let notices: Vec<&str> =
            summary["notices"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        assert_eq!(notices.iter().filter(|it| it.contains(words[0])).count(), 1, "{notices:?}");
        let events = place.lines(&format!("{run}/events.jsonl"));
        assert_eq!(events.iter().filter(|it| it["event"] == "warning").count(), 1);
    }
}

/// Whoever may not make control groups is told which limit holds for each process alone.
#[test]
fn an_ordinary_user_is_told_what_is_only_per_process() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let url = server.url();
    let more = ["--groups", "1", "--group-size", "1", "--sandbox-memory-mb", "300"];
    let ran = place.run_as_nobody(&Place::arguments(&url, &more)).expect(0);
    let words = "the limit of 300 MiB of memory holds for each process of an episode";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    let processors = ["processors are shared by process, not by", "processors are shared by session, not by"];
    assert!(processors.iter().any(|words| ran.stderr.contains(words)), "{}", ran.stderr);
    let summary = place.summary();
    let says = |it: &serde_json::Value| it.as_str().is_some_and(|it| it.starts_with(words));
    assert!(summary["notices"].as_array().unwrap().iter().any(says), "{summary}");
    let events = place.lines("runs/collect/events.jsonl");
    assert!(events.iter().any(|it| it["event"] == "note" && says(&it["text"])), "{events:?}");
    assert_eq!(summary["made"]["episodes"], 1);
}

#[test]
fn a_root_with_no_other_user_is_told_what_is_missing() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let url = server.url();
    let ran = place.run_behind(&["unshare", "-Ur"], &Place::arguments(&url, &["--groups", "1"]));
    let words =
        ["the kernel refuses user namespaces", "/proc/self/uid_map", "unshare -r", "run as an ordinary user"];
    refused(ran, 3, &words);
    assert!(server.draws().is_empty());
}

#[test]
fn each_turn_is_told_of_where_that_is_wanted() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let more = ["--groups", "1", "--group-size", "1"];
    let ran = place.collect(&server, &[&more[..], &["-v"]].concat()).expect(0);
    let turns = ran.stderr.lines().filter(|it| it.contains("  turn ") && it.contains(" sampled, "));
    assert_eq!(turns.count(), 3, "{}", ran.stderr);
    let quiet = place.collect(&server, &[&more[..], &["--run", "b"]].concat()).expect(0);
    assert!(!quiet.stderr.contains("  turn "), "{}", quiet.stderr);
    assert!(quiet.stderr.contains("collect: 1 episode with toy"), "{}", quiet.stderr);
    place.collect(&server, &["-q", "-v"]).expect(2);
}

#[test]
fn every_key_is_listed_and_is_a_flag() {
    let place = Place::new();
    let keys: serde_json::Value = place.run(&["config", "--json"]).expect(0).json();
    let mut help = std::collections::BTreeMap::new();
    for command in keys.as_array().unwrap().iter().flat_map(|key| key["commands"].as_array().unwrap()) {
        let words: Vec<&str> = command.as_str().unwrap().split(' ').chain(["--help"]).collect();
        help.entry(command.as_str().unwrap()).or_insert_with(|| place.run(&words).expect(0).stdout);
    }
    let all = ["chat parse", "chat render", "collect", "credit", "dataset", "distill", "evaluate"];
    let more = ["model path", "model pull", "model serve", "probe", "quickstart", "run", "score"];
    let all = [&all[..], &more].concat();
    assert_eq!(help.keys().copied().collect::<Vec<_>>(), all);
    for key in keys.as_array().unwrap() {
        for command in key["commands"].as_array().unwrap() {
            let text = &help[command.as_str().unwrap()];
            assert!(
                text.contains(&format!("{} ", key["flag"].as_str().unwrap())),
                "{key} is no flag of {command}"
            );
        }
    }
    assert!(place.run(&["config"]).expect(0).stdout.contains("agent_temperature"));
    // And no flag is anything else than a key or a published name of one, but for what one call works on and does.
    let others =
        ["--config", "--run", "--json", "--quiet", "--verbose", "--help", "--input-dir", "--episodes"];
    let places = ["--jobs", "--out", "--messages", "--api-key", "--dry-run", "--recompute", "--overwrite"];
    let others = [&others[..], &places].concat();
    let flags = |it: &serde_json::Value| {
        it.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let names: Vec<String> = keys
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| {
            let published: Vec<String> = flags(&it["published_flags"]);
            published.into_iter().chain([it["flag"].as_str().unwrap().to_owned()])
        })
        .collect();
    for (command, text) in &help {
        let lines: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with('-')).collect();
        assert!(!lines.is_empty(), "{text}");
        for line in lines {
            let behind = line.split("--").nth(1).unwrap_or_default();
            let flag = format!("--{}", behind.split([' ', ',', '=', '[']).next().unwrap_or_default());
            assert!(
                names.contains(&flag) || others.contains(&flag.as_str()),
                "{flag} of {command} is no key"
            );
        }
    }
}

/// A file as Atropos environments have them, in a directory of its own with what it names.
#[test]
fn atropos_style_yaml_is_a_configuration() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    std::fs::create_dir(place.path("conf")).unwrap();
    std::fs::rename(place.path("tasks.jsonl"), place.path("conf/mine.jsonl")).unwrap();
    std::fs::rename(place.path("model"), place.path("conf/model")).unwrap();
    let url = server.url();
    let text = format!(
        "env:\n  tasks: [mine.jsonl]\n  tokenizer: model\n  group_size: 2\n  total_steps: 1\n  eval_size: 0\n  \
         eval_split_ratio: 0.0\n  use_wandb: true\n  system_prompt: |\n    Be brief.\n\
         openai:\n  - base_url: {url}/v1\n    server_type: vllm\n    api_key: x\nslurm: false\n"
    );
    place.write("conf/run.yaml", &text);
    let ran = place.run(&["collect", "--config", "conf/run.yaml", "--run", "out"]).expect(0);
    let left = "these settings of the file mean nothing to collect: use_wandb, slurm";
    assert!(ran.stderr.contains(left), "{}", ran.stderr);
    let episodes = place.episodes("out");
    assert_eq!(episodes.len(), 2);
    for episode in episodes.values() {
        assert_eq!(episode["messages"][0]["content"], "Be brief.", "{}", episode["messages"][0]);
    }
    let kept = place.read("out/config.toml");
    assert!(
        kept.contains("tasks = [\"../conf/mine.jsonl\"]") && kept.contains("tokenizer = \"../conf/model\""),
        "{kept}"
    );
    // From elsewhere it is the same run.
    let path = place.path("conf/run.yaml").display().to_string();
    let out = place.path("out").display().to_string();
    let again = place.run_in("conf", &["collect", "--config", "run.yaml", "--run", "../out"]).expect(0);
    assert!(again.stderr.contains("2 of them are there already"), "{}", again.stderr);
    place.run(&["collect", "--config", &path, "--run", &out]).expect(0);
    place.write("conf/bad.yaml", "env:\n  gruop_size: 2\n");
    let bad = place.run(&["collect", "--config", "conf/bad.yaml", "--url", &url]);
    refused(bad, 2, &["conf/bad.yaml: there is no key `gruop_size`", "did you mean `group_size`"]);
}
