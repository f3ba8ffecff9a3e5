//! A guess, and what is sorted in place of guesses and candidates: of a value and an index eight bytes
//! that one comparison puts in order.

use crate::draft::choose::acceptance::Proposal;
use crate::draft::source::Cursor;
use crate::ids::TokenId;

/// No guess is a certainty: a long chain of sure guesses must lose to a sibling at some depth.
pub(super) const MAX_PROBABILITY: f32 = 0.98;

/// What a source proposes after a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess {
    pub(super) token: TokenId,
    /// The source's estimate times the trust in it.
    pub(super) probability: f32,
    pub(super) proposal: Proposal,
    /// The place after the token, in the proposing source; it may be put off.
    pub(super) cursor: Cursor,
}

/// A value that is not negative, and an index: in the order of the value, and among equals the lower
/// index is the greater key.
///
/// The bits of such a value are in the order of what they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    pub fn new(value: f32, index: usize) -> Self {
        Self(u64::from(value.to_bits()) << 32 | u64::from(!(index as u32)))
    }

    pub fn value(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }

    pub fn index(self) -> u32 {
        !(self.0 as u32)
    }

    /// Adds the key to sorted ones, of which those stand behind it that `follow` it. Cost: their number.
    #[inline]
    pub fn insert(self, keys: &mut Vec<Self>, follow: impl Fn(&Self, &Self) -> bool) {
        let mut place = keys.len();
        keys.push(self);
        while place > 0 && follow(&keys[place - 1], &self) {
            keys[place] = keys[place - 1];
            place -= 1;
        }
        keys[place] = self;
    }
}
