//! Laws of a draft model's tree: the session's cache holds what the tree says it holds, and the tree
//! is what the model would say, whatever the target does.

use super::branches::tests::likely;
use super::*;
use proptest::prelude::*;

/// A draft session: slots that hold the path of tokens that each row saw.
#[derive(Default)]
struct FakeSession {
    slots: Vec<Vec<TokenId>>,
}

impl FakeSession {
    fn realign(&mut self, realignment: &Realignment) {
        let Realignment { base, rows } = realignment;
        let kept: Vec<_> = rows.iter().map(|row| self.slots[base + row.index()].clone()).collect();
        self.slots.truncate(*base);
        self.slots.extend(kept);
    }

    /// Reads the nodes of a step; every row sees what its slots hold.
    fn read(&mut self, step: &ReadStep<'_>) {
        assert_eq!(self.slots.len(), step.base + step.first, "rows are appended");
        for index in step.first..step.tree.num_nodes() {
            let parent = step.tree.parents()[index].index();
            let seen = match index {
                0 => step.base.checked_sub(1).map_or(vec![], |last| self.slots[last].clone()),
                _ => self.slots[step.base + parent].clone(),
            };
            let token = step.tree.token_ids()[index];
            self.slots.push([seen, vec![token]].concat());
        }
    }
}

fn draft_steps(draft: &mut ModelDraft, session: &mut FakeSession, rule: u32, max_tokens: usize) {
    if let Some(realignment) = draft.take_realignment() {
        session.realign(&realignment);
    }
    read_on(draft, session, rule, (max_tokens, usize::MAX), None);
}

/// Runs at most so many provisional steps; without a number those that are none. Returns how many.
fn read_on(
    draft: &mut ModelDraft,
    session: &mut FakeSession,
    rule: u32,
    limits: (usize, usize),
    provisional: Option<usize>,
) -> usize {
    let mut num_runs = 0;
    while num_runs < provisional.unwrap_or(usize::MAX) {
        let Some(step) = draft.next_step(limits, provisional.is_some()) else { break };
        session.read(&step);
        let last = step.tree.token_ids()[step.tree.num_nodes() - 1];
        draft.read(&likely(rule, last));
        num_runs += 1;
    }
    num_runs
}

/// The tokens down to each drafted one, depth first.
fn drafted_paths(draft: &ModelDraft) -> Vec<Vec<TokenId>> {
    let Some(branches) = &draft.branches else { return vec![] };
    let (mut paths, mut waiting) = (vec![], vec![(branches.root(), vec![])]);
    while let Some((node, path)) = waiting.pop() {
        for (token, _, child) in branches.drafted_after(node) {
            let path = [&path[..], &[token]].concat();
            paths.push(path.clone());
            waiting.extend(child.map(|child| (child, path)));
        }
    }
    paths
}

fn edgellm_shape() -> impl Strategy<Value = ModelShape> {
    let growth = prop_oneof![
        Just(Growth::Chain),
        Just(Growth::Paced { whole_lengths: false }),
        Just(Growth::Paced { whole_lengths: true }),
    ];
    let stop = prop_oneof![Just(Stop::Count), Just(Stop::TreeConfidence)];
    (growth, stop, prop_oneof![Just(0.01f32), Just(0.3)]).prop_map(
        |(growth, stop, first_threshold)| ModelShape {
            growth,
            stop,
            first_threshold,
            ..ModelShape::EDGELLM
        },
    )
}

