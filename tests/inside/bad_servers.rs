//! Servers that hang, reset, overflow, lie and stammer: each job gets the right answer or a precise
//! error, never a wrong number, and the jobs beside it are unharmed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backsight::model::endpoint::{BreakerRules, PoolRules};
use backsight::model::planned::{JobScores, Pace, Planned, score_at, score_planned};
use backsight::model::retry::Policy;
use backsight::model::secret::Secret;
use backsight::model::transport::{Auth, Method, Notice, Outgoing, Settings, Transport};
use backsight::model::{Error, Model, Scored};
use backsight::score::{ScoreJob, SpanScore};
use backsight::tokens::{Logprob, TokenSpan};

use crate::inside::support::plain;
use crate::inside::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::inside::support::toy::Toy;

const DIALECTS: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];
const N_JOBS: u32 = 12;
/// The job that meets the fault.
const MARKED: u32 = 5;
const FOR_EVER: usize = usize::MAX;

/// As in production, only faster.
fn settings() -> Settings {
    let ms = Duration::from_millis;
    let breaker = BreakerRules { failures: 5, cooldown: ms(10), longest_cooldown: ms(50) };
    let policy = Policy {
        attempts: 4,
        garbled_attempts: 3,
        first_wait: ms(4),
        longest_wait: ms(20),
        longest_retry_after: Duration::from_secs(3),
        only_when_busy: false,
        after_silence: true,
    };
    Settings {
        timeout: ms(400),
        policy,
        pool: PoolRules { breaker, patience: Duration::from_secs(2), ..PoolRules::default() },
        jitter_seed: Some(1),
        ..Settings::default()
    }
}

fn job(n: u32) -> ScoreJob {
    let tokens: Vec<u32> = (0..40).map(|at| if at == 3 { n } else { at * 7 }).collect();
    ScoreJob::new(tokens.into(), vec![TokenSpan::at(20, 8), TokenSpan::at(30, 10)], 3).unwrap()
}

/// Compares with the arithmetic itself, bit for bit, candidates included.
fn assert_right(job: &ScoreJob, scored: &Scored) {
    assert_eq!(assert_nothing_wrong(job, &scored.spans), 0, "positions have no logprob");
}

/// Like [`assert_right`], but a position may also be absent, with its reason; says how many are.
fn assert_nothing_wrong(job: &ScoreJob, scored: &[SpanScore]) -> usize {
    let toy = Toy { weights: 1 };
    let contexts = toy.contexts(job.tokens());
    let spans: Vec<TokenSpan> = scored.iter().map(SpanScore::span).collect();
    assert_eq!(spans, job.spans());
    for span in scored {
        for (position, score) in span.span().range().zip(span.scores()) {
            let Ok(logprob) = score.logprob else { continue };
            let id = job.tokens()[position];
            assert_eq!(logprob.get(), contexts[position].logprob(id), "at {position}");
            for (id, logprob) in contexts[position].top(job.top_k()) {
                assert_eq!(
                    score.top.get(id).map(Logprob::get),
                    Some(logprob),
                    "candidate {id} at {position}"
                );
            }
            assert!(score.top.get(id).is_some());
        }
    }
    scored.iter().map(|span| span.absent().count()).sum()
}

/// What the marked job comes to.
enum Expect {
    Right,
    /// An error with these words. What a decoder says is its own business; the rest is not.
    Error(&'static str),
    /// An error, or one position without a logprob.
    Absence,
}

/// Runs all jobs at once against a server whose marked job meets `fault` the first `times`; returns
/// how often the marked job was asked.
async fn check(dialect: Dialect, fault: Fault, times: usize, expect: &Expect) -> usize {
    let what = format!("{dialect:?} {fault:?} x {times}");
    let setup = Setup::new(dialect).faults(move |asked| {
        let hit = asked.ids.get(3) == Some(&MARKED) && asked.times_before < times;
        hit.then(|| fault.clone())
    });
    let server = StandIn::start(setup).await;
    let model = plain::open(dialect, &[server.url()], settings());
    let tasks: Vec<_> = (0..N_JOBS)
        .map(|n| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job(n)).await })
        })
        .collect();
    for (n, task) in (0..N_JOBS).zip(tasks) {
        let outcome = task.await.unwrap();
        let expect = if n == MARKED { expect } else { &Expect::Right };
        assert_came_to(&what, &job(n), &outcome.map(|scored| scored.spans), expect);
    }
    asked_for(&server, MARKED)
}

