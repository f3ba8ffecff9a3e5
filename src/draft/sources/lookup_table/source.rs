//! Drafting from a look-up table, as a source. In: the request's tokens and the top-k of the target's
//! rows. Out: after each token, what the table holds likely.
//!
//! Reading the logits of a step is what takes the time, not the table: long ones are read on several
//! threads. They end before the call does, so that nobody reads a buffer that its owner may write again.
//! DIAA overlaps the update with other work. A thread that outlived the call did so here: it saved
//! nothing measurable, for the next draft needs the table, and what a session and its caller do in
//! between takes far less time than a pass over the logits.

use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use super::{LookupTable, SharedTable};
use crate::draft::source::{Cursor, Learn, Propose, Successor, TopKRows, Verification};
use crate::error::Result;
use crate::ids::{NodeId, TokenId};
use crate::logits::Logits;
use crate::logits::top_k::{TOP_K, TopK};

/// Drafts from a table, and teaches it from prompts and from all rows of every verification.
///
/// The table outlives requests. Cost: that of the table, and after a verification a pass over the
/// logits of each row of the tree, on several threads where it is long.
#[derive(Debug, Default)]
pub struct TableSource {
    name: &'static str,
    table: SharedTable,
    /// Whether it learns no more of a verification than each node and what the target says after it.
    in_pairs: bool,
    /// The request's tokens: a prompt's rows are told by position.
    text: Vec<TokenId>,
}

impl TableSource {
    /// The name in options and statistics.
    pub const NAME: &'static str = "lookup-table";
    /// Its name where it learns as published.
    pub const PUBLISHED: &'static str = "diaa-table";
    /// Its name as the baseline with which DIAA compares itself.
    pub const TOKEN_RECYCLING: &'static str = "token-recycling";

    /// Draws on `table`, and teaches it.
    pub fn new(table: SharedTable) -> Self {
        Self { name: Self::NAME, table, ..Self::default() }
    }

    /// Draws on `table`, and teaches it as DIAA's Figure 6 has it: one pair for each node of the tree, the
    /// target's own word and its probability.
    ///
    /// The paper's tables are initialised offline; prompts teach nothing. That it is pairs, and not
    /// whole rows, is our reading: with rows of as many entries as the table has, adding and replacing
    /// would leave the last row alone, which is Token Recycling.
    pub fn published(table: SharedTable) -> Self {
        Self { name: Self::PUBLISHED, in_pairs: true, ..Self::new(table) }
    }

    /// The adjacency matrix of Token Recycling (Luo et al. 2024, arXiv 2408.08696): a table that
    /// holds the last row of each token and nothing older.
    pub fn token_recycling() -> Result<Self> {
        let table = SharedTable::new(LookupTable::new(TOP_K, 0.0)?);
        Ok(Self { name: Self::TOKEN_RECYCLING, table, ..Self::default() })
    }
}

