//! What is refused, and that nothing changes then.

use super::*;
use crate::draft::choose::expert_reads::ExpertReads;
use crate::draft::choose::tree_shape::dynamic_tree::DynamicTreeOptions;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::model::ModelDraft;
use crate::draft::sources::model::source::{ModelSource, SharedModelDraft};
use crate::ids::MAX_VOCAB_SIZE;

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
fn a_vocabulary_that_no_model_has_is_refused() {
    let of = |vocab_size| {
        let steps = StepChoice::new(vec![StepShape { rows: 1, attended: 8 }], None).unwrap();
        let (commit, end_tokens) = (CommitPolicy::Compact, vec![]);
        let shape = TreeShape::BestFirst;
        Drafter::new(vec![], DrafterOptions { steps, vocab_size, commit, end_tokens, shape })
    };
    assert!(of(MAX_VOCAB_SIZE).is_ok());
    for too_many in [MAX_VOCAB_SIZE + 1, usize::MAX] {
        assert!(matches!(of(too_many), Err(Error::BadOption { what: "vocab_size", .. })));
    }
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

/// Own sessions may give each width slots of its own.
#[test]
fn a_step_that_does_not_fit_is_never_proposed() {
    let shapes = [(1, 32), (8, 64)].map(|(rows, attended)| StepShape { rows, attended });
    for (costs, shape) in [
        (None, TreeShape::BestFirst),
        (Some([1.0, 100.0].map(StepCost::from).to_vec()), TreeShape::BestFirst),
        (None, TreeShape::Static),
    ] {
        let options = DrafterOptions {
            steps: StepChoice::new(shapes.to_vec(), costs).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: vec![],
            shape,
        };
        let mut drafter = Drafter::new(vec![], options).unwrap();
        drafter.begin(&[TokenId(0)], 50).unwrap();
        assert_eq!(drafter.propose(40), Ok(1), "{shape:?}");
        assert_eq!(drafter.propose_draft(40, &[TokenId(0)], &[0]), Ok(1));
        assert_eq!(drafter.propose(20), Ok(0));
    }
}

/// A source that is sure of an id that the target does not know, and less so of one that it does.
struct Foreign;

impl Propose for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, _token: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        let ids = [(VOCAB_SIZE as u32, 0.6), (1, 0.3), (u32::MAX, 0.1)];
        out.extend(ids.map(|(id, probability)| Successor {
            token: TokenId(id),
            probability,
            cursor,
        }));
    }

    fn is_model(&self) -> bool {
        true
    }
}

impl Learn for Foreign {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn ids_that_the_target_does_not_know_are_not_drafted() {
    let dynamic = TreeShape::Dynamic(DynamicTreeOptions::FIGURE_7);
    for shape in [TreeShape::BestFirst, TreeShape::Chain, TreeShape::Static, dynamic] {
        let steps = vec![StepShape { rows: 8, attended: ATTENDED }];
        let options = DrafterOptions {
            steps: StepChoice::new(steps, None).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Compact,
            end_tokens: vec![],
            shape,
        };
        let mut drafter = Drafter::new(vec![Box::new(Foreign)], options).unwrap();
        drafter.begin(&[TokenId(0)], 50).unwrap();
        drafter.propose(0).unwrap();
        let drafted = &drafter.tree().token_ids()[1..];
        assert!(!drafted.is_empty(), "{shape:?}");
        assert!(drafted.iter().all(|&token| token == TokenId(1)), "{shape:?}: {drafted:?}");
        let mut logits = [0.0, 1.0, 0.0].repeat(8);
        assert_eq!(drafter.accept(&mut logits).unwrap().accept_len, drafted_depth(&drafter));
    }
}

/// Edges from the root of the last tree to its deepest node.
fn drafted_depth(drafter: &Drafter) -> usize {
    drafter.tree().depths().iter().max().map_or(0, |&depth| depth as usize)
}

#[test]
fn a_source_of_another_vocabulary_is_refused_by_name_and_none_is_taken_in() {
    let model = SharedModelDraft::new(ModelDraft::new(50, vec![], 0.0).unwrap());
    let table = SharedTable::default();
    let sources = || -> Vec<Box<dyn DraftSource>> {
        vec![Box::new(TableSource::new(table.clone())), Box::new(ModelSource::new(model.clone()))]
    };
    let options = |vocab_size| DrafterOptions {
        steps: StepChoice::new(vec![StepShape { rows: 8, attended: ATTENDED }], None).unwrap(),
        vocab_size,
        commit: CommitPolicy::Compact,
        end_tokens: vec![],
        shape: TreeShape::BestFirst,
    };
    let refused = |source_name, got| Error::OtherVocabulary { source_name, got, expected: 8 };
    assert_eq!(Drafter::new(sources(), options(8)).err(), Some(refused("draft-model", 50)));
    assert_eq!(table.lock().vocab_size(), None, "a failed call changes nothing");
    assert!(Drafter::new(sources(), options(50)).is_ok());
    assert_eq!(table.lock().vocab_size(), Some(50));
    assert_eq!(Drafter::new(sources(), options(8)).err(), Some(refused("lookup-table", 50)));
}

#[test]
fn an_accept_that_fails_learns_nothing_of_experts() {
    let shapes = [1, 3, 8].map(|rows| StepShape { rows, attended: ATTENDED }).to_vec();
    let drafter = || {
        let costs = [1.0, 2.0, 3.0].map(StepCost::from).to_vec();
        let experts = ExpertReads::new(0.1, vec![2.0, 5.0, 9.0]).unwrap();
        let steps = StepChoice::new(shapes.clone(), Some(costs)).unwrap();
        let options = DrafterOptions {
            steps: steps.with_experts(experts).unwrap(),
            vocab_size: VOCAB_SIZE,
            commit: CommitPolicy::Canonical,
            end_tokens: vec![],
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(Scripted::sources(&[]), options).unwrap();
        drafter.begin(&[TokenId(1)], 20).unwrap();
        drafter.propose_draft(0, &[1, 2, 0].map(TokenId), &[0, 0, 1]).unwrap();
        drafter
    };
    let costs = |drafter: &Drafter| [0, 1, 2].map(|step| drafter.options.steps.cost(step, 0));
    let (mut failed, mut untouched) = (drafter(), drafter());
    let before = costs(&failed);
    let reads = Some(StepReads { first_row: 1.0, all: 2.0 });
    let rows = 3 * VOCAB_SIZE;
    failed.experts_read(reads);
    failed.accept(&mut vec![f32::NAN; rows]).unwrap_err();
    assert_eq!(costs(&failed), before);
    for drafter in [&mut failed, &mut untouched] {
        drafter.experts_read(reads);
        drafter.accept(&mut vec![1.0; rows]).unwrap();
    }
    assert_eq!(costs(&failed), costs(&untouched));
    assert_ne!(costs(&failed), before);
}
