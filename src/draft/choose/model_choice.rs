//! When a draft model pays. In: what its steps and the target's cost, and what the steps brought
//! that it ran for. Out: how sure it must be of a token, and whether to run it before the next step.
//! Knows neither the model nor what it drafts.

use super::step_choice::StepChoice;

/// What is kept of earlier steps at each new one: about the last 50 count.
const DECAY: f32 = 0.98;
/// Steps with the model before it is judged.
const FIRST_STEPS: u32 = 2;
/// Steps without it, in a row, after which it is tried once more.
const FIRST_PAUSE: u32 = 16;
/// Most of them: the pause doubles when a trial does not pay.
const LONGEST_PAUSE: u32 = 512;

/// What a drafted token costs, as a share of the step of the target that it saves if it is right:
/// a step of the draft model, and the cheapest further row of the target. 0 to 1: at 1 no token
/// pays. 0 where either has no costs. Both sets of costs have the same unit.
pub fn least_that_pays(model: &StepChoice, target: &StepChoice) -> f32 {
    let (Some(a_step), Some(plain)) = (model.cost(0, 0), target.cost(0, 0)) else { return 0.0 };
    let a_row = target.further_row().unwrap_or(0.0);
    ((a_step + a_row) / plain).min(1.0)
}

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
    use proptest::prelude::*;

    /// Steps of so many rows at such costs.
    fn costing(steps: &[(usize, f32)]) -> StepChoice {
        let shapes = steps.iter().map(|&(rows, _)| StepShape { rows, attended: 64 }).collect();
        let costs = steps.iter().map(|&(_, cost)| StepCost::from(cost)).collect();
        StepChoice::new(shapes, Some(costs)).unwrap()
    }

    fn steps() -> StepChoice {
        costing(&[(1, 1.0), (8, 2.0)])
    }

    #[test]
    fn a_token_costs_a_step_of_the_model_and_a_row_of_the_target() {
        let target = costing(&[(1, 10.0), (4, 16.0), (8, 17.0)]);
        assert_eq!(least_that_pays(&costing(&[(1, 1.0), (8, 90.0)]), &target), 0.2);
        assert_eq!(least_that_pays(&costing(&[(1, 1.0)]), &costing(&[(1, 10.0)])), 0.1);
    }

    #[test]
    fn a_model_that_costs_what_it_saves_never_pays() {
        assert_eq!(least_that_pays(&costing(&[(1, 10.0)]), &steps()), 1.0);
    }

    #[test]
    fn what_was_not_measured_costs_nothing() {
        let shape = StepShape { rows: 1, attended: 64 };
        let free = StepChoice::new(vec![shape], None).unwrap();
        assert_eq!(least_that_pays(&free, &steps()), 0.0);
        assert_eq!(least_that_pays(&steps(), &free), 0.0);
    }

    proptest! {
        #[test]
        fn wider_steps_that_cost_less_than_a_row_take_nothing_off(
            a_step in 0.1f32..20.0,
            costs in prop::array::uniform3(0.1f32..20.0),
        ) {
            let target: Vec<_> = [1, 4, 8].into_iter().zip(costs).collect();
            let share = least_that_pays(&costing(&[(1, a_step)]), &costing(&target));
            prop_assert!(share >= (a_step / costs[0]).min(1.0) && share <= 1.0);
        }
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
