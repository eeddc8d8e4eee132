//! `backsight evaluate`: the published files, and what several attempts tell.

use serde_json::{Value, json};

use crate::collect::place::{Place, Server, scripted};
use crate::support::stand_in::Dialect;

fn evaluate(place: &Place, server: &Server, more: &[&str]) -> crate::collect::place::Ran {
    let url = server.url();
    let all = ["evaluate", "--url", &url, "--kind", "vllm", "--tokenizer", "model", "--now", "0"];
    place.run(&[&all[..], more].concat())
}

#[test]
fn held_out_tasks_are_measured_greedily() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let tasks = ["--tasks", "tasks.jsonl", "--eval-size", "2"];
    let ran = evaluate(&place, &server, &tasks).expect(0);
    let metrics = place.json("runs/evaluate/metrics.json");
    let all = &metrics["results"]["all"];
    assert_eq!(all, &metrics["results"]["atropos|agentic-opd_eval|0"]);
    assert_eq!((&all["eval/n_items"], all.get("eval/pass@1")), (&json!(2), None));
    let general = &metrics["config_general"];
    assert_eq!(
        (&general["model_name"], &general["generation_parameters"]["max_new_tokens"]),
        (&json!("toy"), &json!(2048))
    );
    assert!(general["total_evaluation_time_seconds"].as_str().unwrap().parse::<f64>().unwrap() > 0.0);
    let samples = place.lines("runs/evaluate/samples.jsonl");
    let mean = |key: &str| samples.iter().map(|it| it[key].as_f64().unwrap()).sum::<f64>() / 2.0;
    assert!((mean("correctness") - all["eval/mean_correctness"].as_f64().unwrap()).abs() < 1e-12);
    assert!((mean("reward") - all["eval/mean_reward"].as_f64().unwrap()).abs() < 1e-12);
    assert!(samples.iter().all(|it| it["turns"] == json!(3)));
    for sample in &samples {
        // What the task's author wrote, and nothing of the words around it.
        let name = sample["task"].as_str().unwrap().replace('/', "_");
        let prompt = sample["prompt"].as_str().unwrap();
        assert!(prompt.starts_with(&format!("Write {name}(")) && prompt.ends_with(")."), "{sample}");
    }
    assert!(samples[0]["response"].as_str().unwrap().starts_with("It is done"), "{}", samples[0]);
    assert!(ran.stdout.contains("eval/pass_rate"), "{}", ran.stdout);
    let temperatures: Vec<Value> = server
        .stand_in
        .asked()
        .iter()
        .filter_map(|it| serde_json::from_slice::<Value>(&it.body).ok()?.get("temperature").cloned())
        .collect();
    assert!(
        !temperatures.is_empty() && temperatures.iter().all(|it| it.as_f64() == Some(0.0)),
        "{temperatures:?}"
    );
    check_held_out_are_not_collected(&place, &server, &tasks);
}

/// What is evaluated is what `collect` with the same seed does not train on.
fn check_held_out_are_not_collected(place: &Place, server: &Server, tasks: &[&str]) {
    let url = server.url();
    let all = ["collect", "--url", &url, "--kind", "vllm", "--tokenizer", "model", "--group-size", "1"];
    place.run(&[&all[..], tasks].concat()).expect(0);
    let ids = |run: &str| -> Vec<Value> {
        place.episodes(run).values().map(|it| it["task"]["id"].clone()).collect()
    };
    let (trained, held_out) = (ids("runs/collect"), ids("runs/evaluate"));
    assert_eq!((trained.len(), held_out.len()), (1, 2));
    assert!(!held_out.contains(&trained[0]));
}

#[test]
fn several_attempts_give_pass_at_k() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let more =
        ["--tasks", "tasks.jsonl", "--eval-tasks", "all", "--attempts", "3", "--eval-temperature", "0.8"];
    let ran = evaluate(&place, &server, &[&more[..], &["--json"]].concat()).expect(0);
    let summary = ran.json();
    assert_eq!((&summary["eval/n_items"], &summary["eval/n_attempts"]), (&json!(3), &json!(9)));
    let pass = |k: usize| summary[format!("eval/pass@{k}")].as_f64().unwrap();
    assert!((pass(1) - summary["eval/pass_rate"].as_f64().unwrap()).abs() < 1e-12);
    assert!(pass(1) <= pass(2) && pass(2) <= pass(3), "{summary}");
    let samples = place.lines("runs/evaluate/samples.jsonl");
    let solved = |task: &str| samples.iter().any(|it| it["task"] == task && it["correctness"] == json!(1.0));
    let share = ["add", "twice", "less/one"].into_iter().filter(|task| solved(task)).count() as f64 / 3.0;
    assert!((pass(3) - share).abs() < 1e-12);
}

#[test]
fn built_in_tasks_named_one_by_one_are_all_evaluated() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    evaluate(&place, &server, &["--tasks", "flatten", "two_sum"]).expect(0);
    assert_eq!(place.json("runs/evaluate/metrics.json")["results"]["all"]["eval/n_items"], json!(2));
    let none =
        evaluate(&place, &server, &["--tasks", "builtin", "--eval-size", "0", "--run", "other"]).expect(2);
    assert!(none.stderr.contains("error: no task is held out\nhelp: raise --eval-size"), "{}", none.stderr);
}

/// An evaluation that was stopped and continued took the time of both; one that was only looked at took no more.
#[test]
fn a_continued_evaluation_is_one_evaluation() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let long = format!("Write add(a, b). {}", "Be careful. ".repeat(30));
    place.write("tasks.jsonl", &crate::collect::place::TASKS.replace("Write add(a, b).", &long));
    let tasks = ["--tasks", "tasks.jsonl", "--eval-tasks", "all", "--concurrency", "1"];
    evaluate(&place, &server, &[&tasks[..], &["--max-requests", "4"]].concat()).expect(3);
    let seconds = || {
        let metrics = place.json("runs/evaluate/metrics.json");
        let text = metrics["config_general"]["total_evaluation_time_seconds"].as_str().unwrap().to_owned();
        text.parse::<f64>().unwrap()
    };
    let first = seconds();
    let second = evaluate(&place, &server, &[&tasks[..], &["--json"]].concat()).expect(0).json();
    let both = first + second["seconds"].as_f64().unwrap();
    assert!(first > 0.0 && (seconds() - both).abs() < 0.01, "{first} and {second}: {}", seconds());
    let files = || ["metrics.json", "samples.jsonl"].map(|name| place.read(&format!("runs/evaluate/{name}")));
    let before = files();
    evaluate(&place, &server, &tasks).expect(0);
    assert_eq!(files(), before);
    let samples = place.lines("runs/evaluate/samples.jsonl");
    assert_eq!(samples[0]["prompt"].as_str().unwrap(), &long[..200]);
    // More attempts may be asked for later.
    evaluate(&place, &server, &[&tasks[..], &["--attempts", "2"]].concat()).expect(0);
    let all = &place.json("runs/evaluate/metrics.json")["results"]["all"];
    assert_eq!((&all["eval/n_items"], &all["eval/n_attempts"]), (&json!(3), &json!(6)));
}
