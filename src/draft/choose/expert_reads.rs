//! What a step costs where each row reads experts of its own. In: what an expert costs, how many steps
//! of unrelated tokens read, and how many steps have read. Out: what a step is expected to cost less
//! than one of unrelated tokens.
//!
//! Tokens that follow each other share experts, and how many they share hangs on the text and on the
//! router. It is learned as one share for all steps: of the experts that rows behind the first would
//! read were they unrelated, how many they do read.
//!
//! Where experts are kept within a memory budget, those count that were not in memory. Then the first
//! row of a text reads less than an unrelated one, too, which makes every step cheaper, plain ones most
//! of all: it is learned from every step, as its first row is that of plain decoding.

use crate::error::{Error, Result};

/// What is kept of earlier steps at each new one: about the last 50 count.
const DECAY: f32 = 0.98;
/// What is expected before any step is seen, and its weight in steps. Tokens that follow each other are
/// related, and only wide steps teach how much: they have to be tried.
const PRIOR_SHARE: f32 = 0.75;
const PRIOR_STEPS: f32 = 1.0;

/// Experts of all layers that one step has read, each once in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReads {
    /// For its first row.
    pub first_row: f32,
    /// For all rows.
    pub all: f32,
}

/// What steps read of experts.
#[derive(Clone, Debug)]
pub struct ExpertReads {
    /// Of one expert that is read once more.
    cost: f32,
    /// Experts of all layers that a step reads whose rows are unrelated, by the step.
    unrelated: Vec<f32>,
    /// Of first rows, lately: the experts that they have read less than unrelated ones, and how many
    /// rows there were.
    first_less: f32,
    num_first: f32,
    /// Of rows behind the first, lately: the experts that they have read.
    read: f32,
    /// The experts that they would have read, were they unrelated.
    expected: f32,
}

impl ExpertReads {
    /// Of steps that were measured with unrelated tokens, in increasing order of rows.
    ///
    /// Fails when a number is negative or not finite, or fewer experts are read by more rows.
    pub fn new(cost: f32, unrelated: Vec<f32>) -> Result<Self> {
        let are_counts = unrelated.iter().all(|count| count.is_finite() && *count >= 0.0);
        if !(cost.is_finite() && cost >= 0.0 && are_counts && unrelated.is_sorted()) {
            let (what, must) = ("experts", "not negative, more for more rows");
            return Err(Error::BadOption { what, got: format!("{cost} x {unrelated:?}"), must });
        }
        let (first_less, num_first, read, expected) = (0.0, 0.0, 0.0, 0.0);
        Ok(Self { cost, unrelated, first_less, num_first, read, expected })
    }

    /// Steps that are known.
    pub fn num_steps(&self) -> usize {
        self.unrelated.len()
    }

    /// What a step is expected to cost less than one of unrelated tokens; negative where it is more.
    pub fn saved(&self, step: usize) -> f32 {
        let beyond = self.beyond_first(self.unrelated[step]);
        self.cost * (self.first_less() + beyond * (1.0 - self.share()))
    }

    /// Learns what a step's first `num_rows` rows, of the `rows` that each step has, have read.
    pub fn have_read(
        &mut self,
        rows: impl Iterator<Item = usize> + Clone,
        num_rows: usize,
        StepReads { first_row, all }: StepReads,
    ) {
        if !(first_row.is_finite() && all.is_finite()) {
            return;
        }
        self.first_less = self.first_less * DECAY + self.unrelated_first() - first_row;
        self.num_first = self.num_first * DECAY + 1.0;
        let expected = self.beyond_first(self.unrelated_of(rows, num_rows));
        if expected > 0.0 {
            self.read = self.read * DECAY + (all - first_row).max(0.0);
            self.expected = self.expected * DECAY + expected;
        }
    }

    /// Takes over what was learned elsewhere of the same target.
    pub fn learn_as(&mut self, other: &Self) {
        (self.read, self.expected) = (other.read, other.expected);
        (self.first_less, self.num_first) = (other.first_less, other.num_first);
    }

    /// What a first row is expected to read less than an unrelated one.
    fn first_less(&self) -> f32 {
        self.first_less / (self.num_first + PRIOR_STEPS)
    }

    /// Of the experts that rows behind the first would read were they unrelated, how many they read.
    /// Before it is known, as many less as first rows do.
    fn share(&self) -> f32 {
        let prior = PRIOR_STEPS * self.beyond_first(self.unrelated.last().copied().unwrap_or(0.0));
        let (expected, first) = (self.expected + prior, self.unrelated_first());
        let first_share = if first > 0.0 { 1.0 - self.first_less() / first } else { 1.0 };
        let read = self.read + PRIOR_SHARE * first_share * prior;
        if expected > 0.0 { read / expected } else { 1.0 }
    }

