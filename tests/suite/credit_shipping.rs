//! Credit of live episodes as a trainer gets it: a line for each step, an advantage for each token, all of it in one run.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::collect::place::{Place, Ran, Server};
use crate::distill::{actions, collected, distill, judging, scored, votes};
use crate::student::tokenizer;
use crate::support::stand_in::{Asked, Dialect, Fault};

const CREDIT: &str = "runs/all/credit.jsonl";
const SHIP: [&str; 2] = ["--ship-credit", "true"];

fn credit(place: &Place, server: &Server, more: &[&str]) -> Ran {
    let url = server.url();
    let usual = ["credit", "--run", "runs/all", "--url", &url, "--kind", "vllm", "--tokenizer", "model"];
    place.run(&[&usual[..], more].concat())
}

/// Whether an action is re-read knowing its outcome.
fn is_told_the_outcome(asked: &Asked) -> bool {
    asked.ids.len() > 80 && tokenizer().decode(&asked.ids).unwrap().contains("[Hindsight, unseen")
}

/// Mean and population deviation; equal values are measured in ones.
fn scale(values: &[f64]) -> (f64, f64) {
    if values.iter().all(|it| it == &values[0]) {
        return (values[0], 1.0);
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, (values.iter().map(|it| (it - mean) * (it - mean)).sum::<f64>() / n).sqrt())
}

/// Every step's advantage by episode, computed here of the lines' rewards and Q_H; compared with what the lines say.
fn weighed(lines: &[Value], omega: f64) -> BTreeMap<(String, u64), Option<f64>> {
    let mut groups: BTreeMap<(&str, u64), Vec<&Value>> = BTreeMap::new();
    for line in lines {
        let group = (line["task"].as_str().unwrap(), line["group"].as_u64().unwrap());
        groups.entry(group).or_default().push(line);
    }
    let mut all = BTreeMap::new();
    for steps in groups.values() {
        let rewards: BTreeMap<&str, f64> = steps
            .iter()
            .map(|it| (it["episode"].as_str().unwrap(), it["reward"].as_f64().unwrap()))
            .collect();
        let (mean, deviation) = scale(&rewards.values().copied().collect::<Vec<_>>());
        let (q_mean, q_deviation) =
            scale(&steps.iter().filter_map(|it| it["q_h"].as_f64()).collect::<Vec<_>>());
        for line in steps {
            let episode = line["episode"].as_str().unwrap();
            let of_reward = (rewards[episode] - mean) / deviation;
            let advantage = line["q_h"].as_f64().map(|q_h| {
                let own = (q_h - q_mean) / q_deviation;
                of_reward + omega * if of_reward > 0.0 { own.max(0.0) } else { own }
            });
            close(line["reward_advantage"].as_f64(), Some(of_reward));
            close(line["advantage"].as_f64(), advantage);
            assert_eq!(line["why"].is_string(), advantage.is_none(), "{line}");
            all.insert((episode.to_owned(), line["step"].as_u64().unwrap()), advantage);
        }
    }
    all
}

#[track_caller]
fn close(found: Option<f64>, expected: Option<f64>) {
    let is_close = match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
        (found, expected) => found == expected,
    };
    assert!(is_close, "{found:?}, {expected:?}");
}

/// Compares each shipped sequence's masks, logprobs and advantages with the records of the episodes; gives how many tokens
/// are trained and how many are masked.
fn check_groups(place: &Place, worth: &BTreeMap<(String, u64), Option<f64>>) -> (u64, u64) {
    let records: Vec<Value> = place.episodes("runs/all").into_values().collect();
    let (mut n_trained, mut n_masked) = (0, 0);
    for group in place.lines("runs/all/groups.jsonl") {
        for (at, tokens) in group["tokens"].as_array().unwrap().iter().enumerate() {
            let record = records.iter().find(|it| it["sequences"][0] == *tokens).unwrap();
            let id = record["id"].as_str().unwrap();
            let mut expected = vec![None; tokens.as_array().unwrap().len()];
            for (step, it) in record["steps"].as_array().unwrap().iter().enumerate() {
                let [start, end] = [0, 1].map(|at| it["action"]["span"][at].as_u64().unwrap() as usize);
                let own = worth.get(&(id.to_owned(), step as u64)).copied().flatten();
                n_masked += if own.is_none() { (end - start) as u64 } else { 0 };
                expected[start..end].fill(own);
            }
            let number = |key: &str, position: usize| group[key][at][position].as_f64().unwrap();
            for (position, own) in expected.iter().enumerate() {
                close(Some(number("advantages", position)), Some(own.unwrap_or(0.0)));
                let mask = if own.is_some() { tokens[position].as_i64() } else { Some(-100) };
                assert_eq!(group["masks"][at][position].as_i64(), mask, "{id} at {position}");
                assert_eq!(number("inference_logprobs", position) == 1.0, own.is_none());
                n_trained += u64::from(own.is_some());
            }
        }
    }
    (n_trained, n_masked)
}

