//! What a recurrent layer of a real size takes on one thread, by its rows.
//!
//! `cargo bench --bench recurrent` prints microseconds a layer: a step of one row, of 16 rows as a
//! chain and as a tree, each with a pending token, and of 16 with five of them; and a read of 256 rows,
//! by row. So many layers take turns that no cache holds their states. It is the best of all layers and
//! some rounds: what others take of the machine is not the layer's. Run as a test, it does a round of
//! two layers, and reads 16 rows.
#![allow(unsafe_code)]

use std::time::Instant;

use coordgen_rs::kernels::recurrent::{
    CausalConvolution, ConvolutionStep, GatedDelta, Heads, HeadsStep, Rows, Run, SelectiveUpdate,
    Sizes, States, Tree, Updates, compute_head, convolve, half_bytes, norm_rows, updates_bytes,
};
use coordgen_rs::kernels::{Processor, Workspace};

/// Nodes that updates are kept of.
const NODES: usize = 32;

/// A layer's sizes, weights and inputs.
enum Kind {
    Convolution { channels: usize, taps: usize, is_gated: bool },
    Delta { heads: Heads },
    Selective { heads: Heads },
}

struct Buffers {
    states: Vec<u64>,
    updates: Vec<u64>,
}

/// A run's nodes, whether they are read, and how many of the last ones are committed.
struct Shape {
    name: &'static str,
    parents: Vec<i32>,
    reads: bool,
    pending: usize,
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let qwen = Heads { key_heads: 16, heads: 16, keys: 128, values: 128 };
    let granite = Heads { key_heads: 1, heads: 48, keys: 128, values: 64 };
    let kinds = [
        ("Qwen3.5-0.8B delta", Kind::Delta { heads: qwen }),
        (
            "Qwen3.5-0.8B convolution",
            Kind::Convolution { channels: 6_144, taps: 4, is_gated: false },
        ),
        ("Granite-4-h-1B selective", Kind::Selective { heads: granite }),
        (
            "Granite-4-h-1B convolution",
            Kind::Convolution { channels: 3_328, taps: 4, is_gated: false },
        ),
        ("LFM2-1.2B convolution", Kind::Convolution { channels: 2_048, taps: 3, is_gated: true }),
    ];
    let chain = |rows: i32| (-1..rows - 1).collect::<Vec<i32>>();
    let tree = vec![-1, 0, 1, 2, 3, 0, 5, 6, 1, 8, 2, 10, 3, 0, 13, 5];
    let (read, num_read) = if is_bench { ("256 rows read", 256) } else { ("16 rows read", 16) };
    let shape = |name, parents, pending| Shape { name, parents, reads: false, pending };
    let shapes = [
        shape("1 row", chain(1), 1),
        shape("16 rows, chain", chain(16), 1),
        shape("16 rows, tree", tree, 1),
        shape("16 rows, chain, 5 pending", chain(16), 5),
        Shape { name: read, parents: chain(num_read), reads: true, pending: 0 },
    ];
    for (name, kind) in &kinds {
        let sizes = kind.sizes();
        let layers = if is_bench { (1 << 27) / (4 * sizes.state + (1 << 19)) } else { 2 };
        let mut all: Vec<Buffers> = (0..layers).map(|_| Buffers::new(sizes)).collect();
        for shape in &shapes {
            let rounds = if is_bench { 12 } else { 1 };
            let best_us = best_us(kind, shape, &mut all, rounds);
            println!("{name}, {}: {best_us:.1} us", shape.name);
        }
    }
}

impl Buffers {
    fn new(Sizes { state, update }: Sizes) -> Self {
        let states = vec![0; half_bytes(state) / 4];
        Self { states, updates: vec![0; updates_bytes(NODES, update) / 4] }
    }
}

impl Kind {
    fn sizes(&self) -> Sizes {
        match self {
            Self::Delta { heads } | Self::Selective { heads } => heads.sizes(),
            Self::Convolution { channels, taps, is_gated } => {
                let rows = Rows { numbers: &[], width: 0 };
                convolution(*channels, *taps, *is_gated, rows, &[]).sizes()
            }
        }
    }

