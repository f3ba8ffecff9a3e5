//! Candidates first, how many later: the trees are those of `propose`, and so are the answers.

use super::*;

/// Two drafters alike, after the same steps: `accepted` nodes were taken in each.
fn twins(
    rules: &[u32],
    costs: Option<Vec<f32>>,
    prompt: &[TokenId],
    num_steps: usize,
) -> [(Drafter, Vec<TokenId>); 2] {
    [(); 2].map(|()| {
        let mut drafter = drafter(rules, CommitPolicy::Canonical, costs.clone(), 9);
        drafter.begin(prompt, 100).unwrap();
        let mut text = prompt.to_vec();
        for _ in 0..num_steps {
            let rows = [1, 3, 8][drafter.propose(text.len() - 1).unwrap()];
            let accepted = drafter.accept(&mut run_step(&drafter, &text, rows)).unwrap();
            text.extend(accepted.token_ids);
        }
        (drafter, text)
    })
}

fn prompts() -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..6)
}

proptest! {
    #[test]
    fn what_is_taken_is_what_would_have_been_proposed(
        rules in prop::collection::vec(0u32..5, 0..3),
        costs in prop::option::of((0.0f32..0.3, 0.0f32..0.3)),
        prompt in prompts(),
        num_steps in 0usize..4,
    ) {
        let costs = costs.map(|(some, more)| vec![1.0, 1.0 + some, 1.0 + some + more]);
        let [(mut one, text), (mut other, _)] = twins(&rules, costs, &prompt, num_steps);
        let step = one.propose(text.len() - 1).unwrap();
        let offer = other.offer(text.len() - 1).unwrap();
        prop_assert_eq!((offer.worths[0], offer.least), (1.0, 1));
        prop_assert!(offer.worths.is_sorted_by(|one, next| one >= next));
        let num_nodes = one.tree().num_nodes();
        let taken = other.take(num_nodes, None).unwrap();
        prop_assert_eq!(one.tree(), other.tree());
        prop_assert_eq!(one.node_origins(), other.node_origins());
        prop_assert!(taken <= step && [1, 3, 8][taken] >= num_nodes);
        let all = one.accept(&mut run_step(&one, &text, [1, 3, 8][step])).unwrap();
        let exact = other.accept(&mut run_step(&other, &text, num_nodes)).unwrap();
        prop_assert_eq!(all, exact);
        prop_assert_eq!(one.statistics(), other.statistics());
    }

    #[test]
    fn output_equals_plain_decoding_whatever_is_taken(
        rules in prop::collection::vec(0u32..5, 0..3),
        compact in any::<bool>(),
        costs in prop::option::of(Just(vec![1.0, 1.2, 1.9])),
        prompt in prompts(),
        end in 0..VOCAB_SIZE as u32 + 1,
        max_new_tokens in 1usize..40,
        taken in prop::collection::vec((0usize..9, prop::option::of(0.0f32..3.0)), 1..6),
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let mut drafter = drafter(&rules, commit, costs, end);
        let mut text = prompt.clone();
        drafter.begin(&prompt, max_new_tokens).unwrap();
        let mut taken = taken.iter().cycle();
        while drafter.finish_reason().is_none() {
            let offer = drafter.offer(text.len() - 1).unwrap();
            let (num_nodes, cost) = *taken.next().unwrap();
            let num_nodes = num_nodes.clamp(offer.least, offer.worths.len());
            drafter.take(num_nodes, cost).unwrap();
            prop_assert_eq!(drafter.tree().num_nodes(), num_nodes);
            text.extend(drafter.accept(&mut run_step(&drafter, &text, num_nodes)).unwrap().token_ids);
        }
        prop_assert_eq!(&text[prompt.len()..], plain(&prompt, TokenId(end), max_new_tokens));
    }
}