#[test]
fn the_credit_of_steps_ships_as_advantages_of_their_tokens() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let refused = distill(&place, &server, Dialect::Vllm, &SHIP).expect(2);
    assert!(refused.stderr.contains("runs/all: there is no credit.jsonl to ship"), "{}", refused.stderr);
    assert_eq!(server.stand_in.asked().len(), 0);

    credit(&place, &server, &[]).expect(0);
    let lines = place.lines(CREDIT);
    assert_eq!(lines.len(), 18);
    for line in &lines {
        let scores =
            place.json(&format!("runs/all/episodes/{}/hindsight_scores.json", file_of(&line["episode"])));
        let step = &scores["steps"][line["step"].as_u64().unwrap() as usize];
        assert_eq!((&line["q_h"], &line["rho"]), (&step["q_h_smoothed"], &step["rho"]));
    }
    let worth = weighed(&lines, 1.0);
    assert!(worth.values().flatten().any(|it| *it > 0.5) && worth.values().flatten().any(|it| *it < -0.5));

    let summary = distill(&place, &server, Dialect::Vllm, &SHIP).expect(0).json();
    let (n_trained, n_masked) = check_groups(&place, &worth);
    assert_eq!((Some(n_trained), n_masked), (summary["made"]["trained_tokens"].as_u64(), 0));
    for group in place.lines("runs/all/groups.jsonl") {
        let overrides = group["overrides"].as_array().unwrap();
        let version = overrides[0]["teacher_version"].as_str().unwrap();
        assert_eq!(version.len(), 8, "{version}");
        assert!(overrides.iter().all(|it| it["teacher"] == "live" && it["teacher_version"] == version));
    }

    // Otherwise weighed, nobody is asked anything.
    let again = ["credit", "--run", "runs/all", "--recompute", "--omega", "2", "--smoothed", "false"];
    place.run(&[&again[..], &["--gamma", "0.5"]].concat()).expect(0);
    let lines = place.lines(CREDIT);
    let scores = place.json("runs/all/episodes/add-0/hindsight_scores.json");
    let of_add = lines.iter().find(|it| it["episode"] == "add-0").unwrap();
    assert_eq!(
        (&of_add["q_h"], scores["hyperparams"]["gamma"].as_f64()),
        (&scores["steps"][0]["q_h"], Some(0.5))
    );
    let otherwise = weighed(&lines, 2.0);
    assert_ne!(otherwise, worth);
    server.stand_in.forget();
    distill(&place, &server, Dialect::Vllm, &SHIP).expect(0);
    check_groups(&place, &otherwise);
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0));
    distill(&place, &server, Dialect::Vllm, &[]).expect(0);
    assert!(place.lines("runs/all/groups.jsonl").iter().all(|it| it["advantages"].is_null()));
}

fn file_of(id: &Value) -> String {
    id.as_str().unwrap().replace('/', "%2F")
}

