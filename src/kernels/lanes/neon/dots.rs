//! How processors with NEON multiply unsigned bytes with signed ones.
//!
//! In: weights, and eight numbers, of which four are multiplied. Out: sums in 32 bits, or in 16 for as
//! long as they fit.

use std::arch::aarch64::*;
use std::arch::asm;

use super::each;

/// A way to multiply bytes. Functions are as those of [`Lanes`](super::Lanes).
pub trait Dots: 'static {
    /// As [`Lanes::Partial`](super::Lanes::Partial).
    type Partial: Copy;
    /// As [`Lanes::ROWS`](super::Lanes::ROWS).
    const ROWS: usize;
    /// As [`Lanes::LESS`](super::Lanes::LESS).
    const LESS: i32;

    fn most_dots(most: i32) -> usize;
    unsafe fn open(sum: [int32x4_t; 4]) -> Self::Partial;
    unsafe fn dot(
        sum: Self::Partial,
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> Self::Partial;
    unsafe fn close(sum: [int32x4_t; 4], products: Self::Partial) -> [int32x4_t; 4];
    unsafe fn dot_large(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4];
}

/// Any processor: products of signed bytes, in 16 bits.
pub struct Widened;
/// Four products of signed bytes at a time (DotProd).
pub struct Signed;
/// Four products of unsigned with signed bytes at a time (I8MM).
pub struct Mixed;

impl Dots for Widened {
    /// Of each quarter the first two outputs and the last two, four inputs of each.
    type Partial = [[int16x8_t; 2]; 4];
    const ROWS: usize = 2;
    const LESS: i32 = 128;

    #[inline(always)]
    fn most_dots(most: i32) -> usize {
        // A lane gets one product at a time, and in the end its neighbour's.
        i16::MAX as usize / (2 * 127 * most as usize)
    }

    #[inline(always)]
    unsafe fn open(_: [int32x4_t; 4]) -> Self::Partial {
        [[unsafe { vdupq_n_s16(0) }; 2]; 4]
    }

    #[inline(always)]
    unsafe fn dot(
        sum: Self::Partial,
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> Self::Partial {
        let four = unsafe { fours(x, half) };
        each!(add_products(sum, weights; four))
    }

    #[inline(always)]
    unsafe fn close(sum: [int32x4_t; 4], products: Self::Partial) -> [int32x4_t; 4] {
        each!(add_lanes(sum, products))
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        let four = unsafe { fours(x, half) };
        let weights = each!(less_128(weights));
        each!(add_large_products(sum, weights; four))
    }
}

impl Dots for Signed {
    type Partial = [int32x4_t; 4];
    const ROWS: usize = 5;
    const LESS: i32 = 128;

    #[inline(always)]
    fn most_dots(_: i32) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn open(sum: [int32x4_t; 4]) -> [int32x4_t; 4] {
        sum
    }

    #[inline(always)]
    unsafe fn dot(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        let x = unsafe { vld1_s8(x) };
        let weights = each!(vreinterpretq_s8_u8(weights));
        each!(sdot(sum, weights; x, half))
    }

    #[inline(always)]
    unsafe fn close(_: [int32x4_t; 4], products: [int32x4_t; 4]) -> [int32x4_t; 4] {
        products
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        let x = unsafe { vld1_s8(x) };
        let weights = each!(less_128(weights));
        each!(sdot(sum, weights; x, half))
    }
}

impl Dots for Mixed {
    type Partial = [int32x4_t; 4];
    const ROWS: usize = Signed::ROWS;
    const LESS: i32 = 0;

    #[inline(always)]
    fn most_dots(_: i32) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn open(sum: [int32x4_t; 4]) -> [int32x4_t; 4] {
        sum
    }

    #[inline(always)]
    unsafe fn dot(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        let x = unsafe { vld1_s8(x) };
        each!(usdot(sum, weights; x, half))
    }

    #[inline(always)]
    unsafe fn close(_: [int32x4_t; 4], products: [int32x4_t; 4]) -> [int32x4_t; 4] {
        products
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [int32x4_t; 4],
        weights: [uint8x16_t; 4],
        x: *const i8,
        half: usize,
    ) -> [int32x4_t; 4] {
        unsafe { Self::dot(sum, weights, x, half) }
    }
}

/// Adds the products of four outputs, two in each sum.
#[inline(always)]
unsafe fn add_products(
    sum: [int16x8_t; 2],
    weights: uint8x16_t,
    four: int8x16_t,
) -> [int16x8_t; 2] {
    unsafe {
        let weights = vreinterpretq_s8_u8(weights);
        let first = vmlal_s8(sum[0], vget_low_s8(weights), vget_low_s8(four));
        [first, vmlal_high_s8(sum[1], weights, four)]
    }
}

/// As `add_products`, of which only two at a time fit into 16 bits: even those of -128 with 127.
#[inline(always)]
unsafe fn add_large_products(sum: int32x4_t, weights: int8x16_t, four: int8x16_t) -> int32x4_t {
    unsafe {
        let first = vmull_s8(vget_low_s8(weights), vget_low_s8(four));
        add_lanes(sum, [first, vmull_high_s8(weights, four)])
    }
}

/// Adds the four lanes of each output.
#[inline(always)]
unsafe fn add_lanes(sum: int32x4_t, products: [int16x8_t; 2]) -> int32x4_t {
    unsafe { vpadalq_s16(sum, vpaddq_s16(products[0], products[1])) }
}

/// Bytes less 128, signed.
#[inline(always)]
unsafe fn less_128(x: uint8x16_t) -> int8x16_t {
    unsafe { vreinterpretq_s8_u8(veorq_u8(x, vdupq_n_u8(0x80))) }
}

/// The first or the last four of eight numbers, four times.
#[inline(always)]
unsafe fn fours(x: *const i8, half: usize) -> int8x16_t {
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(x.add(4 * half).cast::<i32>().read_unaligned())) }
}

/// `$name(sum, weights, x, half)`: the instruction, with the first or the last four numbers.
macro_rules! dot {
    ($(#[$docs:meta])* $name:ident, $weights:ty, $instruction:literal) => {
        $(#[$docs])*
        #[inline(always)]
        unsafe fn $name(sum: int32x4_t, weights: $weights, x: int8x8_t, half: usize) -> int32x4_t {
            let mut sum = sum;
            unsafe {
                if half == 0 {
                    asm!(
                        concat!($instruction, " {sum:v}.4s, {weights:v}.16b, {x:v}.4b[0]"),
                        sum = inlateout(vreg) sum,
                        weights = in(vreg) weights,
                        x = in(vreg) x,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                } else {
                    asm!(
                        concat!($instruction, " {sum:v}.4s, {weights:v}.16b, {x:v}.4b[1]"),
                        sum = inlateout(vreg) sum,
                        weights = in(vreg) weights,
                        x = in(vreg) x,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
            }
            sum
        }
    };
}

dot! {
    /// Four products of signed bytes, added to each lane.
    sdot, int8x16_t, "sdot"
}

dot! {
    /// Four products of unsigned with signed bytes, added to each lane.
    usdot, uint8x16_t, "usdot"
}
