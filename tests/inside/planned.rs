//! Jobs scored through a plan get what they get alone, whatever happens to the others.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::inside::support::scripted::{Asked, Scripted};
use backsight::model::planned::{JobScores, Planned, score_planned};
use backsight::model::{Error, Limits, Model};
use backsight::score::{ScoreJob, SpanScore};
use backsight::tokens::{TokenId, TokenSpan};
use proptest::prelude::*;

const VOCAB: usize = 4;
/// A token that the model refuses to read.
const POISON: TokenId = 3;

type Outcomes = Vec<Result<Vec<SpanScore>, Error>>;

/// Every kind of backend: with and without a cache, a start index and requests sent together.
fn any_limits() -> impl Strategy<Value = Limits> {
    any::<[bool; 3]>().prop_map(|[cached_scores, start_index, batches]| Limits {
        vocab_size: Some(VOCAB),
        scores: true,
        start_index,
        cached_scores,
        batches,
        ..Limits::default()
    })
}

fn any_job() -> impl Strategy<Value = ScoreJob> {
    // Few tokens, so that prefixes are shared, and the poison seldom.
    let token = prop_oneof![6 => 0..2u32, 1 => Just(POISON)];
    prop::collection::vec(token, 1..12).prop_flat_map(|tokens| {
        let n = tokens.len();
        let span = (0..=n, 0..=n).prop_map(|(a, b)| TokenSpan::new(a.min(b), a.max(b)).unwrap());
        let spans = prop::collection::vec(span, 0..4);
        (spans, 0..3usize).prop_map(move |(spans, top_k)| {
            ScoreJob::new(Arc::from(tokens.as_slice()), spans, top_k).unwrap()
        })
    })
}

fn refused() -> Error {
    Error::Refused { server: "s".into(), status: 400, message: "poison".into() }
}

fn model(limits: Limits, fails: fn(Asked<'_>, u64) -> Option<Error>) -> Arc<dyn Model> {
    Arc::new(Scripted::new(VOCAB).with_limits(limits).failing(fails))
}

/// Refuses what holds the poison before the last needed token.
fn refuses_poison(asked: Asked<'_>, _: u64) -> Option<Error> {
    let Asked::Score(job) = asked else { return None };
    job.tokens()[..job.end_needed()].contains(&POISON).then(refused)
}

async fn planned(model: &Arc<dyn Model>, jobs: &[ScoreJob], most: usize) -> (Outcomes, Planned) {
    let (mut outcomes, mut n): (Vec<Option<_>>, _) = (jobs.iter().map(|_| None).collect(), 0);
    let mut settle = |job: usize, scored: Result<JobScores, Error>| {
        let spans = scored.map(|it| it.spans);
        assert!(outcomes[job].replace(spans).is_none(), "job {job} was settled twice");
        n += 1;
        if n == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let planned = score_planned(model, jobs, &mut settle).await;
    assert_eq!(n, jobs.len().min(most), "not every job was settled");
    (outcomes.into_iter().flatten().collect(), planned)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_job_gets_what_it_gets_alone(jobs in prop::collection::vec(any_job(), 0..20), limits in any_limits()) {
        let model = model(limits, refuses_poison);
        let (found, figures) = block_on(planned(&model, &jobs, usize::MAX));
        for (job, found) in jobs.iter().zip(found) {
            let alone = block_on(model.score(job)).map(|scored| scored.spans);
            // A job that needs nothing is never sent, poisoned or not.
            let needs_nothing = job.first_needed().is_none();
            prop_assert!(found == alone || (needs_nothing && found.is_ok()), "{job:?}: {found:?}, alone {alone:?}");
        }
        prop_assert_eq!(figures.stopped_by, None);
    }
}

fn jobs(n: u32) -> Vec<ScoreJob> {
    let job = |n: u32| {
        let tokens: Vec<TokenId> = (0..12).map(|bit| (n >> bit) & 1).collect();
        ScoreJob::new(tokens.into(), vec![TokenSpan::at(6, 6)], 0).unwrap()
    };
    (0..n).map(job).collect()
}

fn limits(batches: bool) -> Limits {
    Limits { vocab_size: Some(VOCAB), scores: true, batches, ..Limits::default() }
}

#[test]
fn an_error_that_stops_the_run_settles_everything_at_once() {
    for batches in [false, true] {
        let fails = |_: Asked<'_>, nth: u64| {
            let error = Error::Budget { role: "teacher".into(), what: "requests", limit: 5 };
            (nth >= 5).then_some(error)
        };
        let (found, figures) = block_on(planned(&model(limits(batches), fails), &jobs(2000), usize::MAX));
        let n_scored = found.iter().filter(|it| it.is_ok()).count();
        assert_eq!(n_scored, 5);
        assert!(matches!(figures.stopped_by, Some(Error::Budget { .. })));
        assert!(found.into_iter().filter_map(Result::err).all(|it| it.stops_the_run()));
    }
}

#[test]
fn whoever_has_enough_is_told_no_more() {
    for batches in [false, true] {
        let (found, figures) = block_on(planned(&model(limits(batches), |_, _| None), &jobs(2000), 7));
        assert_eq!((found.len(), figures.stopped_by), (7, None));
    }
}

fn unreachable() -> Error {
    Error::Unreachable { server: "s".into(), why: "reset".into() }
}

#[test]
fn a_server_that_garbles_or_fails_ends_the_run_as_one_that_is_gone_does() {
    let garbled = |_: Asked<'_>, nth: u64| {
        (nth >= 20).then(|| Error::Garbled { server: "s".into(), why: "HTML".into() })
    };
    let failing = |_: Asked<'_>, nth: u64| {
        let error = || Error::Unavailable { server: "s".into(), status: 500, message: "broken".into() };
        (nth >= 20).then(error)
    };
    for (fails, expected) in
        [(garbled as fn(Asked<'_>, u64) -> Option<Error>, "unusable"), (failing, "HTTP 500")]
    {
        let (found, figures) = block_on(planned(&model(limits(false), fails), &jobs(2000), usize::MAX));
        assert_eq!(found.iter().filter(|it| it.is_ok()).count(), 20);
        assert!(figures.stopped_by.unwrap().to_string().contains(expected));
    }
}

#[test]
fn a_server_that_is_gone_ends_the_run_and_one_that_stammers_does_not() {
    let gone = model(limits(false), |_, nth| (nth >= 20).then(unreachable));
    let (found, figures) = block_on(planned(&gone, &jobs(2000), usize::MAX));
    assert_eq!(found.iter().filter(|it| it.is_ok()).count(), 20);
    assert_eq!(figures.stopped_by, Some(unreachable()));
    let stammering = model(limits(false), |_, nth| nth.is_multiple_of(2).then(unreachable));
    let (found, figures) = block_on(planned(&stammering, &jobs(300), usize::MAX));
    assert!(found.iter().filter(|it| it.is_ok()).count() >= 150 && figures.stopped_by.is_none());
    let never_there = model(limits(false), |_, _| Some(unreachable()));
    let (found, figures) = block_on(planned(&never_there, &jobs(1), usize::MAX));
    assert_eq!((found, figures.stopped_by), (vec![Err(unreachable())], Some(unreachable())));
}