#[test]
fn a_step_without_credit_is_masked_and_counted() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let nothing = |it: &Asked| is_told_the_outcome(it).then_some(Fault::Null);
    let hole = Server::start(judging(Dialect::Vllm).faults(nothing));
    credit(&place, &hole, &[]).expect(1);
    let lines = place.lines(CREDIT);
    let worth = weighed(&lines, 1.0);
    let n_without = worth.values().filter(|it| it.is_none()).count();
    assert!((1..18).contains(&n_without), "{n_without}");
    let why = |line: &Value| line["why"] == "a token of the action has no logprob";
    assert_eq!(lines.iter().filter(|it| why(it)).count(), n_without);
    let summary = distill(&place, &server, Dialect::Vllm, &SHIP).expect(0).json();
    let (n_trained, n_masked) = check_groups(&place, &worth);
    assert!(n_masked > 0);
    assert_eq!(summary["lost"]["tokens"], json!({"no credit for their step": n_masked}));
    assert_eq!(summary["made"]["trained_tokens"], json!(n_trained));

    // A whole episode without any, and one that nobody has heard of.
    credit(&place, &server, &["--overwrite"]).expect(0);
    let mut lines = place.lines(CREDIT);
    lines.retain(|it| it["episode"] != "twice-0");
    for line in lines.iter_mut().filter(|it| it["episode"] == "add-0") {
        line["advantage"] = Value::Null;
    }
    let text = |lines: &[Value]| lines.iter().map(|it| format!("{it}\n")).collect::<String>();
    place.write(CREDIT, &text(&lines));
    let summary = distill(&place, &server, Dialect::Vllm, &SHIP).expect(0).json();
    assert_eq!(summary["lost"]["shipped"], json!({"no step of it that could be trained has credit": 2}));
    assert_eq!(summary["made"]["shipped_episodes"], json!(4));

    place.write(CREDIT, &format!("{}{{\"episode\": 7}}\n", text(&lines)));
    server.stand_in.forget();
    let refused = distill(&place, &server, Dialect::Vllm, &SHIP).expect(2);
    let place_of_it =
        format!("credit.jsonl line {}: `episode` must be a string, not a number", lines.len() + 1);
    assert!(refused.stderr.contains(&place_of_it), "{}", refused.stderr);
    assert_eq!(server.stand_in.asked().len(), 0);
}

/// Where actions are in texts that others recorded is known as well.
#[test]
fn rendered_episodes_have_their_advantages_in_the_right_places() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    let talk = |id: &str, reward: f64, said: [&str; 2]| {
        let messages = json!([
            {"role": "user", "content": "count to four"}, {"role": "assistant", "content": said[0]},
            {"role": "user", "content": "go on"}, {"role": "assistant", "content": said[1]},
        ]);
        json!({"id": id, "task_id": "count", "messages": messages, "reward": reward}).to_string()
    };
    let talks = [talk("a", 1.0, ["one two", "three four"]), talk("b", 0.0, ["no, never", "I will not"])];
    place.write("talks.jsonl", &talks.join("\n"));
    let url = server.url();
    let usual = ["--episodes", "talks.jsonl", "--run", "runs/all", "--url", &url, "--kind", "vllm"];
    let usual = [&usual[..], &["--tokenizer", "model"]].concat();
    place.run(&[&["credit"], &usual[..]].concat()).expect(0);
    let worth = weighed(&place.lines(CREDIT), 1.0);
    let more = ["--lens", "plain", "--allow-rendered", "true", "--distill-topk", "5"];
    place.run(&[&["distill"], &usual[..], &more, &SHIP].concat()).expect(0);
    let group = &place.lines("runs/all/groups.jsonl")[0];
    for (at, id) in ["a", "b"].into_iter().enumerate() {
        let stretches = actions(&group["masks"][at]);
        assert_eq!(stretches.len(), 2);
        for (step, stretch) in stretches.into_iter().enumerate() {
            for position in stretch {
                close(group["advantages"][at][position].as_f64(), worth[&(id.to_owned(), step as u64)]);
            }
        }
    }
    assert!(worth[&("a".to_owned(), 0)] > worth[&("b".to_owned(), 0)]);
}

fn run(place: &Place, server: &Server, more: &[&str]) -> Ran {
    let url = server.url();
    let usual = ["--group-size", "2", "--run", "runs/all", "--distill-topk", "5", "--json"];
    let arguments = Place::arguments(&url, &usual);
    let arguments = arguments.into_iter().map(|it| if it == "collect" { "run" } else { it });
    place.run(&arguments.chain(more.iter().copied()).collect::<Vec<_>>())
}

const BOTH: [&str; 4] = ["--credit-enabled", "true", "--ship-credit", "true"];

