//! Against a twin that takes one row at a time and position after position, and one in float64; each
//! processor, cut and tree against all others. What a cache holds is rounded by a table of all
//! float16, and by division.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::kernels::nodes::TILE;
use crate::kernels::{Processor, Workspace, exp};

const FORMS: [CacheType; 3] = [CacheType::Float32, CacheType::Float16, CacheType::Integer8];

/// A few numbers of a layer that say what it is.
#[derive(Clone, Copy, Debug)]
struct Kind {
    layer: Layer,
    cache_type: CacheType,
    rotated: usize,
    with_norms: bool,
    with_value_norm: bool,
    with_sinks: bool,
}

/// What a layer multiplies with.
struct Weights {
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
    value_norm: Vec<f32>,
    sinks: Vec<f32>,
}

/// Nodes and their tokens, and the committed tokens of each sequence.
struct Trees {
    parents: Vec<i32>,
    sequences: Vec<i32>,
    lengths: Vec<i32>,
    /// Of each node.
    tokens: Vec<Token>,
    /// Of each sequence and position: keys and values, which the cache holds rounded.
    committed: Vec<Vec<[Vec<f32>; 2]>>,
}

/// A node's row, and its angles.
#[derive(Clone)]
struct Token {
    row: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
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

    fn kind(&mut self) -> Kind {
        let head_dim = self.of(&[8, 10, 16, 24, 34]);
        let kv_heads = 1 + self.below(2);
        let layer = Layer {
            heads: kv_heads * (1 + self.below(3)),
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: self.of(&[0.0, 0.0, 2.5]),
            window: self.of(&[0, 0, 1, 7, 64, 70]),
            interleaved: self.below(2) == 0,
            epsilon: 1e-5,
            shares_keys: false,
            has_values: true,
        };
        let rotated = self.of(&[head_dim, head_dim, head_dim / 4 * 2, 0]);
        let (with_norms, with_sinks) = (self.below(2) == 0, self.below(3) == 0);
        let cache_type = self.of(&FORMS);
        Kind { layer, cache_type, rotated, with_norms, with_value_norm: false, with_sinks }
    }

    fn weights(&mut self, Kind { layer, .. }: Kind) -> Weights {
        let [query_norm, key_norm] = [0; 2].map(|_| self.numbers(layer.head_dim, 3.0));
        let sinks = self.numbers(layer.heads, 2.0);
        let value_norm = key_norm.iter().map(|weight| 1.0 - weight).collect();
        Weights { query_norm, key_norm, value_norm, sinks }
    }

    fn trees(&mut self, kind: Kind, most_nodes: usize, most_committed: usize) -> Trees {
        let num_sequences = 1 + self.below(3);
        let lengths: Vec<i32> =
            (0..num_sequences).map(|_| self.below(most_committed + 1) as i32).collect();
        let (mut parents, mut sequences) = (Vec::<i32>::new(), Vec::<i32>::new());
        // How likely a node follows the last one of its sequence.
        let chains = self.below(8);
        for _ in 0..1 + self.below(most_nodes) {
            let sequence = self.below(num_sequences) as i32;
            let of_it: Vec<i32> = (0..parents.len() as i32)
                .filter(|node| sequences[*node as usize] == sequence)
                .collect();
            parents.push(match of_it.last() {
                None => -1,
                Some(&last) if self.below(8) < chains => last,
                _ => [&[-1], of_it.as_slice()].concat()[self.below(of_it.len() + 1)],
            });
            sequences.push(sequence);
        }
        let tokens = (0..parents.len()).map(|_| self.token(kind)).collect();
        let size = kind.layer.kv_heads * kind.layer.head_dim;
        let committed = lengths
            .iter()
            .map(|&length| (0..length).map(|_| [0; 2].map(|_| self.numbers(size, 2.0))).collect())
            .collect();
        Trees { parents, sequences, lengths, tokens, committed }
    }

    fn token(&mut self, Kind { layer, rotated, .. }: Kind) -> Token {
        let (sin, cos) = (0..rotated / 2).map(|_| (self.number() * 4.0).sin_cos()).unzip();
        Token { row: self.numbers(layer.columns(), 2.0), cos, sin }
    }
}

