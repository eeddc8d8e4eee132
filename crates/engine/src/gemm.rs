//! Matrix products with packed right-hand sides.
//!
//! Owns [`Packed`] (a weight matrix in panels of sixteen output columns) and the micro-kernel [`gemm`]
//! that every product of the engine goes through: linear layers, attention scores, attention values,
//! the head. Each output number is summed in the same order whatever the tile it lies in (chains of
//! multiply-adds along the inner dimension, the chains then added), so results do not depend on how rows
//! are batched, chunked or spread over threads. Deliberately absent: threads, and what the matrices mean.

use super::simd::{Kernel, LANES, Lane, Simd};

/// Rows of one tile.
const TILE_ROWS: usize = 6;
/// Inner steps before the next rows are taken: the panels of a tile stay in the second-level cache meanwhile.
const INNER: usize = 8 * CHAIN;
/// Lanes to ask for ahead of use when there are few rows.
const AHEAD: usize = 32;
/// Inner steps that are summed by themselves before they are added to the rest: short chains round less.
const CHAIN: usize = 192;

/// A matrix `inner x columns`, packed: panel `p` holds columns `16 p ..`, one [`Lane`] per inner index.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    inner: usize,
    lanes: Vec<Lane>,
}

impl Packed {
    /// Packs a matrix given by its columns, each with `inner` numbers (a row of a stored weight). `None` is a column of zeros.
    pub fn new(inner: usize, columns: &[Option<&[f32]>]) -> Self {
        let mut lanes = vec![Lane::ZERO; columns.len().div_ceil(LANES) * inner];
        for (panel, columns) in lanes.chunks_exact_mut(inner.max(1)).zip(columns.chunks(LANES)) {
            for (j, column) in columns.iter().enumerate() {
                let values = column.iter().flat_map(|it| it.iter());
                panel.iter_mut().zip(values).for_each(|(lane, &value)| lane.0[j] = value);
            }
        }
        Self { inner, lanes }
    }

    /// How many panels there are.
    pub fn panels(&self) -> usize {
        self.lanes.len().checked_div(self.inner).unwrap_or(0)
    }

    /// The inner dimension.
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// One panel.
    #[inline(always)]
    pub fn panel(&self, p: usize) -> &[Lane] {
        &self.lanes[p * self.inner..][..self.inner]
    }

    /// Column `j` into `out`.
    pub fn column(&self, j: usize, out: &mut [f32]) {
        let panel = self.panel(j / LANES);
        out.iter_mut().zip(panel).for_each(|(out, lane)| *out = lane.0[j % LANES]);
    }
}

/// Rows of equal stride in one slice.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The numbers.
    pub data: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Row `i` and all that follows it.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride..]
    }
}

/// `rows x weights[first_panel ..]` into `out`, as many panels as its rows have room for.
pub struct Product<'a> {
    /// The left-hand side.
    pub rows: Rows<'a>,
    /// How many rows.
    pub n_rows: usize,
    /// The right-hand side.
    pub weights: &'a Packed,
    /// Its first panel to use.
    pub first_panel: usize,
    /// How many panels to use.
    pub n_panels: usize,
    /// `n_rows` rows of `16 n_panels` numbers, overwritten.
    pub out: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let inner = self.weights.inner();
        for start in (0..inner).step_by(INNER) {
            let len = INNER.min(inner - start);
            let left = |row: usize| &self.rows.row(row)[start..start + len];
            let right = |panel: usize, chain: usize| {
                let panel = &self.weights.panel(self.first_panel + panel)[start..start + len];
                &panel[chain * CHAIN..len.min((chain + 1) * CHAIN)]
            };
            let (n_rows, n_panels, segments) = (self.n_rows, self.n_panels, len.div_ceil(CHAIN));
            gemm(
                simd,
                Dimensions { n_rows, n_panels, segments, chained: false },
                left,
                right,
                self.out,
                start > 0,
            );
        }
    }
}

/// The dimensions of a product.
#[derive(Clone, Copy, Debug)]
pub struct Dimensions {
    /// Rows of the left-hand side.
    pub n_rows: usize,
    /// Panels of the right-hand side.
    pub n_panels: usize,
    /// Pieces the inner dimension comes in.
    pub segments: usize,
    /// Whether the pieces are summed in one chain, or each by itself.
    pub chained: bool,
}

