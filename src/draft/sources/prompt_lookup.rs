//! Prompt lookup: copies what followed the first occurrence of the last few tokens.
//! In: tokens. Out: one chain of up to [`MAX_CHAIN`] tokens.
//!
//! The baseline that people know (Saxena 2023; `prompt_lookup_num_tokens` in transformers), with
//! its choices kept: no counts, the oldest occurrence, one chain.

use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Longest n-gram that is looked up; shorter ones follow, down to one token.
pub const MAX_NGRAM: usize = 3;

/// Most tokens in a chain.
pub const MAX_CHAIN: usize = 10;

/// What followed the first occurrence of the text's last three, else two, else one token.
///
/// Use it as the measure for other sources, or where the text is copied in order from one place.
/// Where the same words lead to different continuations a
/// [`SuffixAutomaton`](crate::SuffixAutomaton) knows the likelier one.
///
/// # How it stores
/// The text, and a hash table for each n of the positions after first occurrences, 4 bytes an
/// entry; the n-grams themselves are read from the text. About 25 bytes a token at most.
///
/// # Cost
/// Extending: three hash look-ups a token, and up to three at its end.
/// Everything else: O(1). A scan of the text, as the original does, costs its length each step.
///
/// # Example
/// ```
/// use coordgen_rs::draft::sources::prompt_lookup::PromptLookup;
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::ids::TokenId;
///
/// let mut lookup = PromptLookup::new();
/// lookup.extend(&[3, 1, 4, 1, 5, 9, 3, 1].map(TokenId));
/// // "3 1" came first before "4 1 5 9 3 1".
/// assert_eq!(lookup.chain(), [4, 1, 5, 9, 3, 1].map(TokenId));
/// ```
#[derive(Clone, Debug)]
pub struct PromptLookup {
    text: Vec<TokenId>,
    /// For n-grams of 1, 2, 3 tokens.
    first: [FirstOccurrences; MAX_NGRAM],
    /// Behind what the end of the text repeats: asked for at each node of a tree, and found once a step.
    found: Option<Cursor>,
}

impl Default for PromptLookup {
    fn default() -> Self {
        Self::new()
    }
}

impl PromptLookup {
    /// The name in options and statistics.
    pub const NAME: &'static str = "prompt-lookup";

    /// A lookup in the empty text.
    pub fn new() -> Self {
        let first = std::array::from_fn(|i| FirstOccurrences::new(i + 1));
        Self { text: Vec::new(), first, found: None }
    }

    /// The place behind the first occurrence of the text's last tokens.
    fn search(&self) -> Option<Cursor> {
        self.first.iter().rev().find_map(|first| {
            let ngram = &self.text[self.text.len().checked_sub(first.ngram_len)?..];
            let place = first.find(&self.text, ngram)?;
            Some(Cursor { place: place.into(), match_len: first.ngram_len as u32 })
        })
    }

    /// The tokens it proposes, at most [`MAX_CHAIN`]; empty when nothing matches.
    pub fn chain(&self) -> &[TokenId] {
        let start = self.cursor().map_or(self.text.len(), |cursor| cursor.place as usize);
        &self.text[start..self.text.len().min(start + MAX_CHAIN)]
    }
}

impl Propose for PromptLookup {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// The place after the first occurrence of the longest n-gram that has one.
    fn cursor(&self) -> Option<Cursor> {
        self.found
    }

    /// The next place of the text, if `token` stands at this one.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let here = *self.text.get(cursor.place as usize)?;
        let next = Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 };
        (here == token).then_some(next)
    }

    /// The one token that stands there, unless the chain is at its full length.
    ///
    /// The longer the match, the surer: `match_len / (match_len + 1)`.
    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        let start = self.cursor().map_or(cursor.place, |start| start.place);
        let chain_len = cursor.place.saturating_sub(start) as usize;
        if chain_len >= MAX_CHAIN {
            return;
        }
        let next = self.text.get(cursor.place as usize).and_then(|&token| {
            let probability = cursor.match_len as f32 / (cursor.match_len + 1) as f32;
            Some(Successor { token, probability, cursor: self.advance(cursor, token)? })
        });
        out.extend(next);
    }
}

impl Learn for PromptLookup {
    /// # Panics
    /// At 2^32 tokens.
    fn extend(&mut self, tokens: &[TokenId]) {
        for &token in tokens {
            // Only now the n-grams that end in the token before have a continuation.
            let end = u32::try_from(self.text.len()).expect("a text holds less than 2^32 tokens");
            self.text.push(token);
            self.first.iter_mut().for_each(|first| first.insert(&self.text, end));
        }
        self.found = self.search();
    }

    fn clear(&mut self) {
        self.text.clear();
        self.first.iter_mut().for_each(FirstOccurrences::clear);
        self.found = None;
    }

