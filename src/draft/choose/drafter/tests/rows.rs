//! Which rows of the logits are read, and when.

use super::*;
use crate::constraint::{Allowed, Constraint};
use crate::draft::source::{Cursor, DraftSource, Learn, Propose, Successor};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::calibration::Calibration;
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::reuse::DraftReuse;
use crate::logits::top_k::top_k_rows;
use crate::tree::draft_tree::strategies;
use std::sync::Arc;

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

    fn successors_above(&self, _: Cursor, _: f32, _: &mut Vec<Successor>) {}
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
        drafter.set_sampling(Some(sampling)).unwrap();
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

/// Asks nothing, and allows everything; the answer is complete with so many tokens.
struct Until(usize, usize);

impl Constraint for Until {
    fn forced(&mut self, _: &[TokenId]) -> Result<Vec<TokenId>> {
        Ok(vec![])
    }

    fn possible(&mut self, tokens: &[TokenId], _: &[u32]) -> Result<Vec<bool>> {
        Ok(vec![true; tokens.len()])
    }

    fn after(&mut self, path: &[TokenId]) -> Result<Allowed<'_>> {
        Ok(Allowed { words: &[0b111], is_complete: self.0 + path.len() >= self.1 })
    }

    fn extend(&mut self, tokens: &[TokenId]) -> Result<bool> {
        self.0 += tokens.len();
        Ok(self.0 >= self.1)
    }
}

/// What ends an answer: a token, or a grammar that is complete with it.
fn ended_by(has_grammar: bool, commit: CommitPolicy, sampling: Option<Sampling>) -> Drafter {
    let mut drafter = drafter(&[], commit, None, if has_grammar { 9 } else { 2 });
    drafter.set_sampling(sampling).unwrap();
    drafter.begin(&[TokenId(2)], 20).unwrap(); // a prompt may end with such a token
    if has_grammar {
        drafter.constrain(Box::new(Until(0, 2)));
    }
    drafter
}

/// Plays a target whose answer is 1 and 2, and whose rows behind it hold what the session's buffer held
/// before. Returns the answer, and the number of draws.
fn answer_of(drafter: &mut Drafter, tokens: &[TokenId], parents: &[u32]) -> (Vec<TokenId>, usize) {
    let before = crate::sampling::tests::num_draws();
    let (mut said, mut step) = (vec![], drafter.propose_draft(0, tokens, parents).unwrap());
    loop {
        let mut logits = vec![f32::NAN; [1, 3, 8][step] * VOCAB_SIZE];
        for (row, &depth) in logits.chunks_mut(VOCAB_SIZE).zip(drafter.tree().depths()) {
            if said.len() + (depth as usize) < 2 {
                row.fill(-60.0);
                row[said.len() + depth as usize + 1] = 60.0;
            }
        }
        said.extend(drafter.accept(&mut logits).unwrap().token_ids);
        if drafter.finish_reason().is_some() {
            return (said, crate::sampling::tests::num_draws() - before);
        }
        step = drafter.propose(said.len()).unwrap();
    }
}

#[test]
fn no_row_behind_the_answers_end_is_read() {
    let penalties = Penalties { repetition: 1.1, presence: 0.1, frequency: 0.1 };
    let drawn = Sampling::new(0.5, 0, 0.9, 3).unwrap().with_penalties(penalties).unwrap();
    let (path, of_path) = ([2, 1, 2].map(TokenId), [0, 0, 1]);
    let (side, of_side) = ([2, 0, 1, 2].map(TokenId), [0, 0, 0, 2]);
    for has_grammar in [false, true] {
        for commit in [CommitPolicy::Canonical, CommitPolicy::Compact] {
            for sampling in [None, Some(drawn.clone())] {
                let case = (has_grammar, commit, sampling.is_some());
                let drafter = || ended_by(has_grammar, commit, sampling.clone());
                let expected = vec![TokenId(1), TokenId(2)];
                let draws = |num_draws| if sampling.is_some() { num_draws } else { 0 };
                let said = answer_of(&mut drafter(), &path, &of_path);
                assert_eq!(said, (expected.clone(), draws(2)), "{case:?}");
                // What was accepted on a side branch is fed, and drawn, again.
                let again = usize::from(commit == CommitPolicy::Canonical);
                let said = answer_of(&mut drafter(), &side, &of_side);
                assert_eq!(said, (expected, draws(2 + again)), "{case:?}, on a side branch");
            }
        }
    }
}

