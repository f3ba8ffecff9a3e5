//! Against a twin in float64, and each processor, width, tile and range against all others.

pub(in crate::kernels) mod twin;

use proptest::prelude::*;
use proptest::sample::select;

use self::twin::{block, half};
use super::*;
use crate::kernels::Processor;

/// A matrix as a file has it, and what its weights are.
struct Matrix {
    kind: WeightType,
    outputs: usize,
    columns: usize,
    panels: Vec<u8>,
    weights: Vec<f64>,
}

impl Matrix {
    fn new(
        kind: WeightType,
        outputs: usize,
        columns: usize,
        mut random: impl FnMut() -> u32,
    ) -> Self {
        let blocks = columns.div_ceil(kind.block_weights());
        let (mut rows, mut weights) = (Vec::new(), Vec::new());
        for _ in 0..outputs {
            let mut row = Vec::new();
            for _ in 0..blocks {
                let (stored, block) = block(kind, &mut random);
                assert_eq!(stored.len(), kind.block_bytes());
                rows.extend(stored);
                row.extend(block);
            }
            weights.extend(&row[..columns]);
        }
        let mut panels = vec![0; kind.num_bytes(outputs, columns)];
        to_panels(kind, blocks, &rows, &mut panels);
        Self { kind, outputs, columns, panels, weights }
    }

    /// Products of rows as they stand, range by range.
    fn times(&self, processor: Processor, x: &[f32], ranges: usize) -> Vec<f32> {
        self.times_of(processor, Source::Plain(x), x.len() / self.columns, ranges)
    }

    /// Products of `rows` rows.
    fn times_of(
        &self,
        processor: Processor,
        source: Source<'_>,
        rows: usize,
        ranges: usize,
    ) -> Vec<f32> {
        let tiling = Tiling::new(rows, self.columns, self.kind.is_float(), processor);
        let mut packed = vec![0xa5; tiling.num_bytes()];
        let mut products = vec![f32::NAN; rows * self.outputs];
        let weights = Weights { kind: self.kind, outputs: self.outputs, panels: &self.panels };
        let to = Destination { to: products.as_mut_ptr(), stride: self.outputs };
        let panels = self.outputs.div_ceil(WIDTH);
        // SAFETY: all have their sizes, and there is one thread.
        unsafe {
            let to_pack = packed.as_mut_ptr();
            round_rows(processor, source, None, self.columns, tiling, 0..rows, to_pack);
            for range in 0..ranges {
                let panels = range * panels / ranges..(range + 1) * panels / ranges;
                multiply(
                    processor,
                    packed.as_ptr(),
                    tiling,
                    weights,
                    panels,
                    Epilogue::default(),
                    to,
                );
            }
        }
        products
    }
}

fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed | 1;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

fn numbers(count: usize, random: &mut impl FnMut() -> u32) -> Vec<f32> {
    (0..count).map(|_| (random() as f32 / (1u64 << 30) as f32 - 1.0) * 3.0).collect()
}

const EPSILON: f32 = 1e-5;

/// Numbers of a row that is made in a way.
fn numbers_of(way: i32, columns: usize) -> usize {
    if way == 0 { columns } else { 2 * columns }
}

/// Rows that are made in a way.
fn made<'a>(way: i32, x: &'a [f32], weight: &'a [f32]) -> Source<'a> {
    match way {
        0 => Source::Normed { x, weight, epsilon: EPSILON },
        1 => Source::Gated(x, Gate::Silu),
        2 => Source::Gated(x, Gate::Gelu),
        3 => Source::Gated(x, Gate::Sigmoid),
        _ => Source::Gated(x, Gate::ClampedSwiglu),
    }
}

