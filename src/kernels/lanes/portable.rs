//! Plain Rust: what every other processor is compared with, and what runs where none of them is.

use super::{LARGEST, Lanes, WIDTH};

/// Any processor.
#[derive(Clone, Copy)]
pub struct Portable;

impl Lanes for Portable {
    type Floats = [f32; WIDTH];
    type Integers = [i32; WIDTH];
    type Bytes = [u8; 4 * WIDTH];
    const VECTORS: usize = 1;
    type Partial = [i32; WIDTH];
    const ROWS: usize = 1;
    const FLOAT_ROWS: usize = 1;
    const LESS: i32 = 0;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; WIDTH] {
        [x; WIDTH]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; WIDTH] {
        unsafe { from.cast::<[f32; WIDTH]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [f32; WIDTH]) {
        unsafe { to.cast::<[f32; WIDTH]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn columns(from: *const f32, stride: usize) -> [[f32; WIDTH]; 4] {
        let rows: [[f32; 4]; WIDTH] = std::array::from_fn(|row| {
            // SAFETY: by contract.
            unsafe { from.add(row * stride).cast::<[f32; 4]>().read_unaligned() }
        });
        std::array::from_fn(|column| rows.map(|row| row[column]))
    }

    #[inline(always)]
    unsafe fn load_halves(from: *const u16) -> [f32; WIDTH] {
        unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() }.map(half_to_float)
    }

    #[inline(always)]
    unsafe fn load_upper_halves(from: *const u16) -> [f32; WIDTH] {
        unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() }
            .map(|upper| f32::from_bits(u32::from(upper) << 16))
    }

    #[inline(always)]
    unsafe fn add(a: [f32; WIDTH], b: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn subtract(a: [f32; WIDTH], b: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    unsafe fn multiply(a: [f32; WIDTH], b: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn divide(a: [f32; WIDTH], b: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| a[lane] / b[lane])
    }

    #[inline(always)]
    unsafe fn fused(a: [f32; WIDTH], b: [f32; WIDTH], c: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    unsafe fn larger(a: [f32; WIDTH], b: [f32; WIDTH]) -> [f32; WIDTH] {
        std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    unsafe fn largest(x: [f32; WIDTH]) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |most, x| if x > most { x } else { most })
    }

    #[inline(always)]
    unsafe fn exponents(x: [f32; WIDTH]) -> [f32; WIDTH] {
        x.map(|x| f32::from_bits(x.to_bits() << 23))
    }

    #[inline(always)]
    unsafe fn splat_integer(x: i32) -> [i32; WIDTH] {
        [x; WIDTH]
    }

    #[inline(always)]
    unsafe fn to_floats(x: [i32; WIDTH]) -> [f32; WIDTH] {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> [u8; 4 * WIDTH] {
        unsafe { from.cast::<[u8; 4 * WIDTH]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> ([u8; 4 * WIDTH], [u8; 4 * WIDTH]) {
        let both = unsafe { Self::load_bytes(from) };
        (both.map(|byte| byte & 0x0f), both.map(|byte| byte >> 4))
    }

    #[inline(always)]
    unsafe fn shifted(x: [u8; 4 * WIDTH], right: i32, mask: u8) -> [u8; 4 * WIDTH] {
        x.map(|byte| if right < 0 { byte << -right } else { byte >> right } & mask)
    }

    #[inline(always)]
    unsafe fn or(a: [u8; 4 * WIDTH], b: [u8; 4 * WIDTH]) -> [u8; 4 * WIDTH] {
        std::array::from_fn(|at| a[at] | b[at])
    }

    #[inline(always)]
    unsafe fn looked_up(x: [u8; 4 * WIDTH], table: &[u8; 16]) -> [u8; 4 * WIDTH] {
        x.map(|byte| table[usize::from(byte & 0x0f)])
    }

    #[inline(always)]
    unsafe fn widened(from: *const u8) -> [i32; WIDTH] {
        unsafe { from.cast::<[u8; WIDTH]>().read() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn widened_signed(from: *const i8) -> [i32; WIDTH] {
        unsafe { from.cast::<[i8; WIDTH]>().read() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn field(x: [i32; WIDTH], from: u32, mask: i32, to: u32) -> [i32; WIDTH] {
        x.map(|x| (x >> from & mask) << to)
    }

    #[inline(always)]
    unsafe fn add_integers(a: [i32; WIDTH], b: [i32; WIDTH]) -> [i32; WIDTH] {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn most_dots(_: i32) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn open(sum: [i32; WIDTH]) -> [i32; WIDTH] {
        sum
    }

    #[inline(always)]
    unsafe fn dot(
        sum: [i32; WIDTH],
        weights: [u8; 4 * WIDTH],
        x: *const i8,
        half: usize,
    ) -> [i32; WIDTH] {
        let x = unsafe { x.add(4 * half).cast::<[i8; 4]>().read() };
        std::array::from_fn(|lane| {
            let products = (0..4).map(|at| i32::from(weights[4 * lane + at]) * i32::from(x[at]));
            sum[lane] + products.sum::<i32>()
        })
    }

    #[inline(always)]
    unsafe fn close(_: [i32; WIDTH], products: [i32; WIDTH]) -> [i32; WIDTH] {
        products
    }

    #[inline(always)]
    unsafe fn dot_large(
        sum: [i32; WIDTH],
        weights: [u8; 4 * WIDTH],
        x: *const i8,
        half: usize,
    ) -> [i32; WIDTH] {
        unsafe { Self::dot(sum, weights, x, half) }
    }

    #[inline(always)]
    unsafe fn round(x: [[f32; WIDTH]; 2], to: *mut i8) -> (f32, [i32; 2]) {
        // The bits of NaN are above those of any number.
        let magnitudes = x.as_flattened().iter().map(|x| x.to_bits() & 0x7fff_ffff);
        let largest = f32::from_bits(magnitudes.fold(0, u32::max));
        let factor = LARGEST / largest;
        // A number as large as 1.5 * 2^23 has no fraction: adding it rounds, and the lowest byte of the
        // sum is the rounded number. Infinity and NaN, as arithmetic makes them, have none.
        let rounded = |x: f32| match x * factor {
            x if x.is_finite() => (x + 12_582_912.0).to_bits() as i8,
            _ => 0,
        };
        let integers = x.map(|x| x.map(rounded));
        let sums = integers.map(|half| half.iter().map(|x| i32::from(*x)).sum());
        // SAFETY: by contract.
        unsafe { to.cast::<[[i8; WIDTH]; 2]>().write_unaligned(integers) };
        (largest, sums)
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
}

/// A float16 as float32, which holds all of them.
pub fn half_to_float(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let float = match half & 0x7c00 {
        // Infinity and NaN keep the largest exponent; a processor makes NaN quiet.
        0x7c00 if half & 0x03ff != 0 => return f32::from_bits(sign | magnitude | 0x7fc0_0000),
        0x7c00 => f32::from_bits(magnitude | 0x7f80_0000),
        // Below the least normal number, two to the power of -24 is a step.
        0 => f32::from(half & 0x03ff) * f32::from_bits(0x3380_0000),
        _ => f32::from_bits(magnitude + 0x3800_0000),
    };
    f32::from_bits(float.to_bits() | sign)
}
