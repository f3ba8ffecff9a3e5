//! Passes over a row of scores. In: scores. Out: the largest, where a score stands, how many reach one,
//! and the sum of the weights that a softmax gives them. Knows no tokens.
//!
//! Each pass runs over independent lanes and adds them up in a fixed order, in multiplications and
//! additions that round alike everywhere: the answer is the same to the last bit on every machine,
//! and with wide vector instructions, which are used where the machine has them.

/// Independent running values, so that the compiler keeps them in vector registers.
const LANES: usize = 16;

/// Those of passes whose answer does not depend on their number. With sixteen the compiler makes scalar
/// instructions of the search for the largest score, which takes five times as long.
const WIDE_LANES: usize = 32;

/// Weights at most 2^-120 of the largest are left out: no sum of others would change by them.
const LEAST_POWER: f32 = -120.0;

/// Adding it rounds to an integer, which then stands in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// Scores whose exponentials are added up in single precision.
const PART: usize = 1024;

/// A function that is compiled once for any machine, and once more for the wide vectors of some.
macro_rules! pass {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $out:ty) => {
        $(#[$doc])*
        #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "checked at run time"))]
        pub(crate) fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) -> $out {
                    anywhere::$name($($argument),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the machine has what the function is compiled for.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            anywhere::$name($($argument),*)
        }
    };
}

pass! {
    /// The largest score; `None` when NaN is among them, minus infinity when there are none.
    max_without_nan(scores: &[f32]) -> Option<f32>
}

pass! {
    /// The index of the first score that equals `wanted`.
    position(scores: &[f32], wanted: f32) -> Option<usize>
}

pass! {
    /// How many scores are at least `least`, which is not NaN.
    count_at_least(scores: &[f32], least: f32) -> usize
}

pass! {
    /// The sum of the weights of all scores that are at least `least`; none is NaN, or above the
    /// largest.
    sum_of_weights(scores: &[f32], weight: Weight, least: f32) -> f32
}

pass! {
    /// The sum of the exponentials of what scores are below `largest`; none is NaN, or above it, which
    /// is finite. Right to six digits.
    sum_of_exponentials(scores: &[f32], largest: f32) -> f64
}

/// What a softmax gives a score, as a share of what it gives the largest one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    largest: f32,
    /// Powers of two for a difference of 1.
    scale: f32,
}

impl Weight {
    /// For the softmax of `scores / temperature`, where `largest`, a finite one, is the largest of
    /// them, and the temperature is positive.
    pub fn new(largest: f32, temperature: f32) -> Self {
        Self { largest, scale: (std::f32::consts::LOG2_E / temperature).min(f32::MAX) }
    }

    /// The least score whose weight counts; what is between it and the largest is finite.
    pub fn least_score(self) -> f32 {
        let mut least = self.largest + LEAST_POWER / self.scale;
        if (least - self.largest) * self.scale < LEAST_POWER {
            // Rounded down, perhaps to where powers are too small for a weight.
            least = least.next_up();
        }
        least.max(self.largest - f32::MAX).max(f32::MIN)
    }

    /// The score that weighs `share` of the largest, above 0 and at most 1; not below
    /// [`least_score`](Self::least_score), and rounded alike everywhere.
    pub fn score_of(self, share: f32) -> f32 {
        // A bisection over weights, since logarithms round differently from machine to machine.
        let (mut low, mut high) = (LEAST_POWER, 0.0);
        while (low + high) / 2.0 > low && (low + high) / 2.0 < high {
            let middle: f32 = (low + high) / 2.0;
            let unit = Self { largest: 0.0, scale: 1.0 };
            if unit.of(middle) >= share { high = middle } else { low = middle }
        }
        (self.largest + high / self.scale).max(self.least_score())
    }

    /// The weight of a score: 1 for the largest, right to five digits. Of one that is not at least
    /// [`least_score`](Self::least_score) it is any number, or none.
    #[inline(always)]
    pub fn of(self, score: f32) -> f32 {
        let power = (score - self.largest) * self.scale;
        let rounded = power + ROUND;
        let rest = power - (rounded - ROUND);
        // The polynomial nearest to 2^rest over -0.5 .. 0.5 that is 1 at 0.
        let tail = 0.240_240_99 + rest * (0.055_906_426 + rest * 0.009_582_853);
        let fraction = 1.0 + rest * (0.693_124_2 + rest * tail);
        f32::from_bits(fraction.to_bits().wrapping_add(rounded.to_bits() << 23))
    }
}

/// The passes, in steps that the compiler makes vector instructions of.
mod anywhere {
    use super::{LANES, LEAST_POWER, PART, ROUND, WIDE_LANES, Weight};

