//! Plans give every job the scores it would get alone, at the cost they say.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::plans::distribute;
use backsight_core::model::Limits;
use backsight_core::plan::{Plan, TipJob, plan, plan_tree};
use backsight_core::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};
use backsight_core::tree::{Tip, TokenTree};
use expect_test::{Expect, expect};
use proptest::prelude::*;

const VOCABULARY: TokenId = 3;

/// A model made of arithmetic: the logprob of a token depends on all tokens before it.
fn logprob(context: &[TokenId], token: TokenId) -> Logprob {
    let mut hasher = DefaultHasher::new();
    (context, token).hash(&mut hasher);
    Logprob::new(-((hasher.finish() % 1_000_003) as f64) / 1e5).unwrap()
}

fn score_position(tokens: &[TokenId], at: usize, top_k: usize, chosen: &[TokenId]) -> TokenScore {
    if at == 0 {
        return TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() };
    }
    let context = &tokens[..at];
    let all = TopK::new((0..VOCABULARY).map(|token| (token, logprob(context, token))).collect());
    let mut kept: Vec<_> = all.entries().iter().take(top_k).copied().collect();
    kept.extend(chosen.iter().map(|id| (*id, logprob(context, *id))));
    if top_k > 0 || !chosen.is_empty() {
        kept.push((tokens[at], logprob(context, tokens[at])));
    }
    TokenScore { logprob: Ok(logprob(context, tokens[at])), top: TopK::new(kept) }
}

fn score(job: &ScoreJob) -> Vec<SpanScore> {
    let position = |at| score_position(job.tokens(), at, job.top_k(), job.chosen_at(at));
    let span = |span: &TokenSpan| SpanScore::new(*span, span.range().map(position).collect()).unwrap();
    job.spans().iter().map(span).collect()
}

fn job(tokens: &[TokenId], spans: &[(usize, usize)], top_k: usize) -> ScoreJob {
    let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
    ScoreJob::new(Arc::from(tokens), spans, top_k).unwrap()
}

/// SGLang's cache: everything ever computed, found up to the token before the first scored one.
#[derive(Default)]
struct RadixCache(Vec<Arc<[TokenId]>>);

