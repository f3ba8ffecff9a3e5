//! AVX-512 with its integer products (VNNI).

use std::arch::x86_64::*;

use super::Lanes;

/// A processor with AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512;

impl Lanes for Avx512 {
    type Floats = __m512;
    type Integers = __m512i;
    type Bytes = __m512i;

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
    unsafe fn load_halves(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
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
    unsafe fn where_above(x: __m512, bound: __m512, other: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, bound), other, x) }
    }

    #[inline(always)]
    unsafe fn power_of_two(x: __m512) -> __m512 {
        unsafe {
            let exponents = _mm512_slli_epi32::<23>(_mm512_castps_si512(x));
            let one = _mm512_set1_epi32(0x3f80_0000);
            _mm512_castsi512_ps(_mm512_add_epi32(exponents, one))
        }
    }

    #[inline(always)]
    unsafe fn splat_integer(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn add_integers(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
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
    unsafe fn dot(sum: __m512i, weights: __m512i, x: *const i8) -> __m512i {
        unsafe {
            let four = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sum, weights, four)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
