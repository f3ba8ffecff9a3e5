//! Which step pays. In: the steps that a session can run, their costs, the worth of draft nodes,
//! what a unit of cost has brought so far. Out: the step to run. Knows nothing of where the nodes
//! come from.

use std::fmt::{self, Display, Formatter};

use crate::draft::choose::expert_reads::{ExpertReads, StepReads};
use crate::draft::choose::step_gains::{ChainAhead, Rate};
use crate::error::{Error, Result};

/// Of what a step of unrelated tokens costs, the least that one of others is expected to.
const LEAST_SHARE: f32 = 0.1;

/// A step that the session can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Rows, one for each node of a draft tree.
    pub rows: usize,
    /// Slots that a row may see: committed tokens and rows must fit into them.
    pub attended: usize,
}

/// What a step costs, in a unit of the caller's choice: it grows with what the rows attend to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Cost behind no committed token; positive.
    pub base: f32,
    /// Cost of every committed token more; not negative.
    pub per_token: f32,
}

impl StepCost {
    /// The cost behind `past_len` committed tokens.
    pub fn at(self, past_len: usize) -> f32 {
        self.base + self.per_token * past_len as f32
    }

    /// Whether both numbers are such costs.
    pub(crate) fn is_usable(self) -> bool {
        let Self { base, per_token } = self;
        base.is_finite() && base > 0.0 && per_token.is_finite() && per_token >= 0.0
    }
}

/// As it is given: a number, or two.
impl Display for StepCost {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self { base, per_token } = self;
        if *per_token == 0.0 {
            write!(formatter, "{base}")
        } else {
            write!(formatter, "({base}, {per_token})")
        }
    }
}

impl From<f32> for StepCost {
    fn from(base: f32) -> Self {
        Self { base, per_token: 0.0 }
    }
}

fn listed(costs: &[StepCost]) -> String {
    let costs: Vec<String> = costs.iter().map(ToString::to_string).collect();
    format!("[{}]", costs.join(", "))
}

/// What is expected of a draft node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Tokens that it is expected to bring.
    pub worth: f32,
    /// Probability that the target says all tokens up to it, where it stands on the first path.
    pub reach: Option<f32>,
}

/// The steps to choose from, in increasing order of rows, what they cost, and how they paid.
#[derive(Clone, Debug)]
pub struct StepChoice {
    steps: Vec<StepShape>,
    costs: Option<Vec<StepCost>>,
    /// Where rows read experts of their own.
    experts: Option<ExpertReads>,
    rate: Rate,
}

impl StepChoice {
    /// Steps with one cost each, in any unit; without costs rows are free.
    ///
    /// Fails when there is no step, one has no rows, the steps are not in increasing order of rows,
    /// or the costs are not one a step, positive and not falling with the number of tokens.
    pub fn new(steps: Vec<StepShape>, costs: Option<Vec<StepCost>>) -> Result<Self> {
        let has_rows = steps.first().is_some_and(|narrowest| narrowest.rows > 0);
        if !has_rows || !steps.is_sorted_by(|one, next| one.rows < next.rows) {
            let rows: Vec<usize> = steps.iter().map(|step| step.rows).collect();
            let (what, must) = ("rows of the steps", "one or more, positive, in increasing order");
            return Err(Error::BadOption { what, got: format!("{rows:?}"), must });
        }
        if let Some(costs) = &costs
            && (costs.len() != steps.len() || !costs.iter().all(|cost| cost.is_usable()))
        {
            let (what, must) = ("costs", "one positive number for each step");
            return Err(Error::BadOption { what, got: listed(costs), must });
        }
        Ok(Self { steps, costs, experts: None, rate: Rate::default() })
    }

    /// The same where the costs are of unrelated tokens, which read experts of their own.
    ///
    /// Fails without costs, and when the experts are not those of as many steps.
    pub fn with_experts(mut self, experts: ExpertReads) -> Result<Self> {
        let num_costs = self.costs.as_ref().map_or(0, Vec::len);
        if experts.num_steps() != num_costs {
            let (what, must) = ("experts", "one number for each cost");
            return Err(Error::BadOption { what, got: experts.num_steps().to_string(), must });
        }
        self.experts = Some(experts);
        Ok(self)
    }

    /// Learns what a step of so many nodes has read of experts.
    pub fn experts_read(&mut self, num_nodes: usize, reads: StepReads) {
        let rows = self.steps.iter().map(|step| step.rows);
        if let Some(experts) = &mut self.experts {
            experts.have_read(rows, num_nodes, reads);
        }
    }

