//! Laws of the drafter: whatever is drafted, the tokens given out are those of plain decoding.

use super::ruled_target::{VOCAB_SIZE, plain, run_step, says};
use super::*;
use crate::draft::choose::origins::Origin;
use crate::draft::choose::scripted::Scripted;
use crate::draft::choose::step_choice::{StepCost, StepShape};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::reuse::DraftReuse;
use crate::ids::NodeId;
use crate::tree::draft_tree::strategies;
use proptest::prelude::*;
use std::sync::Arc;

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

proptest! {
    #[test]
    fn output_equals_plain_decoding(
        rules in prop::collection::vec(0u32..5, 0..3),
        compact in any::<bool>(),
        costs in prop::option::of(Just(vec![1.0, 1.2, 1.9])),
        prompt in prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..6),
        end in 0..VOCAB_SIZE as u32 + 1,
        max_new_tokens in 1usize..40,
        own in prop::collection::vec((strategies::tree(12), any::<bool>()), 1..6),
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let mut drafter = drafter(&rules, commit, costs, end);
        let mut text = prompt.clone();
        drafter.begin(&prompt, max_new_tokens).unwrap();
        let mut own = own.iter().cycle();
        while drafter.finish_reason().is_none() {
            let past_len = text.len() - 1;
            let (tree, use_own) = own.next().unwrap();
            let step = if *use_own {
                let mut tokens = tree.token_ids().to_vec();
                tokens[0] = text[past_len];
                let parents: Vec<u32> = tree.parents().iter().map(|node| node.0).collect();
                drafter.propose_draft(past_len, &tokens, &parents).unwrap()
            } else {
                drafter.propose(past_len).unwrap()
            };
            let rows = [1, 3, 8][step];
            let tree = drafter.tree();
            prop_assert!(tree.num_nodes() <= rows);
            let remaining = max_new_tokens - (text.len() - prompt.len());
            prop_assert!(tree.depths().iter().all(|&depth| (depth as usize) < remaining));
            let accepted = drafter.accept(&mut run_step(&drafter, &text, rows)).unwrap();
            text.extend(&accepted.token_ids);
        }
        prop_assert_eq!(&text[prompt.len()..], plain(&prompt, TokenId(end), max_new_tokens));
        let steps: usize = drafter.statistics().accept_histogram.iter().sum();
        prop_assert!(steps <= max_new_tokens);
    }
}

/// Scores after a text whose order a repetition penalty changes.
fn graded(text: &[TokenId]) -> [f32; VOCAB_SIZE] {
    let mixed = text.iter().rev().take(3).fold(7u32, |sum, token| sum * 31 + token.0 + 1);
    [0, 3, 6].map(|shift| (mixed.wrapping_mul(2_654_435_761) >> shift) as f32 % 5.0 - 1.5)
}

