//! A made-up text that looks like one to a lookup: words with Zipf-like frequencies, each with a
//! few likely followers, and now and then a passage that was there before.

use coordgen_rs::ids::TokenId;

/// A deterministic generator (xorshift) of numbers in 0..1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `len` tokens below `vocab_size`, the same ones at every call.
pub fn text(len: usize, vocab_size: u32) -> Vec<TokenId> {
    let mut numbers = Numbers(88_172_645_463_325_252);
    let mut text = vec![TokenId(0)];
    while text.len() < len {
        if numbers.next() < 0.01 {
            let start = (numbers.next() * text.len() as f64) as usize;
            let end = (start + (numbers.next() * 40.0) as usize).min(text.len());
            text.extend_from_within(start..end);
        }
        let follower = numbers.next().powi(3) * 20.0;
        let rank = f64::from(vocab_size).powf(numbers.next()) as u32;
        let last = text[text.len() - 1].0;
        let likely = last.wrapping_mul(31) + follower as u32;
        text.push(TokenId(if numbers.next() < 0.5 { likely % vocab_size } else { rank }));
    }
    text.truncate(len);
    text
}
