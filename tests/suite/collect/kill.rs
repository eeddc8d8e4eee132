//! Killed at random moments, over and over: the episodes are those of a run that nobody disturbed, and no answer
//! that was handed on is paid again.

use std::collections::HashMap;
use std::time::Duration;

use crate::collect::place::{Place, Server, scripted};
use crate::support::stand_in::{Dialect, Fault};
use crate::support::toy::mix;

const CONCURRENCY: usize = 3;
const N_KILLS: usize = 6;

#[test]
fn killed_runs_end_as_undisturbed_ones() {
    let more = ["--group-size", "4", "--concurrency", "3"];
    let calm = Place::new();
    let server = Server::start(scripted(Dialect::Vllm));
    calm.collect(&server, &more).expect(0);
    let expected = calm.episodes("runs/collect");
    let place = Place::new();
    let setup = scripted(Dialect::Vllm).faults(|_| Some(Fault::Slow(Duration::from_millis(15))));
    let server = Server::start(setup);
    let url = server.url();
    let mut n_after_kills = 0;
    for round in 0..N_KILLS {
        let mut child = place.start(&Place::arguments(&url, &more));
        let millis = 300 + mix(round as u64 + 1) % 1700;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().unwrap();
        n_after_kills += usize::from(!child.wait().unwrap().success());
        check_files(&place);
    }
    assert!(n_after_kills > 0, "no run was disturbed");
    place.collect(&server, &more).expect(0);
    assert_eq!(place.episodes("runs/collect"), expected);
    let mut times: HashMap<_, usize> = HashMap::new();
    server.draws().into_iter().for_each(|draw| *times.entry(draw).or_default() += 1);
    assert_eq!(times.len(), 36, "the draws are those of the undisturbed run");
    let n_again: usize = times.values().map(|n| n - 1).sum();
    assert!(n_again <= n_after_kills * CONCURRENCY, "{n_again} draws were paid again");
}

/// Whatever is there at any moment is whole.
fn check_files(place: &Place) {
    let run = place.path("runs/collect");
    for (name, is_lines) in [("config.toml", false), ("summary.json", false), ("metrics.jsonl", true)] {
        let Ok(text) = std::fs::read_to_string(run.join(name)) else { continue };
        match (name, is_lines) {
            ("config.toml", _) => drop(text.parse::<toml::Table>().unwrap()),
            (_, true) => {
                text.lines().for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).unwrap()))
            }
            (_, false) => drop(serde_json::from_str::<serde_json::Value>(&text).unwrap()),
        }
    }
    if run.join("episodes").exists() {
        let whole = place.path("runs/collect/episodes");
        for file in std::fs::read_dir(whole).unwrap().map(|it| it.unwrap().path()) {
            let is_temporary = file.file_name().unwrap().to_string_lossy().ends_with(".tmp");
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(
                is_temporary || serde_json::from_str::<serde_json::Value>(&text).is_ok(),
                "{}",
                file.display()
            );
        }
    }
}