proptest! {
    /// What is read while the target verifies saves runs, and changes nothing that it verifies.
    #[test]
    fn trees_are_those_of_a_model_that_waits(
        rule in 0u32..15,
        shape in edgellm_shape(),
        max_tokens in 1usize..12,
        steps in prop::collection::vec(
            (0usize..16, 0usize..99, 0usize..9, (0u32..5).prop_map(TokenId), any::<bool>(), 0usize..9),
            1..16),
    ) {
        let model = ModelDraft::new(5, vec![TokenId(3)], 0.0).unwrap().shaped(shape);
        let (mut waiting, mut goes_on) = (model.clone(), model);
        let mut sessions = [FakeSession::default(), FakeSession::default()];
        let (mut runs, mut num_drafted) = ([0, 0], 0);
        for draft in [&mut waiting, &mut goes_on] {
            draft.begin(&tokens([1, 2, 0]));
        }
        for (num_provisional, leaf, num_agreeing, other, carries, max_depth) in steps {
            for (index, draft) in [&mut waiting, &mut goes_on].into_iter().enumerate() {
                if let Some(realignment) = draft.take_realignment() {
                    sessions[index].realign(&realignment);
                }
                let limits = (max_tokens, max_depth);
                runs[index] += read_on(draft, &mut sessions[index], rule, limits, None);
            }
            let paths = drafted_paths(&waiting);
            prop_assert_eq!(&paths, &drafted_paths(&goes_on));
            prop_assert_eq!(waiting.threshold(), goes_on.threshold());
            prop_assert_eq!((waiting.num_drafted(), goes_on.num_drafted()), (paths.len(), paths.len()));
            prop_assert!(paths.len() <= max_tokens);
            prop_assert!(paths.iter().all(|path| path.len() <= max_depth));
            num_drafted += paths.len();
            let limits = (2 * max_tokens, max_depth + 3);
            read_on(&mut goes_on, &mut sessions[1], rule, limits, Some(num_provisional));
            prop_assert_eq!(&paths, &drafted_paths(&goes_on));
            // The target goes along one of the paths, then says a token of its own.
            let path = paths.get(leaf % paths.len().max(1)).cloned().unwrap_or_default();
            let mut said = path[..num_agreeing.min(path.len())].to_vec();
            said.push(other);
            let num_given = if carries { said.len().div_ceil(2) } else { said.len() };
            for draft in [&mut waiting, &mut goes_on] {
                draft.extend(&said[..num_given], &said[num_given..]);
            }
        }
        prop_assert!(runs[1] <= runs[0] && runs[0] <= num_drafted.max(1), "{runs:?}, {num_drafted}");
    }
}

proptest! {
    #[test]
    fn the_cache_is_the_context_and_the_tree(
        rule in 0u32..15,
        prompt in prop::collection::vec((0u32..5).prop_map(TokenId), 1..8),
        steps in prop::collection::vec(
            (any::<bool>(), 1usize..9, 0usize..5, prop::collection::vec((0u32..5).prop_map(TokenId), 1..4)),
            1..12),
    ) {
        let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap();
        let mut session = FakeSession::default();
        draft.begin(&prompt);
        let mut text = prompt;
        let mut carried: Vec<TokenId> = vec![];
        for (runs, max_tokens, num_agreeing, other) in steps {
            if runs {
                draft_steps(&mut draft, &mut session, rule, max_tokens);
                let slots = session.slots.iter().map(|path| path[path.len() - 1]);
                let branches = draft.branches.as_ref().unwrap();
                let context = [text.clone(), carried.clone()].concat();
                let tree = branches.tree().token_ids()[branches.root().index() + 1..draft.num_read].iter();
                prop_assert!(slots.eq(context.iter().chain(tree).copied()));
                // Every certain token saw all before it.
                for (index, path) in session.slots[..context.len()].iter().enumerate() {
                    prop_assert_eq!(path, &context[..=index]);
                }
            }
            // The target agrees with the model for a while, then says something else.
            let mut said = carried.clone();
            for _ in 0..num_agreeing {
                let last = *said.last().unwrap_or(&text[text.len() - 1]);
                said.push(likely(rule, last).token_ids[0]);
            }
            said.extend(other);
            let num_given = said.len().div_ceil(2);
            draft.extend(&said[..num_given], &said[num_given..]);
            text.extend(&said[..num_given]);
            carried = said[num_given..].to_vec();
            prop_assert!(draft.threshold() > 0.0 && draft.threshold() <= 1.0);
        }
    }
}

