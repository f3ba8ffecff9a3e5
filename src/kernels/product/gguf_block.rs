//! A block of weights as a file has it, taken apart.
//!
//! The layouts are those of llama.cpp's `ggml-common.h`. Out: values in the order of their columns,
//! and what says something of scales in the order in which `scales.rs` reads it.

use super::weight_type::WeightType;

/// The parts of a block; what its type has fewer of stays zero.
pub struct GgufBlock {
    /// One for each weight.
    pub values: [u8; 256],
    /// Float16: the scale, the minimum.
    pub halves: [[u8; 2]; 2],
    /// Parts of scales and minima.
    pub bytes: [u8; 16],
}

/// Takes the `stored` bytes of a block apart.
pub fn unpack(kind: WeightType, stored: &[u8]) -> GgufBlock {
    let mut to = GgufBlock { values: [0; 256], halves: [[0; 2]; 2], bytes: [0; 16] };
    match kind {
        WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q5_0 | WeightType::Q5_1 => {
            let stored = to.take_halves(kind.layout().halves, stored);
            let (high, low) = stored.split_at(stored.len() - 16);
            to.put_nibbles(16, low);
            for column in 0..32 {
                if !high.is_empty() {
                    to.values[column] |= (high[column / 8] >> (column % 8) & 1) << 4;
                }
            }
        }
        WeightType::Q8_0 => {
            let stored = to.take_halves(1, stored);
            for (value, stored) in to.values.iter_mut().zip(stored) {
                *value = stored ^ 0x80;
            }
        }
        WeightType::Q2_K => {
            let (scales, rest) = stored.split_at(16);
            let (values, halves) = rest.split_at(64);
            to.bytes.copy_from_slice(scales);
            to.put_quarters(values);
            to.take_halves(2, halves);
            to.oppose_minimum();
        }
        WeightType::Q3_K => {
            let (high, rest) = stored.split_at(32);
            let (values, rest) = rest.split_at(64);
            let (scales, half) = rest.split_at(12);
            to.put_quarters(values);
            for (column, value) in to.values.iter_mut().enumerate() {
                *value |= (high[column % 32] >> (column / 32) & 1) << 2;
            }
            to.put_sixes(|index| {
                let scale = |index: usize| {
                    let low = scales[index % 8] >> (index / 8 * 4) & 0x0f;
                    low | (scales[8 + index % 4] >> (index / 4 * 2) & 0x03) << 4
                };
                [scale(2 * index), scale(2 * index + 1)]
            });
            to.take_halves(1, half);
        }
        WeightType::Q4_K | WeightType::Q5_K => {
            let rest = to.take_halves(2, stored);
            to.oppose_minimum();
            let (scales, rest) = rest.split_at(12);
            let (high, low) = rest.split_at(rest.len() - 128);
            to.put_sixes(|index| match index {
                0..4 => [scales[index] & 0x3f, scales[index + 4] & 0x3f],
                _ => [
                    scales[index + 4] & 0x0f | scales[index - 4] >> 6 << 4,
                    scales[index + 4] >> 4 | scales[index] >> 6 << 4,
                ],
            });
            to.put_nibbles(32, low);
            if !high.is_empty() {
                for (column, value) in to.values.iter_mut().enumerate() {
                    *value |= (high[column % 32] >> (column / 32) & 1) << 4;
                }
            }
        }
        WeightType::Q6_K => {
            let (low, rest) = stored.split_at(128);
            let (high, rest) = rest.split_at(64);
            let (scales, half) = rest.split_at(16);
            to.put_quarters(high);
            let low_nibbles = |column: usize| {
                let (part, column) = (column / 128, column % 128);
                low[64 * part + column % 64] >> (column / 64 * 4) & 0x0f
            };
            for (column, value) in to.values.iter_mut().enumerate() {
                *value = *value << 4 | low_nibbles(column);
            }
            for (byte, scale) in to.bytes.iter_mut().zip(scales) {
                *byte = scale ^ 0x80;
            }
            to.take_halves(1, half);
        }
        WeightType::IQ4_NL => {
            let values = to.take_halves(1, stored);
            to.put_nibbles(16, values);
        }
        WeightType::IQ4_XS => {
            let rest = to.take_halves(1, stored);
            let (high, rest) = rest.split_at(2);
            let (low, values) = rest.split_at(4);
            to.bytes[..4].copy_from_slice(low);
            to.bytes[4..6].copy_from_slice(high);
            to.put_nibbles(16, values);
        }
        WeightType::MXFP4 => {
            to.bytes[0] = stored[0];
            to.put_nibbles(16, &stored[1..]);
        }
        WeightType::F16 | WeightType::BF16 | WeightType::F32 => {
            unreachable!("floats are in no blocks")
        }
    }
    to
}

impl GgufBlock {
    /// Takes the first numbers that are float16; returns what is behind them.
    fn take_halves<'a>(&mut self, count: usize, stored: &'a [u8]) -> &'a [u8] {
        let (halves, rest) = stored.split_at(2 * count);
        for (half, stored) in self.halves.iter_mut().zip(halves.chunks_exact(2)) {
            half.copy_from_slice(stored);
        }
        rest
    }

    /// Turns the sign of a minimum that is stored to be subtracted.
    fn oppose_minimum(&mut self) {
        self.halves[1][1] ^= 0x80;
    }

    /// Values of 4 bits: the low halves of `run` bytes, then their high halves, and so on.
    fn put_nibbles(&mut self, run: usize, stored: &[u8]) {
        for (column, value) in self.values[..2 * stored.len()].iter_mut().enumerate() {
            let byte = stored[column / (2 * run) * run + column % run];
            *value = byte >> (column / run % 2 * 4) & 0x0f;
        }
    }

    /// Values of 2 bits: the lowest of 32 bytes, then the next, and so on.
    fn put_quarters(&mut self, stored: &[u8]) {
        for (column, value) in self.values.iter_mut().enumerate() {
            *value = stored[column / 128 * 32 + column % 32] >> (column / 32 % 4 * 2) & 0x03;
        }
    }

    /// Both numbers of 6 bits for each 32 weights, in the order of `scales.rs`.
    fn put_sixes(&mut self, both: impl Fn(usize) -> [u8; 2]) {
        for index in 0..8 {
            let [first, second] = both(index);
            self.bytes[index] = first & 0x0f | (second & 0x0f) << 4;
            let high = first >> 4 | second >> 4 << 2;
            self.bytes[8 + index / 2] |= high << (index % 2 * 4);
        }
    }
}
