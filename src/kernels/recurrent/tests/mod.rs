//! Against twins that compute a path from its first token, after random histories: trees, of which
//! some path is committed, prompts that are read at once or in parts, runs that fail and are repeated;
//! every processor, order of tasks and number of sequences.

mod layers;
mod refusals;
mod twin;

use proptest::prelude::*;

use self::layers::{Convolution, Delta, Selective};
use super::*;
use crate::kernels::{Processor, exp};

/// Nodes that updates are kept of.
const CAPACITY: usize = 24;

/// What a layer reads of a token: its row, and what else it is projected to.
type Token = [Vec<f32>; 2];

trait Layer: Sized {
    fn random(random: &mut Random) -> Self;
    fn token(&self, random: &mut Random) -> Token;
    fn sizes(&self) -> Sizes;
    /// Numbers of a row that is given.
    fn outputs(&self) -> usize;
    /// Computes all tokens' rows.
    fn run(&self, run: &Run, tokens: &[Token], way: Way, given: *mut f32);
    /// What the last token of a path gives.
    fn twin(&self, path: &[&Token]) -> Vec<f32>;
    /// The same in float64, by another formula.
    fn exact(&self, path: &[&Token]) -> Vec<f64>;
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn number(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.number() * size).collect()
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn way(&mut self) -> Way {
        let (padding, backwards) = (self.below(3), self.below(2) == 0);
        Way { processor: self.of(&Processor::all()), padding, backwards }
    }
}

/// How a run is computed.
#[derive(Clone, Copy, Debug)]
struct Way {
    processor: Processor,
    padding: usize,
    backwards: bool,
}

impl Way {
    fn order(self, tasks: usize) -> Vec<usize> {
        let order = 0..tasks;
        if self.backwards { order.rev().collect() } else { order.collect() }
    }
}

/// Nodes of several sequences, and their tokens.
#[derive(Clone, Default)]
struct Trees {
    parents: Vec<i32>,
    sequences: Vec<i32>,
    tokens: Vec<Token>,
}

impl Trees {
    /// A node's path, the root first.
    fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while let Ok(parent) = usize::try_from(self.parents[path[path.len() - 1]]) {
            path.push(parent);
        }
        path.reverse();
        path
    }
}

/// A layer with its buffers, and what was committed.
struct Session<'a, T> {
    layer: &'a T,
    /// Of the buffers.
    sizes: Sizes,
    /// Of 8 bytes, so that headers are aligned.
    states: Vec<u64>,
    updates: Vec<u64>,
    committed: Vec<Vec<Token>>,
    pending: Vec<i32>,
}

impl<'a, T: Layer> Session<'a, T> {
    fn new(layer: &'a T, sequences: usize) -> Self {
        let sizes = layer.sizes();
        let states = vec![0; half_bytes(sizes.state) / 4 * sequences];
        let updates = vec![0; updates_bytes(CAPACITY, sizes.update) / 4];
        let committed = vec![Vec::new(); sequences];
        Self { layer, sizes, states, updates, committed, pending: Vec::new() }
    }

    /// A run's contract.
    fn begin(
        &mut self,
        trees: &Trees,
        reads: &[i32],
        span: [i32; 2],
    ) -> Result<Run, RecurrentError> {
        let sizes = self.sizes;
        let lengths: Vec<i32> = self.committed.iter().map(|tokens| tokens.len() as i32).collect();
        let tree = Tree {
            parents: &trees.parents,
            sequences: &trees.sequences,
            lengths: &lengths,
            span,
            reads,
            pending: &self.pending,
        };
        let (states, updates) = (self.states.as_mut_ptr(), self.updates.as_mut_ptr());
        // SAFETY: they are as large.
        let (states, updates) = unsafe {
            (
                States::new(states.cast(), self.committed.len(), half_bytes(sizes.state)),
                Updates::new(updates.cast(), updates_bytes(CAPACITY, sizes.update)),
            )
        };
        Run::new(tree, trees.parents.len(), self.layer.sizes(), states, updates)
    }

