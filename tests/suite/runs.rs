//! One run directory for all stages: what each adds, that none takes anything away or pays twice, and that others can
//! read it meanwhile.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use backsight::store::RunReader;
use serde_json::{Value, json};

use crate::collect::place::{Place, Server, scripted};
use crate::support::schema;
use crate::support::stand_in::{Asked, Dialect, Fault};

const RUN: &str = "runs/all";

/// What a server was asked to compute for somebody, not to find out what it is: tokens, and whether they are scored.
fn paid(server: &Server) -> Vec<Asked> {
    let probe = crate::student::tokenizer().encode(backsight::model::PROBE_TEXT).unwrap().ids;
    let asked = server.stand_in.asked().into_iter();
    asked.filter(|it| it.ids.len() > 1 && it.ids != probe).collect()
}

/// Runs a command on the run's directory; gives how much was paid for it.
fn stage(place: &Place, server: &Server, arguments: &[&str]) -> usize {
    let n_before = paid(server).len();
    let ran = place.run(&[arguments, &["--run", RUN]].concat()).expect(0);
    // Each names the stage after it, on the same run.
    let next = [("collect", "distill"), ("credit", "dataset")].into_iter().find(|it| it.0 == arguments[0]);
    let told = ran.stderr.lines().find(|line| line.starts_with("next: ")).unwrap_or_default();
    let is_told = |next: &str| told.contains(&format!(" {next} ")) && told.ends_with(&format!("--run {RUN}"));
    assert!(next.is_none_or(|(_, next)| is_told(next)), "{}", ran.stderr);
    assert!(told.matches("--run").count() <= 1, "{told}");
    paid(server).len() - n_before
}

fn files(place: &Place, dir: &str) -> BTreeSet<PathBuf> {
    fs::read_dir(place.path(dir)).unwrap().map(|it| it.unwrap().file_name().into()).collect()
}