fn assert_came_to(what: &str, job: &ScoreJob, outcome: &Result<Vec<SpanScore>, Error>, expect: &Expect) {
    match (outcome, expect) {
        (Ok(spans), Expect::Right) => assert_eq!(assert_nothing_wrong(job, spans), 0, "{what}"),
        (Ok(spans), Expect::Absence) => assert_eq!(assert_nothing_wrong(job, spans), 1, "{what}"),
        (Err(Error::Garbled { .. }), Expect::Absence) => {}
        (Err(error), Expect::Error(words)) => assert!(error.to_string().contains(words), "{what}: {error}"),
        _ => panic!("{what}: a job came to {outcome:?}"),
    }
}

/// A job that rides along in the request of `job(n)`.
fn rider(n: u32) -> ScoreJob {
    ScoreJob::new(job(n).tokens()[..30].into(), vec![TokenSpan::at(20, 8)], 1).unwrap()
}

async fn planned(model: &Arc<dyn Model>, jobs: &[ScoreJob]) -> (Vec<Result<Vec<SpanScore>, Error>>, Planned) {
    let mut outcomes: Vec<Option<_>> = jobs.iter().map(|_| None).collect();
    let mut settle = |job: usize, scored: Result<JobScores, Error>| {
        let spans = scored.map(|it| it.spans);
        assert!(outcomes[job].replace(spans).is_none(), "job {job} was settled twice");
        ControlFlow::Continue(())
    };
    let planned = score_planned(model, jobs, &mut settle).await;
    (outcomes.into_iter().map(Option::unwrap).collect(), planned)
}

/// As [`check`], but through a plan in which every job has a rider; on SGLang requests are sent together too.
async fn check_planned(dialect: Dialect, fault: Fault, times: usize, expect: &Expect) {
    let what = format!("planned {dialect:?} {fault:?} x {times}");
    let setup = Setup::new(dialect).faults(move |asked| {
        let is_marked = asked.ids.get(3) == Some(&MARKED) && asked.ids.len() == 40;
        (is_marked && asked.times_before < times).then(|| fault.clone())
    });
    let server = StandIn::start(setup).await;
    let model = plain::open(dialect, &[server.url()], settings());
    let jobs: Vec<ScoreJob> = (0..N_JOBS).flat_map(|n| [rider(n), job(n)]).collect();
    let (outcomes, planned) = planned(&model, &jobs).await;
    for (idx, (job, outcome)) in jobs.iter().zip(&outcomes).enumerate() {
        let is_marked = idx == 2 * MARKED as usize + 1;
        assert_came_to(&what, job, outcome, if is_marked { expect } else { &Expect::Right });
    }
    assert_eq!((planned.figures.requests, planned.stopped_by), (u64::from(N_JOBS), None), "{what}");
    let largest = server.asked().iter().map(|asked| asked.prompts.len()).max();
    assert_eq!(largest > Some(1), dialect == Dialect::Sglang, "{what}");
}

fn asked_for(server: &StandIn, n: u32) -> usize {
    server.asked().iter().filter(|asked| asked.ids.get(3) == Some(&n)).count()
}

