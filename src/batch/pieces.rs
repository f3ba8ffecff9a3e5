//! Which prompts are read first. In: how much is left of each, and how many tokens a step reads. Out:
//! how many of each.

use super::Reading;

/// Of so many tokens that are read, one is the oldest prompt's for certain.
const OLDEST_SHARE: usize = 4;
/// Tokens that a step reads in any case where nobody decodes: fewer at a time take longer each.
const LEAST_STEP: usize = 32;

/// Shares out the tokens that are read, with what is owed to the oldest prompt from step to step.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// Prompts in the order in which they are read: the fewest tokens left first, of equals the oldest.
    order: Vec<usize>,
    /// Tokens that others have read of which the oldest prompt has not had its share yet.
    owed: usize,
}

impl Pieces {
    /// Another step, of these prompts, the oldest first.
    pub fn begin(&mut self, reading: &[Reading]) {
        self.order.clear();
        self.order.extend(0..reading.len());
        self.order.sort_by_key(|&prompt| (reading[prompt].remaining, prompt));
    }

    /// How many tokens a step reads at least that ends the shortest prompt; nothing is gained where its
    /// answer waits for more of the others.
    pub fn to_shortest(&self, reading: &[Reading]) -> usize {
        let Some(&shortest) = self.order.first() else { return 0 };
        let tokens = reading[shortest].remaining;
        let with_oldest = tokens.saturating_mul(OLDEST_SHARE).div_ceil(OLDEST_SHARE - 1);
        LEAST_STEP.max(if reading.len() > 1 { with_oldest } else { usize::MAX })
    }

    /// How many tokens of each prompt a step of `num_tokens` reads.
    pub fn of(&self, reading: &[Reading], num_tokens: usize) -> Vec<usize> {
        let mut pieces = vec![0; reading.len()];
        let mut left = num_tokens;
        if let (Some(piece), Some(oldest)) = (pieces.first_mut(), reading.first()) {
            *piece = ((self.owed + num_tokens) / OLDEST_SHARE).min(oldest.remaining).min(left);
            left -= *piece;
        }
        for &prompt in &self.order {
            let piece = left.min(reading[prompt].remaining - pieces[prompt]);
            pieces[prompt] += piece;
            left -= piece;
        }
        pieces
    }

    /// [`of`](Self::of), and that is what is read.
    pub fn take(&mut self, reading: &[Reading], num_tokens: usize) -> Vec<usize> {
        let pieces = self.of(reading, num_tokens);
        self.owed = if reading.is_empty() { 0 } else { (self.owed + num_tokens) % OLDEST_SHARE };
        pieces
    }
}
