//! The integers of weights, as vectors of bytes out of their planes.

use std::marker::PhantomData;

use crate::kernels::lanes::{Lanes, WIDTH};

/// Bytes of a vector: four inputs of sixteen outputs.
const VECTOR: usize = 4 * WIDTH;

/// How the values of 32 weights are read.
pub trait Values {
    /// What a value is more than the weight's integer.
    const ZERO: i32;
    /// What no value is above.
    const MOST: i32;

    /// The values of two groups, as unsigned bytes: sixteen outputs, eight inputs.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the values of sixteen outputs are there.
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes);
}

/// 4 bits.
pub struct Bits4<const ZERO: i32>;
/// 4 bits and a fifth.
pub struct Bits5<const ZERO: i32>;
/// 4 bits and two more.
pub struct Bits6;
/// 8 bits.
pub struct Bits8;
/// 2 bits.
pub struct Bits2;
/// 2 bits and a third.
pub struct Bits3;
/// 4 bits that stand for a value of a table.
pub struct Codebook<T: Table>(PhantomData<T>);

/// What 4 bits stand for.
pub trait Table {
    /// What a value is more than the weight's integer.
    const ZERO: i32;
    const VALUES: [u8; 16];
}

/// llama.cpp's `kvalues_iq4nl`.
pub struct Iq4NlTable;
/// Twice the floats of 4 bits, `kvalues_mxfp4`.
pub struct Fp4Table;

impl Table for Iq4NlTable {
    const ZERO: i32 = 128;
    const VALUES: [u8; 16] = above(
        Self::ZERO,
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    );
}

impl Table for Fp4Table {
    const ZERO: i32 = 16;
    const VALUES: [u8; 16] =
        above(Self::ZERO, [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
}

/// Integers plus a zero, unsigned.
const fn above(zero: i32, integers: [i32; 16]) -> [u8; 16] {
    let (mut values, mut at) = ([0; 16], 0);
    while at < 16 {
        values[at] = (integers[at] + zero) as u8;
        at += 1;
    }
    values
}

/// The largest of a table.
const fn largest(values: [u8; 16]) -> i32 {
    let (mut largest, mut at) = (0, 0);
    while at < 16 {
        if values[at] > largest {
            largest = values[at];
        }
        at += 1;
    }
    largest as i32
}

impl<const ZERO: i32> Values for Bits4<ZERO> {
    const ZERO: i32 = ZERO;
    const MOST: i32 = 15;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { L::load_nibbles(values.add(VECTOR * pair)) }
    }
}

impl<const ZERO: i32> Values for Bits5<ZERO> {
    const ZERO: i32 = ZERO;
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { with_higher::<L, 1>(L::load_nibbles(values.add(VECTOR * pair)), 4, values, pair) }
    }
}

impl Values for Bits8 {
    const ZERO: i32 = 128;
    const MOST: i32 = 255;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe {
            let at = values.add(2 * VECTOR * pair);
            (L::load_bytes(at), L::load_bytes(at.add(VECTOR)))
        }
    }
}

impl Values for Bits6 {
    const ZERO: i32 = 32;
    const MOST: i32 = 63;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { with_higher::<L, 2>(L::load_nibbles(values.add(VECTOR * pair)), 4, values, pair) }
    }
}

impl Values for Bits2 {
    const ZERO: i32 = 0;
    const MOST: i32 = 3;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { (bits::<L, 2>(values, 2 * pair, 0), bits::<L, 2>(values, 2 * pair + 1, 0)) }
    }
}

impl Values for Bits3 {
    const ZERO: i32 = 4;
    const MOST: i32 = 7;

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe { with_higher::<L, 1>(Bits2::pair::<L>(values, pair), 2, values, pair) }
    }
}

impl<T: Table> Values for Codebook<T> {
    const ZERO: i32 = T::ZERO;
    const MOST: i32 = largest(T::VALUES);

    #[inline(always)]
    unsafe fn pair<L: Lanes>(values: *const u8, pair: usize) -> (L::Bytes, L::Bytes) {
        unsafe {
            let (first, second) = L::load_nibbles(values.add(VECTOR * pair));
            (L::looked_up(first, &T::VALUES), L::looked_up(second, &T::VALUES))
        }
    }
}

/// Two groups of `low` bits, with those that the plane of `BITS` bits behind them holds put above.
#[inline(always)]
unsafe fn with_higher<L: Lanes, const BITS: usize>(
    lower: (L::Bytes, L::Bytes),
    low: usize,
    values: *const u8,
    pair: usize,
) -> (L::Bytes, L::Bytes) {
    unsafe {
        let plane = values.add(VECTOR * low);
        (
            L::or(lower.0, bits::<L, BITS>(plane, 2 * pair, low)),
            L::or(lower.1, bits::<L, BITS>(plane, 2 * pair + 1, low)),
        )
    }
}

/// The `BITS` bits of a group in a plane, moved to bit `to`.
#[inline(always)]
unsafe fn bits<L: Lanes, const BITS: usize>(plane: *const u8, group: usize, to: usize) -> L::Bytes {
    let (bit, mask) = (BITS * group, 0xff >> (8 - BITS) << to);
    unsafe {
        let all = L::load_bytes(plane.add(bit / 8 * VECTOR));
        L::shifted(all, (bit % 8) as i32 - to as i32, mask as u8)
    }
}
