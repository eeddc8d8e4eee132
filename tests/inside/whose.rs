//! An answer belongs to the prompt that was sent: answers that changed places, came in another order or tell of
//! another prompt are never believed, and honest servers never refused.
//!
//! All prompts here are equally long and end alike, as one action under several lenses does, so that nothing but the
//! request's id, the ids of the prompt or its length tells their answers apart.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use backsight::model::endpoint::{BreakerRules, PoolRules};
use backsight::model::retry::Policy;
use backsight::model::transport::Settings;
use backsight::model::{Error, GenerateRequest, Generated, Model, Place, Sampling, Scored};
use backsight::score::ScoreJob;
use backsight::tokens::{Logprob, TokenSpan};
use futures_util::future::{join, join_all};
use serde_json::Value;

use crate::inside::support::plain;
use crate::inside::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::inside::support::toy::Toy;

const DIALECTS: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];
const OTHER: &str = "it is the answer to another request: its id is ";

fn settings() -> Settings {
    let ms = Duration::from_millis;
    let policy = Policy { garbled_attempts: 3, first_wait: ms(4), longest_wait: ms(20), ..Policy::default() };
    let breaker = BreakerRules { failures: 5, cooldown: ms(10), longest_cooldown: ms(50) };
    let pool = PoolRules { breaker, ..PoolRules::default() };
    Settings { policy, pool, jitter_seed: Some(1), ..Settings::default() }
}

async fn open(setup: Setup) -> (StandIn, Arc<dyn Model>) {
    let dialect = setup.dialect;
    let server = StandIn::start(setup).await;
    let model = plain::open(dialect, &[server.url()], settings());
    (server, model)
}

/// Forty tokens that differ from those of another `n` in the fourth alone.
fn tokens(n: u32) -> Vec<u32> {
    (0..40).map(|at| if at == 3 { 500 + n } else { at * 7 }).collect()
}

fn job(n: u32) -> ScoreJob {
    ScoreJob::new(tokens(n).into(), vec![TokenSpan::at(30, 10)], 3).unwrap()
}

fn draw(n: u32) -> GenerateRequest {
    let sampling = Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: None,
        seed: Some(4),
        max_tokens: 6,
        constraint: None,
    };
    let place = Place { episode: n as usize, ..Place::default() };
    GenerateRequest { prompt: tokens(n), sampling, stop_ids: Vec::new(), top_k: 2, place }
}

fn is_right(n: u32, scored: &Scored) -> bool {
    let expected = Toy { weights: 1 }.logprobs(&tokens(n));
    let found: Vec<_> = scored.spans[0].logprobs().map(|it| it.map(Logprob::get)).collect();
    found == expected[30..]
}

fn is_right_draw(n: u32, drawn: &Generated) -> bool {
    let ids: Vec<u32> = drawn.tokens.iter().map(|token| token.id).collect();
    // Servers read signed seeds.
    ids == Toy { weights: 1 }.sample(&tokens(n), 2, 6)
}

/// Meets the first attempts.
fn at_first(fault: Fault) -> impl Fn(&Asked) -> Option<Fault> + Send + Sync {
    move |asked| (asked.times_before == 0 && !asked.ids.is_empty()).then(|| fault.clone())
}

#[tokio::test]
async fn scores_that_changed_places_are_asked_for_again() {
    for dialect in DIALECTS {
        let (server, model) = open(Setup::new(dialect).faults(at_first(Fault::Swapped))).await;
        let (one, two) = (job(1), job(2));
        let (one, two) = join(model.score(&one), model.score(&two)).await;
        assert!(is_right(1, &one.unwrap()) && is_right(2, &two.unwrap()), "{dialect:?}");
        assert_eq!(server.work().requests, 4, "{dialect:?}");
    }
}

#[tokio::test]
async fn scores_that_never_come_back_to_their_prompts_are_an_error() {
    let words = ["the server read another prompt than the one that was sent", OTHER];
    for (dialect, words) in DIALECTS.into_iter().zip(words) {
        let (_server, model) = open(Setup::new(dialect).faults(|_| Some(Fault::Swapped))).await;
        let (one, two) = (job(1), job(2));
        let (one, two) = join(model.score(&one), model.score(&two)).await;
        for outcome in [one, two] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Garbled { .. }) && error.to_string().contains(words), "{error}");
        }
    }
}

/// vLLM says which prompt it read, so its answers are told apart even where it names requests itself.
#[tokio::test]
async fn vllm_is_believed_by_the_ids_of_its_prompt_too() {
    let setup = Setup { echoes: false, ..Setup::new(Dialect::Vllm) };
    let (server, model) = open(setup.faults(at_first(Fault::Swapped))).await;
    let (one, two) = (job(1), job(2));
    let (one, two) = join(model.score(&one), model.score(&two)).await;
    assert!(is_right(1, &one.unwrap()) && is_right(2, &two.unwrap()));
    assert_eq!(server.work().requests, 4);
}

