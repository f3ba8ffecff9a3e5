//! A source whose guesses are held to the target's vocabulary. In: a source that draws on something
//! else than the request. Out: what it says, without ids that the target does not know.
//!
//! The one place where this is looked at: no source has to, and a source of the caller's own, or a
//! file that was learned from another model, drafts nothing that a session could not look up.

use crate::draft::source::{Cursor, Propose, Successor};
use crate::draft::token_variants::TokenVariants;
use crate::ids::TokenId;

/// A source, and the number of ids that the target knows.
#[derive(Clone, Copy)]
pub struct InVocabulary<'a> {
    source: &'a dyn Propose,
    vocab_size: usize,
}

impl<'a> InVocabulary<'a> {
    /// What `source` says of ids below `vocab_size`.
    pub fn new(source: &'a dyn Propose, vocab_size: usize) -> Self {
        Self { source, vocab_size }
    }
}

impl Propose for InVocabulary<'_> {
    fn name(&self) -> &'static str {
        self.source.name()
    }

    fn vocab_size(&self) -> Option<usize> {
        Some(self.vocab_size)
    }

    fn cursor(&self) -> Option<Cursor> {
        self.source.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.source.advance(cursor, token)
    }

    /// Leaves out what is foreign.
    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let start = out.len();
        self.source.successors_above(cursor, at_least, out);
        let is_foreign = |next: &Successor| next.token.0 as usize >= self.vocab_size;
        if out[start..].iter().any(is_foreign) {
            let mut index = 0;
            out.retain(|next| {
                index += 1;
                index <= start || !is_foreign(next)
            });
        }
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        self.source.leaves_out_the_unlikely()
    }

    fn is_model(&self) -> bool {
        self.source.is_model()
    }

    fn is_expectation(&self) -> bool {
        self.source.is_expectation()
    }

    fn is_background(&self) -> bool {
        self.source.is_background()
    }

    fn token_variants(&self) -> Option<&TokenVariants> {
        self.source.token_variants()
    }
}
