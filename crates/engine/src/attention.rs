//! Causal attention of one key-value head, block by block.
//!
//! Owns the products of queries with keys and of weights with values, and the softmax between them,
//! kept up to date as blocks of keys come along, so that no more than a block of scores ever exists.
//! All query heads that share the key-value head are rows of the same products. Blocks of keys begin
//! at fixed places and stop at the diagonal, so a row's result does not depend on the rows computed
//! beside it. Deliberately absent: positions' rotation, and threads.

use super::gemm::{Dimensions, Rows, gemm};
use super::kv::{Block, KvShape, PAGE};
use super::simd::{Kernel, LANES, Simd};

/// Keys of one block.
const KEYS: usize = 256;
/// Rows of one block of queries, and the most positions they may span: more rows reuse keys better, more positions waste work at the diagonal.
const ROWS: usize = 192;
const POSITIONS: usize = 64;

/// What one key-value head attends to, in blocks.
pub struct Attention<'a> {
    /// All queries.
    pub of: Queries<'a>,
    /// Room to work in.
    pub scratch: &'a mut Scratch,
    /// `n_positions x group` rows of padded values, overwritten.
    pub out: &'a mut [f32],
}

/// Queries of one key-value head.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// What the pages look like.
    pub shape: KvShape,
    /// The pages of this layer.
    pub pages: &'a [Block],
    /// Which key-value head.
    pub head: usize,
    /// One row per position: the queries of all heads, scaled and rotated, from the first query of this head on.
    pub queries: Rows<'a>,
    /// How many query heads share the key-value head.
    pub group: usize,
    /// The position of the first row.
    pub start: usize,
    /// How many positions.
    pub n_positions: usize,
}

/// Room for one block, kept between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    scores: Vec<f32>,
    /// The largest score of each row so far.
    largest: Vec<f32>,
    /// The sum of each row's weights so far.
    total: Vec<f32>,
}

impl Kernel for Attention<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { of, scratch, out } = self;
        let step = (ROWS / of.group).clamp(1, POSITIONS);
        for first in (0..of.n_positions).step_by(step) {
            let n_positions = step.min(of.n_positions - first);
            let queries = Rows { data: of.queries.row(first), stride: of.queries.stride };
            let block = Queries { queries, start: of.start + first, n_positions, ..of };
            let width = of.group * of.shape.padded();
            block.attend(simd, scratch, &mut out[first * width..][..n_positions * width]);
        }
    }
}

impl<'a> Queries<'a> {
    #[inline(always)]
    fn attend<S: Simd>(&self, simd: S, scratch: &mut Scratch, out: &mut [f32]) {
        let n_rows = self.n_positions * self.group;
        out.fill(0.0);
        scratch.scores.resize(n_rows * KEYS, 0.0);
        fill(&mut scratch.largest, n_rows, f32::NEG_INFINITY);
        fill(&mut scratch.total, n_rows, 0.0);
        let n_keys = self.start + self.n_positions;
        for first_key in (0..n_keys).step_by(KEYS) {
            let n_pages = (n_keys - first_key).min(KEYS).div_ceil(PAGE);
            let pages = &self.pages[first_key / PAGE..][..n_pages];
            self.score(simd, pages, &mut scratch.scores);
            self.weigh(simd, first_key, n_pages, scratch, out);
            self.gather(simd, pages, &scratch.scores, out);
        }
        let width = self.shape.padded();
        for (row, total) in out.chunks_exact_mut(width).zip(&scratch.total) {
            row.iter_mut().for_each(|x| *x /= total);
        }
    }

