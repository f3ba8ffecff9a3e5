//! Products and attention some times over, for `instructions.py`, which counts instructions.
//!
//! `instructions PROCESSOR WORK ROWS TURNS`: the processor as `coordgen doctor` names it; the work a
//! type of weights, which a matrix of 256 x 1,024 is stored in, or `attention` to 512 tokens, of eight
//! heads that share two heads of keys of 64 numbers. What a turn needs is made before the first.
//! Without arguments it does a little of all.
#![allow(unsafe_code)]

use std::hint::black_box;

use coordgen_rs::kernels::attention::{
    Cache, CacheType, Inputs, Layer, Step, attend_task, units, write_keys,
};
use coordgen_rs::kernels::product::{
    Destination, Epilogue, Source, Tiling, WeightType, Weights, multiply, round_rows,
};
use coordgen_rs::kernels::{Nodes, Processor, Workspace};

const OUTPUTS: usize = 256;
const COLUMNS: usize = 1024;
const TOKENS: usize = 512;
const LAYER: Layer = Layer {
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    scale: 0.125,
    softcap: 0.0,
    window: 0,
    interleaved: false,
    epsilon: 1e-5,
    shares_keys: false,
    has_values: true,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, work, rows, turns] = &arguments[..] {
        let number = |text: &String| text.parse().expect("a number");
        let mut known = Processor::all().into_iter();
        let processor = known.find(|known| known.name() == name).expect("what this machine has");
        return run(processor, work, number(rows), number(turns));
    }
    for processor in Processor::all() {
        for work in ["Q4_0", "attention"] {
            run(processor, work, 3, 1);
        }
    }
}

fn run(processor: Processor, work: &str, rows: usize, turns: usize) {
    match WeightType::named(work) {
        Some(kind) => multiply_rows(processor, kind, rows, turns),
        None => attend(processor, rows, turns),
    }
}

/// Numbers from -1 to 1, in no order.
fn numbers(count: usize) -> Vec<f32> {
    let number = |index: usize| (index.wrapping_mul(2_654_435_761) >> 8 & 0xffff) as f32;
    (0..count).map(|index| number(index) / 32_768.0 - 1.0).collect()
}

fn multiply_rows(processor: Processor, kind: WeightType, rows: usize, turns: usize) {
    let tiling = Tiling::new(rows, COLUMNS, kind.is_float(), processor);
    let (x, panels) = (numbers(rows * COLUMNS), vec![0x11; kind.num_bytes(OUTPUTS, COLUMNS)]);
    let weights = Weights { kind, outputs: OUTPUTS, panels: &panels };
    let mut packed = vec![0; tiling.num_bytes()];
    let mut products = vec![0.0; rows * OUTPUTS];
    let to = Destination { to: products.as_mut_ptr(), stride: OUTPUTS };
    let (all, epilogue, packed) = (0..OUTPUTS / 16, Epilogue::default(), packed.as_mut_ptr());
    // SAFETY: all have their sizes, and there is one thread.
    unsafe {
        round_rows(processor, Source::Plain(&x), None, COLUMNS, tiling, 0..rows, packed);
        for _ in 0..turns {
            multiply(processor, packed, tiling, weights, all.clone(), epilogue, to);
        }
    }
    black_box(products);
}

fn attend(processor: Processor, rows: usize, turns: usize) {
    let slots = TOKENS + rows;
    let parents: Vec<i32> = (-1..rows as i32 - 1).collect();
    let lengths = [TOKENS as i32];
    let nodes = Nodes::new(&parents, &vec![0; rows], &lengths, [0, rows as i32], rows, slots);
    let nodes = nodes.expect("a chain is right");
    let mut caches = [numbers(2 * slots * LAYER.head_dim), numbers(2 * slots * LAYER.head_dim)];
    let [key, value] = caches.each_mut().map(|cache| cache.as_mut_ptr().cast());
    let cache = Cache { key, value, slots, cache_type: CacheType::Float32 };
    let (x, angles) = (numbers(rows * LAYER.columns()), numbers(rows * LAYER.head_dim / 2));
    let inputs = Inputs {
        rows: &x,
        cos: &angles,
        sin: &angles,
        query_norm: None,
        key_norm: None,
        value_norm: None,
        sinks: None,
    };
    let mut attended = vec![0.0; rows * LAYER.heads * LAYER.head_dim];
    let (to, units) = (attended.as_mut_ptr(), units(LAYER, &nodes));
    let step = Step::new(LAYER, inputs, &nodes, rows, cache, to, units).expect("sizes are right");
    let mut workspace = Workspace::default();
    // SAFETY: all have their sizes, and there is one thread.
    unsafe {
        write_keys(processor, &step, 0..rows);
        for _ in 0..turns {
            for task in 0..step.num_tasks() {
                attend_task(processor, &step, task, &mut workspace);
            }
        }
    }
    black_box(attended);
}
