//! Attention of the nodes of draft trees along their paths, in float32, with an online softmax.
//! Keys and values may be kept in fewer bits.
//!
//! In: rows of queries, keys and values, the nodes that they are of, a cache. Out: the cache with the
//! rows' keys and values, and what each row attends to. The bits of a row depend on the tokens of its
//! path alone: not on slots, siblings, other sequences, the number of rows, tasks or the processor.
//!
//! The arithmetic, of one query, in this order:
//!
//! - Query and key are normed and rotated, values normed (`prepare.rs`), where there are norms. Keys and values are then rounded to what the
//!   cache holds (`cache_type.rs`), also those of the row itself, and read from there as float32. The query
//!   is multiplied by the scale times the logarithm of e to the base 2; or by the scale over the cap,
//!   where there is one.
//! - A score is the sum of products, number after number, each added with a fused multiply-add.
//!   Where there is a cap, the score becomes its hyperbolic tangent times the cap times that
//!   logarithm.
//! - Positions are taken in tiles of 64, from position 0. A tile's largest score may raise the
//!   largest so far, `m`; then sums are multiplied by two to the power of the difference. A weight
//!   is two to the power of a score less `m` (`kernels/exp.rs`). Weights are added in sixteen lanes,
//!   position `p` in lane `p` modulo 16; values position after position, fused.
//! - Lanes are added by halves at the end, and the sum of values is divided by theirs.
//!
//! A position that a row does not see counts as if it were not there, whatever its slot holds.
//!
//! | file | |
//! |---|---|
//! | `prepare.rs` | norm and rotation of a head |
//! | `cache_type.rs` | how a cache holds a head |
//! | `keys.rs` | a tile of keys, transposed |
//! | `sums.rs` | the innermost loop |
//! | `attend.rs` | a task: some heads of some rows of a sequence |
//!
//! Unsafe: the cache and the output are written by several threads through pointers, each head of a
//! row by one; all else is slices whose lengths [`Step::new`] checks.
#![allow(unsafe_code)]

mod attend;
mod cache_type;
mod keys;
mod prepare;
mod sums;

use std::ops::Range;

use self::attend::attend;
pub use self::cache_type::CacheType;
use self::cache_type::{CacheFormat, Float16, Float32, Integer8, Numbers};
use self::prepare::{Rotation, normed, prepare};
use crate::kernels::lanes::{Lanes, Processor, on_processor};
use crate::kernels::{Nodes, Workspace};

/// Most numbers of a head.
const MOST_NUMBERS: usize = 512;

/// What distinguishes a layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Of queries: a multiple of `kv_heads`.
    pub heads: usize,
    /// Of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Of scores.
    pub scale: f32,
    /// What scores stay below, or 0.
    pub softcap: f32,
    /// How many positions a row sees, its own included; or 0 for all.
    pub window: usize,
    /// Whether pairs that are rotated stand side by side.
    pub interleaved: bool,
    /// Of norms.
    pub epsilon: f32,
    /// Whether rows are queries alone, and the cache is another layer's.
    pub shares_keys: bool,
    /// Whether rows have values; otherwise these are the keys, before their norm and rotation.
    pub has_values: bool,
}

impl Layer {
    /// Whether there are such layers: heads of 1 to 512 numbers, no more than 2^16 of them.
    pub fn is_right(&self) -> bool {
        (1..=MOST_NUMBERS).contains(&self.head_dim)
            && (1..=1 << 16).contains(&self.heads)
            && self.heads.checked_rem(self.kv_heads) == Some(0)
    }

    /// Numbers of a row.
    pub fn columns(&self) -> usize {
        let written = if self.shares_keys { 0 } else { 1 + usize::from(self.has_values) };
        (self.heads + written * self.kv_heads) * self.head_dim
    }
}

/// What a step reads.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `(M, columns)`: queries, keys and perhaps values.
    pub rows: &'a [f32],
    /// `(M, rotated / 2)`.
    pub cos: &'a [f32],
    /// As `cos`.
    pub sin: &'a [f32],
    /// `(head_dim,)`, of queries.
    pub query_norm: Option<&'a [f32]>,
    /// `(head_dim,)`, of keys.
    pub key_norm: Option<&'a [f32]>,
    /// `(head_dim,)`, of values.
    pub value_norm: Option<&'a [f32]>,
    /// `(heads,)`.
    pub sinks: Option<&'a [f32]>,
}