    #[inline(always)]
    pub fn max_without_nan(scores: &[f32]) -> Option<f32> {
        let (groups, rest) = scores.as_chunks::<WIDE_LANES>();
        let mut largest = [f32::NEG_INFINITY; WIDE_LANES];
        // NaN makes every sum NaN: one addition a score, where a comparison of its own costs two steps.
        let mut sums = [0.0; WIDE_LANES];
        for group in groups {
            for lane in 0..WIDE_LANES {
                largest[lane] =
                    if group[lane] > largest[lane] { group[lane] } else { largest[lane] };
                sums[lane] += group[lane];
            }
        }
        for (lane, &score) in rest.iter().enumerate() {
            largest[lane] = if score > largest[lane] { score } else { largest[lane] };
            sums[lane] += score;
        }
        // Infinities of both signs add up to NaN too, so what is suspected is looked at.
        let sum = folded(sums, |one, other| one + other);
        if sum.is_nan() && scores.iter().any(|score| score.is_nan()) {
            return None;
        }
        Some(folded(largest, |one, other| if other > one { other } else { one }))
    }

    #[inline(always)]
    pub fn position(scores: &[f32], wanted: f32) -> Option<usize> {
        let (groups, _) = scores.as_chunks::<WIDE_LANES>();
        // All of a group is compared: a search that may end at any score takes one at a time.
        let holds = |group: &[f32; WIDE_LANES]| {
            group.iter().fold(0, |any, &score| any | u32::from(score == wanted)) != 0
        };
        let start = WIDE_LANES * groups.iter().position(holds).unwrap_or(groups.len());
        let found = scores[start..].iter().position(|&score| score == wanted)?;
        Some(start + found)
    }

    #[inline(always)]
    pub fn count_at_least(scores: &[f32], least: f32) -> usize {
        scores.iter().map(|&score| u32::from(score >= least)).sum::<u32>() as usize
    }

    #[inline(always)]
    pub fn sum_of_weights(scores: &[f32], weight: Weight, least: f32) -> f32 {
        let least = least.max(weight.least_score());
        let counted = |score: f32| if score >= least { weight.of(score) } else { 0.0 };
        let (groups, rest) = scores.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for group in groups {
            for lane in 0..LANES {
                sums[lane] += counted(group[lane]);
            }
        }
        for (lane, &score) in rest.iter().enumerate() {
            sums[lane] += counted(score);
        }
        folded(sums, |one, other| one + other)
    }

    #[inline(always)]
    pub fn sum_of_exponentials(scores: &[f32], largest: f32) -> f64 {
        let mut total = 0.0;
        for part in scores.chunks(PART) {
            let (groups, rest) = part.as_chunks::<LANES>();
            let mut sums = [0.0; LANES];
            for group in groups {
                for lane in 0..LANES {
                    sums[lane] += exponential(group[lane] - largest);
                }
            }
            for (lane, &score) in rest.iter().enumerate() {
                sums[lane] += exponential(score - largest);
            }
            total += f64::from(folded(sums, |one, other| one + other));
        }
        total
    }

    /// `e` to the power of `x`, which is not positive, within a few units in the last place; 0 where
    /// no sum of such powers, one of them 1, would change by it.
    #[inline(always)]
    fn exponential(x: f32) -> f32 {
        let power = x * std::f32::consts::LOG2_E;
        let rounded = power + ROUND;
        let rest = power - (rounded - ROUND);
        // The polynomial nearest to 2^rest over -0.5 .. 0.5 that is 1 at 0, as in `kernels/exp.rs`.
        let tail = 5.550_891_5e-2 + rest * (9.671_763e-3 + rest * 1.322_570_7e-3);
        let fraction = 1.0 + rest * (6.931_468e-1 + rest * (2.402_223_6e-1 + rest * tail));
        let found = f32::from_bits(fraction.to_bits().wrapping_add(rounded.to_bits() << 23));
        if power >= LEAST_POWER { found } else { 0.0 }
    }