fn tokens<const N: usize>(ids: [u32; N]) -> Vec<TokenId> {
    ids.map(TokenId).to_vec()
}

#[test]
fn what_was_read_below_the_last_token_given_out_stays() {
    let (mut draft, mut session) =
        (ModelDraft::new(5, vec![], 0.0).unwrap(), FakeSession::default());
    draft.begin(&tokens([1, 2]));
    draft_steps(&mut draft, &mut session, 0, 6);
    let first = likely(0, TokenId(2)).token_ids[0];
    let num_read = session.slots.len();
    draft.extend(&[first], &[]);
    let realignment = draft.take_realignment().unwrap();
    session.realign(&realignment);
    assert!(session.slots.len() > 3 && session.slots.len() < num_read);
    assert!(draft.unread().is_empty());
}

#[test]
fn a_target_that_takes_back_what_it_said_is_followed() {
    let (mut draft, mut session) =
        (ModelDraft::new(5, vec![], 0.0).unwrap(), FakeSession::default());
    draft.begin(&tokens([1, 2]));
    draft.extend(&tokens([3]), &tokens([4, 0]));
    draft_steps(&mut draft, &mut session, 0, 4);
    draft.extend(&tokens([4]), &tokens([1]));
    draft_steps(&mut draft, &mut session, 0, 4);
    let certain: Vec<_> = session.slots[..5].iter().map(|path| path[path.len() - 1]).collect();
    assert_eq!(certain, tokens([1, 2, 3, 4, 1]));
}

const CHAIN: ModelShape = ModelShape { growth: Growth::Chain, ..ModelShape::EDGELLM };

fn chain() -> ModelDraft {
    ModelDraft::new(5, vec![], 0.0).unwrap().shaped(CHAIN)
}

#[test]
fn skipped_tokens_are_never_all() {
    let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap();
    draft.begin(&tokens([1, 2, 3]));
    draft.take_realignment();
    draft.skip(9);
    assert_eq!(draft.unread(), tokens([3]));
}

#[test]
fn the_threshold_rises_by_the_share_of_the_whole_branch_that_was_wrong() {
    let mut draft = chain();
    draft.begin(&tokens([0]));
    draft_steps(&mut draft, &mut FakeSession::default(), 1, 6);
    let branches = draft.branches.clone().unwrap();
    let mut foretold = vec![];
    let mut last = TokenId(0);
    for _ in 0..6 {
        last = likely(1, last).token_ids[0];
        foretold.push(last);
    }
    assert_eq!(branches.best_match(&foretold), Some((6, 6)));
    let (before, confidence) = (draft.threshold(), branches.tree_confidence());
    let other = TokenId((foretold[3].0 + 1) % 5);
    draft.extend(&[&foretold[..3], &[other]].concat(), &[]);
    let expected = before / confidence.powf(0.5);
    assert!((draft.threshold() - expected).abs() < 1e-5, "{expected}");
}

#[test]
fn what_was_known_before_moves_no_threshold() {
    let (mut draft, mut session) =
        (ModelDraft::new(5, vec![], 0.0).unwrap(), FakeSession::default());
    draft.begin(&tokens([1]));
    draft.extend(&tokens([3]), &tokens([4, 0]));
    draft_steps(&mut draft, &mut session, 0, 4);
    let before = draft.threshold();
    draft.extend(&tokens([4, 0]), &[]);
    assert_eq!(draft.threshold(), before);
}

#[test]
fn where_all_is_verified_the_whole_branch_counts() {
    let mut draft = chain();
    draft.begin(&tokens([0]));
    draft_steps(&mut draft, &mut FakeSession::default(), 1, 2);
    let (before, confidence) =
        (draft.threshold(), draft.branches.as_ref().unwrap().tree_confidence());
    draft.extend(&[likely(1, TokenId(0)).token_ids[0]], &[]);
    assert_eq!(draft.threshold(), before / confidence.powf(0.5));
}

