//! How the weights of a matrix are stored: the types of llama.cpp's files, and their sizes.

use super::BLOCK;
use crate::kernels::lanes::WIDTH;

/// A type of weights: floats, or in blocks `(value - zero) * scale`, perhaps plus a minimum.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 4 bits, zero 8.
    Q4_0,
    /// 4 bits with minima.
    Q4_1,
    /// 5 bits, zero 16.
    Q5_0,
    /// 5 bits with minima.
    Q5_1,
    /// 8 bits, signed; in panels unsigned, zero 128.
    Q8_0,
    /// 2 bits with minima, and 4 for the scale and the minimum of sixteen.
    Q2_K,
    /// 3 bits, zero 4, and 6 for the scale of sixteen.
    Q3_K,
    /// 4 bits with minima, and 6 for the scale and the minimum of 32.
    Q4_K,
    /// 5 bits with minima, and 6 for the scale and the minimum of 32.
    Q5_K,
    /// 6 bits, zero 32, and 8 for the scale of sixteen.
    Q6_K,
    /// 4 bits for one of sixteen values, of which most are near zero.
    IQ4_NL,
    /// The same values, and 6 bits for the scale of 32.
    IQ4_XS,
    /// 4 bits for a float of 4 bits, and 8 for the exponent of 32.
    MXFP4,
    /// Floats, with which rows are multiplied as they are.
    F16,
    /// The upper halves of float32.
    BF16,
    /// Floats that take as much as rows.
    F32,
}

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

impl WeightType {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::F16,
        Self::BF16,
        Self::F32,
    ];

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F32 => "F32",
        }
    }

    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What its blocks are made of.
    pub const fn layout(self) -> Layout {
        const fn layout(
            weights: usize,
            planes: &'static [usize],
            halves: usize,
            bytes: usize,
        ) -> Layout {
            Layout { weights, planes, halves, bytes }
        }
        match self {
            Self::Q4_0 => layout(32, &[4], 1, 0),
            Self::Q4_1 => layout(32, &[4], 2, 0),
            Self::Q5_0 => layout(32, &[4, 1], 1, 0),
            Self::Q5_1 => layout(32, &[4, 1], 2, 0),
            Self::Q8_0 => layout(32, &[8], 1, 0),
            Self::Q2_K => layout(256, &[2], 2, 16),
            Self::Q3_K => layout(256, &[2, 1], 1, 12),
            Self::Q4_K => layout(256, &[4], 2, 12),
            Self::Q5_K => layout(256, &[4, 1], 2, 12),
            Self::Q6_K => layout(256, &[4, 2], 1, 16),
            Self::IQ4_NL => layout(32, &[4], 1, 0),
            Self::IQ4_XS => layout(256, &[4], 1, 6),
            Self::MXFP4 => layout(32, &[4], 0, 1),
            Self::F16 | Self::BF16 => layout(1, &[], 0, 2),
            Self::F32 => layout(1, &[], 0, 4),
        }
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
