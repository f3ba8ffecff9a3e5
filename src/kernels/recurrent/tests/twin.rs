//! Twins: a number after the other, from the first token of a path to its last; in float32, with the
//! kernels' powers and orders, and in float64, by the formulas of transformers.

/// Two to the power of `x`.
fn power(x: f32) -> f32 {
    let x = larger(-127.0, x);
    let digits = x.round_ties_even();
    let rest = x - digits;
    let factors = [9.671_763e-3, 5.550_891_5e-2, 2.402_223_6e-1, 6.931_468e-1, 1.0];
    let power = factors.into_iter().fold(1.322_570_7e-3f32, |sum, next| sum.mul_add(rest, next));
    power * if digits <= -127.0 { 0.0 } else { 2f32.powi(digits as i32) }
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

pub fn exponential(x: f32) -> f32 {
    power(0.0 - larger(-126.0, x * -std::f32::consts::LOG2_E))
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exponential(0.0 - x))
}

pub fn silu(x: f32) -> f32 {
    let x = larger(-87.0, x);
    x / (1.0 + power(x * -std::f32::consts::LOG2_E))
}

pub fn softplus(x: f32) -> f32 {
    let power = exponential(0.0 - larger(x, 0.0 - x));
    let share = power / (2.0 + power);
    let odds = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0];
    let add = |sum: f32, odd: f32| sum.mul_add(share * share, 1.0 / odd);
    let series = odds.into_iter().fold(1.0 / 15.0, add);
    series.mul_add(share + share, larger(0.0, x))
}

/// The sum of products, in sixteen lanes.
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = vec![0.0f32; 16];
    for (index, (x, y)) in x.iter().zip(y).enumerate() {
        lanes[index % 16] = x.mul_add(*y, lanes[index % 16]);
    }
    while lanes.len() > 1 {
        let (first, second) = lanes.split_at(lanes.len() / 2);
        lanes = first.iter().zip(second).map(|(x, y)| x + y).collect();
    }
    lanes[0]
}

/// `x` with the root of its mean square made 1, weighted.
pub fn normed(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x * factor * weight).collect()
}

/// A head's matrix, `(keys, values)`.
pub struct Matrix(pub Vec<Vec<f32>>);

impl Matrix {
    pub fn new(keys: usize, values: usize) -> Self {
        Self(vec![vec![0.0; values]; keys])
    }

    /// What it holds under a key.
    pub fn under(&self, key: &[f32], column: usize) -> f32 {
        self.0.iter().zip(key).fold(0.0, |sum, (row, key)| key.mul_add(row[column], sum))
    }

    /// Takes a token: what its query reads.
    pub fn take(&mut self, decay: f32, key: &[f32], value: &[f32], query: &[f32]) -> Vec<f32> {
        let key_query = dot(key, query);
        let read = |(column, value): (usize, &f32)| {
            key_query.mul_add(*value, decay * self.under(query, column))
        };
        let read = value.iter().enumerate().map(read).collect();
        for (row, key) in self.0.iter_mut().zip(key) {
            for (number, value) in row.iter_mut().zip(value) {
                *number = key.mul_add(*value, *number * decay);
            }
        }
        read
    }
}

/// The same in float64: decayed, changed, then read.
pub struct Exact(pub Vec<Vec<f64>>);

impl Exact {
    pub fn new(keys: usize, values: usize) -> Self {
        Self(vec![vec![0.0; values]; keys])
    }

    pub fn decay(&mut self, decay: f64) {
        self.0.iter_mut().flatten().for_each(|number| *number *= decay);
    }

    pub fn read(&self, query: &[f64]) -> Vec<f64> {
        let column = |column: usize| self.0.iter().zip(query).map(|(row, x)| row[column] * x).sum();
        (0..self.0[0].len()).map(column).collect()
    }

    pub fn add(&mut self, key: &[f64], value: &[f64]) {
        for (row, key) in self.0.iter_mut().zip(key) {
            row.iter_mut().zip(value).for_each(|(number, value)| *number += key * value);
        }
    }
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

pub fn exact_silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub fn exact_softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

/// `norm(x) * weight`.
pub fn exact_norm(x: &[f64], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let root = (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x / root * f64::from(*weight)).collect()
}