    /// One value of all lanes: each of the first half with that of the second, and so on.
    #[inline(always)]
    fn folded<const NUM_LANES: usize>(
        mut lanes: [f32; NUM_LANES],
        fold: impl Fn(f32, f32) -> f32,
    ) -> f32 {
        let mut num_lanes = NUM_LANES;
        while num_lanes > 1 {
            num_lanes /= 2;
            for lane in 0..num_lanes {
                lanes[lane] = fold(lanes[lane], lanes[lane + num_lanes]);
            }
        }
        lanes[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Scores of all kinds, at lengths that end within a group of lanes.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let odd = prop::sample::select(vec![0.0, -0.0, f32::NEG_INFINITY, f32::MIN, 1e-40]);
        let score = prop_oneof![8 => -30.0f32..30.0, 4 => (-4i8..4).prop_map(f32::from), 1 => odd];
        prop::collection::vec(score, 1..5 * WIDE_LANES)
    }

    proptest! {
        #[test]
        fn wide_vectors_change_no_bit(row in rows(), least in -30.0f32..30.0, t in 0.01f32..9.0) {
            let largest = max_without_nan(&row).unwrap();
            prop_assert_eq!(Some(largest), anywhere::max_without_nan(&row));
            let weight = Weight::new(largest, t);
            for least in [least, f32::MIN] {
                let sum = sum_of_weights(&row, weight, least);
                let narrow = anywhere::sum_of_weights(&row, weight, least);
                prop_assert_eq!(sum.to_bits(), narrow.to_bits());
                prop_assert_eq!(count_at_least(&row, least), anywhere::count_at_least(&row, least));
            }
            let sum = sum_of_exponentials(&row, largest);
            let narrow = anywhere::sum_of_exponentials(&row, largest);
            prop_assert_eq!(sum.to_bits(), narrow.to_bits());
        }

        #[test]
        fn passes_equal_their_naive_twins(row in rows(), least in -9.0f32..9.0, t in 0.01f32..9.0) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(max_without_nan(&row), Some(largest));
            for wanted in [largest, least] {
                let expected = row.iter().position(|&score| score == wanted);
                prop_assert_eq!(position(&row, wanted), expected);
            }
            let counted = row.iter().filter(|&&score| score >= least);
            prop_assert_eq!(count_at_least(&row, least), counted.clone().count());
            prop_assume!(largest.is_finite());
            let term = |score: &f32| (f64::from(score - largest) / f64::from(t)).exp();
            let expected: f64 = counted.map(term).sum();
            let sum = f64::from(sum_of_weights(&row, Weight::new(largest, t), least));
            prop_assert!((sum - expected).abs() <= 2e-4 * expected + 1e-30, "{sum}, not {expected}");
            let expected: f64 = row.iter().map(|score| f64::from(score - largest).exp()).sum();
            let sum = sum_of_exponentials(&row, largest);
            prop_assert!((sum - expected).abs() <= 2e-6 * expected, "{sum}, not {expected}");
        }

        #[test]
        fn weights_are_right_to_five_digits(power in -119.0f32..0.0) {
            let weight = Weight { largest: 0.0, scale: 1.0 };
            let expected = f64::from(power).exp2();
            prop_assert!((f64::from(weight.of(power)) - expected).abs() < 3.5e-6 * expected);
        }

        #[test]
        fn nan_is_found_wherever_it_stands(row in rows(), at in any::<prop::sample::Index>()) {
            let mut row = row;
            let at = at.index(row.len());
            row[at] = f32::NAN;
            prop_assert_eq!(max_without_nan(&row), None);
        }

        #[test]
        fn weights_that_count_are_shares(
            largest in -1e6f32..1e6,
            num_steps in 0u32..9,
            power in -300.0f32..-100.0,
        ) {
            // So low a temperature that scores next to each other are worlds apart.
            let score = (0..num_steps).fold(largest, |score, _| score.next_down());
            let step = f64::from(largest) - f64::from(largest.next_down());
            let temperature = step * std::f64::consts::LOG2_E / -f64::from(power);
            let weight = Weight::new(largest, temperature as f32);
            if score >= weight.least_score() {
                prop_assert!((0.0..=1.0).contains(&weight.of(score)), "{}", weight.of(score));
            }
        }
    }

    #[test]
    fn infinities_are_no_nan() {
        let row = [f32::INFINITY, f32::NEG_INFINITY, 0.0];
        assert_eq!(max_without_nan(&row), Some(f32::INFINITY));
    }

    #[test]
    fn only_the_largest_counts_at_the_lowest_temperatures_and_all_at_the_highest() {
        let row = [1.0, f32::NEG_INFINITY, 0.999, 1.0, f32::MIN];
        for temperature in [f32::MIN_POSITIVE, 1e-45] {
            assert_eq!(sum_of_weights(&row, Weight::new(1.0, temperature), f32::MIN), 2.0);
        }
        let row = [f32::MAX, f32::NEG_INFINITY, 0.0];
        let sum = sum_of_weights(&row, Weight::new(f32::MAX, 1e38), f32::MIN);
        assert!((sum - 1.033_28).abs() < 1e-5, "{sum}");
    }
}
