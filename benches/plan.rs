//! What planning costs: each strategy, with memory for one graph a block and without a limit.
//!
//! `cargo bench --bench plan`. Blocks are unequal; a load takes three chunks of its block, G2 is
//! 1.3 times as slow in the prefill.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use coordgen_rs::load::plan::{Problem, ResidentGraphs, Strategy, plan};
use coordgen_rs::load::profile::{BlockCost, GraphCost, Profile};

#[path = "../src/load/plan/tests/simulate.rs"]
mod simulate;

use simulate::simulate;

/// Blocks and chunks, without the last as a test.
const SIZES: [(usize, usize); 4] = [(6, 4), (12, 16), (32, 32), (1_000, 100)];
const PREFILL_ROWS: usize = 256;
const PIECES: u64 = 8;

fn profile(num_blocks: usize) -> Profile {
    let block = |number: usize| {
        let compute_us = 9_000 + 1_000 * (number as u64 % 3);
        let graph = |compute_us, num_bytes| GraphCost { load_us: 30_000, compute_us, num_bytes };
        BlockCost {
            prefill: graph(compute_us, 1 << 20),
            decode: graph(compute_us * 13 / 10 / PIECES, 1 << 20),
        }
    };
    let blocks = (0..num_blocks).map(block).collect();
    Profile::new(blocks, PREFILL_ROWS, PREFILL_ROWS / PIECES as usize).unwrap()
}

fn strategies(criterion: &mut Criterion) {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    for &(num_blocks, num_chunks) in &SIZES[..if is_bench { 4 } else { 3 }] {
        let profile = profile(num_blocks);
        let tight = (num_blocks as u64) << 20;
        for (name, memory_budget) in [("one graph a block", Some(tight)), ("no limit", None)] {
            let problem = Problem {
                profile: &profile,
                num_tokens: num_chunks * PREFILL_ROWS,
                start: vec![ResidentGraphs::PREFILL; num_blocks],
                memory_budget,
            };
            let title = format!("plan {num_blocks} x {num_chunks}, {name}");
            let mut group = criterion.benchmark_group(title);
            for strategy in Strategy::ALL {
                let Ok(planned) = plan(strategy, &problem) else { continue };
                let replayed = simulate(&planned.timetable, &problem).unwrap();
                assert_eq!(replayed.makespan_us, planned.makespan_us);
                group.bench_function(BenchmarkId::from_parameter(strategy.name()), |bencher| {
                    bencher.iter(|| plan(strategy, &problem));
                });
            }
        }
    }
}

criterion_group!(benches, strategies);
criterion_main!(benches);