/// Keys and values, each `(sequences, kv_heads, slots)` rows of a form.
#[derive(Clone, Copy)]
pub struct Cache {
    /// The first key.
    pub key: *mut u8,
    /// The first value.
    pub value: *mut u8,
    /// Of each sequence.
    pub slots: usize,
    /// Of all rows.
    pub cache_type: CacheType,
}

/// Some heads of some rows of a sequence, which share their keys.
#[derive(Clone, Debug)]
struct Task {
    sequence: usize,
    kv_head: usize,
    heads: Range<usize>,
    /// Places in [`Nodes::rows`].
    rows: Range<usize>,
}

/// A step of one layer.
pub struct Step<'a> {
    layer: Layer,
    inputs: Inputs<'a>,
    nodes: &'a Nodes,
    cache: Cache,
    /// `(M, heads * head_dim)`.
    attended: *mut f32,
    /// Angles of a row.
    angles: usize,
    tasks: Vec<Task>,
}

// SAFETY: tasks write to different places, see `write_keys` and `attend_task`.
unsafe impl Sync for Step<'_> {}

/// Most heads times rows of a task: their sums and a tile of keys and values fit into a processor's
/// second cache.
const MOST_UNITS: usize = 192;
/// Fewer are not worth transposing the keys for once more.
const LEAST_UNITS: usize = 24;
/// Tasks that a step should have: threads that take three heads of keys each in turn would wait.
const LEAST_TASKS: usize = 6;

/// Heads times rows that a task of a step should have.
pub fn units(layer: Layer, nodes: &Nodes) -> usize {
    (nodes.num_rows() * layer.heads / LEAST_TASKS).clamp(LEAST_UNITS, MOST_UNITS)
}

impl<'a> Step<'a> {
    /// A step of `rows` rows, cut into tasks of at most `units` heads times rows; none where sizes do
    /// not fit each other.
    pub fn new(
        layer: Layer,
        inputs: Inputs<'a>,
        nodes: &'a Nodes,
        rows: usize,
        cache: Cache,
        attended: *mut f32,
        units: usize,
    ) -> Option<Self> {
        let angles = inputs.cos.len().checked_div(rows)?;
        let is_norm = |norm: Option<&[f32]>| norm.is_none_or(|norm| norm.len() == layer.head_dim);
        let fits = layer.is_right()
            && nodes.num_rows() <= rows
            && inputs.rows.len() == rows * layer.columns()
            && inputs.cos.len() == rows * angles
            && inputs.sin.len() == inputs.cos.len()
            && 2 * angles <= layer.head_dim
            && is_norm(inputs.query_norm)
            && is_norm(inputs.key_norm)
            && is_norm(inputs.value_norm)
            && inputs.sinks.is_none_or(|sinks| sinks.len() == layer.heads);
        fits.then(|| {
            let tasks = tasks(layer, nodes, units.max(1));
            Self { layer, inputs, nodes, cache, attended, angles, tasks }
        })
    }

    /// Tasks, of which each may run on another thread when all keys are written.
    pub fn num_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The cosines and sines of a row.
    #[inline(always)]
    fn rotation(&self, row: usize) -> Rotation<'_> {
        let angles = row * self.angles..(row + 1) * self.angles;
        Rotation {
            cos: &self.inputs.cos[angles.clone()],
            sin: &self.inputs.sin[angles],
            interleaved: self.layer.interleaved,
        }
    }

    /// A head of a row, among queries, keys and values.
    #[inline(always)]
    fn head(&self, row: usize, head: usize) -> &[f32] {
        let start = row * self.layer.columns() + head * self.layer.head_dim;
        &self.inputs.rows[start..start + self.layer.head_dim]
    }

    /// The first row of a head of a sequence in the cache.
    #[inline(always)]
    fn start(&self, sequence: usize, kv_head: usize) -> usize {
        (sequence * self.layer.kv_heads + kv_head) * self.cache.slots
    }
}

