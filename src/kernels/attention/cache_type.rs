//! How a cache holds the keys and values of a head: in 32, 16 or 8 bits a number.
//!
//! In: a head's numbers. Out: its row in a cache, and the numbers again, as float32. Rows are rounded
//! in plain Rust, each number in one way, so that every processor writes the same bytes.

use super::MOST_NUMBERS;
use crate::kernels::lanes::{LARGEST, Lanes, WIDTH, half_to_float};

/// How a cache holds a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// The numbers themselves.
    Float32,
    /// The nearest float16.
    Float16,
    /// Integers of 8 bits with a scale for each head.
    Integer8,
}

impl CacheType {
    /// The form whose rows of so many numbers have so many bytes; in doubt the more exact one.
    pub fn of(row_bytes: usize, head_dim: usize) -> Option<Self> {
        let forms = [Self::Float32, Self::Float16, Self::Integer8];
        forms.into_iter().find(|cache_type| cache_type.row_bytes(head_dim) == row_bytes)
    }

    /// Bytes of a head's row.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::Float32 => Float32::row_bytes(head_dim),
            Self::Float16 => Float16::row_bytes(head_dim),
            Self::Integer8 => Integer8::row_bytes(head_dim),
        }
    }
}

/// A form that kernels are compiled for.
pub trait CacheFormat: Copy {
    /// Whether a row is the numbers themselves.
    const IS_FLOAT32: bool;

    /// Bytes of a row.
    fn row_bytes(head_dim: usize) -> usize;

    /// Writes a head's numbers as a row.
    fn write(x: &[f32], row: &mut [u8]);

    /// As [`read`](Self::read), of heads of any size.
    ///
    /// # Safety
    ///
    /// As `read`.
    unsafe fn read_any<L: Lanes>(row: *const u8, to: *mut f32, head_dim: usize);

    /// The `head_dim` numbers of a row, to `to`.
    ///
    /// # Safety
    ///
    /// As [`Lanes`]; the row has its bytes, anywhere, and `to` room for the numbers.
    #[inline(always)]
    unsafe fn read<L: Lanes>(row: *const u8, to: *mut f32, head_dim: usize) {
        unsafe {
            // Loops whose length a compiler knows are no loops.
            match head_dim {
                64 => Self::read_any::<L>(row, to, 64),
                128 => Self::read_any::<L>(row, to, 128),
                _ => Self::read_any::<L>(row, to, head_dim),
            }
        }
    }

    /// Where the numbers of a row are: in the row, or in `spare`, to which they are read.
    ///
    /// # Safety
    ///
    /// As [`read`](Self::read), of `spare`.
    #[inline(always)]
    unsafe fn numbers<L: Lanes>(row: *const u8, spare: *mut f32, head_dim: usize) -> *const f32 {
        if Self::IS_FLOAT32 {
            return row.cast();
        }
        unsafe { Self::read::<L>(row, spare, head_dim) };
        spare
    }
}

/// Float32.
#[derive(Clone, Copy)]
pub struct Float32;

impl CacheFormat for Float32 {
    const IS_FLOAT32: bool = true;

    #[inline(always)]
    fn row_bytes(head_dim: usize) -> usize {
        4 * head_dim
    }

    #[inline(always)]
    fn write(x: &[f32], row: &mut [u8]) {
        let (numbers, _) = row.as_chunks_mut();
        for (to, x) in numbers.iter_mut().zip(x) {
            *to = x.to_ne_bytes();
        }
    }

    #[inline(always)]
    unsafe fn read_any<L: Lanes>(row: *const u8, to: *mut f32, head_dim: usize) {
        unsafe { row.copy_to_nonoverlapping(to.cast(), 4 * head_dim) }
    }
}

/// Float16, the nearest, ties to even. A number that is too large becomes the largest that there is;
/// infinity and what is no number stay that.
#[derive(Clone, Copy)]
pub struct Float16;

impl CacheFormat for Float16 {
    const IS_FLOAT32: bool = false;

    #[inline(always)]
    fn row_bytes(head_dim: usize) -> usize {
        2 * head_dim
    }

    #[inline(always)]
    fn write(x: &[f32], row: &mut [u8]) {
        let (numbers, _) = row.as_chunks_mut();
        for (to, x) in numbers.iter_mut().zip(x) {
            *to = half(*x).to_ne_bytes();
        }
    }

    #[inline(always)]
    unsafe fn read_any<L: Lanes>(row: *const u8, to: *mut f32, head_dim: usize) {
        let (row, whole) = (row.cast::<u16>(), head_dim / WIDTH * WIDTH);
        // SAFETY: by contract.
        unsafe {
            for first in (0..whole).step_by(WIDTH) {
                L::store(to.add(first), L::load_halves(row.add(first)));
            }
            for number in whole..head_dim {
                *to.add(number) = half_to_float(row.add(number).read_unaligned());
            }
        }
    }
}

/// Integers of 8 bits, and behind them their scale in float32: a 127th of the largest of the head's
/// numbers, ties to even. Where that is infinite or no number, so is all that is read.
#[derive(Clone, Copy)]
pub struct Integer8;

impl CacheFormat for Integer8 {
    const IS_FLOAT32: bool = false;

    #[inline(always)]
    fn row_bytes(head_dim: usize) -> usize {
        head_dim + size_of::<f32>()
    }

