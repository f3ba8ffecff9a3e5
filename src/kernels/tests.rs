//! Against obvious twins in float64, and each kind of vectors against the narrowest.

use proptest::prelude::*;

use super::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|value| value.to_bits()).collect()
}

/// All functions on one input: every number that they write.
fn all_of(vectors: Vectors, x: &[f32], other: &[f32], scale: f32) -> Vec<u32> {
    let size = x.len();
    let (mut rows, mut room, mut stream) = (vec![0; size], vec![0.0; size], vec![0.0; size]);
    let mut all = Vec::new();
    let mut keep = |scale: f32, rows: &[u8], floats: &[f32]| {
        all.push(scale.to_bits());
        all.extend(rows.iter().map(|&row| u32::from(row)));
        all.extend(bits(floats));
    };
    let given = round(vectors, x, &mut rows);
    keep(given, &rows, &[]);
    let given = norm(vectors, x, other, 1e-5, &mut room, &mut rows);
    keep(given, &rows, &room);
    add(vectors, x, other, scale, &mut stream);
    keep(0.0, &[], &stream);
    let both = [x, other].concat();
    let given = gate(vectors, &both, scale, &mut room, &mut rows);
    keep(given, &rows, &room);
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
    fn norms_and_gates_are_near_those_in_float64(pairs in numbers(), scale in 0.01f32..2.0) {
        let (x, other): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let vectors = Vectors::all().pop().unwrap();
        let (mut room, mut rows) = (vec![0.0; x.len()], vec![0; x.len()]);
        norm(vectors, &x, &other, 1e-5, &mut room, &mut rows);
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
        for ((&got, &x), &other) in room.iter().zip(&x).zip(&other) {
            let wanted = f64::from(x) / (mean + 1e-5).sqrt() * f64::from(other);
            prop_assert!((f64::from(got) - wanted).abs() <= 2e-6 * wanted.abs() + 1e-30);
        }
        gate(vectors, &[x.as_slice(), &other].concat(), scale, &mut room, &mut rows);
        for ((&got, &x), &other) in room.iter().zip(&x).zip(&other) {
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
    }
}

#[test]
fn nan_and_infinity_reach_the_scale() {
    for vectors in Vectors::all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 15, 16, 38] {
                let mut x = [1.0; 39];
                x[place] = bad;
                assert!(!round(vectors, &x, &mut [0; 39]).is_finite());
                let (mut normed, mut rows) = ([0.0; 39], [0; 39]);
                assert!(!norm(vectors, &x, &[1.0; 39], 1e-5, &mut normed, &mut rows).is_finite());
                let both = [x, [1.0; 39]].concat();
                assert!(!gate(vectors, &both, 1.0, &mut normed, &mut rows).is_finite());
            }
        }
    }
}
