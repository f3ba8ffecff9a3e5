//! The operator `Product`; see the parent.
//!
//! In: rows, and panels of weights. Out: rows of outputs, of all segments side by side. Rows are
//! normed or gated where that is asked for, and rounded, once; then each task multiplies all of them
//! with some panels.

use std::cell::RefCell;

use super::call::{Attributes, Call, Input, Outcome};
use super::operator::{BYTE, FLOAT, Kernel, MAYBE, ONE, Operator, SOME, inputs};
use crate::kernels::product::{
    self, Destination, Epilogue, Gate, Source, Tiling, WeightType, Weights,
};
use crate::kernels::{Processor, Shared};

inputs! {
    INPUTS:
    ROWS: FLOAT ONE,
    NORM: FLOAT MAYBE,
    RESIDUAL: FLOAT MAYBE,
    BIAS: FLOAT MAYBE,
    WEIGHTS: BYTE SOME,
}

pub static OPERATOR: Operator =
    Operator::new(c"Product", INPUTS, &[(FLOAT, ONE)], |node| Ok(Box::new(Product::new(node)?)));

/// Numbers that a task should round: some microseconds.
const NUMBERS_PER_TASK: usize = 1 << 13;

struct Segment {
    kind: WeightType,
    outputs: usize,
}

/// A product in a node of a graph.
struct Product {
    processor: Processor,
    columns: usize,
    /// Of the norm, if there is one.
    epsilon: f32,
    /// What rows are gated by, if they are.
    gate: Option<Gate>,
    segments: Vec<Segment>,
}

impl Product {
    fn new(node: Attributes) -> Outcome<Self> {
        let (columns, outputs) = (node.count(c"columns")?, node.counts(c"sizes")?);
        let (types, gate) = (node.text(c"types")?, node.text(c"gate")?);
        let known = Gate::named(&gate);
        if known.is_none() && !gate.is_empty() {
            return Err(node.wrong("the gate's activation is unknown"));
        }
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
        if !kinds.iter().all(|kind| kind.fits(columns)) {
            return Err(node.wrong("columns are no whole blocks of a segment's type"));
        }
        let pairs = kinds.into_iter().zip(outputs);
        let segments = pairs.map(|(kind, outputs)| Segment { kind, outputs }).collect();
        let (processor, epsilon) = (Processor::best(), node.float(c"epsilon")?);
        Ok(Self { processor, columns, epsilon, gate: known, segments })
    }
}

/// A part of a segment's panels, which one task multiplies.
struct Task<'a> {
    weights: Weights<'a>,
    /// The segment's first output.
    start: usize,
    panels: std::ops::Range<usize>,
    packing: Packing,
}

/// How rows are packed, and where they begin in the memory for all of them.
type Packing = (Tiling, usize);

