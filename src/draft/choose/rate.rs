//! What a unit of cost has brought lately, in tokens. In: steps, what they brought and cost. Out: the
//! rate by which further rows are judged. Knows no step that is to come.

/// What is kept of earlier steps at each new one: about the last 50 count.
const DECAY: f32 = 0.98;
/// Weight of plain decoding before any step is seen, in steps.
const PRIOR_STEPS: f32 = 4.0;

/// Tokens for a unit of cost, lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    tokens: f32,
    cost: f32,
}

impl Rate {
    /// The rate, where plain decoding brings so many tokens in a step for what that costs: at least its
    /// own.
    pub fn beside_plain(&self, tokens: f32, cost: f32) -> f32 {
        let rate = (self.tokens + PRIOR_STEPS * tokens) / (self.cost + PRIOR_STEPS * cost);
        rate.max(tokens / cost)
    }

    /// Learns what a step, and all that was spent on drafting for it, has brought.
    pub fn took(&mut self, tokens: usize, cost: f32) {
        self.tokens = self.tokens * DECAY + tokens as f32;
        self.cost = self.cost * DECAY + cost;
    }
}
