//! The three layers with random sizes and weights, each beside its twins.

use super::twin::{self, Exact, Matrix};
use super::{Layer, Random, Token, Way};
use crate::kernels::Workspace;
use crate::kernels::recurrent::*;

/// Columns of random numbers before, between and behind those that a layer reads.
const GAP: usize = 3;

fn rows<'a>(all: &'a [f32], count: usize) -> Rows<'a> {
    Rows { numbers: all, width: all.len() / count }
}

/// All tokens' rows of one kind.
fn joined(tokens: &[Token], which: usize) -> Vec<f32> {
    tokens.iter().flat_map(|token| token[which].clone()).collect()
}

#[derive(Debug)]
pub struct Convolution {
    pub channels: usize,
    pub taps: usize,
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    has_silu: bool,
    is_gated: bool,
}

impl Convolution {
    pub fn of(random: &mut Random, channels: usize, taps: usize) -> Self {
        let weights = random.numbers(taps * channels, 1.0);
        let bias = (random.below(2) == 0).then(|| random.numbers(channels, 1.0));
        let (has_silu, is_gated) = (random.below(2) == 0, random.below(2) == 0);
        Self { channels, taps, weights, bias, has_silu, is_gated }
    }

    fn layer<'a>(&'a self, rows: Rows<'a>) -> CausalConvolution<'a> {
        CausalConvolution {
            channels: self.channels,
            taps: self.taps,
            rows,
            first: GAP,
            weights: &self.weights,
            bias: self.bias.as_deref(),
            has_silu: self.has_silu,
            is_gated: self.is_gated,
        }
    }

    fn part(&self, token: &Token, part: usize, channel: usize) -> f32 {
        token[0][GAP + part * self.channels + channel]
    }
}

impl Layer for Convolution {
    fn random(random: &mut Random) -> Self {
        let (channels, taps) = (random.of(&[1, 7, 16, 40, 300]), random.of(&[2, 3, 3, 4, 4, 8]));
        Self::of(random, channels, taps)
    }

    fn token(&self, random: &mut Random) -> Token {
        [random.numbers(2 * GAP + 3 * self.channels, 2.0), Vec::new()]
    }

    fn sizes(&self) -> Sizes {
        self.layer(Rows { numbers: &[], width: 0 }).sizes()
    }

    fn outputs(&self) -> usize {
        self.channels
    }

    fn run(&self, run: &Run, tokens: &[Token], way: Way, given: *mut f32) {
        let all = joined(tokens, 0);
        let layer = self.layer(rows(&all, tokens.len()));
        let step = ConvolutionStep::new(layer, run, tokens.len(), given).expect("sizes are right");
        let mut workspace = Workspace::default();
        for task in way.order(step.num_tasks()) {
            // SAFETY: all have their sizes, and there is one thread.
            unsafe { convolve(way.processor, &step, task, &mut workspace) };
        }
    }

    fn twin(&self, path: &[&Token]) -> Vec<f32> {
        let channel = |channel: usize| {
            let mut sum = self.bias.as_ref().map_or(0.0, |bias| bias[channel]);
            for tap in 0..self.taps {
                let x = match (path.len() + tap).checked_sub(self.taps).map(|at| path[at]) {
                    None => 0.0,
                    Some(token) if self.is_gated => {
                        self.part(token, 0, channel) * self.part(token, 2, channel)
                    }
                    Some(token) => self.part(token, 0, channel),
                };
                sum = self.weights[tap * self.channels + channel].mul_add(x, sum);
            }
            let sum = if self.has_silu { twin::silu(sum) } else { sum };
            let last = path[path.len() - 1];
            if self.is_gated { sum * self.part(last, 1, channel) } else { sum }
        };
        (0..self.channels).map(channel).collect()
    }

    fn exact(&self, path: &[&Token]) -> Vec<f64> {
        let gated = |token: &Token, channel: usize, one: usize, other: usize| {
            let of = |part: usize| f64::from(self.part(token, part, channel));
            if self.is_gated { of(one) * of(other) } else { of(one) }
        };
        let channel = |channel: usize| {
            let taps = path.iter().rev().zip((0..self.taps).rev()).map(|(token, tap)| {
                let weight = f64::from(self.weights[tap * self.channels + channel]);
                weight * gated(token, channel, 0, 2)
            });
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
            let sum = taps.sum::<f64>() + bias;
            let sum = if self.has_silu { twin::exact_silu(sum) } else { sum };
            let gate = f64::from(self.part(path[path.len() - 1], 1, channel));
            if self.is_gated { sum * gate } else { sum }
        };
        (0..self.channels).map(channel).collect()
    }
}