    /// What a single unrelated row reads.
    fn unrelated_first(&self) -> f32 {
        self.unrelated.first().copied().unwrap_or(0.0)
    }

    /// How many of so many experts unrelated rows behind the first read.
    fn beyond_first(&self, count: f32) -> f32 {
        (count - self.unrelated_first()).max(0.0)
    }

    /// What so many unrelated rows read: between two steps, what lies between theirs.
    fn unrelated_of(&self, rows: impl Iterator<Item = usize> + Clone, num_rows: usize) -> f32 {
        let steps = rows.zip(&self.unrelated);
        let Some((wider, &most)) = steps.clone().find(|&(rows, _)| rows >= num_rows) else {
            return self.unrelated.last().copied().unwrap_or(0.0);
        };
        let Some((narrower, &least)) = steps.take_while(|&(rows, _)| rows < num_rows).last() else {
            return most;
        };
        least + (most - least) * (num_rows - narrower) as f32 / (wider - narrower) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [usize; 3] = [1, 4, 8];

    fn reads() -> ExpertReads {
        ExpertReads::new(0.5, vec![8.0, 26.0, 44.0]).unwrap()
    }

    fn step(first_row: f32, all: f32) -> StepReads {
        StepReads { first_row, all }
    }

    #[test]
    fn tokens_that_are_somewhat_related_are_expected_first() {
        assert_eq!([0, 1, 2].map(|step| reads().saved(step)), [0.0, 0.25 * 9.0, 0.25 * 18.0]);
    }

    #[test]
    fn what_tokens_share_is_learned() {
        let mut reads = reads();
        for _ in 0..200 {
            reads.have_read(ROWS.into_iter(), 8, step(8.0, 17.0));
        }
        let saved = [0, 1, 2].map(|step| reads.saved(step));
        assert_eq!(saved[0], 0.0);
        assert!((saved[1] - 0.5 * 18.0 * 0.75).abs() < 0.2, "{saved:?}"); // a quarter is read
        assert!((saved[2] - 0.5 * 36.0 * 0.75).abs() < 0.4, "{saved:?}");
    }

    #[test]
    fn texts_that_share_less_than_was_measured_cost_more() {
        let mut reads = reads();
        for _ in 0..200 {
            reads.have_read(ROWS.into_iter(), 4, step(8.0, 44.0));
        }
        assert!(reads.saved(1) < -0.4 * 18.0, "{}", reads.saved(1));
    }

    #[test]
    fn what_first_rows_find_in_memory_makes_every_step_cheaper() {
        for num_rows in [1, 8] {
            let mut reads = reads();
            for _ in 0..200 {
                let beyond = if num_rows == 1 { 0.0 } else { 36.0 };
                reads.have_read(ROWS.into_iter(), num_rows, step(2.0, 2.0 + beyond));
            }
            let [plain, _, wide] = [0, 1, 2].map(|step| reads.saved(step));
            assert!((plain - 0.5 * 6.0).abs() < 0.1, "{plain}");
            // Of other rows it is expected, too, until they are seen.
            let of_others = if num_rows == 1 { 36.0 * (1.0 - 0.75 * 2.0 / 8.0) } else { 0.0 };
            assert!((wide - plain - 0.5 * of_others).abs() < 0.4, "{wide}");
        }
    }

    #[test]
    fn first_rows_that_read_more_than_unrelated_ones_cost_more() {
        let mut reads = reads();
        for _ in 0..200 {
            reads.have_read(ROWS.into_iter(), 1, step(12.0, 12.0));
        }
        assert!((reads.saved(0) + 0.5 * 4.0).abs() < 0.1, "{}", reads.saved(0));
    }

    #[test]
    fn steps_that_are_not_full_are_held_against_as_many_rows() {
        let mut reads = reads();
        for _ in 0..200 {
            reads.have_read(ROWS.into_iter(), 6, step(8.0, 35.0)); // as many as six unrelated rows
        }
        assert!(reads.saved(2).abs() < 0.2, "{}", reads.saved(2));
    }

    #[test]
    fn plain_steps_and_what_is_no_number_teach_nothing() {
        let mut reads = reads();
        reads.have_read(ROWS.into_iter(), 1, step(8.0, 8.0));
        reads.have_read(ROWS.into_iter(), 8, step(8.0, f32::NAN));
        reads.have_read(ROWS.into_iter(), 8, step(f32::NAN, 8.0));
        assert_eq!(reads.saved(2), self::reads().saved(2));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        assert!(ExpertReads::new(-1.0, vec![]).is_err());
        assert!(ExpertReads::new(1.0, vec![8.0, 7.0]).is_err());
        assert!(ExpertReads::new(1.0, vec![f32::INFINITY]).is_err());
    }
}
