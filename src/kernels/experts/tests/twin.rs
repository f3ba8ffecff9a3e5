//! A layer, row by row and expert by expert, in plain Rust; products are of one row.

use super::*;
use crate::kernels::exp::{exponential, sigmoid, sum_of_lanes};
use crate::kernels::lanes::{Lanes, Portable};
use crate::kernels::product::{
    Destination, Epilogue, Source, Tiling, Weights, multiply, round_rows,
};

fn portable(function: unsafe fn([f32; 16]) -> [f32; 16], x: f32) -> f32 {
    // SAFETY: any processor runs plain Rust.
    unsafe { function(Portable::splat(x))[0] }
}

/// The experts of a row by rank, and their shares.
pub fn route(router: &Router, scores: &[f32], bias: Option<&[f32]>) -> (Vec<usize>, Vec<f32>) {
    let values: Vec<f32> = match router.scoring {
        Scoring::Softmax => scores.to_vec(),
        Scoring::Sigmoid => scores.iter().map(|x| portable(sigmoid::<Portable>, *x)).collect(),
    };
    let key = |expert: usize| values[expert] + bias.map_or(0.0, |bias| bias[expert]);
    let mut all: Vec<usize> = (0..scores.len()).collect();
    // Stable: of equal ones the first stays first.
    all.sort_by(|&a, &b| match (key(a).is_nan(), key(b).is_nan()) {
        (false, false) => key(b).partial_cmp(&key(a)).unwrap(),
        (a, b) => b.cmp(&a),
    });
    all.truncate(router.chosen);
    let mut shares: Vec<f32> = match router.scoring {
        Scoring::Sigmoid => all.iter().map(|expert| values[*expert]).collect(),
        Scoring::Softmax => {
            let largest = scores.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x));
            let power = |x: f32| portable(exponential::<Portable>, x - largest);
            let mut lanes = [0.0; 16];
            for (expert, x) in scores.iter().enumerate() {
                lanes[expert % 16] += power(*x);
            }
            all.iter().map(|expert| power(scores[*expert]) / sum_of_lanes(lanes)).collect()
        }
    };
    if let Some(epsilon) = router.normed {
        let mut sum = 0.0;
        shares.iter().for_each(|share| sum += share);
        shares.iter_mut().for_each(|share| *share /= sum + epsilon);
    }
    (all, shares.iter().map(|share| share * router.share_scale).collect())
}

/// A row times a matrix, plus a bias.
fn product(source: Source<'_>, columns: usize, weights: Weights<'_>, bias: &[f32]) -> Vec<f32> {
    let processor = Processor::all()[0];
    let tiling = Tiling::new(1, columns, weights.kind.is_float(), processor);
    let mut packed = vec![0; tiling.num_bytes()];
    let mut products = vec![f32::NAN; weights.outputs];
    let to = Destination { to: products.as_mut_ptr(), stride: 0 };
    let panels = 0..weights.kind.num_panels(weights.outputs);
    // SAFETY: all have their sizes, and there is one thread.
    unsafe {
        round_rows(processor, source, None, columns, tiling, 0..1, packed.as_mut_ptr());
        multiply(processor, packed.as_ptr(), tiling, weights, panels, Epilogue::default(), to);
    }
    products.iter().zip(bias).map(|(product, bias)| product + bias).collect()
}

/// Expert `expert`'s output for a row; where its weights stand is computed anew.
fn feed_forward(layer: &Experts, inputs: &Inputs<'_>, row: &[f32], expert: usize) -> Vec<f32> {
    let Experts { columns, size, types, gate, epsilon, .. } = *layer;
    let shapes = [(size, columns), (size, columns), (columns, size)];
    let sizes = [0, 1, 2].map(|at| types[at].num_bytes(shapes[at].0, shapes[at].1));
    let mut start = expert * (sizes.iter().sum::<usize>().div_ceil(4096) * 4096);
    let [gates, up, down] = [0, 1, 2].map(|at| {
        let panels = &inputs.weights[start..start + sizes[at]];
        start += sizes[at];
        Weights { kind: types[at], outputs: shapes[at].0, panels }
    });
    // Adding -0 changes nothing.
    let none = vec![-0.0; 2 * size.max(columns)];
    let bias = inputs.up_bias.map_or(&none[..2 * size], |it| &it[expert * 2 * size..][..2 * size]);
    let source = match inputs.norm {
        Some(weight) => Source::Normed { x: row, weight, epsilon },
        None => Source::Plain(row),
    };
    let both = [
        product(source, columns, gates, &bias[..size]),
        product(source, columns, up, &bias[size..]),
    ]
    .concat();
    let bias = inputs.down_bias.map_or(&none[..columns], |it| &it[expert * columns..][..columns]);
    product(Source::Gated(&both, gate), size, down, bias)
}

/// What a row gives, and its experts.
pub fn row(layer: &Experts, inputs: &Inputs<'_>, number: usize) -> (Vec<f32>, Vec<usize>) {
    let (columns, experts) = (layer.columns, layer.router.experts);
    let of = |x: &'_ [f32]| x[number * columns..][..columns].to_vec();
    let scores = &inputs.scores[number * experts..][..experts];
    let (chosen, shares) = route(&layer.router, scores, inputs.choice_bias);
    let x = of(inputs.rows);
    let outputs: Vec<Vec<f32>> =
        chosen.iter().map(|expert| feed_forward(layer, inputs, &x, *expert)).collect();
    let (beside, residual) = (inputs.beside.map(of), inputs.residual.map(of));
    let gate = inputs.beside_gate.map(|gates| portable(sigmoid::<Portable>, gates[number]));
    let numbers = (0..columns).map(|column| {
        let mut sum = outputs[0][column] * shares[0];
        for (output, share) in outputs.iter().zip(&shares).skip(1) {
            sum = output[column].mul_add(*share, sum);
        }
        if let Some(beside) = &beside {
            sum = beside[column].mul_add(gate.unwrap_or(1.0), sum);
        }
        match &residual {
            Some(residual) => sum.mul_add(layer.residual_scale, residual[column]),
            None => sum * layer.residual_scale,
        }
    });
    (numbers.collect(), chosen)
}
