//! Against obvious twins in float64, and each kind of vectors against the narrowest.

use proptest::prelude::*;

use super::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|value| value.to_bits()).collect()
}

/// All functions on one input: every number that they write.
fn all_of(vectors: Vectors, x: &[f32], other: &[f32], scale: f32) -> Vec<u32> {
    let size = x.len();
    let (mut rows, mut rests, mut floats) = (vec![0; size], vec![0; size], vec![0.0; size]);
    let mut all = Vec::new();
    let mut keep = |scale: f32, rows: &[u8]| {
        all.push(scale.to_bits());
        all.extend(rows.iter().map(|&row| u32::from(row)));
    };
    keep(round(vectors, x, &mut rows), &rows);
    keep(round_fine(vectors, x, &mut rows, &mut rests), &[rows.as_slice(), &rests].concat());
    norm(vectors, x, other, 1e-5, &mut floats);
    all.extend(bits(&floats));
    join(vectors, x, other, scale, &mut floats);
    all.extend(bits(&floats));
    add(vectors, x, &mut floats);
    all.extend(bits(&floats));
    gate(vectors, &[x, other].concat(), scale, &mut floats);
    all.extend(bits(&floats));
    all
}

fn rounded(x: &[f32]) -> (Vec<u8>, f32) {
    let largest = x.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let rows = x.iter().map(|value| ((value * (127.0 / largest)).round_ties_even() + 128.0) as u8);
    (rows.collect(), largest / 127.0)
}

fn numbers() -> impl Strategy<Value = Vec<(f32, f32)>> {
    let number = prop_oneof![-1.0f32..1.0, -100.0f32..100.0, Just(0.0), -1e-20f32..1e-20];
    prop::collection::vec((number.clone(), number), 1..200)
}

proptest! {
    #[test]
    fn all_vectors_give_the_same_bits(pairs in numbers(), scale in -2.0f32..2.0) {
        let (x, other): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let expected = all_of(Vectors(Kind::Baseline), &x, &other, scale);
        for vectors in Vectors::all() {
            prop_assert_eq!(&all_of(vectors, &x, &other, scale), &expected);
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_of_255_steps(pairs in numbers()) {
        let x: Vec<f32> = pairs.into_iter().map(|pair| pair.0).collect();
        prop_assume!(x.iter().any(|value| value.abs() > 1e-30));
        let (expected, expected_scale) = rounded(&x);
        for vectors in Vectors::all() {
            let mut rows = vec![0; x.len()];
            prop_assert_eq!(round(vectors, &x, &mut rows), expected_scale);
            prop_assert_eq!(&rows, &expected);
        }
    }

    #[test]
    fn a_fine_row_is_the_rounded_one_and_with_its_rests_254_times_as_near(pairs in numbers()) {
        let x: Vec<f32> = pairs.into_iter().map(|pair| pair.0).collect();
        prop_assume!(x.iter().any(|value| value.abs() > 1e-30));
        for vectors in Vectors::all() {
            let (mut rows, mut rests, mut alone) = (vec![0; x.len()], vec![0; x.len()], vec![0; x.len()]);
            let scale = round_fine(vectors, &x, &mut rows, &mut rests);
            prop_assert_eq!(round(vectors, &x, &mut alone), scale);
            prop_assert_eq!(&rows, &alone);
            let parts: Vec<[f32; 2]> = rows
                .iter()
                .zip(&rests)
                .map(|(&row, &rest)| [f32::from(row) - 128.0, f32::from(rest) - 128.0])
                .collect();
            let (coarse, fine): (Vec<f32>, Vec<f32>) = parts.iter().map(|&[a, b]| (a, b)).unzip();
            let mut joined = vec![0.0; x.len()];
            join(vectors, &coarse, &fine, scale, &mut joined);
            for (&got, &wanted) in joined.iter().zip(&x) {
                prop_assert!((got - wanted).abs() <= scale * (0.5 / 254.0 + 5e-5));
            }
        }
    }

    #[test]
    fn norms_and_gates_are_near_those_in_float64(pairs in numbers(), scale in 0.01f32..2.0) {
        let (x, other): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let vectors = Vectors::all().pop().unwrap();
        let mut floats = vec![0.0; x.len()];
        norm(vectors, &x, &other, 1e-5, &mut floats);
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
        for ((&got, &x), &other) in floats.iter().zip(&x).zip(&other) {
            let wanted = f64::from(x) / (mean + 1e-5).sqrt() * f64::from(other);
            prop_assert!((f64::from(got) - wanted).abs() <= 2e-6 * wanted.abs() + 1e-30);
        }
        gate(vectors, &[x.as_slice(), &other].concat(), scale, &mut floats);
        for ((&got, &x), &other) in floats.iter().zip(&x).zip(&other) {
            let (gate, up) = (f64::from(x * scale), f64::from(other * scale));
            let wanted = gate / (1.0 + (-gate).exp()) * up;
            prop_assert!((f64::from(got) - wanted).abs() <= 2e-6 * wanted.abs() + 1e-30);
        }
    }
}

#[test]
fn a_row_of_zeros_has_scale_zero() {
    for vectors in Vectors::all() {
        assert_eq!(round(vectors, &[0.0; 40], &mut [0; 40]), 0.0);
        assert_eq!(round_fine(vectors, &[0.0; 40], &mut [0; 40], &mut [0; 40]), 0.0);
    }
}

#[test]
fn nan_and_infinity_reach_the_scale() {
    for vectors in Vectors::all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 15, 16, 38] {
                let mut x = [1.0; 39];
                x[place] = bad;
                let finite = |x: &[f32]| {
                    let fine = round_fine(vectors, x, &mut [0; 39], &mut [0; 39]);
                    round(vectors, x, &mut [0; 39]).is_finite() || fine.is_finite()
                };
                assert!(!finite(&x));
                let mut floats = [0.0; 39];
                norm(vectors, &x, &[1.0; 39], 1e-5, &mut floats);
                assert!(!finite(&floats));
                gate(vectors, &[x, [1.0; 39]].concat(), 1.0, &mut floats);
                assert!(!finite(&floats));
            }
        }
    }
}