#[derive(Debug)]
pub struct Delta {
    heads: Heads,
    a: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
}

impl Delta {
    pub fn of(random: &mut Random, heads: Heads) -> Self {
        let a = (0..heads.heads).map(|_| -0.01 - 4.0 * random.number().abs()).collect();
        let bias = random.numbers(heads.heads, 1.0);
        let norm = random.numbers(heads.values, 2.0);
        Self { heads, a, bias, norm }
    }

    /// Where gates, betas and decays begin.
    fn columns(&self) -> [usize; 3] {
        let Heads { heads, values, .. } = self.heads;
        [GAP, 2 * GAP + heads * values, 3 * GAP + heads * values + heads]
    }

    fn layer<'a>(&'a self, rows: Rows<'a>, projected: Rows<'a>) -> GatedDelta<'a> {
        GatedDelta {
            heads: self.heads,
            rows,
            projected,
            columns: self.columns(),
            a: &self.a,
            bias: &self.bias,
            norm: &self.norm,
            epsilon: 1e-6,
        }
    }

    /// A token's query, key and value of a head.
    fn parts<'a>(&self, [row, _]: &'a Token, head: usize) -> [&'a [f32]; 3] {
        let Heads { heads, keys, values, .. } = self.heads;
        let key_head = head / (heads / self.heads.key_heads);
        let (first, second) = (self.heads.key_heads * keys, 2 * self.heads.key_heads * keys);
        [
            &row[key_head * keys..][..keys],
            &row[first + key_head * keys..][..keys],
            &row[second + head * values..][..values],
        ]
    }

    /// A token's gate of a head, its beta, and its decay.
    fn others<'a>(&self, [_, row]: &'a Token, head: usize) -> (&'a [f32], f32, f32) {
        let values = self.heads.values;
        let [gate, beta, decay] = self.columns();
        (&row[gate + head * values..][..values], row[beta + head], row[decay + head])
    }
}

impl Layer for Delta {
    fn random(random: &mut Random) -> Self {
        let key_heads = 1 + random.below(2);
        let heads = Heads {
            key_heads,
            heads: key_heads * (1 + random.below(2)),
            keys: random.of(&[3, 8, 16, 20]),
            values: random.of(&[1, 5, 16, 24]),
        };
        Self::of(random, heads)
    }

    fn token(&self, random: &mut Random) -> Token {
        let Heads { heads, keys, values, .. } = self.heads;
        let row = random.numbers(2 * self.heads.key_heads * keys + heads * values, 2.0);
        [row, random.numbers(4 * GAP + heads * values + 2 * heads, 3.0)]
    }

    fn sizes(&self) -> Sizes {
        self.heads.sizes()
    }

    fn outputs(&self) -> usize {
        self.heads.heads * self.heads.values
    }

    fn run(&self, run: &Run, tokens: &[Token], way: Way, given: *mut f32) {
        let (all, projected) = (joined(tokens, 0), joined(tokens, 1));
        let layer = self.layer(rows(&all, tokens.len()), rows(&projected, tokens.len()));
        let step = HeadsStep::new(layer, run, tokens.len(), given).expect("sizes are right");
        let mut workspace = Workspace::default();
        for task in way.order(step.num_tasks()) {
            // SAFETY: all have their sizes, and there is one thread.
            unsafe { compute_head(way.processor, &step, task, &mut workspace) };
        }
    }

