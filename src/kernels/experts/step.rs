//! One step of a layer: what it reads and refuses, and its phases in their order.
//!
//! In: a layer, its inputs, a way to do things in parallel. Out: rows, and the experts of each. All memory in
//! between is used again by the next step.

use std::ops::Range;

use super::combine::{Combine, combine_rows};
use super::dispatch::{Dispatch, Group, pack, packings};
use super::layer::{Experts, ExpertsError};
use super::products::{Matrices, Task};
use super::route::{Router, Scores, route_rows};
use crate::kernels::product::Source;
use crate::kernels::tasks::InParallel;
use crate::kernels::{Processor, Shared, Workspace};

/// Scores that a task should choose among: some microseconds.
const SCORES_PER_TASK: usize = 1 << 11;
/// Numbers that a task should sum.
const SUMS_PER_TASK: usize = 1 << 15;

/// Told the experts of each row, and how many different ones they are, before weights are read.
pub type LoadExperts<'a, E> = &'a dyn Fn(&[i32], usize) -> Result<(), E>;

/// What a step reads, each `M` rows where it has rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs<'a> {
    /// `(M, columns)`.
    pub rows: &'a [f32],
    /// `(columns,)`: the weight of an RMS norm that rows get first.
    pub norm: Option<&'a [f32]>,
    /// `(M, experts)`.
    pub scores: &'a [f32],
    /// `(experts,)`, for choosing alone.
    pub choice_bias: Option<&'a [f32]>,
    /// `(experts, 2 * size)`: gate's, then up's.
    pub up_bias: Option<&'a [f32]>,
    /// `(experts, columns)`.
    pub down_bias: Option<&'a [f32]>,
    /// `(M, columns)`.
    pub residual: Option<&'a [f32]>,
    /// `(M, columns)`: what a shared expert gives.
    pub beside: Option<&'a [f32]>,
    /// `(M,)`, of whose sigmoids it is multiplied with.
    pub beside_gate: Option<&'a [f32]>,
    /// Each expert's panels, [`Experts::stride`] bytes.
    pub weights: &'a [u8],
}

/// Memory of a step, as large as the largest so far.
#[derive(Default)]
pub struct Scratch {
    dispatch: Dispatch,
    parts: Vec<Task>,
    packed: Vec<u8>,
    /// Of gate and up, then of down.
    products: Workspace,
}

/// A step whose inputs fit.
pub struct Step<'a> {
    processor: Processor,
    layer: &'a Experts,
    inputs: Inputs<'a>,
    num_rows: usize,
}

impl<'a> Step<'a> {
    /// A step of so many rows.
    ///
    /// # Errors
    ///
    /// All but those of [`Experts::check`], which the layer has passed.
    pub fn new(
        processor: Processor,
        layer: &'a Experts,
        inputs: Inputs<'a>,
        num_rows: usize,
    ) -> Result<Self, ExpertsError> {
        let Experts { columns, size, router: Router { experts, chosen, .. }, .. } = *layer;
        // Places are numbers of 32 bits, and no size of what is computed overflows.
        let is_right = |pairs: usize| {
            let bytes = pairs.checked_mul(8 * columns.max(2 * size));
            u32::try_from(pairs).is_ok() && bytes.is_some_and(|it| it < usize::MAX / 2)
        };
        if num_rows == 0 || !num_rows.checked_mul(chosen).is_some_and(is_right) {
            return Err(ExpertsError::Rows);
        }
        for (input, numbers, of, width) in [
            ("rows", Some(inputs.rows), num_rows, columns),
            ("norm", inputs.norm, 1, columns),
            ("scores", Some(inputs.scores), num_rows, experts),
            ("choice_bias", inputs.choice_bias, 1, experts),
            ("up_bias", inputs.up_bias, experts, 2 * size),
            ("down_bias", inputs.down_bias, experts, columns),
            ("residual", inputs.residual, num_rows, columns),
            ("beside", inputs.beside, num_rows, columns),
            ("beside_gate", inputs.beside_gate, num_rows, 1),
        ] {
            let (got, expected) = (numbers.map(<[f32]>::len), of.saturating_mul(width));
            if let Some(got) = got.filter(|got| *got != expected) {
                return Err(ExpertsError::Input { input, got, expected });
            }
        }
        let (got, expected) = (inputs.weights.len(), layer.stride() * experts);
        if got != expected {
            return Err(ExpertsError::Weights { got, expected });
        }
        if inputs.beside_gate.is_some() && inputs.beside.is_none() {
            return Err(ExpertsError::BesideGate);
        }
        Ok(Self { processor, layer, inputs, num_rows })
    }

