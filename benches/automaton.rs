//! Extending and reading the suffix automaton, at three lengths of text.
//!
//! `cargo bench --bench automaton`. The text is made up: words with Zipf-like frequencies, each
//! with a few likely followers, and now and then a passage that was there before.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use coordgen_rs::draft::source::DraftSource;
use coordgen_rs::draft::suffix_automaton::SuffixAutomaton;
use coordgen_rs::ids::TokenId;

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
const VOCABULARY: f64 = 50_000.0;

/// A deterministic generator (xorshift) of numbers in 0..1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A text that looks like one to an automaton.
fn text(len: usize) -> Vec<TokenId> {
    let mut numbers = Numbers(88_172_645_463_325_252);
    let mut text = vec![TokenId(0)];
    while text.len() < len {
        if numbers.next() < 0.01 {
            let start = (numbers.next() * text.len() as f64) as usize;
            let end = (start + (numbers.next() * 40.0) as usize).min(text.len());
            text.extend_from_within(start..end);
        }
        let follower = numbers.next().powi(3) * 20.0;
        let rank = VOCABULARY.powf(numbers.next()) as u32;
        let last = text[text.len() - 1].0;
        let likely = last.wrapping_mul(31) + follower as u32;
        text.push(TokenId(if numbers.next() < 0.5 { likely % VOCABULARY as u32 } else { rank }));
    }
    text.truncate(len);
    text
}

fn extend(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("automaton_extend");
    group.sample_size(10);
    for len in LENGTHS {
        let text = text(len);
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
        let bytes_per_token = automaton.memory_bytes() as f64 / len as f64;
        assert!(bytes_per_token < 60.0, "{bytes_per_token:.1} bytes a token");
    }
}

fn successors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("automaton_successors");
    for len in LENGTHS {
        let mut text = text(len);
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
