//! Whether a draft model is to run before the next step. In: what steps brought that it ran for, what
//! they cost, and the gain that is expected without it. Out: yes or no. Knows neither the model nor
//! what it drafts.

use super::step_choice::StepChoice;

/// What is kept of earlier steps at each new one: about the last 50 count.
const DECAY: f32 = 0.98;
/// Steps with the model before it is judged.
const FIRST_STEPS: u32 = 2;
/// Steps without it, in a row, after which it is tried once more.
const FIRST_PAUSE: u32 = 16;
/// Most of them: the pause doubles when a trial does not pay.
const LONGEST_PAUSE: u32 = 512;

/// Means over the steps that the model ran for, and how long it has not.
///
/// A model that copies what lookups find as well costs its steps and brings nothing; where they
/// find nothing it may bring much. So its average gain is held against theirs at each step.
#[derive(Clone, Copy, Debug)]
pub struct ModelChoice {
    tokens: f32,
    cost: f32,
    weight: f32,
    num_seen: u32,
    num_paused: u32,
    pause: u32,
}

impl Default for ModelChoice {
    fn default() -> Self {
        let (tokens, cost, weight) = (0.0, 0.0, 0.0);
        Self { tokens, cost, weight, num_seen: 0, num_paused: 0, pause: FIRST_PAUSE }
    }
}

impl ModelChoice {
    /// Whether the model is to run before a step behind `past_len` tokens, of which `without` is the
    /// gain of the best step with what is known already.
    pub fn pays(&mut self, steps: &StepChoice, past_len: usize, without: f32) -> bool {
        if self.num_seen < FIRST_STEPS {
            return true;
        }
        let (tokens, cost) = (self.tokens / self.weight, self.cost / self.weight);
        if steps.gain(tokens, cost, past_len) >= without {
            (self.num_paused, self.pause) = (0, FIRST_PAUSE);
            return true;
        }
        self.num_paused += 1;
        if self.num_paused < self.pause {
            return false;
        }
        (self.num_paused, self.pause) = (0, (2 * self.pause).min(LONGEST_PAUSE));
        true
    }

    /// Learns what a step has brought, and what it cost together with what the model ran for it.
    pub fn took(&mut self, tokens: usize, cost: f32) {
        self.tokens = self.tokens * DECAY + tokens as f32;
        self.cost = self.cost * DECAY + cost;
        self.weight = self.weight * DECAY + 1.0;
        self.num_seen = self.num_seen.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::choose::step_choice::{StepCost, StepShape};

    fn steps() -> StepChoice {
        let shapes = [1, 8].map(|rows| StepShape { rows, attended: 64 });
        StepChoice::new(shapes.to_vec(), Some([1.0, 2.0].map(StepCost::from).to_vec())).unwrap()
    }

    /// Of `num_steps` steps the share that a model runs for, of which each then brings `tokens` at
    /// `cost`.
    fn share(num_steps: usize, tokens: usize, cost: f32, without: f32) -> f32 {
        let (steps, mut choice) = (steps(), ModelChoice::default());
        let runs = (0..num_steps).filter(|_| {
            let pays = choice.pays(&steps, 0, without);
            if pays {
                choice.took(tokens, cost);
            }
            pays
        });
        runs.count() as f32 / num_steps as f32
    }

    #[test]
    fn a_model_that_brings_more_than_lookups_always_runs() {
        assert_eq!(share(500, 4, 2.0, 1.5), 1.0);
    }

    #[test]
    fn a_model_that_brings_less_is_hardly_ever_tried() {
        assert!(share(2000, 2, 2.0, 0.5) < 0.01);
    }

    #[test]
    fn a_model_that_pays_again_is_found_out() {
        let (steps, mut choice) = (steps(), ModelChoice::default());
        for _ in 0..100 {
            if choice.pays(&steps, 0, 0.5) {
                choice.took(1, 3.0);
            }
        }
        assert!(!choice.pays(&steps, 0, 0.5));
        for _ in 0..20_000 {
            if choice.pays(&steps, 0, 0.5) {
                choice.took(6, 2.0);
            }
        }
        assert!(choice.pays(&steps, 0, 0.5));
    }
}
