//! Against a twin that computes row by row and expert by expert, and each processor, number of rows and
//! order of tasks against all others.

mod case;
mod refusals;
mod twin;

use std::ops::Range;

use self::case::{Case, Panels, Random, Tasks};
use super::*;
use crate::kernels::Processor;
use crate::kernels::product::{Gate, WeightType};

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A case on a random processor beside the twin's for some rows; and some rows of it once more, in another
/// order, on another processor.
fn check(seed: u64, panels: &mut Panels, scratch: &mut Scratch) {
    let random = &mut Random(seed);
    let case = Case::random(random, panels);
    let processors = Processor::all();
    let tasks = [Tasks::Forwards, Tasks::Backwards];
    let (processor, dispatch) = (random.of(&processors), random.of(&tasks));
    let given = case.run(processor, scratch, dispatch);
    let (columns, chosen) = (case.layer.columns, case.layer.router.chosen);
    let of = |row: usize| &given.numbers[row * columns..][..columns];
    let experts_of = |row: usize| &given.chosen[row * chosen..][..chosen];
    for _ in 0..2 {
        let row = random.below(case.num_rows);
        let (numbers, experts) = twin::row(&case.layer, &case.inputs(), row);
        let what = format!("seed {seed}, row {row} on {}: {:?}", processor.name(), case.layer);
        assert_eq!(experts_of(row), experts, "{what}");
        assert_eq!(bits(of(row)), bits(&numbers), "{what}");
    }
    let picked: Vec<usize> =
        (0..1 + random.below(4)).map(|_| random.below(case.num_rows)).collect();
    let again = case.picked(&picked).run(random.of(&processors), scratch, dispatch);
    for (index, row) in picked.into_iter().enumerate() {
        let numbers = &again.numbers[index * columns..][..columns];
        assert_eq!(bits(numbers), bits(of(row)), "seed {seed}, row {row} of others");
        assert_eq!(&again.chosen[index * chosen..][..chosen], experts_of(row));
    }
}

/// Some of the 2,000 cases.
fn check_all(seeds: Range<u64>) {
    let (mut panels, mut scratch) = (Panels::default(), Scratch::default());
    seeds.for_each(|seed| check(seed, &mut panels, &mut scratch));
}

#[test]
fn a_row_is_what_its_experts_give_whatever_the_rows_beside_it() {
    check_all(0..400);
}

#[test]
fn a_row_is_what_its_experts_give_on_any_processor() {
    check_all(400..800);
}

/// A layer of sizes at which every phase has several tasks.
fn large(types: [WeightType; 3], gate: Gate, scoring: Scoring) -> Experts {
    Experts {
        columns: 256,
        size: 512,
        router: Router { experts: 20, chosen: 3, scoring, normed: Some(1e-6), share_scale: 1.5 },
        types,
        gate,
        epsilon: 1e-5,
        residual_scale: 0.5,
    }
}

#[test]
fn threads_change_no_bit() {
    let (random, mut panels) = (&mut Random(1), Panels::default());
    let types = [WeightType::Q4_K, WeightType::F32, WeightType::Q8_0];
    let layer = large(types, Gate::Silu, Scoring::Softmax);
    let case = Case::of(layer, 150, random, &mut panels);
    let processor = Processor::best();
    let of = |dispatch| case.run(processor, &mut Scratch::default(), dispatch);
    let (one, several) = (of(Tasks::Forwards), of(Tasks::OnThreads));
    assert_eq!(bits(&one.numbers), bits(&several.numbers));
    assert_eq!(one.chosen, several.chosen);
}

/// Rows whose scores are no numbers, or infinite, beside others.
#[test]
fn scores_that_are_no_numbers_spoil_their_row_alone() {
    let (random, mut panels) = (&mut Random(2), Panels::default());
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        let layer = large([WeightType::Q4_0; 3], Gate::Silu, scoring);
        let mut case = Case::of(layer, 3, random, &mut panels);
        (case.choice_bias, case.residual) = (None, None);
        let before = case.run(Processor::best(), &mut Scratch::default(), Tasks::Forwards);
        for (bad, at) in [
            (f32::NAN, vec![7]),
            (-f32::NAN, vec![19, 2]),
            (f32::NAN, (0..20).collect()),
            (f32::INFINITY, vec![3, 4]),
            (f32::NEG_INFINITY, (0..20).collect()),
        ] {
            let mut case = case.clone();
            at.iter().for_each(|expert| case.scores[20 + expert] = bad);
            for processor in Processor::all() {
                let given = case.run(processor, &mut Scratch::default(), Tasks::Forwards);
                let chosen = &given.chosen[3..6];
                if bad.is_nan() || bad > 0.0 {
                    let mut best = at.clone();
                    best.sort_unstable();
                    best.truncate(3);
                    assert_eq!(chosen[..best.len()], best, "the first are better");
                }
                if bad.is_nan() {
                    assert!(given.numbers[256..512].iter().all(|x| x.is_nan()));
                }
                for row in [0, 2] {
                    let of = |x: &[f32]| bits(&x[row * 256..][..256]);
                    assert_eq!(of(&given.numbers), of(&before.numbers));
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_first_experts_are_chosen() {
    let (random, mut panels) = (&mut Random(3), Panels::default());
    let layer = large([WeightType::F32; 3], Gate::Gelu, Scoring::Sigmoid);
    let mut case = Case::of(layer, 2, random, &mut panels);
    case.choice_bias = None;
    case.scores.fill(-0.0);
    [1, 5, 7].iter().for_each(|expert| case.scores[20 + expert] = 0.0);
    let given = case.run(Processor::best(), &mut Scratch::default(), Tasks::Forwards);
    assert_eq!(given.chosen, [0, 1, 2, 0, 1, 2], "both zeros are equal");
}

/// Checksums of layers: bits that do not hang on the processor, the system or the compiler.
#[test]
fn bits_are_those_of_every_machine() {
    let mut panels = Panels::default();
    let layers = [
        large([WeightType::Q4_0; 3], Gate::Silu, Scoring::Softmax),
        large([WeightType::MXFP4; 3], Gate::ClampedSwiglu, Scoring::Softmax),
        large([WeightType::Q4_K, WeightType::Q4_K, WeightType::Q6_K], Gate::Gelu, Scoring::Sigmoid),
        large([WeightType::F16, WeightType::Q8_0, WeightType::BF16], Gate::Silu, Scoring::Sigmoid),
    ];
    let mut seed = 0;
    let cases = layers.map(|layer| {
        seed += 1;
        Case::of(layer, 9, &mut Random(seed), &mut panels)
    });
    for processor in Processor::all() {
        let found = cases.each_ref().map(|case| {
            let mut checksum = crc32fast::Hasher::new();
            let given = case.run(processor, &mut Scratch::default(), Tasks::Forwards);
            given.numbers.iter().for_each(|x| checksum.update(&x.to_bits().to_le_bytes()));
            checksum.finalize()
        });
        assert_eq!(found, CHECKSUMS, "on {}: {found:#010x?}", processor.name());
    }
}

const CHECKSUMS: [u32; 4] = [0x6dce_ec3f, 0xd0fb_be5b, 0xa9be_bed2, 0xcaef_cbd8];