fn status(status: u16, headers: &str) -> Fault {
    Fault::Status(status, headers.to_owned(), r#"{"error":{"message":"so it is"}}"#.to_owned())
}

#[tokio::test]
async fn what_passes_is_waited_out() {
    let passing = [
        (Fault::Slow(Duration::from_millis(100)), FOR_EVER, 1),
        (Fault::Hang, 1, 2),
        (Fault::Reset, 1, 2),
        (Fault::Reset, 3, 4),
        (Fault::ResetMidway, 1, 2),
        (status(500, ""), 3, 4),
        (status(502, ""), 1, 2),
        (status(503, ""), 2, 3),
        (status(529, ""), 1, 2),
        (status(408, ""), 1, 2),
        (status(425, ""), 1, 2),
        (status(429, ""), 2, 3),
        (Fault::Status(204, String::new(), String::new()), 1, 2),
        (Fault::Html, 1, 2),
        (Fault::CutHonestly, 1, 2),
        (Fault::CutSilently, 2, 3),
        (Fault::UnderstatedLength, 1, 2),
        (Fault::OneTooShort, 1, 2),
        (Fault::OneTooLong, 1, 2),
        (Fault::OtherIds, 1, 2),
        (Fault::Nul, 1, 2),
        (Fault::Huge(200_000_000, true), 1, 2),
        (Fault::Empty, 1, 2),
        (Fault::ErrorIn200, 1, 2),
    ];
    for dialect in DIALECTS {
        for (fault, times, n_asked) in passing.clone() {
            assert_eq!(check(dialect, fault.clone(), times, &Expect::Right).await, n_asked, "{fault:?}");
            check_planned(dialect, fault, times, &Expect::Right).await;
        }
    }
}

#[tokio::test]
async fn what_stays_is_a_precise_error() {
    let lasting = [
        (Fault::Hang, "cannot be reached: no answer within 0.4 s", 4),
        (Fault::Reset, "cannot be reached: ", 4),
        (Fault::ResetMidway, "the answer was cut after ", 3),
        (status(500, ""), "is not able to answer now: HTTP 500: so it is", 4),
        (status(429, ""), "is not able to answer now: HTTP 429: so it is", 4),
        (Fault::Status(204, String::new(), String::new()), "HTTP 204: it answered without a body", 4),
        (Fault::Html, "it looks like HTML: \"<!DOCTYPE html>\\n<html><body>please log in", 3),
        (Fault::CutHonestly, "the JSON ends in the middle at byte ", 3),
        (Fault::CutSilently, "the answer was cut after ", 3),
        (Fault::UnderstatedLength, "the JSON ends in the middle at byte ", 3),
        (Fault::OneTooShort, " positions, ", 3),
        (Fault::OneTooLong, " positions, ", 3),
        (Fault::OtherIds, "token ", 3),
        (Fault::Nul, " is NUL: ", 3),
        (Fault::Empty, "the body is empty", 3),
        (Fault::ErrorIn200, "the engine is dead", 3),
    ];
    for dialect in DIALECTS {
        for (fault, words, n_asked) in lasting.clone() {
            assert_eq!(
                check(dialect, fault.clone(), FOR_EVER, &Expect::Error(words)).await,
                n_asked,
                "{fault:?}"
            );
            check_planned(dialect, fault, FOR_EVER, &Expect::Error(words)).await;
        }
    }
}

#[tokio::test]
async fn what_is_no_number_never_becomes_one() {
    for dialect in DIALECTS {
        // Whoever keeps answers asks again.
        assert_eq!(check(dialect, Fault::NotANumber, FOR_EVER, &Expect::Absence).await, 1);
        check_planned(dialect, Fault::NotANumber, FOR_EVER, &Expect::Absence).await;
    }
}

#[tokio::test]
async fn what_is_refused_is_asked_once() {
    for dialect in DIALECTS {
        for code in [400, 401, 403, 404, 409, 413, 422] {
            let words = Expect::Error("refused the request: HTTP 4");
            assert_eq!(check(dialect, status(code, ""), FOR_EVER, &words).await, 1, "{code}");
            check_planned(dialect, status(code, ""), FOR_EVER, &words).await;
        }
        let redirect = status(307, "location: http://elsewhere.example/login\r\n");
        let words = Expect::Error("HTTP 307: it redirects to http://elsewhere.example/login");
        assert_eq!(check(dialect, redirect, FOR_EVER, &words).await, 1);
    }
}

#[tokio::test]
async fn two_hundred_megabytes_are_not_read() {
    for (dialect, told) in DIALECTS.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let setup = Setup::new(dialect).faults(move |_| Some(Fault::Huge(200_000_000, told)));
        let server = StandIn::start(setup).await;
        let model = plain::open(dialect, &[server.url()], settings());
        let error = model.score(&job(0)).await.unwrap_err();
        assert!(error.to_string().contains("the answer is longer than "), "{error}");
        // Three attempts of a few megabytes each, and what the sockets hold.
        let written = server.bytes_written();
        assert!(written < 60_000_000, "{written} bytes went over");
    }
}

#[tokio::test]
async fn retry_after_is_honoured_and_holds_up_nobody() {
    for dialect in DIALECTS {
        check_retry_after(dialect).await;
    }
}

