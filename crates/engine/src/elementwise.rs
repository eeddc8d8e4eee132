//! The small steps between products: norms, rotation, activation.
//!
//! Owns what happens to each row by itself. Deliberately absent: products, threads, layers.

use super::simd::{Kernel, LANES, Simd};

/// Root-mean-square norm of rows in place: each row divided by its root mean square, times `weight`.
pub struct Norm<'a> {
    /// Rows as wide as `weight`, filled with zeros beyond `dim`.
    pub rows: &'a mut [f32],
    /// The factor of each number.
    pub weight: &'a [f32],
    /// How many numbers of a row count.
    pub dim: usize,
    /// Added to the mean square.
    pub epsilon: f32,
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            let lanes = row.as_chunks_mut::<LANES>().0;
            let mut squares = simd.splat(0.0);
            for lane in lanes.iter() {
                let x = simd.load(lane);
                squares = simd.mul_add(x, x, squares);
            }
            let scale = simd.splat(1.0 / (simd.sum(squares) / self.dim as f32 + self.epsilon).sqrt());
            for (lane, weight) in lanes.iter_mut().zip(self.weight.as_chunks().0) {
                simd.store(simd.mul(simd.load(weight), simd.mul(simd.load(lane), scale)), lane);
            }
        }
    }
}

/// `silu(gate) * up` of a tile whose panels alternate between gate and up.
pub struct Gated<'a> {
    /// Rows of `2 width` numbers.
    pub tile: &'a [f32],
    /// How many gated numbers a row gives.
    pub width: usize,
    /// Rows of `stride` numbers, written from `offset` on.
    pub out: &'a mut [f32],
    /// From one row of `out` to the next.
    pub stride: usize,
    /// The first number to write in each row.
    pub offset: usize,
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let one = simd.splat(1.0);
        let rows = self.tile.chunks_exact(2 * self.width).zip(self.out.chunks_exact_mut(self.stride));
        for (tile, out) in rows {
            let out = out[self.offset..self.offset + self.width].as_chunks_mut::<LANES>().0;
            for (pair, out) in tile.as_chunks::<{ 2 * LANES }>().0.iter().zip(out) {
                let [gate, up] = [0, 1].map(|i| simd.load(&pair.as_chunks().0[i]));
                let decay = simd.exp(simd.sub(simd.splat(0.0), gate));
                simd.store(simd.mul(simd.div(gate, simd.add(one, decay)), up), out);
            }
        }
    }
}

/// The cosines and sines of a position's angles.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    /// Of several positions, one after another. The angle is rounded to single precision, as in the reference.
    pub fn new(frequencies: &[f32], positions: impl Iterator<Item = usize>) -> Self {
        let mut angles = Self::default();
        for position in positions {
            let turned = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
            for angle in turned {
                angles.cos.push(angle.cos() as f32);
                angles.sin.push(angle.sin() as f32);
            }
        }
        angles
    }

    /// Rotates one head of row `row` in place: number `i` pairs with number `i + half`. `scale` is applied as well.
    pub fn rotate(&self, row: usize, half: usize, head: &mut [f32], scale: f32) {
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        let (first, rest) = head.split_at_mut(half);
        let second = &mut rest[..half];
        for i in 0..half {
            let (a, b) = (first[i], second[i]);
            first[i] = (a * cos[i] - b * sin[i]) * scale;
            second[i] = (b * cos[i] + a * sin[i]) * scale;
        }
    }
}

/// Adds rows of `other` to rows of `to`.
pub fn add(to: &mut [f32], other: &[f32]) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to += other);
}

/// Adds a bias to every row; an empty one changes nothing.
pub fn add_bias(rows: &mut [f32], bias: &[f32]) {
    if !bias.is_empty() {
        rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Isa;
    use super::*;

    fn close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        let off = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs() / (1.0 + b.abs()));
        assert!(off.fold(0.0, f64::max) < 1e-6, "{got:?} {want:?}");
    }

    #[test]
    fn a_norm_counts_only_the_real_numbers() {
        for isa in Isa::available() {
            let mut row = [0.0; 32];
            (0..20).for_each(|i| row[i] = i as f32 - 7.5);
            let weight: Vec<f32> = (0..32).map(|i| if i < 20 { 1.0 + i as f32 } else { 0.0 }).collect();
            let mean = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / 20.0;
            let want: Vec<f64> =
                row.iter().zip(&weight).map(|(x, w)| f64::from(x * w) / (mean + 1e-3).sqrt()).collect();
            isa.run(Norm { rows: &mut row, weight: &weight, dim: 20, epsilon: 1e-3 });
            close(&row, &want);
        }
    }

    #[test]
    fn gate_and_up_meet() {
        for isa in Isa::available() {
            let tile: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * 1.7).collect();
            let mut out = [7.0; 40];
            isa.run(Gated { tile: &tile, width: 32, out: &mut out, stride: 40, offset: 4 });
            let silu = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
            let want =
                |i: usize| silu(tile[i / 16 * 32 + i % 16]) * f64::from(tile[i / 16 * 32 + 16 + i % 16]);
            close(&out[4..36], &(0..32).map(want).collect::<Vec<_>>());
            assert_eq!((out[3], out[36]), (7.0, 7.0));
        }
    }

    #[test]
    fn rotation_turns_pairs_by_position_times_frequency() {
        let angles = Angles::new(&[1.0, 0.1], [3, 5].into_iter());
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        angles.rotate(1, 2, &mut head, 0.5);
        let turn = |a: f64, b: f64, angle: f64| {
            (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
        };
        let ((a, c), (b, d)) = (turn(1.0, 3.0, 5.0), turn(2.0, 4.0, 0.5));
        close(&head, &[a / 2.0, b / 2.0, c / 2.0, d / 2.0, 9.0]);
    }
}
