//! When a draft model pays. In: what its steps and the target's cost, and what the steps brought
//! that it ran for. Out: how sure it must be of a token, and whether to run it before the next step.
//! Knows neither the model nor what it drafts.

use super::step_choice::StepChoice;

/// What is kept of earlier steps at each new one: about the last 50 count.
const DECAY: f32 = 0.98;
/// Steps with the model before it is judged by what they brought.
const FIRST_STEPS: u32 = 4;
/// How sure its tokens are taken to be until then, and how many it may draft. A draft model half as
/// sure never pays on a processor; one that is surer is found out soon.
const FIRST_SURENESS: f32 = 0.8;
const FIRST_TOKENS: i32 = 8;
/// Tokens of an answer before one has ended, and the weight of each that has.
const FIRST_ANSWER: f32 = 64.0;
const ANSWER_SHARE: f32 = 0.3;
/// Text that costs fewer tokens to read counts as read.
const AS_GOOD_AS_READ: f32 = 1.0;
/// Share of all that was spent that trials may cost.
const MOST_TRIED: f64 = 0.01;
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

/// What it would cost to have a draft model's tree before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelPrice {
    /// A drafted token, as a share of the target's plain step: [`least_that_pays`].
    pub a_token: f32,
    /// Reading what the model has not read of the text yet, in the unit of the steps' costs.
    pub catching_up: f32,
}

/// Means over the steps that the model ran for, and over all steps.
///
/// A model that copies what lookups find as well costs its steps and brings nothing; where they
/// find nothing it may bring much. So its average gain is held against theirs at each step. Before it
/// has been seen, it is taken for a good one. What it has to read first, which may be a whole
/// prompt, must come in again over the rest of the answer. And what is spent to find out whether it
/// pays by now stays within a share of all that was spent.
#[derive(Clone, Copy, Debug)]
pub struct ModelChoice {
    /// Of the steps that it ran for.
    tokens: f32,
    cost: f32,
    weight: f32,
    num_seen: u32,
    /// Gain of the steps with what was known without it, and their weight.
    without: f32,
    without_weight: f32,
    num_paused: u32,
    pause: u32,
    /// Whether the last answer was yes to find out, not because it pays.
    is_trial: bool,
    /// Cost of all steps so far, and of the model's runs in trials.
    spent: f64,
    tried: f64,
    /// Tokens of an answer, lately.
    answer_len: f32,
}

impl Default for ModelChoice {
    fn default() -> Self {
        Self {
            tokens: 0.0,
            cost: 0.0,
            weight: 0.0,
            num_seen: 0,
            without: 0.0,
            without_weight: 0.0,
            num_paused: 0,
            pause: FIRST_PAUSE,
            is_trial: false,
            spent: 0.0,
            tried: 0.0,
            answer_len: FIRST_ANSWER,
        }
    }
}

impl ModelChoice {
    /// Whether the model is to run before a step behind `past_len` tokens, of which `without` is the
    /// gain of the best step with what is known already; `given` tokens of the answer are given out,
    /// and at most `remaining` are to come.
    pub fn pays(
        &mut self,
        steps: &StepChoice,
        (past_len, without): (usize, f32),
        price: ModelPrice,
        (given, remaining): (usize, usize),
    ) -> bool {
        self.without = self.without * DECAY + without;
        self.without_weight = self.without_weight * DECAY + 1.0;
        let (with, tokens) = self.expected(steps, past_len, price.a_token);
        let to_read = -steps.gain(0.0, price.catching_up, past_len);
        let to_come = (self.answer_len - given as f32).max(given as f32 / 2.0);
        let num_steps = (to_come.min(remaining as f32) / tokens).max(1.0);
        let saved = (with - self.without / self.without_weight) * num_steps;
        self.is_trial = false;
        // What is as good as read needs no future.
        let is_read = to_read < AS_GOOD_AS_READ;
        if with >= without && (is_read || saved >= to_read) {
            (self.num_paused, self.pause) = (0, FIRST_PAUSE);
            return true;
        }
        self.num_paused += 1;
        let a_trial = f64::from(price.catching_up) + f64::from(self.a_run(steps, past_len, price));
        if self.num_paused < self.pause || self.tried + a_trial > MOST_TRIED * self.spent {
            return false;
        }
        (self.num_paused, self.pause) = (0, (2 * self.pause).min(LONGEST_PAUSE));
        self.is_trial = true;
        true
    }

