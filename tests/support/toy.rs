//! A language model made of arithmetic: every logprob is a pure function of the weights and the ids before.
//!
//! Owns the numbers the stand-in servers answer with, so that tests can compute what is right without
//! a server, and the rules by which real servers reuse what they have computed.

use std::collections::HashSet;

/// A prime, so that ranks and ids map onto each other without gaps.
pub const VOCAB: u64 = 49_157;
const STRIDE: u64 = 30_011;

/// The model; other weights are another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toy {
    pub weights: u64,
}

/// What the model knows after reading some ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(u64);

impl Toy {
    /// The contexts after 0, 1, … all of `ids`.
    pub fn contexts(&self, ids: &[u32]) -> Vec<Context> {
        let start = Context(mix(self.weights ^ 0x5eed));
        let rest = ids.iter().scan(start, |context, &id| {
            *context = context.then(id);
            Some(*context)
        });
        std::iter::once(start).chain(rest).collect()
    }

    /// The logprob of each id under those before it; the first has none.
    pub fn logprobs(&self, ids: &[u32]) -> Vec<Option<f64>> {
        let contexts = self.contexts(ids);
        let score = |(at, &id): (usize, &u32)| (at > 0).then(|| contexts[at].logprob(id));
        ids.iter().enumerate().map(score).collect()
    }

    /// A continuation of `n` ids.
    pub fn sample(&self, ids: &[u32], seed: u64, n: usize) -> Vec<u32> {
        let mut context = *self.contexts(ids).last().unwrap();
        let draw = |_| {
            let id = context.id_at(1 + (mix(context.0 ^ mix(seed)) % 20) as u32);
            context = context.then(id);
            id
        };
        (0..n).map(draw).collect()
    }
}

impl Context {
    pub fn then(self, id: u32) -> Self {
        Self(mix(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(id)))
    }

    /// The id at `rank`, counted from 1.
    pub fn id_at(self, rank: u32) -> u32 {
        ((STRIDE * (u64::from(rank) - 1) + self.0 % VOCAB) % VOCAB) as u32
    }

    /// The rank of `id`, counted from 1.
    pub fn rank(self, id: u32) -> u32 {
        let steps = (u64::from(id) + VOCAB - self.0 % VOCAB) % VOCAB;
        (steps * inverse() % VOCAB) as u32 + 1
    }

    /// The logprob of `id`, as a server that computes in 32 bits has it.
    pub fn logprob(self, id: u32) -> f64 {
        let best = 0.05 + (self.0 % 1000) as f64 / 2000.0;
        f64::from((-best - 0.9 * f64::from(self.rank(id)).ln()) as f32)
    }

    /// The `k` likeliest ids, likeliest first.
    pub fn top(self, k: usize) -> Vec<(u32, f64)> {
        let ids = (1..=k as u32).map(|rank| self.id_at(rank));
        ids.map(|id| (id, self.logprob(id))).collect()
    }
}

/// The inverse of [`STRIDE`] modulo [`VOCAB`], by Fermat's little theorem.
fn inverse() -> u64 {
    use std::sync::OnceLock;
    static INVERSE: OnceLock<u64> = OnceLock::new();
    *INVERSE.get_or_init(|| {
        let (mut power, mut square, mut exponent) = (1, STRIDE, VOCAB - 2);
        while exponent > 0 {
            if exponent % 2 == 1 {
                power = power * square % VOCAB;
            }
            square = square * square % VOCAB;
            exponent /= 2;
        }
        power
    })
}

pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What a server has been asked and what that cost it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub requests: u64,
    pub sent: u64,
    pub cached: u64,
    pub computed: u64,
    pub sampled: u64,
}

/// The prefixes a server still has. A prefix is known by its context, since a context stands for all ids before.
#[derive(Debug, Default)]
pub struct PrefixCache(HashSet<Context>);

impl PrefixCache {
    /// How many of the first ids need not be computed again, `most` at most; from now on all are known.
    pub fn reuse(&mut self, contexts: &[Context], most: usize) -> usize {
        let known = contexts.iter().skip(1).take_while(|context| self.0.contains(context)).count();
        self.0.extend(contexts.iter().skip(1));
        known.min(most)
    }
}
