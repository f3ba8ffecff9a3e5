//! Look-up tables (DIAA, "Look-Up Table-Enhanced Token Initialization"): which tokens the target
//! held likely after a token, and how likely. In: the top-k of the target's rows. Out: for a
//! token the likeliest next ones.
//!
//! [`source`] drafts from a table and reads the rows of a step for it, [`mod@file`] keeps one.

pub mod file;
pub mod source;

use std::num::NonZeroU32;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::locks::Shared;
use crate::logits::top_k::{TOP_K, TopK};

/// What an entry keeps of its probability when its token is not among a row's likeliest any more.
///
/// The paper says which entry is replaced, the least informative, and not how an entry loses
/// information. On the embedded model's tasks halving gave 15 % more tokens a step than leaving
/// entries as they were recorded, and 11 % more than forgetting all but the last row; a quarter and
/// three quarters were within 3 % of it.
pub const DEFAULT_KEEP: f32 = 0.5;

/// The t-LUT and the p-LUT: `k` tokens for each token seen, likeliest first, and their probabilities.
///
/// Use it for what a copy of the context cannot foretell: the target's habits, which outlast a
/// request. One token of context is little: where a longer one matches, an automaton knows better.
///
/// # How it stores
/// For each token that was a context, `k` ids and `k` probabilities, 8 bytes an entry; for every
/// token of the vocabulary up to the largest context 4 bytes: at most 8.5 bytes an entry with 8 entries
/// a token, where the paper has 12 (Table 4), and nothing for tokens that were never seen.
///
/// # Cost
/// `learn`: `k * k` comparisons. `row`: O(1).
///
/// # Example
/// ```
/// use coordgen_rs::draft::sources::lookup_table::LookupTable;
/// use coordgen_rs::ids::TokenId;
/// use coordgen_rs::logits::top_k::top_k;
///
/// let mut table = LookupTable::default();
/// table.learn(TokenId(7), &top_k(&[0.0, 5.0, 9.0]).unwrap());
/// let likeliest: Vec<_> = table.row(TokenId(7)).map(|(token, _)| token).collect();
/// assert_eq!(likeliest, [2, 1, 0].map(TokenId));
/// assert_eq!(table.row(TokenId(8)).count(), 0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LookupTable {
    /// Number of ids in the vocabulary that it is of, once that is known.
    vocab_size: Option<usize>,
    k: usize,
    keep: f32,
    /// Number of each token's row, counted from 1; `None` for tokens that were never a context.
    rows: Vec<Option<NonZeroU32>>,
    /// `(num_rows, k)`, the t-LUT.
    token_ids: Vec<TokenId>,
    /// `(num_rows, k)`, the p-LUT, never increasing in a row; 0 is no entry.
    probabilities: Vec<f32>,
}

impl Default for LookupTable {
    /// [`TOP_K`] entries a token, of which unconfirmed ones fade by [`DEFAULT_KEEP`].
    fn default() -> Self {
        Self::with_valid(TOP_K, DEFAULT_KEEP)
    }
}

impl LookupTable {
    /// An empty table of `k` entries a token, of whose probabilities `keep` remains whenever a row
    /// does not confirm them: 1 leaves them, 0 forgets them, as Token Recycling does.
    ///
    /// Fails when `k` is not 1 to [`TOP_K`], or `keep` not 0 to 1.
    pub fn new(k: usize, keep: f32) -> Result<Self> {
        if !(1..=TOP_K).contains(&k) {
            let (what, must) = ("entries of a look-up table", "1 to 8");
            return Err(Error::BadOption { what, got: k.to_string(), must });
        }
        if !(0.0..=1.0).contains(&keep) {
            let (what, must) = ("keep", "0 to 1");
            return Err(Error::BadOption { what, got: keep.to_string(), must });
        }
        Ok(Self::with_valid(k, keep))
    }

    fn with_valid(k: usize, keep: f32) -> Self {
        let (rows, token_ids, probabilities) = (Vec::new(), Vec::new(), Vec::new());
        Self { vocab_size: None, k, keep, rows, token_ids, probabilities }
    }

    /// Number of ids in the vocabulary of the model that it is of; `None` until it is
    /// [for](Self::belong_to) one.
    pub fn vocab_size(&self) -> Option<usize> {
        self.vocab_size
    }

    /// From now on it is of a model with `vocab_size` ids. Fails when it is of one with another number:
    /// ids mean other words there.
    pub fn belong_to(&mut self, vocab_size: usize) -> Result<()> {
        let got = *self.vocab_size.get_or_insert(vocab_size);
        if got != vocab_size {
            let source_name = source::TableSource::NAME;
            return Err(Error::OtherVocabulary { source_name, got, expected: vocab_size });
        }
        Ok(())
    }

    /// Entries a token.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of tokens that were a context.
    pub fn num_rows(&self) -> usize {
        self.token_ids.len() / self.k
    }

