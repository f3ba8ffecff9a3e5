//! Extending and reading the suffix automaton, at three lengths of text.
//!
//! `cargo bench --bench automaton`.

mod text;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use coordgen_rs::draft::source::Propose;
use coordgen_rs::draft::sources::automaton::suffix_automaton::SuffixAutomaton;

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
const VOCAB_SIZE: u32 = 50_000;
/// Bytes that tokens are counted in, whatever the length.
const COUNTS: usize = 36 << 10;

fn extend(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("automaton_extend");
    group.sample_size(10);
    for len in LENGTHS {
        let text = text::text(len, VOCAB_SIZE);
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter_batched_ref(
                SuffixAutomaton::new,
                |automaton| {
                    // As answers grow: a few tokens at a time.
                    text.chunks(4).for_each(|tokens| automaton.extend(tokens));
                    assert_eq!(automaton.text_len(), len);
                },
                BatchSize::PerIteration,
            );
        });
        let mut automaton = SuffixAutomaton::new();
        automaton.extend(&text);
        assert_eq!(automaton.last_end(&text[len - 50..]), Some(len));
        let bytes_per_token = automaton.memory_bytes().saturating_sub(COUNTS) as f64 / len as f64;
        assert!(bytes_per_token < 60.0, "{bytes_per_token:.1} bytes a token");
    }
}

fn successors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("automaton_successors");
    for len in LENGTHS {
        let mut text = text::text(len, VOCAB_SIZE);
        text.extend_from_within(len / 2..len / 2 + 8);
        let mut automaton = SuffixAutomaton::new();
        automaton.extend(&text);
        let expected = text[len / 2 + 8];
        let mut found = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| {
                found.clear();
                automaton.successors(automaton.cursor().expect("a repetition"), &mut found);
                assert!(found.iter().any(|successor| successor.token == expected));
            });
        });
    }
}

criterion_group!(benches, extend, successors);
criterion_main!(benches);
