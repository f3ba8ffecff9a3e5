//! What a mixture of experts of a real size takes on one thread, by its rows.
//!
//! `cargo bench --bench experts` prints microseconds a layer: of 1, 4, 16 and 256 rows with random scores, how many
//! experts they read, and the bytes of these in a second. So many layers take turns that no cache holds their
//! weights. It is the best of all layers and some rounds. Run as a test, it does a round of a small layer.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::time::Instant;

use coordgen_rs::kernels::Processor;
use coordgen_rs::kernels::experts::{Experts, Inputs, Router, Scoring, Scratch, Step};
use coordgen_rs::kernels::product::{Gate, WeightType};

/// Layers of models, by their names.
fn layers() -> [(&'static str, Experts); 3] {
    let of = |experts, chosen, columns, size, kind, gate| {
        let (scoring, normed, share_scale) = (Scoring::Softmax, Some(0.0), 1.0);
        let router = Router { experts, chosen, scoring, normed, share_scale };
        let (epsilon, residual_scale, types) = (1e-6, 1.0, [kind; 3]);
        Experts { columns, size, router, types, gate, epsilon, residual_scale }
    };
    [
        ("Qwen3-30B-A3B, Q4_0", of(128, 8, 2048, 768, WeightType::Q4_0, Gate::Silu)),
        ("gpt-oss-20b, MXFP4", of(32, 4, 2880, 2880, WeightType::MXFP4, Gate::ClampedSwiglu)),
        ("LFM2-8B-A1B, Q4_0", of(32, 4, 2048, 1792, WeightType::Q4_0, Gate::Silu)),
    ]
}

/// Bytes of layers that take turns.
const BYTES: usize = 1 << 30;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    for (name, mut layer) in layers() {
        if !is_bench {
            (layer.columns, layer.size) = (64, 32);
        }
        layer.check().expect("the layer can be");
        let bytes = layer.stride() * layer.router.experts;
        let turns = if is_bench { BYTES.div_ceil(bytes) } else { 1 };
        // Any bytes are weights; of these no product is zero or infinite.
        let weights = vec![0x66; turns * bytes];
        for rows in [1, 4, 16, 256] {
            let rounds = if is_bench { 5 } else { 1 };
            let (best_us, read) = best_us(&layer, rows, &weights, rounds);
            let gigabytes = (read * layer.stride()) as f64 / best_us / 1e3;
            println!("{name}, {rows} rows: {best_us:.0} us, {read} experts, {gigabytes:.1} GB/s");
        }
    }
}

/// Microseconds of a layer, and experts that are read.
fn best_us(layer: &Experts, num_rows: usize, weights: &[u8], rounds: usize) -> (f64, usize) {
    let Experts { columns, router: Router { experts, .. }, .. } = *layer;
    let mut state = 1u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let rows: Vec<f32> = (0..num_rows * columns).map(|_| number()).collect();
    let scores: Vec<f32> = (0..num_rows * experts).map(|_| number()).collect();
    let norm = vec![1.0; columns];
    let (mut given, mut scratch) = (vec![0.0; num_rows * columns], Scratch::default());
    let (mut best_us, mut read) = (f64::INFINITY, 0);
    for weights in weights.chunks(layer.stride() * experts).cycle().take(rounds * 4) {
        let inputs = Inputs {
            rows: &rows,
            norm: Some(&norm),
            scores: &scores,
            weights,
            ..Inputs::default()
        };
        let start = Instant::now();
        let step = Step::new(Processor::best(), layer, inputs, num_rows).expect("inputs fit");
        // SAFETY: there is room for all rows.
        let chosen = unsafe {
            step.compute(&mut scratch, given.as_mut_ptr(), &|_, _| Ok(()), &|tasks, work| {
                (0..tasks).for_each(work);
                Ok::<(), Infallible>(())
            })
        };
        best_us = best_us.min(start.elapsed().as_secs_f64() * 1e6);
        let Ok(chosen) = chosen;
        let mut distinct = chosen.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        read = distinct.len();
    }
    assert!(given.iter().any(|x| *x != 0.0) && given.iter().all(|x| x.is_finite()));
    (best_us, read)
}
