//! Scores by position: what was found for one call serves every other that asks for no more.
//!
//! Owns how an answer is cut into blocks of neighbouring positions, and put together from what several calls found. A
//! block is known by everything that stands before it, and says what stands in it: a number is used only where every
//! token up to its own is the same, and at least as many candidates were asked for. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::record::Block;
use crate::model::Scored;
use backsight_core::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight_core::tokens::{TokenId, TokenSpan, TopK};

/// How many positions share a row: few enough to read little in vain, enough to have few rows.
const SIZE: usize = 64;

/// Where the blocks begin that hold the positions a job needs, in order.
pub fn starts(job: &ScoreJob) -> Vec<usize> {
    let needed = job.spans().iter().filter(|span| span.end() > span.start().max(1));
    let blocks = needed.flat_map(|span| span.start().max(1) / SIZE..=(span.end() - 1) / SIZE);
    blocks.collect::<BTreeSet<usize>>().into_iter().map(|block| block * SIZE).collect()
}

/// The numbers of an answer, by where their blocks begin.
pub fn cut(job: &ScoreJob, scored: &Scored) -> BTreeMap<usize, Block> {
    let mut blocks: BTreeMap<usize, Block> = BTreeMap::new();
    let positions = scored.spans.iter().flat_map(|it| it.span().range().zip(it.scores()));
    for (at, score) in positions {
        let Ok(logprob) = score.logprob else { continue };
        let start = at / SIZE * SIZE;
        let empty = || Block { ids: Vec::new(), top_k: job.top_k(), scores: Vec::new() };
        let block = blocks.entry(start).or_insert_with(empty);
        if block.scores.len() <= at - start {
            block.scores.resize(at - start + 1, None);
            block.ids = job.tokens()[start..=at].to_vec();
        }
        block.scores[at - start] = Some((logprob, score.top.clone()));
    }
    blocks
}

/// The answer to a job, if the blocks that were found hold all of it, and whose the numbers are that it is made of.
pub fn join<T: Copy + Ord>(
    job: &ScoreJob,
    found: &BTreeMap<usize, Vec<(Block, T)>>,
) -> Option<(Scored, BTreeSet<T>)> {
    let mut whose = BTreeSet::new();
    let mut score = |at: usize| {
        if at == 0 {
            return Some(TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() });
        }
        let start = at / SIZE * SIZE;
        let blocks = found.get(&start)?.iter();
        let (block, of) = blocks.into_iter().find(|(block, _)| holds(block, job, start, at))?;
        whose.insert(*of);
        let (logprob, top) = block.scores[at - start].as_ref()?;
        let row = (job.tokens()[at], *logprob);
        Some(TokenScore { logprob: Ok(*logprob), top: fewer(top, row, block.top_k, job.top_k()) })
    };
    let span = |span: &TokenSpan| {
        let scores = span.range().map(&mut score).collect::<Option<_>>()?;
        SpanScore::new(*span, scores).ok()
    };
    let spans = job.spans().iter().map(span).collect::<Option<_>>()?;
    Some((Scored { spans, version: None, usage: Default::default() }, whose))
}

/// Whether a block has the score of a job's position.
fn holds(block: &Block, job: &ScoreJob, start: usize, at: usize) -> bool {
    let is_scored = block.scores.get(at - start).is_some_and(Option::is_some);
    is_scored && block.top_k >= job.top_k() && block.ids.get(..=at - start) == Some(&job.tokens()[start..=at])
}