    /// Takes over what another choice has learned: how steps paid, and what tokens share of experts.
    pub fn learn_as(&mut self, other: &Self) {
        self.rate = other.rate;
        if let (Some(experts), Some(others)) = (&mut self.experts, &other.experts) {
            experts.learn_as(others);
        }
    }

    /// Rows of a step.
    pub fn rows(&self, step: usize) -> usize {
        self.steps[step].rows
    }

    /// Rows of the widest step, whether or not it fits.
    pub fn most_rows(&self) -> usize {
        self.rows(self.steps.len() - 1)
    }

    /// What plain decoding costs behind `past_len` committed tokens: the narrowest step that fits there,
    /// or, where none does, the narrowest of all. `None` where rows are free.
    pub fn plain_cost(&self, past_len: usize) -> Option<f32> {
        let narrowest = self.fitting(past_len).next().map_or(0, |(step, _)| step);
        self.cost(narrowest, past_len)
    }

    /// What a step costs behind `past_len` committed tokens; `None` where rows are free.
    pub fn cost(&self, step: usize, past_len: usize) -> Option<f32> {
        let cost = self.costs.as_ref()?.get(step)?.at(past_len);
        let saved = self.experts.as_ref().map_or(0.0, |experts| experts.saved(step));
        Some((cost - saved).max(LEAST_SHARE * cost))
    }

    /// What a row beyond those of the narrowest step costs behind no committed token, where it is
    /// cheapest; not negative. `None` without costs or with one step only.
    pub fn further_row(&self) -> Option<f32> {
        let (narrowest, least) = (self.steps[0].rows, self.cost(0, 0)?);
        let wider = self.steps.iter().enumerate().skip(1);
        let a_row = wider.filter_map(|(index, step)| {
            Some((self.cost(index, 0)? - least) / (step.rows - narrowest) as f32)
        });
        a_row.reduce(f32::min).map(|cost| cost.max(0.0))
    }

    /// What it costs to read so many tokens in steps of the widest kind, from the first one on; 0 where
    /// rows are free.
    pub fn reading_cost(&self, num_tokens: usize) -> f32 {
        let widest = self.steps.len() - 1;
        let num_steps = num_tokens.div_ceil(self.rows(widest));
        self.cost(widest, num_tokens / 2).map_or(0.0, |cost| cost * num_steps as f32)
    }

    /// The widest step that fits after `past_len` committed tokens. Fails when none does.
    pub fn widest(&self, past_len: usize) -> Result<usize> {
        self.narrowest(usize::MAX, past_len)
    }

    /// The narrowest step with at least `num_nodes` rows that fits after `past_len` committed tokens,
    /// or the widest that does. Fails when none does.
    pub fn narrowest(&self, num_nodes: usize, past_len: usize) -> Result<usize> {
        let mut widest = None;
        for (index, step) in self.fitting(past_len) {
            widest = Some(index);
            if step.rows >= num_nodes {
                break;
            }
        }
        widest.ok_or_else(|| {
            let StepShape { rows, attended } = self.steps[0];
            Error::StepOutOfRange { past_len, rows, attended }
        })
    }

    /// The steps that fit after `past_len` committed tokens, in increasing order of rows. A narrower one
    /// need not fit where a wider one does: each has slots of its own.
    fn fitting(&self, past_len: usize) -> impl Iterator<Item = (usize, StepShape)> + Clone {
        let fits = move |step: &StepShape| past_len.saturating_add(step.rows) <= step.attended;
        self.steps.iter().copied().enumerate().filter(move |(_, step)| fits(step))
    }

    /// Those of [`fitting`](Self::fitting) up to `widest`, with their costs behind `past_len` tokens;
    /// none where rows are free.
    fn priced(
        &self,
        widest: usize,
        past_len: usize,
    ) -> impl Iterator<Item = (usize, StepShape, f32)> + Clone {
        let fitting = self.fitting(past_len).take_while(move |&(index, _)| index <= widest);
        fitting.filter_map(move |(index, step)| Some((index, step, self.cost(index, past_len)?)))
    }

