//! The operator `SelectiveUpdate`; see the parent's parent.
//!
//! In: rows of inputs, B and C, their steps and gates, states. Out: what each row reads, gated and
//! normed: the norm is of all heads of a group, and comes when they are computed.

use super::super::call::{Attributes, Call, Input, Outcome};
use super::super::operator::{BYTE, FLOAT, INTEGER, Kernel, ONE, Operator, inputs};
use super::{compute, heads, rows};
use crate::kernels::Processor;
use crate::kernels::recurrent::{Heads, HeadsStep, SelectiveUpdate, norm_rows};

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    PROJECTED: FLOAT ONE,
    A: FLOAT ONE,
    DT_BIAS: FLOAT ONE,
    D: FLOAT ONE,
    NORM: FLOAT ONE,
    ..run
}

pub static OPERATOR: Operator =
    Operator::new(c"SelectiveUpdate", INPUTS, &[(FLOAT, ONE), (BYTE, ONE), (BYTE, ONE)], |node| {
        Ok(Box::new(Selective::new(node)?))
    });

/// Numbers that a task should norm: some microseconds.
const NUMBERS_PER_TASK: usize = 1 << 13;

/// The update in a node of a graph.
struct Selective {
    processor: Processor,
    heads: Heads,
    columns: [usize; 2],
    limits: [f32; 2],
    epsilon: f32,
}

impl Selective {
    fn new(node: Attributes) -> Outcome<Self> {
        let heads = heads(node, [c"groups", c"heads", c"state_dim", c"head_dim"])?;
        let columns = node.counts(c"columns")?.try_into();
        let columns = columns.map_err(|_| node.wrong("there are two columns"))?;
        let limits = [node.float(c"least_step")?, node.float(c"most_step")?];
        let (processor, epsilon) = (Processor::best(), node.float(c"epsilon")?);
        Ok(Self { processor, heads, columns, limits, epsilon })
    }
}

impl Kernel for Selective {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Self { processor, heads, columns, limits, epsilon } = *self;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (input, projected, [a, bias, skip, norm]): (Input<'_, f32>, Input<'_, f32>, _) = unsafe {
            let floats = |index| Ok(call.input::<f32>(index)?.data);
            let weights = [floats(A)?, floats(DT_BIAS)?, floats(D)?, floats(NORM)?];
            (call.input(ROWS)?, call.input(PROJECTED)?, weights)
        };
        let ((rows, num_rows), (projected, _)) = (rows(call, &input)?, rows(call, &projected)?);
        let layer = SelectiveUpdate {
            heads,
            rows,
            projected,
            columns,
            a,
            bias,
            skip,
            limits,
            norm,
            epsilon,
        };
        let width = heads.heads * heads.values;
        let norm = |step: &HeadsStep<'_, SelectiveUpdate<'_>>, real: usize| {
            let per_task = (NUMBERS_PER_TASK / width).max(1);
            call.in_parallel(real.div_ceil(per_task), &|task| {
                let rows = task * per_task..real.min((task + 1) * per_task);
                // SAFETY: all heads are computed, and a task's rows are its own.
                unsafe { norm_rows(processor, step.rule(), rows, step.given()) };
            })
        };
        // SAFETY: as above.
        unsafe { compute((call, processor), layer, (&input, num_rows), STATE, norm) }
    }
}
