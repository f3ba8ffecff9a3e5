//! Laws of a constrained drafter: whatever is drafted, the tokens are those of plain decoding that
//! takes the likeliest of the allowed ones.

use super::ruled_target::{VOCAB_SIZE, run_step, says};
use super::*;
use crate::constraint::{Allowed, keep_allowed};
use crate::draft::choose::origins::Origin;
use crate::draft::choose::step_choice::StepShape;
use crate::draft::choose::tests::Scripted;
use crate::logits::argmax;
use crate::tree::draft_tree::{DraftTree, strategies};
use proptest::prelude::*;

/// What may follow depends on the last two tokens; after `len` tokens nothing may.
#[derive(Clone, Debug)]
struct Ruled {
    allowed: [u32; 9],
    len: usize,
    given: Vec<TokenId>,
    words: [u32; 1],
}

impl Ruled {
    fn mask(&self, path: &[TokenId]) -> u32 {
        let recent = self.given.iter().chain(path).rev().take(2);
        self.allowed[recent.fold(0, |sum, token| sum * 3 + token.0 as usize)]
    }

    fn is_complete(&self, path: &[TokenId]) -> bool {
        self.given.len() + path.len() >= self.len
    }
}

impl Constraint for Ruled {
    fn forced(&mut self, path: &[TokenId]) -> Result<Vec<TokenId>> {
        let mut text = path.to_vec();
        while !self.is_complete(&text) && self.mask(&text).is_power_of_two() {
            text.push(TokenId(self.mask(&text).trailing_zeros()));
        }
        Ok(text.split_off(path.len()))
    }

    fn possible(&mut self, tokens: &[TokenId], parents: &[u32]) -> Result<Vec<bool>> {
        let tree = DraftTree::from_arrays(tokens, parents)?;
        let mut paths = vec![Some(vec![])];
        for node in 1..tokens.len() {
            let parent = paths[parents[node] as usize].clone();
            let parent = parent.filter(|path| !self.is_complete(path));
            let parent = parent.filter(|path| self.mask(path) >> tree.token_ids()[node].0 & 1 == 1);
            paths.push(parent.map(|path| [&path[..], &tokens[node..=node]].concat()));
        }
        Ok(paths.iter().map(Option::is_some).collect())
    }

    fn after(&mut self, path: &[TokenId]) -> Result<Allowed<'_>> {
        let is_complete = self.is_complete(path);
        self.words = [if is_complete { 1 } else { self.mask(path) }];
        Ok(Allowed { words: &self.words, is_complete })
    }

    fn extend(&mut self, tokens: &[TokenId]) -> Result<bool> {
        assert!(tokens.iter().enumerate().all(|(index, token)| {
            !self.is_complete(&tokens[..index]) && self.mask(&tokens[..index]) >> token.0 & 1 == 1
        }));
        self.given.extend(tokens);
        Ok(self.is_complete(&[]))
    }
}

/// The answer of plain decoding under the grammar, and why it ends.
fn plain(
    prompt: &[TokenId],
    mut grammar: Ruled,
    end: TokenId,
    most: usize,
) -> (Vec<TokenId>, FinishReason) {
    let mut answer: Vec<TokenId> = vec![];
    loop {
        let mut row = [0.0; VOCAB_SIZE];
        row[says(&[prompt, &answer].concat()).0 as usize] = 1.0;
        keep_allowed(&mut row, grammar.after(&[]).unwrap().words).unwrap();
        let token = argmax(&row).unwrap();
        answer.push(token);
        if token == end {
            return (answer, FinishReason::Stop);
        }
        if grammar.extend(&[token]).unwrap() {
            return (answer, FinishReason::Grammar);
        }
        if answer.len() == most {
            return (answer, FinishReason::Length);
        }
    }
}

proptest! {
    #[test]
    fn constrained_output_equals_constrained_plain_decoding(
        rules in prop::collection::vec(0u32..5, 0..3),
        compact in any::<bool>(),
        static_tree in any::<bool>(),
        prompt in prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..6),
        end in 0..VOCAB_SIZE as u32 + 1,
        most in 1usize..40,
        allowed in prop::array::uniform9(1u32..8),
        len in 1usize..30,
        own in prop::collection::vec((strategies::tree(12), 0usize..3, 1usize..9), 1..6),
    ) {
        let shapes = [1, 3, 8].map(|rows| StepShape { rows, attended: 64 });
        let mut drafter = Drafter::new(Scripted::sources(&rules), DrafterOptions {
            steps: StepChoice::new(shapes.to_vec(), None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical },
            end_tokens: vec![TokenId(end)],
            shape: if static_tree { TreeShape::Static } else { TreeShape::BestFirst },
        }).unwrap();
        let mut grammar = Ruled { allowed, len, given: vec![], words: [0] };
        let (expected, reason) = plain(&prompt, grammar.clone(), TokenId(end), most);

        drafter.begin(&prompt, most).unwrap();
        drafter.constrain(Box::new(grammar.clone()));
        let mut text = prompt.clone();
        let mut own = own.iter().cycle();
        while drafter.finish_reason().is_none() {
            let (tree, way, most) = own.next().unwrap();
            let past_len = text.len() - 1;
            let rows = match way {
                0 => [1, 3, 8][drafter.propose(past_len).unwrap()],
                1 => {
                    let mut tokens = tree.token_ids().to_vec();
                    tokens[0] = text[past_len];
                    let parents: Vec<u32> = tree.parents().iter().map(|node| node.0).collect();
                    [1, 3, 8][drafter.propose_draft(past_len, &tokens, &parents).unwrap()]
                }
                _ => {
                    let offer = drafter.offer(past_len).unwrap();
                    let num_nodes = (*most).clamp(offer.least, offer.worths.len());
                    drafter.take(num_nodes, None).unwrap();
                    num_nodes
                }
            };
            let drafted = drafter.tree();
            let parents: Vec<u32> = drafted.parents().iter().map(|node| node.0).collect();
            grammar.given = text[prompt.len()..].to_vec();
            prop_assert!(grammar.possible(drafted.token_ids(), &parents).unwrap().iter().all(|&is| is));
            let accepted = drafter.accept(&mut run_step(&drafter, &text, rows)).unwrap();
            text.extend(&accepted.token_ids);
        }
        prop_assert_eq!(drafter.finish_reason(), Some(reason));
        prop_assert_eq!(&text[prompt.len()..], expected);
        let forced = drafter.statistics().forced;
        prop_assert_eq!(forced.proposed, forced.accepted, "forced tokens are certain");
    }
}

