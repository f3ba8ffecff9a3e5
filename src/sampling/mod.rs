//! Sampling: which token the target says, where it is not simply the likeliest. In: a row of logits,
//! the number of the answer's token, the tokens of the text so far. Out: the token chosen.
//!
//! Drafts are deterministic, so accepting a draft token with the target's probability, and drawing
//! from the rest after a rejection, is the same as drawing first and accepting what equals the draw.
//! Each draw depends on the row, the seed and the token's number alone, not on how many draws came
//! before: so a sampled answer is the same token for token with and without drafts, as a greedy one
//! is. A repetition penalty depends on the text before a row besides, which is that of its own path.

mod row;
mod seen_tokens;
#[cfg(test)]
pub(crate) mod tests;

use self::row::{Place, Row};
pub use self::seen_tokens::{SeenTokens, check_vocab_size};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logits::argmax;
use crate::random::uniform_again;

/// Repetition penalties are from this to its inverse: beyond, no token but the penalised counts.
const LEAST_PENALTY: f32 = 0.01;

/// How tokens are chosen: the repetition penalty first, then temperature, `top_k`, `top_p` and
/// `min_p`, in the order of Hugging Face's `generate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    seed: u64,
}

impl Sampling {
    /// Draws from the softmax of `logits / temperature`, cut to the `top_k` likeliest tokens (0: all)
    /// and of those to the fewest whose probabilities reach `top_p`. A temperature of 0 always takes
    /// the likeliest.
    ///
    /// Fails when `temperature` is negative or not finite, or `top_p` is not in (0, 1].
    ///
    /// ```
    /// use coordgen_rs::sampling::Sampling;
    ///
    /// let sampling = Sampling::new(0.7, 0, 1.0, 1)?;
    /// let row = [2.0, 1.0, 3.0];
    /// assert_eq!(sampling.draw(&row, 5), sampling.draw(&row, 5));
    /// # Ok::<(), coordgen_rs::error::Error>(())
    /// ```
    pub fn new(temperature: f32, top_k: usize, top_p: f32, seed: u64) -> Result<Self> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            let (what, must) = ("temperature", "0 or more, and finite");
            return Err(Error::BadOption { what, got: temperature.to_string(), must });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let (what, must) = ("top_p", "above 0 and at most 1");
            return Err(Error::BadOption { what, got: top_p.to_string(), must });
        }
        Ok(Self { temperature, top_k, top_p, min_p: 0.0, repetition_penalty: 1.0, seed })
    }

    /// Of what `top_k` and `top_p` leave, only the tokens that are at least `min_p` times as likely as
    /// the likeliest (0: all of them).
    ///
    /// Fails when `min_p` is not in [0, 1].
    pub fn with_min_p(self, min_p: f32) -> Result<Self> {
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Error::BadOption { what: "min_p", got: min_p.to_string(), must: "0 to 1" });
        }
        Ok(Self { min_p, ..self })
    }

    /// Makes the tokens of the text so far less likely, where `repetition_penalty` is above 1, see
    /// [`SeenTokens::penalised`]; 1 changes nothing.
    ///
    /// Fails when it is not in [0.01, 100].
    pub fn with_repetition_penalty(self, repetition_penalty: f32) -> Result<Self> {
        if !(LEAST_PENALTY..=1.0 / LEAST_PENALTY).contains(&repetition_penalty) {
            let (what, must) = ("repetition_penalty", "0.01 to 100");
            return Err(Error::BadOption { what, got: repetition_penalty.to_string(), must });
        }
        Ok(Self { repetition_penalty, ..self })
    }

    /// Whether the text so far matters.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// The answer's token number `index`, chosen from `row` after a text of the tokens `seen`; `None`
    /// as from [`Sampling::draw`]. The row is changed while it is read, and is as before afterwards.
    ///
    /// Cost: that of [`Sampling::draw`], and with a penalty that of [`SeenTokens::penalised`].
    pub fn choose(&self, row: &mut [f32], index: u64, seen: &mut SeenTokens) -> Option<TokenId> {
        if !self.penalises() {
            return self.draw(row, index);
        }
        seen.penalised(row, self.repetition_penalty, |row| self.draw(row, index))
    }

    /// The answer's token number `index`, drawn from `row`, whose scores are penalised already;
    /// `None` when the row holds NaN or has no finite maximum.
    ///
    /// With `top_p` a token is drawn without it; one that is not among the likeliest is drawn again
    /// from those likelier than it, until one is. So `top_p` changes no token but those that it
    /// forbids, and the row is never sorted.
    ///
    /// Cost: two passes over the row, one of them with an exponential for each score. `top_k`: before
    /// the second, up to 32 over what may be among so many. `top_p`: after it, as much of the row as
    /// decides whether the token is among the likeliest, a sixth of a flat row and less of others; with
    /// `min_p` too, one more over what that leaves. At temperature 0 one pass.
    /// `cargo bench --bench sampling` shows them all.
    pub fn draw(&self, row: &[f32], index: u64) -> Option<TokenId> {
        #[cfg(test)]
        tests::count_draw();
        if self.temperature == 0.0 {
            return argmax(row);
        }
        let row = Row::new(row, self.temperature)?;
        let mut end = match self.top_k {
            0 => Place::END,
            num_tokens => row.end_of_likeliest(num_tokens),
        };
        let shares = if self.min_p > 0.0 { end.min(row.end_of_shares(self.min_p)) } else { end };
        let all = if self.top_p < 1.0 { end } else { shares };
        let mut sums = row.sums(all);
        let likeliest = f64::from(self.top_p) * sums.total;
        if shares < all {
            sums = row.sums(shares);
        }
        end = shares;
        let mut attempt = 0;
        loop {
            let part = uniform_again(self.seed, index, attempt) * sums.total;
            let token = row.token_at(part, end, &sums);
            if self.top_p >= 1.0 || !row.reaches(token, likeliest, &sums) {
                return Some(TokenId(token.id as u32));
            }
            end = token;
            sums = row.sums(end);
            attempt += 1;
        }
    }
}
