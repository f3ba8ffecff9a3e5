//! A task: some heads of some rows of a sequence, which share their keys, tile after tile.
//!
//! In: a step and the number of a task. Out: what the task's rows attend to. Rows that see the same
//! slots of a tile go over it together, all of their heads one after another.

use std::ops::Range;

use super::exp::{exp, largest, sum, tanh};
use super::keys::{Head, Keys};
use super::nodes::{Node, TILE};
use super::prepare::prepare;
use super::sums::{MOST_ROWS, Vectors, Work, add, by_size};
use super::{Layer, Step, Task};
use crate::kernels::lanes::{Lanes, WIDTH};

/// How many tiles ahead keys and values are asked for. One row behind 4,000 tokens takes 1.6 times as
/// long where nothing is asked for, or into the first cache.
const AHEAD: usize = 2;

/// Memory that a thread's tasks use one after another.
#[derive(Default)]
pub struct Room(Vec<f32>);

/// The task's units: each a head of a row, those of a row side by side.
struct Units<'a> {
    /// `(units, head_dim)`.
    queries: &'a mut [f32],
    /// Sums of weighted values, `(units, padded)`.
    values: &'a mut [f32],
    /// The largest score of each.
    largest: &'a mut [f32],
    /// The sum of weights of each.
    weights: &'a mut [f32],
}

/// What a tile is read through.
struct Tile<'a> {
    keys: Keys<'a>,
    /// A tile's values, `(TILE, padded)`, where a head is no multiple of sixteen.
    copies: &'a mut [f32],
    key: Head,
    value: Head,
    /// `head_dim`, rounded up to a multiple of sixteen.
    padded: usize,
}