/// `columns`, or as many as such rows can have that are no fewer.
fn fitting(kind: WeightType, columns: usize) -> usize {
    if kind.fits(columns) { columns } else { columns.next_multiple_of(kind.block_weights()) }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_row_has_the_same_bits_at_every_width_on_every_processor(
        kind in select(&WeightType::ALL),
        outputs in 1usize..70,
        columns in 1usize..200,
        rows in 1usize..=64,
        ranges in 1usize..4,
        seed: u64,
    ) {
        let columns = fitting(kind, columns);
        let mut random = random(seed);
        let matrix = Matrix::new(kind, outputs, columns, &mut random);
        let x = numbers(rows * columns, &mut random);
        let expected: Vec<f32> = x
            .chunks(columns)
            .flat_map(|row| matrix.times(Processor::all()[0], row, 1))
            .collect();
        for processor in Processor::all() {
            let products = matrix.times(processor, &x, ranges);
            prop_assert_eq!(bits(&products), bits(&expected), "{}", processor.name());
        }
    }

    #[test]
    fn rows_that_are_made_have_the_same_bits_at_every_width_on_every_processor(
        kind in select(&WeightType::ALL),
        way in 0..5,
        columns in 1usize..200,
        rows in 1usize..=40,
        seed: u64,
    ) {
        let columns = fitting(kind, columns);
        let mut random = random(seed);
        let matrix = Matrix::new(kind, 18, columns, &mut random);
        let x = numbers(2 * rows * columns, &mut random);
        let weight = numbers(columns, &mut random);
        let size = numbers_of(way, columns);
        let expected: Vec<f32> = x[..rows * size]
            .chunks(size)
            .flat_map(|row| matrix.times_of(Processor::all()[0], made(way, row, &weight), 1, 1))
            .collect();
        for processor in Processor::all() {
            let source = made(way, &x[..rows * size], &weight);
            let products = matrix.times_of(processor, source, rows, 1);
            prop_assert_eq!(bits(&products), bits(&expected), "{}", processor.name());
        }
    }

    #[test]
    fn rows_that_are_made_are_normed_or_gated(
        way in 0..5,
        columns in 1usize..200,
        size in select(&[1e-3f32, 1.0, 40.0]),
        seed: u64,
    ) {
        let mut random = random(seed);
        let x: Vec<f32> = numbers(2 * columns, &mut random).iter().map(|x| x * size).collect();
        let weight = numbers(columns, &mut random);
        let x = &x[..numbers_of(way, columns)];
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let wanted_rows: Vec<f32> = match way {
            0 => {
                let mean = wide.iter().map(|x| x * x).sum::<f64>() / columns as f64;
                let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
                wide.iter().zip(&weight).map(|(x, w)| (x * factor * f64::from(*w)) as f32).collect()
            }
            _ => wide[..columns]
                .iter()
                .zip(&wide[columns..])
                .map(|(x, by)| {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    let sigmoid = 1.0 / (1.0 + (-x).exp());
                    let gelu = 0.5 * x * (1.0 + inner.tanh());
                    let clamped = x.min(7.0) / (1.0 + (-1.702 * x.min(7.0)).exp());
                    let gated = match way {
                        1 => x * sigmoid * by,
                        2 => gelu * by,
                        3 => sigmoid * by,
                        _ => clamped * (by.clamp(-7.0, 7.0) + 1.0),
                    };
                    gated as f32
                })
                .collect(),
        };
        let matrix = Matrix::new(WeightType::Q8_0, 5, columns, &mut random);
        let products = matrix.times_of(Processor::best(), made(way, x, &weight), 1, 1);
        for (got, weights) in products.iter().zip(matrix.weights.chunks(columns)) {
            let wanted: f64 = weights.iter().zip(&wanted_rows).map(|(w, x)| w * f64::from(*x)).sum();
            // A block's numbers are rounded in steps of a 127th of the largest.
            let most = |block: &[f32]| block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let off: f64 = weights
                .chunks(BLOCK)
                .zip(wanted_rows.chunks(BLOCK))
                .map(|(w, x)| f64::from(most(x)) * w.iter().map(|w| w.abs()).sum::<f64>())
                .sum();
            prop_assert!((f64::from(*got) - wanted).abs() <= off / 127.0 * 0.52 + 1e-12);
        }
    }

    #[test]
    fn products_are_those_of_rounded_rows(
        kind in select(&WeightType::ALL),
        outputs in 1usize..40,
        columns in 1usize..200,
        seed: u64,
    ) {
        let columns = fitting(kind, columns);
        let mut random = random(seed);
        let matrix = Matrix::new(kind, outputs, columns, &mut random);
        let x = numbers(columns, &mut random);
        let rounded: Vec<f64> = x
            .chunks(BLOCK)
            .flat_map(|block| {
                let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let step = f64::from(largest / 127.0);
                block.iter().map(move |x| (x * (127.0 / largest)).round_ties_even() as f64 * step)
            })
            .collect();
        let rounded = match kind.is_float() {
            true => x.iter().map(|x| f64::from(*x)).collect(),
            false => rounded,
        };
        let products = matrix.times(Processor::best(), &x, 1);
        for (got, weights) in products.iter().zip(matrix.weights.chunks(columns)) {
            let terms = weights.iter().zip(&rounded).map(|(w, x)| w * x);
            let (wanted, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            prop_assert!((f64::from(*got) - wanted).abs() <= 3e-6 * size.max(1e-9));
        }
    }
}

#[test]
fn rows_are_read_out_of_panels() {
    let mut random = random(5);
    for kind in WeightType::ALL {
        let columns = fitting(kind, 77);
        let matrix = Matrix::new(kind, 37, columns, &mut random);
        let weights = Weights { kind, outputs: 37, panels: &matrix.panels };
        let numbers = [36, 0, 17, 17, 5];
        for processor in Processor::all() {
            let mut rows = vec![f32::NAN; numbers.len() * columns];
            read_rows(processor, weights, columns, &numbers, &mut rows);
            for (number, row) in numbers.iter().zip(rows.chunks(columns)) {
                let wanted = &matrix.weights[number * columns..][..columns];
                let most = wanted.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let is_near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= 1e-5 * most;
                assert!(row.iter().zip(wanted).all(is_near), "{}", kind.name());
            }
        }
    }
}

/// So many columns are multiplied in three parts, between which sums wait in the destination.
#[test]
fn parts_of_columns_change_no_bit_and_what_is_added_comes_last_and_once() {
    let (outputs, columns, most) = (37, 1100, 14);
    let mut random = random(13);
    let bias = numbers(outputs, &mut random);
    let residual = numbers(most * outputs, &mut random);
    let x = numbers(most * columns, &mut random);
    for kind in WeightType::ALL.into_iter().filter(|kind| kind.is_float()) {
        let matrix = Matrix::new(kind, outputs, columns, &mut random);
        // A row alone is multiplied at once.
        let alone: Vec<f32> = x
            .chunks(columns)
            .flat_map(|row| matrix.times(Processor::all()[0], row, 1))
            .zip(bias.iter().cycle().zip(&residual))
            .map(|(product, (bias, residual))| (product + bias) + residual)
            .collect();
        for processor in Processor::all() {
            for rows in 1..=most {
                let tiling = Tiling::new(rows, columns, true, processor);
                let mut packed = vec![0xa5; tiling.num_bytes()];
                let mut products = vec![f32::NAN; rows * outputs];
                let weights = Weights { kind, outputs, panels: &matrix.panels };
                let epilogue = Epilogue { bias: Some(&bias), residual: Some(&residual) };
                let to = Destination { to: products.as_mut_ptr(), stride: outputs };
                let source = Source::Plain(&x[..rows * columns]);
                // SAFETY: all have their sizes, and there is one thread.
                unsafe {
                    let to_pack = packed.as_mut_ptr();
                    round_rows(processor, source, None, columns, tiling, 0..rows, to_pack);
                    multiply(processor, to_pack, tiling, weights, 0..3, epilogue, to);
                }
                assert_eq!(bits(&products), bits(&alone[..rows * outputs]), "{rows} rows");
            }
        }
    }
}

/// As where ONNX Runtime is told to write products where it reads the residual.
#[test]
fn products_may_be_written_over_their_residual() {
    let (outputs, columns, rows) = (37, 1280, 14);
    let mut random = random(14);
    let residual = numbers(rows * outputs, &mut random);
    let x = numbers(rows * columns, &mut random);
    for kind in WeightType::ALL {
        let matrix = Matrix::new(kind, outputs, columns, &mut random);
        let products = matrix.times(Processor::all()[0], &x, 1);
        let wanted: Vec<f32> = products.iter().zip(&residual).map(|(x, by)| x + by).collect();
        for processor in Processor::all() {
            let tiling = Tiling::new(rows, columns, kind.is_float(), processor);
            let mut packed = vec![0xa5; tiling.num_bytes()];
            let mut shared = residual.clone();
            let weights = Weights { kind, outputs, panels: &matrix.panels };
            let to = shared.as_mut_ptr();
            // SAFETY: all have their sizes, and there is one thread.
            unsafe {
                let epilogue = std::slice::from_raw_parts(to.cast_const(), rows * outputs);
                let epilogue = Epilogue { bias: None, residual: Some(epilogue) };
                let to = Destination { to, stride: outputs };
                let to_pack = packed.as_mut_ptr();
                let source = Source::Plain(&x);
                round_rows(processor, source, None, columns, tiling, 0..rows, to_pack);
                multiply(processor, to_pack, tiling, weights, 0..3, epilogue, to);
            }
            let name = (kind.name(), processor.name());
            assert_eq!(bits(&shared), bits(&wanted), "{name:?}");
        }
    }
}

#[test]
fn rows_are_picked_by_their_numbers() {
    let mut random = random(15);
    for kind in [WeightType::Q4_K, WeightType::F16] {
        let x = numbers(5 * 256, &mut random);
        let picked = [3, 0, 0, 4, 2, 3, 1];
        for processor in Processor::all() {
            let pack = |x: &[f32], picked: Option<&[u32]>, rows: usize| {
                let tiling = Tiling::new(rows, 256, kind.is_float(), processor);
                let mut packed = vec![0; tiling.num_bytes()];
                let (source, to) = (Source::Plain(x), packed.as_mut_ptr());
                // SAFETY: all have their sizes, and there is one thread.
                unsafe { round_rows(processor, source, picked, 256, tiling, 0..rows, to) };
                packed
            };
            let gathered: Vec<f32> =
                picked.iter().flat_map(|row| x[256 * *row as usize..][..256].to_vec()).collect();
            assert_eq!(pack(&x, Some(&picked), 7), pack(&gathered, None, 7));
        }
    }
}

#[test]
fn what_is_no_number_spoils_its_row_alone() {
    let mut random = random(7);
    for kind in WeightType::ALL {
        let columns = fitting(kind, 64);
        let matrix = Matrix::new(kind, 20, columns, &mut random);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = numbers(3 * columns, &mut random);
            x[columns + 40] = bad;
            for processor in Processor::all() {
                let products = matrix.times(processor, &x, 1);
                let is_finite: Vec<bool> = products.iter().map(|x| x.is_finite()).collect();
                assert_eq!(is_finite, [[true; 20], [false; 20], [true; 20]].concat());
            }
        }
    }
}

