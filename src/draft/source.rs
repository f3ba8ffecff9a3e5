//! The trait of everything that drafts. In: committed tokens. Out: likely successors of a place.
//!
//! A source answers questions about *places*; it never builds the tree. The drafter walks many
//! places of many sources at once and keeps the likeliest, so a source stays a lookup.

use crate::ids::TokenId;

/// A place in a source's own data: where some text that ends in a draft node was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The source's own index: a state, a position, a node.
    pub place: u32,
    /// Number of tokens, ending at this place, that agree with the committed text and the draft.
    pub match_len: u32,
}

/// One token that may come next, as a source sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Successor {
    /// The token.
    pub token: TokenId,
    /// The source's own estimate, in (0, 1], that the target says it.
    pub probability: f32,
    /// The place after the token.
    pub cursor: Cursor,
}

/// Something that proposes what may come next.
pub trait DraftSource: Send + Sync {
    /// The name in options and statistics.
    fn name(&self) -> &'static str;

    /// Appends committed tokens (the prompt first) to the text that the source draws on.
    fn extend(&mut self, tokens: &[TokenId]);

    /// The place that the committed text ends in; `None` when nothing matches.
    fn cursor(&self) -> Option<Cursor>;

    /// The place after `token`, were it to come next; `None` when nothing matches any more.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor>;

    /// Appends the likely successors of `cursor` to `out`, a bounded number, likeliest first.
    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>);

    /// Forgets the text of the request; capacity may stay allocated.
    fn clear(&mut self);

    /// Bytes held on the heap.
    fn memory_bytes(&self) -> usize;
}