/// As [`super::attend_task`].
#[inline(always)]
pub unsafe fn attend<L: Lanes>(step: &Step<'_>, task: usize, room: &mut Room) {
    let (task, layer) = (&step.tasks[task], step.layer);
    let rows = &step.nodes.rows()[task.rows.clone()];
    let (heads, dim) = (task.heads.len(), layer.head_dim);
    let (num_units, padded) = (rows.len() * heads, dim.next_multiple_of(WIDTH));
    let num_copies = if dim == padded { 0 } else { TILE * padded };
    let start = step.start(task.sequence, task.kv_head);
    // SAFETY: the cache has the sequence, by contract.
    let (key, value) = unsafe {
        let (key, value) = (step.cache.key.add(start), step.cache.value.add(start));
        let head = |at: *mut f32| Head { at, slots: step.cache.slots, head_dim: dim };
        (head(key), head(value))
    };
    let room = room.of(dim * TILE + num_copies + num_units * (dim + padded + 2));
    let (keys, room) = room.split_at_mut(dim * TILE);
    let (copies, room) = room.split_at_mut(num_copies);
    let (queries, room) = room.split_at_mut(num_units * dim);
    let (values, room) = room.split_at_mut(num_units * padded);
    let (largest, weights) = room.split_at_mut(num_units);
    let mut units = Units { queries, values, largest, weights };
    let mut tile = Tile { keys: Keys::new(keys), copies, key, value, padded };
    units.begin(step, task);
    let node = |row: usize| step.nodes.of_row(rows[row] as usize);
    let ends = (0..rows.len()).map(|row| node(row).position as usize / TILE + 1);
    let starts = (0..rows.len()).map(|row| first_seen(layer, node(row)) / TILE);
    for index in starts.min().unwrap_or(0)..ends.max().unwrap_or(0) {
        tile.keys.clear();
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
                let mut others = [0; TILE];
                step.nodes.slots(node(row), last..seen.end, &mut others);
                if others[last % TILE] != slots[last % TILE] {
                    break;
                }
                row += 1;
            }
            let places = seen.start % TILE..last % TILE + 1;
            // SAFETY: a node's slots are in the cache, and written.
            unsafe {
                let rows = tile.read::<L>(&slots, places.clone());
                units.see::<L>(first * heads..row * heads, layer, &tile, &rows, places, index);
            }
        }
    }
    for (unit, values) in units.values.chunks_exact(padded).enumerate() {
        let (row, head) = (rows[unit / heads] as usize, task.heads.start + unit % heads);
        // SAFETY: the output has the row, by contract.
        let to = unsafe {
            let to = step.attended.add((row * layer.heads + head) * dim);
            std::slice::from_raw_parts_mut(to, dim)
        };
        for (to, value) in to.iter_mut().zip(values) {
            *to = value / units.weights[unit];
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

impl Room {
    /// So many numbers, of any value.
    fn of(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len {
            self.0.resize(len, 0.0);
        }
        &mut self.0[..len]
    }
}

impl Tile<'_> {
    /// Has the keys and returns the values of these slots at their places.
    #[inline(always)]
    unsafe fn read<L: Lanes>(
        &mut self,
        slots: &[u32; TILE],
        places: Range<usize>,
    ) -> [*const f32; TILE] {
        let dim = self.value.head_dim;
        // SAFETY: by contract of the task, here and below.
        unsafe { self.keys.hold::<L>(self.key, slots, places.clone()) };
        let mut rows = [self.value.at; TILE];
        for place in places {
            let at = unsafe { self.value.at.add(slots[place] as usize * dim) };
            rows[place] = at;
            if dim < self.padded {
                let copy = &mut self.copies[place * self.padded..(place + 1) * self.padded];
                unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(at, dim) };
                copy[dim..].fill(0.0);
                rows[place] = copy.as_ptr();
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
        let queries = self.queries.chunks_exact_mut(layer.head_dim);
        for (unit, query) in queries.enumerate() {
            let row = step.nodes.rows()[task.rows.start + unit / heads] as usize;
            let head = task.heads.start + unit % heads;
            let norm = step.inputs.query_norm;
            prepare(step.head(row, head), norm, layer.epsilon, step.rotation(row), query);
            let sink = step.inputs.sinks.map(|sinks| sinks[head]);
            self.largest[unit] = sink.unwrap_or(f32::NEG_INFINITY);
            self.weights[unit] = if sink.is_some() { 1.0 } else { 0.0 };
        }
        self.values.fill(0.0);
    }

    /// Has some units see the places of a tile, whose values are in `rows`.
    #[inline(always)]
    unsafe fn see<L: Lanes>(
        &mut self,
        units: Range<usize>,
        layer: Layer,
        tile: &Tile<'_>,
        rows: &[*const f32; TILE],
        places: Range<usize>,
        index: usize,
    ) {
        let batches = units.len().div_ceil(MOST_ROWS);
        let mut scores = [0.0; MOST_ROWS * TILE];
        let vectors = places.start / WIDTH..places.end.div_ceil(WIDTH);
        let next = (index + AHEAD) * TILE * layer.head_dim;
        for batch in 0..batches {
            let cut = |batch: usize| units.start + batch * units.len() / batches;
            let units = cut(batch)..cut(batch + 1);
            // It asks for a later tile, so that memory works all the time.
            let is_first = batch == 0;
            for first in vectors.clone().step_by(L::VECTORS) {
                let mut work = Scores {
                    queries: self.queries[units.start * layer.head_dim..].as_ptr(),
                    keys: tile.keys.from(first * WIDTH),
                    scores: scores[first * WIDTH..].as_mut_ptr(),
                    layer,
                    next: is_first.then(|| tile.key.at.wrapping_add(next)),
                };
                let vectors = (vectors.end - first).min(L::VECTORS);
                unsafe { by_size::<L, _>(&mut work, units.len(), vectors) };
            }
            unsafe { self.weigh::<L>(units.clone(), tile.padded, &mut scores, &places) };
            let vectors = tile.padded / WIDTH;
            for first in (0..vectors).step_by(L::VECTORS) {
                let mut work = Values {
                    weights: scores.as_ptr(),
                    rows,
                    column: first * WIDTH,
                    places: places.clone(),
                    sums: self.values[units.start * tile.padded + first * WIDTH..].as_mut_ptr(),
                    stride: tile.padded,
                    next: is_first.then_some(AHEAD * TILE * layer.head_dim),
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
        padded: usize,
        scores: &mut [f32; MOST_ROWS * TILE],
        places: &Range<usize>,
    ) {
        let all = places.start / WIDTH * WIDTH..places.end.next_multiple_of(WIDTH);
        let (mut sums, mut lowered) = ([0.0; MOST_ROWS], [0.0; WIDTH]);
        for (index, scores) in scores.chunks_exact_mut(TILE).take(units.len()).enumerate() {
            scores[all.start..places.start].fill(f32::NEG_INFINITY);
            scores[places.end..all.end].fill(f32::NEG_INFINITY);
            let before = &mut self.largest[units.start + index];
            unsafe {
                let mut most = L::splat(f32::NEG_INFINITY);
                for vector in scores[all.clone()].chunks_exact(WIDTH) {
                    most = L::larger(L::load(vector.as_ptr()), most);
                }
                let most = largest::<L>(most);
                let most = if most > *before { most } else { *before };
                lowered[index] = *before - most;
                *before = most;
                let (mut total, most) = (L::splat(0.0), L::splat(most));
                for vector in scores[all.clone()].chunks_exact_mut(WIDTH) {
                    let weight = exp::<L>(L::subtract(L::load(vector.as_ptr()), most));
                    L::store(vector.as_mut_ptr(), weight);
                    total = L::add(total, weight);
                }
                sums[index] = sum::<L>(total);
            }
        }
        let mut factors = [0.0; WIDTH];
        unsafe { L::store(factors.as_mut_ptr(), exp::<L>(L::load(lowered.as_ptr()))) };
        for (index, unit) in units.enumerate() {
            let factor = factors[index];
            self.weights[unit] = self.weights[unit].mul_add(factor, sums[index]);
            // A factor of 1 changes nothing.
            if factor != 1.0 {
                for value in &mut self.values[unit * padded..(unit + 1) * padded] {
                    *value *= factor;
                }
            }
        }
    }
}

/// The scores of some queries with some keys.
struct Scores {
    queries: *const f32,
    keys: *const f32,
    scores: *mut f32,
    layer: Layer,
    /// The keys of a later tile, where they are to be asked for.
    next: Option<*const f32>,
}

/// Vectors at the same distance.
#[derive(Clone, Copy)]
struct Transposed {
    at: *const f32,
    /// As [`Scores::next`].
    next: Option<*const f32>,
}

impl Vectors for Transposed {
    #[inline(always)]
    unsafe fn at(self, index: usize) -> *const f32 {
        unsafe { self.at.add(index * TILE) }
    }

    #[inline(always)]
    fn ahead(self, index: usize, len: usize) -> Option<*const f32> {
        self.next.map(|next| next.wrapping_add(index * len))
    }
}

impl Work for Scores {
    #[inline(always)]
    // As in `sums.rs`.
    #[allow(clippy::needless_range_loop)]
    unsafe fn run<L: Lanes, const R: usize, const V: usize>(&mut self) {
        let Layer { head_dim: dim, scale, softcap, .. } = self.layer;
        unsafe {
            let mut queries = [self.queries; R];
            for row in 0..R {
                queries[row] = self.queries.add(row * dim);
            }
            let none = [[L::splat(0.0); V]; R];
            let sums = add::<L, _, R, V>(
                none,
                &queries,
                Transposed { at: self.keys, next: self.next },
                0..dim,
            );
            for row in 0..R {
                for vector in 0..V {
                    let mut score = L::multiply(sums[row][vector], L::splat(scale));
                    if softcap != 0.0 {
                        let share = tanh::<L>(L::multiply(score, L::splat(1.0 / softcap)));
                        score = L::multiply(share, L::splat(softcap));
                    }
                    L::store(self.scores.add(row * TILE + vector * WIDTH), score);
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
    /// From a value to that of a later tile, where that is to be asked for.
    next: Option<usize>,
}

/// Columns of rows that stand anywhere.
#[derive(Clone, Copy)]
struct Columns<'a> {
    rows: &'a [*const f32; TILE],
    first: usize,
    /// As [`Values::next`].
    next: Option<usize>,
}

impl Vectors for Columns<'_> {
    #[inline(always)]
    unsafe fn at(self, index: usize) -> *const f32 {
        unsafe { self.rows.get_unchecked(index).add(self.first) }
    }

    #[inline(always)]
    fn ahead(self, index: usize, _: usize) -> Option<*const f32> {
        self.next
            .map(|next| unsafe { self.rows.get_unchecked(index) }.wrapping_add(self.first + next))
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
            let columns = Columns { rows: self.rows, first: self.column, next: self.next };
            let sums = add::<L, _, R, V>(sums, &weights, columns, self.places.clone());
            for row in 0..R {
                for vector in 0..V {
                    L::store(self.sums.add(row * self.stride + vector * WIDTH), sums[row][vector]);
                }
            }
        }
    }
}