thread_local! {
    /// Rounded rows of the call in progress: as large as the largest so far.
    static ROUNDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Kernel for Product {
    unsafe fn compute(&self, call: Call<'_>) -> Outcome<()> {
        // SAFETY: by contract, as for all inputs and outputs below: `OPERATOR` declares them.
        let (rows, [norm, residual, bias]) = unsafe {
            let rows: Input<'_, f32> = call.input(ROWS)?;
            let floats = |index| Ok(call.optional::<f32>(index)?.map(|input| input.data));
            (rows, [floats(NORM)?, floats(RESIDUAL)?, floats(BIAS)?])
        };
        let source = match (norm, self.gate) {
            (None, None) => Source::Plain(rows.data),
            (None, Some(gate)) => Source::Gated(rows.data, gate),
            (Some(weight), None) => Source::Normed { x: rows.data, weight, epsilon: self.epsilon },
            (Some(_), Some(_)) => return Err(call.wrong("rows are normed or gated, not both")),
        };
        let size = if self.gate.is_some() { 2 * self.columns } else { self.columns };
        let num_rows = rows.data.len() / size;
        let outputs: usize = self.segments.iter().map(|segment| segment.outputs).sum();
        let fits = rows.dims().last() == Some(&size)
            && num_rows > 0
            && call.num_inputs()? == WEIGHTS + self.segments.len()
            && norm.is_none_or(|it| it.len() == self.columns)
            && residual.is_none_or(|it| it.len() == num_rows * outputs)
            && bias.is_none_or(|it| it.len() == outputs);
        if !fits {
            return Err(call.wrong_inputs());
        }
        let packings = self.packings(num_rows);
        // SAFETY: as above.
        let to = Shared(unsafe { call.output::<f32>(0, &rows.dims_of(outputs)) }?);
        let parts = self.parts(call, &packings)?;
        ROUNDED.with_borrow_mut(|rounded| {
            let bytes = packings.iter().map(|(tiling, _)| tiling.num_bytes()).sum();
            rounded.resize(rounded.len().max(bytes), 0);
            let packed = Shared(rounded.as_mut_ptr());
            // Few rows are rounded sooner than another thread is told of them.
            let per_task = (NUMBERS_PER_TASK / size).max(1);
            call.in_parallel(num_rows.div_ceil(per_task), &|task| {
                let rows = task * per_task..num_rows.min((task + 1) * per_task);
                for &(tiling, start) in &packings {
                    let (rows, columns) = (rows.clone(), self.columns);
                    // SAFETY: the rows are this task's alone.
                    unsafe {
                        let packed = packed.get().add(start);
                        product::round_rows(
                            self.processor,
                            source,
                            None,
                            columns,
                            tiling,
                            rows,
                            packed,
                        );
                    }
                }
            })?;
            call.in_parallel(parts.len(), &|index| {
                let Task { weights, start, ref panels, packing: (tiling, packing) } = parts[index];
                let epilogue = Epilogue {
                    bias: bias.map(|bias| &bias[start..]),
                    residual: residual.map(|residual| &residual[start..]),
                };
                // SAFETY: all rows are rounded; the panels' outputs are this task's alone.
                unsafe {
                    let to = Destination { to: to.get().add(start), stride: outputs };
                    let panels = panels.clone();
                    product::multiply(
                        self.processor,
                        packed.get().add(packing),
                        tiling,
                        weights,
                        panels,
                        epilogue,
                        to,
                    );
                }
            })
        })
    }
}

impl Product {
    /// Rows rounded, as floats, or both, by what segments multiply them with.
    fn packings(&self, num_rows: usize) -> Vec<Packing> {
        let (mut packings, mut start) = (Vec::new(), 0);
        for is_float in [false, true] {
            if self.segments.iter().any(|segment| segment.kind.is_float() == is_float) {
                let tiling = Tiling::new(num_rows, self.columns, is_float, self.processor);
                packings.push((tiling, start));
                start += tiling.num_bytes();
            }
        }
        packings
    }

    /// All segments' panels, in parts of about equal work.
    fn parts<'a>(&self, call: Call<'a>, packings: &[Packing]) -> Outcome<Vec<Task<'a>>> {
        let (mut parts, mut start) = (Vec::new(), 0);
        for (index, &Segment { kind, outputs }) in self.segments.iter().enumerate() {
            // SAFETY: as in `compute`.
            let panels: &[u8] = unsafe { call.input(WEIGHTS + index) }?.data;
            if panels.len() != kind.num_bytes(outputs, self.columns) {
                return Err(call.wrong("a segment's weights are not as long as its sizes say"));
            }
            let (weights, count) = (Weights { kind, outputs, panels }, kind.num_panels(outputs));
            // Where there are two, floats come last.
            let packing = packings[if kind.is_float() { packings.len() - 1 } else { 0 }];
            let per_task = product::panels_per_task(kind, packing.0);
            for first in (0..count).step_by(per_task) {
                let panels = first..(first + per_task).min(count);
                parts.push(Task { weights, start, panels, packing });
            }
            start += outputs;
        }
        Ok(parts)
    }
}
