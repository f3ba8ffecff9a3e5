//! A task: some heads of some rows of a sequence, which share their keys, tile after tile.
//!
//! In: a step and the number of a task. Out: what the task's rows attend to. Rows that see the same
//! slots of a tile go over it together, all of their heads one after another.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::cache_type::CacheFormat;
use super::keys::{Head, Keys, NONE};
use super::prepare::prepare;
use super::sums::{Vectors, Work, add, by_size};
use super::{Layer, Step, Task};
use crate::kernels::Workspace;
use crate::kernels::exp::{power, sum_of_lanes, tanh};
use crate::kernels::lanes::{Lanes, MOST_FLOAT_ROWS, WIDTH};
use crate::kernels::nodes::{Node, TILE};

/// The task's units: each a head of a row, those of a row side by side.
struct Units<'a> {
    /// `(units, head_dim)`.
    queries: &'a mut [f32],
    /// Sums of weighted values, `(units, padded)`.
    values: &'a mut [f32],
    /// Sums of weights in lanes, `(units, WIDTH)`.
    weights: &'a mut [f32],
    /// The largest score of each.
    largest: &'a mut [f32],
}

/// What a tile is read through.
struct Tile<'a> {
    keys: Keys<'a>,
    /// A tile's values, `(TILE, padded)`, where they are not in float32 or a head is no multiple of
    /// sixteen.
    copies: &'a mut [f32],
    /// The slot of each position's copy.
    copied: [u32; TILE],
    key: Head,
    value: Head,
    /// `head_dim`, rounded up to a multiple of sixteen.
    padded: usize,
}

/// As [`super::attend_task`].
#[inline(always)]
pub unsafe fn attend<L: Lanes, F: CacheFormat>(
    step: &Step<'_>,
    task: usize,
    workspace: &mut Workspace,
) {
    let (task, layer) = (&step.tasks[task], step.layer);
    let rows = &step.nodes.rows()[task.rows.clone()];
    let (heads, dim) = (task.heads.len(), layer.head_dim);
    let (num_units, padded) = (rows.len() * heads, dim.next_multiple_of(WIDTH));
    let num_copies = if F::IS_FLOAT32 && dim == padded { 0 } else { TILE * padded };
    let num_spare = if F::IS_FLOAT32 { 0 } else { WIDTH * dim };
    let row_bytes = F::row_bytes(dim);
    let start = step.start(task.sequence, task.kv_head) * row_bytes;
    // SAFETY: the cache has the sequence, by contract.
    let (key, value) = unsafe {
        let (key, value) = (step.cache.key.add(start), step.cache.value.add(start));
        let head = |at: *mut u8| Head { at, slots: step.cache.slots, head_dim: dim };
        (head(key), head(value))
    };
    let num_numbers = dim * TILE + num_copies + num_spare + num_units * (padded + WIDTH + dim + 1);
    let workspace = workspace.of(num_numbers);
    let (keys, workspace) = workspace.split_at_mut(dim * TILE);
    let (spare, workspace) = workspace.split_at_mut(num_spare);
    let (copies, workspace) = workspace.split_at_mut(num_copies);
    let (values, workspace) = workspace.split_at_mut(num_units * padded);
    let (weights, workspace) = workspace.split_at_mut(num_units * WIDTH);
    let (queries, largest) = workspace.split_at_mut(num_units * dim);
    let mut units = Units { queries, values, weights, largest };
    let keys = Keys::new(keys, spare);
    let mut tile = Tile { keys, copies, copied: [NONE; TILE], key, value, padded };
    units.begin(step, task);
    let node = |row: usize| step.nodes.of_row(rows[row] as usize);
    let ends = (0..rows.len()).map(|row| node(row).position as usize / TILE + 1);
    let starts = (0..rows.len()).map(|row| first_seen(layer, node(row)) / TILE);
    let end = ends.max().unwrap_or(0);
    for index in starts.min().unwrap_or(0)..end {
        let next = if index + 1 < end { (index + 1) * TILE } else { step.cache.slots } * row_bytes;
        tile.keys.clear();
        tile.copied = [NONE; TILE];
        let mut row = 0;
        while row < rows.len() {
            let seen = seen(layer, node(row), index);
            let first = row;
            row += 1;
            if seen.is_empty() {
                continue;
            }
            let mut slots = [0; TILE];
            step.nodes.slots(node(first), seen.clone(), &mut slots);
            let last = seen.end - 1;
            while row < rows.len() && self::seen(layer, node(row), index) == seen {
                if step.nodes.last_slot(node(row), last) != slots[last % TILE] {
                    break;
                }
                row += 1;
            }
            let places = seen.start % TILE..last % TILE + 1;
            // SAFETY: a node's slots are in the cache, and written.
            unsafe {
                let rows = tile.read::<L, F>(&slots, places.clone(), next);
                let next = tile.value.at.wrapping_add(next);
                units.see::<L, F>(first * heads..row * heads, layer, &tile, &rows, places, next);
            }
        }
    }
    let sums = units.values.chunks_exact(padded).zip(units.weights.as_chunks().0);
    for (unit, (values, weights)) in sums.enumerate() {
        let (row, head) = (rows[unit / heads] as usize, task.heads.start + unit % heads);
        // SAFETY: the output has the row, by contract.
        let to = unsafe {
            let to = step.attended.add((row * layer.heads + head) * dim);
            std::slice::from_raw_parts_mut(to, dim)
        };
        let weight = sum_of_lanes(*weights);
        for (to, value) in to.iter_mut().zip(values) {
            *to = value / weight;
        }
    }
}