/// The tasks of a step, in which a sequence's blocks of rows are as equal as may be; the last, which
/// see most, come first.
fn tasks(layer: Layer, nodes: &Nodes, units: usize) -> Vec<Task> {
    let group = layer.heads / layer.kv_heads;
    let parts = group.div_ceil(units);
    let (mut tasks, mut end) = (Vec::new(), 0);
    let sequence = |row: u32| nodes.of_row(row as usize).sequence;
    for rows in nodes.rows().chunk_by(|one, next| sequence(*one) == sequence(*next)) {
        let start = end;
        end += rows.len();
        let blocks = rows.len().div_ceil((units / group).max(1));
        for block in (0..blocks).rev() {
            for kv_head in 0..layer.kv_heads {
                let cut = |part: usize| kv_head * group + part * group / parts;
                tasks.extend((0..parts).map(|part| Task {
                    sequence: sequence(rows[0]) as usize,
                    kv_head,
                    heads: cut(part)..cut(part + 1),
                    rows: start + block * rows.len() / blocks
                        ..start + (block + 1) * rows.len() / blocks,
                }));
            }
        }
    }
    tasks
}

/// Calls `$function::<F>` with the form of a step.
macro_rules! by_cache_type {
    ($step:expr, $function:ident($($argument:expr),*)) => {
        match $step.cache.cache_type {
            CacheType::Float32 => $function::<Float32>($($argument),*),
            CacheType::Float16 => $function::<Float16>($($argument),*),
            CacheType::Integer8 => $function::<Integer8>($($argument),*),
        }
    };
}

/// Writes the keys, normed and rotated, and the values, normed, of some rows to the cache.
///
/// # Safety
///
/// The cache has the nodes' sequences and slots, and nobody else reads or writes these rows' slots.
pub unsafe fn write_keys(processor: Processor, step: &Step<'_>, rows: Range<usize>) {
    // SAFETY: by contract.
    unsafe { by_cache_type!(step, write_rows(processor, step, rows)) }
}

/// Writes what the rows of a task attend to.
///
/// # Safety
///
/// The keys of all rows are written and nobody writes to the cache; the output has all rows, and
/// nobody else reads or writes this task's heads of them.
pub unsafe fn attend_task(
    processor: Processor,
    step: &Step<'_>,
    task: usize,
    workspace: &mut Workspace,
) {
    // SAFETY: by contract.
    unsafe { by_cache_type!(step, attend_rows(processor, step, task, workspace)) }
}

on_processor! {
    floats,
    /// As [`write_keys`], of the step's form.
    ///
    /// # Safety
    ///
    /// As `write_keys`; `F` is that form.
    write_rows<F: CacheFormat> = write_rows_on(step: &Step<'_>, rows: Range<usize>)
}

on_processor! {
    floats,
    /// As [`attend_task`], of the step's form.
    ///
    /// # Safety
    ///
    /// As `attend_task`; `F` is that form.
    attend_rows<F: CacheFormat> = attend(step: &Step<'_>, task: usize, workspace: &mut Workspace)
}

#[inline(always)]
unsafe fn write_rows_on<L: Lanes, F: CacheFormat>(step: &Step<'_>, rows: Range<usize>) {
    let Step { layer, inputs, cache, .. } = step;
    let (dim, row_bytes) = (layer.head_dim, F::row_bytes(layer.head_dim));
    let mut prepared: Numbers = [0.0; MOST_NUMBERS];
    let prepared = &mut prepared[..dim];
    for row in rows {
        let node = step.nodes.of_row(row);
        for kv_head in 0..layer.kv_heads {
            let slot = step.start(node.sequence as usize, kv_head) + node.slot as usize;
            // SAFETY: by contract, there are such slots.
            let (key, value) = unsafe {
                (
                    std::slice::from_raw_parts_mut(cache.key.add(slot * row_bytes), row_bytes),
                    std::slice::from_raw_parts_mut(cache.value.add(slot * row_bytes), row_bytes),
                )
            };
            let x = step.head(row, layer.heads + kv_head);
            prepare(x, inputs.key_norm, layer.epsilon, step.rotation(row), prepared);
            F::write(prepared, key);
            let first = layer.heads + if layer.has_values { layer.kv_heads } else { 0 };
            let x = step.head(row, first + kv_head);
            if let Some(weight) = inputs.value_norm {
                normed(x, weight, layer.epsilon, prepared);
                F::write(prepared, value);
            } else {
                F::write(x, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
