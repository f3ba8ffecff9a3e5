//! What a step brings beside its own tokens. In: what earlier steps brought and cost, how far the first
//! path is likely to hold. Out: the rate of a unit of cost elsewhere, by which further rows are judged;
//! what the copy that a step follows is still worth where it ends. Knows no tree.
//!
//! A step that stops within a running copy loses nothing of it: the next one goes on there, and
//! brings more for its cost than most steps do. So where rows cost as much as tokens bring, a wide
//! step must not be paid for with the copy's own future.

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

/// Tokens that are looked ahead.
const HORIZON: usize = 80;
/// What is reached less often than this is not worth looking at.
const LEAST_REACH: f32 = 0.01;

/// The gains of the steps that follow a running copy, by the depth at which they start.
///
/// It is the value of a semi-Markov decision problem (Howard 1971, chapter 15) whose states are the
/// places of the copy, with the rate of the last steps as the average reward: from a broken copy
/// on a step brings what its cost brings elsewhere, which is a gain of 0.
#[derive(Clone, Debug)]
pub struct ChainAhead {
    /// Probability that the target says all tokens of the path up to each depth; 1 at the root.
    reach: [f32; HORIZON + 1],
    /// Gain of all steps from there on, the depth being reached.
    gain: [f32; HORIZON + 1],
}

impl ChainAhead {
    /// For a path that is right up to each depth with the probabilities `path`, the root's 1 first,
    /// never increasing; further on each token is as sure as the last one. Of what follows a path that
    /// is certain to its end, which is no copy, nothing is known.
    ///
    /// `steps` are the rows of each step, never decreasing, and what its cost brings elsewhere, in
    /// tokens. Cost: a few operations for each depth that is likely to be reached, and each step.
    pub fn new(
        path: impl Iterator<Item = f32>,
        steps: impl Iterator<Item = (usize, f32)> + Clone,
    ) -> Self {
        let (mut reach, mut gain) = ([0.0; HORIZON + 1], [0.0; HORIZON + 1]);
        let num_known = path.zip(&mut reach).map(|(known, reach)| *reach = known).count();
        let sureness = match num_known.checked_sub(2) {
            Some(before) if reach[before] > 0.0 && reach[before + 1] < 1.0 => {
                reach[before + 1] / reach[before]
            }
            _ => 0.0,
        };
        for depth in num_known.max(1)..=HORIZON {
            reach[depth] = reach[depth - 1] * sureness;
        }
        // Tokens expected up to each depth, the target's own at the end of a step left out.
        let mut tokens = reach;
        for depth in 1..=HORIZON {
            tokens[depth] += tokens[depth - 1];
        }
        let num_likely = reach.partition_point(|&reach| reach >= LEAST_REACH);
        for depth in (1..num_likely).rev() {
            let of_step = |(rows, elsewhere): (usize, f32)| {
                let last = (depth + rows - 1).min(HORIZON);
                let later = reach.get(depth + rows).map_or(0.0, |reach| reach * gain[depth + rows]);
                1.0 + (tokens[last] - tokens[depth] + later) / reach[depth] - elsewhere
            };
            gain[depth] = steps.clone().map(of_step).fold(f32::NEG_INFINITY, f32::max);
        }
        Self { reach, gain }
    }

    /// Expected gain of the steps behind one that covers the path up to `num_covered` nodes, the root
    /// included: the target's own token is the next of the path, or the copy is broken.
    pub fn after(&self, num_covered: usize) -> f32 {
        let depth = num_covered.min(HORIZON);
        self.reach[depth] * self.gain[depth]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A path whose every token is right with this probability.
    fn path(sureness: f32) -> impl Iterator<Item = f32> {
        (0..4).map(move |depth| sureness.powi(depth))
    }

    #[test]
    fn a_copy_that_never_runs_is_worth_nothing() {
        let ahead = ChainAhead::new(path(0.0), [(1, 1.0), (4, 2.0)].into_iter());
        assert!((1..200).all(|num_covered| ahead.after(num_covered) == 0.0));
    }

    #[test]
    fn a_root_alone_promises_nothing() {
        let ahead = ChainAhead::new([1.0].into_iter(), [(1, 1.0), (4, 2.0)].into_iter());
        assert_eq!(ahead.after(1), 0.0);
    }

    #[test]
    fn what_is_certain_promises_nothing_behind_it() {
        let ahead = ChainAhead::new(path(1.0), [(1, 1.0), (4, 2.0)].into_iter());
        assert_eq!(ahead.after(1), 1.0); // three tokens that are left, at a cost of two
        assert!((4..200).all(|num_covered| ahead.after(num_covered) == 0.0));
    }

    #[test]
    fn the_sooner_a_step_ends_the_more_of_the_copy_is_left() {
        let ahead = ChainAhead::new(path(0.9), [(1, 1.0), (4, 2.0)].into_iter());
        assert!(ahead.after(1) > ahead.after(4) && ahead.after(4) > ahead.after(8));
    }

    proptest! {
        /// With steps of one size the gain is a geometric sum: each step is run if all before held.
        #[test]
        fn the_gain_is_that_of_all_steps_to_come(
            sureness in 0.0f32..0.85,
            rows in 1usize..6,
            elsewhere in 0.0f32..4.0,
        ) {
            let ahead = ChainAhead::new(path(sureness), [(rows, elsewhere)].into_iter());
            let tokens: f32 = (0..rows as i32).map(|depth| sureness.powi(depth)).sum();
            let of_all = (tokens - elsewhere) / (1.0 - sureness.powi(rows as i32));
            for num_covered in 1..8 {
                let expected = sureness.powi(num_covered as i32) * of_all;
                let unlikely = 0.001 + LEAST_REACH * of_all.abs();
                prop_assert!((ahead.after(num_covered) - expected).abs() < unlikely);
            }
        }
    }
}
