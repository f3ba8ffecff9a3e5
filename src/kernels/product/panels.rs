//! Weights in blocks of 32, in the order in which a product reads them.
//!
//! In: a matrix's rows in a file's form (Q4_0, Q4_1, Q8_0: of llama.cpp's files). Out: the same
//! integers and scales in panels of sixteen outputs: all values of a panel, block after block, then
//! its scales, then its minima. A last panel is filled up with zeros.
//!
//! In a block's values the four inputs of a group stand together, output after output, so that a
//! vector of 64 bytes holds sixteen outputs. With 4 bits a byte's low half is of a group and its high
//! half of the next one.

use super::BLOCK;
use crate::kernels::lanes::WIDTH;

/// How the weights of a matrix are stored: `(value - zero) * scale`, or `value * scale + minimum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 4 bits, zero 8.
    Q4_0,
    /// 4 bits with minima.
    Q4_1,
    /// 8 bits, signed; in panels unsigned, zero 128.
    Q8_0,
}

impl WeightType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Q4_0, Self::Q4_1, Self::Q8_0];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
        }
    }

    /// That of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of a block's values, for one output.
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 => BLOCK / 2,
            Self::Q8_0 => BLOCK,
        }
    }

    /// Numbers of a block that are float16: a scale, and with some a minimum.
    pub const fn num_halves(self) -> usize {
        match self {
            Self::Q4_1 => 2,
            Self::Q4_0 | Self::Q8_0 => 1,
        }
    }

    /// Bytes of a block of one output, in a file.
    pub const fn block_bytes(self) -> usize {
        self.value_bytes() + 2 * self.num_halves()
    }

    /// Bytes of the panel of sixteen outputs.
    pub const fn panel_bytes(self, blocks: usize) -> usize {
        WIDTH * blocks * self.block_bytes()
    }

    /// Panels of a matrix.
    pub const fn num_panels(self, outputs: usize) -> usize {
        outputs.div_ceil(WIDTH)
    }

    /// Bytes of a matrix in panels.
    pub const fn num_bytes(self, outputs: usize, columns: usize) -> usize {
        self.num_panels(outputs) * self.panel_bytes(columns.div_ceil(BLOCK))
    }
}

/// Rearranges rows of `blocks` blocks each, as a file has them, into panels.
///
/// `rows` are whole rows, `panels` is [`WeightType::num_bytes`] long.
pub fn to_panels(kind: WeightType, blocks: usize, rows: &[u8], panels: &mut [u8]) {
    let row_bytes = blocks * kind.block_bytes();
    let panel_bytes = kind.panel_bytes(blocks);
    panels.fill(0);
    for (output, row) in rows.chunks_exact(row_bytes).enumerate() {
        let panel = &mut panels[output / WIDTH * panel_bytes..][..panel_bytes];
        let lane = output % WIDTH;
        let (values, halves) = panel.split_at_mut(WIDTH * blocks * kind.value_bytes());
        for (block, stored) in row.chunks_exact(kind.block_bytes()).enumerate() {
            let (stored_halves, stored_values) = stored.split_at(2 * kind.num_halves());
            for (which, half) in stored_halves.chunks_exact(2).enumerate() {
                let at = 2 * ((which * blocks + block) * WIDTH + lane);
                halves[at..at + 2].copy_from_slice(half);
            }
            let values = &mut values[WIDTH * block * kind.value_bytes()..];
            for column in 0..BLOCK {
                let (group, at) = (column / 4, 4 * lane + column % 4);
                match kind {
                    WeightType::Q8_0 => {
                        values[4 * WIDTH * group + at] = stored_values[column] ^ 0x80;
                    }
                    WeightType::Q4_0 | WeightType::Q4_1 => {
                        // A file's low halves are its first sixteen numbers.
                        let value = stored_values[column % 16] >> (column / 16 * 4) & 0x0f;
                        values[4 * WIDTH * (group / 2) + at] |= value << (group % 2 * 4);
                    }
                }
            }
        }
    }
}