/// The first position that a node sees.
#[inline(always)]
fn first_seen(layer: Layer, node: Node) -> usize {
    let end = node.position as usize + 1;
    if layer.window == 0 { 0 } else { end.saturating_sub(layer.window) }
}

/// The positions of a tile that a node sees.
#[inline(always)]
fn seen(layer: Layer, node: Node, tile: usize) -> Range<usize> {
    let (start, end) = (tile * TILE, (tile + 1) * TILE);
    start.max(first_seen(layer, node))..end.min(node.position as usize + 1)
}

impl Tile<'_> {
    /// Has the keys and returns the values of these slots at their places.
    #[inline(always)]
    unsafe fn read<L: Lanes, F: CacheFormat>(
        &mut self,
        slots: &[u32; TILE],
        places: Range<usize>,
        next: usize,
    ) -> [*const f32; TILE] {
        let (dim, row_bytes) = (self.value.head_dim, F::row_bytes(self.value.head_dim));
        let next = self.key.at.wrapping_add(next);
        // SAFETY: by contract of the task, here and below.
        unsafe { self.keys.hold::<L, F>(self.key, slots, places.clone(), next) };
        let mut rows = [self.value.at.cast(); TILE];
        for place in places {
            let at = unsafe { self.value.at.add(slots[place] as usize * row_bytes) };
            rows[place] = at.cast();
            if !F::IS_FLOAT32 || dim < self.padded {
                let copy = &mut self.copies[place * self.padded..(place + 1) * self.padded];
                rows[place] = copy.as_ptr();
                if self.copied[place] != slots[place] {
                    self.copied[place] = slots[place];
                    unsafe { F::read::<L>(at, copy.as_mut_ptr(), dim) };
                    copy[dim..].fill(0.0);
                }
            }
        }
        rows
    }
}