proptest! {
    #[test]
    fn penalised_and_sampled_output_equals_plain_decoding(
        rules in prop::collection::vec(0u32..5, 0..3),
        compact in any::<bool>(),
        prompt in prop::collection::vec((0..2u32).prop_map(TokenId), 1..6),
        ignores_end in any::<bool>(),
        max_new_tokens in 1usize..40,
        own in prop::collection::vec((strategies::tree(8), any::<bool>()), 1..6),
        temperature in prop::sample::select(vec![0.0f32, 1.3]),
        penalty in prop::sample::select(vec![1.0f32, 1.4, 0.7]),
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let sampling = Sampling::new(temperature, 0, 0.9, 5).unwrap();
        let sampling = sampling.with_repetition_penalty(penalty).unwrap();

        let mut expected = prompt.clone();
        while expected.len() < prompt.len() + max_new_tokens {
            let mut seen = SeenTokens::default();
            seen.extend(&expected);
            let index = (expected.len() - prompt.len()) as u64;
            let said = sampling.choose(&mut graded(&expected), index, &mut seen).unwrap();
            expected.push(said);
            if said == TokenId(2) && !ignores_end {
                break;
            }
        }

        let mut drafter = drafter(&rules, commit, None, 2);
        drafter.set_sampling(Some(sampling));
        drafter.ignore_end_tokens(ignores_end);
        drafter.begin(&prompt, max_new_tokens).unwrap();
        let mut text = prompt.clone();
        let mut own = own.iter().cycle();
        while drafter.finish_reason().is_none() {
            let (tree, use_own) = own.next().unwrap();
            let past_len = text.len() - 1;
            let step = if *use_own {
                let mut tokens = tree.token_ids().to_vec();
                tokens[0] = text[past_len];
                let parents: Vec<u32> = tree.parents().iter().map(|node| node.0).collect();
                drafter.propose_draft(past_len, &tokens, &parents).unwrap()
            } else {
                drafter.propose(past_len).unwrap()
            };
            let tree = drafter.tree();
            let mut texts = vec![text.clone()];
            for node in 1..tree.num_nodes() {
                let path = texts[tree.parents()[node].index()].iter().copied();
                texts.push(path.chain([tree.token_ids()[node]]).collect());
            }
            let mut logits: Vec<f32> = texts.iter().flat_map(|text| graded(text)).collect();
            logits.resize([1, 3, 8][step] * VOCAB_SIZE, 0.0);
            let before = logits.clone();
            text.extend(drafter.accept(&mut logits).unwrap().token_ids);
            prop_assert_eq!(logits, before);
        }
        prop_assert_eq!(text, expected);
    }
}

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
    let mut drafter = drafter(&[], CommitPolicy::Canonical, None, 9);
    let prompt = [TokenId(0)];
    drafter.begin(&prompt, 20).unwrap();
    let right = plain(&prompt, TokenId(9), 4);
    let wrong = TokenId((right[0].0 + 1) % 3);
    let tokens = [prompt[0], wrong, right[0], right[1], right[2]];
    drafter.propose_draft(0, &tokens, &[0, 0, 0, 2, 3]).unwrap();
    drafter.accept(&mut run_step(&drafter, &prompt, 8)).unwrap();
    assert_eq!(drafter.origins(), [Origin::Given]);
    let step = drafter.propose(1).unwrap();
    drafter.accept(&mut run_step(&drafter, &[prompt[0], right[0]], [1, 3, 8][step])).unwrap();
    let again = [Origin::Given, Origin::Given, Origin::Target, Origin::Target];
    assert_eq!(drafter.origins(), again);
    let names = drafter.origins().iter().map(|&origin| drafter.origin_name(origin));
    assert_eq!(names.collect::<Vec<_>>(), ["given", "given", "target", "target"]);
}

/// Proposes one token everywhere, and is sure of it.
struct Sure(TokenId);

impl Propose for Sure {
    fn name(&self) -> &'static str {
        "sure"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        out.push(Successor { token: self.0, probability: 1.0, cursor });
    }
}

impl Learn for Sure {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_wrong_source_is_soon_not_drafted_from_and_is_again_when_it_is_right() {
    let steps = [1, 3, 8].map(|rows| StepShape { rows, attended: 4000 });
    let costs = [1.0, 1.2, 1.9].map(StepCost::from);
    let options = DrafterOptions {
        steps: StepChoice::new(steps.to_vec(), Some(costs.to_vec())).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit: CommitPolicy::Canonical,
        end_tokens: vec![],
        shape: TreeShape::BestFirst,
    };
    let mut drafter = Drafter::new(vec![Box::new(Sure(TokenId(1)))], options).unwrap();
    drafter.begin(&[TokenId(0)], 3000).unwrap();
    let mut past_len = 0;
    let mut step_that_says = |token: u32| {
        let step = drafter.propose(past_len).unwrap();
        let answer = [TokenId(token); 10];
        past_len += drafter.accept_recorded(&answer).unwrap().token_ids.len();
        step
    };
    let wrong: Vec<usize> = (0..100).map(|_| step_that_says(2)).collect();
    assert!(wrong[20..].iter().all(|&step| step == 0), "{wrong:?}");
    let right: Vec<usize> = (0..200).map(|_| step_that_says(1)).collect();
    assert!(right[150..].iter().all(|&step| step == 2), "{right:?}");
}

#[test]
fn side_branches_are_carried_into_the_next_first_path() {
    let mut drafter = drafter(&[], CommitPolicy::Canonical, None, 9);
    let prompt = [TokenId(0)];
    drafter.begin(&prompt, 20).unwrap();
    let right = plain(&prompt, TokenId(9), 4);
    let wrong = TokenId((right[0].0 + 1) % 3);
    let tokens = [prompt[0], wrong, right[0], right[1], right[2]];
    drafter.propose_draft(0, &tokens, &[0, 0, 0, 2, 3]).unwrap();
    let accepted = drafter.accept(&mut run_step(&drafter, &prompt, 8)).unwrap();
    assert_eq!(accepted.token_ids, right[..1]);
    assert_eq!((accepted.accept_len, accepted.num_drafted), (0, 1));
    assert_eq!(drafter.carried(), &right[1..]);
    drafter.propose(1).unwrap();
    assert_eq!(drafter.tree().token_ids(), right);
    assert_eq!(drafter.tree().first_path_len(), 3);
}

#[test]
fn a_failed_accept_changes_nothing() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, None, 9);
    let prompt = [TokenId(2), TokenId(0)];
    assert_eq!(drafter.propose(1), Err(Error::NoRequest));
    drafter.begin(&prompt, 20).unwrap();
    assert_eq!(drafter.accept(&mut []), Err(Error::NothingProposed));
    drafter.propose(1).unwrap();
    let mut logits = run_step(&drafter, &prompt, 8);
    assert!(matches!(drafter.accept(&mut logits[1..]), Err(Error::WrongLength { .. })));
    let score = std::mem::replace(&mut logits[1], f32::NAN);
    assert_eq!(drafter.accept(&mut logits), Err(Error::NonFiniteLogits { row: 0 }));
    logits[1] = score;
    assert_eq!(drafter.accept(&mut logits).unwrap().token_ids[0], says(&prompt));
    assert_eq!(drafter.accept(&mut logits), Err(Error::NothingProposed));
}