async fn check_retry_after(dialect: Dialect) {
    let setup = Setup::new(dialect).faults(|asked| {
        let hit = asked.ids.get(3) == Some(&MARKED) && asked.times_before == 0;
        hit.then(|| status(429, "retry-after: 1\r\n"))
    });
    let server = StandIn::start(setup).await;
    let mut settings = settings();
    settings.pool.concurrency = 1;
    let model = plain::open(dialect, &[server.url()], settings);
    let begun = Instant::now();
    let marked = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.score(&job(MARKED)).await.map(|_| begun.elapsed()) }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(asked_for(&server, MARKED), 1);
    for n in 0..MARKED {
        assert_right(&job(n), &model.score(&job(n)).await.unwrap());
    }
    let others = begun.elapsed();
    let marked = marked.await.unwrap().unwrap();
    assert!(others < Duration::from_millis(900), "the others waited {others:?}");
    assert!(marked >= Duration::from_secs(1), "the refused one waited only {marked:?}");
}

#[tokio::test]
async fn a_plan_goes_on_while_one_of_its_requests_waits() {
    for dialect in DIALECTS {
        let setup = Setup::new(dialect).faults(|asked| {
            let hit = asked.ids.get(3) == Some(&MARKED) && asked.times_before == 0;
            hit.then(|| status(429, "retry-after: 2\r\n"))
        });
        let server = StandIn::start(setup).await;
        let model = plain::open(dialect, &[server.url()], settings());
        let jobs: Vec<ScoreJob> = (0..N_JOBS).map(job).collect();
        let (begun, mut settled) = (Instant::now(), Vec::new());
        let mut settle = |job: usize, scored: Result<JobScores, Error>| {
            assert_eq!(assert_nothing_wrong(&jobs[job], &scored.unwrap().spans), 0);
            settled.push((job, begun.elapsed()));
            ControlFlow::Continue(())
        };
        let pace = Pace { at_once: 1, ..Pace::default() };
        let plan = backsight::plan::plan(&jobs, model.limits());
        score_at(&pace, &model, &plan, &mut settle).await;
        assert_eq!(settled.len(), N_JOBS as usize);
        for (job, after) in settled {
            let is_late = after >= Duration::from_secs(2);
            assert_eq!(is_late, job == MARKED as usize, "{dialect:?}: job {job} after {after:?}");
        }
    }
}

#[tokio::test]
async fn a_server_may_ask_for_more_time_than_our_patience() {
    for dialect in DIALECTS {
        let begun = Instant::now();
        let asks = Duration::from_secs(2);
        let setup = Setup::new(dialect)
            .faults(move |_| (begun.elapsed() < asks).then(|| status(429, "retry-after: 2\r\n")));
        let server = StandIn::start(setup).await;
        let mut settings = settings();
        settings.pool.patience = Duration::from_secs(1);
        settings.pool.concurrency = 8;
        let model = plain::open(dialect, &[server.url()], settings);
        let tasks: Vec<_> = (0..40)
            .map(|n| {
                let model = Arc::clone(&model);
                tokio::spawn(async move { model.score(&job(n)).await })
            })
            .collect();
        for (n, outcome) in (0..40).zip(futures_of(tasks).await) {
            assert_right(&job(n), &outcome.unwrap());
        }
    }
}

#[tokio::test]
async fn several_slow_servers_work_at_once() {
    for dialect in DIALECTS {
        let slow = |_: &Asked| Some(Fault::Slow(Duration::from_millis(10)));
        let servers = [
            StandIn::start(Setup::new(dialect).faults(slow)).await,
            StandIn::start(Setup::new(dialect).faults(slow)).await,
        ];
        let urls: Vec<String> = servers.iter().map(StandIn::url).collect();
        let mut settings = settings();
        settings.pool.concurrency = 4;
        let model = plain::open(dialect, &urls, settings);
        let tasks: Vec<_> = (0..120)
            .map(|n| {
                let model = Arc::clone(&model);
                tokio::spawn(async move { model.score(&job(n)).await })
            })
            .collect();
        let asked = || servers.each_ref().map(|server| server.work().requests);
        while asked().iter().sum::<u64>() < 60 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(asked().iter().all(|n| *n >= 15), "of the first half {:?} each", asked());
        for (n, outcome) in (0..120).zip(futures_of(tasks).await) {
            assert_right(&job(n), &outcome.unwrap());
        }
    }
}

#[tokio::test]
async fn a_retry_after_of_an_hour_is_not_waited_for() {
    let setup = Setup::new(Dialect::Vllm).faults(|_| Some(status(503, "retry-after: 3600\r\n")));
    let server = StandIn::start(setup).await;
    let model = plain::open(Dialect::Vllm, &[server.url()], settings());
    let error = model.score(&job(0)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { status: 503, .. }), "{error}");
    assert_eq!(server.work().requests, 1);
}

