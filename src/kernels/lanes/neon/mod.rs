//! NEON, which every arm64 processor has: four registers for sixteen lanes.
//!
//! In: how a processor multiplies bytes (`dots.rs`). Out: the operations. What Rust has no stable
//! function for is a line of assembly.

mod dots;

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use self::dots::Dots;
pub use self::dots::{Mixed, Signed, Widened};
use super::{LARGEST, Lanes};

/// A processor with NEON, which multiplies bytes in one of three ways.
pub struct Neon<D: Dots>(PhantomData<D>);

impl<D: Dots> Clone for Neon<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Dots> Copy for Neon<D> {}

/// A function of each quarter of operands, and of others that are the same for all.
macro_rules! each {
    ($function:ident($($operand:expr),* $(; $($same:expr),*)?)) => {
        unsafe {
            [
                $function($($operand[0]),* $(, $($same),*)?),
                $function($($operand[1]),* $(, $($same),*)?),
                $function($($operand[2]),* $(, $($same),*)?),
                $function($($operand[3]),* $(, $($same),*)?),
            ]
        }
    };
}
use each;

impl<D: Dots> Lanes for Neon<D> {
    type Floats = [float32x4_t; 4];
    type Integers = [int32x4_t; 4];
    type Bytes = [uint8x16_t; 4];
    const VECTORS: usize = 1;
    type Partial = D::Partial;
    const ROWS: usize = D::ROWS;
    const LESS: i32 = D::LESS;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [float32x4_t; 4] {
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [float32x4_t; 4] {
        unsafe {
            [
                vld1q_f32(from),
                vld1q_f32(from.add(4)),
                vld1q_f32(from.add(8)),
                vld1q_f32(from.add(12)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [float32x4_t; 4]) {
        unsafe {
            vst1q_f32(to, x[0]);
            vst1q_f32(to.add(4), x[1]);
            vst1q_f32(to.add(8), x[2]);
            vst1q_f32(to.add(12), x[3]);
        }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [[float32x4_t; 4]; 4] {
        unsafe {
            let [one, two, three, four] = [
                columns(from, stride),
                columns(from.add(4 * stride), stride),
                columns(from.add(8 * stride), stride),
                columns(from.add(12 * stride), stride),
            ];
            [
                [one[0], two[0], three[0], four[0]],
                [one[1], two[1], three[1], four[1]],
                [one[2], two[2], three[2], four[2]],
                [one[3], two[3], three[3], four[3]],
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u16) -> [float32x4_t; 4] {
        unsafe {
            let (first, second) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            [low_halves(first), high_halves(first), low_halves(second), high_halves(second)]
        }
    }

    #[inline(always)]
    unsafe fn load_upper_halves(from: *const u16) -> [float32x4_t; 4] {
        unsafe {
            let (first, second) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(first))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(first)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(second))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(second)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vaddq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn subtract(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vsubq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn multiply(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vmulq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn divide(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vdivq_f32(a, b))
    }

    #[inline(always)]
    unsafe fn fused(
        a: [float32x4_t; 4],
        b: [float32x4_t; 4],
        c: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        each!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    unsafe fn larger(a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(larger(a, b))
    }

    #[inline(always)]
    unsafe fn largest(x: [float32x4_t; 4]) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3]))) }
    }

    #[inline(always)]
    unsafe fn exponents(x: [float32x4_t; 4]) -> [float32x4_t; 4] {
        each!(exponents(x))
    }

    #[inline(always)]
    unsafe fn splat_integer(x: i32) -> [int32x4_t; 4] {
        [unsafe { vdupq_n_s32(x) }; 4]
    }

    #[inline(always)]
    unsafe fn to_floats(x: [int32x4_t; 4]) -> [float32x4_t; 4] {
        each!(vcvtq_f32_s32(x))
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [uint8x16_t; 4] {
        unsafe {
            [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))]
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> ([uint8x16_t; 4], [uint8x16_t; 4]) {
        let loaded = unsafe { Self::load_bytes(from) };
        (each!(low_nibbles(loaded)), each!(high_nibbles(loaded)))
    }

    #[inline(always)]
    unsafe fn shifted(x: [uint8x16_t; 4], right: i32, mask: u8) -> [uint8x16_t; 4] {
        let shifted = each!(vshlq_u8(x; vdupq_n_s8(-right as i8)));
        each!(vandq_u8(shifted; vdupq_n_u8(mask)))
    }

    #[inline(always)]
    unsafe fn or(a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        each!(vorrq_u8(a, b))
    }

    #[inline(always)]
    unsafe fn looked_up(x: [uint8x16_t; 4], table: &[u8; 16]) -> [uint8x16_t; 4] {
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        each!(looked_up(x; table))
    }

    #[inline(always)]
    unsafe fn widened(from: *const u8) -> [int32x4_t; 4] {
        unsafe {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn widened_signed(from: *const i8) -> [int32x4_t; 4] {
        unsafe {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn field(x: [int32x4_t; 4], from: u32, mask: i32, to: u32) -> [int32x4_t; 4] {
        each!(field(x; from, mask, to))
    }

    #[inline(always)]
    unsafe fn add_integers(a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        each!(vaddq_s32(a, b))
    }

    #[inline(always)]
    fn most_dots(most: i32) -> usize {
        D::most_dots(most)
    }

    #[inline(always)]
    unsafe fn open(sum: [int32x4_t; 4]) -> D::Partial {
        unsafe { D::open(sum) }
    }

    #[inline(always)]
    unsafe fn dot(
        sum: D::Partial,
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> D::Partial {
        unsafe { D::dot(sum, weights, x, half) }
    }

    #[inline(always)]
    unsafe fn close(sum: [int32x4_t; 4], products: D::Partial) -> [int32x4_t; 4] {
        unsafe { D::close(sum, products) }
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        unsafe { D::dot_large(sum, weights, x, half) }
    }

    #[inline(always)]
    unsafe fn round(x: [[float32x4_t; 4]; 2], to: *mut i8) -> (f32, [i32; 2]) {
        unsafe {
            let largest = vmaxq_u32(largest_bits(x[0]), largest_bits(x[1]));
            let largest = f32::from_bits(vmaxvq_u32(largest));
            // By an infinite factor numbers became the largest integers.
            let factor = match LARGEST / largest {
                factor if factor.is_finite() => factor,
                _ => 0.0,
            };
            let (first, second) = (rounded(x[0], factor), rounded(x[1], factor));
            vst1q_s8(to, first);
            vst1q_s8(to.add(16), second);
            (largest, [i32::from(vaddlvq_s8(first)), i32::from(vaddlvq_s8(second))])
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) from, options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn prefetch_far(from: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) from, options(nomem, nostack, preserves_flags));
        }
    }
}

/// The columns of four rows.
#[inline(always)]
unsafe fn columns(from: *const f32, stride: usize) -> [float32x4_t; 4] {
    unsafe {
        let (one, two) = (vld1q_f32(from), vld1q_f32(from.add(stride)));
        let (three, four) = (vld1q_f32(from.add(2 * stride)), vld1q_f32(from.add(3 * stride)));
        let even = vreinterpretq_f64_f32(vtrn1q_f32(one, two));
        let odd = vreinterpretq_f64_f32(vtrn2q_f32(one, two));
        let even_below = vreinterpretq_f64_f32(vtrn1q_f32(three, four));
        let odd_below = vreinterpretq_f64_f32(vtrn2q_f32(three, four));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(even, even_below)),
            vreinterpretq_f32_f64(vtrn1q_f64(odd, odd_below)),
            vreinterpretq_f32_f64(vtrn2q_f64(even, even_below)),
            vreinterpretq_f32_f64(vtrn2q_f64(odd, odd_below)),
        ]
    }
}

/// The first four float16, as float32.
#[inline(always)]
unsafe fn low_halves(x: uint16x8_t) -> float32x4_t {
    let floats;
    unsafe {
        asm!(
            "fcvtl {floats:v}.4s, {x:v}.4h",
            floats = lateout(vreg) floats,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
}

/// The last four float16, as float32.
#[inline(always)]
unsafe fn high_halves(x: uint16x8_t) -> float32x4_t {
    let floats;
    unsafe {
        asm!(
            "fcvtl2 {floats:v}.4s, {x:v}.8h",
            floats = lateout(vreg) floats,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    floats
}

#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn exponents(x: float32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(x))) }
}

#[inline(always)]
unsafe fn looked_up(x: uint8x16_t, table: uint8x16_t) -> uint8x16_t {
    unsafe { vqtbl1q_u8(table, x) }
}

#[inline(always)]
unsafe fn low_nibbles(both: uint8x16_t) -> uint8x16_t {
    unsafe { vandq_u8(both, vdupq_n_u8(0x0f)) }
}

#[inline(always)]
unsafe fn high_nibbles(both: uint8x16_t) -> uint8x16_t {
    unsafe { vshrq_n_u8::<4>(both) }
}

#[inline(always)]
unsafe fn field(x: int32x4_t, from: u32, mask: i32, to: u32) -> int32x4_t {
    unsafe {
        let shifted = vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(-(from as i32)));
        let field = vandq_s32(vreinterpretq_s32_u32(shifted), vdupq_n_s32(mask));
        vshlq_s32(field, vdupq_n_s32(to as i32))
    }
}

/// The largest bits of numbers without their signs; those of NaN are above those of any number.
#[inline(always)]
unsafe fn largest_bits(x: [float32x4_t; 4]) -> uint32x4_t {
    let x = each!(magnitudes(x));
    unsafe { vmaxq_u32(vmaxq_u32(x[0], x[1]), vmaxq_u32(x[2], x[3])) }
}

#[inline(always)]
unsafe fn magnitudes(x: float32x4_t) -> uint32x4_t {
    unsafe { vreinterpretq_u32_f32(vabsq_f32(x)) }
}

/// Numbers times a factor, rounded; what is no number becomes 0.
#[inline(always)]
unsafe fn rounded(x: [float32x4_t; 4], factor: f32) -> int8x16_t {
    let x = each!(rounded_halves(x; factor));
    unsafe {
        let (first, second) = (vuzp1q_s16(x[0], x[1]), vuzp1q_s16(x[2], x[3]));
        vuzp1q_s8(vreinterpretq_s8_s16(first), vreinterpretq_s8_s16(second))
    }
}

/// Four of them, each in two lanes.
#[inline(always)]
unsafe fn rounded_halves(x: float32x4_t, factor: f32) -> int16x8_t {
    unsafe { vreinterpretq_s16_s32(vcvtnq_s32_f32(vmulq_n_f32(x, factor))) }
}
