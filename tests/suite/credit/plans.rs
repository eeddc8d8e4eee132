//! Planned on a real engine, every job gets the numbers it gets alone.

use std::sync::Arc;

use backsight::engine::engine::{Engine, EngineOptions};
use backsight::model::Limits;
use backsight::plan::plan;
use backsight::score::{ScoreJob, SpanScore};
use backsight::tokens::{TokenId, TokenSpan};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::support::plans::distribute;
use crate::support::tiny::write_model;

/// Jobs over few tokens that share beginnings: each continues a part of an earlier one.
fn job_sets() -> impl Strategy<Value = Vec<ScoreJob>> {
    let piece = prop::collection::vec(5_u32..700, 1..40);
    let part = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), piece);
    let spans = prop::collection::vec((any::<prop::sample::Index>(), 1_usize..30), 1..3);
    prop::collection::vec((part, spans), 1..9).prop_map(|parts| {
        let mut sequences: Vec<Vec<TokenId>> = vec![vec![1]];
        let mut jobs = Vec::new();
        for ((from, kept, piece), spans) in parts {
            let old = &sequences[from.index(sequences.len())];
            let tokens = [&old[..1 + kept.index(old.len())], &piece].concat();
            let span = |(start, len): (prop::sample::Index, usize)| {
                let start = start.index(tokens.len());
                TokenSpan::at(start, len.min(tokens.len() - start))
            };
            let spans = spans.into_iter().map(span).collect();
            jobs.push(ScoreJob::new(Arc::from(&tokens[..]), spans, 0).unwrap());
            sequences.push(tokens);
        }
        jobs
    })
}

fn logprobs(spans: &[SpanScore]) -> Vec<Option<f64>> {
    spans.iter().flat_map(|span| span.logprobs()).map(|it| it.map(|it| it.get())).collect()
}

#[test]
fn a_plan_on_the_embedded_engine_gives_what_each_job_gets_alone() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), json!({"max_position_embeddings": 1024}));
    let mut engine = Engine::load(dir.path()).unwrap();
    let backends = [Limits::CHAT, Limits::CACHING, Limits { max_scored: Some(7), ..Limits::CACHING }];
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let (mut n_compared, mut largest, mut n_unequal) = (0_usize, 0.0_f64, 0_usize);
    let results = std::cell::RefCell::new((&mut engine, &mut n_compared, &mut largest, &mut n_unequal));
    let outcome = runner.run(&job_sets(), |jobs| {
        let mut results = results.borrow_mut();
        let (engine, n_compared, largest, n_unequal) = &mut *results;
        // A fresh engine remembers nothing, so these are scored with no help from one another.
        let alone: Vec<Vec<Option<f64>>> = jobs
            .iter()
            .map(|job| {
                logprobs(
                    &Engine::load_with(dir.path(), &EngineOptions::default())
                        .unwrap()
                        .score(job)
                        .unwrap()
                        .spans,
                )
            })
            .collect();
        for backend in &backends {
            let plan = plan(&jobs, backend);
            let answers: Vec<_> = (0..plan.requests.len())
                .map(|it| Some(engine.score(&plan.ask(it).unwrap()).unwrap().spans))
                .collect();
            for (found, alone) in distribute(&plan, &answers).into_iter().zip(&alone) {
                let found = logprobs(&found.unwrap());
                prop_assert_eq!(found.len(), alone.len());
                for (found, alone) in found.iter().zip(alone) {
                    prop_assert_eq!(found.is_some(), alone.is_some());
                    let difference = found.zip(*alone).map_or(0.0, |(a, b)| (a - b).abs());
                    **n_compared += 1;
                    **n_unequal += usize::from(difference != 0.0);
                    **largest = largest.max(difference);
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(n_compared > 5_000, "{n_compared}");
    assert!(largest <= 1e-5, "{largest}");
    assert_eq!(n_unequal, 0, "the engine's sums have the same order in any company: equal to the last bit");
}