    /// Computes some nodes: what each gives.
    fn part(
        &mut self,
        trees: &Trees,
        reads: &[i32],
        [first, end]: [usize; 2],
        way: Way,
    ) -> Vec<Vec<f32>> {
        let run = self.begin(trees, reads, [first as i32, (end - first) as i32]).unwrap();
        let mut tokens = trees.tokens[first..end].to_vec();
        for _ in 0..way.padding {
            tokens.push(tokens[0].clone().map(|numbers| vec![f32::NAN; numbers.len()]));
        }
        let outputs = self.layer.outputs();
        let mut given = vec![f32::NAN; tokens.len() * outputs];
        self.layer.run(&run, &tokens, way, given.as_mut_ptr());
        // SAFETY: all is computed.
        unsafe { run.finish() };
        assert!(given[(end - first) * outputs..].iter().all(|x| x.is_nan()), "padding is left");
        given.chunks(outputs).take(end - first).map(<[f32]>::to_vec).collect()
    }

    /// Computes all nodes, in parts that end before those of `cuts`.
    fn run(&mut self, trees: &Trees, reads: &[i32], cuts: &[usize], way: Way) -> Vec<Vec<f32>> {
        let ends = [&[0], cuts, &[trees.parents.len()]].concat();
        let parts = ends.windows(2).filter(|part| part[0] < part[1]);
        parts.flat_map(|part| self.part(trees, reads, [part[0], part[1]], way)).collect()
    }

    /// The tokens of a node's path, the committed ones first.
    fn path<'t>(&'t self, trees: &'t Trees, node: usize) -> Vec<&'t Token> {
        let committed = &self.committed[trees.sequences[node] as usize];
        committed
            .iter()
            .chain(trees.path(node).into_iter().map(|node| &trees.tokens[node]))
            .collect()
    }

    /// A sequence's state, `(2, bytes)`.
    fn state(&mut self, sequence: usize) -> &mut [u8] {
        let size = 2 * half_bytes(self.layer.sizes().state);
        let (_, bytes, _) = unsafe { self.states.align_to_mut::<u8>() };
        &mut bytes[sequence * size..][..size]
    }

    /// Trees of drafted sequences, chains of read ones; none of some.
    fn trees(&self, random: &mut Random, reads: &[i32]) -> Trees {
        let mut trees = Trees::default();
        let chains = random.below(8);
        for _ in 0..1 + random.below(CAPACITY / 2) {
            let sequence = random.below(reads.len()) as i32;
            let all = 0..trees.parents.len() as i32;
            let of_it: Vec<i32> =
                all.filter(|node| trees.sequences[*node as usize] == sequence).collect();
            trees.parents.push(match of_it.last() {
                None => -1,
                Some(&last) if reads[sequence as usize] != 0 || random.below(8) < chains => last,
                _ => [&[-1], of_it.as_slice()].concat()[random.below(of_it.len() + 1)],
            });
            trees.sequences.push(sequence);
            trees.tokens.push(self.layer.token(random));
        }
        trees
    }

