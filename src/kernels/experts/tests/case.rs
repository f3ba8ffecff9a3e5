//! Random layers with all that a step reads.

use std::collections::HashMap;

use super::*;
use crate::kernels::product::tests::twin;
use crate::kernels::product::{Gate, WeightType, to_panels};

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() as f32 / (1u64 << 30) as f32 - 1.0) * 3.0).collect()
    }

    /// Numbers, or none.
    fn some(&mut self, count: usize) -> Option<Vec<f32>> {
        (self.below(2) == 0).then(|| self.numbers(count))
    }
}

/// Panels of sixteen outputs, from which matrices are put together: a few of each type and width.
#[derive(Default)]
pub struct Panels(HashMap<(&'static str, usize), Vec<Vec<u8>>>);

impl Panels {
    fn of(&mut self, kind: WeightType, columns: usize, random: &mut Random) -> &[u8] {
        let all = self.0.entry((kind.name(), columns)).or_insert_with(|| {
            let blocks = columns.div_ceil(kind.block_weights());
            let mut panel = || {
                let mut next = || random.next();
                let rows: Vec<u8> =
                    (0..16 * blocks).flat_map(|_| twin::block(kind, &mut next).0).collect();
                let mut panel = vec![0; kind.panel_bytes(columns)];
                to_panels(kind, blocks, &rows, &mut panel);
                panel
            };
            vec![panel(), panel(), panel(), panel()]
        });
        &all[random.below(all.len())]
    }
}

/// A layer, and what a step of it reads.
#[derive(Clone)]
pub struct Case {
    pub layer: Experts,
    pub num_rows: usize,
    pub rows: Vec<f32>,
    pub norm: Option<Vec<f32>>,
    pub scores: Vec<f32>,
    pub choice_bias: Option<Vec<f32>>,
    pub up_bias: Option<Vec<f32>>,
    pub down_bias: Option<Vec<f32>>,
    pub residual: Option<Vec<f32>>,
    pub beside: Option<Vec<f32>>,
    pub beside_gate: Option<Vec<f32>>,
    pub weights: Vec<u8>,
}

/// A number of columns that a type can have.
fn columns(kinds: &[WeightType], random: &mut Random) -> usize {
    let is_large = kinds.iter().any(|kind| kind.block_weights() > 32);
    if is_large { 256 } else { random.of(&[1, 16, 31, 48, 64]) }
}

impl Case {
    pub fn random(random: &mut Random, panels: &mut Panels) -> Self {
        // Code that is not optimised takes long over large ones.
        let is_large = random.below(8) == 0;
        let kinds: Vec<WeightType> = WeightType::ALL
            .into_iter()
            .filter(|kind| is_large || kind.block_weights() <= 32)
            .collect();
        let types = [(); 3].map(|()| random.of(&kinds));
        let (columns, size) = (columns(&types[..2], random), columns(&types[2..], random));
        let most_rows = if is_large { 4 } else { random.of(&[1, 4, 16, 40]) };
        let num_rows = 1 + random.below(most_rows);
        let experts = 1 + random.below(if is_large { 8 } else { 64 });
        let router = Router {
            experts,
            chosen: 1 + random.below(experts.min(8)),
            scoring: random.of(&[Scoring::Softmax, Scoring::Sigmoid]),
            normed: random.of(&[None, Some(0.0), Some(1e-6)]),
            share_scale: random.of(&[1.0, 2.5]),
        };
        let layer = Experts {
            columns,
            size,
            router,
            types,
            gate: random.of(&[Gate::Silu, Gate::Gelu, Gate::ClampedSwiglu]),
            epsilon: 1e-5,
            residual_scale: random.of(&[1.0, 0.22]),
        };
        Self::of(layer, num_rows, random, panels)
    }

    pub fn of(layer: Experts, num_rows: usize, random: &mut Random, panels: &mut Panels) -> Self {
        let Experts { columns, size, router: Router { experts, .. }, .. } = layer;
        let beside = random.some(num_rows * columns);
        let mut scores = random.numbers(num_rows * experts);
        if random.below(3) == 0 {
            // Many are equal.
            scores.iter_mut().for_each(|score| *score = score.round());
        }
        Self {
            layer,
            num_rows,
            rows: random.numbers(num_rows * columns),
            norm: random.some(columns),
            scores,
            choice_bias: random.some(experts),
            up_bias: random.some(experts * 2 * size),
            down_bias: random.some(experts * columns),
            residual: random.some(num_rows * columns),
            beside_gate: beside.as_ref().and_then(|_| random.some(num_rows)),
            beside,
            weights: weights(&layer, random, panels),
        }
    }

    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            rows: &self.rows,
            norm: self.norm.as_deref(),
            scores: &self.scores,
            choice_bias: self.choice_bias.as_deref(),
            up_bias: self.up_bias.as_deref(),
            down_bias: self.down_bias.as_deref(),
            residual: self.residual.as_deref(),
            beside: self.beside.as_deref(),
            beside_gate: self.beside_gate.as_deref(),
            weights: &self.weights,
        }
    }

    /// The same layer over some of the rows, in any order.
    pub fn picked(&self, rows: &[usize]) -> Self {
        let Experts { columns, router: Router { experts, .. }, .. } = self.layer;
        let pick = |x: &[f32], width: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| x[row * width..][..width].to_vec()).collect()
        };
        Self {
            num_rows: rows.len(),
            rows: pick(&self.rows, columns),
            scores: pick(&self.scores, experts),
            residual: self.residual.as_ref().map(|x| pick(x, columns)),
            beside: self.beside.as_ref().map(|x| pick(x, columns)),
            beside_gate: self.beside_gate.as_ref().map(|x| pick(x, 1)),
            ..self.clone()
        }
    }

    /// What all rows give, and their experts.
    pub fn run(&self, processor: Processor, scratch: &mut Scratch, dispatch: Tasks) -> Given {
        let step = Step::new(processor, &self.layer, self.inputs(), self.num_rows).unwrap();
        let mut given = vec![f32::NAN; self.num_rows * self.layer.columns];
        // SAFETY: there is room for all rows.
        let chosen = unsafe {
            step.compute(scratch, given.as_mut_ptr(), &|_, _| Ok(()), &|tasks, work| {
                dispatch.run(tasks, work);
                Ok::<(), ()>(())
            })
        };
        let chosen = chosen.unwrap().iter().map(|expert| *expert as usize).collect();
        Given { numbers: given, chosen }
    }
}

