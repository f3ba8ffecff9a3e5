//! Causal convolutions of a few tokens, each channel for itself.
//!
//! In: rows, the run that they are of. Out: of each row the sum of its path's last tokens' numbers times
//! a weight for each tap, oldest first, from the bias on, fused; then the activation. A task is some
//! channels of a sequence. With a gate (LFM2) a row is three parts: what is convolved is the first
//! times the third, and the second times the sum is given.
//!
//! | | in memory |
//! |---|---|
//! | a state | `(taps - 1, channels)`: the last tokens' numbers, that of position `p` in row `p` modulo `taps - 1` |
//! | an update | `(channels,)`: the numbers of a row |
//!
//! Channels are rounded up to a multiple of 16.

use std::ops::Range;

use super::rows::Rows;
use super::run::{RecurrentError, Run, Sequence, Sizes};
use super::states::Half;
use crate::kernels::Workspace;
use crate::kernels::exp::silu;
use crate::kernels::lanes::{Lanes, WIDTH, load_some, on_processor, store_some};

/// Most tokens that a sum is of.
const MOST_TAPS: usize = 8;

/// Channels of a task.
const CHANNELS: usize = 256;

/// A layer's weights, and the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct CausalConvolution<'a> {
    /// Numbers of a row that is given.
    pub channels: usize,
    /// Tokens that a sum is of, the row's own included: 2 to 8.
    pub taps: usize,
    /// What is convolved.
    pub rows: Rows<'a>,
    /// Where in a row channels begin; with a gate three times as many are read.
    pub first: usize,
    /// `(taps, channels)`, the oldest first.
    pub weights: &'a [f32],
    /// `(channels,)`.
    pub bias: Option<&'a [f32]>,
    /// Whether sums are activated: `x / (1 + e^-x)`.
    pub has_silu: bool,
    /// Whether rows are gated.
    pub is_gated: bool,
}

impl CausalConvolution<'_> {
    fn padded(&self) -> usize {
        self.channels.next_multiple_of(WIDTH)
    }

    /// Numbers that it keeps.
    pub fn sizes(&self) -> Sizes {
        Sizes { state: (self.taps - 1) * self.padded(), update: self.padded() }
    }

    /// Whether there are such layers: 2 to 8 taps, no more than 2^20 channels.
    pub fn is_right(taps: usize, channels: usize) -> bool {
        (2..=MOST_TAPS).contains(&taps) && (1..=1 << 20).contains(&channels)
    }

    fn fits(&self, rows: usize) -> bool {
        let parts = if self.is_gated { 3 } else { 1 };
        Self::is_right(self.taps, self.channels)
            && self.rows.have(rows, self.first, parts * self.channels)
            && self.weights.len() == self.taps * self.channels
            && self.bias.is_none_or(|bias| bias.len() == self.channels)
    }

    /// Channels of a part of a row: with a gate there are three.
    #[inline(always)]
    fn part(&self, row: usize, part: usize) -> &[f32] {
        self.rows.part(row, self.first + part * self.channels, self.channels)
    }
}

/// A step of one layer.
pub struct Step<'a> {
    layer: CausalConvolution<'a>,
    run: &'a Run,
    /// `(M, channels)`.
    given: *mut f32,
}

// SAFETY: tasks write to different places, see `convolve`.
unsafe impl Sync for Step<'_> {}

impl<'a> Step<'a> {
    /// A step with `rows` rows, padding included.
    pub fn new(
        layer: CausalConvolution<'a>,
        run: &'a Run,
        rows: usize,
        given: *mut f32,
    ) -> Result<Self, RecurrentError> {
        if !layer.fits(rows) || run.num_rows() > rows || run.sizes != layer.sizes() {
            return Err(RecurrentError::Inputs);
        }
        Ok(Self { layer, run, given })
    }

    /// Tasks, of which each may run on another thread.
    pub fn num_tasks(&self) -> usize {
        self.run.sequences.len() * self.parts()
    }

    /// Tasks of a sequence.
    fn parts(&self) -> usize {
        self.layer.channels.div_ceil(CHANNELS)
    }
}

on_processor! {
    floats,
    /// Computes some channels of one sequence.
    ///
    /// # Safety
    ///
    /// The output has all rows; nobody else reads or writes this task's channels of rows, states and
    /// updates.
    convolve = convolve_on(step: &Step<'_>, task: usize, workspace: &mut Workspace)
}

/// Some channels of a sequence.
struct Task<'a> {
    step: &'a Step<'a>,
    sequence: &'a Sequence,
    channels: Range<usize>,
    /// `(rows, width)`: what is convolved.
    rows: &'a mut [f32],
    /// Channels in memory.
    width: usize,
}

#[inline(always)]
unsafe fn convolve_on<L: Lanes>(step: &Step<'_>, task: usize, workspace: &mut Workspace) {
    let (sequence, part) = (&step.run.sequences[task / step.parts()], task % step.parts());
    let channels = part * CHANNELS..step.layer.channels.min((part + 1) * CHANNELS);
    let width = channels.len().next_multiple_of(WIDTH);
    let rows = workspace.of(sequence.nodes.len() * width);
    let mut task = Task { step, sequence, channels, rows, width };
    // SAFETY: by contract.
    unsafe {
        task.apply_pending();
        task.gather::<L>();
        for index in 0..sequence.nodes.len() {
            task.sum::<L>(index);
        }
        task.keep();
    }
}