impl Propose for TableSource {
    fn name(&self) -> &'static str {
        self.name
    }

    fn vocab_size(&self) -> Option<usize> {
        self.table.lock().vocab_size()
    }

    fn cursor(&self) -> Option<Cursor> {
        self.text.last().map(|&last| after(last))
    }

    /// Never `None`: whatever a token is, a row may follow it.
    fn advance(&self, _cursor: Cursor, token: TokenId) -> Option<Cursor> {
        Some(after(token))
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let table = self.table.lock();
        let row = table.row(TokenId(cursor.place as u32));
        let likely = row.take_while(|&(_, probability)| probability >= at_least);
        out.extend(likely.map(|(token, probability)| Successor {
            token,
            probability,
            cursor: after(token),
        }));
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for TableSource {
    /// A table that was of no vocabulary is of this one; of another, it keeps its own.
    fn set_vocab_size(&mut self, vocab_size: usize) {
        let _ = self.table.lock().belong_to(vocab_size);
    }

    fn extend(&mut self, tokens: &[TokenId]) {
        self.text.extend(tokens);
    }

    fn reads_prefill(&self) -> bool {
        !self.in_pairs
    }

    fn prefilled(&mut self, rows: &TopKRows<'_>) {
        let mut table = self.table.lock();
        let contexts = &self.text[rows.first_position..];
        let entries = rows.token_ids.chunks(rows.k).zip(rows.probabilities.chunks(rows.k));
        for (&context, (token_ids, probabilities)) in contexts.iter().zip(entries) {
            let mut seen = TopK { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
            let kept = rows.k.min(TOP_K);
            seen.token_ids[..kept].copy_from_slice(&token_ids[..kept]);
            seen.probabilities[..kept].copy_from_slice(&probabilities[..kept]);
            table.learn(context, &seen);
        }
    }

    fn verified(&mut self, seen: &mut Verification<'_>) {
        let contexts = seen.tree.token_ids();
        let likely = match seen.logits {
            Some(logits) => likely(logits, contexts.len()),
            None => (0..contexts.len()).map(|node| (seen.top_k)(NodeId(node as u32))).collect(),
        };
        let mut table = self.table.lock();
        for (&context, best) in contexts.iter().zip(&likely) {
            match best {
                Some(best) if self.in_pairs => {
                    table.learn_pair(context, best.token_ids[0], best.probabilities[0]);
                }
                Some(best) => table.learn(context, best),
                None => {}
            }
        }
    }

    fn rows_read(&self, num_nodes: usize) -> usize {
        num_nodes
    }

    /// Forgets the request, and keeps the table.
    fn clear(&mut self) {
        self.text.clear();
    }

    fn memory_bytes(&self) -> usize {
        self.text.capacity() * size_of::<TokenId>() + self.table.lock().memory_bytes()
    }
}

/// The place after `token`: the table knows one token of context, whatever came before.
fn after(token: TokenId) -> Cursor {
    Cursor { place: token.0.into(), match_len: 1 }
}

/// Scores that are worth a thread: starting one takes some 20 us, reading so many 100.
const MIN_SCORES: usize = 1 << 19;

/// The top-k of the first `num_rows` rows; `None` for a row that holds NaN or nothing finite.
///
/// Cost: a pass over these rows, on as many threads as pay and there are cores.
pub fn likely(logits: Logits<'_>, num_rows: usize) -> Vec<Option<TopK>> {
    let num_threads = (num_rows * logits.vocab_size() / MIN_SCORES).clamp(1, num_cores());
    read_on(num_threads, logits, num_rows)
}

fn num_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

fn read_on(num_threads: usize, logits: Logits<'_>, num_rows: usize) -> Vec<Option<TopK>> {
    let mut likely = vec![None; num_rows];
    let places = Mutex::new(likely.iter_mut().enumerate());
    let read = || loop {
        let next = places.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((row, place)) = next else { break };
        *place = logits.top_k(NodeId(row as u32));
    };
    thread::scope(|scope| {
        for _ in 1..num_threads {
            // Where the system gives no thread, those that there are read all rows.
            let _ = thread::Builder::new().spawn_scoped(scope, read);
        }
        read();
    });
    likely
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logits::top_k::top_k;

    fn successors(source: &TableSource, cursor: Cursor) -> Vec<(u32, f32)> {
        let mut found = Vec::new();
        source.successors(cursor, &mut found);
        found.iter().map(|next| (next.token.0, next.probability)).collect()
    }

    #[test]
    fn a_prompts_rows_are_drafted_from_in_the_next_request_too() {
        let mut source = TableSource::new(SharedTable::default());
        source.extend(&[4, 5].map(TokenId));
        source.prefilled(&TopKRows {
            first_position: 1,
            k: 2,
            token_ids: &[6, 7].map(TokenId),
            probabilities: &[0.75, 0.25],
        });
        assert_eq!(successors(&source, source.cursor().unwrap()), [(6, 0.75), (7, 0.25)]);
        source.clear();
        assert_eq!(source.cursor(), None);
        source.extend(&[5].map(TokenId));
        assert_eq!(successors(&source, source.cursor().unwrap()), [(6, 0.75), (7, 0.25)]);
        let after_6 = source.advance(source.cursor().unwrap(), TokenId(6)).unwrap();
        assert_eq!(successors(&source, after_6), []);
    }

    /// For the sanitizer as well: nothing but the lock orders them.
    #[test]
    fn a_table_is_drafted_from_taught_and_copied_on_several_threads() {
        let table = SharedTable::default();
        std::thread::scope(|scope| {
            for first in 0..3 {
                let mut source = TableSource::new(table.clone());
                scope.spawn(move || {
                    source.extend(&[TokenId(first)]);
                    for step in 0..100 {
                        let token_ids = [step % 7, step % 5 + 7].map(TokenId);
                        let probabilities = &[0.5, 0.25];
                        let rows = TopKRows {
                            first_position: 0,
                            k: 2,
                            token_ids: &token_ids,
                            probabilities,
                        };
                        source.prefilled(&rows);
                        assert!(!successors(&source, source.cursor().unwrap()).is_empty());
                    }
                });
            }
            scope.spawn(|| (0..100).for_each(|_| assert!(table.lock().clone().num_rows() <= 3)));
        });
        assert_eq!(table.lock().num_rows(), 3);
    }

    const VOCAB_SIZE: usize = 12;

    proptest! {
        #[test]
        fn any_number_of_threads_reads_what_one_would(
            rows in prop::collection::vec(prop::collection::vec(-9i8..9, VOCAB_SIZE), 1..9),
            unusable in any::<prop::sample::Index>(),
            num_threads in 1usize..6,
        ) {
            let mut values: Vec<f32> = rows.iter().flatten().map(|&score| score.into()).collect();
            values[unusable.index(rows.len()) * VOCAB_SIZE] = f32::NAN;
            let logits = Logits::new(&values, rows.len(), VOCAB_SIZE).unwrap();
            let expected: Vec<_> = values.chunks(VOCAB_SIZE).map(top_k).collect();
            prop_assert_eq!(read_on(num_threads, logits, rows.len()), expected);
        }
    }
}