proptest! {
    /// The rows of all nodes are as good as their logits, those of the prompt, too.
    #[test]
    fn recorded_rows_teach_what_the_logits_do(
        prompt in prop::collection::vec((0..VOCAB_SIZE as u32).prop_map(TokenId), 1..9),
        commit in prop::sample::select(vec![CommitPolicy::Canonical, CommitPolicy::Compact]),
    ) {
        let new = || {
            let sources: Vec<Box<dyn DraftSource>> = vec![
                Box::new(SuffixAutomaton::new()),
                Box::new(Calibration::default()),
                Box::new(DraftReuse::default()),
                Box::new(TableSource::new(SharedTable::default())),
            ];
            let options = drafter(&[], commit, None, 9).options;
            Drafter::new(sources, options).unwrap()
        };
        let (mut live, mut replayed) = (new(), new());
        let answer = plain(&prompt, TokenId(9), 40);
        live.begin(&prompt, answer.len()).unwrap();
        replayed.begin(&prompt, answer.len()).unwrap();
        let (mut ids, mut shares) = (Vec::new(), Vec::new());
        let mut scores = vec![0.0; (prompt.len() - 1) * VOCAB_SIZE];
        for end in 1..prompt.len() {
            scores[(end - 1) * VOCAB_SIZE + says(&prompt[..end]).0 as usize] = 1.0;
        }
        top_k_rows(&scores, VOCAB_SIZE, 0, &mut ids, &mut shares).unwrap();
        live.prefilled(&scores).unwrap();
        replayed.prefilled_top_k(&ids, &shares).unwrap();
        let mut text = prompt;
        while live.finish_reason().is_none() {
            let step = live.propose(text.len() - 1).unwrap();
            prop_assert_eq!(replayed.propose(text.len() - 1).unwrap(), step);
            prop_assert_eq!(replayed.tree(), live.tree());
            let mut scores = run_step(&live, &text, [1, 3, 8][step]);
            let seen = &scores[..live.tree().num_nodes() * VOCAB_SIZE];
            top_k_rows(seen, VOCAB_SIZE, 0, &mut ids, &mut shares).unwrap();
            let rest = &answer[answer.len() - live.request.as_ref().unwrap().remaining..];
            let short = replayed.accept_recorded_rows(rest, Some((&ids[1..], &shares)));
            let is_refused = matches!(short, Err(Error::WrongLength { what: "recorded rows", .. }));
            prop_assert!(is_refused);
            let rows = Some((&ids[..], &shares[..]));
            let replayed = replayed.accept_recorded_rows(rest, rows).unwrap();
            let accepted = live.accept(&mut scores).unwrap();
            prop_assert_eq!(&replayed, &accepted);
            text.extend(accepted.token_ids);
        }
    }
}

#[test]
fn a_record_that_ends_with_its_answer_is_enough_where_the_end_is_drafted() {
    let mut drafter = ended_by(false, CommitPolicy::Canonical, None);
    let answer = [1, 2].map(TokenId);
    drafter.propose_draft(0, &[2, 1, 2].map(TokenId), &[0, 0, 1]).unwrap();
    let accepted = drafter.accept_recorded(&answer).unwrap();
    assert_eq!((&accepted.token_ids[..], accepted.accept_len), (&answer[..], 2));
    assert_eq!(accepted.finish_reason, Some(FinishReason::Stop));
}

/// What is drafted behind the end of an answer is neither right nor wrong.
#[test]
fn nothing_is_learned_of_what_was_drafted_behind_the_end() {
    let steps = StepChoice::new(vec![StepShape { rows: 40, attended: ATTENDED }], None).unwrap();
    let (commit, end_tokens) = (CommitPolicy::Compact, vec![TokenId(2)]);
    let (vocab_size, shape) = (VOCAB_SIZE, TreeShape::Static); // which ends nowhere
    let options = DrafterOptions { steps, vocab_size, commit, end_tokens, shape };
    let mut drafter = Drafter::new(Scripted::sources(&[1]), options).unwrap();
    drafter.begin(&[TokenId(0)], 20).unwrap();
    drafter.propose(0).unwrap();
    let tree = &drafter.tree().clone();
    let parent = |node: usize| tree.parents()[node].index();
    let below = |node: usize| (1..tree.num_nodes()).filter(move |&at| parent(at) == node);
    let end = below(0).find(|&node| tree.token_ids()[node] == TokenId(2)).unwrap();
    assert!(below(end).count() > 0, "something is drafted behind the end");

    let mut expected = drafter.draft.acceptance().clone();
    for node in below(0) {
        expected.observe(drafter.draft.proposals()[node].unwrap(), node == end);
    }
    drafter.accept_recorded(&[TokenId(2)]).unwrap();
    assert_eq!(format!("{:?}", drafter.draft.acceptance()), format!("{expected:?}"));
}
