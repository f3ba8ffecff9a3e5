//! What the other sources say, in other tokens. In: which tokens stand for nearly the same text. Out:
//! that, for whoever asks all sources; of its own it says nothing.

use std::sync::Arc;

use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::draft::token_variants::TokenVariants;
use crate::ids::TokenId;

/// Lets the others' guesses be written otherwise: where one is the end of a line, the line may end
/// without its break, as the last of an answer does; and where the last token is new to a text, its
/// word may stand there behind a space, or in another case.
///
/// How often a break is left out is learned as of any source.
///
/// ```
/// use std::sync::Arc;
///
/// use coordgen_rs::draft::source::Propose;
/// use coordgen_rs::draft::sources::respelling::Respelling;
/// use coordgen_rs::draft::token_variants::TokenVariants;
/// use coordgen_rs::ids::TokenId;
///
/// let ends = [(TokenId(7), TokenId(3))]; // ">\n", ">"
/// let source = Respelling::new(Arc::new(TokenVariants::new(ends, [], [])));
/// assert_eq!(source.cursor(), None);
/// assert_eq!(source.token_variants().unwrap().without_break(TokenId(7)), Some(TokenId(3)));
/// ```
#[derive(Debug, Default)]
pub struct Respelling {
    token_variants: Arc<TokenVariants>,
}

impl Respelling {
    /// The name in options and statistics.
    pub const NAME: &'static str = "respelling";

    /// Draws on `token_variants`, which several drafters may share.
    pub fn new(token_variants: Arc<TokenVariants>) -> Self {
        Self { token_variants }
    }
}

impl Propose for Respelling {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cursor(&self) -> Option<Cursor> {
        None
    }

    fn advance(&self, _: Cursor, _: TokenId) -> Option<Cursor> {
        None
    }

    fn successors_above(&self, _: Cursor, _: f32, _: &mut Vec<Successor>) {}

    fn token_variants(&self) -> Option<&TokenVariants> {
        Some(&self.token_variants)
    }
}

impl Learn for Respelling {
    fn extend(&mut self, _: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        self.token_variants.memory_bytes()
    }
}
