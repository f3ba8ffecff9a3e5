//! The rows of all groups times some matrices of each group's expert.
//!
//! In: rows as they are packed. Out: products `(slots, outputs)`, of several matrices side by side. A task is
//! some panels of one matrix of one expert, for all rows of its group.

use std::ops::Range;

use super::dispatch::{Dispatch, Packing, packing_of};
use super::layer::Experts;
use crate::kernels::product::{Destination, Epilogue, multiply, panels_per_task};
use crate::kernels::tasks::InParallel;
use crate::kernels::{Processor, Shared};

/// What a task multiplies.
#[derive(Clone, Debug)]
pub struct Task {
    group: usize,
    /// 0 for gate, 1 for up, 2 for down.
    matrix: usize,
    panels: Range<usize>,
}

/// Matrices side by side, and the bytes that hold those of all experts.
#[derive(Clone)]
pub struct Matrices<'a> {
    pub processor: Processor,
    pub layer: &'a Experts,
    pub weights: &'a [u8],
    /// Which of gate, up and down.
    pub range: Range<usize>,
    /// `(experts, outputs of all)`.
    pub bias: Option<&'a [f32]>,
}

impl Matrices<'_> {
    /// Outputs of all.
    fn outputs(&self) -> usize {
        self.layer.shapes()[self.range.clone()].iter().map(|[outputs, _]| outputs).sum()
    }

    /// Multiplies all groups' rows with them; `parts` is memory that is used again.
    ///
    /// # Safety
    ///
    /// `packed` holds all rows as the packings say, `to` has room for the products of all places, and nobody
    /// else writes either or reads `to`.
    pub unsafe fn multiply<E>(
        &self,
        dispatch: &Dispatch,
        packings: [Option<Packing>; 2],
        packed: Shared<u8>,
        to: Shared<f32>,
        parts: &mut Vec<Task>,
        in_parallel: InParallel<'_, E>,
    ) -> Result<(), E> {
        self.cut(dispatch, packings, parts);
        let outputs = self.outputs();
        in_parallel(parts.len(), &|index| {
            let Task { group, matrix, ref panels } = parts[index];
            let group = dispatch.groups[group];
            let weights = self.layer.weights(self.weights, group.expert, matrix);
            let first = (matrix - self.range.start) * weights.outputs;
            let bias = self.bias.map(|bias| &bias[group.expert * outputs + first..]);
            let (tiling, start) = packing_of(packings, weights.kind).tiles(group);
            let epilogue = Epilogue { bias, residual: None };
            // SAFETY: by contract; the panels' outputs of the group's places are this task's alone.
            unsafe {
                let packed = packed.get().add(start);
                let to = to.get().add(group.slots().start * outputs + first);
                let to = Destination { to, stride: outputs };
                multiply(self.processor, packed, tiling, weights, panels.clone(), epilogue, to);
            }
        })
    }

    /// Cuts the products into parts of about equal work.
    fn cut(&self, dispatch: &Dispatch, packings: [Option<Packing>; 2], parts: &mut Vec<Task>) {
        parts.clear();
        for (group, it) in dispatch.groups.iter().enumerate() {
            for matrix in self.range.clone() {
                let (kind, [outputs, _]) = (self.layer.types[matrix], self.layer.shapes()[matrix]);
                let (tiling, _) = packing_of(packings, kind).tiles(*it);
                let (count, per_task) = (kind.num_panels(outputs), panels_per_task(kind, tiling));
                for first in (0..count).step_by(per_task) {
                    let panels = first..count.min(first + per_task);
                    parts.push(Task { group, matrix, panels });
                }
            }
        }
    }
}