    /// Computes all rows, to `to (M, columns)`; gives the experts of each, `(M, chosen)`, by rank.
    ///
    /// Weights are read once `load_experts` has been told of them, and only those.
    ///
    /// # Errors
    ///
    /// Those of `load_experts` and `in_parallel`.
    ///
    /// # Safety
    ///
    /// `to` has room for all rows, and nobody else reads or writes it.
    pub unsafe fn compute<'s, E>(
        &self,
        scratch: &'s mut Scratch,
        to: *mut f32,
        load_experts: LoadExperts<'_, E>,
        in_parallel: InParallel<'_, E>,
    ) -> Result<&'s [i32], E> {
        let Self { processor, layer, inputs, num_rows } = *self;
        let Experts { columns, size, types, router, .. } = *layer;
        let Scratch { dispatch, parts, packed, products } = scratch;
        dispatch.resize(num_rows, router.chosen);
        self.route(dispatch, in_parallel)?;
        dispatch.sort(router.chosen, router.experts);
        load_experts(&dispatch.chosen, dispatch.groups.len())?;

        let (dispatch, pairs) = (&*dispatch, dispatch.num_pairs());
        let (up_packings, up_bytes) = packings(processor, columns, pairs, &types[..2]);
        let (down_packings, down_bytes) = packings(processor, size, pairs, &types[2..]);
        packed.resize(packed.len().max(up_bytes).max(down_bytes), 0);
        let packed = Shared(packed.as_mut_ptr());
        let products = Shared(products.of(pairs * columns.max(2 * size)).as_mut_ptr());
        let source = match inputs.norm {
            Some(weight) => Source::Normed { x: inputs.rows, weight, epsilon: layer.epsilon },
            None => Source::Plain(inputs.rows),
        };
        let weights = inputs.weights;
        let up = Matrices { processor, layer, weights, range: 0..2, bias: inputs.up_bias };
        let down = Matrices { range: 2..3, bias: inputs.down_bias, ..up.clone() };
        // SAFETY: all is as large as it has to be, and each phase is over when the next one reads what it
        // wrote.
        unsafe {
            let gathered = |group: Group| (source, Some(&dispatch.rows[group.slots()]));
            pack(up_packings, dispatch, columns, gathered, packed, in_parallel)?;
            up.multiply(dispatch, up_packings, packed, products, parts, in_parallel)?;

            let gates = std::slice::from_raw_parts(products.get(), pairs * 2 * size);
            let gated = |group: Group| {
                let gates = &gates[group.slots().start * 2 * size..];
                (Source::Gated(gates, layer.gate), None)
            };
            pack(down_packings, dispatch, 2 * size, gated, packed, in_parallel)?;
            down.multiply(dispatch, down_packings, packed, products, parts, in_parallel)?;

            let products = std::slice::from_raw_parts(products.get(), pairs * columns);
            self.combine(dispatch, products, to, in_parallel)?;
        }
        Ok(&dispatch.chosen)
    }

    /// Chooses each row's experts.
    fn route<E>(&self, dispatch: &mut Dispatch, in_parallel: InParallel<'_, E>) -> Result<(), E> {
        let (router, scores) = (self.layer.router, self.inputs.scores);
        let scores = Scores { router, scores, bias: self.inputs.choice_bias };
        let chosen = Shared(dispatch.chosen.as_mut_ptr());
        let shares = Shared(dispatch.shares.as_mut_ptr());
        self.by_rows(router.experts, SCORES_PER_TASK, in_parallel, &|rows| {
            // SAFETY: there is room for each row's, and the rows are this task's alone.
            unsafe { route_rows(self.processor, scores, rows, chosen.get(), shares.get()) };
        })
    }

    /// Sums what each row's experts give.
    ///
    /// # Safety
    ///
    /// As of `compute`.
    unsafe fn combine<E>(
        &self,
        dispatch: &Dispatch,
        products: &[f32],
        to: *mut f32,
        in_parallel: InParallel<'_, E>,
    ) -> Result<(), E> {
        let Experts { columns, router: Router { chosen, .. }, residual_scale, .. } = *self.layer;
        let Inputs { beside, beside_gate, residual, .. } = self.inputs;
        let combine = Combine {
            columns,
            chosen,
            products,
            slots: &dispatch.slots,
            shares: &dispatch.shares,
            beside,
            beside_gate,
            residual,
            scale: residual_scale,
        };
        let to = Shared(to);
        self.by_rows(chosen * columns, SUMS_PER_TASK, in_parallel, &|rows| {
            // SAFETY: by contract; the rows are this task's alone.
            unsafe { combine_rows(self.processor, combine, rows, to.get()) };
        })
    }

    /// Does something for all rows, of which a task takes so many that it has `per_task` numbers.
    fn by_rows<E>(
        &self,
        numbers: usize,
        per_task: usize,
        in_parallel: InParallel<'_, E>,
        work: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<(), E> {
        let (all, rows) = (self.num_rows, (per_task / numbers).max(1));
        in_parallel(all.div_ceil(rows), &|task| {
            work(task * rows..all.min((task + 1) * rows));
        })
    }
}
