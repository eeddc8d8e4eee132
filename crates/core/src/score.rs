//! The scoring primitive: which spans of which tokens are to be scored, and what came back.
//!
//! Owns [`ScoreJob`] and [`SpanScore`] with their invariants: spans lie inside their tokens, every
//! position has a logprob or a reason why not, and a top-K row contains its position's own token.
//! How a score is obtained is the business of `model`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// "Give me the logprobs of these spans of these tokens, with the `top_k` likeliest candidates and those chosen here."
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScoreJob {
    tokens: Arc<[TokenId]>,
    spans: Vec<TokenSpan>,
    top_k: usize,
    chosen: Vec<Arc<[TokenId]>>,
}

impl ScoreJob {
    /// Checks that every span lies inside `tokens`.
    pub fn new(tokens: Arc<[TokenId]>, spans: Vec<TokenSpan>, top_k: usize) -> Result<Self, String> {
        if tokens.is_empty() {
            return Err("the job has no tokens".to_owned());
        }
        match spans.iter().find(|span| span.end() > tokens.len()) {
            Some(span) => Err(format!("span {span} reaches beyond the {} tokens of the job", tokens.len())),
            None => Ok(Self { tokens, spans, top_k, chosen: Vec::new() }),
        }
    }

    /// The same job, which asks for these candidates too, however likely they are: a list for each position of the spans,
    /// one after another.
    pub fn choosing(self, chosen: Vec<Arc<[TokenId]>>) -> Result<Self, String> {
        let n: usize = self.spans.iter().map(|span| span.len()).sum();
        if chosen.len() == n {
            return Ok(Self { chosen, ..self });
        }
        Err(format!("there are {} lists of candidates for {n} positions", chosen.len()))
    }

    /// The whole sequence: context and what is scored.
    pub fn tokens(&self) -> &Arc<[TokenId]> {
        &self.tokens
    }

    /// What is to be scored, in the order of the answer.
    pub fn spans(&self) -> &[TokenSpan] {
        &self.spans
    }

    /// How many candidates per position; 0 asks for the given token only.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// The candidates chosen at each position of the spans, one after another; nothing where none are.
    pub fn chosen(&self) -> &[Arc<[TokenId]>] {
        &self.chosen
    }

    /// Those chosen at one position.
    pub fn chosen_at(&self, position: usize) -> &[TokenId] {
        let mut before = 0;
        for span in &self.spans {
            if span.contains(position) {
                return self.chosen.get(before + position - span.start()).map_or(&[], |it| it);
            }
            before += span.len();
        }
        &[]
    }

    /// Those chosen anywhere, each once, in ascending order.
    pub fn all_chosen(&self) -> Vec<TokenId> {
        let all: BTreeSet<TokenId> = self.chosen.iter().flat_map(|it| it.iter().copied()).collect();
        all.into_iter().collect()
    }

    /// The same job with at most `limit` candidates per position.
    pub fn within(&self, limit: Option<usize>) -> Cow<'_, Self> {
        match limit {
            Some(limit) if self.top_k > limit => Cow::Owned(Self { top_k: limit, ..self.clone() }),
            _ => Cow::Borrowed(self),
        }
    }

    /// The first position whose logprob is needed, if any span has one. Position 0 has no context and is never needed.
    pub fn first_needed(&self) -> Option<usize> {
        first_needed(&self.spans)
    }

    /// One behind the last position whose logprob is needed; tokens from here on need not be sent.
    pub fn end_needed(&self) -> usize {
        end_needed(&self.spans)
    }
}

pub(crate) fn first_needed(spans: &[TokenSpan]) -> Option<usize> {
    let spans = spans.iter().filter(|span| span.end() > span.start().max(1));
    spans.map(|span| span.start().max(1)).min()
}

pub(crate) fn end_needed(spans: &[TokenSpan]) -> usize {
    spans.iter().filter(|span| !span.is_empty()).map(|span| span.end()).max().unwrap_or(0)
}