    /// Computes all rows of a run.
    fn compute(&self, run: &Run, numbers: &[f32], given: &mut [f32], workspace: &mut Workspace) {
        let (rows, processor) = (run.num_rows(), Processor::best());
        let of = |width: usize| Rows { numbers: &numbers[..rows * width], width };
        let some = |len: usize| &numbers[..len];
        let given = given.as_mut_ptr();
        // SAFETY: all have their sizes, and there is one thread.
        unsafe {
            match *self {
                Self::Convolution { channels, taps, is_gated } => {
                    let parts = if is_gated { 3 } else { 1 };
                    let weights = some(taps * channels);
                    let layer =
                        convolution(channels, taps, is_gated, of(parts * channels), weights);
                    let step = ConvolutionStep::new(layer, run, rows, given).unwrap();
                    (0..step.num_tasks())
                        .for_each(|task| convolve(processor, &step, task, workspace));
                }
                Self::Delta { heads } => {
                    let width = heads.heads * heads.values;
                    let layer = GatedDelta {
                        heads,
                        rows: of(2 * heads.key_heads * heads.keys + width),
                        projected: of(width + 2 * heads.heads),
                        columns: [0, width, width + heads.heads],
                        a: &vec![-0.1; heads.heads],
                        bias: some(heads.heads),
                        norm: some(heads.values),
                        epsilon: 1e-6,
                    };
                    let step = HeadsStep::new(layer, run, rows, given).unwrap();
                    (0..step.num_tasks())
                        .for_each(|task| compute_head(processor, &step, task, workspace));
                }
                Self::Selective { heads } => {
                    let width = heads.heads * heads.values;
                    let layer = SelectiveUpdate {
                        heads,
                        rows: of(width + 2 * heads.key_heads * heads.keys),
                        projected: of(width + heads.heads),
                        columns: [0, width],
                        a: &vec![-0.1; heads.heads],
                        bias: some(heads.heads),
                        skip: some(heads.heads),
                        limits: [0.0, f32::INFINITY],
                        norm: some(width),
                        epsilon: 1e-5,
                    };
                    let step = HeadsStep::new(layer, run, rows, given).unwrap();
                    (0..step.num_tasks())
                        .for_each(|task| compute_head(processor, &step, task, workspace));
                    norm_rows(processor, &layer, 0..rows, given);
                }
            }
        }
    }
}

fn convolution<'a>(
    channels: usize,
    taps: usize,
    is_gated: bool,
    rows: Rows<'a>,
    weights: &'a [f32],
) -> CausalConvolution<'a> {
    let (bias, has_silu) = (None, !is_gated);
    CausalConvolution { channels, taps, rows, first: 0, weights, bias, has_silu, is_gated }
}

/// Microseconds a layer, or a layer and row where rows are read.
fn best_us(kind: &Kind, shape: &Shape, layers: &mut [Buffers], rounds: usize) -> f64 {
    let rows = shape.parents.len();
    let numbers: Vec<f32> = (0..rows << 15).map(|at| (at % 997) as f32 / 997.0 - 0.5).collect();
    let mut given = vec![0.0; rows << 13];
    let (mut workspace, mut best_us) = (Workspace::default(), f64::INFINITY);
    let pending: Vec<i32> = (0..shape.pending as i32).collect();
    layers.iter_mut().for_each(|buffers| buffers.states.fill(0));
    let mut length = 0;
    for round in 0..rounds + 1 {
        let pending = if round == 0 { &[] } else { &pending[..] };
        length += if shape.reads { rows * round.min(1) } else { pending.len() } as i32;
        for buffers in &mut *layers {
            let start = Instant::now();
            let sizes = kind.sizes();
            let tree = Tree {
                parents: &shape.parents,
                sequences: &vec![0; rows],
                lengths: &[length],
                span: [0, rows as i32],
                reads: &[shape.reads.into()],
                pending,
            };
            // SAFETY: they are as large.
            let (states, updates) = unsafe {
                let (states, updates) = (&mut buffers.states, &mut buffers.updates);
                let bytes = updates_bytes(NODES, sizes.update);
                (
                    States::new(states.as_mut_ptr().cast(), 1, half_bytes(sizes.state)),
                    Updates::new(updates.as_mut_ptr().cast(), bytes),
                )
            };
            let run = Run::new(tree, rows, sizes, states, updates).unwrap();
            kind.compute(&run, &numbers, &mut given, &mut workspace);
            // SAFETY: all is computed.
            unsafe { run.finish() };
            let us = start.elapsed().as_secs_f64() * 1e6;
            best_us = best_us.min(if shape.reads { us / rows as f64 } else { us });
        }
    }
    assert!(given.iter().any(|x| *x != 0.0) && given.iter().all(|x| x.is_finite()));
    best_us
}