fn weights(layer: &Experts, random: &mut Random, panels: &mut Panels) -> Vec<u8> {
    let Experts { columns, size, types, .. } = *layer;
    let mut all = Vec::new();
    for _ in 0..layer.router.experts {
        for (kind, [outputs, columns]) in
            types.into_iter().zip([[size, columns], [size, columns], [columns, size]])
        {
            for _ in 0..kind.num_panels(outputs) {
                all.extend(panels.of(kind, columns, random));
            }
        }
        all.resize(all.len().next_multiple_of(4096), 0xa5);
    }
    all
}

pub struct Given {
    /// `(rows, columns)`.
    pub numbers: Vec<f32>,
    /// `(rows, chosen)`.
    pub chosen: Vec<usize>,
}

/// In which order tasks run.
#[derive(Clone, Copy, Debug)]
pub enum Tasks {
    Forwards,
    Backwards,
    OnThreads,
}

impl Tasks {
    fn run(self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        match self {
            Self::Forwards => (0..tasks).for_each(work),
            Self::Backwards => (0..tasks).rev().for_each(work),
            Self::OnThreads => std::thread::scope(|scope| {
                for thread in 0..3 {
                    scope.spawn(move || (thread..tasks).step_by(3).for_each(work));
                }
            }),
        }
    }
}