    /// The queries of one row: row `r` is position `r / group`, query head `r % group`.
    #[inline(always)]
    fn query(&self, r: usize) -> &'a [f32] {
        let offset = r % self.group * self.shape.padded();
        &self.queries.row(r / self.group)[offset..offset + self.shape.head_dim]
    }

    /// Queries times keys.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, pages: &'a [Block], scores: &mut [f32]) {
        let dimensions = Dimensions {
            n_rows: self.n_positions * self.group,
            n_panels: pages.len(),
            segments: 1,
            chained: true,
        };
        let keys = |page: usize, _| self.shape.keys(&pages[page], self.head);
        gemm(simd, dimensions, |r| self.query(r), keys, scores, false);
    }

    /// Turns scores into weights relative to each row's largest score so far, and brings what was gathered down to it.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        simd: S,
        first_key: usize,
        n_pages: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let width = self.shape.padded();
        let rows = scratch.scores.chunks_exact_mut(n_pages * PAGE).zip(out.chunks_exact_mut(width));
        let state = scratch.largest.iter_mut().zip(&mut scratch.total);
        for (r, ((scores, out), (largest, total))) in rows.zip(state).enumerate() {
            let seen = (self.start + r / self.group + 1).saturating_sub(first_key);
            if seen < scores.len() {
                scores[seen..].fill(f32::NEG_INFINITY);
            }
            let new_largest = row_largest(simd, scores).max(*largest);
            if new_largest > *largest {
                let shrink = (*largest - new_largest).exp();
                *total *= shrink;
                out.iter_mut().for_each(|x| *x *= shrink);
                *largest = new_largest;
            }
            *total += exponentials(simd, scores, new_largest);
        }
    }

    /// Weights times values, added to `out`.
    #[inline(always)]
    fn gather<S: Simd>(&self, simd: S, pages: &'a [Block], weights: &[f32], out: &mut [f32]) {
        let n_panels = self.shape.padded() / LANES;
        let dimensions = Dimensions {
            n_rows: self.n_positions * self.group,
            n_panels,
            segments: pages.len(),
            chained: true,
        };
        let width = pages.len() * PAGE;
        let weights = Rows { data: weights, stride: width };
        let values = |panel: usize, page: usize| {
            &self.shape.values(&pages[page], self.head)[panel * PAGE..(panel + 1) * PAGE]
        };
        gemm(simd, dimensions, |r| weights.row(r), values, out, true);
    }
}

#[inline(always)]
fn row_largest<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for lane in row.as_chunks::<LANES>().0 {
        largest = simd.max(largest, simd.load(lane));
    }
    simd.largest(largest)
}

/// Replaces each number by `e^(x - largest)` and gives back their sum.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, row: &mut [f32], largest: f32) -> f32 {
    let (shift, mut total) = (simd.splat(largest), simd.splat(0.0));
    for lane in row.as_chunks_mut::<LANES>().0 {
        let weight = simd.exp(simd.sub(simd.load(lane), shift));
        simd.store(weight, lane);
        total = simd.add(total, weight);
    }
    simd.sum(total)
}