/// `out = left x right`, or `out += left x right` when `add`.
///
/// `left(row)` is a row; `right(panel, segment)` is a piece of a panel, the pieces in the order of the
/// inner dimension. `out` has rows of `16 n_panels` numbers.
#[inline(always)]
pub fn gemm<'a, S: Simd>(
    simd: S,
    dimensions: Dimensions,
    left: impl Fn(usize) -> &'a [f32] + Copy,
    right: impl Fn(usize, usize) -> &'a [Lane] + Copy,
    out: &mut [f32],
    add: bool,
) {
    let mut panel = 0;
    while panel < dimensions.n_panels {
        let mut row = 0;
        let wide = dimensions.n_panels - panel >= 4;
        // As many sums as there are registers, and enough of them to hide the latency of one row.
        let step = if wide && (S::MANY_REGISTERS || dimensions.n_rows == 1) { 4 } else { 1 };
        while row < dimensions.n_rows {
            let at = TileAt { row, panel, dimensions, add };
            row += tiles(simd, at, dimensions.n_rows - row, step, left, right, out);
        }
        panel += step;
    }
}

/// Where a tile lies.
#[derive(Clone, Copy)]
struct TileAt {
    row: usize,
    panel: usize,
    dimensions: Dimensions,
    add: bool,
}

/// One tile of at most [`TILE_ROWS`] of the `rows` left; gives back how many it took.
#[inline(always)]
fn tiles<'a, S: Simd>(
    simd: S,
    at: TileAt,
    rows: usize,
    panels: usize,
    left: impl Fn(usize) -> &'a [f32] + Copy,
    right: impl Fn(usize, usize) -> &'a [Lane] + Copy,
    out: &mut [f32],
) -> usize {
    match (rows, panels) {
        (1, 4) => tile::<S, 1, 4>(simd, at, left, right, out),
        (2, 4) => tile::<S, 2, 4>(simd, at, left, right, out),
        (3, 4) => tile::<S, 3, 4>(simd, at, left, right, out),
        (4, 4) => tile::<S, 4, 4>(simd, at, left, right, out),
        (5, 4) => tile::<S, 5, 4>(simd, at, left, right, out),
        (_, 4) => tile::<S, 6, 4>(simd, at, left, right, out),
        (1, _) => tile::<S, 1, 1>(simd, at, left, right, out),
        (2, _) => tile::<S, 2, 1>(simd, at, left, right, out),
        (3, _) => tile::<S, 3, 1>(simd, at, left, right, out),
        (4, _) => tile::<S, 4, 1>(simd, at, left, right, out),
        (5, _) => tile::<S, 5, 1>(simd, at, left, right, out),
        (_, _) => tile::<S, 6, 1>(simd, at, left, right, out),
    }
}

/// `R` rows by `P` panels, all sums in registers.
#[inline(always)]
fn tile<'a, S: Simd, const R: usize, const P: usize>(
    simd: S,
    at: TileAt,
    left: impl Fn(usize) -> &'a [f32],
    right: impl Fn(usize, usize) -> &'a [Lane],
    out: &mut [f32],
) -> usize {
    let left: [&[f32]; R] = std::array::from_fn(|r| left(at.row + r));
    let zero = [[simd.splat(0.0); P]; R];
    let (mut totals, mut sums) = (zero, zero);
    if at.add {
        each::<R, P>(at, out, |r, p, out| totals[r][p] = simd.load(out));
    }
    let mut done = 0;
    for segment in 0..at.dimensions.segments {
        let right: [&[Lane]; P] = std::array::from_fn(|p| right(at.panel + p, segment));
        let n = right[0].len();
        sums = chain(simd, left.map(|row| &row[done..done + n]), right.map(|panel| &panel[..n]), sums);
        if !at.dimensions.chained {
            totals = add(simd, totals, sums);
            sums = zero;
        }
        done += n;
    }
    let totals = add(simd, totals, sums);
    each::<R, P>(at, out, |r, p, out| simd.store(totals[r][p], out));
    R
}

/// Continues the sums of a tile along pieces of equal length.
#[inline(always)]
fn chain<S: Simd, const R: usize, const P: usize>(
    simd: S,
    left: [&[f32]; R],
    right: [&[Lane]; P],
    mut sums: [[S::Vector; P]; R],
) -> [[S::Vector; P]; R] {
    let n = right[0].len();
    // Equal lengths, said once more where the compiler can see it: no bounds are checked inside the loop.
    let (left, right) = (left.map(|row| &row[..n]), right.map(|panel| &panel[..n]));
    for i in 0..n {
        if R < TILE_ROWS {
            // Few rows wait for memory more than they compute.
            right.iter().for_each(|panel| simd.prefetch(&panel[i], AHEAD));
        }
        let lanes: [S::Vector; P] = std::array::from_fn(|p| simd.load(&right[p][i].0));
        for r in 0..R {
            let x = simd.splat(left[r][i]);
            for p in 0..P {
                sums[r][p] = simd.mul_add(x, lanes[p], sums[r][p]);
            }
        }
    }
    sums
}