    fn twin(&self, path: &[&Token]) -> Vec<f32> {
        let Heads { heads, keys, values, .. } = self.heads;
        let head = |head: usize| {
            let (mut matrix, mut read) = (Matrix::new(keys, values), Vec::new());
            for token in path {
                let [query, key, value] = self.parts(token, head);
                let (_, beta, decay) = self.others(token, head);
                let step = twin::softplus(decay + self.bias[head]);
                let decay = twin::exponential(step * self.a[head]);
                let scaled = |x: &[f32], scale: f32| -> Vec<f32> {
                    let factor = scale / (twin::dot(x, x) + 1e-6).sqrt();
                    x.iter().map(|x| x * factor).collect()
                };
                let (key, query) = (scaled(key, 1.0), scaled(query, 1.0 / (keys as f32).sqrt()));
                let strength = twin::sigmoid(beta);
                let new = |(column, value): (usize, &f32)| {
                    (value - decay * matrix.under(&key, column)) * strength
                };
                let value: Vec<f32> = value.iter().enumerate().map(new).collect();
                read = matrix.take(decay, &key, &value, &query);
            }
            let (gate, ..) = self.others(path[path.len() - 1], head);
            let normed = twin::normed(&read, &self.norm, 1e-6);
            normed.into_iter().zip(gate).map(|(x, gate)| x * twin::silu(*gate)).collect::<Vec<_>>()
        };
        (0..heads).flat_map(head).collect()
    }

    fn exact(&self, path: &[&Token]) -> Vec<f64> {
        let Heads { heads, keys, values, .. } = self.heads;
        let head = |head: usize| {
            let (mut matrix, mut read) = (Exact::new(keys, values), Vec::new());
            for token in path {
                let parts = self.parts(token, head).map(twin::wide);
                let unit = |x: &[f64], scale: f64| -> Vec<f64> {
                    let size = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / size * scale).collect()
                };
                let query = unit(&parts[0], (keys as f64).powf(-0.5));
                let key = unit(&parts[1], 1.0);
                let (_, beta, decay) = self.others(token, head);
                let beta = 1.0 / (1.0 + f64::from(-beta).exp());
                let step = twin::exact_softplus(f64::from(decay) + f64::from(self.bias[head]));
                matrix.decay((f64::from(self.a[head]) * step).exp());
                let held = matrix.read(&key);
                let new = parts[2].iter().zip(held).map(|(value, held)| (value - held) * beta);
                matrix.add(&key, &new.collect::<Vec<_>>());
                read = matrix.read(&query);
            }
            let (gate, ..) = self.others(path[path.len() - 1], head);
            let normed = twin::exact_norm(&read, &self.norm, 1e-6).into_iter().zip(gate);
            normed.map(|(x, gate)| x * twin::exact_silu(f64::from(*gate))).collect::<Vec<_>>()
        };
        (0..heads).flat_map(head).collect()
    }
}

#[derive(Debug)]
pub struct Selective {
    heads: Heads,
    a: Vec<f32>,
    bias: Vec<f32>,
    skip: Vec<f32>,
    limits: [f32; 2],
    norm: Vec<f32>,
}

impl Selective {
    pub fn of(random: &mut Random, heads: Heads) -> Self {
        Self {
            heads,
            a: (0..heads.heads).map(|_| -0.01 - 4.0 * random.number().abs()).collect(),
            bias: random.numbers(heads.heads, 1.0),
            skip: random.numbers(heads.heads, 1.0),
            limits: random.of(&[[0.0, f32::INFINITY], [0.1, 2.0]]),
            norm: random.numbers(heads.heads * heads.values, 2.0),
        }
    }

    /// Where gates and steps begin.
    fn columns(&self) -> [usize; 2] {
        [GAP, 2 * GAP + self.outputs()]
    }

    fn layer<'a>(&'a self, rows: Rows<'a>, projected: Rows<'a>) -> SelectiveUpdate<'a> {
        SelectiveUpdate {
            heads: self.heads,
            rows,
            projected,
            columns: self.columns(),
            a: &self.a,
            bias: &self.bias,
            skip: &self.skip,
            limits: self.limits,
            norm: &self.norm,
            epsilon: 1e-5,
        }
    }

    /// A token's input, B and C of a head.
    fn parts<'a>(&self, [row, _]: &'a Token, head: usize) -> [&'a [f32]; 3] {
        let Heads { heads, keys, values, .. } = self.heads;
        let group = head / (heads / self.heads.key_heads);
        let first = heads * values + group * keys;
        let second = first + self.heads.key_heads * keys;
        [&row[head * values..][..values], &row[first..][..keys], &row[second..][..keys]]
    }
}

