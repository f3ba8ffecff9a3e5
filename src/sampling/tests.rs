//! Laws of a draw: it is the token that the definition names, and has the distribution that one
//! wants of it.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::sampling::random::uniform;

thread_local! {
    static NUM_DRAWS: Cell<usize> = const { Cell::new(0) };
}

/// Called by every draw.
pub(super) fn count_draw() {
    NUM_DRAWS.set(NUM_DRAWS.get() + 1);
}

/// Draws of this thread so far.
pub(crate) fn num_draws() -> usize {
    NUM_DRAWS.get()
}

/// A sum and a limit nearer than this may compare otherwise for rounding.
const ROUNDING: f64 = 2e-5;

/// A row by definition: sorted, in double precision.
struct Naive<'a> {
    row: &'a [f32],
    /// The likeliest first, of equals the lowest id.
    order: Vec<usize>,
    temperature: f32,
}

impl<'a> Naive<'a> {
    /// A row of which the `top_k` likeliest are left.
    fn new(row: &'a [f32], temperature: f32, top_k: usize) -> Self {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&one, &other| {
            row[other].partial_cmp(&row[one]).unwrap().then(one.cmp(&other))
        });
        order.truncate(if top_k == 0 { row.len() } else { top_k });
        Self { row, order, temperature }
    }

    fn weight(&self, token: usize) -> f64 {
        let largest = self.row[self.order[0]];
        (f64::from(self.row[token] - largest) / f64::from(self.temperature)).exp()
    }

    fn sum(&self, tokens: &[usize]) -> f64 {
        tokens.iter().map(|&token| self.weight(token)).sum()
    }

    /// The same without those that weigh less than a share of the likeliest; `None` where rounding may
    /// decide which those are.
    fn above(&self, min_p: f32) -> Option<Vec<usize>> {
        let excess = |token| self.weight(token) - f64::from(min_p);
        let is_near = |&token: &usize| excess(token).abs() < 1e-4 * f64::from(min_p);
        let has_near = min_p > 0.0 && self.order.iter().any(|token| is_near(token) && min_p < 1.0);
        let kept = self.order.iter().copied().filter(|&token| excess(token) >= 0.0);
        (!has_near).then(|| kept.collect())
    }

    /// The token that is to be drawn of those in `order`; `None` where rounding may decide.
    fn draw(&self, order: &[usize], top_p: f32, seed: u64, index: u64) -> Option<usize> {
        let (total, mut left) = (self.sum(&self.order), order.len());
        for attempt in 0.. {
            let mut by_id = order[..left].to_vec();
            by_id.sort();
            let sum = self.sum(&by_id);
            let mut part = uniform_again(seed, index, attempt) * sum;
            let mut drawn = by_id.into_iter().skip_while(|&token| {
                part -= self.weight(token);
                part > ROUNDING * sum
            });
            let drawn = drawn.next().filter(|_| part < -ROUNDING * sum)?;
            let place = self.order.iter().position(|&token| token == drawn)?;
            let excess = self.sum(&self.order[..place]) - f64::from(top_p) * total;
            if excess.abs() < ROUNDING * total {
                return None;
            }
            if top_p >= 1.0 || excess < 0.0 {
                return Some(drawn);
            }
            left = place;
        }
        None
    }

    /// The probability of each token.
    fn probabilities(&self, top_p: f32) -> Vec<f64> {
        let (total, mut reached) = (self.sum(&self.order), 0.0);
        let mut probabilities = vec![0.0; self.row.len()];
        for &token in &self.order {
            if top_p >= 1.0 || reached < (f64::from(top_p) - 1e-6) * total {
                probabilities[token] = self.weight(token);
            }
            reached += self.weight(token);
        }
        let total: f64 = probabilities.iter().sum();
        probabilities.iter().map(|probability| probability / total).collect()
    }
}

/// Scores of all kinds: few, so that many are equal; any; so low that they are never drawn.
fn score() -> impl Strategy<Value = f32> {
    let odd = prop::sample::select(vec![f32::NEG_INFINITY, f32::MIN, -0.0, -1e-40, 9.0]);
    prop_oneof![8 => -5.0f32..5.0, 8 => (-3i8..3).prop_map(f32::from), 1 => odd]
}

