//! How much less likely tokens become that were said before. In: a score, and how often its token was
//! said. Out: the score that is left. The tokens are kept elsewhere (`seen_tokens`).

use crate::error::{Error, Result};

/// Repetition penalties are from this to its inverse: beyond, no token but the penalised counts.
const LEAST_REPETITION: f32 = 0.01;
/// Presence and frequency penalties are at most this, and at least its negative, as OpenAI has them.
const MOST_SUBTRACTED: f32 = 2.0;

/// The penalties of a request. Each alone changes nothing at its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides the positive scores of the tokens of prompt and answer, and multiplies the others; 1
    /// changes nothing.
    pub repetition: f32,
    /// Subtracted from the scores of the answer's tokens; 0 changes nothing.
    pub presence: f32,
    /// Subtracted from a score for each time that the answer has its token; 0 changes nothing.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

impl Penalties {
    /// Fails when `repetition` is not in [0.01, 100], or another one not in [-2, 2].
    pub(super) fn checked(self) -> Result<Self> {
        if !(LEAST_REPETITION..=1.0 / LEAST_REPETITION).contains(&self.repetition) {
            let (what, must) = ("repetition_penalty", "0.01 to 100");
            return Err(Error::BadOption { what, got: self.repetition.to_string(), must });
        }
        let subtracted =
            [("presence_penalty", self.presence), ("frequency_penalty", self.frequency)];
        for (what, penalty) in subtracted {
            if !(-MOST_SUBTRACTED..=MOST_SUBTRACTED).contains(&penalty) {
                return Err(Error::BadOption { what, got: penalty.to_string(), must: "-2 to 2" });
            }
        }
        Ok(self)
    }

    /// Whether they change anything.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether it matters how often a token was said.
    pub(super) fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    /// The score of a token that prompt or answer has. Finite scores stay finite.
    ///
    /// So it is done in CTRL (Keskar et al. 2019, section 4.1) and, for scores that are not positive,
    /// in Hugging Face's `RepetitionPenaltyLogitsProcessor`.
    pub(super) fn repeated(&self, score: f32) -> f32 {
        let penalty = self.repetition;
        let changed = if score > 0.0 { score / penalty } else { score * penalty };
        if score.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { score }
    }

    /// The score of a token that the answer has `count` times, at least once. Finite scores stay
    /// finite.
    pub(super) fn counted(&self, score: f32, count: u32) -> f32 {
        let changed = score - (count as f32 * self.frequency + self.presence);
        if score.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { score }
    }
}