    #[inline(always)]
    fn write(x: &[f32], row: &mut [u8]) {
        // The bits of NaN are above those of any number.
        let mut largest = 0;
        for x in x {
            largest = largest.max(x.to_bits() & 0x7fff_ffff);
        }
        let largest = f32::from_bits(largest);
        let factor = LARGEST / largest;
        let (integers, scale) = row.split_at_mut(x.len());
        for (to, x) in integers.iter_mut().zip(x) {
            // As `Lanes::round` does it: infinity and NaN, as arithmetic makes them where the largest
            // is not finite or too small to divide by, become 0.
            let scaled = x * factor;
            let rounded = (scaled + 12_582_912.0).to_bits() as u8;
            *to = if scaled.is_finite() { rounded } else { 0 };
        }
        scale.copy_from_slice(&(largest / LARGEST).to_ne_bytes());
    }

    #[inline(always)]
    unsafe fn read_any<L: Lanes>(row: *const u8, to: *mut f32, head_dim: usize) {
        let whole = head_dim / WIDTH * WIDTH;
        // SAFETY: by contract.
        unsafe {
            let scale = row.add(head_dim).cast::<f32>().read_unaligned();
            for first in (0..whole).step_by(WIDTH) {
                let integers = L::to_floats(L::widened_signed(row.add(first).cast()));
                L::store(to.add(first), L::multiply(integers, L::splat(scale)));
            }
            for number in whole..head_dim {
                *to.add(number) = f32::from(row.cast::<i8>().add(number).read()) * scale;
            }
        }
    }
}

/// The float16 of [`Float16`].
#[inline(always)]
fn half(x: f32) -> u16 {
    let (sign, magnitude) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    // 65,504; all of this is arithmetic and choices, so that a compiler may do it for many at once.
    let bounded = if magnitude > 0x477f_e000 { 0x477f_e000 } else { magnitude };
    // The exponent is stored 112 less; what is cut off rounds up from a half on, or above it if even.
    let normal = bounded.wrapping_sub(0x3800_0000).wrapping_add(0x0fff + (bounded >> 13 & 1)) >> 13;
    // Below the least normal number: the last bit of a number from a half to one is 2^-24.
    let tiny = (f32::from_bits(bounded) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if bounded < 0x3880_0000 { tiny } else { normal };
    let infinite = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    (sign | if magnitude < 0x7f80_0000 { finite } else { infinite }) as u16
}

/// A head's numbers, before they are rounded.
pub type Numbers = [f32; MOST_NUMBERS];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lanes::Portable;

    /// All float16 that are finite.
    fn finite() -> impl Iterator<Item = u16> {
        (0..=u16::MAX).filter(|half| half & 0x7c00 != 0x7c00)
    }

    #[test]
    fn halves_stay_what_they_are() {
        assert!(finite().all(|number| half(half_to_float(number)) == number));
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(half), [0x7c00, 0xfc00]);
        assert_eq!([f32::NAN, -f32::NAN].map(half), [0x7e00, 0xfe00]);
        assert_eq!(half(f32::from_bits(0x37ff_f001)), 0x0200, "just below 2^-15");
    }

    #[test]
    fn numbers_between_two_halves_become_the_nearer_one_and_in_the_middle_the_even_one() {
        for number in finite().filter(|number| number & 0x7fff < 0x7bff) {
            let (one, other) = (half_to_float(number), half_to_float(number + 1));
            let middle = f32::midpoint(one, other);
            let even = number + (number & 1);
            assert_eq!(half(middle), even, "{middle}");
            let towards = |bits: i32| f32::from_bits((middle.to_bits() as i32 + bits) as u32);
            assert_eq!([towards(-1), towards(1)].map(half), [number, number + 1], "{middle}");
        }
    }

    #[test]
    fn what_is_too_large_for_a_half_becomes_the_largest() {
        for x in [65_504.0, 65_519.0, 65_520.0, 1e6, f32::MAX] {
            assert_eq!([x, -x].map(half), [0x7bff, 0xfbff], "{x}");
        }
    }

    #[test]
    fn integers_are_the_nearest_and_ties_are_even() {
        let read = |x: &[f32]| {
            let mut row = vec![0xaa; Integer8::row_bytes(x.len())];
            Integer8::write(x, &mut row);
            let mut numbers = vec![0.0; x.len()];
            // SAFETY: any processor runs plain Rust; both have their sizes.
            unsafe { Integer8::read::<Portable>(row.as_ptr(), numbers.as_mut_ptr(), x.len()) };
            numbers
        };
        assert_eq!(read(&[127.0, 0.5, 1.5, -2.5, 2.6, -0.4]), [127.0, 0.0, 2.0, -2.0, 3.0, 0.0]);
        assert_eq!(read(&[-12.7, 6.35, 0.1])[0], -12.7);
        assert_eq!(read(&[0.0; 17]), [0.0; 17]);
        assert_eq!(read(&[1e-40, -1e-40]), [0.0; 2]);
        assert!(read(&[1.0, f32::INFINITY, 2.0]).iter().all(|x| x.is_nan()));
        assert!(read(&[1.0, f32::NAN, 2.0]).iter().all(|x| x.is_nan()));
    }

    #[test]
    fn a_form_is_known_by_the_bytes_of_a_row() {
        let of = |row_bytes| CacheType::of(row_bytes, 64);
        assert_eq!(
            [256, 128, 68].map(of),
            [CacheType::Float32, CacheType::Float16, CacheType::Integer8].map(Some)
        );
        assert_eq!([0, 64, 67, 127, 512].map(of), [None; 5]);
        assert_eq!(CacheType::of(8, 4), Some(CacheType::Float16));
    }
}
