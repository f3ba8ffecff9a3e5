//! What is refused, and that nothing changes then.

use super::*;

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
