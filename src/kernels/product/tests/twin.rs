//! Blocks of random weights, and what they stand for: written from llama.cpp's dequantisation.

use crate::kernels::product::WeightType;

/// A float16 that is neither infinite nor NaN, as float64, from any 16 bits.
pub fn half(bits: u16) -> (u16, f64) {
    let bits = if bits & 0x7c00 == 0x7c00 { bits & !0x4000 } else { bits };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff) / 1024.0);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-14),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    (bits, if bits & 0x8000 == 0 { magnitude } else { -magnitude })
}

/// A block that is filled with random bytes from front to back.
struct Random<'a, R> {
    bytes: Vec<u8>,
    random: &'a mut R,
}

impl<R: FnMut() -> u32> Random<'_, R> {
    /// A scale of about 2^-7, of either sign.
    fn half(&mut self) -> f64 {
        let (bits, scale) = half((self.random)() as u16 & 0x8fff | 0x2000);
        self.bytes.extend(bits.to_le_bytes());
        scale
    }

    /// So many bytes.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..count).map(|_| (self.random)() as u8).collect();
        self.bytes.extend(&bytes);
        bytes
    }
}

/// A block as a file has it, and its weights.
pub fn block(kind: WeightType, random: &mut impl FnMut() -> u32) -> (Vec<u8>, Vec<f64>) {
    let mut block = Random { bytes: Vec::new(), random };
    let mut weights = vec![0.0; kind.block_weights()];
    match kind {
        WeightType::Q4_0 => {
            let (d, qs) = (block.half(), block.bytes(16));
            for j in 0..16 {
                weights[j] = (f64::from(qs[j] & 0xf) - 8.0) * d;
                weights[j + 16] = (f64::from(qs[j] >> 4) - 8.0) * d;
            }
        }
        WeightType::Q4_1 => {
            let (d, m, qs) = (block.half(), block.half(), block.bytes(16));
            for j in 0..16 {
                weights[j] = f64::from(qs[j] & 0xf) * d + m;
                weights[j + 16] = f64::from(qs[j] >> 4) * d + m;
            }
        }
        WeightType::Q5_0 | WeightType::Q5_1 => {
            let d = block.half();
            let m = if kind == WeightType::Q5_1 { block.half() } else { -16.0 * d };
            let (qh, qs) = (block.bytes(4), block.bytes(16));
            let qh = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
            for j in 0..16 {
                let (first, second) = ((qh >> j) << 4 & 0x10, qh >> (j + 12) & 0x10);
                weights[j] = f64::from(u32::from(qs[j] & 0xf) | first) * d + m;
                weights[j + 16] = f64::from(u32::from(qs[j] >> 4) | second) * d + m;
            }
        }
        WeightType::Q8_0 => {
            let (d, qs) = (block.half(), block.bytes(32));
            for j in 0..32 {
                weights[j] = f64::from(qs[j] as i8) * d;
            }
        }
        WeightType::Q2_K => {
            let (scales, qs) = (block.bytes(16), block.bytes(64));
            let (d, min) = (block.half(), block.half());
            let (mut is, mut y) = (0, 0);
            for q in qs.chunks(32) {
                for shift in [0, 2, 4, 6] {
                    for half in q.chunks(16) {
                        let (dl, ml) = (f64::from(scales[is] & 0xf), f64::from(scales[is] >> 4));
                        is += 1;
                        for l in half {
                            weights[y] = d * dl * f64::from(l >> shift & 3) - min * ml;
                            y += 1;
                        }
                    }
                }
            }
        }
        WeightType::Q3_K => {
            let (hm, qs) = (block.bytes(32), block.bytes(64));
            let (packed, d) = (block.bytes(12), block.half());
            let aux: Vec<u32> = packed
                .chunks(4)
                .map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]))
                .collect();
            let (low, high) = (0x0f0f_0f0f, 0x0303_0303);
            let scales: Vec<u8> = [
                aux[0] & low | (aux[2] & high) << 4,
                aux[1] & low | (aux[2] >> 2 & high) << 4,
                aux[0] >> 4 & low | (aux[2] >> 4 & high) << 4,
                aux[1] >> 4 & low | (aux[2] >> 6 & high) << 4,
            ]
            .iter()
            .flat_map(|four| four.to_le_bytes())
            .collect();
            let (mut is, mut y, mut m) = (0, 0, 1u8);
            for q in qs.chunks(32) {
                for shift in [0, 2, 4, 6] {
                    for start in [0, 16] {
                        let dl = d * (f64::from(scales[is]) - 32.0);
                        is += 1;
                        for l in start..start + 16 {
                            let high = if hm[l] & m == 0 { 4.0 } else { 0.0 };
                            weights[y] = dl * (f64::from(q[l] >> shift & 3) - high);
                            y += 1;
                        }
                    }
                    m = m.rotate_left(1);
                }
            }
        }
        WeightType::Q4_K | WeightType::Q5_K => {
            let (d, min, packed) = (block.half(), block.half(), block.bytes(12));
            let high = if kind == WeightType::Q5_K { block.bytes(32) } else { vec![0; 32] };
            let qs = block.bytes(128);
            let scale_min = |j: usize| {
                let (d, m) = if j < 4 {
                    (packed[j] & 63, packed[j + 4] & 63)
                } else {
                    let d = packed[j + 4] & 0xf | (packed[j - 4] >> 6) << 4;
                    (d, packed[j + 4] >> 4 | (packed[j] >> 6) << 4)
                };
                (f64::from(d), f64::from(m))
            };
            let (mut y, mut is, mut u) = (0, 0, 1u8);
            for q in qs.chunks(32) {
                for shift in [0, 4] {
                    let (d_scale, m_scale) = scale_min(is);
                    is += 1;
                    for l in 0..32 {
                        let fifth = if high[l] & u == 0 { 0 } else { 16 };
                        let value = f64::from((q[l] >> shift & 0xf) + fifth);
                        weights[y] = d * d_scale * value - min * m_scale;
                        y += 1;
                    }
                    u = u.rotate_left(1);
                }
            }
        }
        WeightType::Q6_K => {
            let (ql, qh) = (block.bytes(128), block.bytes(64));
            let (sc, d) = (block.bytes(16), block.half());
            for n in [0, 1] {
                let (ql, qh) = (&ql[64 * n..], &qh[32 * n..]);
                let (y, sc) = (&mut weights[128 * n..], &sc[8 * n..]);
                for l in 0..32 {
                    let values = [
                        ql[l] & 0xf | (qh[l] & 3) << 4,
                        ql[l + 32] & 0xf | (qh[l] >> 2 & 3) << 4,
                        ql[l] >> 4 | (qh[l] >> 4 & 3) << 4,
                        ql[l + 32] >> 4 | (qh[l] >> 6 & 3) << 4,
                    ];
                    for (k, value) in values.into_iter().enumerate() {
                        let scale = f64::from(sc[l / 16 + 2 * k] as i8);
                        y[l + 32 * k] = d * scale * (f64::from(value) - 32.0);
                    }
                }
            }
        }
        WeightType::IQ4_NL => {
            let (d, qs) = (block.half(), block.bytes(16));
            for j in 0..16 {
                weights[j] = d * KVALUES_IQ4NL[usize::from(qs[j] & 0xf)];
                weights[j + 16] = d * KVALUES_IQ4NL[usize::from(qs[j] >> 4)];
            }
        }
        WeightType::IQ4_XS => {
            let (d, high) = (block.half(), block.bytes(2));
            let (low, qs) = (block.bytes(4), block.bytes(128));
            let high = u16::from_le_bytes([high[0], high[1]]);
            for ib in 0..8 {
                let low = u16::from(low[ib / 2] >> (4 * (ib % 2)) & 0xf);
                let ls = low | (high >> (2 * ib) & 3) << 4;
                let dl = d * (f64::from(ls) - 32.0);
                for j in 0..16 {
                    let both = usize::from(qs[16 * ib + j]);
                    weights[32 * ib + j] = dl * KVALUES_IQ4NL[both & 0xf];
                    weights[32 * ib + j + 16] = dl * KVALUES_IQ4NL[both >> 4];
                }
            }
        }
        WeightType::MXFP4 => {
            let (exponent, qs) = (block.bytes(1)[0] % 32 + 100, block.bytes(16));
            block.bytes[0] = exponent;
            let d = 2f64.powi(i32::from(exponent) - 127);
            for j in 0..16 {
                weights[j] = d * FLOATS_OF_4_BITS[usize::from(qs[j] & 0xf)];
                weights[j + 16] = d * FLOATS_OF_4_BITS[usize::from(qs[j] >> 4)];
            }
        }
        WeightType::F16 => weights[0] = block.half(),
        WeightType::BF16 | WeightType::F32 => {
            let float = ((block.random)() as f32 / (1u64 << 30) as f32 - 1.0) / 64.0;
            let float = match kind {
                WeightType::BF16 => f32::from_bits(float.to_bits() & 0xffff_0000),
                _ => float,
            };
            block.bytes.extend(&float.to_le_bytes()[4 - kind.block_bytes()..]);
            weights[0] = f64::from(float);
        }
    }
    (block.bytes, weights)
}

const KVALUES_IQ4NL: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];
const FLOATS_OF_4_BITS: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