#[test]
fn any_bits_are_rounded_alike() {
    let mut random = random(11);
    let matrix = Matrix::new(WeightType::Q4_1, 16, BLOCK, &mut random);
    for round in 0..4096 {
        // Exponents of all numbers near each other, and now and then any bits.
        let exponent = random() & 0x7f80_0000;
        let x: Vec<f32> = (0..BLOCK)
            .map(|_| match random() {
                any if round % 4 == 0 => f32::from_bits(any << 1 ^ random()),
                near => f32::from_bits(near << 8 & 0x807f_ffff | exponent),
            })
            .collect();
        let of = |processor| {
            let products = matrix.times(processor, &x, 1);
            // NaN may have any bits.
            products.into_iter().map(|x| if x.is_nan() { None } else { Some(x.to_bits()) })
        };
        for processor in Processor::all() {
            assert!(of(processor).eq(of(Processor::all()[0])), "{x:?} on {}", processor.name());
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    // What is narrow within a processor would overflow here first.
    for kind in WeightType::ALL {
        let columns = fitting(kind, 64);
        for random in [0x5555_5555, 0x6aaa_aaaa, 0x7fff_ffff, 0x7f7f_7f7f, 0x0080_8080, 0] {
            let matrix = Matrix::new(kind, 16, columns, || random);
            for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
                let x: Vec<f32> = (0..columns).map(|column| signs[column % 2]).collect();
                let expected = bits(&matrix.times(Processor::all()[0], &x, 1));
                for processor in Processor::all() {
                    let products = matrix.times(processor, &x, 1);
                    assert_eq!(bits(&products), expected, "{kind:?} on {}", processor.name());
                }
            }
        }
    }
}

#[test]
fn zeros_and_the_least_numbers_give_zeros() {
    let mut random = random(9);
    for kind in WeightType::ALL {
        let columns = fitting(kind, 50);
        let matrix = Matrix::new(kind, 17, columns, &mut random);
        for least in [0.0, -0.0, f32::from_bits(1)] {
            for processor in Processor::all() {
                let products = matrix.times(processor, &vec![least; columns], 1);
                assert!(products.iter().all(|x| x.abs() < 1e-35), "{}", processor.name());
            }
        }
    }
}

#[test]
fn every_float16_is_read_alike() {
    for processor in Processor::all() {
        for bits in 0..=u16::MAX {
            let (kept, wanted) = half(bits);
            if kept != bits || bits % 16 != 0 {
                continue;
            }
            // A matrix of one output whose scale is the float16, and a row whose first number is 127.
            let stored = [kept.to_le_bytes().as_slice(), &[1; 32]].concat();
            let mut panels = vec![0; WeightType::Q8_0.num_bytes(1, 32)];
            to_panels(WeightType::Q8_0, 1, &stored, &mut panels);
            let matrix = Matrix {
                kind: WeightType::Q8_0,
                outputs: 1,
                columns: 32,
                panels,
                weights: Vec::new(),
            };
            let mut x = [0.0; 32];
            x[0] = 127.0;
            let product = matrix.times(processor, &x, 1)[0];
            assert_eq!(f64::from(product), 127.0 * wanted, "{bits:#x} on {}", processor.name());
        }
    }
}

#[test]
fn no_bytes_of_weights_are_refused() {
    let mut random = random(11);
    for kind in WeightType::ALL {
        let columns = fitting(kind, 40);
        let blocks = columns.div_ceil(kind.block_weights());
        for fill in [Some(0), Some(0xff), None] {
            let bytes = 18 * blocks * kind.block_bytes();
            let rows: Vec<u8> = (0..bytes).map(|_| fill.unwrap_or(random() as u8)).collect();
            let mut panels = vec![0; kind.num_bytes(18, columns)];
            to_panels(kind, blocks, &rows, &mut panels);
            let matrix = Matrix { kind, outputs: 18, columns, panels, weights: Vec::new() };
            let x = numbers(3 * columns, &mut random);
            let one = matrix.times(Processor::all()[0], &x, 1);
            for processor in Processor::all() {
                let products = matrix.times(processor, &x, 1);
                // Of what is no number, processors may keep other bits.
                let same =
                    |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(
                    products.iter().zip(&one).all(same),
                    "{} {}",
                    kind.name(),
                    processor.name()
                );
            }
        }
    }
}

/// Checksums of products of every type, of rows as they are, normed and gated: bits that do not hang on
/// the processor, the system or the compiler.
#[test]
fn bits_are_those_of_every_machine() {
    for (kind, expected) in WeightType::ALL.into_iter().zip(CHECKSUMS) {
        let mut random = random(5);
        let (rows, columns) = (7, fitting(kind, 200));
        let matrix = Matrix::new(kind, 50, columns, &mut random);
        let x = numbers(rows * 2 * columns, &mut random);
        let weight = numbers(columns, &mut random);
        let plain = Source::Plain(&x[..rows * columns]);
        let normed = Source::Normed { x: &x[..rows * columns], weight: &weight, epsilon: EPSILON };
        let sources = [plain, normed, Source::Gated(&x, Gate::Silu), Source::Gated(&x, Gate::Gelu)];
        for processor in Processor::all() {
            let mut checksum = crc32fast::Hasher::new();
            for source in sources {
                for product in matrix.times_of(processor, source, rows, 2) {
                    checksum.update(&product.to_bits().to_le_bytes());
                }
            }
            assert_eq!(checksum.finalize(), expected, "{kind:?} on {}", processor.name());
        }
    }
}

const CHECKSUMS: [u32; WeightType::ALL.len()] = [
    0x4b3d_cf07,
    0x178e_8728,
    0x4e7d_c043,
    0x419a_a270,
    0xf607_c514,
    0xe8d3_ee41,
    0x202f_452e,
    0x7e80_d945,
    0xe8af_0b3f,
    0x1294_aa09,
    0x1001_3e0c,
    0x9d38_12eb,
    0x853a_e1f6,
    0x167d_3379,
    0xbc39_b9d2,
    0x92d7_f3d1,
];