impl Task<'_> {
    /// Where the numbers of a committed position are.
    #[inline(always)]
    unsafe fn committed(&self, half: Half, position: i64) -> *mut f32 {
        let layer = &self.step.layer;
        let row = position.rem_euclid(layer.taps as i64 - 1) as usize;
        let numbers = self.step.run.states.numbers(self.sequence.number, half);
        // SAFETY: a state has so many rows.
        unsafe { numbers.add(row * layer.padded() + self.channels.start) }
    }

    /// Where the update of a node of the last tree is.
    #[inline(always)]
    unsafe fn kept(&self, node: u32) -> *const f32 {
        let numbers = self.step.run.last.numbers(node as usize);
        // SAFETY: an update has all channels.
        unsafe { numbers.add(self.channels.start) }
    }

    /// Where the update of a row's node goes.
    #[inline(always)]
    unsafe fn update(&self, node: u32) -> *mut f32 {
        let numbers = self.step.run.next.numbers(node as usize);
        // SAFETY: an update has all channels.
        unsafe { numbers.add(self.channels.start) }
    }

    #[inline(always)]
    unsafe fn apply_pending(&self) {
        let Sequence { ref pending, length, .. } = *self.sequence;
        let first = length - pending.len() as i64;
        // SAFETY: by contract, here and below: channels of states and updates are this task's.
        unsafe {
            for (node, position) in pending.iter().zip(first..) {
                let to = self.committed(Half::Now, position);
                to.copy_from_nonoverlapping(self.kept(*node), self.width);
            }
            if self.sequence.keeps() {
                for row in 0..self.step.layer.taps as i64 - 1 {
                    let to = self.committed(Half::Before, row);
                    to.copy_from_nonoverlapping(self.committed(Half::Now, row), self.width);
                }
            }
        }
    }

    /// Reads what is convolved.
    #[inline(always)]
    unsafe fn gather<L: Lanes>(&mut self) {
        let layer = &self.step.layer;
        for (index, node) in self.sequence.nodes.iter().enumerate() {
            let row = self.step.run.row(*node).expect("nodes of a run have rows");
            let part = |part: usize| &layer.part(row, part)[self.channels.clone()];
            let to = &mut self.rows[index * self.width..][..self.width];
            for first in (0..self.width).step_by(WIDTH) {
                // SAFETY: by contract.
                unsafe {
                    let mut x = load_some::<L>(part(0), first);
                    if layer.is_gated {
                        x = L::multiply(x, load_some::<L>(part(2), first));
                    }
                    L::store(to[first..first + WIDTH].as_mut_ptr(), x);
                }
            }
        }
    }

    /// Where what a row sums up is, the oldest first.
    #[inline(always)]
    unsafe fn path(&self, index: usize) -> [*const f32; MOST_TAPS] {
        let (taps, run) = (self.step.layer.taps, self.step.run);
        let mut path = [std::ptr::null(); MOST_TAPS];
        let mut at = Some(self.sequence.nodes[index]);
        let mut position = i64::from(run.nodes.all()[self.sequence.nodes[index] as usize].position);
        for to in path[..taps].iter_mut().rev() {
            *to = match at {
                // SAFETY: a node of no row has an update, or was read.
                Some(node) => unsafe { self.of_node(node, position) },
                None => unsafe { self.committed(Half::Now, position) },
            };
            at = at.and_then(|node| run.nodes.all()[node as usize].parent);
            position -= 1;
        }
        path
    }

    #[inline(always)]
    unsafe fn of_node(&self, node: u32, position: i64) -> *const f32 {
        match self.sequence.nodes.binary_search(&node) {
            Ok(index) => self.rows[index * self.width..].as_ptr(),
            Err(_) if self.sequence.reads => unsafe { self.committed(Half::Now, position) },
            Err(_) => unsafe { self.kept(node) },
        }
    }

    /// Computes a row.
    #[inline(always)]
    unsafe fn sum<L: Lanes>(&self, index: usize) {
        let Step { layer, given, run } = self.step;
        let row = run.row(self.sequence.nodes[index]).expect("nodes of a run have rows");
        let channels = self.channels.clone();
        // SAFETY: by contract: the output has the row, and its channels are this task's.
        unsafe {
            let path = self.path(index);
            let start = row * layer.channels + channels.start;
            let given = std::slice::from_raw_parts_mut(given.add(start), channels.len());
            for first in (0..channels.len()).step_by(WIDTH) {
                let mut sum = match layer.bias {
                    Some(bias) => load_some::<L>(&bias[channels.clone()], first),
                    None => L::splat(0.0),
                };
                for (tap, numbers) in path[..layer.taps].iter().enumerate() {
                    let weights = &layer.weights[tap * layer.channels..][channels.clone()];
                    let weight = load_some::<L>(weights, first);
                    sum = L::fused(weight, L::load(numbers.add(first)), sum);
                }
                if layer.has_silu {
                    sum = silu::<L>(sum);
                }
                if layer.is_gated {
                    let gate = load_some::<L>(&layer.part(row, 1)[channels.clone()], first);
                    sum = L::multiply(sum, gate);
                }
                store_some::<L>(given, first, sum);
            }
        }
    }

    /// Keeps rows as updates, or as the last of the state.
    #[inline(always)]
    unsafe fn keep(&self) {
        let Sequence { length, earlier, reads, ref nodes, .. } = *self.sequence;
        let first = length + earlier as i64;
        for ((node, position), row) in nodes.iter().zip(first..).zip(self.rows.chunks(self.width)) {
            // SAFETY: by contract.
            unsafe {
                let to =
                    if reads { self.committed(Half::Now, position) } else { self.update(*node) };
                to.copy_from_nonoverlapping(row.as_ptr(), self.width);
            }
        }
    }
}
