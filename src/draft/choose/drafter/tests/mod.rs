//! Laws of the drafter: whatever is drafted, the tokens given out are those of plain decoding.

mod beside;
mod constrained;
mod drafted;
mod learning;
mod offered;
mod origins;
mod output;
mod refusals;
mod rows;
mod ruled_target;

use self::ruled_target::{VOCAB_SIZE, plain, run_step, says};
use super::*;
use crate::draft::choose::step_choice::{StepCost, StepShape};
use crate::draft::choose::tests::Scripted;
use crate::ids::NodeId;
use crate::logits::logprobs::RowLogprobs;
use crate::sampling::{LogitBias, Penalties};
use proptest::prelude::*;

const ATTENDED: usize = 64;

fn drafter(rules: &[u32], commit: CommitPolicy, costs: Option<Vec<f32>>, end: u32) -> Drafter {
    let shapes = [1, 3, 8].map(|rows| StepShape { rows, attended: ATTENDED });
    let costs = costs.map(|costs| costs.into_iter().map(StepCost::from).collect());
    let steps = StepChoice::new(shapes.to_vec(), costs).unwrap();
    let end_tokens = vec![TokenId(end)];
    let shape = TreeShape::BestFirst;
    let options = DrafterOptions { steps, vocab_size: VOCAB_SIZE, commit, end_tokens, shape };
    Drafter::new(Scripted::sources(rules), options).unwrap()
}

/// A drafter whose caller gave a tree that is wrong on its first path and right beside it for three
/// tokens, and the four tokens that are right.
fn with_right_side_branch(prompt: &[TokenId; 1]) -> (Drafter, Vec<TokenId>) {
    let mut drafter = drafter(&[], CommitPolicy::Canonical, None, 9);
    drafter.begin(prompt, 20).unwrap();
    let right = plain(prompt, TokenId(9), 4);
    let wrong = TokenId((right[0].0 + 1) % 3);
    let tokens = [prompt[0], wrong, right[0], right[1], right[2]];
    drafter.propose_draft(0, &tokens, &[0, 0, 0, 2, 3]).unwrap();
    (drafter, right)
}