impl Units<'_> {
    /// Has the queries, and nothing seen but sinks.
    #[inline(always)]
    fn begin(&mut self, step: &Step<'_>, task: &Task) {
        let (heads, layer) = (task.heads.len(), step.layer);
        self.values.fill(0.0);
        self.weights.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        let bound = if layer.softcap == 0.0 { LOG2_E } else { 1.0 / layer.softcap };
        let factor = layer.scale * bound;
        let queries = self.queries.chunks_exact_mut(layer.head_dim);
        for (unit, query) in queries.enumerate() {
            let row = step.nodes.rows()[task.rows.start + unit / heads] as usize;
            let head = task.heads.start + unit % heads;
            let norm = step.inputs.query_norm;
            prepare(step.head(row, head), norm, layer.epsilon, step.rotation(row), query);
            for number in query {
                *number *= factor;
            }
            if let Some(sinks) = step.inputs.sinks {
                self.largest[unit] = sinks[head] * LOG2_E;
                self.weights[unit * WIDTH] = 1.0;
            }
        }
    }

    /// Has some units see the places of a tile, whose values are in `rows`.
    #[inline(always)]
    unsafe fn see<L: Lanes, F: CacheFormat>(
        &mut self,
        units: Range<usize>,
        layer: Layer,
        tile: &Tile<'_>,
        rows: &[*const f32; TILE],
        places: Range<usize>,
        next: *const u8,
    ) {
        let batches = units.len().div_ceil(L::FLOAT_ROWS);
        let mut scores = Table([[0.0; TILE]; MOST_FLOAT_ROWS]);
        let vectors = places.start / WIDTH..places.end.div_ceil(WIDTH);
        // Scores ask for half of the next tile's values, values for the other half; in fewer bits
        // scores ask for all.
        let half = TILE / 2 * layer.head_dim;
        let next = next.cast::<f32>();
        for batch in 0..batches {
            let cut = |batch: usize| units.start + batch * units.len() / batches;
            let units = cut(batch)..cut(batch + 1);
            let next = (batch == 0).then_some(next);
            for first in vectors.clone().step_by(L::VECTORS) {
                let mut work = Scores {
                    queries: self.queries[units.start * layer.head_dim..].as_ptr(),
                    keys: tile.keys.from(first * WIDTH),
                    scores: scores.0[0][first * WIDTH..].as_mut_ptr(),
                    head_dim: layer.head_dim,
                    next: next.map(|next| next.wrapping_add(first * WIDTH * layer.head_dim / 2)),
                };
                let vectors = (vectors.end - first).min(L::VECTORS);
                unsafe { by_size::<L, _>(&mut work, units.len(), vectors) };
            }
            unsafe { self.weigh::<L>(units.clone(), layer, &mut scores.0, &places) };
            let next = if F::IS_FLOAT32 { next } else { None };
            let vectors = tile.padded / WIDTH;
            for first in (0..vectors).step_by(L::VECTORS) {
                let mut work = Values {
                    weights: scores.0.as_ptr().cast(),
                    rows,
                    column: first * WIDTH,
                    places: places.clone(),
                    sums: self.values[units.start * tile.padded + first * WIDTH..].as_mut_ptr(),
                    stride: tile.padded,
                    next: next.map(|next| next.wrapping_add(half + first * WIDTH * TILE / 2)),
                };
                let vectors = (vectors - first).min(L::VECTORS);
                unsafe { by_size::<L, _>(&mut work, units.len(), vectors) };
            }
        }
    }

    /// Turns scores into weights, and scales the sums so far where a score is the largest.
    #[inline(always)]
    unsafe fn weigh<L: Lanes>(
        &mut self,
        units: Range<usize>,
        layer: Layer,
        scores: &mut [[f32; TILE]; MOST_FLOAT_ROWS],
        places: &Range<usize>,
    ) {
        let padded = layer.head_dim.next_multiple_of(WIDTH);
        for (unit, scores) in units.zip(scores) {
            if layer.softcap != 0.0 {
                unsafe { cap::<L>(scores, layer.softcap) };
            }
            if places.len() < TILE {
                scores[..places.start].fill(f32::NEG_INFINITY);
                scores[places.end..].fill(f32::NEG_INFINITY);
            }
            let weights = self.weights[unit * WIDTH..][..WIDTH].as_mut_ptr();
            unsafe {
                let mut most = L::splat(f32::NEG_INFINITY);
                for vector in scores.chunks_exact(WIDTH) {
                    most = L::larger(L::load(vector.as_ptr()), most);
                }
                let (most, before) = (L::largest(most), self.largest[unit]);
                if most > before {
                    self.largest[unit] = most;
                    let factor = power::<L>(L::splat(before - most));
                    L::store(weights, L::multiply(L::load(weights), factor));
                    for values in self.values[unit * padded..][..padded].chunks_exact_mut(WIDTH) {
                        let scaled = L::multiply(L::load(values.as_ptr()), factor);
                        L::store(values.as_mut_ptr(), scaled);
                    }
                }
                let (mut sum, most) = (L::load(weights), L::splat(self.largest[unit]));
                for vector in scores.chunks_exact_mut(WIDTH) {
                    let weight = power::<L>(L::subtract(L::load(vector.as_ptr()), most));
                    L::store(vector.as_mut_ptr(), weight);
                    sum = L::add(sum, weight);
                }
                L::store(weights, sum);
            }
        }
    }
}

