//! The operator `SoftCap`; see the parent.
//!
//! In: numbers of any shape of at most eight dimensions. Out: as many, capped.

use super::call::{Attributes, Call, Input, Outcome};
use super::operator::{FLOAT, Kernel, ONE, Operator};
use crate::kernels::{Processor, Shared, soft_cap};

pub static OPERATOR: Operator =
    Operator::new(c"SoftCap", &[(FLOAT, ONE)], &[(FLOAT, ONE)], |node| {
        Ok(Box::new(SoftCap::new(node)?))
    });

/// Numbers that a task should cap: some microseconds.
const NUMBERS_PER_TASK: usize = 1 << 13;

/// Caps in a node of a graph.
struct SoftCap {
    processor: Processor,
    cap: f32,
}

impl SoftCap {
    fn new(node: Attributes) -> Outcome<Self> {
        let cap = node.float(c"cap")?;
        if !soft_cap::is_cap(cap) {
            return Err(node.wrong("the cap is no positive number, or too small a one"));
        }
        Ok(Self { processor: Processor::best(), cap })
    }
}

impl Kernel for SoftCap {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        // SAFETY: by contract, as for the output: `OPERATOR` declares them.
        let x: Input<'_, f32> = unsafe { call.input(0)? };
        // SAFETY: as above; it has as many numbers.
        let to = Shared(unsafe { call.output::<f32>(0, x.dims())? });
        call.in_parallel(x.data.len().div_ceil(NUMBERS_PER_TASK), &|task| {
            let start = task * NUMBERS_PER_TASK;
            let some = &x.data[start..x.data.len().min(start + NUMBERS_PER_TASK)];
            // SAFETY: the output's numbers from there on are this task's alone.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.get().add(start), some.len());
                soft_cap::cap(self.processor, some, self.cap, to);
            }
        })
    }
}