    /// Commits what was read, and some path of each tree.
    fn commit(&mut self, random: &mut Random, trees: &Trees, reads: &[i32]) {
        self.pending.clear();
        for (sequence, is_read) in reads.iter().enumerate() {
            let all = 0..trees.parents.len();
            let of_it: Vec<usize> =
                all.filter(|node| trees.sequences[*node] as usize == sequence).collect();
            if of_it.is_empty() || *is_read == 0 && random.below(5) == 0 {
                continue;
            }
            let last = of_it[random.below(of_it.len())];
            let path = if *is_read == 0 { trees.path(last) } else { of_it };
            self.committed[sequence].extend(path.iter().map(|node| trees.tokens[*node].clone()));
            if *is_read == 0 {
                self.pending.extend(path.iter().map(|node| *node as i32));
                self.pending.push(-1);
            }
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn cuts(random: &mut Random, num_nodes: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..random.below(3)).map(|_| random.below(num_nodes + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// A history of some runs, of which each may fail first; then each state beside that of a session in
/// which every token was a step of one row.
fn check<T: Layer + std::fmt::Debug>(seed: u64) -> Result<(), TestCaseError> {
    let mut random = Random(seed);
    let layer = T::random(&mut random);
    let num_sequences = 1 + random.below(3);
    let mut session = Session::new(&layer, num_sequences);
    for _ in 0..4 {
        let reads: Vec<i32> = (0..num_sequences).map(|_| (random.below(4) / 3) as i32).collect();
        if random.below(3) == 0 {
            fail(&mut session, &mut random, &reads);
        }
        let trees = session.trees(&mut random, &reads);
        let num_nodes = trees.parents.len();
        let (cuts, way) = (cuts(&mut random, num_nodes), random.way());
        let given = session.run(&trees, &reads, &cuts, way);
        for _ in 0..3 {
            let node = random.below(num_nodes);
            let expected = layer.twin(&session.path(&trees, node));
            let given = bits(&given[node]);
            prop_assert_eq!(given, bits(&expected), "{:?} {:?} {}", layer, way, node);
        }
        session.commit(&mut random, &trees, &reads);
    }
    settle(&mut session, &mut random);
    for sequence in 0..num_sequences {
        let mut single = Session::new(&layer, 1);
        for token in session.committed[sequence].clone() {
            let trees = Trees { parents: vec![-1], sequences: vec![0], tokens: vec![token] };
            single.run(&trees, &[0], &[], random.way());
            single.committed[0].extend(trees.tokens);
            single.pending = vec![0];
        }
        settle(&mut single, &mut random);
        let half = half_bytes(layer.sizes().state);
        let is_same = session.state(sequence)[..half] == single.state(0)[..half];
        prop_assert!(is_same, "{:?}, sequence {}", layer, sequence);
    }
    Ok(())
}

/// A run whose rows nobody commits, as if it had failed in a layer behind; what was read is undone.
fn fail<T: Layer>(session: &mut Session<'_, T>, random: &mut Random, reads: &[i32]) {
    let trees = session.trees(random, reads);
    let cuts = cuts(random, trees.parents.len());
    session.run(&trees, reads, &cuts, random.way());
    for (sequence, reads) in reads.iter().enumerate() {
        let length = session.committed[sequence].len() as i64;
        let is_read = *reads != 0 && trees.sequences.contains(&(sequence as i32));
        let state = session.state(sequence);
        assert_eq!(undo(state, length), Ok(is_read));
        assert!(applied(state) <= length);
    }
}

/// Applies what is pending: a step whose row nobody commits.
fn settle<T: Layer>(session: &mut Session<'_, T>, random: &mut Random) {
    let tokens = vec![session.layer.token(random)];
    let trees = Trees { parents: vec![-1], sequences: vec![0], tokens };
    let reads = vec![0; session.committed.len()];
    session.run(&trees, &reads, &[], random.way());
}

proptest! {
    // Four trees each.
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_convolution_has_the_bits_of_its_path(seed: u64) {
        check::<Convolution>(seed)?;
    }

    #[test]
    fn a_delta_rule_has_the_bits_of_its_path(seed: u64) {
        check::<Delta>(seed)?;
    }

    #[test]
    fn a_selective_update_has_the_bits_of_its_path(seed: u64) {
        check::<Selective>(seed)?;
    }
}

/// Each node of a tree beside the formulas of transformers in float64.
fn near_the_formula<T: Layer>(layer: &T, random: &mut Random) {
    let mut session = Session::new(layer, 2);
    for _ in 0..3 {
        let trees = session.trees(random, &[0, 0]);
        let given = session.run(&trees, &[0, 0], &[], random.way());
        for (node, row) in given.iter().enumerate() {
            let exact = layer.exact(&session.path(&trees, node));
            let largest = exact.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
            for (got, wanted) in row.iter().zip(exact) {
                let error = (f64::from(*got) - wanted).abs();
                assert!(error < 1e-5 * largest, "{got} for {wanted}");
            }
        }
        session.commit(random, &trees, &[0, 0]);
    }
}

#[test]
fn layers_are_those_of_transformers() {
    for seed in 0..40 {
        let random = &mut Random(seed);
        let heads = Heads { key_heads: 2, heads: 4, keys: 16, values: 32 };
        near_the_formula(&Convolution::random(random), random);
        near_the_formula(&Delta::of(random, heads), random);
        near_the_formula(&Selective::of(random, heads), random);
    }
}

/// Checksums of trees: bits that do not hang on the processor, the system or the compiler.
fn checksum<T: Layer>(layer: &T, seed: u64, processor: Processor) -> u32 {
    let random = &mut Random(seed);
    let mut session = Session::new(layer, 2);
    let mut checksum = crc32fast::Hasher::new();
    for reads in [[0, 1], [0, 0], [1, 0], [0, 0], [0, 0]] {
        let trees = session.trees(random, &reads);
        let way = Way { processor, padding: 1, backwards: false };
        for number in session.run(&trees, &reads, &[], way).concat() {
            checksum.update(&number.to_bits().to_le_bytes());
        }
        session.commit(random, &trees, &reads);
    }
    checksum.finalize()
}

#[test]
fn bits_are_those_of_every_machine() {
    let random = &mut Random(3);
    let convolution = Convolution::of(random, 300, 4);
    let delta = Delta::of(random, Heads { key_heads: 2, heads: 4, keys: 24, values: 40 });
    let selective = Selective::of(random, Heads { key_heads: 2, heads: 4, keys: 24, values: 40 });
    for processor in Processor::all() {
        let found = [
            checksum(&convolution, 0, processor),
            checksum(&delta, 1, processor),
            checksum(&selective, 2, processor),
        ];
        assert_eq!(found, CHECKSUMS, "on {}: {found:#010x?}", processor.name());
    }
}

const CHECKSUMS: [u32; 3] = [0x7729_a63f, 0xd9a7_6d50, 0xd558_cac4];

#[test]
fn functions_are_near_the_true_ones() {
    use crate::kernels::lanes::{Lanes, Portable};
    for index in 0..20_000 {
        let x = -80.0 + 160.0 * index as f32 / 20_000.0;
        let of = |function: unsafe fn([f32; 16]) -> [f32; 16]| {
            // SAFETY: any processor runs plain Rust.
            unsafe { f64::from(function(Portable::splat(x))[3]) }
        };
        let power = f64::from(x).exp();
        let wanted =
            [power, power / (1.0 + power), f64::from(x) * power / (1.0 + power), power.ln_1p()];
        let found = [
            of(exp::exponential::<Portable>),
            of(exp::sigmoid::<Portable>),
            of(exp::silu::<Portable>),
            of(exp::softplus::<Portable>),
        ];
        for (found, wanted) in found.into_iter().zip(wanted) {
            assert!((found - wanted).abs() <= 6e-6 * wanted.abs(), "{x}: {found} for {wanted}");
        }
    }
}

#[test]
fn a_state_that_was_saved_comes_back() {
    let random = &mut Random(5);
    let layer = Delta::random(random);
    let mut session = Session::new(&layer, 2);
    let trees = session.trees(random, &[1, 1]);
    session.run(&trees, &[1, 1], &[], random.way());
    session.commit(random, &trees, &[1, 1]);
    let half = half_bytes(layer.sizes().state);
    let saved = session.state(1)[..half].to_vec();
    let length = session.committed[1].len();
    assert_eq!(applied(&saved), length as i64);
    let more = session.trees(random, &[1, 1]);
    session.run(&more, &[1, 1], &[], random.way());
    restore(session.state(1), &saved).unwrap();
    assert_eq!(session.state(1)[..half], saved);
    let wrong = undo(session.state(1), 0).unwrap_err();
    let message =
        format!("there is no way back to 0 tokens: the state is of {length}, the one before of -1");
    assert_eq!(wrong.to_string(), message);
    assert!(restore(session.state(1), &saved[1..]).is_err());
}
