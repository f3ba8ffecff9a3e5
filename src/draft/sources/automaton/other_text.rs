//! A text beside the request's own, for the sources that draft from one: an automaton over it, and
//! the place where the request's text matches it.
//!
//! In: the other text, part by part, and the request's tokens. Out: what a source answers.

use super::suffix_automaton::SuffixAutomaton;
use crate::draft::source::{Cursor, Propose, Successor};
use crate::ids::TokenId;

/// Stands between two parts of the text; no vocabulary has it, so it never drafts.
pub const BORDER: TokenId = TokenId(u32::MAX);

/// Cost: that of a [`SuffixAutomaton`].
#[derive(Debug, Default)]
pub struct OtherText {
    automaton: SuffixAutomaton,
    place: Option<Cursor>,
}

impl OtherText {
    /// Appends a part, which is not matched across its border to the next.
    pub fn add_part(&mut self, tokens: &[TokenId]) {
        add_part(&mut self.automaton, tokens);
        self.automaton.settle();
    }

    /// Forgets the text, and the place in it.
    pub fn clear(&mut self) {
        self.automaton.clear();
        self.place = None;
    }

    /// Moves on with the request's text: to the longest suffix of it that the text holds.
    pub fn follow(&mut self, tokens: &[TokenId]) {
        for &token in tokens {
            let from = self.place.unwrap_or(SuffixAutomaton::START);
            self.place = self.automaton.advance(from, token);
        }
    }

    /// Goes to a place without following the request's text there; `None` is nowhere.
    pub fn set_place(&mut self, place: Option<Cursor>) {
        self.place = place;
    }

    /// Where the request's text ends in this one.
    pub fn cursor(&self) -> Option<Cursor> {
        self.place
    }

    /// The place after `token`, as in `Propose`.
    pub fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.automaton.advance(cursor, token)
    }

    /// What came next in the text, as in `Propose`; never a border.
    pub fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        successors_above(&self.automaton, cursor, at_least, out);
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.automaton.memory_bytes()
    }
}

/// Appends a part to a text of parts, with a border behind it.
pub fn add_part(automaton: &mut SuffixAutomaton, tokens: &[TokenId]) {
    automaton.extend(tokens);
    automaton.extend(&[BORDER]);
}

/// What came next in a text of parts, as in `Propose`; never a border.
pub fn successors_above(
    automaton: &SuffixAutomaton,
    cursor: Cursor,
    at_least: f32,
    out: &mut Vec<Successor>,
) {
    let start = out.len();
    automaton.successors_above(cursor, at_least, out);
    if let Some(border) = out[start..].iter().position(|next| next.token == BORDER) {
        out.remove(start + border);
    }
}
