//! AVX-512 with its integer products (VNNI).

use std::arch::x86_64::*;

use super::{LARGEST, Lanes, avx2};

/// A processor with AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512;

impl Lanes for Avx512 {
    type Floats = __m512;
    type Integers = __m512i;
    type Bytes = __m512i;
    const VECTORS: usize = 4;
    type Partial = __m512i;
    const ROWS: usize = 12;
    const LESS: i32 = 0;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [__m512; 4] {
        unsafe {
            let [one, two, three, four] = [
                four_rows(from, stride),
                four_rows(from.add(stride), stride),
                four_rows(from.add(2 * stride), stride),
                four_rows(from.add(3 * stride), stride),
            ];
            // A quarter of a register transposes four rows.
            let (low, high) = (_mm512_unpacklo_ps(one, two), _mm512_unpackhi_ps(one, two));
            let lower = _mm512_unpacklo_ps(three, four);
            let higher = _mm512_unpackhi_ps(three, four);
            [
                _mm512_shuffle_ps::<0x44>(low, lower),
                _mm512_shuffle_ps::<0xee>(low, lower),
                _mm512_shuffle_ps::<0x44>(high, higher),
                _mm512_shuffle_ps::<0xee>(high, higher),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_upper_halves(from: *const u16) -> __m512 {
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn divide(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fused(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn larger(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn largest(x: __m512) -> f32 {
        unsafe {
            let upper = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0xee>(x, x));
            avx2::largest(_mm256_max_ps(_mm512_castps512_ps256(x), upper))
        }
    }

    #[inline(always)]
    unsafe fn exponents(x: __m512) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x))) }
    }

    #[inline(always)]
    unsafe fn splat_integer(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn to_floats(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> (__m512i, __m512i) {
        unsafe {
            let (both, low) = (Self::load_bytes(from), _mm512_set1_epi8(0x0f));
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
            (_mm512_and_si512(both, low), high)
        }
    }

    #[inline(always)]
    unsafe fn shifted(x: __m512i, right: i32, mask: u8) -> __m512i {
        unsafe {
            let count = _mm_cvtsi32_si128(right.abs());
            let shifted =
                if right < 0 { _mm512_sll_epi16(x, count) } else { _mm512_srl_epi16(x, count) };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn looked_up(x: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, x)
        }
    }

    #[inline(always)]
    unsafe fn widened(from: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn widened_signed(from: *const i8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn field(x: __m512i, from: u32, mask: i32, to: u32) -> __m512i {
        unsafe {
            let shifted = _mm512_srl_epi32(x, _mm_cvtsi32_si128(from as i32));
            let field = _mm512_and_si512(shifted, _mm512_set1_epi32(mask));
            _mm512_sll_epi32(field, _mm_cvtsi32_si128(to as i32))
        }
    }

    #[inline(always)]
    unsafe fn add_integers(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn most_dots(_: i32) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn open(sum: __m512i) -> __m512i {
        sum
    }

    #[inline(always)]
    unsafe fn dot(sum: __m512i, weights: __m512i, x: *const i8, half: usize) -> __m512i {
        unsafe {
            let four = _mm512_set1_epi32(x.add(4 * half).cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sum, weights, four)
        }
    }

    #[inline(always)]
    unsafe fn close(_: __m512i, products: __m512i) -> __m512i {
        products
    }

    #[inline(always)]
    unsafe fn dot_large(sum: __m512i, weights: __m512i, x: *const i8, half: usize) -> __m512i {
        unsafe { Self::dot(sum, weights, x, half) }
    }

    #[inline(always)]
    unsafe fn round(x: [__m512; 2], to: *mut i8) -> (f32, [i32; 2]) {
        unsafe {
            // A closure would not be compiled with this processor's instructions.
            let largest = _mm512_max_epu32(magnitudes(x[0]), magnitudes(x[1]));
            let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
            let factor = _mm512_set1_ps(LARGEST / largest);
            let bytes = _mm256_set_m128i(bytes(x[1], factor), bytes(x[0], factor));
            _mm256_storeu_si256(to.cast(), bytes);
            let ones = _mm256_set1_epi8(1);
            let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, bytes);
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

/// A row and the fourth, eighth and twelfth behind it.
#[inline(always)]
unsafe fn four_rows(from: *const f32, stride: usize) -> __m512 {
    unsafe {
        let rows = _mm512_castps128_ps512(_mm_loadu_ps(from));
        let rows = _mm512_insertf32x4::<1>(rows, _mm_loadu_ps(from.add(4 * stride)));
        let rows = _mm512_insertf32x4::<2>(rows, _mm_loadu_ps(from.add(8 * stride)));
        _mm512_insertf32x4::<3>(rows, _mm_loadu_ps(from.add(12 * stride)))
    }
}

/// The bits of numbers without their signs; those of NaN are above those of any number.
#[inline(always)]
unsafe fn magnitudes(x: __m512) -> __m512i {
    unsafe { _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX)) }
}

/// Numbers times a factor, rounded. What does not fit into 32 bits becomes -2^31, whose lowest byte is
/// 0.
#[inline(always)]
unsafe fn bytes(x: __m512, factor: __m512) -> __m128i {
    unsafe { _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor))) }
}