fn fill(v: &mut Vec<f32>, n: usize, value: f32) {
    v.clear();
    v.resize(n, value);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::kv::Cache;
    use super::super::simd::Isa;
    use super::*;

    /// A sequence with made-up queries, keys and values.
    struct Case {
        shape: KvShape,
        group: usize,
        n: usize,
    }

    impl Case {
        fn query(&self, position: usize, j: usize, i: usize) -> f32 {
            ((position * 7 + j * 13 + i * 3) as f32 * 0.37).sin() * 0.8
        }
        fn key(&self, position: usize, head: usize, i: usize) -> f32 {
            ((position * 5 + head * 11 + i * 17) as f32 * 0.73).cos() * (1.0 + (position % 40) as f32 * 0.1)
        }
        fn value(&self, position: usize, head: usize, i: usize) -> f32 {
            ((position * 3 + head * 2 + i) as f32 * 0.51).sin()
        }

        fn cache(&self) -> Cache {
            let mut cache = Cache::new(self.shape);
            cache.grow(self.n);
            for pages in cache.layers_mut() {
                for position in 0..self.n {
                    let block = Arc::make_mut(&mut pages[position / PAGE]);
                    for head in 0..self.shape.heads {
                        let key: Vec<_> =
                            (0..self.shape.head_dim).map(|i| self.key(position, head, i)).collect();
                        let mut value = vec![0.0; self.shape.padded()];
                        (0..self.shape.head_dim).for_each(|i| value[i] = self.value(position, head, i));
                        self.shape.write(block, head, position % PAGE, &key, &value);
                    }
                }
            }
            cache
        }

        fn queries(&self) -> Vec<f32> {
            let width = self.group * self.shape.padded();
            let mut queries = vec![0.0; self.n * width];
            for position in 0..self.n {
                for j in 0..self.group {
                    for i in 0..self.shape.head_dim {
                        queries[position * width + j * self.shape.padded() + i] = self.query(position, j, i);
                    }
                }
            }
            queries
        }

        /// The rows from position `start` on.
        fn attend(&self, isa: Isa, cache: &mut Cache, head: usize, start: usize) -> Vec<f32> {
            self.attend_in(isa, cache, head, start, &mut Scratch::default())
        }

        fn attend_in(
            &self,
            isa: Isa,
            cache: &mut Cache,
            head: usize,
            start: usize,
            scratch: &mut Scratch,
        ) -> Vec<f32> {
            let (queries, width) = (self.queries(), self.group * self.shape.padded());
            let n_positions = self.n - start;
            let mut out = vec![f32::NAN; n_positions * width];
            let of = Queries {
                shape: self.shape,
                pages: &cache.layers_mut()[0],
                head,
                queries: Rows { data: &queries[start * width..], stride: width },
                group: self.group,
                start,
                n_positions,
            };
            isa.run(Attention { of, scratch, out: &mut out });
            out
        }

        /// The textbook formula in double precision.
        fn naive(&self, head: usize, position: usize, j: usize) -> Vec<f64> {
            let score = |key: usize| -> f64 {
                let terms =
                    (0..self.shape.head_dim).map(|i| (self.query(position, j, i), self.key(key, head, i)));
                terms.map(|(q, k)| f64::from(q) * f64::from(k)).sum()
            };
            let weights: Vec<f64> = (0..=position).map(|key| score(key).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mean = |i: usize| -> f64 {
                let terms =
                    weights.iter().enumerate().map(|(key, w)| w * f64::from(self.value(key, head, i)));
                terms.sum::<f64>() / total
            };
            (0..self.shape.head_dim).map(mean).collect()
        }
    }

    fn check(head_dim: usize, group: usize, n: usize) {
        let case = Case { shape: KvShape { layers: 1, heads: 2, head_dim }, group, n };
        let mut cache = case.cache();
        for isa in Isa::available() {
            let out = case.attend(isa, &mut cache, 1, 0);
            for (r, row) in out.chunks(case.shape.padded()).enumerate().step_by(7) {
                let want = case.naive(1, r / group, r % group);
                let worst = row.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                assert!(worst < 2e-6, "{isa:?}, head_dim {head_dim}, group {group}, row {r}: off by {worst}");
            }
        }
    }

    #[test]
    fn attention_is_the_textbook_formula() {
        check(8, 1, 1);
        check(16, 2, 40);
        check(24, 3, 300);
        check(64, 4, 530);
        check(6, 1, 100);
    }

    /// A longer sequence takes time, not room: no more than a block of scores ever exists.
    #[test]
    fn room_does_not_grow_with_the_sequence() {
        for n in [20, 300, 3000] {
            let case = Case { shape: KvShape { layers: 1, heads: 1, head_dim: 8 }, group: 3, n };
            let mut scratch = Scratch::default();
            case.attend_in(Isa::best(), &mut case.cache(), 0, 0, &mut scratch);
            let rows = scratch.largest.capacity().max(scratch.total.capacity());
            assert!(scratch.scores.capacity() <= ROWS * KEYS && rows <= ROWS, "{n} positions: {scratch:?}");
        }
    }

    #[test]
    fn a_row_does_not_depend_on_where_the_rows_begin() {
        let case = Case { shape: KvShape { layers: 1, heads: 1, head_dim: 16 }, group: 3, n: 345 };
        let width = case.group * case.shape.padded();
        let mut cache = case.cache();
        for isa in Isa::available() {
            let whole = case.attend(isa, &mut cache, 0, 0);
            for start in [1, 16, 200, 255, 256, 257, 344] {
                assert_eq!(
                    case.attend(isa, &mut cache, 0, start),
                    whole[start * width..],
                    "{isa:?}, from {start}"
                );
            }
        }
    }
}