    /// The step, up to `widest`, which fits, of the largest [`gain`](Self::gain) together with that of
    /// the steps that follow it in the same copy; the narrowest of equals. Without costs the narrowest
    /// that holds all nodes. Only steps that fit are chosen.
    ///
    /// The nodes' worths never increase: a step of `rows` rows is worth the sum of the first `rows`
    /// of them.
    pub fn best(
        &self,
        widest: usize,
        past_len: usize,
        nodes: impl ExactSizeIterator<Item = Prospect> + Clone,
    ) -> usize {
        if self.costs.is_none() {
            return self.narrowest(nodes.len(), past_len).unwrap_or(widest);
        }
        let rate = self.rate(past_len);
        let priced = self.priced(widest, past_len);
        let ahead = ChainAhead::new(
            nodes.clone().filter_map(|node| node.reach),
            priced.clone().map(|(_, step, cost)| (step.rows, rate * cost)),
        );
        let (mut nodes, mut worth, mut num_covered, mut num_taken) = (nodes, 0.0, 0, 0);
        let mut best: Option<(usize, f32)> = None;
        for (index, step, cost) in priced {
            for node in nodes.by_ref().take(step.rows - num_taken) {
                worth += node.worth;
                num_covered += usize::from(node.reach.is_some());
            }
            num_taken = step.rows;
            let gain = worth - rate * cost + ahead.after(num_covered);
            if best.is_none_or(|(_, most)| gain > most) {
                best = Some((index, gain));
            }
        }
        best.map_or(widest, |(step, _)| step)
    }

    /// The step, up to `widest`, of the largest [`gain`](Self::gain), and that gain, whatever follows
    /// it; the narrowest of equals. `None` without costs, and where no step fits.
    pub fn best_gain(
        &self,
        widest: usize,
        past_len: usize,
        mut worths: impl Iterator<Item = f32>,
    ) -> Option<(usize, f32)> {
        let (mut expected, mut rows) = (0.0, 0);
        let mut best: Option<(usize, f32)> = None;
        for (index, step, cost) in self.priced(widest, past_len) {
            expected += worths.by_ref().take(step.rows - rows).sum::<f32>();
            rows = step.rows;
            let gain = self.gain(expected, cost, past_len);
            if best.is_none_or(|(_, most)| gain > most) {
                best = Some((index, gain));
            }
        }
        best
    }

    /// Whether a step up to `widest` with more rows than there are `worths` could be better than those
    /// that they fill, were all further nodes worth as much as the last one; they are never worth more.
    /// Without costs it always could. Steps that do not fit are left out.
    pub fn could_gain_beyond(
        &self,
        widest: usize,
        past_len: usize,
        worths: impl ExactSizeIterator<Item = f32> + Clone,
    ) -> bool {
        if self.costs.is_none() {
            return true;
        }
        let num_nodes = worths.len();
        let priced = self.priced(widest, past_len);
        let is_filled = |(_, step, _): &(usize, StepShape, f32)| step.rows <= num_nodes;
        let Some((filled, ..)) = priced.clone().take_while(is_filled).last() else { return true };
        let (expected, last) =
            worths.clone().fold((0.0, 0.0), |(sum, _), worth| (sum + worth, worth));
        let most =
            self.best_gain(filled, past_len, worths).map_or(f32::NEG_INFINITY, |best| best.1);
        priced.skip_while(is_filled).any(|(_, step, cost)| {
            let tokens = expected + last * (step.rows - num_nodes) as f32;
            self.gain(tokens, cost, past_len) > most
        })
    }

    /// Tokens that a step brings beyond those that its cost brings elsewhere: `tokens - rate *
    /// cost`, where the rate is that of the last steps, and at least that of plain decoding.
    ///
    /// The tokens for the cost of this one step would be another measure, and a shorter-sighted
    /// one: where most tokens come cheap, a wide step that saves a dear one later pays although its
    /// own ratio is lower. With the rate of plain decoding as the least, no step is chosen that is
    /// expected to bring less for its cost than that.
    pub fn gain(&self, tokens: f32, cost: f32, past_len: usize) -> f32 {
        tokens - self.rate(past_len) * cost
    }

    /// Tokens that a unit of cost brings elsewhere.
    fn rate(&self, past_len: usize) -> f32 {
        self.rate.beside_plain(1.0, self.plain_cost(past_len).unwrap_or(1.0))
    }

