//! Tasks whose own solutions do not pass their tests are refused before anything is paid for, and it is told.

use serde_json::{Value, json};

use crate::collect::place::{Place, Ran, Server, scripted};
use crate::support::stand_in::Dialect;

fn mbpp(id: &str, text: &str, code: &str, test: &str) -> Value {
    json!({"task_id": id, "text": text, "code": code, "test_list": [test], "test_setup_code": ""})
}

/// Five rows: two that can be used, one without tests, one whose solution is wrong, one whose tests are no Python.
fn rows() -> String {
    let add = "def add(a, b):\n    return a + b\n";
    let twice = json!({"problem_id": "twice", "question": "Write twice(a).", "starter_code": "",
        "solutions": "[\"print 'no'\", \"print(2 * int(input()))\"]",
        "input_output": "{\"inputs\": [\"4\\n\"], \"outputs\": [\"8\\n\"]}"});
    let rows = [
        mbpp("add", "Write add(a, b).", add, "assert add(1, 2) == 3"),
        twice,
        json!({"id": "untested", "question": "What is it?"}),
        mbpp("wrong", "Write add(a, b).", add, "assert add(1, 2) == 4"),
        mbpp("broken", "Write add(a, b).", add, "assert add(1, 2) ==="),
    ];
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn collect(place: &Place, server: &Server, more: &[&str]) -> Ran {
    let url = server.url();
    let all = ["collect", "--url", &url, "--kind", "vllm", "--tokenizer", "model", "--tasks", "rows.jsonl"];
    let few = ["--eval-size", "0", "--eval-split-ratio", "0", "--group-size", "1"];
    place.run(&[&all[..], &few, more].concat())
}

fn table(ran: &Ran) -> Value {
    let mut events = ran.stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.rfind(|event| event["event"] == json!("tasks")).unwrap_or(Value::Null)
}

#[test]
fn refused_tasks_are_told_and_cost_nothing() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write("rows.jsonl", &rows());
    let ran = collect(&place, &server, &[]).expect(0);
    let told = "tasks: 2 of 5 usable, 3 refused; 4 tasks tried with their own solutions\n  \
                1 refused: it has no tests (first: rows.jsonl row 3: looked for `test_code` or `tests`, `test_list`, ";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let wrong = "  1 refused: its own solution fails its tests (first: wrong: add(1, 2) == 4 (3 != 4))\n";
    assert!(ran.stderr.contains(wrong), "{}", ran.stderr);
    assert!(ran.stderr.contains("  1 refused: its tests cannot be used (first: broken: "), "{}", ran.stderr);
    let episodes = place.episodes("runs/collect");
    let shown: Vec<_> =
        episodes.iter().map(|(name, it)| (name.as_str(), it["tests_shown"].clone())).collect();
    assert_eq!(shown, [("add-0.json", json!(true)), ("twice-0.json", json!(false))]);
    let levels = episodes.values().map(|it| it["outcome"]["components"]["correctness"].as_f64().unwrap());
    assert!(levels.zip([[1.0, 0.1], [0.2, 0.2]]).all(|(level, possible)| possible.contains(&level)));
    let summary = place.summary();
    let noted = |it: &Value| it.as_str().unwrap().starts_with("tasks: 2 of 5 usable, 3 refused; 4 tasks");
    assert!(summary["notices"].as_array().unwrap().iter().any(noted), "{summary}");
    // What was found out is not found out again.
    let again = table(&collect(&place, &server, &["--json"]).expect(0));
    assert_eq!((&again["usable"], &again["tried"]), (&json!(2), &json!(0)), "{again}");
    assert_eq!(again["refused"].as_array().unwrap().len(), 3);
    assert_eq!(place.read("runs/collect/references.jsonl").lines().count(), 4);
}

#[test]
fn tasks_can_be_taken_as_they_are() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.write(
        "rows.jsonl",
        &mbpp("wrong", "Write add(a, b).", "def add(a, b): pass", "assert add(1, 2) == 3").to_string(),
    );
    let refused = collect(&place, &server, &[]).expect(2);
    assert!(refused.stderr.contains("every task is refused"), "{}", refused.stderr);
    assert!(server.draws().is_empty());
    collect(&place, &server, &["--check-references", "false", "--run", "other"]).expect(0);
    assert_eq!(place.episodes("other").len(), 1);
}

/// One attempt tells that tests cannot be used; there is no second, nor in another run of the command.
#[test]
fn unusable_tests_end_their_task() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let row =
        |id: &str, tests: &str| json!({"id": id, "task": "Write add(a, b).", "tests": tests}).to_string();
    let usable = row("usable", "from solution import add\nassert add(1, 2) == 3");
    place.write("rows.jsonl", &format!("{}\n{usable}\n", row("mute", "print(1)")));
    let more = ["--groups", "6", "--concurrency", "1"];
    collect(&place, &server, &more).expect(1);
    let names: Vec<String> = place.episodes("runs/collect").into_keys().collect();
    assert_eq!(names, ["mute-0.json", "usable-0.json", "usable-1.json", "usable-2.json"]);
    let lost = |place: &Place| place.summary()["lost"]["episodes"].clone();
    assert_eq!(lost(&place), json!({"unusable_tests": 3}));
    let n_draws = server.draws().len();
    collect(&place, &server, &more).expect(1);
    assert_eq!((server.draws().len(), lost(&place)), (n_draws, json!({"unusable_tests": 3})));
}

/// Tests that hold in plain Python, and by stand-ins do not, end their episode alone: it is kept, counted and not run
/// again, and all other attempts at its task are run.
#[test]
fn undecided_episodes_are_kept_and_their_task_goes_on() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let tests = "from solution import add\nassert add.__code__.co_argcount == 2";
    let row = json!({"id": "add", "task": "Write add(a, b).", "tests": tests});
    place.write("rows.jsonl", &format!("{row}\n"));
    let more = ["--groups", "6", "--concurrency", "1"];
    collect(&place, &server, &more).expect(1);
    let episodes = place.episodes("runs/collect");
    let is_undecided = |it: &&Value| it["stop"] == json!("undecided");
    let n_undecided = episodes.values().filter(is_undecided).count();
    // The student writes what is asked, or nothing of use.
    let levels = episodes.values().filter(|it| !is_undecided(it));
    assert!(levels.clone().all(|it| it["outcome"]["components"]["correctness"] == json!(0.1)));
    assert_eq!((episodes.len(), n_undecided + levels.count()), (6, 6));
    assert!(n_undecided > 1, "{n_undecided}");
    let lost = |place: &Place| place.summary()["lost"]["episodes"].clone();
    assert_eq!(lost(&place), json!({"undecided": n_undecided}));
    let n_draws = server.draws().len();
    collect(&place, &server, &more).expect(1);
    assert_eq!((server.draws().len(), lost(&place)), (n_draws, json!({"undecided": n_undecided})));
}
