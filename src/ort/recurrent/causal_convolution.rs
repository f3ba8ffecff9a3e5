//! The operator `CausalConvolution`; see the parent's parent.
//!
//! In: rows, weights, the last tokens' numbers. Out: rows, with the tokens before them on their paths.

use super::super::call::{Attributes, Call, Input, Outcome, with_workspace};
use super::super::operator::{BYTE, FLOAT, INTEGER, Kernel, MAYBE, ONE, Operator, inputs};
use super::{given, refused, rows, run};
use crate::kernels::Processor;
use crate::kernels::recurrent::{CausalConvolution, ConvolutionStep, convolve};

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    WEIGHTS: FLOAT ONE,
    BIAS: FLOAT MAYBE,
    ..run
}

pub static OPERATOR: Operator = Operator::new(
    c"CausalConvolution",
    INPUTS,
    &[(FLOAT, ONE), (BYTE, ONE), (BYTE, ONE)],
    |node| Ok(Box::new(Convolution::new(node)?)),
);

/// Numbers that a thread should convolve: some microseconds.
const NUMBERS_PER_THREAD: usize = 1 << 14;

/// A convolution in a node of a graph.
struct Convolution {
    processor: Processor,
    channels: usize,
    taps: usize,
    first: usize,
    has_silu: bool,
    is_gated: bool,
}

impl Convolution {
    fn new(node: Attributes) -> Outcome<Self> {
        let (channels, taps) = (node.count(c"channels")?, node.count(c"taps")?);
        if !CausalConvolution::is_right(taps, channels) {
            return Err(node.wrong("the channels' or taps' number is out of range"));
        }
        let has_silu = match node.text(c"activation")?.as_str() {
            "silu" => true,
            "" => false,
            _ => return Err(node.wrong("the activation is unknown")),
        };
        let (first, is_gated) = (node.count(c"first")?, node.count(c"gated")? != 0);
        let processor = Processor::best();
        Ok(Self { processor, channels, taps, first, has_silu, is_gated })
    }
}

impl Kernel for Convolution {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        let Self { processor, channels, taps, first, has_silu, is_gated } = *self;
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (input, weights, bias): (Input<'_, f32>, Input<'_, f32>, Option<Input<'_, f32>>) =
            unsafe { (call.input(ROWS)?, call.input(WEIGHTS)?, call.optional(BIAS)?) };
        let (rows, num_rows) = rows(call, &input)?;
        let (weights, bias) = (weights.data, bias.map(|bias| bias.data));
        let layer =
            CausalConvolution { channels, taps, rows, first, weights, bias, has_silu, is_gated };
        // SAFETY: as above.
        let (run, given) = unsafe {
            let run = run(call, STATE, layer.sizes(), num_rows)?;
            let given = given(call, &input, channels, run.num_rows())?;
            (run, given)
        };
        let step = ConvolutionStep::new(layer, &run, num_rows, given).map_err(refused(call))?;
        let tasks = step.num_tasks();
        let numbers = run.num_rows() * channels / tasks.max(1);
        let per_thread = (NUMBERS_PER_THREAD / numbers.max(1)).max(1);
        call.in_parallel(tasks.div_ceil(per_thread), &|thread| {
            let some = thread * per_thread..tasks.min((thread + 1) * per_thread);
            // SAFETY: the output has the rows; a task's channels are its own.
            with_workspace(|workspace| {
                some.for_each(|task| unsafe { convolve(processor, &step, task, workspace) })
            });
        })?;
        // SAFETY: there are no tasks any more.
        unsafe { run.finish() };
        Ok(())
    }
}