    /// Learns what a step, and all that was spent on drafting for it, has brought.
    pub fn took(&mut self, tokens: usize, cost: f32) {
        self.rate.took(tokens, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shapes(rows: &[usize]) -> Vec<StepShape> {
        rows.iter().map(|&rows| StepShape { rows, attended: 40 }).collect()
    }

    /// Nodes of these worths beside every path.
    fn apart(worths: &[f32]) -> impl ExactSizeIterator<Item = Prospect> + Clone {
        worths.iter().map(|&worth| Prospect { worth, reach: None })
    }

    /// A chain of which each token is right with this probability.
    fn copy(sureness: f32, len: i32) -> impl ExactSizeIterator<Item = Prospect> + Clone {
        let reach = (0..len).map(move |depth| sureness.powi(depth));
        reach.map(|reach| Prospect { worth: reach, reach: Some(reach) })
    }

    #[test]
    fn a_running_copy_is_not_paid_for_with_its_own_future() {
        let costs = Some([1.0, 3.0, 5.9].map(StepCost::from).to_vec());
        let choice = StepChoice::new(shapes(&[1, 4, 8]), costs).unwrap();
        let worths: Vec<f32> = copy(0.97, 8).map(|node| node.worth).collect();
        assert_eq!(choice.rows(choice.best(2, 0, apart(&worths))), 8);
        assert_eq!(choice.rows(choice.best(2, 0, copy(0.97, 8))), 4); // 3.82 / 3 > 7.21 / 5.9
        assert_eq!(choice.rows(choice.best(2, 0, copy(0.995, 8))), 8);
    }

    #[test]
    fn certain_tokens_are_not_put_off_for_what_nobody_knows() {
        let costs = Some([1.0, 2.0, 2.4].map(StepCost::from).to_vec());
        let choice = StepChoice::new(shapes(&[1, 4, 8]), costs).unwrap();
        assert_eq!(choice.rows(choice.best(2, 0, copy(1.0, 4))), 4);
    }

    #[test]
    fn tokens_that_share_experts_make_wide_steps_cheaper() {
        let costs = Some([1.0, 2.5, 4.5].map(StepCost::from).to_vec());
        let experts = ExpertReads::new(0.1, vec![8.0, 21.0, 38.0]).unwrap();
        let choice = StepChoice::new(shapes(&[1, 4, 8]), costs).unwrap();
        let mut choice = choice.with_experts(experts).unwrap();
        let rows = |choice: &StepChoice| choice.rows(choice.best(2, 0, apart(&[0.3; 8])));
        assert_eq!((rows(&choice), choice.cost(2, 0)), (1, Some(3.75)));
        for _ in 0..200 {
            choice.experts_read(8, StepReads { first_row: 8.0, all: 9.0 });
        }
        assert_eq!(rows(&choice), 8); // 0.3 * 8 > 4.5 - 2.9
        assert_eq!(choice.cost(0, 0), Some(1.0));
    }

    /// Most of what a step costs is what it reads from a disk: 8 of 10, 14 of 16 and 20 of 22. A text
    /// finds the experts of each next token in memory, but not those of drafts.
    #[test]
    fn plain_steps_that_find_their_experts_in_memory_are_preferred() {
        let costs = Some([10.0, 16.0, 22.0].map(StepCost::from).to_vec());
        let experts = ExpertReads::new(1.0, vec![8.0, 14.0, 20.0]).unwrap();
        let choice = StepChoice::new(shapes(&[1, 4, 8]), costs).unwrap();
        let mut choice = choice.with_experts(experts).unwrap();
        let rows = |choice: &StepChoice| choice.rows(choice.best(2, 0, apart(&[0.3; 8])));
        assert!(rows(&choice) > 1);
        for _ in 0..200 {
            choice.experts_read(8, StepReads { first_row: 0.0, all: 12.0 });
        }
        assert_eq!(rows(&choice), 1); // 1 / 2 > 2.4 / 14
        assert!((choice.cost(0, 0).unwrap() - 2.0).abs() < 0.2);
        assert!((choice.cost(2, 0).unwrap() - 14.0).abs() < 0.4);
    }

    #[test]
    fn experts_are_of_steps_with_costs() {
        let experts = || ExpertReads::new(0.1, vec![8.0, 21.0]).unwrap();
        let free = StepChoice::new(shapes(&[1, 4]), None).unwrap();
        assert!(free.with_experts(experts()).is_err());
        let costs = Some([1.0, 2.0, 3.0].map(StepCost::from).to_vec());
        let three = StepChoice::new(shapes(&[1, 4, 8]), costs).unwrap();
        assert!(three.with_experts(experts()).is_err());
    }

    #[test]
    fn the_largest_gain_wins() {
        let choice =
            StepChoice::new(shapes(&[1, 4, 8]), Some([1.0, 1.5, 3.0].map(StepCost::from).to_vec()))
                .unwrap();
        let best = |worths: &[f32]| choice.rows(choice.best(2, 0, apart(worths)));
        assert_eq!(best(&[1.0]), 1);
        assert_eq!(best(&[1.0, 0.4]), 1);
        assert_eq!(best(&[1.0, 0.6]), 4);
        assert_eq!(best(&[1.0; 4]), 4);
        assert_eq!(best(&[1.0; 9]), 8);
        assert_eq!(choice.best(0, 0, apart(&[1.0; 8])), 0);
    }

    /// Worths of nodes, costs of three steps that grow with their rows, and how steps paid before.
    fn context() -> impl Strategy<Value = (Vec<f32>, [f32; 3], Vec<(usize, f32)>)> {
        let worths = prop::collection::vec(0.0f32..1.0, 0..8).prop_map(|mut worths| {
            worths.push(1.0);
            worths.sort_by(|one, other| other.total_cmp(one));
            worths
        });
        let costs = (0.1f32..2.0, 0.0f32..2.0, 0.0f32..2.0);
        let costs =
            costs.prop_map(|(first, more, most)| [first, first + more, first + more + most]);
        (worths, costs, prop::collection::vec((1usize..9, 0.1f32..4.0), 0..20))
    }

    fn choice(costs: [f32; 3], seen: &[(usize, f32)]) -> StepChoice {
        let costs = costs.map(StepCost::from).to_vec();
        let mut choice = StepChoice::new(shapes(&[1, 4, 8]), Some(costs)).unwrap();
        seen.iter().for_each(|&(tokens, cost)| choice.took(tokens, cost));
        choice
    }

    proptest! {
        #[test]
        fn no_step_is_expected_to_be_slower_than_plain((worths, costs, seen) in context()) {
            let best = choice(costs, &seen).best(2, 0, apart(&worths));
            let expected: f32 = worths.iter().take([1, 4, 8][best]).sum();
            prop_assert!(expected / costs[best] >= 1.0 / costs[0] * (1.0 - 1e-4));
        }

        #[test]
        fn what_could_not_gain_is_not_chosen((worths, costs, seen) in context(), grown in 0usize..9) {
            let choice = choice(costs, &seen);
            let grown = &worths[..grown.min(worths.len())];
            if !choice.could_gain_beyond(2, 0, grown.iter().copied()) {
                let best = choice.best(2, 0, apart(&worths));
                prop_assert!(choice.rows(best) <= grown.len());
            }
        }

        #[test]
        fn a_dearer_step_is_not_chosen_for_it(
            (worths, costs, seen) in context(),
            dearer in 1usize..3,
            by in 0.0f32..2.0,
        ) {
            let before = choice(costs, &seen).best(2, 0, apart(&worths));
            let mut raised = costs;
            raised[dearer] += by;
            let after = choice(raised, &seen).best(2, 0, apart(&worths));
            prop_assert!(after == before || before == dearer);
        }

        #[test]
        fn steps_that_paid_well_make_rows_dearer((worths, costs, seen) in context()) {
            let chosen = |seen: &[(usize, f32)]| {
                choice(costs, seen).best(2, 0, apart(&worths))
            };
            let better: Vec<_> = seen.iter().map(|&(tokens, cost)| (tokens + 4, cost)).collect();
            prop_assert!(chosen(&better) <= chosen(&seen));
        }
    }

    /// Steps of which each has slots of its own, in any order, and costs or none.
    fn steps_of_own_slots() -> impl Strategy<Value = StepChoice> {
        let step = (1usize..5, 1usize..40, 0.1f32..4.0);
        let steps = (prop::collection::vec(step, 1..5), any::<bool>());
        steps.prop_map(|(steps, has_costs)| {
            let mut rows = 0;
            let shapes = steps.iter().map(|&(more, attended, _)| {
                rows += more;
                StepShape { rows, attended }
            });
            let costs = steps.iter().map(|&(.., cost)| StepCost::from(cost)).collect();
            StepChoice::new(shapes.collect(), has_costs.then_some(costs)).unwrap()
        })
    }

    /// The same steps without those that do not fit, and the number of each among all.
    fn without_unfit(choice: &StepChoice, past_len: usize) -> (Vec<usize>, Option<StepChoice>) {
        let fits = |&index: &usize| {
            let StepShape { rows, attended } = choice.steps[index];
            past_len + rows <= attended
        };
        let fit: Vec<usize> = (0..choice.steps.len()).filter(fits).collect();
        let steps = fit.iter().map(|&index| choice.steps[index]).collect();
        let costs = choice.costs.as_ref();
        let costs = costs.map(|costs| fit.iter().map(|&index| costs[index]).collect());
        let kept = StepChoice::new(steps, costs).ok();
        (fit, kept.map(|kept| StepChoice { rate: choice.rate, ..kept }))
    }

    proptest! {
        /// The twin has no other steps than those that fit.
        #[test]
        fn every_chooser_chooses_as_if_steps_that_do_not_fit_were_not_there(
            mut choice in steps_of_own_slots(),
            past_len in 0usize..40,
            mut worths in prop::collection::vec(0.0f32..1.0, 1..20),
            most_nodes in 1usize..24,
            seen in prop::collection::vec((1usize..9, 0.1f32..4.0), 0..4),
        ) {
            seen.iter().for_each(|&(tokens, cost)| choice.took(tokens, cost));
            worths.sort_by(|one, other| other.total_cmp(one));
            let (fit, twin) = without_unfit(&choice, past_len);
            let Some(twin) = twin else {
                prop_assert!(choice.widest(past_len).is_err());
                prop_assert!(choice.narrowest(most_nodes, past_len).is_err());
                return Ok(());
            };
            let last = fit.len() - 1;
            prop_assert_eq!(choice.widest(past_len), Ok(fit[last]));
            let narrowest = fit.iter().find(|&&step| choice.rows(step) >= most_nodes);
            let narrowest = *narrowest.unwrap_or(&fit[last]);
            prop_assert_eq!(choice.narrowest(most_nodes, past_len), Ok(narrowest));
            prop_assert_eq!(choice.plain_cost(past_len), twin.cost(0, past_len));
            for (widest, &among_all) in fit.iter().enumerate() {
                let nodes = worths.len().min(choice.rows(among_all));
                let reach = |worth| Prospect { worth, reach: Some(worth) };
                let nodes = worths[..nodes].iter().map(|&worth| reach(worth));
                let best = choice.best(among_all, past_len, nodes.clone());
                prop_assert_eq!(best, fit[twin.best(widest, past_len, nodes)]);
                let gain = choice.best_gain(among_all, past_len, worths.iter().copied());
                let of_twin = twin.best_gain(widest, past_len, worths.iter().copied());
                prop_assert_eq!(gain, of_twin.map(|(step, gain)| (fit[step], gain)));
                let beyond = choice.could_gain_beyond(among_all, past_len, worths.iter().copied());
                let of_twin = twin.could_gain_beyond(widest, past_len, worths.iter().copied());
                prop_assert_eq!(beyond, of_twin);
            }
        }
    }

    #[test]
    fn a_step_costs_more_behind_more_tokens() {
        let narrow = StepCost { base: 1.0, per_token: 0.0 };
        let wide = StepCost { base: 1.5, per_token: 0.1 };
        let choice = StepChoice::new(shapes(&[1, 4]), Some(vec![narrow, wide])).unwrap();
        let best = |past_len| choice.best(1, past_len, apart(&[1.0; 3]));
        assert_eq!((best(0), best(10), best(20)), (1, 1, 0));
    }

    #[test]
    fn free_rows_take_every_node() {
        let choice = StepChoice::new(shapes(&[1, 4, 8]), None).unwrap();
        assert_eq!(choice.best(2, 0, apart(&[1.0, 0.01, 0.01])), 1);
        assert_eq!(choice.best(2, 0, apart(&[1.0; 8])), 2);
    }

    #[test]
    fn steps_that_reach_beyond_the_slots_are_not_chosen() {
        let choice = StepChoice::new(shapes(&[1, 4, 8]), None).unwrap();
        assert_eq!(choice.widest(32), Ok(2));
        assert_eq!(choice.widest(33), Ok(1));
        assert_eq!(choice.widest(39), Ok(0));
        let none = Error::StepOutOfRange { past_len: 40, rows: 1, attended: 40 };
        assert_eq!(choice.widest(40), Err(none));
        assert!(choice.widest(usize::MAX).is_err());
    }

    #[test]
    fn unusable_steps_and_costs_are_refused() {
        assert!(StepChoice::new(vec![], None).is_err());
        assert!(StepChoice::new(shapes(&[4, 4]), None).is_err());
        assert!(StepChoice::new(shapes(&[0, 4]), None).is_err());
        for costs in [vec![1.0], vec![1.0, 0.0], vec![1.0, f32::NAN]] {
            let costs = costs.into_iter().map(StepCost::from).collect();
            assert!(StepChoice::new(shapes(&[1, 4]), Some(costs)).is_err());
        }
    }
}