#[tokio::test]
async fn a_key_is_sent_and_never_shown() {
    let key = "sk-live-0123456789";
    let echo = format!("{{\"error\":{{\"message\":\"bad key {key}\"}}}}");
    let faults = [
        Fault::Status(401, String::new(), echo.clone()),
        Fault::Status(500, String::new(), format!("<p>{key}</p>")),
        Fault::Status(200, String::new(), echo),
        Fault::Status(307, format!("location: http://x/?key={key}\r\n"), String::new()),
    ];
    for fault in faults {
        let shown = fault.clone();
        let server = StandIn::start(Setup::new(Dialect::Vllm).faults(move |_| Some(fault.clone()))).await;
        let notices = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&notices);
        let mut settings = settings();
        settings.auth = Some(Auth { header: "authorization", prefix: "Bearer ", key: Secret::new(key) });
        settings.watch =
            Some(Arc::new(move |notice| written.lock().unwrap().push_str(&format!("{notice:?}"))));
        let url = server.url().replace("http://", "http://me:hunter2-secret@");
        let error = plain::open(Dialect::Vllm, &[url], settings).score(&job(0)).await.unwrap_err();
        let said = format!("{error} {error:?} {}", notices.lock().unwrap());
        assert!(
            said.contains("***") && !said.contains("sk-live") && !said.contains("hunter2"),
            "{shown:?}: {said}"
        );
        let asked = &server.asked()[0];
        assert!(asked.head.contains(&format!("authorization: Bearer {key}")), "{}", asked.head);
    }
}

#[tokio::test]
async fn jobs_survive_the_loss_of_one_of_two_servers() {
    let mut servers = Vec::new();
    for _ in 0..2 {
        let slow = |_: &Asked| Some(Fault::Slow(Duration::from_millis(40)));
        servers.push(StandIn::start(Setup::new(Dialect::Sglang).faults(slow)).await);
    }
    let urls: Vec<String> = servers.iter().map(StandIn::url).collect();
    let down = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&down);
    let mut settings = settings();
    settings.watch = Some(Arc::new(move |notice| {
        seen.fetch_add(usize::from(matches!(notice, Notice::Down { .. })), Ordering::Relaxed);
    }));
    settings.pool.concurrency = 4;
    let model = plain::open(Dialect::Sglang, &urls, settings);
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job(n)).await })
        })
        .collect();
    while servers.iter().any(|server| server.work().requests == 0) {
        assert!(tasks.iter().any(|task| !task.is_finished()), "both are used");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let lost = servers.remove(0);
    drop(lost);
    for (n, task) in (0..200).zip(tasks) {
        assert_right(&job(n), &task.await.unwrap().unwrap());
    }
    assert!(down.load(Ordering::Relaxed) > 0, "the lost server is left alone");
}

#[tokio::test]
async fn equal_prefixes_go_to_one_server() {
    let servers = [
        StandIn::start(Setup::new(Dialect::Sglang)).await,
        StandIn::start(Setup::new(Dialect::Sglang)).await,
        StandIn::start(Setup::new(Dialect::Sglang)).await,
    ];
    let urls: Vec<String> = servers.iter().map(StandIn::url).collect();
    let model = plain::open(Dialect::Sglang, &urls, settings());
    for _ in 0..3 {
        for n in 0..8 {
            model.score(&job(n)).await.unwrap();
        }
    }
    // Of each prefix the first request computes; the others find everything before their start.
    let cached: u64 = servers.iter().map(|server| server.work().cached).sum();
    assert!(cached >= 2 * 8 * 19, "{cached} tokens were cached");
    assert!(servers.iter().filter(|server| server.work().requests > 0).count() > 1, "they are spread");
    // Sent together, each still goes where its beginning is known.
    let before: Vec<u64> = servers.iter().map(|server| server.work().requests).collect();
    let together: Vec<ScoreJob> = (0..8).map(job).collect();
    for (job, scored) in together.iter().zip(model.score_many(&together).await) {
        assert_right(job, &scored.unwrap());
    }
    let more: u64 = servers.iter().map(|server| server.work().cached).sum::<u64>() - cached;
    assert_eq!(more, 8 * 19);
    for (server, before) in servers.iter().zip(before) {
        assert!(server.work().requests <= before + 1, "one request for each server");
    }
}