#[test]
fn a_recorded_answer_is_said_to_its_end() {
    let mut drafter = drafter(&[1, 2], CommitPolicy::Canonical, None, 9);
    let prompt = [TokenId(2), TokenId(0)];
    let answer = plain(&prompt, TokenId(9), 15);
    drafter.begin(&prompt, answer.len()).unwrap();
    assert_eq!(drafter.accept_recorded(&answer), Err(Error::NothingProposed));
    let mut said = Vec::new();
    while drafter.finish_reason().is_none() {
        drafter.propose(1 + said.len()).unwrap();
        let short = drafter.accept_recorded(&[]).unwrap_err();
        assert!(matches!(short, Error::WrongLength { got: 0, .. }));
        let rest = &answer[said.len()..];
        said.extend(drafter.accept_recorded(rest).unwrap().token_ids);
    }
    assert_eq!(said, answer);
}

#[test]
fn an_unknown_token_in_a_recorded_answer_is_refused_before_anything_is_learned() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, None, 9);
    drafter.begin(&[TokenId(2), TokenId(0)], 20).unwrap();
    drafter.propose(1).unwrap();
    let unknown = TokenId(50_000_000);
    let refused = Error::TokenOutOfRange { token: unknown, vocab_size: VOCAB_SIZE };
    let known = plain(&[TokenId(2), TokenId(0)], TokenId(9), 20);
    for at in 0..2 {
        let mut answer = known.clone();
        answer[at] = unknown;
        assert_eq!(drafter.accept_recorded(&answer), Err(refused.clone()));
    }
    assert!(!drafter.accept_recorded(&known).unwrap().token_ids.is_empty());
}

#[test]
fn a_right_prediction_is_said_in_few_steps_and_a_wrong_one_changes_nothing() {
    let mut drafter = drafter(&[], CommitPolicy::Canonical, None, 9);
    let prompt = [TokenId(2), TokenId(0)];
    let answer = plain(&prompt, TokenId(9), 16);
    let wrong: Vec<TokenId> = answer.iter().map(|token| TokenId((token.0 + 1) % 3)).collect();
    let unknown = TokenId(VOCAB_SIZE as u32);
    let refused = drafter.begin_predicted(&prompt, 16, &[unknown]);
    assert!(matches!(refused, Err(Error::TokenOutOfRange { .. })));
    for (prediction, most_steps) in [(&answer, 4), (&wrong, 16), (&Vec::new(), 16)] {
        drafter.begin_predicted(&prompt, 16, prediction).unwrap();
        let mut said = Vec::new();
        let mut num_steps = 0;
        while drafter.finish_reason().is_none() {
            drafter.propose(1 + said.len()).unwrap();
            said.extend(drafter.accept_recorded(&answer[said.len()..]).unwrap().token_ids);
            num_steps += 1;
        }
        assert_eq!(said, answer);
        assert!(num_steps <= most_steps, "{num_steps} steps");
    }
    assert_eq!(drafter.source_names().collect::<Vec<_>>(), ["prediction"]);
}

