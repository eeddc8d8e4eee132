//! The head: from hidden states to log-probabilities, without ever keeping a vocabulary of logits.
//!
//! Owns the running log-sum-exp, the search for the likeliest tokens, and plain logits for sampling.
//! The vocabulary is cut at fixed places and joined in order, so a row's result does not depend on the
//! other rows or on threads. Deliberately absent: which rows are wanted, and sampling.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::forward::Machine;
use super::gemm::{Product, Rows};
use super::simd::{Isa, Kernel, LANES, Simd};
use backsight_core::needed::{Candidate, token_score};
use backsight_core::score::TokenScore;
use backsight_core::tokens::TokenId;

/// Tokens whose logits are computed by one task.
const PART: usize = 4096;
/// Panels whose logits exist at a time.
const TILE: usize = 16;
/// Rows of one task.
const ROWS: usize = 192;

/// What is asked of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The token whose logprob is wanted.
    pub token: TokenId,
    /// How many of the likeliest tokens are wanted.
    pub top_k: usize,
}

/// What is known of a row after some of the vocabulary.
#[derive(Clone, Debug)]
struct Seen {
    largest: f32,
    /// The sum of `e^(logit - largest)`.
    total: f64,
    logit: Option<f32>,
    top: Top,
}

impl Machine<'_> {
    /// Answers one question per row of `hidden`.
    pub fn answer(self, hidden: &[f32], asks: &[Ask]) -> Vec<TokenScore> {
        let parts: Vec<usize> = (0..self.config.vocab).step_by(PART).collect();
        let blocks: Vec<usize> = (0..asks.len()).step_by(ROWS).collect();
        let tasks: Vec<(usize, usize)> =
            blocks.iter().flat_map(|&block| parts.iter().map(move |&part| (block, part))).collect();
        let width = self.config.hidden_padded();
        let seen = tasks.into_par_iter().map(|(block, part)| {
            let asks = &asks[block..asks.len().min(block + ROWS)];
            self.look(&hidden[block * width..], asks, part)
        });
        let seen: Vec<Vec<Seen>> = seen.collect();
        let join_row = |(i, ask): (usize, &Ask)| {
            let parts = &seen[i / ROWS * parts.len()..][..parts.len()];
            join(*ask, parts.iter().map(|part| &part[i % ROWS]))
        };
        asks.iter().enumerate().map(join_row).collect()
    }

    /// What `PART` tokens from `first` on say about some rows.
    fn look(self, hidden: &[f32], asks: &[Ask], first: usize) -> Vec<Seen> {
        let mut seen: Vec<Seen> = asks.iter().map(|ask| Seen::new(ask.top_k)).collect();
        let rows = Rows { data: hidden, stride: self.config.hidden_padded() };
        let end = self.config.vocab.min(first + PART);
        let mut logits = vec![0.0; asks.len() * TILE * LANES];
        for tile in (first..end).step_by(TILE * LANES) {
            let n = (end - tile).min(TILE * LANES);
            let n_panels = n.div_ceil(LANES);
            let out = &mut logits[..asks.len() * n_panels * LANES];
            let first_panel = tile / LANES;
            let (n_rows, weights) = (asks.len(), &self.weights.head);
            self.isa.run(Product { rows, n_rows, weights, first_panel, n_panels, out });
            let rows = logits.chunks_exact_mut(n_panels * LANES).zip(asks).zip(&mut seen);
            for ((row, ask), seen) in rows {
                row[n..].fill(f32::NEG_INFINITY);
                seen.add(self.isa, row, tile, ask.token);
            }
        }
        seen
    }

    /// The logits of all tokens, row by row.
    pub fn logits(self, hidden: &[f32]) -> Vec<Vec<f32>> {
        let rows = Rows { data: hidden, stride: self.config.hidden_padded() };
        let n_rows = hidden.len() / rows.stride;
        let weights = &self.weights.head;
        let parts = (0..weights.panels()).into_par_iter().step_by(PART / LANES);
        let parts = parts.map(|first_panel| {
            let n_panels = (weights.panels() - first_panel).min(PART / LANES);
            let mut out = vec![0.0; n_rows * n_panels * LANES];
            self.isa.run(Product { rows, n_rows, weights, first_panel, n_panels, out: &mut out });
            out
        });
        let parts: Vec<Vec<f32>> = parts.collect();
        let row = |i: usize| {
            let mut row: Vec<f32> = parts
                .iter()
                .flat_map(|part| part.chunks_exact(part.len() / n_rows).nth(i).unwrap_or(&[]))
                .copied()
                .collect();
            row.truncate(self.config.vocab);
            row
        };
        (0..n_rows).map(row).collect()
    }
}

impl Seen {
    fn new(top_k: usize) -> Self {
        Self { largest: f32::NEG_INFINITY, total: 0.0, logit: None, top: Top::new(top_k) }
    }

    /// Takes in the logits of tokens from `first` on, filled up to whole lanes with negative infinity.
    fn add(&mut self, isa: Isa, logits: &[f32], first: usize, token: TokenId) {
        let largest = isa.run(Accumulate { logits, largest: &mut self.largest, total: &mut self.total });
        if let Some(&logit) = (token as usize).checked_sub(first).and_then(|i| logits.get(i)) {
            self.logit = Some(logit);
        }
        if largest > self.top.floor {
            self.top.offer(logits, first);
        }
    }
}

/// Brings a log-sum-exp up to date; gives back the largest of the new logits.
struct Accumulate<'a> {
    logits: &'a [f32],
    largest: &'a mut f32,
    total: &'a mut f64,
}