impl Trees {
    /// The nodes of a path, the root first.
    fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        while let Ok(parent) = usize::try_from(self.parents[path[path.len() - 1]]) {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// The trees with one sequence's path alone, as a chain, at another place of the batch.
    fn chain(&self, node: usize) -> Self {
        let path = self.path(node);
        let sequence = self.sequences[node] as usize;
        Self {
            parents: (-1..path.len() as i32 - 1).collect(),
            sequences: vec![1; path.len()],
            lengths: vec![0, self.lengths[sequence]],
            tokens: path.iter().map(|node| self.tokens[*node].clone()).collect(),
            committed: vec![Vec::new(), self.committed[sequence].clone()],
        }
    }
}

/// How a step is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    processor: Processor,
    units: usize,
    spare_slots: usize,
    /// Bytes before the caches, which stand anywhere.
    bytes_before: usize,
    padding: usize,
    rows_per_write: usize,
    backwards: bool,
}

/// Runs all nodes, in parts that end before the nodes of `cuts`: what each attends to.
fn run(kind: Kind, weights: &Weights, trees: &Trees, cuts: &[usize], way: Way) -> Vec<Vec<f32>> {
    let layer = kind.layer;
    let (dim, num_nodes) = (layer.head_dim, trees.parents.len());
    let most_committed = *trees.lengths.iter().max().expect("there are sequences") as usize;
    let slots = most_committed + num_nodes + way.spare_slots;
    // What nobody has written may be anything.
    let stale = [f32::NAN, f32::INFINITY, 3.0e38, 1.0].map(f32::to_ne_bytes);
    let stale = |index: usize| stale.as_flattened()[index % size_of_val(&stale)];
    let (before, row_bytes) = (way.bytes_before, kind.cache_type.row_bytes(dim));
    let size = before + trees.lengths.len() * layer.kv_heads * slots * row_bytes;
    let mut caches: [Vec<u8>; 2] = [0; 2].map(|_| (0..size).map(stale).collect());
    for (sequence, tokens) in trees.committed.iter().enumerate() {
        for (slot, token) in tokens.iter().enumerate() {
            for (cache, numbers) in caches.iter_mut().zip(token) {
                for (kv_head, numbers) in numbers.chunks(dim).enumerate() {
                    let row = (sequence * layer.kv_heads + kv_head) * slots + slot;
                    let at = before + row * row_bytes;
                    cache[at..at + row_bytes].copy_from_slice(&stored(kind.cache_type, numbers));
                }
            }
        }
    }
    let [key, value] = &mut caches;
    let (key, value) = (key[before..].as_mut_ptr(), value[before..].as_mut_ptr());
    let cache = Cache { key, value, slots, cache_type: kind.cache_type };
    let mut given = Vec::new();
    for part in [&[0], cuts, &[num_nodes]].concat().windows(2) {
        let (first, real) = (part[0], part[1] - part[0]);
        if real == 0 {
            continue;
        }
        let rows = real + way.padding;
        let padded = |of: fn(&Token) -> &Vec<f32>| {
            let mut all: Vec<f32> =
                trees.tokens[first..first + real].iter().flat_map(|t| of(t).clone()).collect();
            all.resize(all.len() / real * rows, f32::NAN);
            all
        };
        let (x, cos, sin) = (padded(|t| &t.row), padded(|t| &t.cos), padded(|t| &t.sin));
        let inputs = Inputs {
            rows: &x,
            cos: &cos,
            sin: &sin,
            query_norm: kind.with_norms.then_some(&weights.query_norm),
            key_norm: kind.with_norms.then_some(&weights.key_norm),
            value_norm: kind.with_value_norm.then_some(&weights.value_norm),
            sinks: kind.with_sinks.then_some(&weights.sinks),
        };
        let span = [first as i32, real as i32];
        let nodes = Nodes::new(&trees.parents, &trees.sequences, &trees.lengths, span, rows, slots)
            .expect("the trees are right");
        let width = layer.heads * dim;
        let mut attended = vec![f32::NAN; rows * width];
        let to = attended.as_mut_ptr();
        let step = Step::new(layer, inputs, &nodes, rows, cache, to, way.units)
            .expect("the sizes are right");
        let mut workspace = Workspace::default();
        let mut tasks: Vec<usize> = (0..step.num_tasks()).collect();
        if way.backwards {
            tasks.reverse();
        }
        // SAFETY: all have their sizes, and there is one thread.
        unsafe {
            for first in (0..real).step_by(way.rows_per_write) {
                write_keys(way.processor, &step, first..real.min(first + way.rows_per_write));
            }
            for task in tasks {
                attend_task(way.processor, &step, task, &mut workspace);
            }
        }
        given.extend(attended.chunks(width).take(real).map(<[f32]>::to_vec));
    }
    given
}

