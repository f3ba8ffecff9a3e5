//! The index over finished requests: building, opening, following a text, and a whole step.
//!
//! `cargo bench --bench history`. It prints the bytes a token on disk, too.

mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::draft::choose::drafter::{Drafter, DrafterOptions};
use coordgen_rs::draft::choose::step_choice::{StepChoice, StepShape};
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::methods::source_named;
use coordgen_rs::draft::source::DraftSource;
use coordgen_rs::draft::sources::history::History;
use coordgen_rs::draft::sources::history::format::{TERMINATOR, write_index};
use coordgen_rs::draft::sources::history::index::HistoryIndex;
use coordgen_rs::draft::sources::history::suffix_array::suffix_array;
use coordgen_rs::ids::TokenId;

const LENGTHS: [usize; 3] = [10_000, 1_000_000, 10_000_000];
const VOCAB_SIZE: usize = 50_000;
const DOCUMENT_LEN: usize = 1_000;
const KEY: [u8; 32] = [0; 32];
/// Rows of a step, and so nodes of the tree.
const ROWS: usize = 16;

/// The shortest alone as a test, where nothing is timed.
fn lengths() -> &'static [usize] {
    let has = |option| std::env::args().any(|argument| argument == option);
    &LENGTHS[..if has("--bench") && !has("--test") { LENGTHS.len() } else { 1 }]
}

fn documents(len: usize) -> Vec<TokenId> {
    let mut tokens = text::text(len, VOCAB_SIZE as u32);
    for end in (DOCUMENT_LEN - 1..len).step_by(DOCUMENT_LEN) {
        tokens[end] = TERMINATOR;
    }
    tokens[len - 1] = TERMINATOR;
    tokens
}

/// An index of `len` tokens in a file that is removed at the end.
struct Index(PathBuf);

impl Index {
    fn new(len: usize) -> Self {
        let name = format!("coordgen-bench-{}-{len}.index", std::process::id());
        let path = std::env::temp_dir().join(name);
        write_index(&path, &documents(len), VOCAB_SIZE as u32, 0, KEY).unwrap();
        Self(path)
    }

    fn history(&self) -> History {
        let history = History::new(VOCAB_SIZE as u32);
        history.open_index(&self.0, &KEY).unwrap();
        history
    }
}

impl AsRef<Path> for Index {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn build(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("history_build");
    group.sample_size(10);
    for &len in lengths() {
        let symbols: Vec<u32> =
            documents(len).iter().map(|token| token.0.wrapping_add(1)).collect();
        group.throughput(Throughput::Elements(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| assert_eq!(suffix_array(&symbols).len(), len));
        });
    }
}

fn open(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("history_open");
    for &len in lengths() {
        let file = Index::new(len);
        let bytes_per_token = fs::metadata(&file).unwrap().len() as f64 / len as f64;
        println!("index of {len} tokens: {bytes_per_token:.2} bytes a token");
        assert!(bytes_per_token < 12.0);
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| {
                let index = HistoryIndex::open(file.as_ref(), &KEY).unwrap();
                assert_eq!(index.header().num_tokens as usize, len);
            });
        });
    }
}

/// A token of the text, and what may come next.
fn follow(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("history_extend_and_successors");
    for &len in lengths() {
        let file = Index::new(len);
        let text = &documents(len)[len / 2..][..DOCUMENT_LEN - 1];
        let [mut source, _] = file.history().sources();
        source.clear();
        let (mut at, mut found) = (0, Vec::new());
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter(|| {
                source.extend(&text[at..=at]);
                found.clear();
                source.successors(source.cursor().unwrap(), &mut found);
                at = (at + 1) % text.len();
            });
        });
    }
}

/// A request whose target says a text of its own, beside a history.
struct Replay {
    drafter: Drafter,
    answer: Vec<TokenId>,
    given_out: usize,
    logits: Vec<f32>,
}

impl Replay {
    fn new(file: &Index, len: usize, sources: &[&str]) -> Self {
        // Another text of the same kind: some of it stands in the history, some does not.
        let mut answer = text::text(len + 20_000, VOCAB_SIZE as u32).split_off(len);
        let prompt = answer[..1_000].to_vec();
        answer.drain(..1_000);
        let steps = StepChoice::new(vec![StepShape { rows: ROWS, attended: 1 << 20 }], None);
        let options = DrafterOptions {
            steps: steps.unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: Vec::new(),
            shape: TreeShape::BestFirst,
        };
        let mut all: Vec<Box<dyn DraftSource>> =
            sources.iter().map(|name| source_named(name).unwrap()).collect();
        all.extend(file.history().sources());
        let mut drafter = Drafter::new(all, options).unwrap();
        drafter.begin(&prompt, answer.len()).unwrap();
        Self { drafter, answer, given_out: 0, logits: vec![0.0; ROWS * VOCAB_SIZE] }
    }

    /// The time of propose; the target's answer is then told to accept.
    fn propose(&mut self) -> Duration {
        let start = Instant::now();
        self.drafter.propose(self.given_out).unwrap();
        let elapsed = start.elapsed();
        self.logits.fill(0.0);
        for (row, &depth) in self.drafter.tree().depths().iter().enumerate() {
            let token = self.answer[self.given_out + depth as usize];
            self.logits[row * VOCAB_SIZE + token.0 as usize] = 1.0;
        }
        let accepted = self.drafter.accept(&mut self.logits).unwrap();
        self.given_out += accepted.token_ids.len();
        if self.given_out + ROWS >= self.answer.len() {
            self.drafter.begin(&self.answer[..1_000], self.answer.len()).unwrap();
            self.given_out = 1_000;
        }
        elapsed
    }
}

fn propose(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("propose_with_history");
    group.sample_size(20);
    for &len in lengths() {
        let file = Index::new(len);
        for sources in [&[][..], &["automaton"]] {
            let name = if sources.is_empty() { "history" } else { "automaton+history" };
            let mut replay = Replay::new(&file, len, sources);
            group.bench_function(BenchmarkId::new(name, len), |bencher| {
                bencher.iter_custom(|steps| (0..steps).map(|_| replay.propose()).sum());
            });
        }
    }
}

criterion_group!(benches, build, open, follow, propose);
criterion_main!(benches);
