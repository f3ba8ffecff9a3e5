//! Numbers that look random and are the same each time. In: a seed and an index. Out: a number. It
//! keeps no state, so that any of a sequence can be had without those before it.

/// What SplitMix64 (Steele, Lea and Flood, 2014) adds for each number.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A number in [0, 1), the same for the same arguments: SplitMix64 of the seed, jumped ahead to
/// `index`.
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    uniform_again(seed, index, 0)
}

/// The number that takes the place of [`uniform`]'s at an `attempt`, counted from 0, which is the
/// same one.
pub(crate) fn uniform_again(seed: u64, index: u64, attempt: u32) -> f64 {
    let first = mix(mix(seed).wrapping_add(STEP.wrapping_mul(index.wrapping_add(1))));
    let bits = (0..attempt).fold(first, |bits, _| mix(bits.wrapping_add(STEP)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::test_runner::{Config, RngSeed};

    #[test]
    fn properties_draw_by_a_seed_that_is_told_and_by_no_file() {
        let config = Config::default();
        let is_told = matches!(config.rng_seed, RngSeed::Fixed(_));
        assert!(is_told, "`cargo test` below this directory reads it from .cargo/config.toml");
        assert!(config.failure_persistence.is_none());
    }
}