impl Layer for Selective {
    fn random(random: &mut Random) -> Self {
        let key_heads = 1 + random.below(2);
        let heads = Heads {
            key_heads,
            heads: key_heads * (1 + random.below(3)),
            keys: random.of(&[3, 8, 16]),
            values: random.of(&[1, 5, 16, 24]),
        };
        Self::of(random, heads)
    }

    fn token(&self, random: &mut Random) -> Token {
        let row = random.numbers(self.outputs() + 2 * self.heads.key_heads * self.heads.keys, 1.0);
        [row, random.numbers(3 * GAP + self.outputs() + self.heads.heads, 3.0)]
    }

    fn sizes(&self) -> Sizes {
        self.heads.sizes()
    }

    fn outputs(&self) -> usize {
        self.heads.heads * self.heads.values
    }

    fn run(&self, run: &Run, tokens: &[Token], way: Way, given: *mut f32) {
        let (all, projected) = (joined(tokens, 0), joined(tokens, 1));
        let layer = self.layer(rows(&all, tokens.len()), rows(&projected, tokens.len()));
        let step = HeadsStep::new(layer, run, tokens.len(), given).expect("sizes are right");
        let mut workspace = Workspace::default();
        // SAFETY: all have their sizes, and there is one thread.
        unsafe {
            for task in way.order(step.num_tasks()) {
                compute_head(way.processor, &step, task, &mut workspace);
            }
            for row in way.order(run.num_rows()) {
                norm_rows(way.processor, &layer, row..row + 1, given);
            }
        }
    }

    fn twin(&self, path: &[&Token]) -> Vec<f32> {
        let Heads { heads, keys, values, .. } = self.heads;
        let [gate, steps] = self.columns();
        let head = |head: usize| {
            let (mut matrix, mut read) = (Matrix::new(keys, values), Vec::new());
            for token in path {
                let [x, key, query] = self.parts(token, head);
                let step = twin::softplus(token[1][steps + head] + self.bias[head]);
                let step = step.clamp(self.limits[0], self.limits[1]);
                let value: Vec<f32> = x.iter().map(|x| x * step).collect();
                let decay = twin::exponential(step * self.a[head]);
                read = matrix.take(decay, key, &value, query);
                let add = |(read, x): (f32, &f32)| x.mul_add(self.skip[head], read);
                read = read.into_iter().zip(x).map(add).collect();
            }
            read
        };
        let gates = &path[path.len() - 1][1][gate..][..heads * values];
        let read = (0..heads).flat_map(head).zip(gates).map(|(x, gate)| x * twin::silu(*gate));
        let (read, size): (Vec<f32>, _) = (read.collect(), heads * values / self.heads.key_heads);
        let groups = read.chunks(size).zip(self.norm.chunks(size));
        groups.flat_map(|(x, weight)| twin::normed(x, weight, 1e-5)).collect()
    }

    fn exact(&self, path: &[&Token]) -> Vec<f64> {
        let Heads { heads, keys, values, .. } = self.heads;
        let [gate, steps] = self.columns();
        let head = |head: usize| {
            let (mut matrix, mut read) = (Exact::new(keys, values), Vec::new());
            for token in path {
                let [x, key, query] = self.parts(token, head).map(twin::wide);
                let step = f64::from(token[1][steps + head]) + f64::from(self.bias[head]);
                let limits = self.limits.map(f64::from);
                let step = twin::exact_softplus(step).clamp(limits[0], limits[1]);
                matrix.decay((step * f64::from(self.a[head])).exp());
                let key: Vec<f64> = key.iter().map(|key| key * step).collect();
                matrix.add(&key, &x);
                let skip = f64::from(self.skip[head]);
                read = matrix.read(&query).iter().zip(x).map(|(read, x)| read + x * skip).collect();
            }
            read
        };
        let gates = &path[path.len() - 1][1][gate..][..heads * values];
        let gates = gates.iter().map(|gate| twin::exact_silu(f64::from(*gate)));
        let read: Vec<f64> =
            (0..heads).flat_map(head).zip(gates).map(|(x, gate)| x * gate).collect();
        let size = heads * values / self.heads.key_heads;
        let groups = read.chunks(size).zip(self.norm.chunks(size));
        groups.flat_map(|(x, weight)| twin::exact_norm(x, weight, 1e-5)).collect()
    }
}
