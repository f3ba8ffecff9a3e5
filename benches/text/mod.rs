//! A made-up text that looks like one to a lookup: words with Zipf-like frequencies, each with a
//! few likely followers, and now and then a passage that was there before.

use coordgen_rs::ids::TokenId;

/// Numbers in 0..1, the same ones at every call (xorshift).
pub fn numbers() -> impl Iterator<Item = f64> {
    let mut state = 88_172_645_463_325_252_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    })
}

/// `len` tokens below `vocab_size`, the same ones at every call.
pub fn text(len: usize, vocab_size: u32) -> Vec<TokenId> {
    let mut numbers = numbers();
    let mut next = || numbers.next().expect("numbers do not end");
    let mut text = vec![TokenId(0)];
    while text.len() < len {
        if next() < 0.01 {
            let start = (next() * text.len() as f64) as usize;
            let end = (start + (next() * 40.0) as usize).min(text.len());
            text.extend_from_within(start..end);
        }
        let matcher = next().powi(3) * 20.0;
        let rank = f64::from(vocab_size).powf(next()) as u32;
        let last = text[text.len() - 1].0;
        let likely = last.wrapping_mul(31) + matcher as u32;
        text.push(TokenId(if next() < 0.5 { likely % vocab_size } else { rank }));
    }
    text.truncate(len);
    text
}