fn hints(place: &Place) -> Vec<String> {
    let ids: Vec<String> = RunReader::new(&place.path(RUN)).episodes().into_iter().map(|it| it.id).collect();
    // Not for the same step of each: what is worth the same everywhere weighs nothing.
    let line = |(nth, id): (usize, &String)| {
        json!({"episode_id": id, "step_idx": nth % 2, "hint": "look at the file"}).to_string()
    };
    place.write("hints.jsonl", &ids.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"));
    ids
}

#[test]
fn stages_share_a_directory_and_nothing_is_paid_twice() {
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let url = server.url();
    let collect = Place::arguments(&url, &["--group-size", "2"]);
    let teacher = ["--url", &url, "--kind", "vllm", "--tokenizer", "model"];
    let credit = [&["credit"][..], &teacher].concat();
    let dataset = ["dataset", "--min-reward", "0", "--output-dir", "datasets"];
    assert!(stage(&place, &server, &collect) > 0);
    let ids = hints(&place);
    assert_eq!(ids.len(), 6);
    let n_credit = stage(&place, &server, &credit);
    assert!(n_credit > 0);
    let scored = files(&place, &format!("{RUN}/episodes/add-0"));
    assert_eq!(stage(&place, &server, &dataset), 0);
    let rows = fs::read_to_string(place.path("datasets/hcapo_train.jsonl")).unwrap();

    let hint = ["--lens", "hint", "--hints", "hints.jsonl"];
    let n_before = paid(&server).len();
    // Two of three steps have no hint, and so no credit through it.
    place.run(&[&credit[..], &hint, &["--run", RUN]].concat()).expect(1);
    assert_eq!(paid(&server).len() - n_before, ids.len(), "a view of one step of each episode");
    let both = files(&place, &format!("{RUN}/episodes/add-0"));
    assert!(
        both.is_superset(&scored) && both.contains(&PathBuf::from("hindsight_scores.hint-last_user.json"))
    );

    let weighed = |lens: &str| {
        let lines = place.lines(&format!("{RUN}/credit{lens}.jsonl"));
        (lines.len(), lines.iter().filter(|it| it["advantage"].is_number()).count())
    };
    assert_eq!((weighed(""), weighed(".hint-last_user")), ((18, 18), (18, 6)));

    // However the run is named, whatever is asked for again is there.
    for input in [RUN, &format!("{RUN}/episodes")] {
        let n_before = paid(&server).len();
        place.run(&[&credit[..], &["--input-dir", input, "--overwrite"]].concat()).expect(0);
        assert_eq!(paid(&server).len(), n_before, "{input}");
    }
    // And so is what was asked for.
    let config = format!("{RUN}/config.toml");
    for command in ["credit", "dataset"] {
        let out: &[&str] = if command == "dataset" { &["--out", "again"] } else { &[] };
        assert_eq!(stage(&place, &server, &[&[command, "--config", &config], out].concat()), 0);
    }
    assert_eq!(fs::read_to_string(place.path("again/hcapo_train.jsonl")).unwrap(), rows);
    assert_eq!(stage(&place, &server, &collect), 0);
    assert_eq!(stage(&place, &server, &dataset), 0);
    assert_eq!(fs::read_to_string(place.path("datasets/hcapo_train.jsonl")).unwrap(), rows);
    assert!(paid(&server).iter().all(|it| it.times_before == 0), "no request was sent twice");
    check_sections(&place);
    let hinted = ["dataset", "--lens", "hint", "--min-reward", "0", "--output-dir", "hinted", "--run", RUN];
    place.run(&hinted).expect(0);
    assert_ne!(fs::read_to_string(place.path("hinted/hcapo_train.jsonl")).unwrap(), rows);
}

/// Every stage has its section, its events and its metrics.
fn check_sections(place: &Place) {
    let view = RunReader::new(&place.path(RUN));
    let sections = ["collect", "credit", "credit.hint-last_user", "dataset"];
    let (config, summary) = (view.config().unwrap(), view.summary().unwrap());
    assert_eq!(config.keys().map(String::as_str).collect::<BTreeSet<_>>(), sections.into());
    assert_eq!(summary.keys().map(String::as_str).collect::<BTreeSet<_>>(), sections.into());
    for (name, section) in &summary {
        assert_eq!(schema::check(include_str!("../../docs/summary.schema.json"), section), None, "{name}");
    }
    assert_eq!(summary["collect"]["made"]["episodes"], json!(6));
    assert_eq!(config["collect"]["group_size"].as_integer(), Some(2));
    let stages = |lines: Vec<Value>| -> BTreeSet<String> {
        lines.iter().map(|it| it["stage"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["collect", "credit", "dataset"].map(str::to_owned).into();
    assert_eq!(stages(view.events_from(0).unwrap().0), all);
    assert_eq!(stages(view.metrics_from(0).unwrap().0), all);
    assert!(view.scores("add-0", "outcome-first").unwrap().unwrap()["steps"].is_array());
    assert_eq!(view.scores("add-0", "outcome-last").unwrap(), None);
}

/// Reads everything there is while it is being made: never half of anything, and each event once.
#[test]
fn a_reader_follows_a_run_while_it_goes() {
    let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(30)));
    let (place, server) = (Place::new(), Server::start(scripted(Dialect::Vllm).faults(slow)));
    let url = server.url();
    let arguments = Place::arguments(&url, &["--group-size", "2", "--concurrency", "2", "--run", RUN]);
    let mut child = place.start(&arguments);
    let view = RunReader::new(&place.path(RUN));
    let (mut events, mut at, mut n_meanwhile) = (Vec::new(), 0, 0);
    let is_ended = |events: &[Value]| events.iter().any(|it| it["event"] == "ended");
    while !is_ended(&events) {
        let (more, behind) = view.events_from(at).unwrap();
        assert!(behind >= at);
        let told = more.iter().filter(|it| it["event"] == "episode");
        for id in told.map(|it| it["id"].as_str().unwrap()) {
            // What is told of is there, whole, while others are still being made.
            assert_eq!(view.episode(id).unwrap().steps().len(), 3, "{id}");
            n_meanwhile += usize::from(child.try_wait().unwrap().is_none());
        }
        (at, _) = (behind, events.extend(more));
        let n_events = events.iter().filter(|it| it["event"] == "episode").count();
        assert!(view.episodes().len() >= n_events);
        let _ = (view.config().unwrap(), view.summary().unwrap(), view.metrics_from(0).unwrap());
    }
    assert!(child.wait().unwrap().success());
    assert!(n_meanwhile > 1, "{n_meanwhile} were seen while it went on");
    events.extend(view.events_from(at).unwrap().0);
    let whole = place.lines(&format!("{RUN}/events.jsonl"));
    assert_eq!(events, whole, "each event once, in order");
    let steps = |id: &Value| events.iter().filter(|it| it["event"] == "step" && it["id"] == *id).count();
    assert!(events.iter().filter(|it| it["event"] == "episode").all(|it| steps(&it["id"]) == 3));
    assert_eq!(view.summary().unwrap()["collect"]["made"]["episodes"], json!(6));
}
