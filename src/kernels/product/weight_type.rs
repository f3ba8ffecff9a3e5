//! How the weights of a matrix are stored: the types of llama.cpp's files, and their sizes.

use super::BLOCK;
use crate::kernels::lanes::WIDTH;

/// What a block of one output is made of.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Weights of the block: [`BLOCK`], or some times as many; 1 of floats.
    pub weights: usize,
    /// Bits of a value, in planes: each holds some bits of all values, the lowest first.
    pub planes: &'static [usize],
    /// Numbers that are float16: a scale, and with some a minimum.
    pub halves: usize,
    /// Other bytes that say something of scales; those of a float.
    pub bytes: usize,
}

impl Layout {
    /// Bytes of the values of [`BLOCK`] weights.
    pub const fn value_bytes(self) -> usize {
        let (mut bits, mut plane) = (0, 0);
        while plane < self.planes.len() {
            bits += self.planes[plane];
            plane += 1;
        }
        BLOCK / 8 * bits
    }

    /// Bytes of a block, in a file or in a panel.
    pub const fn block_bytes(self) -> usize {
        self.weights / BLOCK * self.value_bytes() + 2 * self.halves + self.bytes
    }
}

/// The types, each with its layout: weights of a block, planes, halves, other bytes.
macro_rules! weight_types {
    ($($(#[$doc:meta])* $name:ident: $weights:literal, $planes:expr, $halves:literal, $bytes:literal;)*) => {
        /// A type of weights: floats, or in blocks `(value - zero) * scale`, perhaps plus a minimum.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum WeightType {
            $($(#[$doc])* $name),*
        }

        impl WeightType {
            /// All of them.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// Its name in files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),*
                }
            }

            /// What its blocks are made of.
            pub const fn layout(self) -> Layout {
                let (weights, planes, halves, bytes): (_, &'static [usize], _, _) = match self {
                    $(Self::$name => ($weights, $planes, $halves, $bytes)),*
                };
                Layout { weights, planes, halves, bytes }
            }
        }
    };
}

weight_types! {
    /// 4 bits, zero 8.
    Q4_0: 32, &[4], 1, 0;
    /// 4 bits with minima.
    Q4_1: 32, &[4], 2, 0;
    /// 5 bits, zero 16.
    Q5_0: 32, &[4, 1], 1, 0;
    /// 5 bits with minima.
    Q5_1: 32, &[4, 1], 2, 0;
    /// 8 bits, signed; in panels unsigned, zero 128.
    Q8_0: 32, &[8], 1, 0;
    /// 2 bits with minima, and 4 for the scale and the minimum of sixteen.
    Q2_K: 256, &[2], 2, 16;
    /// 3 bits, zero 4, and 6 for the scale of sixteen.
    Q3_K: 256, &[2, 1], 1, 12;
    /// 4 bits with minima, and 6 for the scale and the minimum of 32.
    Q4_K: 256, &[4], 2, 12;
    /// 5 bits with minima, and 6 for the scale and the minimum of 32.
    Q5_K: 256, &[4, 1], 2, 12;
    /// 6 bits, zero 32, and 8 for the scale of sixteen.
    Q6_K: 256, &[4, 2], 1, 16;
    /// 4 bits for one of sixteen values, of which most are near zero.
    IQ4_NL: 32, &[4], 1, 0;
    /// The same values, and 6 bits for the scale of 32.
    IQ4_XS: 256, &[4], 1, 6;
    /// 4 bits for a float of 4 bits, and 8 for the exponent of 32.
    MXFP4: 32, &[4], 0, 1;
    /// Floats, with which rows are multiplied as they are.
    F16: 1, &[], 0, 2;
    /// The upper halves of float32.
    BF16: 1, &[], 0, 2;
    /// Floats that take as much as rows.
    F32: 1, &[], 0, 4;
}

impl WeightType {
    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether weights are floats: then rows are not rounded.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32)
    }

    /// Weights of a block, 1 of floats.
    pub const fn block_weights(self) -> usize {
        self.layout().weights
    }

    /// Bytes of a block of one output, in a file.
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes()
    }

    /// Whether rows of `columns` can be stored: a block of 32 may be filled up, no larger one.
    pub const fn fits(self, columns: usize) -> bool {
        self.block_weights() <= BLOCK || columns.is_multiple_of(self.block_weights())
    }

    /// Bytes of the panel of sixteen outputs.
    pub const fn panel_bytes(self, columns: usize) -> usize {
        WIDTH * columns.div_ceil(self.block_weights()) * self.block_bytes()
    }

    /// Panels of a matrix.
    pub const fn num_panels(self, outputs: usize) -> usize {
        outputs.div_ceil(WIDTH)
    }

    /// Bytes of a matrix in panels.
    pub const fn num_bytes(self, outputs: usize, columns: usize) -> usize {
        self.num_panels(outputs) * self.panel_bytes(columns)
    }
}
