//! The scripted model is as strict as a real one: what it samples it scores the same.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use crate::support::scripted::{Asked, Calls, Scripted};
use backsight::episode::{Message, Role};
use backsight::model::{ChatRequest, Error, Finish, GenerateRequest, Limits, Model, Place, Sampling};
use backsight::score::ScoreJob;
use backsight::tokens::{Logprob, TokenId, TokenSpan};

fn job(tokens: &[TokenId], start: usize, end: usize, top_k: usize) -> ScoreJob {
    ScoreJob::new(Arc::from(tokens), vec![TokenSpan::new(start, end).unwrap()], top_k).unwrap()
}

fn request(temperature: f64, place: Place) -> GenerateRequest {
    let sampling =
        Sampling { temperature, top_p: 1.0, top_k: None, seed: Some(1), max_tokens: 12, constraint: None };
    GenerateRequest { prompt: vec![3, 1, 4], sampling, stop_ids: vec![0], top_k: 4, place }
}

fn place(episode: usize, vote: usize) -> Place {
    Place { task: "t".to_owned(), episode, step: 0, vote }
}

#[tokio::test]
async fn what_is_sampled_is_scored_the_same() {
    let model = Scripted::new(64);
    let drawn = model.generate(&request(1.0, place(0, 0))).await.unwrap();
    let ids: Vec<_> = drawn.tokens.iter().map(|token| token.id).collect();
    let all: Vec<_> = [3, 1, 4].into_iter().chain(ids).collect();
    let scored = model.score(&job(&all, 3, all.len(), 4)).await.unwrap();
    for (sampled, scored) in drawn.tokens.iter().zip(scored.spans[0].scores()) {
        assert_eq!(sampled.logprob, scored.logprob.clone().ok());
        assert_eq!(sampled.top, scored.top);
    }
    assert!(drawn.tokens.len() > 1);
}

#[tokio::test]
async fn scores_depend_on_the_prefix_and_the_weights_only() {
    let logprobs = async |model: &Scripted, tokens: &[TokenId], start: usize| {
        let scored = model.score(&job(tokens, start, start + 1, 0)).await.unwrap();
        scored.spans[0].logprobs().next().flatten()
    };
    let model = Scripted::new(64);
    let here = logprobs(&model, &[1, 2, 3, 4], 2).await;
    assert_eq!(here, logprobs(&model, &[1, 2, 3, 9, 9], 2).await);
    assert_ne!(here, logprobs(&model, &[1, 5, 3, 4], 2).await);
    assert_ne!(here, logprobs(&Scripted::new(64).with_seed(1), &[1, 2, 3, 4], 2).await);
    assert_eq!(logprobs(&model, &[1, 2], 0).await, None);
}

#[tokio::test]
async fn probabilities_add_up_to_one() {
    let scored = Scripted::new(50).score(&job(&[1, 2], 1, 2, 50)).await.unwrap();
    let row = &scored.spans[0].scores()[0].top;
    let total: f64 = row.entries().iter().map(|entry| entry.1.get().exp()).sum();
    assert_eq!(row.entries().len(), 50);
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    assert!(row.entries().iter().all(|entry| Logprob::new(entry.1.get()).is_ok()));
}

#[tokio::test]
async fn draws_differ_by_place_and_repeat() {
    let model = Scripted::new(64);
    let ids = async |temperature, place| {
        let drawn = model.generate(&request(temperature, place)).await.unwrap();
        drawn.tokens.iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1.0, place(0, 0)).await, ids(1.0, place(0, 0)).await);
    assert_ne!(ids(1.0, place(0, 0)).await, ids(1.0, place(1, 0)).await);
    assert_eq!(ids(0.0, place(0, 0)).await, ids(0.0, place(1, 0)).await);
    let ask = |vote| ChatRequest {
        messages: vec![Message::text(Role::User, "hi")],
        tools: vec![],
        sampling: request(1.0, place(0, 0)).sampling,
        place: place(0, vote),
    };
    let first = model.chat(&ask(0)).await.unwrap().message;
    assert_ne!(first, model.chat(&ask(1)).await.unwrap().message);
    assert_eq!(first, model.chat(&ask(0)).await.unwrap().message);
    assert_eq!(model.calls(), Calls { generate: 6, score: 0, chat: 3, prompt_tokens: 18 + 3 });
}

#[tokio::test]
async fn scripts_and_failures_are_followed() {
    let model = Scripted::new(64)
        .on_generate(|request| (request.place.step == 0).then(|| vec![7, 8, 0]))
        .on_chat(|request| (request.place.vote == 1).then(|| Message::text(Role::Assistant, "yes")))
        .failing(|asked, nth| {
            let error = Error::Invalid { what: "no".to_owned(), help: String::new() };
            (nth == 1 && matches!(asked, Asked::Generate(_))).then_some(error)
        });
    let drawn = model.generate(&request(1.0, place(0, 0))).await.unwrap();
    assert_eq!(drawn.tokens.iter().map(|token| token.id).collect::<Vec<_>>(), [7, 8, 0]);
    assert_eq!(drawn.finish, Finish::Stop);
    assert!(model.generate(&request(1.0, place(0, 0))).await.is_err());
    assert!(model.generate(&request(1.0, place(0, 0))).await.is_ok());
    assert_eq!(model.calls().generate, 3);
}

#[tokio::test]
async fn what_the_limits_exclude_is_refused() {
    let limits = Limits { vocab_size: Some(64), context_length: Some(3), scores: true, ..Limits::default() };
    let model = Scripted::new(64).with_limits(limits);
    let refused = async |job: ScoreJob| model.score(&job).await.unwrap_err().to_string();
    let outside = refused(job(&[1, 64], 1, 2, 0)).await;
    assert_eq!(outside, "token 64 at position 1 is outside the vocabulary of 64");
    let long = refused(job(&[1, 2, 3], 1, 3, 0)).await;
    assert_eq!(long, "3 tokens do not fit a context of 3 with room for one more");
    let ids = model.generate(&request(1.0, place(0, 0))).await.unwrap_err().to_string();
    assert_eq!(ids, "the scripted model cannot take token ids");
}
