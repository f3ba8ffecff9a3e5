//! Which step pays. In: the steps that a session can run, their costs, the worth of draft nodes.
//! Out: the step to run. Knows nothing of where the nodes come from.

use crate::error::{Error, Result};

/// A step that the session can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Rows, one for each node of a draft tree.
    pub rows: usize,
    /// Slots that the mask covers: committed tokens and rows must fit into them.
    pub attended: usize,
}

/// The steps to choose from, in increasing order of rows, and what they cost.
#[derive(Clone, Debug)]
pub struct StepChoice {
    steps: Vec<StepShape>,
    costs: Option<Vec<f32>>,
}

impl StepChoice {
    /// Steps with one cost each, in any unit; without costs rows are free.
    ///
    /// Fails when there is no step, the steps are not in increasing order of rows, or the costs
    /// are not one positive number a step.
    pub fn new(steps: Vec<StepShape>, costs: Option<Vec<f32>>) -> Result<Self> {
        if steps.is_empty() || !steps.is_sorted_by(|one, next| one.rows < next.rows) {
            let rows: Vec<usize> = steps.iter().map(|step| step.rows).collect();
            let (what, must) = ("rows of the steps", "one or more, in increasing order");
            return Err(Error::BadOption { what, got: format!("{rows:?}"), must });
        }
        if let Some(costs) = &costs {
            let positive = costs.iter().all(|cost| cost.is_finite() && *cost > 0.0);
            if costs.len() != steps.len() || !positive {
                let (what, must) = ("costs", "one positive number for each step");
                return Err(Error::BadOption { what, got: format!("{costs:?}"), must });
            }
        }
        Ok(Self { steps, costs })
    }

    /// Rows of a step.
    pub fn rows(&self, step: usize) -> usize {
        self.steps[step].rows
    }

    /// The widest step that fits after `past_len` committed tokens. Fails when none does.
    pub fn widest(&self, past_len: usize) -> Result<usize> {
        let fits = |step: &StepShape| past_len + step.rows <= step.attended;
        self.steps.iter().rposition(fits).ok_or_else(|| {
            let StepShape { rows, attended } = self.steps[0];
            Error::StepOutOfRange { past_len, rows, attended }
        })
    }

    /// The narrowest step with at least `num_nodes` rows, or the last.
    pub fn narrowest(&self, num_nodes: usize) -> usize {
        self.steps.partition_point(|step| step.rows < num_nodes).min(self.steps.len() - 1)
    }

    /// The step, up to `widest`, that gives the most expected tokens for its cost; the narrowest
    /// of equals. Without costs the narrowest that holds all nodes.
    ///
    /// `worths` are the nodes' expected tokens, never increasing: a step of `rows` rows is worth
    /// the sum of the first `rows` of them.
    pub fn best(&self, widest: usize, mut worths: impl ExactSizeIterator<Item = f32>) -> usize {
        let Some(costs) = &self.costs else { return self.narrowest(worths.len()) };
        let (mut best, mut best_rate) = (0, 0.0);
        let (mut expected, mut rows) = (0.0, 0);
        for (index, (step, cost)) in self.steps[..=widest].iter().zip(costs).enumerate() {
            expected += worths.by_ref().take(step.rows - rows).sum::<f32>();
            rows = step.rows;
            if expected / cost > best_rate {
                (best, best_rate) = (index, expected / cost);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(rows: &[usize]) -> Vec<StepShape> {
        rows.iter().map(|&rows| StepShape { rows, attended: 40 }).collect()
    }

    #[test]
    fn the_most_expected_tokens_for_the_cost_win() {
        let choice = StepChoice::new(shapes(&[1, 4, 8]), Some(vec![1.0, 1.5, 3.0])).unwrap();
        let best = |worths: &[f32]| choice.rows(choice.best(2, worths.iter().copied()));
        assert_eq!(best(&[1.0]), 1);
        assert_eq!(best(&[1.0, 0.4]), 1);
        assert_eq!(best(&[1.0, 0.6]), 4);
        assert_eq!(best(&[1.0; 4]), 4);
        assert_eq!(best(&[1.0; 9]), 4);
        assert_eq!(choice.best(0, [1.0; 8].into_iter()), 0);
    }

    #[test]
    fn free_rows_take_every_node() {
        let choice = StepChoice::new(shapes(&[1, 4, 8]), None).unwrap();
        assert_eq!(choice.best(2, [1.0, 0.01, 0.01].into_iter()), 1);
        assert_eq!(choice.best(2, [1.0; 8].into_iter()), 2);
    }

    #[test]
    fn steps_that_reach_beyond_the_slots_are_not_chosen() {
        let choice = StepChoice::new(shapes(&[1, 4, 8]), None).unwrap();
        assert_eq!(choice.widest(32), Ok(2));
        assert_eq!(choice.widest(33), Ok(1));
        assert_eq!(choice.widest(39), Ok(0));
        let none = Error::StepOutOfRange { past_len: 40, rows: 1, attended: 40 };
        assert_eq!(choice.widest(40), Err(none));
    }

    #[test]
    fn unusable_steps_and_costs_are_refused() {
        assert!(StepChoice::new(vec![], None).is_err());
        assert!(StepChoice::new(shapes(&[4, 4]), None).is_err());
        for costs in [vec![1.0], vec![1.0, 0.0], vec![1.0, f32::NAN]] {
            assert!(StepChoice::new(shapes(&[1, 4]), Some(costs)).is_err());
        }
    }
}
