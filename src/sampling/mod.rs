//! Sampling: which token the target says, where it is not simply the likeliest. In: a row of logits,
//! the number of the answer's token, the tokens of the text so far. Out: the token chosen.
//!
//! Drafts are deterministic, so accepting a draft token with the target's probability, and drawing
//! from the rest after a rejection, is the same as drawing first and accepting what equals the draw.
//! Each draw depends on the row, the seed and the token's number alone, not on how many draws came
//! before: so a sampled answer is the same token for token with and without drafts, as a greedy one
//! is. Penalties depend on the text before a row besides, which is that of its own path.

mod logit_bias;
mod penalties;
pub(crate) mod random;
mod row;
mod seen_tokens;
#[cfg(test)]
pub(crate) mod tests;

pub use self::logit_bias::LogitBias;
pub use self::penalties::Penalties;
use self::random::uniform_again;
use self::row::{Cutoff, Row};
pub use self::seen_tokens::{Mark, SeenTokens, check_vocab_size};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logits::argmax;

/// How tokens are chosen: biases first, then the repetition penalty, the presence and frequency
/// penalties, temperature, `top_k`, `top_p` and `min_p`. That is vLLM's order for the scores, and
/// Hugging Face's for the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    pub(crate) temperature: f32,
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) penalties: Penalties,
    pub(crate) logit_bias: LogitBias,
    pub(crate) seed: u64,
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
        let (penalties, logit_bias) = (Penalties::default(), LogitBias::default());
        Ok(Self { temperature, top_k, top_p, min_p: 0.0, penalties, logit_bias, seed })
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

    /// Makes tokens that were said before less likely, see [`SeenTokens::penalised`].
    ///
    /// The repetition penalty is on the tokens of prompt and answer, the presence and the frequency
    /// penalty on those of the answer alone, as OpenAI and vLLM have them. (llama.cpp has all three on
    /// the last 64 tokens, whoever said them.)
    ///
    /// Fails when the repetition penalty is not in [0.01, 100], or another one not in [-2, 2].
    pub fn with_penalties(self, penalties: Penalties) -> Result<Self> {
        Ok(Self { penalties: penalties.checked()?, ..self })
    }

    /// Adds biases to scores, at temperature 0 too.
    pub fn with_logit_bias(self, logit_bias: LogitBias) -> Self {
        Self { logit_bias, ..self }
    }

    /// Whether the text so far matters.
    pub fn penalises(&self) -> bool {
        self.penalties.is_any()
    }

    /// Whether tokens are chosen from other scores than the row's own.
    pub fn changes_scores(&self) -> bool {
        self.penalises() || !self.logit_bias.is_empty()
    }

    /// Fails when a bias is on a token that is not in a vocabulary of so many.
    pub fn check_tokens(&self, vocab_size: usize) -> Result<()> {
        self.logit_bias.check_tokens(vocab_size)
    }

    /// The answer's token number `index`, chosen from `row` after a text of the tokens `seen`; `None`
    /// as from [`Sampling::draw`]. The row is changed while it is read, and is as before afterwards.
    ///
    /// Cost: that of [`Sampling::draw`], with a penalty that of [`SeenTokens::penalised`], and two
    /// accesses to the row for each bias.
    ///
    /// # Panics
    /// When a bias or a token that was seen is not in the row.
    pub fn choose(&self, row: &mut [f32], index: u64, seen: &mut SeenTokens) -> Option<TokenId> {
        if !self.changes_scores() {
            return self.draw(row, index);
        }
        self.logit_bias
            .added(row, |row| seen.penalised(row, self.penalties, |row| self.draw(row, index)))
    }

    /// Why [`Sampling::choose`] found nothing in `row`, which is number `number` of its step.
    ///
    /// # Panics
    /// When a bias is not in the row.
    pub fn failure(&self, row: &mut [f32], number: usize) -> Error {
        let is_forbidden = |row: &mut [f32]| row.iter().all(|&score| score == f32::NEG_INFINITY);
        if argmax(row).is_some() && self.logit_bias.added(row, is_forbidden) {
            return Error::AllForbidden;
        }
        Error::NonFiniteLogits { row: number }
    }

    /// The answer's token number `index`, drawn from `row`, whose scores are final;
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
            0 => Cutoff::END,
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
