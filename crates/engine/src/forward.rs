//! The forward pass: from tokens to the hidden states that predict the next ones.
//!
//! Owns the order of a decoder's steps and how they are spread over threads. Many rows are cut into
//! groups that go through a whole layer on one thread, so that what passes between its products stays
//! in that core's cache; few rows (decoding) are one group whose products are cut by columns. Either
//! way every number is computed by the same chain of operations, so the result does not depend on the
//! number of threads, the cut, or the sequences computed beside it. Deliberately absent: the head.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::attention::{self, Attention, Queries};
use super::config::Config;
use super::elementwise::{Angles, Gated, Norm, add, add_bias};
use super::gemm::{Product, Rows};
use super::kv::{Block, Cache, KvShape, PAGE};
use super::simd::{Isa, LANES};
use super::weights::{Layer, Linear, Weights};
use backsight_core::tokens::TokenId;

/// Rows of a group that goes through a layer together: enough to use each weight often, few enough to stay in cache.
const GROUP_ROWS: usize = 128;
/// Up to this many rows per thread, products are cut by columns instead, so that each weight is read once.
const WIDE_ROWS: usize = 24;
/// Panels of gate and up that are multiplied before they are gated.
const GATED_PANELS: usize = 32;

/// Tokens to be read after what is remembered of them.
pub struct Reading<'a> {
    /// All tokens of the sequence, up to the last one to be read.
    pub tokens: &'a [TokenId],
    /// Remembers the first of them, and all of them afterwards.
    pub cache: &'a mut Cache,
    /// From which position on the hidden states are wanted.
    pub wanted_from: usize,
}

/// What computes.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// The decoder's shape.
    pub config: &'a Config,
    /// Its weights.
    pub weights: &'a Weights,
    /// The vector instructions to use.
    pub isa: Isa,
}

/// Rows of one sequence that lie in one group. Apart from a sequence's ends they fill whole pages.
struct Piece {
    /// Which of the readings.
    reading: usize,
    /// The first row's position in the sequence.
    position: usize,
    /// The first row's place in the group.
    at: usize,
    n: usize,
}

/// Rows that go through the layers together.
struct Group {
    pieces: Vec<Piece>,
    n_rows: usize,
    /// The hidden states.
    hidden: Vec<f32>,
    /// Queries, keys and values of the current layer.
    qkv: Vec<f32>,
    angles: Angles,
}

/// Room to work in, one per thread at work.
#[derive(Default)]
struct Scratch {
    normed: Vec<f32>,
    attended: Vec<f32>,
    head: Vec<f32>,
    change: Vec<f32>,
    tile: Vec<f32>,
    inner: Vec<f32>,
    attention: attention::Scratch,
}

/// One pass over the next tokens of some readings.
struct Pass<'a> {
    machine: Machine<'a>,
    /// Where each reading begins in it.
    starts: Vec<usize>,
    /// Whether products are cut by columns.
    wide: bool,
    scratch: Mutex<Vec<Scratch>>,
}

