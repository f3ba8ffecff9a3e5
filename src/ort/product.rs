//! The operator `Product`; see the parent.
//!
//! In: rows, and panels of weights. Out: rows of outputs, of all segments side by side. Rows are
//! rounded once, then each task multiplies all of them with some panels.

use std::cell::RefCell;

use super::attributes::Attributes;
use super::call::{Call, Input, Outcome};
use super::operator::{BYTE, FLOAT, INTEGER, Kernel, MAYBE, ONE, Operator, SOME};
use crate::kernels::product::{self, Added, Destination, Tiling, WeightType, Weights};
use crate::kernels::{Processor, WIDTH};

pub static OPERATOR: Operator = Operator::new(
    c"Product",
    &[(FLOAT, ONE), (FLOAT, MAYBE), (FLOAT, MAYBE), (INTEGER, MAYBE), (BYTE, SOME)],
    &[(FLOAT, ONE)],
    |node| Ok(Box::new(Product::new(node)?)),
);

/// The input of the first segment.
const FIRST_SEGMENT: usize = 4;
/// What a task should take, in bytes of weights read or in products divided by
/// [`PRODUCTS_A_BYTE`]: some microseconds.
const WORK_PER_TASK: usize = 1 << 16;
/// Products that a core computes while it reads a byte.
const PRODUCTS_A_BYTE: usize = 8;

struct Segment {
    kind: WeightType,
    outputs: usize,
}

/// A product in a node of a graph.
struct Product {
    processor: Processor,
    columns: usize,
    segments: Vec<Segment>,
}

impl Product {
    fn new(node: Attributes) -> Outcome<Self> {
        let (columns, outputs) = (node.count(c"columns")?, node.counts(c"sizes")?);
        let types = node.text(c"types")?;
        let kinds: Option<Vec<WeightType>> = types.split(',').map(WeightType::named).collect();
        let kinds = kinds.ok_or_else(|| node.wrong("a segment's type is unknown"))?;
        if kinds.len() != outputs.len() {
            return Err(node.wrong("as many types are needed as segments have outputs"));
        }
        // So many that no size of what is read overflows.
        const MOST: usize = 1 << 24;
        if columns == 0 || columns > MOST || outputs.iter().any(|&it| it == 0 || it > MOST) {
            return Err(node.wrong("a segment's size is out of range"));
        }
        let pairs = kinds.into_iter().zip(outputs);
        let segments = pairs.map(|(kind, outputs)| Segment { kind, outputs }).collect();
        Ok(Self { processor: Processor::best(), columns, segments })
    }
}

/// A part of a segment's panels, which one task multiplies.
struct Part<'a> {
    weights: Weights<'a>,
    /// The segment's first output.
    start: usize,
    panels: std::ops::Range<usize>,
}

thread_local! {
    /// Rounded rows of the call in progress: as large as the largest so far.
    static ROUNDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Kernel for Product {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (rows, residual, bias, experts) = unsafe {
            let rows: Input<'_, f32> = call.input(0)?;
            let experts: Option<Input<'_, i32>> = call.optional(3)?;
            (rows, call.optional::<f32>(1)?, call.optional::<f32>(2)?, experts)
        };
        if experts.is_some() {
            return Err(call.wrong("experts are not known to this version"));
        }
        let num_rows = rows.data.len() / self.columns;
        let outputs: usize = self.segments.iter().map(|segment| segment.outputs).sum();
        let fits = rows.dims().last() == Some(&self.columns)
            && num_rows > 0
            && call.num_inputs()? == FIRST_SEGMENT + self.segments.len()
            && residual.is_none_or(|it| it.data.len() == num_rows * outputs)
            && bias.is_none_or(|it| it.data.len() == outputs);
        if !fits {
            return Err(call.wrong_inputs());
        }
        let tiling = Tiling::new(num_rows, self.columns);
        // SAFETY: as above.
        let to = Shared(unsafe { call.output::<f32>(0, &[num_rows, outputs]) }?);
        let parts = self.parts(call, tiling)?;
        let (residual, bias) = (residual.map(|it| it.data), bias.map(|it| it.data));
        ROUNDED.with_borrow_mut(|rounded| {
            rounded.resize(tiling.num_bytes().max(rounded.len()), 0);
            let packed = Shared(rounded.as_mut_ptr());
            let round = |tile| {
                // SAFETY: the tile is this task's alone.
                unsafe {
                    product::round_tile(
                        self.processor,
                        rows.data,
                        self.columns,
                        tiling,
                        tile,
                        packed.get(),
                    );
                }
            };
            // Few rows are rounded sooner than another thread is told of them.
            let at_once = num_rows * self.columns < WORK_PER_TASK;
            if at_once {
                (0..tiling.num_tiles()).for_each(round);
            } else {
                call.in_parallel(tiling.num_tiles(), &round)?;
            }
            call.in_parallel(parts.len(), &|index| {
                let Part { weights, start, ref panels } = parts[index];
                let added = Added {
                    bias: bias.map(|bias| &bias[start..]),
                    residual: residual.map(|residual| &residual[start..]),
                };
                // SAFETY: all rows are rounded; the panels' outputs are this task's alone.
                unsafe {
                    let to = Destination { to: to.get().add(start), stride: outputs };
                    let panels = panels.clone();
                    product::multiply(
                        self.processor,
                        packed.get(),
                        tiling,
                        weights,
                        panels,
                        added,
                        to,
                    );
                }
            })
        })
    }
}

impl Product {
    /// All segments' panels, in parts of about equal work.
    fn parts<'a>(&self, call: Call<'a>, tiling: Tiling) -> Outcome<Vec<Part<'a>>> {
        let (mut parts, mut start) = (Vec::new(), 0);
        for (index, &Segment { kind, outputs }) in self.segments.iter().enumerate() {
            // SAFETY: as in `compute`.
            let panels: &[u8] = unsafe { call.input(FIRST_SEGMENT + index) }?.data;
            if panels.len() != kind.num_bytes(outputs, self.columns) {
                return Err(call.wrong("a segment's weights are not as long as its sizes say"));
            }
            let (weights, count) = (Weights { kind, outputs, panels }, kind.num_panels(outputs));
            let work = (panels.len() / count)
                .max(tiling.num_rows() * self.columns * WIDTH / PRODUCTS_A_BYTE);
            let per_task = (WORK_PER_TASK / work).max(1);
            for first in (0..count).step_by(per_task) {
                let panels = first..(first + per_task).min(count);
                parts.push(Part { weights, start, panels });
            }
            start += outputs;
        }
        Ok(parts)
    }
}

/// Memory that several tasks write, each its own part.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: see above.
unsafe impl<T> Send for Shared<T> {}
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}
