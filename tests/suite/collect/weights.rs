//! Weights that are replaced while episodes are sampled: every token says which it came from, or between which.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::collect::place::{Place, Ran, Server, scripted};
use crate::support::stand_in::{Dialect, Setup};
use crate::support::toy::Toy;

const MORE: [&str; 6] = ["--group-size", "2", "--concurrency", "1", "--weights-check-answers", "1"];

fn collect(place: &Place, server: &Server, dialect: Dialect, more: &[&str]) -> Ran {
    let url = server.url();
    let mut arguments = Place::arguments(&url, more);
    let kind = arguments.iter_mut().find(|it| **it == "vllm").unwrap();
    *kind = if dialect == Dialect::Vllm { "vllm" } else { "sglang" };
    place.run(&arguments)
}

/// How many prompts a server is sent in an undisturbed run.
fn n_prompts(dialect: Dialect) -> u64 {
    let (place, server) = (Place::new(), Server::start(scripted(dialect)));
    collect(&place, &server, dialect, &MORE).expect(0);
    server.stand_in.asked().iter().map(|asked| asked.prompts.len() as u64).sum()
}

fn versions(place: &Place) -> Vec<Value> {
    let episodes = place.episodes("runs/collect");
    episodes.values().flat_map(|it| it["versions"].as_array().cloned().unwrap_or_default()).collect()
}

#[test]
fn draws_say_which_weights_sampled_them_and_never_guess() {
    for (dialect, names_weights) in [(Dialect::Vllm, false), (Dialect::Sglang, true)] {
        let (place, after) = (Place::new(), n_prompts(dialect) - 12);
        let setup = Setup { new_weights: vec![(after, 2)], names_weights, ..scripted(dialect) };
        let server = Server::start(setup);
        collect(&place, &server, dialect, &[&MORE[..], &["--new-weights", "continue"]].concat()).expect(0);
        let found = versions(&place);
        // Six episodes of three actions each.
        assert_eq!(found.len(), 18, "{found:?}");
        let known: BTreeSet<&str> = found.iter().filter_map(|it| it["version"].as_str()).collect();
        assert_eq!(known.len(), 2, "{found:?}");
        let between = found.iter().filter(|it| it["version"].is_null());
        let both: BTreeSet<&str> =
            between.flat_map(|it| it["between"].as_array().unwrap()).map(|it| it.as_str().unwrap()).collect();
        assert!(both == known, "{found:?}");
        let told: BTreeSet<&str> = found.iter().filter_map(|it| it["told"].as_str()).collect();
        assert_eq!(told, if names_weights { ["w1", "w2"].into() } else { BTreeSet::new() });
    }
}

#[test]
fn new_weights_end_a_run_that_did_not_expect_them() {
    let (place, after) = (Place::new(), n_prompts(Dialect::Vllm) - 12);
    let setup = Setup { new_weights: vec![(after, 2)], ..scripted(Dialect::Vllm) };
    let server = Server::start(setup);
    let ran = collect(&place, &server, Dialect::Vllm, &MORE).expect(3);
    assert!(ran.stderr.contains(" is another model than before: "), "{}", ran.stderr);
    let known: BTreeSet<String> =
        versions(&place).iter().filter_map(|it| it["version"].as_str().map(str::to_owned)).collect();
    assert_eq!(known.len(), 1);
}

/// The second replica has new weights, the first has not been synced yet.
#[test]
fn an_episode_stays_on_one_replica_and_a_group_says_that_its_members_differ() {
    let (place, old) = (Place::new(), Server::start(scripted(Dialect::Vllm)));
    let new = Server::start(Setup { toy: Toy { weights: 2 }, ..scripted(Dialect::Vllm) });
    let url = new.url();
    // Addresses decide who goes where: of so many members all go to one server once in many thousand runs.
    let more = ["--url", &url, "--new-weights", "continue", "--group-size", "8", "--concurrency", "4"];
    collect(&place, &old, Dialect::Vllm, &more).expect(0);
    let seeds = |server: &Server| -> BTreeSet<u64> { server.draws().into_iter().map(|it| it.1).collect() };
    assert!(!seeds(&old).is_empty() && !seeds(&new).is_empty());
    assert!(seeds(&old).is_disjoint(&seeds(&new)));
    let of_group = |episodes: &[&Value]| -> BTreeSet<String> {
        let all = episodes.iter().flat_map(|it| it["versions"].as_array().unwrap());
        all.map(|it| it["version"].as_str().unwrap().to_owned()).collect()
    };
    let episodes = place.episodes("runs/collect");
    assert!(episodes.values().all(|it| of_group(&[it]).len() == 1), "an episode is of one version");
    let rows = place.lines("runs/collect/metrics.jsonl");
    let mut n_mixed = 0;
    for row in &rows {
        let members: Vec<&Value> = episodes.values().filter(|it| it["task"]["id"] == row["task"]).collect();
        let told: BTreeSet<String> = serde_json::from_value(row["versions"].clone()).unwrap();
        assert_eq!(told, of_group(&members), "{row}");
        n_mixed += usize::from(told.len() > 1);
    }
    let said =
        |it: &Value| it["text"].as_str().is_some_and(|it| it.contains("was sampled by different weights"));
    let events = place.lines("runs/collect/events.jsonl");
    assert_eq!(events.iter().filter(|it| said(it)).count(), n_mixed, "{events:?}");
    assert!(n_mixed > 0);
}
