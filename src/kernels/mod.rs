//! What a target on CPU computes by itself: attention, products, and rounding of activations.
//!
//! [`attention`] and [`product`] say what they take and give. The rest is here: activations are
//! rounded to 8 bits, a row at a time, with what comes before it in a decoder. In: rows of float32.
//! Out: rows of uint8 around 128 and the scale of each, as in
//! `python/coordgen_rs/tools/export/cpu/w8a8.py`: `round(x * (127 / max|x|)) + 128`, and `max|x| / 127`.
//! A fine row has a second row of what rounding left, in 254 steps to one of the first.
//! ONNX Runtime calls them through `src/ort`.
//!
//! The same lines are compiled for vectors of several widths. In rounding no sum is reordered and no
//! product fused with a sum, so all give the same bits: sums run in `LANES` lanes on any processor.

pub mod attention;
mod lanes;
pub mod product;
mod row;

use std::sync::OnceLock;

pub use lanes::{Processor, WIDTH};

/// Lanes of a sum, whatever the processor's vectors hold.
const LANES: usize = 16;

/// Vectors of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What the target of the build has: SSE2, or NEON.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Vectors {
    /// All that this processor has, the narrowest first.
    pub fn all() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut kinds = vec![Self(Kind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kinds.push(Self(Kind::Avx2));
            }
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                kinds.push(Self(Kind::Avx512));
            }
        }
        kinds
    }

    /// The widest; finding out takes longer than a row.
    pub fn widest() -> Self {
        static WIDEST: OnceLock<Vectors> = OnceLock::new();
        *WIDEST.get_or_init(|| *Self::all().last().expect("each processor has some"))
    }
}

/// Compiles a function of `row` for each kind of vectors.
macro_rules! for_vectors {
    ($(#[$docs:meta])* $name:ident($($argument:ident: $type:ty),*) -> $given:ty) => {
        $(#[$docs])*
        #[allow(unsafe_code)]
        pub fn $name(vectors: Vectors, $($argument: $type),*) -> $given {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) -> $given {
                row::$name($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            fn avx512($($argument: $type),*) -> $given {
                row::$name($($argument),*)
            }
            match vectors.0 {
                Kind::Baseline => row::$name($($argument),*),
                // SAFETY: `Vectors::all` gives only what the processor has.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => unsafe { avx512($($argument),*) },
            }
        }
    };
}

for_vectors! {
    /// Rounds `x (K,)` to `rows (K,)`; returns the scale.
    round(x: &[f32], rows: &mut [u8]) -> f32
}
for_vectors! {
    /// Rounds `x (K,)` to `rows (K,)`, and what that leaves to `rests (K,)`; returns the scale.
    round_fine(x: &[f32], rows: &mut [u8], rests: &mut [u8]) -> f32
}
for_vectors! {
    /// Writes the RMSNorm of `stream (K,)`, times `weight (K,)`, to `normed (K,)`.
    norm(stream: &[f32], weight: &[f32], epsilon: f32, normed: &mut [f32]) -> ()
}
for_vectors! {
    /// Writes to `joined (K,)` what the products of a fine row and of its rests are together.
    join(product: &[f32], of_rests: &[f32], scale: f32, joined: &mut [f32]) -> ()
}
for_vectors! {
    /// Adds `before (K,)` to `stream (K,)`.
    add(before: &[f32], stream: &mut [f32]) -> ()
}
for_vectors! {
    /// Writes `silu(gate) * up` to `gated (K,)`, where `both (2 * K,)` times its scale is gate
    /// and up.
    gate(both: &[f32], both_scale: f32, gated: &mut [f32]) -> ()
}

/// Whether ONNX Runtime's products of uint8 and int8 may overflow here: x86 without VNNI adds
/// pairs of them in 16 bits.
pub fn byte_products_saturate() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let with_avx512 = is_x86_feature_detected!("avx512vnni");
        let with_avx2 = is_x86_feature_detected!("avxvnni");
        !with_avx512 && !with_avx2
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests;
