//! Which words come after which in most texts, as a draft source. In: a table of token pairs and
//! triples that somebody counted, and a request's last two tokens. Out: what often comes next.
//!
//! What is new to a request is often common in its language. Copies know better where there are any.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// What often comes after one token, or after two.
///
/// # How it stores
/// Of each context the tokens that often come next, likeliest first, 8 bytes each; 32 to 64 bytes a
/// context beside.
///
/// # Cost
/// Looking up a token after another: two reads, if nothing collides.
#[derive(Debug, Default)]
pub struct PhraseTable {
    /// Context, and its row; a power of two, at least half of them empty.
    places: Vec<Option<(Context, u32)>>,
    /// Where each row ends in `nexts`; the first row is empty.
    ends: Vec<u32>,
    /// Likeliest first in a row.
    nexts: Vec<(TokenId, f32)>,
}

/// The last token, or the last two.
type Context = (Option<TokenId>, TokenId);

/// The row that is empty.
const NOTHING: u32 = 0;

impl PhraseTable {
    /// A table of tokens that come next after each context, with their chances. A context of two goes
    /// on with what its last token knows beside, by what it leaves over.
    ///
    /// Chances of one token and context are added up; those of a context that are more than 1 in all
    /// are scaled. Fails when one is not in 0 to 1.
    pub fn new(phrases: impl IntoIterator<Item = (Context, TokenId, f32)>) -> Result<Self> {
        let mut rows = BTreeMap::<Context, BTreeMap<TokenId, f32>>::new();
        for (context, next, chance) in phrases {
            if !(0.0..=1.0).contains(&chance) {
                let (what, must) = ("the chance of a phrase", "0 to 1");
                return Err(Error::BadOption { what, got: chance.to_string(), must });
            }
            *rows.entry(context).or_default().entry(next).or_default() += chance;
        }
        for row in rows.values_mut() {
            let total = row.values().sum::<f32>().max(1.0);
            row.values_mut().for_each(|chance| *chance /= total);
        }
        let num_places = (2 * rows.len()).next_power_of_two();
        let mut table = Self { places: vec![None; num_places], ends: vec![0], nexts: Vec::new() };
        for (&context, row) in &rows {
            let mut nexts: Vec<_> = row.iter().map(|(&token, &chance)| (token, chance)).collect();
            if context.0.is_some() {
                let left = 1.0 - row.values().sum::<f32>();
                let beside = rows.get(&(None, context.1)).into_iter().flatten();
                let unknown = beside.filter(|(token, _)| !row.contains_key(token));
                nexts.extend(unknown.map(|(&token, &chance)| (token, chance * left)));
            }
            nexts.retain(|&(_, chance)| chance > 0.0);
            nexts.sort_by(|one, other| other.1.total_cmp(&one.1));
            table.insert(context, nexts);
        }
        Ok(table)
    }

    /// Contexts that something often comes after.
    pub fn num_contexts(&self) -> usize {
        self.ends.len() - 1
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<(Context, u32)>>()
            + self.ends.capacity() * size_of::<u32>()
            + self.nexts.capacity() * size_of::<(TokenId, f32)>()
    }

    fn insert(&mut self, context: Context, nexts: Vec<(TokenId, f32)>) {
        let row = self.ends.len() as u32;
        self.nexts.extend(nexts);
        self.ends.push(self.nexts.len() as u32);
        let mut place = self.first_place(context);
        while self.places[place].is_some() {
            place = (place + 1) & (self.places.len() - 1);
        }
        self.places[place] = Some((context, row));
    }

    fn first_place(&self, (before, last): Context) -> usize {
        let before = before.map_or(u64::from(u32::MAX), |token| token.0.into());
        let key = (before << 32 | u64::from(last.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (key >> 32) as usize & (self.places.len() - 1)
    }

    fn find(&self, context: Context) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let mut place = self.first_place(context);
        while let Some((known, row)) = self.places[place] {
            if known == context {
                return Some(row);
            }
            place = (place + 1) & (self.places.len() - 1);
        }
        None
    }

    /// The place after two tokens: `match_len` says how many of them are known to go on.
    fn after(&self, before: Option<TokenId>, last: TokenId) -> Cursor {
        let both = before.and_then(|before| self.find((Some(before), last)));
        let (match_len, row) = match both {
            Some(row) => (2, row),
            None => self.find((None, last)).map_or((0, NOTHING), |row| (1, row)),
        };
        Cursor { place: u64::from(last.0) << 32 | u64::from(row), match_len }
    }

    fn row(&self, row: u32) -> &[(TokenId, f32)] {
        match row.checked_sub(1) {
            Some(before) => {
                let ends = [before, row].map(|row| self.ends[row as usize] as usize);
                &self.nexts[ends[0]..ends[1]]
            }
            None => &[],
        }
    }
}

/// Drafts what often comes after the last two tokens, by a table that several drafters may share.
///
/// Learns nothing: how far the table is to be trusted is learned by who asks.
///
/// ```
/// use std::sync::Arc;
///
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::draft::sources::common_phrases::{CommonPhrases, PhraseTable};
/// use coordgen_rs::ids::TokenId;
///
/// let phrases = [((None, TokenId(4)), TokenId(5), 0.25)]; // "of", "the"
/// let mut source = CommonPhrases::new(Arc::new(PhraseTable::new(phrases)?));
/// source.extend(&[7, 4].map(TokenId));
/// let mut next = Vec::new();
/// source.successors(source.cursor().unwrap(), &mut next);
/// assert_eq!((next[0].token, next[0].probability), (TokenId(5), 0.25));
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct CommonPhrases {
    table: Arc<PhraseTable>,
    /// Where the text ends.
    end: Option<Cursor>,
}

impl CommonPhrases {
    /// The name in options and statistics.
    pub const NAME: &'static str = "common-phrases";

