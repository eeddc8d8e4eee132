//! Runs that end early: budgets, servers that go, signals, a second process.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::collect::place::{Place, Server, scripted};
use crate::support::stand_in::{Dialect, Fault};

/// A server that takes its time.
fn slow(millis: u64) -> Server {
    Server::start(scripted(Dialect::Vllm).faults(move |_| Some(Fault::Slow(Duration::from_millis(millis)))))
}

fn wait_for(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn undisturbed(more: &[&str]) -> std::collections::BTreeMap<String, serde_json::Value> {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    place.collect(&server, more).expect(0);
    place.episodes("runs/collect")
}

#[test]
fn a_budget_stops_cleanly_and_a_larger_one_goes_on() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let more = ["--group-size", "2", "--concurrency", "2"];
    let ran = place.collect(&server, &[&more[..], &["--max-requests", "7"]].concat()).expect(3);
    assert!(
        ran.stderr.contains("error: the limit of 7 requests for the student is reached"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("help: raise the limit; the same command continues"), "{}", ran.stderr);
    assert_eq!(server.draws().len(), 7);
    let summary = place.summary();
    let made = summary["made"]["episodes"].as_u64().unwrap();
    let left = summary["left"].as_u64().unwrap();
    assert!(made >= 1 && left >= 1, "{summary}");
    assert_eq!(summary["stopped_by"], json!("the limit of 7 requests for the student is reached"));
    place.collect(&server, &more).expect(0);
    assert_eq!(server.draws().len(), 18, "nothing is paid twice");
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
}

#[test]
fn a_server_that_goes_is_waited_for_and_a_run_goes_on_with_its_successor() {
    let place = Place::new();
    let more = ["--group-size", "2", "--concurrency", "2"];
    let server = slow(40);
    let url = server.url();
    let address = server.stand_in.address.to_string();
    let child = place.start(&Place::arguments(&url, &more));
    wait_for(|| server.draws().len() >= 4);
    drop(server);
    let successor = Server::start_at(&address, scripted(Dialect::Vllm));
    let ended = wait(child);
    assert_eq!(ended.code(), Some(0));
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
    assert!(successor.draws().len() <= 18 - 2);
}

#[test]
fn a_server_that_is_gone_for_good_ends_the_run_with_3() {
    let place = Place::new();
    let more = ["--group-size", "2", "--concurrency", "3", "--patience", "2"];
    let server = slow(40);
    let url = server.url();
    let arguments = Place::arguments(&url, &more);
    let child = place.start(&arguments);
    wait_for(|| server.draws().len() >= 4);
    drop(server);
    let ended = wait(child);
    assert_eq!(ended.code(), Some(3));
    let summary = place.summary();
    assert!(summary["stopped_by"].as_str().unwrap().contains("cannot be reached"), "{summary}");
    let lost = summary["lost"]["episodes"].as_object().unwrap();
    assert!(lost.keys().all(|why| why.contains("cannot be reached")), "{summary}");
    let server = Server::start(scripted(Dialect::Vllm));
    place.collect(&server, &more).expect(0);
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
}

#[test]
fn an_episode_that_fails_is_its_own_business() {
    let place = Place::new();
    let more = ["--group-size", "4", "--concurrency", "3"];
    let refuses = |asked: &crate::support::stand_in::Asked| {
        let body: serde_json::Value = serde_json::from_slice(&asked.body).ok()?;
        let is_bad = body["seed"].as_u64()? % 4 == 1 && asked.ids.len() > 100;
        let answer = r#"{"error": {"message": "no such luck", "code": 400}}"#;
        is_bad.then(|| Fault::Status(400, String::new(), answer.to_owned()))
    };
    let server = Server::start(scripted(Dialect::Vllm).faults(refuses));
    let ran = place.collect(&server, &more).expect(1);
    assert!(
        ran.stderr.contains("episodes failed; their records say why\nhelp: mend the cause"),
        "{}",
        ran.stderr
    );
    let summary = place.summary();
    let lost: Vec<u64> =
        summary["lost"]["episodes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).collect();
    let n_lost: u64 = lost.iter().sum();
    assert!(lost.len() == 1 && n_lost > 0 && n_lost < 12, "{summary}");
    let episodes = place.episodes("runs/collect");
    assert_eq!(episodes.len(), 12, "failed ones are recorded too");
    let failed = episodes
        .values()
        .filter(|it| it["outcome"]["error"].as_str().is_some_and(|why| why.contains("no such luck")));
    assert_eq!(failed.count() as u64, n_lost);
    place.collect(&Server::start(scripted(Dialect::Vllm)), &more).expect(0);
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
}

/// What the server refuses the first time it gives the second time.
#[test]
fn an_episode_that_failed_is_run_again_and_pays_only_for_what_is_missing() {
    let more = ["--group-size", "4", "--concurrency", "3"];
    let refuses_once = |asked: &crate::support::stand_in::Asked| {
        let body: serde_json::Value = serde_json::from_slice(&asked.body).ok()?;
        let is_bad = body["seed"].as_u64()? % 4 == 1 && asked.ids.len() > 100 && asked.times_before == 0;
        let answer = r#"{"error": {"message": "no such luck", "code": 400}}"#;
        is_bad.then(|| Fault::Status(400, String::new(), answer.to_owned()))
    };
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm).faults(refuses_once)));
    let ran = place.collect(&server, &[&more[..], &["--episode-retries", "9"]].concat()).expect(0);
    assert!(ran.stderr.contains("  run again (1 of 9): "), "{}", ran.stderr);
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
    let events = place.lines("runs/collect/events.jsonl");
    let n_retries = events.iter().filter(|it| it["event"] == "retry").count();
    let n_refused = server.draws().len() - 36;
    assert!(
        n_retries > 0 && n_retries == n_refused,
        "{n_retries} of {n_refused}: what was paid is not paid again"
    );
    let again = Server::start(scripted(Dialect::Vllm).faults(refuses_once));
    let never = [&more[..], &["--episode-retries", "0", "--run", "runs/never"]].concat();
    assert!(!place.collect(&again, &never).expect(1).stderr.contains("run again"));
}