#[inline(always)]
fn add<S: Simd, const R: usize, const P: usize>(
    simd: S,
    a: [[S::Vector; P]; R],
    b: [[S::Vector; P]; R],
) -> [[S::Vector; P]; R] {
    std::array::from_fn(|r| std::array::from_fn(|p| simd.add(a[r][p], b[r][p])))
}

/// Visits the sixteen output numbers of each row and panel of a tile.
#[inline(always)]
fn each<const R: usize, const P: usize>(
    at: TileAt,
    out: &mut [f32],
    mut visit: impl FnMut(usize, usize, &mut [f32; LANES]),
) {
    for r in 0..R {
        let row = &mut out[(at.row + r) * at.dimensions.n_panels * LANES + at.panel * LANES..][..P * LANES];
        for (p, lane) in row.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            visit(r, p, lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn product(isa: Isa, rows: &[f32], n_rows: usize, weights: &Packed) -> Vec<f32> {
        let mut out = vec![f32::NAN; n_rows * weights.panels() * LANES];
        let rows = Rows { data: rows, stride: weights.inner() };
        let n_panels = weights.panels();
        isa.run(Product { rows, n_rows, weights, first_panel: 0, n_panels, out: &mut out });
        out
    }

    fn naive(row: &[f32], column: &[f32]) -> f64 {
        row.iter().zip(column).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    /// The product of every size against plain sums in double precision.
    fn check(n_rows: usize, inner: usize, columns: usize) {
        let (a, b) = (numbers(n_rows * inner, 1), numbers(columns * inner, 2));
        let stored: Vec<_> = b.chunks(inner).map(Some).collect();
        let weights = Packed::new(inner, &stored);
        for isa in Isa::available() {
            let out = product(isa, &a, n_rows, &weights);
            let stride = weights.panels() * LANES;
            for (i, row) in a.chunks(inner).enumerate() {
                for (j, column) in b.chunks(inner).enumerate() {
                    let (got, want) = (f64::from(out[i * stride + j]), naive(row, column));
                    assert!((got - want).abs() < 1e-6 * inner as f64, "{isa:?} {i} {j}: {got} {want}");
                }
                assert!(out[i * stride + columns..(i + 1) * stride].iter().all(|&pad| pad == 0.0));
            }
        }
    }

    #[test]
    fn products_are_right_for_all_shapes_of_tiles() {
        for n_rows in 1..=13 {
            check(n_rows, 7, 16 * 9);
        }
        for columns in [1, 15, 16, 17, 63, 64, 65, 200] {
            check(5, 33, columns);
        }
        check(3, INNER, 16);
        check(7, INNER * 2 + 5, 80);
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let (inner, n_rows) = (INNER + 100, 23);
        let a = numbers(n_rows * inner, 3);
        let b = numbers(112 * inner, 4);
        let weights = Packed::new(inner, &b.chunks(inner).map(Some).collect::<Vec<_>>());
        let fused = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
        let isas: Vec<_> = Isa::available().into_iter().skip(usize::from(!fused)).collect();
        let expected = isas.first().map(|&isa| product(isa, &a, n_rows, &weights));
        for isa in isas {
            let alone: Vec<f32> = a.chunks(inner).flat_map(|row| product(isa, row, 1, &weights)).collect();
            assert_eq!(Some(&alone), expected.as_ref(), "{isa:?}, rows alone");
            assert_eq!(Some(product(isa, &a, n_rows, &weights)), expected, "{isa:?}, rows together");
        }
    }

    #[test]
    fn a_packed_column_can_be_read_back() {
        let b = numbers(40 * 9, 5);
        let mut columns: Vec<_> = b.chunks(9).map(Some).collect();
        columns.insert(3, None);
        let weights = Packed::new(9, &columns);
        let mut out = [0.0; 9];
        weights.column(20, &mut out);
        assert_eq!(Some(&out[..]), columns[20]);
        weights.column(3, &mut out);
        assert_eq!(out, [0.0; 9]);
    }
}
