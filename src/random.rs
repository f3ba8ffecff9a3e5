//! Numbers that look random and are the same each time. In: a seed and an index. Out: a number. It
//! keeps no state, so that any of a sequence can be had without those before it.

/// A number in [0, 1), the same for the same arguments: SplitMix64 (Steele, Lea and Flood, 2014)
/// of the seed, jumped ahead to `index`.
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let start = mix(seed);
    let bits = mix(start.wrapping_add(STEP.wrapping_mul(index.wrapping_add(1))));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}
