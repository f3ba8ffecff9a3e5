//! The operator `GatedDelta`; see the parent's parent.
//!
//! In: rows of queries, keys and values, what their factors are computed from, states. Out: what each
//! row reads, normed and gated.

use super::super::call::{Attributes, Call, Input, Outcome};
use super::super::operator::{BYTE, FLOAT, INTEGER, Kernel, ONE, Operator, inputs};
use super::{compute, heads, rows};
use crate::kernels::Processor;
use crate::kernels::recurrent::{GatedDelta, Heads};

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    PROJECTED: FLOAT ONE,
    A: FLOAT ONE,
    DT_BIAS: FLOAT ONE,
    NORM: FLOAT ONE,
    ..run
}

pub static OPERATOR: Operator =
    Operator::new(c"GatedDelta", INPUTS, &[(FLOAT, ONE), (BYTE, ONE), (BYTE, ONE)], |node| {
        Ok(Box::new(Delta::new(node)?))
    });

/// The rule in a node of a graph.
struct Delta {
    processor: Processor,
    heads: Heads,
    columns: [usize; 3],
    epsilon: f32,
}

impl Delta {
    fn new(node: Attributes) -> Outcome<Self> {
        let heads = heads(node, [c"key_heads", c"value_heads", c"key_dim", c"value_dim"])?;
        let columns = node.counts(c"columns")?.try_into();
        let columns = columns.map_err(|_| node.wrong("there are three columns"))?;
        let (processor, epsilon) = (Processor::best(), node.float(c"epsilon")?);
        Ok(Self { processor, heads, columns, epsilon })
    }
}

impl Kernel for Delta {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Self { processor, heads, columns, epsilon } = *self;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (input, projected, [a, bias, norm]): (Input<'_, f32>, Input<'_, f32>, _) = unsafe {
            let floats = |index| Ok(call.input::<f32>(index)?.data);
            (
                call.input(ROWS)?,
                call.input(PROJECTED)?,
                [floats(A)?, floats(DT_BIAS)?, floats(NORM)?],
            )
        };
        let ((rows, num_rows), (projected, _)) = (rows(call, &input)?, rows(call, &projected)?);
        let layer = GatedDelta { heads, rows, projected, columns, a, bias, norm, epsilon };
        // SAFETY: as above.
        unsafe { compute((call, processor), layer, (&input, num_rows), STATE, |_, _| Ok(())) }
    }
}