    /// What is likely after `context`, likeliest first.
    pub fn row(&self, context: TokenId) -> impl Iterator<Item = (TokenId, f32)> {
        let row = self.rows.get(context.0 as usize).copied().flatten();
        let start = row.map_or(self.token_ids.len(), |row| self.row_start(row));
        let entries = self.token_ids[start..].iter().zip(&self.probabilities[start..]);
        let known = entries.take(self.k).take_while(|(_, probability)| **probability > 0.0);
        known.map(|(&token, &probability)| (token, probability))
    }

    /// Takes in what the target held likely after `context` (Figure 6).
    ///
    /// A token that is there gets its new probability. Another one is *added*; where there is no
    /// room it *replaces* the least probable entry. Ours are two rules beside those of the figure: an
    /// entry that is more probable stays, and first all entries fade, since what the target says now
    /// counts for more than what it said before.
    pub fn learn(&mut self, context: TokenId, seen: &TopK) {
        let start = self.start_of(context);
        let token_ids = &mut self.token_ids[start..start + self.k];
        let probabilities = &mut self.probabilities[start..start + self.k];
        for probability in &mut *probabilities {
            *probability *= self.keep;
        }
        for (&token, &probability) in seen.token_ids.iter().zip(&seen.probabilities) {
            let known = token_ids
                .iter()
                .zip(&*probabilities)
                .position(|(known, p)| *known == token && *p > 0.0);
            // Rows stay sorted, so that the least probable entry is the last.
            let place = known.unwrap_or(token_ids.len() - 1);
            if probability > 0.0 && (known.is_some() || probability > probabilities[place]) {
                (token_ids[place], probabilities[place]) = (token, probability);
                sort_entry(token_ids, probabilities, place);
            }
        }
    }

    /// Takes in one verified pair, as Figure 6 has it: a pair that is absent is *added*, and where there
    /// is no room it *replaces* the least probable entry, however improbable it is itself. Nothing fades.
    pub fn learn_pair(&mut self, context: TokenId, token: TokenId, probability: f32) {
        if probability <= 0.0 {
            return; // which stands for no entry
        }
        let start = self.start_of(context);
        let token_ids = &mut self.token_ids[start..start + self.k];
        let probabilities = &mut self.probabilities[start..start + self.k];
        let held = token_ids.iter().zip(&*probabilities);
        let place = held.take_while(|&(&held, &p)| p > 0.0 && held != token).count();
        let place = place.min(token_ids.len() - 1);
        (token_ids[place], probabilities[place]) = (token, probability);
        sort_entry(token_ids, probabilities, place);
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        let (of_tokens, of_probabilities) = self.memory_of_tables();
        of_tokens + of_probabilities
    }

    /// Bytes held on the heap by the t-LUT, with its index, and by the p-LUT (Table 4).
    pub fn memory_of_tables(&self) -> (usize, usize) {
        let index = self.rows.capacity() * size_of::<Option<NonZeroU32>>();
        let tokens = self.token_ids.capacity() * size_of::<TokenId>();
        (index + tokens, self.probabilities.capacity() * size_of::<f32>())
    }

    fn row_start(&self, row: NonZeroU32) -> usize {
        (row.get() as usize - 1) * self.k
    }

    /// Where the row of `context` starts; a new one where it has none.
    fn start_of(&mut self, context: TokenId) -> usize {
        let index = context.0 as usize;
        if index >= self.rows.len() {
            self.rows.resize(index + 1, None);
        }
        if self.rows[index].is_none() {
            let entries = self.token_ids.len() + self.k;
            if entries > self.token_ids.capacity() {
                // By a quarter: doubling would take more memory than the bound on entries allows.
                self.token_ids.reserve_exact(entries / 4 + self.k);
                self.probabilities.reserve_exact(entries / 4 + self.k);
            }
            self.token_ids.resize(entries, TokenId(0));
            self.probabilities.resize(entries, 0.0);
            self.rows[index] = NonZeroU32::new((entries / self.k) as u32);
        }
        self.rows[index].map_or(0, |row| self.row_start(row))
    }
}

/// Moves the entry at `place` to where it belongs among sorted ones, behind its equals.
fn sort_entry(token_ids: &mut [TokenId], probabilities: &mut [f32], mut place: usize) {
    while place > 0 && probabilities[place] > probabilities[place - 1] {
        probabilities.swap(place, place - 1);
        token_ids.swap(place, place - 1);
        place -= 1;
    }
    while place + 1 < probabilities.len() && probabilities[place] < probabilities[place + 1] {
        probabilities.swap(place, place + 1);
        token_ids.swap(place, place + 1);
        place += 1;
    }
}