/// The first `wanted` of a row's candidates, and the token that stands there.
fn fewer(top: &TopK, given: (TokenId, backsight_core::tokens::Logprob), asked: usize, wanted: usize) -> TopK {
    if asked == wanted {
        return top.clone();
    }
    if wanted == 0 {
        return TopK::default();
    }
    let first = top.entries().iter().take(wanted).copied();
    TopK::new(first.chain([(given.0, top.get(given.0).unwrap_or(given.1))]).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::tokens::Logprob;
    use proptest::prelude::*;

    /// The candidates at a position follow from the tokens up to there, as a model's do.
    fn score(tokens: &[TokenId], at: usize, top_k: usize) -> TokenScore {
        if at == 0 {
            return TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() };
        }
        let sum: u32 = tokens[..=at].iter().fold(7, |sum, id| sum.wrapping_mul(31).wrapping_add(*id));
        let logprob = |rank: u32| Logprob::new(-f64::from(rank) - f64::from(sum % 997) / 1000.0).unwrap();
        let own = (tokens[at], logprob(sum % 13));
        let others =
            (0..top_k as u32).filter(|rank| *rank != sum % 13).map(|rank| (100 + rank, logprob(rank)));
        let all = TopK::new(others.chain([own]).collect());
        let top = if top_k == 0 { TopK::default() } else { fewer(&all, own, usize::MAX, top_k) };
        TokenScore { logprob: Ok(own.1), top }
    }

    fn answer(job: &ScoreJob) -> Scored {
        let of = |at| score(job.tokens(), at, job.top_k());
        let span = |span: &TokenSpan| SpanScore::new(*span, span.range().map(of).collect()).unwrap();
        Scored { spans: job.spans().iter().map(span).collect(), version: None, usage: Default::default() }
    }

    fn job(tokens: &[TokenId], spans: &[(usize, usize)], top_k: usize) -> ScoreJob {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(tokens.into(), spans, top_k).unwrap()
    }

    /// What is found for a job after these calls, as the ledger would look for it: by what stands before a block.
    fn found(calls: &[ScoreJob], job: &ScoreJob) -> Option<Scored> {
        let mut blocks: BTreeMap<usize, Vec<(Block, usize)>> = BTreeMap::new();
        for (whose, call) in calls.iter().enumerate() {
            for (start, block) in cut(call, &answer(call)) {
                if call.tokens().get(..start) == job.tokens().get(..start) {
                    blocks.entry(start).or_default().push((block, whose));
                }
            }
        }
        join(job, &blocks).map(|it| it.0)
    }

    #[test]
    fn a_wider_span_and_a_larger_k_serve_a_smaller() {
        let tokens: Vec<TokenId> = (0..200).map(|n| n * 7 % 90).collect();
        let wide = [job(&tokens, &[(0, 3), (50, 180)], 5)];
        for (spans, top_k) in [(&[(50, 180)][..], 5), (&[(60, 61), (170, 180)], 3), (&[(1, 3), (63, 65)], 0)]
        {
            let small = job(&tokens[..180], spans, top_k);
            assert_eq!(found(&wide, &small), Some(answer(&small)), "{spans:?} {top_k}");
        }
        assert_eq!(found(&wide, &job(&tokens, &[(50, 180)], 6)), None, "too few candidates");
        assert_eq!(found(&wide, &job(&tokens, &[(49, 60)], 5)), None, "not all positions");
        let mut other = tokens.clone();
        other[70] = 99;
        assert!(found(&wide, &job(&other, &[(60, 70)], 5)).is_some());
        assert_eq!(found(&wide, &job(&other, &[(60, 72)], 5)), None, "another token");
        assert_eq!(starts(&job(&tokens, &[(0, 1), (63, 65), (190, 190)], 0)), [0, 64]);
    }

    proptest! {
        #[test]
        fn whatever_is_found_is_what_would_be_answered(
            tokens in prop::collection::vec(0u32..3, 150),
            changed in 0usize..150,
            calls in prop::collection::vec((any::<bool>(), 0usize..150, 1usize..90, 0usize..4), 1..6),
            (from, n, top_k) in (0usize..150, 1usize..60, 0usize..4),
        ) {
            let mut other = tokens.clone();
            other[changed] += 5;
            let clipped = |from: usize, n: usize| [(from, (from + n).min(150))];
            let calls: Vec<ScoreJob> = calls
                .into_iter()
                .map(|(is_other, from, n, k)| job(if is_other { &other } else { &tokens }, &clipped(from, n), k))
                .collect();
            let job = job(&tokens, &clipped(from, n), top_k);
            if let Some(scored) = found(&calls, &job) {
                prop_assert_eq!(scored, answer(&job));
            }
            let with_itself = [&calls[..], std::slice::from_ref(&job)].concat();
            prop_assert_eq!(found(&with_itself, &job), Some(answer(&job)));
        }
    }
}
