//! Sixteen numbers at a time, on every processor with the same bits.
//!
//! In: a processor's own instructions. Out: one set of operations, over which products and attention
//! are written once. A multiply and an add are fused, which rounds once: so AVX2, AVX-512, NEON and
//! Rust's `mul_add` agree.
//!
//! Unsafe: an implementation may only run where its processor's instructions are, and pointers must
//! hold as many numbers as an operation reads. Everything is inlined into functions that
//! [`on_processor!`] compiles for a processor.
#![allow(unsafe_code)]

use std::sync::OnceLock;

#[cfg(x86_64_kernels)]
mod avx2;
#[cfg(x86_64_kernels)]
mod avx512;
#[cfg(aarch64_kernels)]
mod neon;
mod portable;
mod slices;

#[cfg(x86_64_kernels)]
pub use avx2::Avx2;
#[cfg(x86_64_kernels)]
pub use avx512::Avx512;
#[cfg(aarch64_kernels)]
pub use neon::{Mixed, Neon, Signed, Widened};
pub use portable::{Portable, half_to_float};
pub use slices::{dot, load_some, store_some};

/// Numbers of an operation.
pub const WIDTH: usize = 16;

/// The largest of rounded numbers.
pub const LARGEST: f32 = 127.0;

/// Most of [`Lanes::FLOAT_ROWS`]: with two registers for sixteen sums, those of AVX2 hold as many.
pub const MOST_FLOAT_ROWS: usize = 6;

/// Operations over [`WIDTH`] numbers.
///
/// # Safety
///
/// Of all functions: the processor has the instructions, and a pointer, which may be unaligned, is
/// valid for the numbers that the function names.
pub trait Lanes: Copy {
    /// Sixteen float32.
    type Floats: Copy;
    /// Sixteen int32.
    type Integers: Copy;
    /// 64 bytes, four for each lane.
    type Bytes: Copy;
    /// A sum of products of bytes for each lane, as narrow as the processor makes them.
    type Partial: Copy;
    /// How many of a row's `Floats` registers hold for six rows, with what is added to them.
    const VECTORS: usize;
    /// For how many rows registers hold sums of products of bytes, with what is multiplied.
    const ROWS: usize;
    /// For how many rows registers hold sums of floats.
    const FLOAT_ROWS: usize = MOST_FLOAT_ROWS;
    /// What `dot_large` takes off each weight.
    const LESS: i32;

