//! The positions a job needs, and how a server's values for them become scores.
//!
//! Owns the bookkeeping that every scoring server's decoder shares: which positions to keep while
//! walking an answer, what a value that is no logprob becomes, and that a row holds the given token.
//! Deliberately absent: any server's format.

use std::ops::Range;

use crate::plan::merged;
use crate::score::{Absence, ScoreJob, SpanScore, TokenScore};
use crate::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// The positions of a job's spans, each once, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    ranges: Vec<Range<usize>>,
}

impl Needed {
    /// The positions that `job` asks for.
    pub fn new(job: &ScoreJob) -> Self {
        let spans = job.spans().iter().filter(|span| !span.is_empty());
        Self { ranges: merged(spans.map(|span| span.range()).collect()) }
    }

    /// How many positions there are.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// Whether no position is needed.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The positions in order.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// Hands one score per position, in order, out to the spans of the job.
    pub fn into_spans(self, job: &ScoreJob, scores: Vec<TokenScore>) -> Result<Vec<SpanScore>, String> {
        if scores.len() != self.len() {
            return Err(format!("{} positions have {} scores", self.len(), scores.len()));
        }
        if let [only] = job.spans() {
            return Ok(vec![SpanScore::new(*only, scores)?]);
        }
        let of = |span: &TokenSpan| {
            let before = |range: &Range<usize>| range.len().min(span.start().saturating_sub(range.start));
            let first = self.ranges.iter().map(before).sum::<usize>();
            SpanScore::new(*span, scores[first..first + span.len()].to_vec())
        };
        job.spans().iter().map(of).collect()
    }
}

/// A candidate as a server writes it: an id and a number that may be absent or no logprob.
pub type Candidate = (TokenId, Option<f64>);

/// A score without a value.
pub fn absent(why: Absence) -> TokenScore {
    TokenScore { logprob: Err(why), top: TopK::default() }
}

/// The logprob a server wrote. `floor` is the number it writes for minus infinity, if it has one.
pub fn logprob(value: Option<f64>, floor: Option<f64>) -> Result<Logprob, Absence> {
    let value = value.ok_or(Absence::NotReturned)?;
    if floor.is_some_and(|floor| value <= floor) {
        return Err(Absence::NotALogprob(format!("{value} stands for minus infinity")));
    }
    Logprob::new(value).map_err(Absence::NotALogprob)
}

/// The score of `given` with its `top_k` best candidates, itself among them.
///
/// A candidate of probability zero is left out, since it is no candidate. One that is not a number
/// says that the arithmetic of this position is broken, so the whole position is absent.
pub fn token_score(
    given: TokenId,
    value: Option<f64>,
    candidates: &[Candidate],
    top_k: usize,
    floor: Option<f64>,
) -> TokenScore {
    let own = match logprob(value, floor) {
        Ok(own) => own,
        Err(why) => return absent(why),
    };
    if top_k == 0 {
        return TokenScore { logprob: Ok(own), top: TopK::default() };
    }
    let mut row = Vec::with_capacity(candidates.len() + 1);
    for &(id, value) in candidates.iter().filter(|candidate| candidate.0 != given) {
        match logprob(value, floor) {
            Ok(logprob) => row.push((id, logprob)),
            Err(_) if is_minus_infinity(value, floor) => {}
            Err(Absence::NotALogprob(why)) => {
                return absent(Absence::NotALogprob(format!("candidate {id}: {why}")));
            }
            Err(_) => return absent(Absence::NotALogprob(format!("candidate {id} has no value"))),
        }
    }
    row.push((given, own));
    TokenScore { logprob: Ok(own), top: TopK::new(row) }
}

fn is_minus_infinity(value: Option<f64>, floor: Option<f64>) -> bool {
    value.is_some_and(|value| value == f64::NEG_INFINITY || floor.is_some_and(|floor| value <= floor))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn job(spans: &[(usize, usize)], n_tokens: u32) -> ScoreJob {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from((0..n_tokens).collect::<Vec<_>>()), spans, 2).unwrap()
    }

    /// A score that can be told from every other.
    fn score(position: usize) -> TokenScore {
        TokenScore { logprob: Ok(Logprob::new(-(position as f64)).unwrap()), top: TopK::default() }
    }

    #[test]
    fn a_row_is_ranked_and_holds_the_given_token() {
        let check = |given, value, candidates: &[Candidate], expected: &str| {
            let score = token_score(given, value, candidates, 2, Some(-9999.0));
            let row: Vec<_> = score.top.entries().iter().map(|it| (it.0, it.1.get())).collect();
            let found = match score.logprob {
                Ok(logprob) => format!("{logprob} {row:?}"),
                Err(why) => format!("{why} {row:?}"),
            };
            assert_eq!(found, expected);
        };
        check(7, Some(-3.0), &[(1, Some(-0.5)), (2, Some(-2.0))], "-3 [(1, -0.5), (2, -2.0), (7, -3.0)]");
        check(2, Some(-2.0), &[(2, Some(-2.0)), (1, Some(-0.5))], "-2 [(1, -0.5), (2, -2.0)]");
        check(7, Some(-3.0), &[(1, Some(f64::NEG_INFINITY)), (2, Some(-9999.0))], "-3 [(7, -3.0)]");
        check(7, None, &[(1, Some(-0.5))], "the server returned no value []");
        let not = "the server returned no logprob";
        check(7, Some(f64::NAN), &[], &format!("{not}: NaN is not a finite number []"));
        check(7, Some(-9999.0), &[], &format!("{not}: -9999 stands for minus infinity []"));
        check(
            7,
            Some(0.5),
            &[],
            &format!("{not}: 0.5 is positive, so it is not the logarithm of a probability []"),
        );
        let nan = [(1, Some(f64::NAN))];
        check(7, Some(-3.0), &nan, &format!("{not}: candidate 1: NaN is not a finite number []"));
    }

    #[test]
    fn no_candidates_are_kept_when_none_were_asked_for() {
        let score = token_score(7, Some(-3.0), &[(1, Some(-1.0))], 0, None);
        assert_eq!(score.top, TopK::default());
    }

    #[test]
    fn a_wrong_number_of_scores_is_refused() {
        let job = job(&[(1, 3)], 5);
        let why = Needed::new(&job).into_spans(&job, vec![score(1)]).unwrap_err();
        assert_eq!(why, "2 positions have 1 scores");
    }

    proptest! {
        #[test]
        fn every_span_gets_its_own_positions(
            spans in proptest::collection::vec((0..20usize, 0..6usize), 0..6),
        ) {
            let spans: Vec<_> = spans.iter().map(|&(start, len)| (start, start + len)).collect();
            let job = job(&spans, 30);
            let needed = Needed::new(&job);
            let scores: Vec<_> = needed.positions().map(score).collect();
            prop_assert_eq!(scores.len(), needed.len());
            for (span, &(start, end)) in needed.into_spans(&job, scores).unwrap().iter().zip(&spans) {
                let expected: Vec<_> = (start..end).map(score).collect();
                prop_assert_eq!(span.scores(), expected.as_slice());
            }
        }
    }
}
