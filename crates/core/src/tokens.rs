//! Tokens, spans of tokens and log-probabilities, with the invariants everything else rests on.
//!
//! Owns the numbers' types: a [`Logprob`] is finite and not positive, a [`TokenSpan`] is never
//! inverted, a [`TopK`] row is ranked. Deliberately absent: a value for "missing". A position
//! without a logprob is `None`, never `0.0`.

use std::fmt;
use std::ops::Range;

/// The id of a token in a model's vocabulary. Positions in a sequence are `usize`, so the two cannot be mixed up.
pub type TokenId = u32;

/// Positive values up to this are taken for rounding of a probability of one and become `0.0`.
pub const ROUNDING: f64 = 1e-4;

/// The natural logarithm of a probability: finite, and at most zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Logprob(f64);

impl Logprob {
    /// Checks `value`; rounding above zero is cut to zero. Infinities are what some servers write when arithmetic
    /// overflowed.
    pub fn new(value: f64) -> Result<Self, String> {
        if !value.is_finite() {
            Err(format!("{value} is not a finite number"))
        } else if value > ROUNDING {
            Err(format!("{value} is positive, so it is not the logarithm of a probability"))
        } else {
            Ok(Self(value.min(0.0)))
        }
    }

    /// The number itself.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Logprob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A half-open range of token positions `[start, end)`; `start <= end` always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenSpan {
    start: usize,
    end: usize,
}

impl TokenSpan {
    /// The span `[start, end)`.
    pub fn new(start: usize, end: usize) -> Result<Self, String> {
        let is_one = start <= end;
        if is_one {
            Ok(Self { start, end })
        } else {
            Err(format!("span [{start}, {end}) ends before it starts"))
        }
    }

    /// The span of `len` tokens from `start`.
    pub fn at(start: usize, len: usize) -> Self {
        Self { start, end: start.saturating_add(len) }
    }

    /// First position inside.
    pub fn start(self) -> usize {
        self.start
    }

    /// First position behind.
    pub fn end(self) -> usize {
        self.end
    }

    /// Number of positions.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether it has no position.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Its last `n` positions, or all of them where there are fewer.
    #[must_use]
    pub fn last(self, n: usize) -> Self {
        Self { start: self.end - n.min(self.len()), end: self.end }
    }

    /// As a range, for slicing and iterating.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether `position` lies inside.
    pub fn contains(self, position: usize) -> bool {
        self.range().contains(&position)
    }
}

impl fmt::Display for TokenSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// A model's best candidates at one position, most likely first, each id once.
///
/// When it describes a position whose token is given, it holds that token too, so a row for
/// K may have K + 1 entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopK(Vec<(TokenId, Logprob)>);

impl TopK {
    /// Ranks `candidates`; of an id that occurs twice the likelier entry is kept. Ties keep the lower id first.
    pub fn new(mut candidates: Vec<(TokenId, Logprob)>) -> Self {
        candidates.sort_by(|a, b| b.1.0.total_cmp(&a.1.0).then(a.0.cmp(&b.0)));
        let mut seen = std::collections::HashSet::with_capacity(candidates.len());
        candidates.retain(|&(id, _)| seen.insert(id));
        Self(candidates)
    }

    /// The candidates, most likely first.
    pub fn entries(&self) -> &[(TokenId, Logprob)] {
        &self.0
    }

    /// The logprob of `id`, if it is among the candidates.
    pub fn get(&self, id: TokenId) -> Option<Logprob> {
        self.0.iter().find(|entry| entry.0 == id).map(|entry| entry.1)
    }

    /// Whether there is no candidate, as when none were asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Refuses ids at or above `vocab_size`: one of them is enough to kill a real server.
pub fn check_ids(ids: &[TokenId], vocab_size: usize) -> Result<(), String> {
    let outside = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size);
    outside.map_or(Ok(()), |(position, id)| {
        Err(format!("token {id} at position {position} is outside the vocabulary of {vocab_size}"))
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn top(rows: &[(TokenId, f64)]) -> TopK {
        TopK::new(rows.iter().map(|&(id, lp)| (id, Logprob::new(lp).unwrap())).collect())
    }

    #[test]
    fn logprob_refuses_what_is_not_one() {
        assert_eq!(Logprob::new(f64::NAN), Err("NaN is not a finite number".to_owned()));
        assert_eq!(Logprob::new(f64::NEG_INFINITY), Err("-inf is not a finite number".to_owned()));
        assert!(Logprob::new(0.01).unwrap_err().starts_with("0.01 is positive"));
        assert_eq!(Logprob::new(1e-6).unwrap().get(), 0.0);
        assert_eq!(Logprob::new(-3.25).unwrap().get(), -3.25);
    }

    #[test]
    fn spans_cannot_be_inverted() {
        let wrong = TokenSpan::new(4, 3).unwrap_err();
        assert_eq!(wrong.to_string(), "span [4, 3) ends before it starts");
        let span = TokenSpan::new(3, 5).unwrap();
        assert_eq!((span.len(), span.contains(4), span.contains(5)), (2, true, false));
        assert_eq!((span.last(1), span.last(9)), (TokenSpan::at(4, 1), span));
    }

    #[test]
    fn top_k_is_ranked_and_distinct() {
        let row = top(&[(7, -2.0), (3, -0.5), (7, -1.0), (1, -1.0)]);
        let ids: Vec<_> = row.entries().iter().map(|entry| entry.0).collect();
        assert_eq!(ids, [3, 1, 7]);
        assert_eq!(row.get(7).unwrap().get(), -1.0);
        assert_eq!(row.get(9), None);
    }

    proptest! {
        #[test]
        fn a_logprob_is_always_finite_and_not_positive(value in any::<f64>()) {
            if let Ok(logprob) = Logprob::new(value) {
                prop_assert!(logprob.get().is_finite() && logprob.get() <= 0.0);
            }
        }
    }
}