#[test]
fn a_directory_that_cannot_be_written_ends_the_run_with_3() {
    let (place, server) = (Place::new(), slow(60));
    let url = server.url();
    let arguments = Place::arguments(&url, &["--group-size", "2", "--concurrency", "2"]);
    let child = place.start(&arguments);
    wait_for(|| server.draws().len() >= 2);
    std::fs::rename(place.path("runs/collect/episodes"), place.path("moved")).unwrap();
    place.write("runs/collect/episodes", "in the way");
    assert_eq!(wait(child).code(), Some(3));
    std::fs::remove_file(place.path("runs/collect/episodes")).unwrap();
    place.run(&arguments).expect(0);
    assert_eq!(place.episodes("runs/collect"), undisturbed(&["--group-size", "2"]));
}

#[test]
fn signals_end_a_run_with_their_number_and_leave_it_whole() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let (place, server) = (Place::new(), slow(60));
        let more = ["--group-size", "2", "--concurrency", "2"];
        let url = server.url();
        let child = place.start(&Place::arguments(&url, &more));
        wait_for(|| server.draws().len() >= 3);
        Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
        assert_eq!(wait(child).code(), Some(code));
        let summary = place.summary();
        assert!(summary["left"].as_u64().unwrap() > 0, "{summary}");
        place.collect(&server, &more).expect(0);
        assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
    }
}

#[test]
fn a_second_process_is_told_who_is_first() {
    let (place, server) = (Place::new(), slow(50));
    let url = server.url();
    let more = ["--group-size", "2"];
    let first = place.start(&Place::arguments(&url, &more));
    wait_for(|| server.draws().len() >= 2);
    let second = place.collect(&server, &more).expect(3);
    let expected = format!("error: the run directory runs/collect is in use by process {}", first.id());
    assert!(second.stderr.contains(&expected), "{}", second.stderr);
    assert_eq!(wait(first).code(), Some(0));
    assert_eq!(place.episodes("runs/collect"), undisturbed(&more));
}

fn wait(mut child: std::process::Child) -> std::process::ExitStatus {
    child.wait().unwrap()
}