#[tokio::test]
async fn draws_that_changed_places_are_asked_for_again() {
    for dialect in DIALECTS {
        let (server, model) = open(Setup::new(dialect).faults(at_first(Fault::Swapped))).await;
        let (one, two) = (draw(1), draw(2));
        let (one, two) = join(model.generate(&one), model.generate(&two)).await;
        assert!(is_right_draw(1, &one.unwrap()) && is_right_draw(2, &two.unwrap()), "{dialect:?}");
        assert_eq!(server.work().requests, 4, "{dialect:?}");
    }
}

#[tokio::test]
async fn a_batch_in_another_order_is_asked_for_one_by_one() {
    let (server, model) = open(Setup::new(Dialect::Sglang).faults(at_first(Fault::Reversed))).await;
    let jobs: Vec<ScoreJob> = (0..6).map(job).collect();
    let all = model.score_many(&jobs).await;
    for (n, scored) in (0..6).zip(all) {
        assert!(is_right(n, &scored.unwrap()), "job {n}");
    }
    let asked: Vec<usize> = server.asked().iter().map(|it| it.prompts.len()).collect();
    assert_eq!(asked, [6, 1, 1, 1, 1, 1, 1]);
}

#[tokio::test]
async fn a_longer_prompt_that_ends_alike_is_not_the_one_that_was_sent() {
    for dialect in DIALECTS {
        let (server, model) = open(Setup::new(dialect).faults(at_first(Fault::Longer))).await;
        assert!(is_right(1, &model.score(&job(1)).await.unwrap()), "{dialect:?}");
        assert!(is_right_draw(1, &model.generate(&draw(1)).await.unwrap()), "{dialect:?}");
        assert_eq!(server.work().requests, 4, "{dialect:?}");
    }
}

#[tokio::test]
async fn an_endpoint_that_repeated_ids_is_held_to_it() {
    for dialect in DIALECTS {
        let strange = |asked: &Asked| (asked.ids.get(3) == Some(&502)).then_some(Fault::OtherId);
        let (_server, model) = open(Setup::new(dialect).faults(strange)).await;
        assert!(is_right(2, &model.score(&job(2)).await.unwrap()), "nothing is known of the server");
        assert!(is_right(1, &model.score(&job(1)).await.unwrap()));
        let error = model.score(&job(2)).await.unwrap_err();
        assert!(error.to_string().contains(OTHER), "{error}");
        assert!(model.generate(&draw(2)).await.is_err());
        assert!(is_right(1, &model.score(&job(1)).await.unwrap()));
    }
}

#[tokio::test]
async fn each_endpoint_is_judged_by_its_own_answers() {
    for dialect in DIALECTS {
        let servers = [
            StandIn::start(Setup::new(dialect)).await,
            StandIn::start(Setup { echoes: false, ..Setup::new(dialect) }).await,
        ];
        let model = plain::open(dialect, &servers.each_ref().map(StandIn::url), settings());
        // Answers of both, in turns: what one of them does is not expected of the other.
        for n in 0..40 {
            let job = ScoreJob::new([&[n], &tokens(n)[..]].concat().into(), vec![TokenSpan::at(31, 10)], 0);
            assert!(model.score(&job.unwrap()).await.is_ok(), "{dialect:?}: job {n}");
        }
        assert!(servers.iter().all(|server| server.work().requests > 5), "both are used");
        assert_eq!(
            servers.iter().map(|server| server.work().requests).sum::<u64>(),
            40,
            "nothing is refused"
        );
    }
}

/// The id of each prompt of a request.
fn ids_of(asked: &Asked) -> Vec<String> {
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    let id = if body["rid"].is_null() { &body["request_id"] } else { &body["rid"] };
    let all = id.as_array().cloned().unwrap_or_else(|| vec![id.clone()]);
    all.iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn honest_servers_are_never_refused_and_no_id_is_sent_twice() {
    for (dialect, echoes) in DIALECTS.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let faults = |asked: &Asked| match (asked.times_before, asked.ids.get(3).map(|id| id % 4)) {
            (0, Some(0)) => Some(Fault::Reset),
            (0, Some(1)) => Some(Fault::CutHonestly),
            (0, Some(2)) => Some(Fault::Status(503, String::new(), String::new())),
            _ => None,
        };
        let (server, model) = open(Setup { echoes, ..Setup::new(dialect) }.faults(faults)).await;
        let jobs: Vec<ScoreJob> = (0..24).map(job).collect();
        let alone = join_all(jobs.iter().map(|job| model.score(job)));
        let (alone, together) = join(alone, model.score_many(&jobs)).await;
        for scored in [alone, together] {
            for (n, scored) in (0..24).zip(scored) {
                assert!(is_right(n, &scored.unwrap()), "{dialect:?}: job {n}");
            }
        }
        for n in 0..8 {
            assert!(is_right_draw(n, &model.generate(&draw(n)).await.unwrap()), "{dialect:?}: draw {n}");
        }
        let ids: Vec<String> = server.asked().iter().flat_map(ids_of).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "{dialect:?}");
    }
}