#[test]
fn a_draft_by_count_has_as_many_tokens() {
    for growth in [Growth::Chain, Growth::Paced { whole_lengths: false }] {
        let shape = ModelShape { growth, stop: Stop::Count, ..ModelShape::EDGELLM };
        let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap().shaped(shape);
        let mut session = FakeSession::default();
        draft.begin(&tokens([0]));
        for num_tokens in 1..30 {
            draft_steps(&mut draft, &mut session, 1, num_tokens);
            assert_eq!(draft.num_drafted(), num_tokens);
        }
        draft.extend(&tokens([9]), &[]);
        assert_eq!(draft.threshold(), shape.first_threshold);
    }
}

#[test]
fn an_answer_that_was_foretold_as_far_as_it_goes_is_all_right() {
    let shape = ModelShape { drafted_only: false, ..CHAIN };
    let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap().shaped(shape);
    draft.begin(&tokens([0]));
    draft_steps(&mut draft, &mut FakeSession::default(), 1, 6);
    let before = draft.threshold();
    draft.extend(&[likely(1, TokenId(0)).token_ids[0]], &[]);
    assert_eq!(draft.threshold(), before / 2.0);
}

#[test]
fn a_model_that_never_pays_has_nothing_to_do() {
    let mut draft = ModelDraft::new(5, vec![], 1.0).unwrap();
    draft.begin(&tokens([1, 2, 3]));
    assert_eq!(draft.take_realignment(), None);
    assert!(draft.unread().is_empty());
    assert!(draft.next_step((9, 9), false).is_none());
}

#[test]
fn a_model_that_is_not_run_copies_nothing_of_the_context() {
    let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap();
    draft.begin(&tokens([0, 1, 2, 3, 4]).repeat(200));
    draft.context.reserve(100);
    let context = draft.context.as_ptr();
    for step in 0..20 {
        let (given, carried) = (tokens([step % 5, 1]), tokens([step % 3]));
        draft.extend(&given, &carried);
        assert_eq!(draft.context.as_ptr(), context, "step {step}");
        assert!(draft.context.ends_with(&[given, carried].concat()));
    }
    assert_eq!(draft.unread().len(), draft.context.len());
}

#[test]
fn what_is_read_while_the_target_verifies_is_not_judged() {
    let (mut judged, mut session) = (chain(), FakeSession::default());
    judged.begin(&tokens([0]));
    draft_steps(&mut judged, &mut session, 1, 6);
    let mut provisional = judged.clone();
    while let Some(step) = provisional.next_step((12, usize::MAX), true) {
        let last = step.tree.token_ids()[step.tree.num_nodes() - 1];
        provisional.read(&likely(1, last));
    }
    assert!(provisional.num_read > judged.num_read);
    let said = [likely(1, TokenId(0)).token_ids[0], TokenId(4), TokenId(4)];
    judged.extend(&said, &[]);
    provisional.extend(&said, &[]);
    assert_eq!(provisional.threshold(), judged.threshold());
}

#[test]
fn a_target_that_verifies_lets_drafting_go_on_below_the_threshold() {
    let (mut draft, mut session) = (chain(), FakeSession::default());
    draft.begin(&tokens([0]));
    draft_steps(&mut draft, &mut session, 1, 100);
    assert!(draft.next_step((100, usize::MAX), false).is_none(), "T_c has fallen below alpha");
    assert!(draft.next_step((100, usize::MAX), true).is_some());
}

#[test]
fn a_fixed_threshold_stays() {
    let shape = ModelShape { stop: Stop::Fixed, ..ModelShape::EDGELLM };
    let mut draft = ModelDraft::new(5, vec![], 0.0).unwrap().shaped(shape);
    draft.begin(&tokens([0]));
    draft_steps(&mut draft, &mut FakeSession::default(), 1, 6);
    let before = draft.threshold();
    draft.extend(&tokens([9, 9]), &[]);
    assert_eq!(draft.threshold(), before);
}