#[test]
fn unusable_requests_are_refused() {
    let mut drafter = drafter(&[], CommitPolicy::Compact, None, 9);
    let unknown = TokenId(VOCAB_SIZE as u32);
    let out_of_range = Error::TokenOutOfRange { token: unknown, vocab_size: VOCAB_SIZE };
    assert_eq!(drafter.begin(&[], 1), Err(Error::EmptyPrompt));
    assert_eq!(drafter.begin(&[unknown], 1), Err(out_of_range.clone()));
    assert!(matches!(drafter.begin(&[TokenId(0)], 0), Err(Error::BadOption { .. })));
    drafter.begin(&[TokenId(0)], 5).unwrap();
    assert_eq!(drafter.propose_draft(0, &[TokenId(0), unknown], &[0, 0]), Err(out_of_range));
    let wrong_root = Error::WrongRoot { got: TokenId(1), expected: TokenId(0) };
    assert_eq!(drafter.propose_draft(0, &[TokenId(1)], &[0]), Err(wrong_root));
    let full = Error::StepOutOfRange { past_len: ATTENDED, rows: 1, attended: ATTENDED };
    assert_eq!(drafter.propose(ATTENDED), Err(full));
    assert_eq!(drafter.propose(ATTENDED - 1), Ok(0));
}

#[test]
fn a_proposal_beyond_all_lengths_is_refused_and_nothing_waits() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, None, 9);
    drafter.begin(&[TokenId(1)], 4).unwrap();
    for past_len in [usize::MAX, usize::MAX - 7, ATTENDED] {
        let refused = drafter.propose(past_len).unwrap_err();
        assert!(matches!(refused, Error::StepOutOfRange { .. }));
        assert_eq!(drafter.accept(&mut [0.0; VOCAB_SIZE]), Err(Error::NothingProposed));
    }
    drafter.propose(0).unwrap();
    drafter.withdraw();
    assert_eq!(drafter.accept(&mut [0.0; VOCAB_SIZE]), Err(Error::NothingProposed));
}

#[test]
fn what_is_no_cost_of_a_draft_model_is_refused() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, Some(vec![1.0, 1.2, 1.9]), 9);
    drafter.begin(&[TokenId(1)], 4).unwrap();
    for cost in [f32::NAN, f32::INFINITY, -1.0] {
        assert!(matches!(drafter.model_ran(cost, 0.0), Err(Error::BadOption { .. })));
        assert!(matches!(drafter.model_ran(0.0, cost), Err(Error::BadOption { .. })));
        let price = ModelPrice { a_token: 0.1, catching_up: cost };
        assert!(matches!(drafter.model_pays(0, price), Err(Error::BadOption { .. })));
    }
    drafter.model_ran(0.0, 0.0).unwrap();
}

/// Asks what the target says after every node.
#[derive(Clone, Default)]
struct Listener(Arc<std::sync::Mutex<Vec<Option<TokenId>>>>);

impl Propose for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }

    fn cursor(&self) -> Option<Cursor> {
        None
    }

    fn advance(&self, _cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        None
    }

    fn successors(&self, _cursor: Cursor, _out: &mut Vec<Successor>) {}
}

