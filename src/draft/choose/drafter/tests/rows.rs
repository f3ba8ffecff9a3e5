//! Which rows of the logits are read, and when.

use super::*;
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::sources::lookup_table::SharedTable;
use crate::draft::sources::lookup_table::source::TableSource;
use crate::draft::sources::reuse::DraftReuse;
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