/// All float16 that are positive and finite, ascending.
static HALVES: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let half = |bits: i32| match (bits >> 10, f64::from(bits & 0x3ff)) {
        (0, rest) => rest * 2f64.powi(-24),
        (exponent, rest) => (1.0 + rest / 1024.0) * 2f64.powi(exponent - 15),
    };
    (0..0x7c00).map(half).collect()
});

/// The row of a head in a cache.
fn stored(cache_type: CacheType, x: &[f32]) -> Vec<u8> {
    match cache_type {
        CacheType::Float32 => x.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        CacheType::Float16 => x.iter().flat_map(|x| nearest_half(*x).to_ne_bytes()).collect(),
        CacheType::Integer8 => {
            let largest = x.iter().fold(0.0, |most: f32, x| match x.is_nan() || most.is_nan() {
                true => f32::NAN,
                false => most.max(x.abs()),
            });
            let integer = |x: &f32| (x * (127.0 / largest)).round_ties_even() as i8 as u8;
            let scale = (largest / 127.0).to_ne_bytes();
            x.iter().map(integer).chain(scale).collect()
        }
    }
}

fn nearest_half(x: f32) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    if !x.is_finite() {
        return sign | if x.is_nan() { 0x7e00 } else { 0x7c00 };
    }
    let size = f64::from(x.abs());
    let above = HALVES.partition_point(|half| *half < size).min(HALVES.len() - 1);
    let below = above.saturating_sub(1);
    let (up, down) = (HALVES[above] - size, size - HALVES[below]);
    sign | if up < down || up == down && above % 2 == 0 { above } else { below } as u16
}

/// What a cache holds of a head's numbers.
fn rounded(cache_type: CacheType, x: &[f32]) -> Vec<f32> {
    let row = stored(cache_type, x);
    let half = |bytes: [u8; 2]| {
        let half = u16::from_ne_bytes(bytes);
        let size = match half & 0x7fff {
            0x7c00 => f32::INFINITY,
            bits => HALVES.get(usize::from(bits)).map_or(f32::NAN, |size| *size as f32),
        };
        if half & 0x8000 == 0 { size } else { -size }
    };
    match cache_type {
        CacheType::Float32 => x.to_vec(),
        CacheType::Float16 => row.as_chunks().0.iter().map(|bytes| half(*bytes)).collect(),
        CacheType::Integer8 => {
            let (integers, scale) = row.split_last_chunk().expect("there is a scale");
            let scale = f32::from_ne_bytes(*scale);
            integers.iter().map(|integer| f32::from(*integer as i8) * scale).collect()
        }
    }
}

