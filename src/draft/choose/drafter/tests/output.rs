//! The tokens given out are those of plain decoding, whatever is drafted and however tokens are chosen.

use super::*;
use crate::tree::draft_tree::{DraftTree, strategies};

/// The step for the next tree: the one given, behind the text's last token, if it is to be used.
fn propose_or_give(
    drafter: &mut Drafter,
    text: &[TokenId],
    (tree, use_own): &(DraftTree, bool),
) -> usize {
    let past_len = text.len() - 1;
    if !use_own {
        return drafter.propose(past_len).unwrap();
    }
    let mut tokens = tree.token_ids().to_vec();
    tokens[0] = text[past_len];
    let parents: Vec<u32> = tree.parents().iter().map(|node| node.0).collect();
    drafter.propose_draft(past_len, &tokens, &parents).unwrap()
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
            let step = propose_or_give(&mut drafter, &text, own.next().unwrap());
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
        presence in prop::sample::select(vec![0.0f32, 0.6, -0.4]),
        frequency in prop::sample::select(vec![0.0f32, 0.3, -0.2]),
        bias in prop::option::of(-1.5f32..1.5),
        logprobs in prop::option::of(0usize..4),
    ) {
        let commit = if compact { CommitPolicy::Compact } else { CommitPolicy::Canonical };
        let sampling = Sampling::new(temperature, 0, 0.9, 5).unwrap();
        let penalties = Penalties { repetition: penalty, presence, frequency };
        let bias = LogitBias::new(&bias.map(|bias| (TokenId(1), bias)).into_iter().collect::<Vec<_>>());
        let sampling = sampling.with_penalties(penalties).unwrap().with_logit_bias(bias.unwrap());

        let (mut expected, mut expected_logprobs) = (prompt.clone(), Vec::new());
        while expected.len() < prompt.len() + max_new_tokens {
            let mut seen = SeenTokens::default();
            seen.restart(&prompt);
            seen.extend(&expected[prompt.len()..]);
            let index = (expected.len() - prompt.len()) as u64;
            let mut row = graded(&expected);
            let said = sampling.choose(&mut row, index, &mut seen).unwrap();
            expected.push(said);
            if let Some(num) = logprobs {
                let told = RowLogprobs::new(&row, num).unwrap();
                expected_logprobs.push(told.of(row[said.0 as usize]));
            }
            if said == TokenId(2) && !ignores_end {
                break;
            }
        }

        let mut drafter = drafter(&rules, commit, None, 2);
        drafter.set_sampling(Some(sampling)).unwrap();
        drafter.report_logprobs(logprobs).unwrap();
        drafter.ignore_end_tokens(ignores_end);
        drafter.begin(&prompt, max_new_tokens).unwrap();
        let (mut text, mut told) = (prompt.clone(), Vec::new());
        let mut own = own.iter().cycle();
        while drafter.finish_reason().is_none() {
            let step = propose_or_give(&mut drafter, &text, own.next().unwrap());
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
            prop_assert_eq!(drafter.logprobs().is_some(), logprobs.is_some());
            told.extend_from_slice(drafter.logprobs().unwrap_or_default());
        }
        prop_assert_eq!(text, expected);
        prop_assert_eq!(told, expected_logprobs);
    }
}

#[test]
fn side_branches_are_carried_into_the_next_first_path() {
    let prompt = [TokenId(0)];
    let (mut drafter, right) = with_right_side_branch(&prompt);
    let accepted = drafter.accept(&mut run_step(&drafter, &prompt, 8)).unwrap();
    assert_eq!(accepted.token_ids, right[..1]);
    assert_eq!((accepted.accept_len, accepted.num_drafted), (0, 1));
    assert_eq!(drafter.carried(), &right[1..]);
    drafter.propose(1).unwrap();
    assert_eq!(drafter.tree().token_ids(), right);
    assert_eq!(drafter.tree().first_path_len(), 3);
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
