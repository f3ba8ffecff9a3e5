//! EdgeLLM's trees: all that is drafted is verified, whatever rows cost, and nothing else.

use super::*;
use crate::draft::sources::model::ModelDraft;
use crate::draft::sources::model::branches::tests::likely;
use crate::draft::sources::model::shape::{Growth, ModelShape, Stop};
use crate::draft::sources::model::source::{ModelSource, SharedModelDraft};

/// Of a step: the tokens and parents that were verified, and the carried tokens before them.
type Step = (Vec<TokenId>, Vec<NodeId>, usize);

/// Answers a prompt with what a model of `rule` drafts, which goes on for as many tokens as the target
/// takes for each step: the answer, the steps, and the model's runs for them.
fn answered(
    (shape, rule, num_provisional): (ModelShape, u32, usize),
    (commit, end, max_new_tokens): (CommitPolicy, TokenId, usize),
    prompt: &[TokenId],
) -> (Vec<TokenId>, Vec<Step>, usize) {
    let model = ModelDraft::new(VOCAB_SIZE, vec![end], 0.0).unwrap().shaped(shape);
    let model = SharedModelDraft::new(model);
    let shapes = [1, 3, 8].map(|rows| StepShape { rows, attended: ATTENDED });
    let costs = [1.0, 50.0, 900.0].map(StepCost::from).to_vec(); // no row pays
    let options = DrafterOptions {
        steps: StepChoice::new(shapes.to_vec(), Some(costs)).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit,
        end_tokens: vec![end],
        shape: TreeShape::Drafted,
    };
    let sources: Vec<Box<dyn DraftSource>> = vec![Box::new(ModelSource::new(model.clone()))];
    let mut drafter = Drafter::new(sources, options).unwrap();
    drafter.begin(prompt, max_new_tokens).unwrap();
    let (mut text, mut steps, mut num_runs) = (prompt.to_vec(), vec![], 0);
    let run = |limits: (usize, usize), provisional: bool| {
        let mut model = model.lock();
        model.take_realignment();
        let Some(step) = model.next_step(limits, provisional) else { return false };
        let last = step.tree.token_ids()[step.tree.num_nodes() - 1];
        let mut seen = likely(rule, last);
        for token in &mut seen.token_ids {
            token.0 %= VOCAB_SIZE as u32;
        }
        seen.probabilities[2..].fill(0.0);
        model.read(&seen);
        true
    };
    while drafter.finish_reason().is_none() {
        let past_len = text.len() - 1;
        let room = drafter.draft_room(past_len).unwrap();
        while run(room, false) {
            num_runs += 1;
        }
        let step = drafter.propose(past_len).unwrap();
        let (num_drafted, tree) = (model.lock().num_drafted(), drafter.tree().clone());
        // Near the end of the answer not all that is carried has a place.
        let num_carried = drafter.request.as_ref().unwrap().carried.len().min(tree.num_nodes() - 1);
        assert_eq!(tree.num_nodes() - 1 - num_carried, num_drafted);
        let path = (1..=num_carried).all(|node| tree.parents()[node].index() == node - 1);
        assert!(path, "what is carried stands first");
        steps.push((tree.token_ids().to_vec(), tree.parents().to_vec(), num_carried));
        let mut logits = run_step(&drafter, &text, [1, 3, 8][step]);
        (0..num_provisional).all(|_| run((2 * room.0, room.1), true));
        text.extend(drafter.accept(&mut logits).unwrap().token_ids);
    }
    (text.split_off(prompt.len()), steps, num_runs)
}

proptest! {
    #[test]
    fn the_whole_draft_is_verified_and_the_answer_is_that_of_plain_decoding(
        (rule, num_provisional, max_new_tokens) in (0u32..15, 0usize..9, 1usize..30),
        (compact, counts, branches, end) in (any::<bool>(), any::<bool>(), any::<bool>(), 0u32..4),
        prompt in prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..6),
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let shape = ModelShape {
            growth: if branches { ModelShape::EDGELLM.growth } else { Growth::Chain },
            stop: if counts { Stop::Count } else { Stop::TreeConfidence },
            ..ModelShape::EDGELLM
        };
        let asked = (commit, TokenId(end), max_new_tokens);
        let (answer, steps, num_runs) = answered((shape, rule, 0), asked, &prompt);
        prop_assert_eq!(&answer, &plain(&prompt, TokenId(end), max_new_tokens));
        let goes_on = answered((shape, rule, num_provisional), asked, &prompt);
        prop_assert_eq!((&goes_on.0, &goes_on.1), (&answer, &steps));
        prop_assert!(goes_on.2 <= num_runs);
    }
}