#[tokio::test]
async fn a_restart_in_the_middle_is_ordinary() {
    let first = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let (address, url) = (first.address.to_string(), first.url());
    let model = plain::open(Dialect::Vllm, &[url], settings());
    assert_right(&job(0), &model.score(&job(0)).await.unwrap());
    drop(first);
    let tasks: Vec<_> = (0..30)
        .map(|n| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job(n)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _second = StandIn::start_at(&address, Setup::new(Dialect::Vllm)).await;
    let outcomes = futures_of(tasks).await;
    let n_right = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    // A job that was itself the trial several times may give up; most only wait.
    assert!(n_right >= 25, "{n_right} of 30: {:?}", outcomes.iter().find_map(|it| it.as_ref().err()));
    for (n, outcome) in (0..30).zip(&outcomes) {
        if let Ok(scored) = outcome {
            assert_right(&job(n), scored);
        }
    }
}

/// A server that is gone ends a plan after a few requests, not after all of them.
#[tokio::test]
async fn a_plan_ends_when_its_server_is_gone() {
    for dialect in DIALECTS {
        let gone = StandIn::start(Setup::new(dialect)).await.url();
        let mut settings = settings();
        settings.pool.concurrency = 2;
        let model = plain::open(dialect, &[gone], settings);
        let jobs: Vec<ScoreJob> = (0..2000).map(job).collect();
        let (outcomes, planned) = planned(&model, &jobs).await;
        assert!(matches!(planned.stopped_by, Some(Error::Unreachable { .. })), "{planned:?}");
        for outcome in outcomes {
            assert!(outcome.unwrap_err().to_string().contains("Connection refused"));
        }
    }
}

async fn futures_of<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

#[tokio::test]
async fn a_server_that_is_gone_fails_every_job_in_bounded_time() {
    let gone = StandIn::start(Setup::new(Dialect::Vllm)).await.url();
    let model = plain::open(Dialect::Vllm, &[gone], settings());
    let begun = Instant::now();
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job(n)).await })
        })
        .collect();
    for outcome in futures_of(tasks).await {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("Connection refused"), "{error}");
        assert!(error.help().unwrap().contains("see that the server runs and the address is right"));
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn pressure_makes_room() {
    // Works on four requests at once and turns the others away, as a busy gateway does.
    let busy = Arc::new(AtomicUsize::new(0));
    let setup = Setup::new(Dialect::Vllm).faults(move |_| {
        if busy.fetch_add(1, Ordering::SeqCst) >= 4 {
            busy.fetch_sub(1, Ordering::SeqCst);
            return Some(status(429, ""));
        }
        let (leave, work) = (Arc::clone(&busy), Duration::from_millis(5));
        tokio::spawn(async move {
            tokio::time::sleep(work).await;
            leave.fetch_sub(1, Ordering::SeqCst);
        });
        Some(Fault::Slow(work))
    });
    let server = StandIn::start(setup).await;
    let mut settings = settings();
    settings.policy.attempts = 30;
    let model = plain::open(Dialect::Vllm, &[server.url()], settings);
    let tasks: Vec<_> = (0..150)
        .map(|n| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job(n)).await })
        })
        .collect();
    for (n, outcome) in (0..150).zip(futures_of(tasks).await) {
        assert_right(&job(n), &outcome.unwrap());
    }
    let turned_away = server.work().requests - 150;
    assert!(turned_away < 450, "{turned_away} requests were turned away for 150 answered");
}

#[tokio::test]
async fn routes_are_reached_with_every_way_to_write_the_address() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    for tail in ["", "/", "/v1", "/v1/"] {
        let transport = Transport::open(&[server.url() + tail], settings()).unwrap();
        let call = Outgoing {
            method: Method::GET,
            path: "/v1/models",
            body: None,
            tokens: 1,
            sticky: 0,
            max_answer: 10_000,
            timeout: None,
        };
        let brief = transport.briefly();
        let listed = brief.call(&call, &|answer| {
            let json: serde_json::Value =
                serde_json::from_slice(answer.body).map_err(|why| why.to_string())?;
            Ok(json["data"][0]["id"].clone())
        });
        assert_eq!(listed.await.unwrap(), "toy");
        assert_eq!(transport.server(), server.url());
        assert_eq!(transport.each().unwrap().len(), 1);
    }
}