    /// Draws on `table`.
    pub fn new(table: Arc<PhraseTable>) -> Self {
        Self { table, end: None }
    }
}

impl Propose for CommonPhrases {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cursor(&self) -> Option<Cursor> {
        self.end
    }

    /// Never `None`: whatever a token is, a phrase may begin with it.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        Some(self.table.after(Some(TokenId((cursor.place >> 32) as u32)), token))
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let row = self.table.row(cursor.place as u32);
        let likely = row.iter().take_while(|(_, chance)| *chance >= at_least);
        let cursor = cursor.put_off();
        out.extend(likely.map(|&(token, probability)| Successor { token, probability, cursor }));
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }

    fn is_background(&self) -> bool {
        true
    }
}

impl Learn for CommonPhrases {
    fn extend(&mut self, tokens: &[TokenId]) {
        for &token in &tokens[tokens.len().saturating_sub(2)..] {
            let before = self.end.map(|end| TokenId((end.place >> 32) as u32));
            self.end = Some(self.table.after(before, token));
        }
    }

    fn clear(&mut self) {
        self.end = None;
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    type Phrases = Vec<(Context, TokenId, f32)>;

    fn phrases() -> impl Strategy<Value = Phrases> {
        let token = || (0..6u32).prop_map(TokenId);
        let context = (prop::option::of(token()), token());
        prop::collection::vec((context, token(), 0.0..=1.0_f32), 0..40)
    }

    /// The chances after a context, of which the two tokens may be known, or only the last.
    fn naive(phrases: &Phrases, before: Option<TokenId>, last: TokenId) -> HashMap<TokenId, f32> {
        let row = |context: Context| {
            let mut row = HashMap::<TokenId, f32>::new();
            for (_, next, chance) in phrases.iter().filter(|phrase| phrase.0 == context) {
                *row.entry(*next).or_default() += chance;
            }
            let total = row.values().sum::<f32>().max(1.0);
            row.values_mut().for_each(|chance| *chance /= total);
            row
        };
        let mut known = before.map_or_else(HashMap::new, |before| row((Some(before), last)));
        let left = 1.0 - known.values().sum::<f32>();
        for (token, chance) in row((None, last)) {
            known.entry(token).or_insert(chance * left);
        }
        known
    }

    proptest! {
        #[test]
        fn a_text_goes_on_as_its_last_two_tokens_do(
            phrases in phrases(), text in prop::collection::vec(0..6u32, 1..6), at_least in 0.0..0.5_f32,
        ) {
            let text: Vec<_> = text.into_iter().map(TokenId).collect();
            let table = Arc::new(PhraseTable::new(phrases.clone()).unwrap());
            let mut source = CommonPhrases::new(table);
            source.extend(&text[..1]);
            let mut led_on = source.cursor();
            for &token in &text[1..] {
                led_on = source.advance(led_on.unwrap(), token);
            }
            source.extend(&text[1..]);
            prop_assert_eq!(source.cursor(), led_on);

            let (last, before) = (text[text.len() - 1], text.len().checked_sub(2).map(|at| text[at]));
            let mut expected = naive(&phrases, before, last);
            expected.retain(|_, chance| *chance > 0.0 && *chance >= at_least);
            let mut said = Vec::new();
            source.successors_above(led_on.unwrap(), at_least, &mut said);
            prop_assert!(said.is_sorted_by(|one, next| one.probability >= next.probability));
            prop_assert!(said.len().abs_diff(expected.len()) <= 1, "one may be rounded");
            for next in &said {
                let chance = naive(&phrases, before, last)[&next.token];
                prop_assert!((chance - next.probability).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn a_request_begins_with_nothing_of_the_one_before() {
        let phrases = [((Some(TokenId(1)), TokenId(2)), TokenId(3), 0.5)];
        let mut source = CommonPhrases::new(Arc::new(PhraseTable::new(phrases).unwrap()));
        source.extend(&[1].map(TokenId));
        source.clear();
        assert_eq!(source.cursor(), None);
        source.extend(&[2].map(TokenId));
        let mut said = Vec::new();
        source.successors(source.cursor().unwrap(), &mut said);
        assert_eq!(said, []);
    }

    #[test]
    fn chances_that_are_none_are_refused() {
        for chance in [-0.1, 1.1, f32::NAN] {
            let phrases = [((None, TokenId(1)), TokenId(2), chance)];
            assert!(PhraseTable::new(phrases).is_err(), "{chance}");
        }
    }

    #[test]
    fn an_empty_table_says_nothing() {
        let mut source = CommonPhrases::default();
        source.extend(&[5].map(TokenId));
        let mut said = Vec::new();
        source.successors(source.cursor().unwrap(), &mut said);
        assert_eq!(said, []);
        assert_eq!(source.memory_bytes(), 0);
    }
}
