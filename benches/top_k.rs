//! What reading rows of logits costs: their top 8, against their plain maximum.
//!
//! `cargo bench --bench top_k`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use coordgen_rs::logits::top_k::top_k;

const ROWS: usize = 256;
const VOCAB_SIZES: [usize; 3] = [4_096, 32_000, 151_936];
/// As many running maxima as fill the vector registers.
const LANES: usize = 32;

/// Scores spread evenly over -4 to 4, in an order that repeats after four billion.
fn logits(vocab_size: usize) -> Vec<f32> {
    let mixed = |index: usize| (index as u32).wrapping_mul(2_654_435_761) >> 8;
    (0..ROWS * vocab_size).map(|index| mixed(index) as f32 / (1 << 21) as f32 - 4.0).collect()
}

fn plain_max(row: &[f32]) -> f32 {
    let (lanes, rest) = row.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for scores in lanes {
        for lane in 0..LANES {
            largest[lane] = if scores[lane] > largest[lane] { scores[lane] } else { largest[lane] };
        }
    }
    largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

fn rows(criterion: &mut Criterion) {
    for vocab_size in VOCAB_SIZES {
        let logits = logits(vocab_size);
        for row in logits.chunks(vocab_size) {
            let best = top_k(row).expect("the scores are finite").token_ids[0];
            assert_eq!(row[best.0 as usize], plain_max(row));
        }
        let mut group = criterion.benchmark_group(format!("{ROWS} rows"));
        group.bench_function(BenchmarkId::new("plain max", vocab_size), |bencher| {
            bencher.iter(|| logits.chunks(vocab_size).map(plain_max).fold(0.0, f32::max));
        });
        group.bench_function(BenchmarkId::new("top 8", vocab_size), |bencher| {
            bencher.iter(|| {
                logits.chunks(vocab_size).for_each(|row| {
                    black_box(top_k(row));
                });
            });
        });
    }
}

criterion_group!(benches, rows);
criterion_main!(benches);