/// A twin's number: float32 with the kernel's powers, or float64 with the true ones.
trait Number: Copy + PartialOrd + From<f32> {
    fn fused(self, by: Self, plus: Self) -> Self;
    fn times(self, by: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn root(self) -> Self;
    /// Of two.
    fn power(self) -> Self;
    fn log2_e() -> Self;
    fn tanh(self) -> Self;
}

impl Number for f64 {
    fn fused(self, by: Self, plus: Self) -> Self {
        self * by + plus
    }
    fn times(self, by: Self) -> Self {
        self * by
    }
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn over(self, other: Self) -> Self {
        self / other
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn power(self) -> Self {
        self.exp2()
    }
    fn log2_e() -> Self {
        std::f64::consts::LOG2_E
    }
    fn tanh(self) -> Self {
        f64::tanh(self)
    }
}

impl Number for f32 {
    fn fused(self, by: Self, plus: Self) -> Self {
        self.mul_add(by, plus)
    }
    fn times(self, by: Self) -> Self {
        self * by
    }
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn over(self, other: Self) -> Self {
        self / other
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn power(self) -> Self {
        let digits = self.round_ties_even();
        if digits <= -127.0 {
            return 0.0;
        }
        let rest = self - digits;
        let factors = [9.671_763e-3, 5.550_891_5e-2, 2.402_223_6e-1, 6.931_468e-1, 1.0];
        let power =
            factors.into_iter().fold(1.322_570_7e-3f32, |power, next| power.mul_add(rest, next));
        power * 2f32.powi(digits as i32)
    }
    fn log2_e() -> Self {
        std::f32::consts::LOG2_E
    }
    fn tanh(self) -> Self {
        let double = 2.0 * std::f32::consts::LOG2_E * self;
        -2.0 / (1.0 + Number::power(if double > 126.0 { 126.0 } else { double })) + 1.0
    }
}

/// The sum of a sum's lanes.
fn total<N: Number>(lanes: [N; 16]) -> N {
    let one = N::from(1.0);
    let mut left = lanes.to_vec();
    while left.len() > 1 {
        let (first, second) = left.split_at(left.len() / 2);
        left = first.iter().zip(second).map(|(x, y)| x.fused(one, *y)).collect();
    }
    left[0]
}

/// A head of a row, normed.
fn normed<N: Number>(x: &[f32], norm: &[f32], epsilon: f32) -> Vec<N> {
    let mut x: Vec<N> = x.iter().map(|x| N::from(*x)).collect();
    let mut lanes = [N::from(0.0); 16];
    for (index, x) in x.iter().enumerate() {
        lanes[index % 16] = x.fused(*x, lanes[index % 16]);
    }
    let mean = total(lanes).over(N::from(x.len() as f32));
    let root = mean.fused(N::from(1.0), N::from(epsilon)).root();
    let factor = N::from(1.0).over(root);
    for (x, weight) in x.iter_mut().zip(norm) {
        *x = x.times(factor).times(N::from(*weight));
    }
    x
}

/// A head of a row, normed and rotated.
fn prepared<N: Number>(kind: Kind, x: &[f32], norm: &[f32], token: &Token) -> Vec<N> {
    let mut x: Vec<N> = match kind.with_norms {
        true => normed(x, norm, kind.layer.epsilon),
        false => x.iter().map(|x| N::from(*x)).collect(),
    };
    for angle in 0..kind.rotated / 2 {
        let (one, other) = match kind.layer.interleaved {
            true => (2 * angle, 2 * angle + 1),
            false => (angle, angle + kind.rotated / 2),
        };
        let (cos, sin) = (N::from(token.cos[angle]), N::from(token.sin[angle]));
        let (first, second) = (x[one], x[other]);
        x[one] = first.fused(cos, N::from(0.0).minus(second.times(sin)));
        x[other] = second.fused(cos, first.times(sin));
    }
    x
}

/// What a node attends to.
fn twin<N: Number>(kind: Kind, weights: &Weights, trees: &Trees, node: usize) -> Vec<N> {
    let (layer, dim) = (kind.layer, kind.layer.head_dim);
    let path = trees.path(node);
    let token = &trees.tokens[node];
    let mut attended = Vec::new();
    for head in 0..layer.heads {
        let kv_head = head / (layer.heads / layer.kv_heads);
        let of = |numbers: &[f32], head: usize| numbers[head * dim..(head + 1) * dim].to_vec();
        let numbers =
            |x: Vec<f32>| rounded(kind.cache_type, &x).into_iter().map(N::from).collect::<Vec<N>>();
        let mut query: Vec<N> = prepared(kind, &of(&token.row, head), &weights.query_norm, token);
        let bounded = layer.softcap != 0.0;
        let bound = if bounded { N::from(1.0 / layer.softcap) } else { N::log2_e() };
        let factor = N::from(layer.scale).times(bound);
        query.iter_mut().for_each(|number| *number = number.times(factor));
        let committed = &trees.committed[trees.sequences[node] as usize];
        let mut seen: Vec<[Vec<N>; 2]> = committed
            .iter()
            .map(|[key, value]| [numbers(of(key, kv_head)), numbers(of(value, kv_head))])
            .collect();
        seen.extend(path.iter().map(|node| {
            let token = &trees.tokens[*node];
            let key = of(&token.row, layer.heads + kv_head);
            let keys = if layer.has_values { layer.kv_heads } else { 0 };
            let value = of(&token.row, layer.heads + keys + kv_head);
            let key = match kind.cache_type {
                CacheType::Float32 => prepared(kind, &key, &weights.key_norm, token),
                // Of another number before, another one might be the nearest.
                _ => numbers(prepared::<f32>(kind, &key, &weights.key_norm, token)),
            };
            let value = match (kind.with_value_norm, kind.cache_type) {
                (false, _) => numbers(value),
                (true, CacheType::Float32) => normed(&value, &weights.value_norm, layer.epsilon),
                (true, _) => numbers(normed::<f32>(&value, &weights.value_norm, layer.epsilon)),
            };
            [key, value]
        }));
        let (zero, window) = (N::from(0.0), layer.window);
        let first = if window == 0 { 0 } else { seen.len().saturating_sub(window) };
        let (mut largest, mut sums) = (N::from(f32::NEG_INFINITY), [zero; 16]);
        if kind.with_sinks {
            largest = N::from(weights.sinks[head]).times(N::log2_e());
            sums[0] = N::from(1.0);
        }
        let mut values = vec![zero; dim];
        for tile in 0..seen.len().div_ceil(64) {
            let positions: Vec<usize> =
                (64 * tile..seen.len().min(64 * tile + 64)).filter(|at| *at >= first).collect();
            let scores: Vec<N> = positions
                .iter()
                .map(|at| {
                    let dot =
                        query.iter().zip(&seen[*at][0]).fold(zero, |sum, (q, k)| q.fused(*k, sum));
                    if !bounded {
                        return dot;
                    }
                    dot.tanh().times(N::from(layer.softcap).times(N::log2_e()))
                })
                .collect();
            if positions.is_empty() {
                continue;
            }
            let before = largest;
            for score in &scores {
                largest = if *score > largest { *score } else { largest };
            }
            if largest > before {
                let factor = before.minus(largest).power();
                sums.iter_mut().chain(&mut values).for_each(|sum| *sum = sum.times(factor));
            }
            for (at, score) in positions.iter().zip(&scores) {
                let weight = score.minus(largest).power();
                sums[at % 16] = weight.fused(N::from(1.0), sums[at % 16]);
                for (value, of_it) in values.iter_mut().zip(&seen[*at][1]) {
                    *value = weight.fused(*of_it, *value);
                }
            }
        }
        let sum = total(sums);
        attended.extend(values.into_iter().map(|value| value.over(sum)));
    }
    attended
}

/// Bits, of which those of NaN are one.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

fn way(random: &mut Random) -> Way {
    Way {
        processor: random.of(&Processor::all()),
        units: random.of(&[1, 2, 5, 16, 1000]),
        spare_slots: random.below(40),
        bytes_before: random.of(&[0, 1, 2, 64]),
        padding: random.below(3),
        rows_per_write: 1 + random.below(9),
        backwards: random.below(2) == 0,
    }
}

fn cuts(random: &mut Random, num_nodes: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..random.below(3)).map(|_| random.below(num_nodes + 1)).collect();
    cuts.sort_unstable();
    cuts
}

fn check(seed: u64, most_nodes: usize, most_committed: usize) -> Result<(), TestCaseError> {
    let mut random = Random(seed);
    let mut kind = random.kind();
    kind.with_value_norm = seed.is_multiple_of(3);
    kind.layer.has_values = !seed.is_multiple_of(4);
    let weights = random.weights(kind);
    let trees = random.trees(kind, most_nodes, most_committed);
    let num_nodes = trees.parents.len();
    let (cuts, first_way) = (cuts(&mut random, num_nodes), way(&mut random));
    let attended = run(kind, &weights, &trees, &cuts, first_way);
    for _ in 0..6 {
        let node = random.below(num_nodes);
        let expected = bits(&twin::<f32>(kind, &weights, &trees, node));
        let row = bits(&attended[node]);
        prop_assert_eq!(row, expected, "{:?} {:?}, node {}", kind, first_way, node);
    }
    let other = way(&mut random);
    let again = run(kind, &weights, &trees, &[], other);
    prop_assert_eq!(bits(&again.concat()), bits(&attended.concat()), "{:?}", other);
    let node = random.below(num_nodes);
    let chain = trees.chain(node);
    let each: Vec<usize> = (1..chain.parents.len()).collect();
    let alone = run(kind, &weights, &chain, &each, way(&mut random));
    prop_assert_eq!(bits(&alone[alone.len() - 1]), bits(&attended[node]));
    let exact = twin::<f64>(kind, &weights, &trees, node);
    for (got, wanted) in attended[node].iter().zip(exact) {
        prop_assert!((f64::from(*got) - wanted).abs() < 2e-5, "{} for {}", got, wanted);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]
    #[test]
    fn a_row_has_the_bits_of_its_path(seed: u64) {
        check(seed, 12, 90)?;
    }

    #[test]
    fn no_nodes_panic(
        parents in proptest::collection::vec(-2i32..9, 0..9),
        sequences in proptest::collection::vec(-1i32..3, 0..9),
        lengths in proptest::collection::vec(-1i32..200, 0..4),
        span in [-1i32..9, -1i32..9],
        rows in 0usize..9,
        slots in 0usize..220,
    ) {
        let made = Nodes::new(&parents, &sequences, &lengths, span, rows, slots);
        if let Ok(nodes) = made {
            for row in 0..nodes.num_rows() {
                let node = nodes.of_row(row);
                let end = node.position as usize + 1;
                let mut found = [0; TILE];
                let start = node.position as usize / TILE * TILE;
                nodes.slots(node, start..end, &mut found);
                prop_assert!(found.iter().all(|slot| (*slot as usize) < slots));
                prop_assert_eq!(found[node.position as usize % TILE], node.slot);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn so_has_a_row_of_a_large_tree(seed: u64) {
        check(seed, 150, 150)?;
    }
}

#[test]
fn heads_of_all_sizes_have_the_same_bits_everywhere() {
    for (index, head_dim) in [8, 9, 24, 80, 96, 128, 256, 512].into_iter().enumerate() {
        let mut random = Random(index as u64);
        let mut kind = random.kind();
        kind.layer.head_dim = head_dim;
        kind.layer.heads = 7 * kind.layer.kv_heads;
        kind.rotated = head_dim / 2 * 2;
        let weights = random.weights(kind);
        let trees = random.trees(kind, 30, 70);
        for cache_type in FORMS {
            let kind = Kind { cache_type, ..kind };
            let nodes = 0..trees.parents.len();
            let twins: Vec<Vec<u32>> =
                nodes.map(|node| bits(&twin::<f32>(kind, &weights, &trees, node))).collect();
            for processor in Processor::all() {
                let other = Way { processor, ..way(&mut random) };
                let rows = run(kind, &weights, &trees, &[], other);
                assert_eq!(rows.iter().map(|row| bits(row)).collect::<Vec<_>>(), twins);
            }
        }
    }
}

#[test]
fn what_is_no_number_spoils_the_paths_that_see_it() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut kind = random.kind();
        kind.layer.window = 0;
        let weights = random.weights(kind);
        let mut trees = random.trees(kind, 20, 70);
        let bad = random.below(trees.parents.len());
        let columns = kind.layer.columns();
        // In a value of the first head: seen by all of the head's queries.
        let value = (kind.layer.heads + kind.layer.kv_heads) * kind.layer.head_dim;
        let at = random.of(&[value, random.0 as usize % columns]);
        trees.tokens[bad].row[at] = f32::NAN;
        let attended = run(kind, &weights, &trees, &[], way(&mut random));
        for (node, row) in attended.iter().enumerate() {
            assert_eq!(bits(row), bits(&twin::<f32>(kind, &weights, &trees, node)));
            let sees = trees.path(node).contains(&bad);
            assert!(sees || row.iter().all(|x| x.is_finite()));
            assert!(!sees || at != value || row[0].is_nan());
        }
    }
}

#[test]
fn what_is_wrong_with_nodes_is_told() {
    let new = |parents: &[i32], sequences: &[i32], lengths: &[i32], span, rows, slots| {
        Nodes::new(parents, sequences, lengths, span, rows, slots).map(|_| ()).unwrap_err()
    };
    for (wrong, message) in [
        (new(&[0], &[0], &[3], [0, 1], 1, 9), "node 0 has the parent 0, which is no earlier node"),
        (
            new(&[-1, 2, 1], &[0; 3], &[3], [0, 3], 3, 9),
            "node 1 has the parent 2, which is no earlier node",
        ),
        (
            new(&[-2], &[0], &[3], [0, 1], 1, 9),
            "node 0 has the parent -2, which is no earlier node",
        ),
        (
            new(&[-1, 0], &[0, 1], &[3, 3], [0, 2], 2, 9),
            "node 1 is of sequence 1, but its parent of 0",
        ),
        (new(&[-1], &[1], &[3], [0, 1], 1, 9), "node 0 is of sequence 1, but there are 1"),
        (new(&[-1], &[0], &[-3], [0, 1], 1, 9), "sequence 0 has the length -3"),
        (new(&[-1, 0], &[0; 2], &[8], [0, 2], 2, 9), "node 1 needs slot 9 of 9"),
        (new(&[-1], &[0], &[3], [0, 0], 1, 9), "there is no row to compute"),
        (
            new(&[-1], &[0], &[3], [1, 1], 1, 9),
            "1 rows from node 1 on do not fit into 1 rows and 1 nodes",
        ),
        (
            new(&[-1, 0], &[0, 0], &[3], [0, 2], 1, 9),
            "2 rows from node 0 on do not fit into 1 rows and 2 nodes",
        ),
        (new(&[-1], &[0, 0], &[3], [0, 1], 1, 9), "there are 1 parents, but sequences of 2 nodes"),
    ] {
        assert_eq!(wrong.to_string(), message);
    }
}

#[test]
fn powers_are_near_the_true_ones_on_every_processor() {
    for index in 0..20_000 {
        let x = -130.0 + 256.0 * index as f32 / 20_000.0;
        let (mut power, mut tangent) = ([0.0; 16], [0.0; 16]);
        // SAFETY: any processor runs plain Rust.
        unsafe {
            use crate::kernels::lanes::Portable;
            let lanes = Portable::splat(x);
            Portable::store(power.as_mut_ptr(), exp::power::<Portable>(lanes));
            Portable::store(tangent.as_mut_ptr(), exp::tanh::<Portable>(lanes));
        }
        let wanted = f64::from(x).exp2();
        let error = (f64::from(power[0]) - wanted).abs();
        // Two units in the last place of a number.
        let unit = f64::from(f32::from_bits((wanted as f32).to_bits() & 0x7f80_0000)) / 8_388_608.0;
        assert!(error <= 2.0 * unit || x < -126.0 && power[0] < 2.4e-38, "{x}: {}", power[0]);
        assert!(x > -127.0 || power[0] == 0.0, "{x}: {}", power[0]);
        assert!((f64::from(tangent[0]) - f64::from(x).tanh()).abs() < 2.4e-7, "{x}");
    }
}

/// Checksums of steps over random trees: bits that do not hang on the processor, the system or the
/// compiler.
#[test]
fn bits_are_those_of_every_machine() {
    for (seed, expected) in (0..).zip(CHECKSUMS) {
        let mut random = Random(seed);
        let kind = random.kind();
        let weights = random.weights(kind);
        let mut trees = random.trees(kind, 40, 150);
        for token in &mut trees.tokens {
            // Sines are the system's.
            token.cos = random.numbers(kind.rotated / 2, 1.0);
            token.sin = random.numbers(kind.rotated / 2, 1.0);
        }
        for processor in Processor::all() {
            let way = Way {
                processor,
                units: 5,
                spare_slots: 3,
                padding: 2,
                rows_per_write: 4,
                backwards: false,
                bytes_before: 0,
            };
            let mut checksum = crc32fast::Hasher::new();
            for number in run(kind, &weights, &trees, &[], way).concat() {
                checksum.update(&number.to_bits().to_le_bytes());
            }
            assert_eq!(checksum.finalize(), expected, "{kind:?} on {}", processor.name());
        }
    }
}

const CHECKSUMS: [u32; 8] = [
    0x8726_5c11,
    0xa049_7ea7,
    0x24e6_94de,
    0x892a_c594,
    0xe476_fd33,
    0x9aa3_556a,
    0xc061_a70d,
    0x7e3b_ab6f,
];