/// Why a position has no logprob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// The first token of a sequence: nothing precedes it.
    #[error("the first token has no context")]
    NoContext,
    /// The server answered without a value there.
    #[error("the server returned no value")]
    NotReturned,
    /// The server answered with something that is no logprob.
    #[error("the server returned no logprob: {0}")]
    NotALogprob(String),
}

/// What was obtained for one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The logprob of the given token, or why there is none.
    pub logprob: Result<Logprob, Absence>,
    /// The candidates that were asked for, the given token among them; empty when none were or the logprob is absent.
    pub top: TopK,
}

/// The scores of one span, one entry per position.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanScore {
    span: TokenSpan,
    scores: Vec<TokenScore>,
}

impl SpanScore {
    /// Checks that there is one score per position of `span`.
    pub fn new(span: TokenSpan, scores: Vec<TokenScore>) -> Result<Self, String> {
        if scores.len() == span.len() {
            Ok(Self { span, scores })
        } else {
            Err(format!("span {span} has {} scores", scores.len()))
        }
    }

    /// The span.
    pub fn span(&self) -> TokenSpan {
        self.span
    }

    /// One entry per position of the span.
    pub fn scores(&self) -> &[TokenScore] {
        &self.scores
    }

    /// The logprobs of the given tokens, `None` where there is none.
    pub fn logprobs(&self) -> impl Iterator<Item = Option<Logprob>> {
        self.scores.iter().map(|score| score.logprob.as_ref().ok().copied())
    }

    /// The positions without a logprob, each with its reason.
    pub fn absent(&self) -> impl Iterator<Item = (usize, &Absence)> {
        let positions = self.span.range().zip(&self.scores);
        positions.filter_map(|(position, score)| Some((position, score.logprob.as_ref().err()?)))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn job(spans: &[(usize, usize)]) -> Result<ScoreJob, String> {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from([5, 6, 7, 8]), spans, 3)
    }

    #[test]
    fn spans_must_lie_inside_the_tokens() {
        assert_eq!(
            job(&[(2, 5)]).unwrap_err().to_string(),
            "span [2, 5) reaches beyond the 4 tokens of the job"
        );
        assert_eq!(ScoreJob::new(Arc::from([]), vec![], 0), Err("the job has no tokens".to_owned()));
    }

    #[test]
    fn candidates_are_chosen_position_by_position() {
        let chosen = |lists: &[&[TokenId]]| lists.iter().map(|it| Arc::from(*it)).collect::<Vec<_>>();
        let job = || job(&[(0, 1), (2, 4)]).unwrap();
        let choosing = job().choosing(chosen(&[&[9], &[3, 1], &[]])).unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| choosing.chosen_at(at)), [&[9][..], &[], &[3, 1], &[]]);
        assert_eq!((choosing.all_chosen(), job().all_chosen()), (vec![1, 3, 9], vec![]));
        assert_eq!(
            job().choosing(chosen(&[&[1]])),
            Err("there are 1 lists of candidates for 3 positions".to_owned())
        );
    }

    #[test]
    fn needed_positions_leave_out_the_first_token_and_empty_spans() {
        let needed = |spans: &[(usize, usize)]| {
            let job = job(spans).unwrap();
            (job.first_needed(), job.end_needed())
        };
        assert_eq!(needed(&[(0, 1)]), (None, 1));
        assert_eq!(needed(&[(0, 2), (3, 3)]), (Some(1), 2));
        assert_eq!(needed(&[(3, 4), (2, 3)]), (Some(2), 4));
    }

    #[test]
    fn absences_carry_their_position_and_reason() {
        let present = TokenScore { logprob: Ok(Logprob::new(-1.0).unwrap()), top: TopK::default() };
        let absent = TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() };
        let score = SpanScore::new(TokenSpan::at(0, 2), vec![absent, present.clone()]).unwrap();
        assert_eq!(score.absent().collect::<Vec<_>>(), [(0, &Absence::NoContext)]);
        assert_eq!(score.logprobs().map(|it| it.map(Logprob::get)).collect::<Vec<_>>(), [None, Some(-1.0)]);
        assert!(SpanScore::new(TokenSpan::at(0, 1), vec![present.clone(), present]).is_err());
    }
}