#[test]
fn a_method_with_a_shape_of_its_own_is_taken_whole() {
    let steps = [4, 40].map(|rows| StepShape { rows, attended: ATTENDED });
    let options = DrafterOptions {
        steps: StepChoice::new(steps.to_vec(), None).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit: CommitPolicy::Canonical,
        end_tokens: vec![],
        shape: TreeShape::Static,
    };
    let mut drafter = Drafter::new(Scripted::sources(&[1]), options).unwrap();
    drafter.begin(&[TokenId(1)], 20).unwrap();
    let offer = drafter.offer(0).unwrap();
    let (least, most) = (offer.least, offer.worths.len());
    assert_eq!((least, &offer.worths), (most, &vec![1.0; most]));
    assert!(most > 4);
    let refused = Error::NotOffered { num_nodes: 4, least, most };
    assert_eq!(drafter.take(4, None), Err(refused));
    assert_eq!(drafter.take(most, None), Ok(1));
    assert_eq!(drafter.tree().num_nodes(), most);
}

#[test]
fn only_what_was_offered_last_can_be_taken_once() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, None, 9);
    let nothing = Err(Error::NothingOffered);
    assert_eq!(drafter.offer(0), Err(Error::NoRequest));
    assert_eq!(drafter.take(1, None), Err(Error::NoRequest));
    drafter.begin(&[TokenId(2)], 20).unwrap();
    assert_eq!(drafter.take(1, None), nothing);
    let most = drafter.offer(0).unwrap().worths.len();
    for num_nodes in [0, most + 1, usize::MAX] {
        let refused = Error::NotOffered { num_nodes, least: 1, most };
        assert_eq!(drafter.take(num_nodes, None), Err(refused));
    }
    for cost in [-1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(drafter.take(1, Some(cost)), Err(Error::BadOption { .. })));
    }
    assert_eq!(drafter.accept(&mut [0.0; VOCAB_SIZE]), Err(Error::NothingProposed));
    assert!(matches!(drafter.offer(ATTENDED), Err(Error::StepOutOfRange { .. })));
    drafter.take(2, Some(0.0)).unwrap(); // what failed has changed nothing
    assert_eq!(drafter.take(2, None), nothing);
    let mut logits = run_step(&drafter, &[TokenId(2)], 3);
    assert!(matches!(drafter.accept(&mut logits), Err(Error::WrongLength { .. })));
    drafter.accept(&mut logits[..2 * VOCAB_SIZE]).unwrap();
    assert_eq!(drafter.take(1, None), nothing);
}

#[test]
fn a_proposal_replaces_an_offer_and_an_offer_a_proposal() {
    let mut drafter = drafter(&[1], CommitPolicy::Canonical, Some(vec![1.0, 1.2, 1.9]), 9);
    drafter.begin(&[TokenId(2)], 20).unwrap();
    let price = ModelPrice { a_token: 0.1, catching_up: 0.0 };
    let replaces: [fn(&mut Drafter, ModelPrice); 3] = [
        |drafter, _| assert!(drafter.propose(0).is_ok()),
        |drafter, _| assert!(drafter.propose_draft(0, &[TokenId(2)], &[0]).is_ok()),
        |drafter, price| assert!(drafter.model_pays(0, price).is_ok()),
    ];
    for replace in replaces {
        drafter.offer(0).unwrap();
        replace(&mut drafter, price);
        assert_eq!(drafter.take(1, None), Err(Error::NothingOffered));
    }
    drafter.propose(0).unwrap();
    drafter.offer(0).unwrap();
    let mut logits = run_step(&drafter, &[TokenId(2)], 8);
    assert_eq!(drafter.accept(&mut logits), Err(Error::NothingProposed));
}

#[test]
fn what_a_step_cost_is_what_its_request_was_told() {
    let mut drafter = drafter(&[1], CommitPolicy::Compact, Some(vec![1.0, 1.2, 1.9]), 9);
    let mut twin = drafter.options.steps.clone();
    drafter.begin(&[TokenId(2)], 100).unwrap();
    let mut text = vec![TokenId(2)];
    for (num_nodes, told, cost) in [(1, Some(0.3), 0.3), (4, Some(0.0), 0.0), (2, None, 1.2)] {
        drafter.offer(text.len() - 1).unwrap();
        drafter.take(num_nodes, told).unwrap();
        let accepted = drafter.accept(&mut run_step(&drafter, &text, num_nodes)).unwrap();
        twin.took(accepted.token_ids.len(), cost);
        text.extend(accepted.token_ids);
    }
    let rate = |steps: &StepChoice| -steps.gain(0.0, 1.0, 0);
    assert_eq!(rate(&drafter.options.steps), rate(&twin));
}