impl Kernel for Accumulate<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let lanes = self.logits.as_chunks::<LANES>().0;
        let mut new = simd.splat(f32::NEG_INFINITY);
        for lane in lanes {
            new = simd.max(new, simd.load(lane));
        }
        let new = simd.largest(new);
        let largest = new.max(*self.largest);
        let (shift, mut total) = (simd.splat(largest), simd.splat(0.0));
        for lane in lanes {
            total = simd.add(total, simd.exp(simd.sub(simd.load(lane), shift)));
        }
        *self.total = *self.total * f64::from(*self.largest - largest).exp() + f64::from(simd.sum(total));
        *self.largest = largest;
        new
    }
}

/// Joins what the parts of the vocabulary say about one row.
fn join<'a>(ask: Ask, parts: impl Iterator<Item = &'a Seen> + Clone) -> TokenScore {
    let largest = parts.clone().map(|it| it.largest).fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = parts.clone().map(|it| it.total * f64::from(it.largest - largest).exp()).sum();
    let normaliser = f64::from(largest) + total.ln();
    let logprob = |logit: f32| Some(f64::from(logit) - normaliser);
    let given = logprob(parts.clone().find_map(|it| it.logit).unwrap_or(f32::NAN));
    let likeliest = best(parts.flat_map(|it| it.top.found.iter().copied()).collect(), ask.top_k);
    let candidates: Vec<Candidate> = likeliest.into_iter().map(|(logit, id)| (id, logprob(logit))).collect();
    token_score(ask.token, given, &candidates, ask.top_k, None)
}

/// Answers a question about a row of logits, to the very bits of [`Machine::answer`].
pub fn answer_from_logits(isa: Isa, logits: &[f32], ask: Ask) -> TokenScore {
    let part = |(i, part): (usize, &[f32])| {
        let mut seen = Seen::new(ask.top_k);
        for (j, tile) in part.chunks(TILE * LANES).enumerate() {
            let mut padded = [f32::NEG_INFINITY; TILE * LANES];
            padded[..tile.len()].copy_from_slice(tile);
            seen.add(isa, &padded, i * PART + j * TILE * LANES, ask.token);
        }
        seen
    };
    let parts: Vec<Seen> = logits.chunks(PART).enumerate().map(part).collect();
    join(ask, parts.iter())
}

/// The `k` largest logits so far, roughly: at least those, and not many more.
#[derive(Clone, Debug)]
struct Top {
    k: usize,
    found: Vec<(f32, TokenId)>,
    /// Only larger logits can still be among them.
    floor: f32,
}

impl Top {
    fn new(k: usize) -> Self {
        let floor = if k == 0 { f32::INFINITY } else { f32::NEG_INFINITY };
        Self { k, found: Vec::new(), floor }
    }

    /// Offers logits of tokens from `first` on, in the order of their ids.
    fn offer(&mut self, logits: &[f32], first: usize) {
        for (i, &logit) in logits.iter().enumerate() {
            if logit > self.floor {
                self.found.push((logit, (first + i) as TokenId));
                if self.found.len() >= 2 * self.k + 64 {
                    self.prune();
                }
            }
        }
    }

    fn prune(&mut self) {
        self.found = best(std::mem::take(&mut self.found), self.k);
        self.floor = self.found.last().map_or(f32::NEG_INFINITY, |last| last.0);
    }
}

/// The `k` largest, largest first, the lower id first among equals.
pub fn best(mut candidates: Vec<(f32, TokenId)>, k: usize) -> Vec<(f32, TokenId)> {
    let order =
        |a: &(f32, TokenId), b: &(f32, TokenId)| -> Ordering { b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)) };
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, order);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(order);
    candidates
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn logits(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * i % 7919) as f32 * 0.37).sin() * 6.0 + (i % 11) as f32 * 0.1).collect()
    }

    /// Plain sums in double precision.
    fn naive(logits: &[f32]) -> Vec<f64> {
        let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        logits.iter().map(|x| f64::from(*x) - total.ln()).collect()
    }

    fn check(n: usize, token: TokenId, top_k: usize) {
        let logits = logits(n);
        let expected = naive(&logits);
        let mut ranked: Vec<TokenId> = (0..n as TokenId).collect();
        ranked.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        for isa in Isa::available() {
            let answer = answer_from_logits(isa, &logits, Ask { token, top_k });
            let logprob = answer.logprob.unwrap().get();
            assert!((logprob - expected[token as usize]).abs() < 1e-6, "{isa:?}, {n} tokens");
            let top = answer.top.entries();
            let ids: Vec<TokenId> = top.iter().map(|it| it.0).take(top_k).collect();
            assert_eq!(ids, ranked[..top_k.min(n)], "{isa:?}, {n} tokens");
            assert!(top_k == 0 || top.iter().any(|it| it.0 == token));
            assert!(top.iter().all(|(id, lp)| (lp.get() - expected[*id as usize]).abs() < 1e-6));
        }
    }

    #[test]
    fn a_row_is_answered_whatever_the_size_of_the_vocabulary() {
        check(1, 0, 1);
        check(131, 130, 5);
        check(256, 17, 0);
        check(PART, 4095, 20);
        check(PART + 3, PART as TokenId + 2, 200);
        check(3 * PART + 100, 5000, 1);
        check(300, 3, 1000);
    }

    #[test]
    fn among_equals_the_lower_id_comes_first() {
        let answer = answer_from_logits(Isa::best(), &[1.0; 500], Ask { token: 7, top_k: 3 });
        assert_eq!(answer.top.entries().iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1, 2, 7]);
        assert!((answer.logprob.unwrap().get() + 500f64.ln()).abs() < 1e-6);
    }
}