impl Machine<'_> {
    /// Reads the next tokens, at most `max_rows`, and gives back the wanted hidden states of each reading, normalised, in rows of [`Config::hidden_padded`].
    pub fn forward(self, readings: &mut [Reading<'_>], max_rows: usize) -> Vec<Vec<f32>> {
        let (mut total, mut starts) = (0, Vec::new());
        for reading in readings.iter_mut() {
            let start = reading.cache.len();
            let n = (reading.tokens.len() - start).min(max_rows - total);
            reading.cache.grow(n);
            starts.push(start);
            total += n;
        }
        let threads = rayon::current_num_threads();
        let wide = total <= WIDE_ROWS * threads;
        let n_groups = if wide { 1 } else { total.div_ceil(GROUP_ROWS).next_multiple_of(threads) };
        let pieces = cut(readings, &starts, total, n_groups);
        let mut groups: Vec<Group> = pieces.into_iter().map(|pieces| self.embed(readings, pieces)).collect();
        let pass = Pass { machine: self, starts, wide, scratch: Mutex::default() };
        for layer in 0..=self.config.layers {
            pass.step(&mut groups, readings, layer);
        }
        self.wanted(readings, &groups)
    }

    fn embed(self, readings: &[Reading<'_>], pieces: Vec<Piece>) -> Group {
        let (config, n_rows) = (self.config, pieces.iter().map(|piece| piece.n).sum());
        let width = config.hidden_padded();
        let mut hidden = vec![0.0; n_rows * width];
        for piece in &pieces {
            let rows = hidden[piece.at * width..].chunks_exact_mut(width);
            let tokens = &readings[piece.reading].tokens[piece.position..][..piece.n];
            rows.zip(tokens).for_each(|(row, &token)| self.weights.embed(token as usize, row));
        }
        let positions = pieces.iter().flat_map(|piece| piece.position..piece.position + piece.n);
        let angles = Angles::new(&config.frequencies, positions);
        let qkv = vec![0.0; n_rows * (config.q_width() + 2 * config.kv_width())];
        Group { pieces, n_rows, hidden, qkv, angles }
    }

    /// The wanted rows of each reading, normalised for the head.
    fn wanted(self, readings: &[Reading<'_>], groups: &[Group]) -> Vec<Vec<f32>> {
        let width = self.config.hidden_padded();
        let mut wanted = vec![Vec::new(); readings.len()];
        for (group, piece) in groups.iter().flat_map(|group| group.pieces.iter().map(move |it| (group, it))) {
            let skip = readings[piece.reading].wanted_from.saturating_sub(piece.position).min(piece.n);
            let rows = &group.hidden[(piece.at + skip) * width..(piece.at + piece.n) * width];
            wanted[piece.reading].extend_from_slice(rows);
        }
        let (weight, dim, epsilon) = (&self.weights.norm, self.config.hidden, self.config.epsilon);
        wanted.iter_mut().for_each(|rows| self.isa.run(Norm { rows, weight, dim, epsilon }));
        wanted
    }
}

/// Cuts the rows of all readings into `n_groups` of about the same size, at page borders.
fn cut(readings: &[Reading<'_>], starts: &[usize], total: usize, n_groups: usize) -> Vec<Vec<Piece>> {
    let mut groups: Vec<Vec<Piece>> = Vec::new();
    let (mut row, mut group_of_last) = (0, usize::MAX);
    for (reading, (it, &start)) in readings.iter().zip(starts).enumerate() {
        let mut position = start;
        while position < it.cache.len() {
            let n = (PAGE - position % PAGE).min(it.cache.len() - position);
            let group = row * n_groups / total;
            if group != group_of_last {
                groups.push(Vec::new());
                group_of_last = group;
            }
            if let Some(pieces) = groups.last_mut() {
                append(pieces, Piece { reading, position, at: 0, n });
            }
            (position, row) = (position + n, row + n);
        }
    }
    groups
}

/// Joins a page of rows to the last piece where it continues it.
fn append(pieces: &mut Vec<Piece>, mut page: Piece) {
    match pieces.last_mut() {
        Some(last) if last.reading == page.reading => last.n += page.n,
        last => {
            page.at = last.map_or(0, |last| last.at + last.n);
            pieces.push(page);
        }
    }
}

impl Pass<'_> {
    /// Finishes the layer before `layer` and begins `layer`, as far as there are such layers.
    ///
    /// Between the two a group needs nobody, so all groups meet once per layer: when all keys and
    /// values of a layer are written.
    fn step(&self, groups: &mut [Group], readings: &mut [Reading<'_>], layer: usize) {
        let (mut before, mut writable) = (Vec::new(), Vec::new());
        for (reading, start) in readings.iter_mut().zip(&self.starts) {
            let (done, next) = reading.cache.layers_mut().split_at_mut(layer);
            before.push(done.last().map_or(&[][..], Vec::as_slice));
            writable.push(next.first_mut().map_or(&mut [][..], |pages| &mut pages[start / PAGE..]));
        }
        let tasks = groups.iter_mut().map(|group| {
            let pages = group.pieces.iter().map(|piece| take_pages(&mut writable[piece.reading], piece));
            let pages: Vec<&mut [Block]> = pages.collect();
            (group, pages)
        });
        // The last rows see the most keys, so they are begun first.
        let tasks: Vec<_> = tasks.collect::<Vec<_>>().into_iter().rev().collect();
        let work = |(group, pages): (&mut Group, Vec<&mut [Block]>)| {
            let mut scratch =
                self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
            if let Some(it) = layer.checked_sub(1) {
                self.finish(&self.machine.weights.layers[it], group, &before, &mut scratch);
            }
            if let Some(it) = self.machine.weights.layers.get(layer) {
                self.begin(it, group, pages, &mut scratch);
            }
            self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        };
        match tasks.len() {
            0 | 1 => tasks.into_iter().for_each(work),
            // In their order, as many at a time as there are threads.
            _ => tasks.into_iter().par_bridge().for_each(work),
        }
    }

    /// The first half of a layer: norm, queries, keys and values, rotation; keys and values are written to their pages.
    fn begin(&self, layer: &Layer, group: &mut Group, pages: Vec<&mut [Block]>, scratch: &mut Scratch) {
        self.norm(&group.hidden, &layer.attention_norm, &mut scratch.normed);
        self.linear(&scratch.normed, &layer.qkv, &mut group.qkv);
        self.rotate(layer, group);
        let config = self.machine.config;
        let (q, kv) = (config.q_width(), config.kv_width());
        for (piece, pages) in group.pieces.iter().zip(pages) {
            let first_page = piece.position / PAGE;
            let rows = group.qkv.chunks_exact(q + 2 * kv).skip(piece.at).take(piece.n);
            for (row, position) in rows.zip(piece.position..) {
                let block = Arc::make_mut(&mut pages[position / PAGE - first_page]);
                write_token(self.shape(), block, position % PAGE, &row[q..q + kv], &row[q + kv..]);
            }
        }
    }

    /// The second half: attention, its output, and the feed-forward part.
    fn finish(&self, layer: &Layer, group: &mut Group, pages: &[&[Block]], scratch: &mut Scratch) {
        self.attend(group, pages, scratch);
        self.linear(&scratch.attended, &layer.out, sized(&mut scratch.change, group.hidden.len()));
        add(&mut group.hidden, &scratch.change);
        self.norm(&group.hidden, &layer.mlp_norm, &mut scratch.normed);
        self.gated(&layer.gate_up, group.n_rows, scratch);
        self.linear(&scratch.inner, &layer.down, sized(&mut scratch.change, group.hidden.len()));
        add(&mut group.hidden, &scratch.change);
    }

    fn shape(&self) -> KvShape {
        self.machine.config.kv_shape()
    }

    fn norm(&self, rows: &[f32], weight: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(rows);
        let config = self.machine.config;
        self.machine.isa.run(Norm { rows: out, weight, dim: config.hidden, epsilon: config.epsilon });
    }

    /// Norms (where there are any) and rotates queries and keys. Queries take the scale of the scores along.
    fn rotate(&self, layer: &Layer, group: &mut Group) {
        let config = self.machine.config;
        let (q, kv, padded) = (config.q_width(), config.kv_width(), config.head_padded());
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        for (i, row) in group.qkv.chunks_exact_mut(q + 2 * kv).enumerate() {
            let (queries, rest) = row.split_at_mut(q);
            for (heads, weight, scale) in
                [(queries, &layer.q_norm, scale), (&mut rest[..kv], &layer.k_norm, 1.0)]
            {
                if !weight.is_empty() {
                    let (dim, epsilon) = (config.head_dim, config.epsilon);
                    self.machine.isa.run(Norm { rows: heads, weight, dim, epsilon });
                }
                let heads = heads.chunks_exact_mut(padded);
                heads.for_each(|head| group.angles.rotate(i, config.head_dim / 2, head, scale));
            }
        }
    }

    /// `out = rows x linear`, rows of the matrix's inner dimension filled up to whole lanes.
    fn linear(&self, rows: &[f32], linear: &Linear, out: &mut [f32]) {
        let weights = &linear.weights;
        let stride = weights.inner().next_multiple_of(LANES);
        let (n_rows, rows) = (rows.len() / stride, Rows { data: rows, stride });
        let product = |first_panel: usize, n_panels: usize, out: &mut [f32]| {
            self.machine.isa.run(Product { rows, n_rows, weights, first_panel, n_panels, out });
        };
        if self.wide {
            let width = weights.panels() * LANES;
            by_columns(weights.panels(), 1, |first, n| {
                let mut tile = vec![0.0; n_rows * n * LANES];
                product(first, n, &mut tile);
                (first * LANES, tile)
            })
            .into_iter()
            .for_each(|(offset, tile)| place(&tile, n_rows, out, width, offset));
        } else {
            product(0, weights.panels(), out);
        }
        add_bias(out, &linear.bias);
    }

    /// Gate and up, gated, into `scratch.inner`.
    fn gated(&self, linear: &Linear, n_rows: usize, scratch: &mut Scratch) {
        let weights = &linear.weights;
        let width = weights.panels() / 2 * LANES;
        let rows = Rows { data: &scratch.normed, stride: weights.inner().next_multiple_of(LANES) };
        let inner = sized(&mut scratch.inner, n_rows * width);
        let product = |first_panel: usize, n_panels: usize, tile: &mut Vec<f32>| {
            let out = sized(tile, n_rows * n_panels * LANES);
            self.machine.isa.run(Product { rows, n_rows, weights, first_panel, n_panels, out });
            if !linear.bias.is_empty() {
                add_bias(out, &linear.bias[first_panel * LANES..][..n_panels * LANES]);
            }
        };
        let gate = |tile: &[f32], n_panels: usize, out: &mut [f32], stride: usize, offset: usize| {
            self.machine.isa.run(Gated { tile, width: n_panels / 2 * LANES, out, stride, offset });
        };
        if self.wide {
            let tiles = by_columns(weights.panels(), 2, |first, n| {
                let (mut tile, mut out) = (Vec::new(), vec![0.0; n_rows * n / 2 * LANES]);
                product(first, n, &mut tile);
                gate(&tile, n, &mut out, n / 2 * LANES, 0);
                (first / 2 * LANES, out)
            });
            tiles.into_iter().for_each(|(offset, tile)| place(&tile, n_rows, inner, width, offset));
        } else {
            for first in (0..weights.panels()).step_by(GATED_PANELS) {
                let n = GATED_PANELS.min(weights.panels() - first);
                product(first, n, &mut scratch.tile);
                gate(&scratch.tile, n, inner, width, first / 2 * LANES);
            }
        }
    }

    /// Attention of all heads into `scratch.attended`.
    fn attend(&self, group: &Group, pages: &[&[Block]], scratch: &mut Scratch) {
        let config = self.machine.config;
        let width = config.q_width();
        let attended = sized(&mut scratch.attended, group.n_rows * width);
        let heads = group.pieces.iter().flat_map(|piece| (0..config.kv_heads).map(move |head| (piece, head)));
        if self.wide {
            let heads: Vec<_> = heads.collect();
            let results = heads.into_par_iter().map(|(piece, head)| {
                let (mut out, mut scratch) = (Vec::new(), attention::Scratch::default());
                self.attend_head(group, piece, head, pages[piece.reading], &mut scratch, &mut out);
                (piece, head, out)
            });
            let results: Vec<_> = results.collect();
            results.iter().for_each(|(piece, head, out)| self.place_head(piece, *head, out, attended));
        } else {
            for (piece, head) in heads {
                self.attend_head(
                    group,
                    piece,
                    head,
                    pages[piece.reading],
                    &mut scratch.attention,
                    &mut scratch.head,
                );
                self.place_head(piece, head, &scratch.head, attended);
            }
        }
    }

    fn attend_head(
        &self,
        group: &Group,
        piece: &Piece,
        head: usize,
        pages: &[Block],
        scratch: &mut attention::Scratch,
        out: &mut Vec<f32>,
    ) {
        let config = self.machine.config;
        let (stride, padded) = (config.q_width() + 2 * config.kv_width(), config.head_padded());
        let first = piece.at * stride + head * config.group() * padded;
        let of = Queries {
            shape: self.shape(),
            pages,
            head,
            queries: Rows { data: &group.qkv[first..], stride },
            group: config.group(),
            start: piece.position,
            n_positions: piece.n,
        };
        let out = sized(out, piece.n * config.group() * padded);
        self.machine.isa.run(Attention { of, scratch, out });
    }

    fn place_head(&self, piece: &Piece, head: usize, from: &[f32], attended: &mut [f32]) {
        let config = self.machine.config;
        let (width, part) = (config.q_width(), config.group() * config.head_padded());
        place(from, piece.n, &mut attended[piece.at * width..], width, head * part);
    }
}

fn write_token(shape: KvShape, block: &mut [super::simd::Lane], slot: usize, keys: &[f32], values: &[f32]) {
    let heads = keys.chunks_exact(shape.padded()).zip(values.chunks_exact(shape.padded()));
    for (head, (key, value)) in heads.enumerate() {
        shape.write(block, head, slot, key, value);
    }
}

/// The pages of a piece, taken off the front of its reading's.
fn take_pages<'a>(rest: &mut &'a mut [Block], piece: &Piece) -> &'a mut [Block] {
    let n_pages = (piece.position + piece.n).div_ceil(PAGE) - piece.position / PAGE;
    let n_pages = n_pages.min(rest.len());
    let (own, others) = std::mem::take(rest).split_at_mut(n_pages);
    *rest = others;
    own
}

/// The first `len` numbers of `v`, which is made long enough. What they are is left open.
fn sized(v: &mut Vec<f32>, len: usize) -> &mut [f32] {
    v.resize(len, 0.0);
    v
}

/// Copies `n_rows` of a tile into rows of `width` numbers from `offset` on.
fn place(tile: &[f32], n_rows: usize, out: &mut [f32], width: usize, offset: usize) {
    let part = tile.len() / n_rows.max(1);
    for (from, to) in tile.chunks_exact(part.max(1)).zip(out.chunks_exact_mut(width)) {
        to[offset..offset + part].copy_from_slice(from);
    }
}

/// Cuts `panels` into one part per thread, in multiples of `step`, and computes them side by side.
fn by_columns<T: Send>(panels: usize, step: usize, part: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    // Tiles take four panels at a time; parts that end elsewhere would waste registers.
    let size = panels.div_ceil(rayon::current_num_threads()).next_multiple_of(4 * step);
    let parts = (0..panels).into_par_iter().step_by(size);
    parts.map(|first| part(first, size.min(panels - first))).collect()
}
