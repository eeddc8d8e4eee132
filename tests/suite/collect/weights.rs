//! Weights that are replaced while episodes are sampled: every token says which it came from, or between which.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::collect::place::{Place, Ran, Server, scripted};
use crate::support::stand_in::{Dialect, Setup};

const MORE: [&str; 6] = ["--group-size", "2", "--concurrency", "1", "--weights-check-answers", "1"];

fn collect(place: &Place, server: &Server, dialect: Dialect, more: &[&str]) -> Ran {
    let url = server.url();
    let mut arguments = Place::arguments(&url, &[&MORE[..], more].concat());
    let kind = arguments.iter_mut().find(|it| **it == "vllm").unwrap();
    *kind = if dialect == Dialect::Vllm { "vllm" } else { "sglang" };
    place.run(&arguments)
}

/// How many prompts a server is sent in an undisturbed run.
fn n_prompts(dialect: Dialect) -> u64 {
    let (place, server) = (Place::new(), Server::start(scripted(dialect)));
    collect(&place, &server, dialect, &[]).expect(0);
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
        collect(&place, &server, dialect, &["--new-weights", "continue"]).expect(0);
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
    let ran = collect(&place, &server, Dialect::Vllm, &[]).expect(3);
    assert!(ran.stderr.contains(" is another model than before: "), "{}", ran.stderr);
    let known: BTreeSet<String> =
        versions(&place).iter().filter_map(|it| it["version"].as_str().map(str::to_owned)).collect();
    assert_eq!(known.len(), 1);
}