impl RadixCache {
    fn common(a: &[TokenId], b: &[TokenId]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    fn send(&mut self, ask: &ScoreJob) -> usize {
        let start = ask.first_needed().unwrap() - 1;
        let known = self.0.iter().map(|known| Self::common(known, ask.tokens())).max().unwrap_or(0);
        self.0.push(Arc::clone(ask.tokens()));
        known.min(start)
    }
}

fn n_tree_nodes(jobs: &[ScoreJob]) -> usize {
    let needed = jobs.iter().filter(|job| job.first_needed().is_some());
    let prefixes = needed.flat_map(|job| (1..=job.end_needed()).map(|end| job.tokens()[..end].to_vec()));
    prefixes.collect::<HashSet<_>>().len()
}

fn asks(plan: &Plan) -> Vec<ScoreJob> {
    (0..plan.requests.len()).map(|request| plan.ask(request).unwrap()).collect()
}

/// Shows a plan: tokens, spans, what it waits for.
fn check(jobs: &[ScoreJob], backend: Limits, expected: Expect) {
    let plan = plan(jobs, &backend);
    let lines = plan.requests.iter().enumerate().map(|(idx, it)| {
        let ask = plan.ask(idx).unwrap();
        let spans: Vec<_> = ask.spans().iter().map(TokenSpan::to_string).collect();
        let after = it.after.map(|after| format!(" after {after}")).unwrap_or_default();
        format!("{:?} {} top {} cached {}{after}\n", ask.tokens(), spans.join(" "), ask.top_k(), it.cached)
    });
    let figures = plan.figures;
    let computed = figures.computed_tokens();
    let total = format!("naive {} sent {} computed {computed}\n", figures.naive_tokens, figures.sent_tokens);
    expected.assert_eq(&(lines.collect::<String>() + &total));
}

/// A backend on which every shared token is worth waiting for.
const EVERY_TOKEN: Limits = Limits { least_share: 0, ..Limits::CACHING };

#[test]
fn prefixes_ride_along() {
    let tokens = [1, 2, 0, 1, 1, 2, 0];
    let steps =
        [job(&tokens[..3], &[(1, 3)], 0), job(&tokens[..5], &[(4, 5)], 2), job(&tokens, &[(6, 7)], 1)];
    check(
        &steps,
        EVERY_TOKEN,
        expect![[r#"
        [1, 2, 0, 1, 1, 2, 0] [1, 3) [4, 5) [6, 7) top 2 cached 0
        naive 15 sent 7 computed 7
    "#]],
    );
    check(
        &steps,
        Limits::CHAT,
        expect![[r#"
        [1, 2, 0, 1, 1, 2, 0] [1, 3) [4, 5) [6, 7) top 2 cached 0
        naive 15 sent 7 computed 7
    "#]],
    );
}

#[test]
fn branches_pay_for_their_trunk_once() {
    let branches = [
        job(&[1, 1, 7, 5], &[(3, 4)], 0),
        job(&[1, 1, 2, 2, 7, 6], &[(5, 6)], 0),
        job(&[1, 1, 2, 2, 3, 3, 7, 8], &[(7, 8)], 0),
    ];
    check(
        &branches,
        EVERY_TOKEN,
        expect![[r#"
        [1, 1, 2, 2, 3, 3, 7, 8] [7, 8) top 0 cached 0
        [1, 1, 2, 2, 7, 6] [5, 6) top 0 cached 4 after 0
        [1, 1, 7, 5] [3, 4) top 0 cached 2 after 0
        naive 18 sent 18 computed 12
    "#]],
    );
    check(
        &branches,
        Limits::CHAT,
        expect![[r#"
        [1, 1, 2, 2, 3, 3, 7, 8] [7, 8) top 0 cached 0
        [1, 1, 2, 2, 7, 6] [5, 6) top 0 cached 0
        [1, 1, 7, 5] [3, 4) top 0 cached 0
        naive 18 sent 18 computed 18
    "#]],
    );
}

#[test]
fn a_few_tokens_are_not_waited_for() {
    let branches = [
        job(&[1, 1, 1, 2, 2, 5, 5], &[(6, 7)], 0),
        job(&[1, 1, 1, 2, 3, 6], &[(5, 6)], 0),
        job(&[1, 1, 1, 2, 3, 7], &[(5, 6)], 0),
        job(&[1, 4, 4, 4, 8], &[(4, 5)], 0),
    ];
    // The third shares one more token with the second than with the first; the last shares one with any.
    check(
        &branches,
        Limits { least_share: 2, ..Limits::CACHING },
        expect![[r#"
        [1, 1, 1, 2, 2, 5, 5] [6, 7) top 0 cached 0
        [1, 1, 1, 2, 3, 6] [5, 6) top 0 cached 4 after 0
        [1, 1, 1, 2, 3, 7] [5, 6) top 0 cached 4 after 0
        [1, 4, 4, 4, 8] [4, 5) top 0 cached 0
        naive 24 sent 24 computed 16
    "#]],
    );
}

#[test]
fn a_long_pass_is_split_where_memory_asks_for_it() {
    let tokens = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
    let jobs = [job(&tokens, &[(2, 4), (5, 10)], 0), job(&[0, 1, 2, 0, 1, 2, 9], &[(6, 7)], 0)];
    check(
        &jobs,
        Limits { max_scored: Some(3), ..EVERY_TOKEN },
        expect![[r#"
        [0, 1, 2, 0] [2, 4) top 0 cached 0
        [0, 1, 2, 0, 1, 2, 0, 1] [5, 8) top 0 cached 4 after 0
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 0] [8, 10) top 0 cached 7 after 1
        [0, 1, 2, 0, 1, 2, 9] [6, 7) top 0 cached 5 after 1
        naive 17 sent 29 computed 13
    "#]],
    );
}

#[test]
fn what_needs_nothing_asks_nothing() {
    let jobs = [job(&[1, 2], &[], 0), job(&[1, 2], &[(0, 1), (2, 2)], 0)];
    let plan = plan(&jobs, &EVERY_TOKEN);
    assert_eq!((plan.requests.len(), plan.figures.naive_requests), (0, 0));
    assert_eq!(distribute(&plan, &[]), jobs.each_ref().map(|job| Ok(score(job))));
}

#[test]
fn a_lost_request_fails_only_the_jobs_that_need_it() {
    let jobs = [job(&[1, 1, 7], &[(2, 3)], 0), job(&[1, 1, 8], &[(2, 3)], 0)];
    let plan = plan(&jobs, &EVERY_TOKEN);
    let mut answers: Vec<_> = asks(&plan).iter().map(|it| Some(score(it))).collect();
    answers[1] = None;
    let found = distribute(&plan, &answers);
    assert_eq!(found[0], Ok(score(&jobs[0])));
    assert_eq!(found[1].as_ref().unwrap_err().to_string(), "request 1 of the plan has no usable answer");
    answers[1] = Some(Vec::new());
    assert!(distribute(&plan, &answers)[1].is_err(), "an answer that does not fit is none");
    assert_eq!(plan.requests_of(1).into_iter().collect::<Vec<_>>(), [1]);
}

fn any_job() -> impl Strategy<Value = ScoreJob> {
    let tokens = prop::collection::vec(0..VOCABULARY, 1..14);
    tokens.prop_flat_map(|tokens| {
        let n = tokens.len();
        let span = (0..=n, 0..=n).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let spans = prop::collection::vec(span, 0..4);
        (Just(tokens), spans, 0_usize..4).prop_map(|(tokens, spans, top_k)| job(&tokens, &spans, top_k))
    })
}

fn any_backend() -> impl Strategy<Value = Limits> {
    let max_scored = prop::option::of(1_usize..6);
    let cached = prop::option::of(0_usize..4);
    (cached, any::<bool>(), max_scored).prop_map(|(cached, start_index, max_scored)| Limits {
        cached_scores: cached.is_some(),
        least_share: cached.unwrap_or_default(),
        start_index,
        max_scored,
        ..Limits::CHAT
    })
}

fn check_costs(plan: &Plan, jobs: &[ScoreJob], backend: &Limits) {
    let mut cache = RadixCache::default();
    let asks = asks(plan);
    for (idx, (request, ask)) in plan.requests.iter().zip(&asks).enumerate() {
        let found = cache.send(ask);
        match (backend.cached_scores, backend.least_share) {
            (false, _) => assert_eq!(request.cached, 0),
            (true, 0) => assert_eq!(request.cached, found, "request {idx}"),
            (true, _) => assert!(request.cached <= found, "request {idx}"),
        }
        assert_eq!(request.after.is_some(), request.cached > 0);
        if let Some(after) = request.after {
            assert!(after < idx);
            let provided = RadixCache::common(asks[after].tokens(), ask.tokens());
            assert!(provided >= request.cached, "request {idx} after {after}");
        }
        let n_scored = ask.end_needed() - ask.first_needed().unwrap();
        if let Some(max) = backend.max_scored.filter(|_| backend.start_index) {
            assert!(n_scored <= max);
        }
        assert_eq!(ask.end_needed(), request.n_tokens(), "nothing is sent that is not needed");
    }
    let computed = plan.figures.computed_tokens() as usize;
    if backend.cached_scores && backend.least_share == 0 {
        // The token before a branch is computed again when the branch's first token is scored.
        assert!(computed <= n_tree_nodes(jobs) + plan.requests.len());
    }
    if backend.max_scored.is_none() {
        assert!(plan.requests.len() as u64 <= plan.figures.naive_requests);
        assert!(plan.figures.sent_tokens <= plan.figures.naive_tokens);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn a_plan_scores_every_job_as_if_it_were_alone(
        jobs in prop::collection::vec(any_job(), 0..9), backend in any_backend(),
    ) {
        let plan = plan(&jobs, &backend);
        let answers: Vec<_> = asks(&plan).iter().map(|it| Some(score(it))).collect();
        let alone: Vec<_> = jobs.iter().map(|job| Ok(score(job))).collect();
        prop_assert_eq!(distribute(&plan, &answers), alone);
        check_costs(&plan, &jobs, &backend);
    }

    #[test]
    fn chosen_candidates_are_given_position_by_position(
        jobs in prop::collection::vec((any_job(), any::<bool>(), any::<u64>()), 0..9),
        backend in any_backend(), chooses: bool,
    ) {
        let backend = Limits { chosen: chooses, ..backend };
        let mut tree = TokenTree::default();
        let chosen = |job: &ScoreJob, seed: u64| {
            let n = job.spans().iter().map(|span| span.len()).sum();
            let of = |at: usize| (0..VOCABULARY).filter(|id| (seed >> ((3 * at as u32 + id) % 64)) & 1 == 1).collect();
            (0..n).map(of).collect::<Vec<Arc<[TokenId]>>>()
        };
        let tip_job = |(job, is_chosen, seed): &(ScoreJob, bool, u64)| TipJob {
            tip: tree.grow(Tip::EMPTY, job.tokens()),
            spans: job.spans().to_vec(),
            top_k: job.top_k(),
            chosen: is_chosen.then(|| chosen(job, *seed)),
        };
        let tip_jobs: Vec<TipJob> = jobs.iter().map(tip_job).collect();
        let plan = plan_tree(Arc::new(tree), tip_jobs, &backend);
        let answers: Vec<_> = asks(&plan).iter().map(|it| Some(score(it))).collect();
        for ((job, is_chosen, seed), found) in jobs.iter().zip(distribute(&plan, &answers)) {
            if !is_chosen {
                prop_assert_eq!(found, Ok(score(job)));
                continue;
            }
            let found = found.unwrap();
            let positions = found.iter().flat_map(|span| span.span().range().zip(span.scores()));
            for ((at, score), wanted) in positions.zip(chosen(job, *seed)) {
                let whole = score_position(job.tokens(), at, VOCABULARY as usize, &[]);
                prop_assert_eq!(&score.logprob, &whole.logprob);
                let is_given = |id: TokenId| whole.logprob.is_ok() && (id == job.tokens()[at] || wanted.contains(&id));
                let entries = whole.top.entries().iter().enumerate();
                for (rank, (id, logprob)) in entries.filter(|(_, it)| is_given(it.0)) {
                    let is_sure = chooses || rank < job.top_k() || *id == job.tokens()[at];
                    prop_assert!(score.top.get(*id).map_or(!is_sure, |it| it == *logprob), "{:?} {}", score, id);
                }
                prop_assert!(score.top.entries().iter().all(|it| is_given(it.0)));
            }
        }
    }

    #[test]
    fn a_backend_that_keeps_only_its_last_sequence_loses_nothing(jobs in prop::collection::vec(any_job(), 0..9)) {
        let plan = plan(&jobs, &EVERY_TOKEN);
        for (pair, next) in asks(&plan).windows(2).zip(plan.requests.iter().skip(1)) {
            let kept = RadixCache::common(pair[0].tokens(), pair[1].tokens());
            prop_assert!(kept >= next.cached);
        }
    }
}
