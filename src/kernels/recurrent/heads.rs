//! Layers whose heads each hold a matrix.
//!
//! In: a rule that says what a row is to a head, a run. Out: what each row reads, states and updates.
//!
//! A state is a matrix of keys by values for each head. A row multiplies it with its decay, adds its
//! key times a value, and reads it with its query. What it reads is computed from the state before:
//! that state's answer times the decay, and the value times key times query. So a row's own state is
//! needed only where others follow it, and a step of one row passes once over the state: it applies
//! what is pending and answers on the way.
//!
//! | | in memory |
//! |---|---|
//! | a state | `(heads, values / 16, keys, 16)`: a tile of sixteen values' columns is computed to its end, its copies for the tree included, while it is in a processor's first cache |
//! | an update | `(key_heads, keys)`, `(heads, values)` as they were added, `(heads,)` decays |
//!
//! Values are rounded up to a multiple of 16, and so are decays. An update holds the value that was
//! added, which a path alone determines, so to apply it takes no sum over the state.

use super::run::{RecurrentError, Run, Sizes};
use super::walk::Walk;
use crate::kernels::lanes::{Lanes, WIDTH};

/// The sizes of a layer's heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Of keys and queries, each of which serves as many heads of the state.
    pub key_heads: usize,
    /// Of the state, a multiple of them.
    pub heads: usize,
    /// Rows of a head's matrix.
    pub keys: usize,
    /// Columns of it.
    pub values: usize,
}

impl Heads {
    /// Whether there are such heads: no size is 0 or overflows.
    pub fn is_right(self) -> bool {
        let most = 1 << 16;
        [self.heads, self.keys, self.values].iter().all(|size| (1..=most).contains(size))
            && self.heads.checked_rem(self.key_heads) == Some(0)
            && self.heads * self.keys * self.padded() <= 1 << 28
    }

    /// Columns of a head's matrix in memory.
    pub(super) fn padded(self) -> usize {
        self.values.next_multiple_of(WIDTH)
    }

    /// Numbers of a head's matrix.
    pub(super) fn matrix(self) -> usize {
        self.keys * self.padded()
    }

    /// Which key serves a head.
    #[inline(always)]
    pub(super) fn key_of(self, head: usize) -> usize {
        head / (self.heads / self.key_heads)
    }

    /// Where in an update a head's key begins, its value, and its decay.
    #[inline(always)]
    pub(super) fn places(self, head: usize) -> [usize; 3] {
        let values = self.key_heads * self.keys;
        let decays = values + self.heads * self.padded();
        [self.key_of(head) * self.keys, values + head * self.padded(), decays + head]
    }

    /// Numbers that a layer keeps.
    pub fn sizes(self) -> Sizes {
        let update = self.key_heads * self.keys + self.heads * (self.padded() + 1);
        Sizes { state: self.heads * self.matrix(), update: update.next_multiple_of(WIDTH) }
    }
}

/// What a row is to a head, as a task prepares it.
pub struct Prepared<'a> {
    /// `(keys,)`.
    pub key: &'a mut [f32],
    /// `(keys,)`.
    pub query: &'a mut [f32],
    /// `(values,)`.
    pub value: &'a mut [f32],
}

/// What a row multiplies with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Factors {
    /// The state.
    pub decay: f32,
    /// What is new of its value.
    pub strength: f32,
    /// The sum of products of its key and its query.
    pub key_query: f32,
}

/// What distinguishes a layer.
pub trait Rule: Sync {
    /// Whether what the state holds under a row's key is taken off its value, and what is left
    /// multiplied with a strength.
    const IS_DELTA: bool;

    /// The layer's sizes.
    fn heads(&self) -> Heads;

    /// Whether all that it reads has its size for so many rows.
    fn fits(&self, rows: usize) -> bool;

    /// What a row is to a head.
    ///
    /// # Safety
    ///
    /// As `Lanes`.
    unsafe fn prepare<L: Lanes>(&self, row: usize, head: usize, to: Prepared<'_>) -> Factors;

    /// Makes of what a head has read, `(values,)`, what it gives.
    ///
    /// # Safety
    ///
    /// As `Lanes`.
    unsafe fn finish<L: Lanes>(&self, row: usize, head: usize, read: &mut [f32]);
}

/// A step of one layer.
pub struct Step<'a, R> {
    pub(super) rule: R,
    pub(super) run: &'a Run,
    /// Of each of the run's sequences.
    pub(super) walks: Vec<Walk>,
    /// `(M, heads * values)`.
    pub(super) given: *mut f32,
}

// SAFETY: tasks write to different places, see `task.rs`.
unsafe impl<R: Rule> Sync for Step<'_, R> {}

impl<'a, R: Rule> Step<'a, R> {
    /// A step with `rows` rows, padding included.
    pub fn new(
        rule: R,
        run: &'a Run,
        rows: usize,
        given: *mut f32,
    ) -> Result<Self, RecurrentError> {
        let heads = rule.heads();
        if !rule.fits(rows) || run.num_rows() > rows || run.sizes != heads.sizes() {
            return Err(RecurrentError::Inputs);
        }
        let walks = run.sequences.iter().map(|sequence| Walk::new(run, sequence)).collect();
        Ok(Self { rule, run, walks, given })
    }

    /// What it computes by.
    pub fn rule(&self) -> &R {
        &self.rule
    }

    /// Where rows go, `(M, heads * values)`.
    pub fn given(&self) -> *mut f32 {
        self.given
    }

    /// Tasks, of which each may run on another thread.
    pub fn num_tasks(&self) -> usize {
        self.walks.len() * self.rule.heads().heads
    }
}