    /// `x` in all lanes.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// 16 float32.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// 16 float32.
    unsafe fn store(to: *mut f32, x: Self::Floats);
    /// The four columns of 16 rows, a row's four float32 `stride` behind those of the one before.
    unsafe fn columns(from: *const f32, stride: usize) -> [Self::Floats; 4];
    /// 16 float16, as float32.
    unsafe fn load_halves(from: *const u16) -> Self::Floats;
    /// 16 bfloat16, the upper halves of float32, as float32.
    unsafe fn load_upper_halves(from: *const u16) -> Self::Floats;
    /// `a + b`.
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`.
    unsafe fn subtract(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a / b`.
    unsafe fn divide(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fused(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger of each; `b` where one is NaN.
    unsafe fn larger(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The largest lane, of which none is NaN.
    unsafe fn largest(x: Self::Floats) -> f32;
    /// The numbers whose sign and exponent are the last nine bits of `x`, other bits being 0.
    unsafe fn exponents(x: Self::Floats) -> Self::Floats;

    /// `x` in all lanes.
    unsafe fn splat_integer(x: i32) -> Self::Integers;
    /// The same numbers.
    unsafe fn to_floats(x: Self::Integers) -> Self::Floats;
    /// 64 bytes.
    unsafe fn load_bytes(from: *const u8) -> Self::Bytes;
    /// 64 bytes, the low halves of which and the high ones.
    unsafe fn load_nibbles(from: *const u8) -> (Self::Bytes, Self::Bytes);
    /// Each byte shifted right, left where `right` is negative, of which `mask` is left; it has no bit
    /// that a neighbour's would be shifted to.
    unsafe fn shifted(x: Self::Bytes, right: i32, mask: u8) -> Self::Bytes;
    /// The bits of either.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// What bytes from 0 to 15 stand for.
    unsafe fn looked_up(x: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// 16 bytes, as numbers from 0 to 255.
    unsafe fn widened(from: *const u8) -> Self::Integers;
    /// 16 bytes, as numbers from -128 to 127.
    unsafe fn widened_signed(from: *const i8) -> Self::Integers;
    /// The bits `mask` from bit `from` on, moved to bit `to`.
    unsafe fn field(x: Self::Integers, from: u32, mask: i32, to: u32) -> Self::Integers;
    /// `a + b`.
    unsafe fn add_integers(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// How many products a `Partial` takes of weights up to `most`, which is 64 or less.
    fn most_dots(most: i32) -> usize;
    /// No products yet, of which the sum will be added to `sum`.
    unsafe fn open(sum: Self::Integers) -> Self::Partial;
    /// Adds to each lane the products of its four weights, as unsigned bytes, with four of the eight
    /// signed ones at `x`, which are above -128: the first or, in half 1, the last.
    unsafe fn dot(
        sum: Self::Partial,
        weights: Self::Bytes,
        x: *const i8,
        half: usize,
    ) -> Self::Partial;
    /// `sum`, which was there at the beginning, and all products.
    unsafe fn close(sum: Self::Integers, products: Self::Partial) -> Self::Integers;
    /// As `dot`, of weights up to 255, of which each is taken [`Lanes::LESS`] smaller.
    unsafe fn dot_large(
        sum: Self::Integers,
        weights: Self::Bytes,
        x: *const i8,
        half: usize,
    ) -> Self::Integers;
    /// Rounds 32 numbers to 8 bits, in steps of a 127th of the largest, to `to`; ties to even. Returns
    /// the largest, or what is no number, and the sums of the first and the last sixteen. Where that
    /// largest is no number or infinite, or too small to divide by, integers are 0.
    unsafe fn round(x: [Self::Floats; 2], to: *mut i8) -> (f32, [i32; 2]);
    /// Asks for the 64 bytes at `from` to be read soon; any address will do.
    unsafe fn prefetch(from: *const u8);
    /// As `prefetch`, but into the second cache, for which more can be under way.
    unsafe fn prefetch_far(from: *const u8);
}

/// A processor that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor(Kind);

/// A processor's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any.
    Portable,
    /// See [`Avx2`].
    #[cfg(x86_64_kernels)]
    Avx2,
    /// See [`Avx2`].
    #[cfg(x86_64_kernels)]
    AvxVnni,
    /// See [`Avx512`].
    #[cfg(x86_64_kernels)]
    Avx512,
    /// See [`Widened`].
    #[cfg(aarch64_kernels)]
    Neon,
    /// See [`Signed`].
    #[cfg(aarch64_kernels)]
    NeonDotProd,
    /// See [`Mixed`].
    #[cfg(aarch64_kernels)]
    NeonI8mm,
}

impl Processor {
    /// All that this machine can run, the slowest first.
    pub fn all() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut kinds = vec![Self(Kind::Portable)];
        #[cfg(x86_64_kernels)]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                kinds.push(Self(Kind::Avx2));
                if has!("avxvnni") {
                    kinds.push(Self(Kind::AvxVnni));
                }
            }
            if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vnni") {
                kinds.push(Self(Kind::Avx512));
            }
        }
        #[cfg(aarch64_kernels)]
        {
            use std::arch::is_aarch64_feature_detected as has;
            kinds.push(Self(Kind::Neon));
            if has!("dotprod") {
                kinds.push(Self(Kind::NeonDotProd));
            }
            if has!("i8mm") {
                kinds.push(Self(Kind::NeonI8mm));
            }
        }
        kinds
    }

    /// The fastest; finding out takes longer than a row.
    pub fn best() -> Self {
        static BEST: OnceLock<Processor> = OnceLock::new();
        *BEST.get_or_init(|| *Self::all().last().expect("each machine has one"))
    }

    /// For how many rows its registers hold sums of floats.
    pub fn float_rows(self) -> usize {
        if self.0 == Kind::Portable { Portable::FLOAT_ROWS } else { MOST_FLOAT_ROWS }
    }

    /// For how many rows its registers hold sums of products of bytes.
    pub fn rows(self) -> usize {
        match self.0 {
            Kind::Portable => Portable::ROWS,
            #[cfg(x86_64_kernels)]
            Kind::Avx2 => Avx2::<false>::ROWS,
            #[cfg(x86_64_kernels)]
            Kind::AvxVnni => Avx2::<true>::ROWS,
            #[cfg(x86_64_kernels)]
            Kind::Avx512 => Avx512::ROWS,
            #[cfg(aarch64_kernels)]
            Kind::Neon => Neon::<Widened>::ROWS,
            #[cfg(aarch64_kernels)]
            Kind::NeonDotProd => Neon::<Signed>::ROWS,
            #[cfg(aarch64_kernels)]
            Kind::NeonI8mm => Neon::<Mixed>::ROWS,
        }
    }