/// Keeps scores, which are divided by what they stay below, below it.
#[inline(always)]
unsafe fn cap<L: Lanes>(scores: &mut [f32; TILE], bound: f32) {
    for vector in scores.chunks_exact_mut(WIDTH) {
        unsafe {
            let share = tanh::<L>(L::load(vector.as_ptr()));
            L::store(vector.as_mut_ptr(), L::multiply(share, L::splat(bound * LOG2_E)));
        }
    }
}

/// Scores of some units with a tile, and then weights.
#[repr(align(64))]
struct Table([[f32; TILE]; MOST_FLOAT_ROWS]);

/// The scores of some queries with some keys.
struct Scores {
    queries: *const f32,
    keys: *const f32,
    scores: *mut f32,
    head_dim: usize,
    /// Values of the next tile, where they are to be asked for.
    next: Option<*const f32>,
}

/// Vectors at the same distance.
#[derive(Clone, Copy)]
struct Transposed(*const f32);

impl Vectors for Transposed {
    #[inline(always)]
    unsafe fn at(self, index: usize) -> *const f32 {
        unsafe { self.0.add(index * TILE) }
    }
}

impl Work for Scores {
    #[inline(always)]
    // As in `sums.rs`.
    #[allow(clippy::needless_range_loop)]
    unsafe fn run<L: Lanes, const R: usize, const V: usize>(&mut self) {
        let dim = self.head_dim;
        unsafe {
            let mut queries = [self.queries; R];
            for row in 0..R {
                queries[row] = self.queries.add(row * dim);
            }
            let none = [[L::splat(0.0); V]; R];
            let sums = add::<L, _, R, V>(none, &queries, Transposed(self.keys), 0..dim, self.next);
            for row in 0..R {
                for vector in 0..V {
                    L::store(self.scores.add(row * TILE + vector * WIDTH), sums[row][vector]);
                }
            }
        }
    }
}

/// Sums of values times weights.
struct Values<'a> {
    weights: *const f32,
    rows: &'a [*const f32; TILE],
    column: usize,
    places: Range<usize>,
    sums: *mut f32,
    stride: usize,
    /// As [`Scores::next`].
    next: Option<*const f32>,
}

/// Columns of rows that stand anywhere.
#[derive(Clone, Copy)]
struct Columns<'a> {
    rows: &'a [*const f32; TILE],
    first: usize,
}

impl Vectors for Columns<'_> {
    #[inline(always)]
    unsafe fn at(self, index: usize) -> *const f32 {
        unsafe { self.rows.get_unchecked(index).add(self.first) }
    }
}

impl Work for Values<'_> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    unsafe fn run<L: Lanes, const R: usize, const V: usize>(&mut self) {
        unsafe {
            let mut weights = [self.weights; R];
            let mut sums = [[L::splat(0.0); V]; R];
            for row in 0..R {
                weights[row] = weights[row].add(row * TILE);
                for vector in 0..V {
                    sums[row][vector] = L::load(self.sums.add(row * self.stride + vector * WIDTH));
                }
            }
            let columns = Columns { rows: self.rows, first: self.column };
            let places = self.places.clone();
            let sums = add::<L, _, R, V>(sums, &weights, columns, places, self.next);
            for row in 0..R {
                for vector in 0..V {
                    L::store(self.sums.add(row * self.stride + vector * WIDTH), sums[row][vector]);
                }
            }
        }
    }
}
