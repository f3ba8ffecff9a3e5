//! Sampling: which token the target says when it is drawn at random. In: a row of logits and the
//! number of the answer's token. Out: the token drawn.
//!
//! Drafts are deterministic, so accepting a draft token with the target's probability, and drawing
//! from the rest after a rejection, is the same as drawing first and accepting what equals the draw.
//! Each draw depends on the row, the seed and the token's number alone, not on how many draws came
//! before: so a sampled answer is the same token for token with and without drafts, as a greedy one
//! is.

mod row;
#[cfg(test)]
pub(crate) mod tests;

use self::row::{Place, Row};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::random::uniform_again;

/// How tokens are drawn: temperature first, then `top_k`, then `top_p`, as is customary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    seed: u64,
}

impl Sampling {
    /// Draws from the softmax of `logits / temperature`, cut to the `top_k` likeliest tokens (0: all)
    /// and of those to the fewest whose probabilities reach `top_p`.
    ///
    /// Fails when `temperature` is not positive and finite, or `top_p` is not in (0, 1].
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
        if !(temperature.is_finite() && temperature > 0.0) {
            let (what, must) = ("temperature", "positive and finite");
            return Err(Error::BadOption { what, got: temperature.to_string(), must });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let (what, must) = ("top_p", "above 0 and at most 1");
            return Err(Error::BadOption { what, got: top_p.to_string(), must });
        }
        Ok(Self { temperature, top_k, top_p, seed })
    }

    /// The answer's token number `index`, drawn from `row`; `None` when the row holds NaN or has
    /// no finite maximum.
    ///
    /// With `top_p` a token is drawn without it; one that is not among the likeliest is drawn again
    /// from those likelier than it, until one is. So `top_p` changes no token but those that it
    /// forbids, and the row is never sorted.
    ///
    /// Cost: two passes over the row, one of them with an exponential for each score. `top_k`: before
    /// the second, up to 32 over what may be among so many. `top_p`: after it, as much of the row as
    /// decides whether the token is among the likeliest, a sixth of a flat row and less of others.
    /// `cargo bench --bench sampling` shows them all.
    pub fn draw(&self, row: &[f32], index: u64) -> Option<TokenId> {
        #[cfg(test)]
        tests::count_draw();
        let row = Row::new(row, self.temperature)?;
        let mut end = match self.top_k {
            0 => Place::END,
            num_tokens => row.end_of_likeliest(num_tokens),
        };
        let mut sums = row.sums(end);
        let likeliest = f64::from(self.top_p) * sums.total;
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