impl Learn for Listener {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn verified(&mut self, seen: &mut Verification<'_>) {
        let nodes = (0..seen.tree.num_nodes() as u32).map(NodeId);
        *self.0.lock().unwrap() = nodes.map(|node| (seen.says)(node)).collect();
    }

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

proptest! {
    #[test]
    fn only_rows_on_the_accepted_path_are_drawn_from(
        tree in strategies::tree(8),
        scores in prop::collection::vec(-2.0f32..2.0, 8 * VOCAB_SIZE),
        seed in any::<u64>(),
        top_p in prop::sample::select(vec![1.0f32, 0.7]),
    ) {
        let listener = Listener::default();
        let sources: Vec<Box<dyn DraftSource>> =
            vec![Box::new(listener.clone()), Box::new(DraftReuse::default())];
        let step = StepShape { rows: 8, attended: ATTENDED };
        let options = DrafterOptions {
            steps: StepChoice::new(vec![step], None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Compact,
            end_tokens: vec![],
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(sources, options).unwrap();
        let sampling = Sampling::new(1.0, 0, top_p, seed).unwrap();
        drafter.set_sampling(Some(sampling));
        drafter.begin(&tree.token_ids()[..1], 100).unwrap();
        let parents: Vec<u32> = tree.parents().iter().map(|node| node.0).collect();
        drafter.propose_draft(0, tree.token_ids(), &parents).unwrap();
        let before = crate::sampling::tests::num_draws();
        let accepted = drafter.accept(&mut scores.clone()).unwrap();
        let num_draws = crate::sampling::tests::num_draws() - before;
        prop_assert_eq!(num_draws, accepted.token_ids.len());

        for (node, said) in listener.0.lock().unwrap().iter().enumerate() {
            let row = &scores[node * VOCAB_SIZE..][..VOCAB_SIZE];
            let depth = accepted.rows.iter().position(|row| row.index() == node);
            let expected = match depth {
                Some(depth) => Some(accepted.token_ids[depth]),
                None => crate::logits::argmax(row),
            };
            prop_assert_eq!(*said, expected);
        }
    }
}

/// Proposes the same five tokens everywhere, and counts how often it is asked.
#[derive(Clone, Default)]
struct Unsure(Arc<std::sync::atomic::AtomicUsize>);

impl Propose for Unsure {
    fn name(&self) -> &'static str {
        "unsure"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        out.extend((0..4).map(|token| Successor {
            token: TokenId(token),
            probability: 0.24,
            cursor,
        }));
    }
}

impl Learn for Unsure {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn what_is_asked_follows_what_is_drafted_and_not_the_widest_step() {
    let asked = |steps: &[(usize, f32)]| {
        let source = Unsure::default();
        let shapes = steps.iter().map(|&(rows, _)| StepShape { rows, attended: 8_192 }).collect();
        let costs = steps.iter().map(|&(_, cost)| StepCost::from(cost)).collect();
        let options = DrafterOptions {
            steps: StepChoice::new(shapes, Some(costs)).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: vec![],
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(vec![Box::new(source.clone())], options).unwrap();
        drafter.begin(&[TokenId(1)], 10_000).unwrap();
        let step = drafter.propose(0).unwrap();
        (steps[step].0, source.0.load(std::sync::atomic::Ordering::Relaxed))
    };
    let (rows, without) = asked(&[(1, 1.0), (4, 1.2), (32, 3.0)]);
    assert_eq!(rows, 4);
    assert_eq!(asked(&[(1, 1.0), (4, 1.2), (32, 3.0), (4_096, 900.0)]), (4, without));
    // Where so many rows pay they are drafted.
    assert_eq!(asked(&[(1, 1.0), (4, 1.2), (32, 3.0), (64, 1.3)]).0, 64);
}

/// The session owns the buffer of its logits: its next step writes the same memory.
#[test]
fn logits_that_are_written_again_after_accept_have_taught_what_they_were() {
    const ROWS: usize = 16;
    const VOCAB_SIZE: usize = 1 << 16; // long enough to be read on several threads
    let steps = StepChoice::new(vec![StepShape { rows: ROWS, attended: ATTENDED }], None).unwrap();
    let (commit, end_tokens, shape) = (CommitPolicy::Canonical, vec![], TreeShape::BestFirst);
    let options = DrafterOptions { steps, vocab_size: VOCAB_SIZE, commit, end_tokens, shape };
    let table = SharedTable::default();
    let source = Box::new(TableSource::new(table.clone()));
    let mut drafter = Drafter::new(vec![source], options).unwrap();
    drafter.begin(&[TokenId(1)], 40).unwrap();
    let tokens: Vec<_> = (1..=ROWS as u32).map(TokenId).collect();
    let parents: Vec<_> = (0..ROWS as u32).map(|node| node.saturating_sub(1)).collect();
    drafter.propose_draft(0, &tokens, &parents).unwrap();
    let mut logits = vec![0.0; ROWS * VOCAB_SIZE];
    logits.chunks_mut(VOCAB_SIZE).for_each(|row| row[777] = 9.0);
    drafter.accept(&mut logits).unwrap();
    drafter.propose_draft(1, &[TokenId(777)], &[0]).unwrap();
    logits.fill(0.0);
    logits.chunks_mut(VOCAB_SIZE).for_each(|row| row[888] = 9.0);
    drop(drafter);
    let learned = tokens.iter().map(|&context| table.lock().row(context).next().unwrap().0);
    assert!(learned.eq([TokenId(777); ROWS]));
}
