//! Teaching a table beside other work. In: the rows of a step, whole. Out: the table, updated by the
//! time that anybody waits for it.
//!
//! DIAA overlaps the update with other work on a stream of its own; here it is a thread. What takes
//! the time is reading the logits, not the table: so a step's logits are lent to the thread.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::SharedTable;
use crate::ids::TokenId;
use crate::logits::SharedLogits;
use crate::top_k::top_k;

/// Scores below which a thread of its own is not worth its start, some 20 us: reading so many
/// takes 50 us.
const MIN_SCORES: usize = 1 << 18;

/// Updates a table from whole steps.
#[derive(Debug, Default)]
pub struct Learner {
    running: Option<JoinHandle<()>>,
}

impl Learner {
    /// Whether learning from this many rows should be left to a thread.
    pub fn pays(num_rows: usize, vocab_size: usize) -> bool {
        num_rows * vocab_size >= MIN_SCORES
    }

    /// Starts to teach `table` what follows each of `contexts`, whose rows are the first of `logits`;
    /// waits for an earlier update to end. Rows that are not finite teach nothing.
    pub fn start(
        &mut self,
        table: SharedTable,
        contexts: Vec<TokenId>,
        logits: Arc<dyn SharedLogits>,
        vocab_size: usize,
    ) {
        self.wait();
        self.running = Some(thread::spawn(move || {
            let rows = logits.values().chunks_exact(vocab_size);
            for (context, row) in contexts.into_iter().zip(rows) {
                if let Some(best) = top_k(row) {
                    table.lock().learn(context, &best);
                }
            }
        }));
    }

    /// Waits until the table is up to date.
    pub fn wait(&mut self) {
        if let Some(running) = self.running.take() {
            running.join().expect("reading logits and sorting entries does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LookupTable;
    use super::*;
    use proptest::prelude::*;

    struct Owned(Vec<f32>);

    impl SharedLogits for Owned {
        fn values(&self) -> &[f32] {
            &self.0
        }
    }

    proptest! {
        #[test]
        fn a_thread_learns_what_the_caller_would(
            steps in prop::collection::vec(
                prop::collection::vec((0u32..4, prop::collection::vec(-9i8..9, 12)), 1..6), 1..4),
        ) {
            let (shared, mut alone) = (SharedTable::default(), LookupTable::default());
            let mut learner = Learner::default();
            for step in &steps {
                let contexts: Vec<_> = step.iter().map(|(context, _)| TokenId(*context)).collect();
                let logits: Vec<_> =
                    step.iter().flat_map(|(_, row)| row.iter().map(|&x| f32::from(x))).collect();
                for (context, row) in contexts.iter().zip(logits.chunks(12)) {
                    alone.learn(*context, &top_k(row).unwrap());
                }
                learner.start(shared.clone(), contexts, Arc::new(Owned(logits)), 12);
            }
            learner.wait();
            prop_assert_eq!(&*shared.lock(), &alone);
        }
    }

    #[test]
    fn rows_that_are_not_finite_teach_nothing() {
        let (table, mut learner) = (SharedTable::default(), Learner::default());
        let logits = Arc::new(Owned(vec![f32::NAN, 0.0]));
        learner.start(table.clone(), vec![TokenId(0)], logits, 2);
        learner.wait();
        assert_eq!(table.lock().num_rows(), 0);
    }
}