    /// What its kernels use, in words.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(x86_64_kernels)]
            Kind::Avx2 => "AVX2",
            #[cfg(x86_64_kernels)]
            Kind::AvxVnni => "AVX-VNNI",
            #[cfg(x86_64_kernels)]
            Kind::Avx512 => "AVX-512 VNNI",
            #[cfg(aarch64_kernels)]
            Kind::Neon => "NEON",
            #[cfg(aarch64_kernels)]
            Kind::NeonDotProd => "NEON DotProd",
            #[cfg(aarch64_kernels)]
            Kind::NeonI8mm => "NEON I8MM",
        }
    }

    pub(in crate::kernels) fn kind(self) -> Kind {
        self.0
    }
}

/// Compiles `$generic::<L>(..)`, unsafe and always inlined, for each processor, as the function
/// `$name`, whose first argument says which is to run. `$generic` may have a second type, as the
/// function then has. With `dots` each kind of products of bytes has its own; `floats` has none, and
/// is compiled once for kinds that differ in nothing else.
macro_rules! on_processor {
    (
        $kind:ident, $(#[$docs:meta])*
        $name:ident$(<$type:ident: $bound:ident>)? = $generic:ident(
            $($argument:ident: $given:ty),* $(,)?
        )
    ) => {
        $(#[$docs])*
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name$(<$type: $bound>)?(
            processor: $crate::kernels::lanes::Processor,
            $($argument: $given),*
        ) {
            use $crate::kernels::lanes::{self, Kind};
            #[cfg(x86_64_kernels)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Avx2<false>$(, $type)?>($($argument),*) }
            }
            #[cfg(x86_64_kernels)]
            #[allow(dead_code)]
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            unsafe fn avx_vnni$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Avx2<true>$(, $type)?>($($argument),*) }
            }
            #[cfg(x86_64_kernels)]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,fma")]
            unsafe fn avx512$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Avx512$(, $type)?>($($argument),*) }
            }
            #[cfg(aarch64_kernels)]
            #[target_feature(enable = "neon")]
            unsafe fn neon$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Neon<lanes::Widened>$(, $type)?>($($argument),*) }
            }
            #[cfg(aarch64_kernels)]
            #[allow(dead_code)]
            #[target_feature(enable = "neon,dotprod")]
            unsafe fn neon_dotprod$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Neon<lanes::Signed>$(, $type)?>($($argument),*) }
            }
            #[cfg(aarch64_kernels)]
            #[allow(dead_code)]
            #[target_feature(enable = "neon,i8mm")]
            unsafe fn neon_i8mm$(<$type: $bound>)?($($argument: $given),*) {
                unsafe { $generic::<lanes::Neon<lanes::Mixed>$(, $type)?>($($argument),*) }
            }
            // SAFETY: `Processor::all` gives only what this machine has; the rest is the caller's.
            unsafe {
                match processor.kind() {
                    Kind::Portable => $generic::<lanes::Portable$(, $type)?>($($argument),*),
                    #[cfg(x86_64_kernels)]
                    Kind::Avx2 => avx2$(::<$type>)?($($argument),*),
                    #[cfg(x86_64_kernels)]
                    Kind::AvxVnni => {
                        on_processor!(@$kind avx_vnni, avx2, $(<$type>)?, ($($argument),*))
                    }
                    #[cfg(x86_64_kernels)]
                    Kind::Avx512 => avx512$(::<$type>)?($($argument),*),
                    #[cfg(aarch64_kernels)]
                    Kind::Neon => neon$(::<$type>)?($($argument),*),
                    #[cfg(aarch64_kernels)]
                    Kind::NeonDotProd => {
                        on_processor!(@$kind neon_dotprod, neon, $(<$type>)?, ($($argument),*))
                    }
                    #[cfg(aarch64_kernels)]
                    Kind::NeonI8mm => {
                        on_processor!(@$kind neon_i8mm, neon, $(<$type>)?, ($($argument),*))
                    }
                }
            }
        }
    };
    (@dots $own:ident, $common:ident, $(<$type:ident>)?, $arguments:tt) => {
        $own$(::<$type>)? $arguments
    };
    (@floats $own:ident, $common:ident, $(<$type:ident>)?, $arguments:tt) => {
        $common$(::<$type>)? $arguments
    };
}
pub(in crate::kernels) use on_processor;