#[test]
fn run_credits_before_it_distils() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    for (more, why) in [
        (&SHIP[..], "--ship-credit ships credit, and no step gets any"),
        (&["--credit-enabled", "true", "--c-min", "2"], "the least ratio --c-min 2 is above the largest"),
    ] {
        let refused = run(&place, &server, more).expect(2);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    assert_eq!(server.stand_in.asked().len(), 0);

    let told =
        run(&place, &server, &[&BOTH[..], &["--gamma", "0.9", "--omega", "0.5"]].concat()).expect(0).json();
    let stages: Vec<&str> = told.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(stages, ["collect", "credit", "distill"]);
    assert_eq!(told["credit"]["made"]["steps"], json!(18));
    assert_eq!(place.json("runs/all/summary.json")["credit"], told["credit"]);
    let config: toml::Table = place.read("runs/all/config.toml").parse().unwrap();
    let asked = |key: &str| config["credit"][key].to_string();
    assert_eq!(
        ["dense_rewards", "gamma", "omega", "lens", "smoothed"].map(asked),
        ["false", "0.9", "0.5", "\"outcome\"", "true"]
    );
    let scores = place.json("runs/all/episodes/add-0/hindsight_scores.json");
    assert_eq!(scores["hyperparams"]["dense_rewards"], json!(false));
    check_groups(&place, &weighed(&place.lines(CREDIT), 0.5));
    let groups = place.read("runs/all/groups.jsonl");

    server.stand_in.forget();
    let again =
        run(&place, &server, &[&BOTH[..], &["--gamma", "0.9", "--omega", "0.5"]].concat()).expect(0).json();
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0));
    assert_eq!(again["credit"]["made"]["kept_episodes"], json!(6));
    assert_eq!(place.read("runs/all/groups.jsonl"), groups);
    let without = run(&place, &server, &[]).expect(0).json();
    assert!(without.get("credit").is_none());
}

/// Rewards below zero are of the group like any other.
#[test]
fn no_reward_is_too_small_to_be_compared() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    let command = "if grep -q -- '-0\"'; then echo -1; else echo 1; fi";
    let told = run(&place, &server, &[&BOTH[..], &["--reward-command", command]].concat()).expect(0).json();
    assert_eq!(told["distill"]["made"]["shipped_episodes"], json!(6));
    let lines = place.lines(CREDIT);
    assert_eq!(lines.len(), 18);
    assert!(lines.iter().all(|it| it["reward"].as_f64().unwrap().abs() == 1.0));
    assert!(lines.iter().all(|it| it["reward"] == it["reward_advantage"]));
    check_groups(&place, &weighed(&lines, 1.0));
}

/// What credit loses is told and the rest goes on; what stops it stops the run.
#[test]
fn run_goes_on_without_credit_that_was_lost_and_ends_where_it_was_stopped() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    run(&place, &server, &[]).expect(0);
    let gone = |it: &Asked| is_told_the_outcome(it).then_some(Fault::Reset);
    let broken = Server::start(judging(Dialect::Vllm).faults(gone));
    let before = place.json("runs/all/summary.json");
    let stopped = run(&place, &broken, &[&BOTH[..], &["--patience", "0"]].concat()).expect(3);
    let told = place.json("runs/all/summary.json");
    assert!(told["credit"]["stopped_by"].is_string(), "{}", stopped.stderr);
    assert_eq!(told["distill"], before["distill"], "what comes after it was not begun");
    assert!(!place.path(CREDIT).exists(), "a task's episodes are weighed together or not at all");
    let refuses = |it: &Asked| {
        let no = || Fault::Status(400, String::new(), "{\"error\": {\"message\": \"no\"}}".to_owned());
        (is_told_the_outcome(it) && tokenizer().decode(&it.ids).unwrap().contains("twice")).then(no)
    };
    let choosy = Server::start(judging(Dialect::Vllm).faults(refuses));
    let told = run(&place, &choosy, &BOTH).expect(1).json();
    assert_eq!(told["distill"]["made"]["shipped_episodes"], json!(4), "{told}");
    let told = run(&place, &server, &BOTH).expect(0).json();
    assert_eq!(told["distill"]["made"]["shipped_episodes"], json!(6));
    check_groups(&place, &weighed(&place.lines(CREDIT), 1.0));
}
