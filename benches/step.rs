//! What a step costs beside the model: propose, fill and accept; and the filling alone, where a mask
//! takes the place of paths, as on an NPU.
//!
//! `cargo bench --bench step`. A recorded text plays the target, so that drafts are accepted as
//! often as lookups deserve.

mod text;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use coordgen_rs::commit::CommitPolicy;
use coordgen_rs::draft::choose::drafter::{Drafter, DrafterOptions};
use coordgen_rs::draft::choose::step_choice::{StepChoice, StepShape};
use coordgen_rs::draft::choose::tree_shape::TreeShape;
use coordgen_rs::draft::methods::source_named;
use coordgen_rs::ids::TokenId;
use coordgen_rs::tree::draft_tree::DraftTree;
use coordgen_rs::tree::step_inputs::{MASKED, PathBuffers, StepBuffers, StepInputs, VISIBLE};

const LENGTHS: [usize; 3] = [1_000, 100_000, 1_000_000];
/// Rows of the step, and so nodes of the tree.
const ROWS: usize = 16;
const ATTENDED: usize = 4_352;
/// Small, so that the argmax over the vocabulary does not hide the rest.
const VOCAB_SIZE: usize = 4_096;

/// What a step reads: a mask or a path, the other one empty.
#[derive(Default)]
struct Buffers {
    input_ids: Vec<i64>,
    position_ids: Vec<i64>,
    mask: Vec<f32>,
    parents: Vec<i32>,
    lengths: Vec<i32>,
    span: Vec<i32>,
}

impl Buffers {
    fn with_path(rows: usize, attended: usize) -> Self {
        let (input_ids, position_ids) = (vec![0; rows], vec![0; rows]);
        let (parents, lengths, span) = (vec![0; attended], vec![0], vec![0; 2]);
        Self { input_ids, position_ids, parents, lengths, span, ..Self::default() }
    }

    fn with_mask(rows: usize, attended: usize) -> Self {
        let (input_ids, position_ids) = (vec![0; rows], vec![0; rows]);
        Self { input_ids, position_ids, mask: vec![0.0; rows * attended], ..Self::default() }
    }

    fn lend(&mut self) -> StepBuffers<'_> {
        let Self { input_ids, position_ids, mask, parents, lengths, span } = self;
        let path = PathBuffers { parents, lengths, span };
        StepBuffers { input_ids, position_ids, mask, path }
    }
}

/// A request whose target says a recorded answer; it starts again when the answer is over.
struct Replay {
    prompt: Vec<TokenId>,
    drafter: Drafter,
    inputs: StepInputs,
    buffers: Buffers,
    answer: Vec<TokenId>,
    given_out: usize,
    logits: Vec<f32>,
}

impl Replay {
    fn new(prompt_len: usize) -> Self {
        let answer_len = (prompt_len / 10).max(1_000);
        let mut prompt = text::text(prompt_len + answer_len, VOCAB_SIZE as u32);
        let answer = prompt.split_off(prompt_len);
        let shape = StepShape { rows: ROWS, attended: ATTENDED };
        let options = DrafterOptions {
            steps: StepChoice::new(vec![shape], None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: Vec::new(),
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(vec![source_named("automaton").unwrap()], options).unwrap();
        drafter.begin(&prompt, answer.len()).unwrap();
        let inputs = StepInputs::new(ROWS, ATTENDED).unwrap().with_path();
        let buffers = Buffers::with_path(ROWS, ATTENDED);
        let logits = vec![0.0; ROWS * VOCAB_SIZE];
        Self { prompt, drafter, inputs, buffers, answer, given_out: 0, logits }
    }

    fn coming(&self, depth: u32) -> TokenId {
        self.answer[self.given_out + depth as usize]
    }

    /// One step; returns the time of propose, fill and accept, without that of the target.
    fn step(&mut self) -> Duration {
        let past_len = self.given_out % (ATTENDED - ROWS);
        let start = Instant::now();
        self.drafter.propose(past_len).unwrap();
        self.inputs.fill(self.drafter.tree(), past_len, self.buffers.lend()).unwrap();
        let proposing = start.elapsed();

        self.logits.fill(0.0);
        for (row, &depth) in self.drafter.tree().depths().iter().enumerate() {
            let token = self.coming(depth);
            self.logits[row * VOCAB_SIZE + token.0 as usize] = 1.0;
        }
        let start = Instant::now();
        let accepted = self.drafter.accept(&mut self.logits).unwrap();
        let accepting = start.elapsed();
        for (depth, &token) in accepted.token_ids.iter().enumerate() {
            assert_eq!(token, self.coming(depth as u32));
        }
        self.given_out += accepted.token_ids.len();
        if self.given_out == self.answer.len() {
            self.drafter.begin(&self.prompt, self.answer.len()).unwrap();
            self.given_out = 0;
        }
        proposing + accepting
    }
}

fn propose_and_accept(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("propose_fill_accept");
    for len in LENGTHS {
        let mut replay = Replay::new(len);
        group.bench_function(BenchmarkId::from_parameter(len), |bencher| {
            bencher.iter_custom(|steps| (0..steps).map(|_| replay.step()).sum());
        });
    }
}

fn fill_with_a_mask(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fill_with_a_mask");
    for attended in LENGTHS {
        let tokens = [TokenId(1); ROWS];
        let parents: [u32; ROWS] = std::array::from_fn(|node| node.saturating_sub(1) as u32 / 2);
        let tree = DraftTree::from_arrays(&tokens, &parents).unwrap();
        let mut inputs = StepInputs::new(ROWS, attended).unwrap();
        let mut buffers = Buffers::with_mask(ROWS, attended);
        let mut past_len = 0;
        group.bench_function(BenchmarkId::from_parameter(attended), |bencher| {
            bencher.iter(|| {
                past_len = (past_len + 3) % (attended - ROWS);
                inputs.fill(&tree, past_len, buffers.lend()).unwrap();
            });
            let last = &buffers.mask[(ROWS - 1) * attended..];
            let path = [0, 1, 3, 7, 15].map(|node| past_len + node);
            for (slot, &entry) in last.iter().enumerate() {
                let sees = slot < past_len || path.contains(&slot);
                assert_eq!(entry, if sees { VISIBLE } else { MASKED });
            }
        });
    }
}

criterion_group!(benches, propose_and_accept, fill_with_a_mask);
criterion_main!(benches);