/// A table that several drafters draw on and teach, and that is saved while they do.
pub type SharedTable = Shared<LookupTable>;

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use super::*;
    use proptest::prelude::*;

    /// Rows over an alphabet of twelve tokens, with probabilities that decrease. No two are equal,
    /// also after halving: their numerators are odd and occur once.
    pub(crate) fn seen_rows() -> impl Strategy<Value = Vec<(TokenId, TopK)>> {
        let row = prop::collection::hash_map(0u32..12, 1u32..100, 0..=TOP_K);
        prop::collection::vec((0u32..5, row), 0..40).prop_map(|rows| {
            let numbered = rows.into_iter().enumerate();
            numbered
                .map(|(number, (context, row))| (TokenId(context), top_k_of(number, row)))
                .collect()
        })
    }

    fn top_k_of(number: usize, row: HashMap<u32, u32>) -> TopK {
        let mut entries: Vec<_> = row.into_iter().collect();
        entries.sort_by_key(|&(token, weight)| (std::cmp::Reverse(weight), token));
        let mut found = TopK { token_ids: [TokenId(0); TOP_K], probabilities: [0.0; TOP_K] };
        for (rank, (token, weight)) in entries.into_iter().enumerate() {
            let odd = 2 * (8 * number + 7 - rank) + 1;
            found.token_ids[rank] = TokenId(token);
            found.probabilities[rank] = ((weight << 10) as f32 + odd as f32) / (1 << 17) as f32;
        }
        found
    }

    /// Figure 6 on dictionaries.
    #[derive(Default)]
    struct Naive(HashMap<TokenId, HashMap<TokenId, f32>>);

    impl Naive {
        fn learn(&mut self, context: TokenId, seen: &TopK, k: usize, keep: f32) {
            let row = self.0.entry(context).or_default();
            row.values_mut().for_each(|probability| *probability *= keep);
            row.retain(|_, probability| *probability > 0.0);
            for (&token, &probability) in seen.token_ids.iter().zip(&seen.probabilities) {
                if probability > 0.0 {
                    row.insert(token, probability);
                }
                if row.len() > k {
                    let least = row.iter().min_by(|one, other| one.1.total_cmp(other.1));
                    let &least = least.unwrap().0;
                    row.remove(&least);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_table_equals_dictionaries(rows in seen_rows(), k in 1..=TOP_K, keep in 0u8..3) {
            let keep = f32::from(keep) / 2.0;
            let (mut table, mut naive) = (LookupTable::new(k, keep).unwrap(), Naive::default());
            for (context, seen) in &rows {
                table.learn(*context, seen);
                naive.learn(*context, seen, k, keep);
                let mut expected: Vec<_> = naive.0[context].iter().map(|(&t, &p)| (t, p)).collect();
                expected.sort_by(|one, other| other.1.total_cmp(&one.1));
                prop_assert!(table.row(*context).eq(expected));
            }
            prop_assert_eq!(table.num_rows(), naive.0.len());
        }
    }

    proptest! {
        #[test]
        fn pairs_that_were_verified_stand_as_in_figure_6(
            pairs in prop::collection::vec((0u32..3, 0u32..12, 1u32..100), 0..80),
            k in 1..=TOP_K,
        ) {
            let mut table = LookupTable::new(k, DEFAULT_KEEP).unwrap();
            let mut naive: HashMap<TokenId, Vec<(TokenId, f32)>> = HashMap::new();
            for (number, (context, token, weight)) in pairs.into_iter().enumerate() {
                let (context, token) = (TokenId(context), TokenId(token));
                let probability = weight as f32 + number as f32 / 128.0; // no two are equal
                table.learn_pair(context, token, probability);
                let row = naive.entry(context).or_default();
                row.retain(|&(held, _)| held != token);
                row.truncate(k - 1);
                row.push((token, probability));
                row.sort_by(|one, other| other.1.total_cmp(&one.1));
                prop_assert!(table.row(context).eq(row.iter().copied()));
            }
            table.learn_pair(TokenId(9), TokenId(1), 0.0);
            prop_assert_eq!(table.row(TokenId(9)).count(), 0);
        }
    }

    #[test]
    fn a_full_table_stays_within_the_papers_memory() {
        let mut table = LookupTable::default();
        let vocab_size = 5_000;
        for context in 0..vocab_size {
            table.learn(TokenId(context), &top_k_of(0, [(1, 9), (2, 8)].into()));
            let bound = 12 * TOP_K * (context as usize + 65);
            assert!(table.memory_bytes() <= bound, "{} bytes", table.memory_bytes());
        }
        assert_eq!(table.num_rows(), vocab_size as usize);
    }

    #[test]
    fn unusable_sizes_are_refused() {
        assert!(LookupTable::new(0, 0.5).is_err());
        assert!(LookupTable::new(TOP_K + 1, 0.5).is_err());
        assert!(LookupTable::new(1, f32::NAN).is_err());
        assert!(LookupTable::new(1, 1.5).is_err());
    }
}