    /// The gain of a step with the model, and the tokens that it gives out.
    fn expected(&self, steps: &StepChoice, past_len: usize, a_token: f32) -> (f32, f32) {
        if self.num_seen >= FIRST_STEPS {
            let (tokens, cost) = (self.tokens / self.weight, self.cost / self.weight);
            return (steps.gain(tokens, cost, past_len), tokens);
        }
        let plain = steps.plain_cost(past_len).unwrap_or(1.0);
        let drafts = (1..=FIRST_TOKENS).map(|num_drafted| {
            let tokens = (1.0 - FIRST_SURENESS.powi(num_drafted + 1)) / (1.0 - FIRST_SURENESS);
            let cost = plain * (1.0 + a_token * num_drafted as f32);
            (steps.gain(tokens, cost, past_len), tokens)
        });
        drafts.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((0.0, 1.0))
    }

    /// What a run of the model costs, about.
    fn a_run(&self, steps: &StepChoice, past_len: usize, price: ModelPrice) -> f32 {
        let plain = steps.plain_cost(past_len).unwrap_or(0.0);
        plain * price.a_token * FIRST_TOKENS as f32
    }

    /// Learns what the model's run for the next step cost, with what it read first.
    pub fn ran(&mut self, cost: f32) {
        if self.is_trial {
            self.tried += f64::from(cost);
        }
    }

    /// Learns what a step that the model ran for has brought, and what it cost with its draft.
    pub fn took(&mut self, tokens: usize, cost: f32) {
        self.tokens = self.tokens * DECAY + tokens as f32;
        self.cost = self.cost * DECAY + cost;
        self.weight = self.weight * DECAY + 1.0;
        self.num_seen = self.num_seen.saturating_add(1);
    }

    /// Learns the cost of a step, whether or not the model ran for it.
    pub fn spent(&mut self, cost: f32) {
        self.spent += f64::from(cost);
    }

    /// Learns how long an answer has become.
    pub fn ended(&mut self, num_tokens: usize) {
        self.answer_len += ANSWER_SHARE * (num_tokens as f32 - self.answer_len);
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

    /// All is read, and a token costs a tenth of a step.
    const READ: ModelPrice = ModelPrice { a_token: 0.1, catching_up: 0.0 };

    /// Of `num_steps` steps the share that a model runs for, of which each then brings `tokens` at
    /// `cost`.
    fn share(num_steps: usize, tokens: usize, cost: f32, without: f32) -> f32 {
        let (steps, mut choice) = (steps(), ModelChoice::default());
        let runs = (0..num_steps).filter(|_| {
            let pays = choice.pays(&steps, (0, without), READ, (0, 99));
            choice.spent(cost);
            if pays {
                choice.ran(cost - 1.0);
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
        let asked = |choice: &mut ModelChoice, tokens, cost| {
            choice.spent(3.0);
            let pays = choice.pays(&steps, (0, 0.5), READ, (0, 99));
            if pays {
                choice.ran(cost - 1.0);
                choice.took(tokens, cost);
            }
            pays
        };
        for _ in 0..100 {
            asked(&mut choice, 1, 3.0);
        }
        assert!(!asked(&mut choice, 1, 3.0));
        for _ in 0..20_000 {
            asked(&mut choice, 6, 2.0);
        }
        assert!(asked(&mut choice, 6, 2.0));
    }

    #[test]
    fn a_long_text_is_read_only_where_the_answer_pays_for_it() {
        let steps = steps();
        let pays = |catching_up, remaining| {
            let price = ModelPrice { a_token: 0.1, catching_up };
            ModelChoice::default().pays(&steps, (0, 0.0), price, (0, remaining))
        };
        assert!(pays(0.0, 2) && pays(10.0, 64));
        assert!(!pays(10.0, 4), "so short an answer brings it back in no way");
        assert!(!pays(1e4, 1_000_000), "answers have not been so long");
    }

    #[test]
    fn a_model_that_costs_too_much_is_not_read_for_to_find_out() {
        let (steps, mut choice) = (steps(), ModelChoice::default());
        let price = ModelPrice { a_token: 0.9, catching_up: 50.0 };
        let mut runs = 0;
        for _ in 0..2_000 {
            choice.spent(1.0);
            if choice.pays(&steps, (0, 0.0), price, (0, 99)) {
                choice.ran(57.0);
                choice.took(2, 8.2);
                runs += 1;
            }
        }
        assert_eq!(runs, 0, "within a hundredth of what was spent");
    }

    proptest! {
        #[test]
        fn trials_cost_a_hundredth(
            catching_up in 0.0f32..20.0,
            tokens in 0usize..3,
            without in 0.0f32..4.0,
        ) {
            let (steps, mut choice) = (steps(), ModelChoice::default());
            let price = ModelPrice { a_token: 0.1, catching_up };
            for _ in 0..3_000 {
                choice.spent(1.0);
                if choice.pays(&steps, (0, without), price, (0, 99)) {
                    choice.ran(catching_up + 0.8);
                    choice.took(tokens, 1.8);
                }
            }
            prop_assert!(choice.tried <= 1.01 * MOST_TRIED * choice.spent + 1e-3);
        }
    }
}
