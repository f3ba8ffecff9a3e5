//! What sampling costs: a drawn row of a large vocabulary, by option, beside the argmax of it; its
//! logprobs; and `accept` of a draft that is rejected, sampled and greedy.
//!
//! `cargo bench --bench sampling`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::draft::choose::drafter::{Drafter, DrafterOptions};
use coordgen_rs::draft::choose::step_choice::{StepChoice, StepShape};
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::methods::source_named;
use coordgen_rs::ids::TokenId;
use coordgen_rs::logits::argmax;
use coordgen_rs::logits::logprobs::RowLogprobs;
use coordgen_rs::sampling::{Penalties, Sampling, SeenTokens};

/// Of Qwen2.5.
const VOCAB_SIZE: usize = 151_936;
/// Rows of the step, and nodes of the chain that it rejects.
const ROWS: usize = 32;
/// Rows that are drawn from in turn: more than a core's own cache holds, as after a real step.
const NUM_ROWS: usize = 16;

/// Numbers spread evenly over 0 to 1, in an order that repeats after four billion.
fn even(index: usize) -> f32 {
    ((index as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32
}

/// Rows whose scores fall off as those of a model that is sure of a few tokens.
fn peaked() -> Vec<f32> {
    (0..NUM_ROWS * VOCAB_SIZE).map(|index| 4.0 - 2.0 * even(index).max(1e-7).ln()).collect()
}

/// Rows of scores from -4 to 4, each as frequent.
fn flat() -> Vec<f32> {
    (0..NUM_ROWS * VOCAB_SIZE).map(|index| 8.0 * even(index) - 4.0).collect()
}

fn drawn_rows(criterion: &mut Criterion) {
    let options = [
        ("plain", 0, 1.0, 0.0),
        ("top_k 40", 40, 1.0, 0.0),
        ("top_p 0.95", 0, 0.95, 0.0),
        ("min_p 0.05", 0, 1.0, 0.05),
    ];
    for (shape, logits) in [("peaked", peaked()), ("flat", flat())] {
        let mut group = criterion.benchmark_group(format!("a {shape} row"));
        let row = |index: u64| {
            let start = index as usize % NUM_ROWS * VOCAB_SIZE;
            &logits[start..start + VOCAB_SIZE]
        };
        let mut index = 0;
        group.bench_function("argmax", |bencher| {
            bencher.iter(|| {
                index += 1;
                black_box(argmax(row(index)).unwrap())
            });
        });
        for (name, top_k, top_p, min_p) in options {
            let sampling = Sampling::new(1.0, top_k, top_p, 7).unwrap();
            let sampling = sampling.with_min_p(min_p).unwrap();
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    index += 1;
                    black_box(sampling.draw(row(index), index).unwrap())
                });
            });
        }
    }
}

/// A choice after a long text, whose every distinct token is penalised.
fn penalised_rows(criterion: &mut Criterion) {
    let mut logits = peaked();
    for num_distinct in [100, 1_000, 4_000] {
        let mut seen = SeenTokens::default();
        let ids = (0..num_distinct).map(|at| (even(at) * VOCAB_SIZE as f32) as u32);
        seen.restart(&ids.clone().map(TokenId).collect::<Vec<_>>());
        seen.extend(&ids.map(TokenId).collect::<Vec<_>>());
        let repetition = Penalties { repetition: 1.1, ..Penalties::default() };
        let counted = Penalties { presence: 0.1, frequency: 0.1, ..Penalties::default() };
        let mut group = criterion.benchmark_group(format!("{num_distinct} distinct tokens"));
        for (name, temperature) in [("greedy", 0.0), ("drawn", 1.0)] {
            let plain = Sampling::new(temperature, 0, 1.0, 7).unwrap();
            for (name, sampling) in [
                (name.to_string(), plain.clone()),
                (format!("{name}, penalised"), plain.clone().with_penalties(repetition).unwrap()),
                (format!("{name}, counted"), plain.clone().with_penalties(counted).unwrap()),
            ] {
                let mut index = 0;
                group.bench_function(name, |bencher| {
                    bencher.iter(|| {
                        index += 1;
                        let start = index as usize % NUM_ROWS * VOCAB_SIZE;
                        let row = &mut logits[start..start + VOCAB_SIZE];
                        black_box(sampling.choose(row, index, &mut seen).unwrap())
                    });
                });
            }
        }
    }
}

/// How likely a token and some others were.
fn logprobs(criterion: &mut Criterion) {
    let logits = peaked();
    let mut group = criterion.benchmark_group("logprobs of a row");
    for num_alternatives in [0, 5, 20] {
        let mut index = 0;
        group.bench_function(BenchmarkId::from_parameter(num_alternatives), |bencher| {
            bencher.iter(|| {
                index += 1;
                let row = &logits[index % NUM_ROWS * VOCAB_SIZE..][..VOCAB_SIZE];
                let told = RowLogprobs::new(black_box(row), num_alternatives).unwrap();
                assert_eq!(told.of(row[0]).alternatives.len(), num_alternatives);
            });
        });
    }
}

/// A drafter whose first chain is rejected as a whole, and the logits that reject it.
fn rejected_chain() -> (Drafter, Vec<TokenId>, Vec<u32>, Vec<f32>) {
    let shape = StepShape { rows: ROWS, attended: 4_096 };
    let options = DrafterOptions {
        steps: StepChoice::new(vec![shape], None).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit: CommitPolicy::Canonical,
        end_tokens: Vec::new(),
        shape: TreeShape::BestFirst,
    };
    let sources = ["automaton", "reuse"].map(|name| source_named(name).unwrap());
    let drafter = Drafter::new(sources.into(), options).unwrap();
    let tokens = (0..ROWS as u32).map(TokenId).collect();
    let parents = (0..ROWS as u32).map(|node| node.saturating_sub(1)).collect();
    let logits = peaked().repeat(ROWS / NUM_ROWS);
    (drafter, tokens, parents, logits)
}

fn accept(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("accept a rejected chain");
    let plain = |top_k, top_p| Some(Sampling::new(1.0, top_k, top_p, 7).unwrap());
    for (name, sampling) in [
        ("greedy", None),
        ("plain", plain(0, 1.0)),
        ("top_k 40", plain(40, 1.0)),
        ("top_p 0.95", plain(0, 0.95)),
    ] {
        let (mut drafter, tokens, parents, mut logits) = rejected_chain();
        drafter.set_sampling(sampling).unwrap();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                drafter.begin(&tokens[..1], 100).unwrap();
                drafter.propose_draft(0, &tokens, &parents).unwrap();
                assert_eq!(drafter.accept(&mut logits).unwrap().accept_len, 0);
            });
        });
    }
}

criterion_group!(benches, drawn_rows, penalised_rows, logprobs, accept);
criterion_main!(benches);