/// Rows that end within a block and that have many.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let long = (prop::collection::vec(score(), 1..80), 1usize..60);
    prop_oneof![
        prop::collection::vec(score(), 1..9),
        long.prop_map(|(scores, copies)| scores.repeat(copies)),
    ]
    .prop_filter("nothing can be drawn", |row| row.iter().any(|score| score.is_finite()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_draw_is_the_token_that_the_definition_names(
        row in row(),
        temperature in prop::sample::select(vec![0.1f32, 0.7, 1.0, 3.0, 100.0]),
        top_k in prop_oneof![Just(0), 1usize..9, 1usize..5_000],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0, Just(0.95)],
        min_p in prop_oneof![3 => Just(0.0f32), 2 => 0.001f32..1.0, 1 => Just(1.0)],
        seed in any::<u64>(),
    ) {
        let naive = Naive::new(&row, temperature, top_k);
        let sampling = Sampling::new(temperature, top_k, top_p, seed).unwrap();
        let sampling = sampling.with_min_p(min_p).unwrap();
        let kept = naive.above(min_p);
        for index in 0..12 {
            let drawn = sampling.draw(&row, index).unwrap().0 as usize;
            prop_assert!(naive.order.contains(&drawn));
            let Some(kept) = &kept else { continue };
            prop_assert!(kept.contains(&drawn));
            if let Some(expected) = naive.draw(kept, top_p, seed, index) {
                prop_assert_eq!(drawn, expected);
            }
        }
    }

    #[test]
    fn a_choice_after_a_text_is_that_from_the_penalised_row(
        row in row(),
        text in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        penalty in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        presence in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        frequency in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        biases in prop::collection::vec((any::<prop::sample::Index>(), -100f32..100.0), 0..4),
        temperature in prop::sample::select(vec![0.0f32, 0.7, 3.0]),
        seed in any::<u64>(),
    ) {
        let text: Vec<TokenId> =
            text.iter().map(|token| TokenId(token.index(row.len()) as u32)).collect();
        let penalties = Penalties { repetition: penalty, presence, frequency };
        let biases: BTreeMap<_, _> =
            biases.iter().map(|(at, bias)| (TokenId(at.index(row.len()) as u32), *bias)).collect();
        let biases: Vec<_> = biases.into_iter().collect();
        let sampling = Sampling::new(temperature, 0, 0.9, seed).unwrap();
        let penalised = sampling.clone().with_penalties(penalties).unwrap();
        let penalised = penalised.with_logit_bias(LogitBias::new(&biases).unwrap());
        let mut seen = SeenTokens::default();
        seen.extend(&text);
        let mut changed = row.clone();
        biases.iter().for_each(|(token, bias)| changed[token.0 as usize] += bias);
        let expected = seen.penalised(&mut changed, penalties, |row| sampling.draw(row, 3));
        changed.clone_from(&row);
        prop_assert_eq!(penalised.choose(&mut changed, 3, &mut seen), expected);
        prop_assert_eq!(changed, row);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn draws_follow_the_cut_softmax(
        row in prop::collection::vec(-3.0f32..3.0, 2..7),
        temperature in 0.5f32..2.0,
        top_k in 0usize..8,
        top_p in prop::sample::select(vec![0.2f32, 0.55, 0.85, 1.0]),
        seed in any::<u64>(),
    ) {
        const DRAWS: u64 = 4_000;
        let sampling = Sampling::new(temperature, top_k, top_p, seed).unwrap();
        let mut counts = vec![0.0; row.len()];
        for index in 0..DRAWS {
            counts[sampling.draw(&row, index).unwrap().0 as usize] += 1.0;
        }
        let expected = Naive::new(&row, temperature, top_k).probabilities(top_p);
        for (count, probability) in counts.iter().zip(expected) {
            let deviation = (probability * (1.0 - probability) / DRAWS as f64).sqrt();
            // The second term is for rare tokens, whose counts are far from normal.
            let tolerance = 5.5 * deviation + 3e-3;
            prop_assert!((count / DRAWS as f64 - probability).abs() <= tolerance);
        }
    }

    #[test]
    fn numbers_are_even_over_seeds_indices_and_attempts(seed in any::<u64>(), by in 0usize..3) {
        const DRAWS: u64 = 4_000;
        let number = |at: u64| match by {
            0 => uniform(seed.wrapping_add(at), 3),
            1 => uniform(seed, at),
            _ => uniform_again(seed, at / 4, at as u32 % 4),
        };
        let mut counts = [0u32; 10];
        for at in 0..DRAWS {
            counts[(number(at) * 10.0) as usize] += 1;
        }
        prop_assert!(counts.iter().all(|&count| (290..=510).contains(&count)), "{:?}", counts);
    }
}

#[test]
fn the_definition_decides_nearly_every_draw() {
    let row: Vec<f32> = (0..5_000).map(|token| ((token * 37 % 5_000) as f32).ln_1p()).collect();
    for (top_k, top_p) in [(0, 1.0), (40, 1.0), (3_000, 0.9), (0, 0.9), (0, 0.1)] {
        let sampling = Sampling::new(1.0, top_k, top_p, 3).unwrap();
        let naive = Naive::new(&row, 1.0, top_k);
        let decided = (0..50).filter(|&index| {
            let drawn = sampling.draw(&row, index).unwrap().0 as usize;
            naive
                .draw(&naive.order, top_p, 3, index)
                .inspect(|&expected| assert_eq!(drawn, expected))
                .is_some()
        });
        assert!(decided.count() > 30);
    }
}

#[test]
fn the_likeliest_alone_is_the_lowest_of_equals() {
    for (top_k, top_p) in [(1, 1.0), (0, 1e-6)] {
        let sampling = Sampling::new(1.0, top_k, top_p, 9).unwrap();
        for index in 0..20 {
            assert_eq!(sampling.draw(&[1.0, 4.0, 4.0], index), Some(TokenId(1)));
        }
    }
}

#[test]
fn without_temperature_the_likeliest_is_said_whatever_else_is_asked() {
    let greedy = Sampling::new(0.0, 3, 0.4, 9).unwrap().with_min_p(0.5).unwrap();
    assert_eq!(greedy.draw(&[1.0, 4.0, 4.0], 0), Some(TokenId(1)));
    assert_eq!(greedy.draw(&[1.0, f32::NAN], 0), None);
}

#[test]
fn zeros_of_both_signs_are_equals() {
    let sampling = Sampling::new(1.0, 2, 1.0, 9).unwrap();
    let drawn: Vec<_> =
        (0..40).map(|index| sampling.draw(&[-0.0, 0.0, -0.0], index).unwrap()).collect();
    assert!(drawn.contains(&TokenId(0)) && drawn.contains(&TokenId(1)));
    assert!(!drawn.contains(&TokenId(2)));
}

#[test]
fn top_p_changes_no_token_but_those_that_it_forbids() {
    let row: Vec<f32> = (0..900).map(|token| ((token * 37 % 900) as f32).ln_1p()).collect();
    let (all, likeliest) = (Sampling::new(1.0, 0, 1.0, 5), Sampling::new(1.0, 0, 0.6, 5));
    let (all, likeliest) = (all.unwrap(), likeliest.unwrap());
    let allowed = Naive::new(&row, 1.0, 0).probabilities(0.6);
    let mut num_same = 0;
    for index in 0..200 {
        let (one, other) = (all.draw(&row, index).unwrap(), likeliest.draw(&row, index).unwrap());
        assert!(allowed[other.0 as usize] > 0.0);
        assert!(one == other || allowed[one.0 as usize] == 0.0);
        num_same += usize::from(one == other);
    }
    assert!((80..160).contains(&num_same), "{num_same}");
}

#[test]
fn unusable_rows_and_options_are_refused() {
    let sampling = Sampling::new(1.0, 0, 1.0, 0).unwrap();
    assert_eq!(sampling.draw(&[], 0), None);
    assert_eq!(sampling.draw(&[1.0, f32::NAN], 0), None);
    assert_eq!(sampling.draw(&[f32::INFINITY, 1.0], 0), None);
    assert_eq!(sampling.draw(&[f32::NEG_INFINITY; 2], 0), None);
    assert_eq!(sampling.draw(&[1.0, f32::NEG_INFINITY], 0), Some(TokenId(0)));
    for min_p in [-0.1, 1.1, f32::NAN] {
        assert!(sampling.clone().with_min_p(min_p).is_err());
    }
    for repetition in [0.0, -1.0, 101.0, f32::NAN] {
        let penalties = Penalties { repetition, ..Penalties::default() };
        assert!(sampling.clone().with_penalties(penalties).is_err());
    }
    for other in [-2.1, 2.1, f32::NAN, f32::INFINITY] {
        let (presence, frequency) = (other, other);
        for penalties in [
            Penalties { presence, ..Penalties::default() },
            Penalties { frequency, ..Penalties::default() },
        ] {
            assert!(sampling.clone().with_penalties(penalties).is_err());
        }
    }
    for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.1)] {
        assert!(Sampling::new(temperature, 0, top_p, 0).is_err());
    }
}

#[test]
fn why_nothing_was_chosen_is_told_and_the_row_is_as_before() {
    let forbidden = [(TokenId(0), f32::NEG_INFINITY), (TokenId(2), f32::NEG_INFINITY)];
    let bias = LogitBias::new(&forbidden).unwrap();
    for temperature in [0.0, 0.7] {
        let sampling = Sampling::new(temperature, 0, 1.0, 1).unwrap().with_logit_bias(bias.clone());
        for (given, told) in [
            ([1.0, f32::NEG_INFINITY, 2.0], Error::AllForbidden),
            ([1.0, f32::NAN, 2.0], Error::NonFiniteLogits { row: 7 }),
            ([f32::NAN, f32::NEG_INFINITY, 2.0], Error::NonFiniteLogits { row: 7 }),
            ([f32::NEG_INFINITY; 3], Error::NonFiniteLogits { row: 7 }),
        ] {
            let mut row = given;
            assert_eq!(sampling.choose(&mut row, 0, &mut SeenTokens::default()), None);
            assert_eq!(sampling.failure(&mut row, 7), told);
            assert_eq!(row.map(f32::to_bits), given.map(f32::to_bits));
        }
    }
}