#[test]
fn forced_tokens_need_no_source_and_are_known_by_their_origin() {
    let shapes = [1, 8].map(|rows| StepShape { rows, attended: 64 });
    let mut drafter = Drafter::new(
        vec![],
        DrafterOptions {
            steps: StepChoice::new(shapes.to_vec(), None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: vec![],
            shape: TreeShape::BestFirst,
        },
    )
    .unwrap();
    drafter.begin(&[TokenId(0)], 20).unwrap();
    // After any token 1 must come, and after five of them nothing may.
    drafter.constrain(Box::new(Ruled { allowed: [2; 9], len: 5, given: vec![], words: [0] }));
    let step = drafter.propose(0).unwrap();
    assert_eq!(drafter.tree().token_ids(), [0, 1, 1, 1, 1, 1].map(TokenId));
    let accepted = drafter.accept(&mut run_step(&drafter, &[TokenId(0)], [1, 8][step])).unwrap();
    assert_eq!(accepted.token_ids, [1; 5].map(TokenId));
    assert_eq!(accepted.finish_reason, Some(FinishReason::Grammar));
    assert_eq!(drafter.origins(), [Origin::Grammar; 5]);
    assert_eq!(
        (drafter.statistics().forced.proposed, drafter.statistics().forced.accepted),
        (5, 5)
    );
}

/// Answers for each token alone, or not at all: token 1 is refused, and so is the root.
struct Careless {
    answers: Option<usize>,
    words: [u32; 1],
}

impl Constraint for Careless {
    fn forced(&mut self, _: &[TokenId]) -> Result<Vec<TokenId>> {
        Ok(vec![])
    }

    fn possible(&mut self, tokens: &[TokenId], _: &[u32]) -> Result<Vec<bool>> {
        let failed = Error::ConstraintFailed { reason: "no more".into() };
        let most = self.answers.ok_or(failed)?;
        Ok(tokens.iter().take(most).map(|&token| token != TokenId(1)).collect())
    }

    fn after(&mut self, _: &[TokenId]) -> Result<Allowed<'_>> {
        Ok(Allowed { words: &self.words, is_complete: false })
    }

    fn extend(&mut self, _: &[TokenId]) -> Result<bool> {
        Ok(false)
    }
}

fn careless_drafter(shape: TreeShape, answers: Option<usize>) -> Drafter {
    let steps = StepChoice::new(vec![StepShape { rows: 8, attended: 64 }], None).unwrap();
    let (commit, end_tokens, vocab_size) = (CommitPolicy::Canonical, vec![], VOCAB_SIZE);
    let options = DrafterOptions { steps, vocab_size, commit, end_tokens, shape };
    let mut drafter = Drafter::new(Scripted::sources(&[1]), options).unwrap();
    drafter.begin(&[TokenId(1)], 20).unwrap();
    drafter.constrain(Box::new(Careless { answers, words: [0b101] }));
    drafter
}

#[test]
fn nothing_is_left_below_a_node_that_a_grammar_refuses_but_the_root() {
    for shape in [TreeShape::Static, TreeShape::BestFirst] {
        let mut drafter = careless_drafter(shape, Some(usize::MAX));
        drafter.propose(0).unwrap();
        assert!(drafter.tree().num_nodes() > 1);
        assert!(!drafter.tree().token_ids()[1..].contains(&TokenId(1)));
        let logits = run_step(&drafter, &[TokenId(1)], 8);
        drafter.accept(&mut logits.clone()).unwrap();
        assert_eq!(drafter.draft.proposals().len(), drafter.tree().num_nodes());
    }
}

#[test]
fn an_answer_for_another_number_of_nodes_is_refused() {
    for shape in [TreeShape::Static, TreeShape::BestFirst] {
        let refused = careless_drafter(shape, Some(1)).propose(0);
        assert!(matches!(refused, Err(Error::WrongLength { got: 1, .. })));
    }
}

#[test]
fn a_draft_that_a_grammar_fails_on_leaves_nothing_to_accept() {
    let mut drafter = careless_drafter(TreeShape::BestFirst, Some(usize::MAX));
    drafter.propose(0).unwrap();
    drafter.constrain(Box::new(Careless { answers: None, words: [0b101] }));
    let failed = drafter.propose_draft(0, &[TokenId(1), TokenId(0)], &[0, 0]);
    assert!(matches!(failed, Err(Error::ConstraintFailed { .. })));
    let mut logits = run_step(&drafter, &[TokenId(1)], 8);
    assert_eq!(drafter.accept(&mut logits), Err(Error::NothingProposed));
}