    fn memory_bytes(&self) -> usize {
        let slots: usize = self.first.iter().map(|first| first.slots.capacity()).sum();
        self.text.capacity() * size_of::<TokenId>() + slots * size_of::<Option<Slot>>()
    }
}

/// The end of an n-gram, exclusive; there is at least one token before it.
type Slot = std::num::NonZeroU32;

/// N-gram -> where its first occurrence ends; open addressing, at most three quarters full.
#[derive(Clone, Debug)]
struct FirstOccurrences {
    ngram_len: usize,
    slots: Vec<Option<Slot>>,
    num_ngrams: usize,
}

impl FirstOccurrences {
    fn new(ngram_len: usize) -> Self {
        Self { ngram_len, slots: vec![None; 16], num_ngrams: 0 }
    }

    /// Takes in the n-gram of `text` that ends at `end`, unless it is known or there is none.
    fn insert(&mut self, text: &[TokenId], end: u32) {
        let Some(start) = (end as usize).checked_sub(self.ngram_len) else { return };
        let slot = self.slot(text, &text[start..end as usize]);
        if self.slots[slot].is_some() {
            return;
        }
        self.slots[slot] = Slot::new(end);
        self.num_ngrams += 1;
        if 4 * self.num_ngrams > 3 * self.slots.len() {
            self.rehash(text);
        }
    }

    fn find(&self, text: &[TokenId], ngram: &[TokenId]) -> Option<u32> {
        self.slots[self.slot(text, ngram)].map(Slot::get)
    }

    fn clear(&mut self) {
        self.slots.fill(None);
        self.num_ngrams = 0;
    }

    /// Doubles the table.
    fn rehash(&mut self, text: &[TokenId]) {
        let doubled = vec![None; 2 * self.slots.len()];
        for end in std::mem::replace(&mut self.slots, doubled).into_iter().flatten() {
            let slot = self.slot(text, self.ngram(text, end));
            self.slots[slot] = Some(end);
        }
    }

    fn ngram<'text>(&self, text: &'text [TokenId], end: Slot) -> &'text [TokenId] {
        let end = end.get() as usize;
        &text[end - self.ngram_len..end]
    }

    /// The slot that holds `ngram`, or the empty one where it belongs.
    fn slot(&self, text: &[TokenId], ngram: &[TokenId]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(ngram) & mask;
        while self.slots[slot].is_some_and(|end| self.ngram(text, end) != ngram) {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

fn hash(ngram: &[TokenId]) -> usize {
    let mixed = ngram.iter().fold(0u64, |mixed, token| {
        (mixed ^ u64::from(token.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_right(29)
    });
    mixed as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What transformers' PromptLookupCandidateGenerator returns.
    fn naive_chain(text: &[TokenId]) -> Vec<TokenId> {
        for ngram_len in (1..=MAX_NGRAM.min(text.len().saturating_sub(1))).rev() {
            let ngram = &text[text.len() - ngram_len..];
            for end in ngram_len..text.len() {
                if &text[end - ngram_len..end] == ngram {
                    return text[end..text.len().min(end + MAX_CHAIN)].to_vec();
                }
            }
        }
        Vec::new()
    }

    /// The tokens on the way along successors.
    fn walk(lookup: &PromptLookup) -> Vec<TokenId> {
        let (mut cursor, mut tokens) = (lookup.cursor(), Vec::new());
        while let Some(place) = cursor {
            let mut found = Vec::new();
            lookup.successors(place, &mut found);
            cursor = found.first().map(|next| {
                assert_eq!(lookup.advance(place, next.token), Some(next.cursor));
                assert!(next.probability > 0.0 && next.probability < 1.0);
                tokens.push(next.token);
                next.cursor
            });
        }
        tokens
    }

    proptest! {
        #[test]
        fn chain_is_that_of_a_scan(text in prop::collection::vec(0..4u32, 0..120)) {
            let text: Vec<TokenId> = text.into_iter().map(TokenId).collect();
            let mut lookup = PromptLookup::new();
            for end in 0..=text.len() {
                lookup.extend(&text[end.saturating_sub(1)..end]);
                prop_assert_eq!(lookup.chain(), naive_chain(&text[..end]));
                prop_assert_eq!(walk(&lookup), naive_chain(&text[..end]));
            }
            lookup.clear();
            prop_assert!(lookup.chain().is_empty());
            lookup.extend(&text);
            prop_assert_eq!(lookup.chain(), naive_chain(&text));
        }
    }

    #[test]
    fn another_token_leaves_the_chain() {
        let mut lookup = PromptLookup::new();
        lookup.extend(&[1, 2, 3, 1].map(TokenId));
        let cursor = lookup.cursor().unwrap();
        assert_eq!(lookup.advance(cursor, TokenId(9)), None);
        assert_eq!(lookup.advance(cursor, TokenId(2)).unwrap().place, 2);
    }
}
