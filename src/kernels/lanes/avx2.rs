//! AVX2 with fused multiply-adds and float16, with and without integer products (AVX-VNNI): two
//! registers for sixteen lanes.

use std::arch::x86_64::*;

use super::{LARGEST, Lanes};

/// A processor with AVX2, FMA and F16C, and where it is `WITH_VNNI` AVX-VNNI.
#[derive(Clone, Copy)]
pub struct Avx2<const WITH_VNNI: bool>;

/// Both halves of two operands.
macro_rules! both {
    ($function:ident($($operand:expr),*)) => {
        unsafe { [$function($($operand[0]),*), $function($($operand[1]),*)] }
    };
}

impl<const WITH_VNNI: bool> Lanes for Avx2<WITH_VNNI> {
    type Floats = [__m256; 2];
    type Integers = [__m256i; 2];
    type Bytes = [__m256i; 2];
    const VECTORS: usize = 1;
    /// Without integer products sums of 16 bits.
    type Partial = [__m256i; 2];
    const ROWS: usize = 6;
    const LESS: i32 = if WITH_VNNI { 0 } else { 128 };

    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [[__m256; 2]; 4] {
        unsafe {
            let (first, second) = (columns(from, stride), columns(from.add(8 * stride), stride));
            [
                [first[0], second[0]],
                [first[1], second[1]],
                [first[2], second[2]],
                [first[3], second[3]],
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u16) -> [__m256; 2] {
        unsafe {
            let half = |at: *const u16| _mm256_cvtph_ps(_mm_loadu_si128(at.cast()));
            [half(from), half(from.add(8))]
        }
    }

    #[inline(always)]
    unsafe fn load_upper_halves(from: *const u16) -> [__m256; 2] {
        unsafe { [upper_halves(from), upper_halves(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    unsafe fn subtract(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    unsafe fn multiply(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    unsafe fn divide(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    unsafe fn fused(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn larger(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        both!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    unsafe fn largest(x: [__m256; 2]) -> f32 {
        unsafe { largest(_mm256_max_ps(x[0], x[1])) }
    }

    #[inline(always)]
    unsafe fn exponents(x: [__m256; 2]) -> [__m256; 2] {
        both!(exponents(x))
    }

    #[inline(always)]
    unsafe fn splat_integer(x: i32) -> [__m256i; 2] {
        [unsafe { _mm256_set1_epi32(x) }; 2]
    }

    #[inline(always)]
    unsafe fn to_floats(x: [__m256i; 2]) -> [__m256; 2] {
        both!(_mm256_cvtepi32_ps(x))
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> ([__m256i; 2], [__m256i; 2]) {
        let loaded = unsafe { Self::load_bytes(from) };
        (both!(low(loaded)), both!(high(loaded)))
    }

    #[inline(always)]
    unsafe fn shifted(x: [__m256i; 2], right: i32, mask: u8) -> [__m256i; 2] {
        unsafe { [shifted(x[0], right, mask), shifted(x[1], right, mask)] }
    }

    #[inline(always)]
    unsafe fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    unsafe fn looked_up(x: [__m256i; 2], table: &[u8; 16]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }

    #[inline(always)]
    unsafe fn widened(from: *const u8) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn widened_signed(from: *const i8) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn field(x: [__m256i; 2], from: u32, mask: i32, to: u32) -> [__m256i; 2] {
        unsafe { [field(x[0], from, mask, to), field(x[1], from, mask, to)] }
    }

    #[inline(always)]
    unsafe fn add_integers(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        both!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn most_dots(most: i32) -> usize {
        // A lane of 16 bits gets two products at a time.
        if WITH_VNNI { usize::MAX } else { i16::MAX as usize / (2 * 127 * most as usize) }
    }

    #[inline(always)]
    unsafe fn open(sum: [__m256i; 2]) -> [__m256i; 2] {
        if WITH_VNNI { sum } else { [unsafe { _mm256_setzero_si256() }; 2] }
    }

    #[inline(always)]
    unsafe fn dot(
        sum: [__m256i; 2],
        weights: [__m256i; 2],
        x: *const i8,
        half: usize,
    ) -> [__m256i; 2] {
        let four = [unsafe { fours(x.add(4 * half)) }; 2];
        if WITH_VNNI {
            return both!(_mm256_dpbusd_avx_epi32(sum, weights, four));
        }
        let pairs = both!(_mm256_maddubs_epi16(weights, four));
        both!(_mm256_add_epi16(sum, pairs))
    }

    #[inline(always)]
    unsafe fn close(sum: [__m256i; 2], products: [__m256i; 2]) -> [__m256i; 2] {
        if WITH_VNNI { products } else { both!(add_pairs(sum, products)) }
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [__m256i; 2],
        weights: [__m256i; 2],
        x: *const i8,
        half: usize,
    ) -> [__m256i; 2] {
        let four = [unsafe { fours(x.add(4 * half)) }; 2];
        if WITH_VNNI {
            return both!(_mm256_dpbusd_avx_epi32(sum, weights, four));
        }
        both!(dot_signed(sum, weights, four))
    }

    #[inline(always)]
    unsafe fn round(x: [[__m256; 2]; 2], to: *mut i8) -> (f32, [i32; 2]) {
        unsafe {
            // A closure would not be compiled with this processor's instructions.
            let first = _mm256_max_epu32(magnitudes(x[0][0]), magnitudes(x[0][1]));
            let second = _mm256_max_epu32(magnitudes(x[1][0]), magnitudes(x[1][1]));
            let largest = f32::from_bits(largest_bits(_mm256_max_epu32(first, second)));
            let factor = _mm256_set1_ps(LARGEST / largest);
            let first = _mm256_packs_epi32(integers(x[0][0], factor), integers(x[0][1], factor));
            let second = _mm256_packs_epi32(integers(x[1][0], factor), integers(x[1][1], factor));
            // Halves of registers are packed apart: fours of bytes stand in the order 0, 2, 4, 6, 1, ..
            let packed = _mm256_packs_epi16(first, second);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(packed, order);
            _mm256_storeu_si256(to.cast(), bytes);
            let sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let sums = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
            // A half of the register for each half of the numbers.
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b1110>(sums));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01>(sums));
            let second = _mm256_extracti128_si256::<1>(sums);
            (largest, [_mm256_cvtsi256_si32(sums), _mm_cvtsi128_si32(second)])
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}

/// The bits of numbers without their signs; those of NaN are above those of any number.
#[inline(always)]
unsafe fn magnitudes(x: __m256) -> __m256i {
    unsafe { _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX)) }
}

/// Numbers times a factor, rounded. What does not fit into 32 bits becomes 0.
#[inline(always)]
unsafe fn integers(x: __m256, factor: __m256) -> __m256i {
    unsafe {
        // The processor makes it -2^31.
        let integers = _mm256_cvtps_epi32(_mm256_mul_ps(x, factor));
        let wrong = _mm256_cmpeq_epi32(integers, _mm256_set1_epi32(i32::MIN));
        _mm256_andnot_si256(wrong, integers)
    }
}

/// The largest of eight lanes.
#[inline(always)]
unsafe fn largest_bits(x: __m256i) -> u32 {
    unsafe {
        let x = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b1110>(x));
        let x = _mm_max_epu32(x, _mm_shuffle_epi32::<0b01>(x));
        _mm_cvtsi128_si32(x) as u32
    }
}

/// The columns of eight rows, of which a half of a register transposes four.
#[inline(always)]
unsafe fn columns(from: *const f32, stride: usize) -> [__m256; 4] {
    unsafe {
        let [one, two, three, four] = [
            two_rows(from, stride),
            two_rows(from.add(stride), stride),
            two_rows(from.add(2 * stride), stride),
            two_rows(from.add(3 * stride), stride),
        ];
        let (low, high) = (_mm256_unpacklo_ps(one, two), _mm256_unpackhi_ps(one, two));
        let (lower, higher) = (_mm256_unpacklo_ps(three, four), _mm256_unpackhi_ps(three, four));
        [
            _mm256_shuffle_ps::<0x44>(low, lower),
            _mm256_shuffle_ps::<0xee>(low, lower),
            _mm256_shuffle_ps::<0x44>(high, higher),
            _mm256_shuffle_ps::<0xee>(high, higher),
        ]
    }
}

/// A row and the fourth behind it.
#[inline(always)]
unsafe fn two_rows(from: *const f32, stride: usize) -> __m256 {
    unsafe { _mm256_loadu2_m128(from.add(4 * stride), from) }
}

/// The largest of eight lanes.
#[inline(always)]
pub(super) unsafe fn largest(x: __m256) -> f32 {
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
    }
}

#[inline(always)]
unsafe fn exponents(x: __m256) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x))) }
}

#[inline(always)]
unsafe fn upper_halves(from: *const u16) -> __m256 {
    unsafe {
        let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper))
    }
}

#[inline(always)]
unsafe fn shifted(x: __m256i, right: i32, mask: u8) -> __m256i {
    unsafe {
        let count = _mm_cvtsi32_si128(right.abs());
        let shifted =
            if right < 0 { _mm256_sll_epi16(x, count) } else { _mm256_srl_epi16(x, count) };
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
    }
}

#[inline(always)]
unsafe fn field(x: __m256i, from: u32, mask: i32, to: u32) -> __m256i {
    unsafe {
        let shifted = _mm256_srl_epi32(x, _mm_cvtsi32_si128(from as i32));
        let field = _mm256_and_si256(shifted, _mm256_set1_epi32(mask));
        _mm256_sll_epi32(field, _mm_cvtsi32_si128(to as i32))
    }
}

#[inline(always)]
unsafe fn low(both: __m256i) -> __m256i {
    unsafe { _mm256_and_si256(both, _mm256_set1_epi8(0x0f)) }
}

#[inline(always)]
unsafe fn high(both: __m256i) -> __m256i {
    unsafe { low(_mm256_srli_epi16::<4>(both)) }
}

/// Four bytes, in all lanes.
#[inline(always)]
unsafe fn fours(x: *const i8) -> __m256i {
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

/// Adds both halves of a lane.
#[inline(always)]
unsafe fn add_pairs(sum: __m256i, pairs: __m256i) -> __m256i {
    unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
}

/// Pairs of products of a byte of up to 255 do not fit into 16 bits, those of one from -128 to 127
/// do: of its magnitude with bytes that have its sign.
#[inline(always)]
unsafe fn dot_signed(sum: __m256i, weights: __m256i, four: __m256i) -> __m256i {
    unsafe {
        let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN));
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(four, signed));
        add_pairs(sum, pairs)
    }
}
