//! Who brought each token that is given out.

use super::*;
use crate::draft::choose::origins::Origin;

proptest! {
    #[test]
    fn every_token_given_out_has_an_origin_and_none_has_more_than_its_source_brought(
        rules in prop::collection::vec(0u32..5, 0..3),
        compact in any::<bool>(),
        prompt in prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..6),
        end in 0..VOCAB_SIZE as u32 + 1,
        max_new_tokens in 1usize..40,
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let mut drafter = drafter(&rules, commit, None, end);
        let mut text = prompt.clone();
        drafter.begin(&prompt, max_new_tokens).unwrap();
        prop_assert!(drafter.origins().is_empty());
        let mut brought = vec![0; rules.len()];
        // Origins of the tokens given out, as nodes of their own trees tell.
        let mut carried: Vec<Origin> = vec![];
        while drafter.finish_reason().is_none() {
            let step = drafter.propose(text.len() - 1).unwrap();
            let mut logits = run_step(&drafter, &text, [1, 3, 8][step]);
            let proposals = drafter.draft.proposals().to_vec();
            let tree = drafter.tree().clone();
            let of_nodes = drafter.node_origins();
            prop_assert_eq!(of_nodes.len(), tree.num_nodes());
            prop_assert_eq!(of_nodes[0], Origin::Target);
            let accepted = drafter.accept(&mut logits).unwrap();
            prop_assert!(drafter.node_origins().is_empty());
            let origins = drafter.origins();
            prop_assert_eq!(origins.len(), accepted.token_ids.len());
            let mut at = NodeId::ROOT;
            for (index, (&token, &origin)) in accepted.token_ids.iter().zip(origins).enumerate() {
                if index >= accepted.num_drafted {
                    prop_assert_eq!(origin, Origin::Target);
                    continue;
                }
                at = tree.child(at, token).unwrap();
                prop_assert_eq!(origin, of_nodes[at.index()]);
                match proposals[at.index()] {
                    Some(proposal) => prop_assert_eq!(origin, Origin::Source(proposal.source)),
                    None => prop_assert_eq!(origin, carried[at.index() - 1]),
                }
            }
            carried = drafter.draft.origins().carried().to_vec();
            prop_assert_eq!(carried.len(), drafter.carried().len());
            for origin in origins {
                if let Origin::Source(source) = origin {
                    brought[*source] += 1;
                }
            }
            text.extend(&accepted.token_ids);
        }
        for (brought, counts) in brought.iter().zip(&drafter.statistics().sources) {
            prop_assert!(*brought <= counts.accepted);
            if compact && drafter.finish_reason() == Some(FinishReason::Length) {
                prop_assert_eq!(*brought, counts.accepted);
            }
        }
    }
}

#[test]
fn a_callers_own_tokens_stay_given_when_they_are_fed_again() {
    let prompt = [TokenId(0)];
    let (mut drafter, right) = with_right_side_branch(&prompt);
    drafter.accept(&mut run_step(&drafter, &prompt, 8)).unwrap();
    assert_eq!(drafter.origins(), [Origin::Given]);
    let step = drafter.propose(1).unwrap();
    drafter.accept(&mut run_step(&drafter, &[prompt[0], right[0]], [1, 3, 8][step])).unwrap();
    let again = [Origin::Given, Origin::Given, Origin::Target, Origin::Target];
    assert_eq!(drafter.origins(), again);
    let names = drafter.origins().iter().map(|&origin| drafter.origin_name(origin));
    assert_eq!(names.collect::<Vec<_>>(), ["given", "given", "target", "target"]);
}
