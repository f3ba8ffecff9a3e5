//! What may become a node of a growing tree. In: guesses and candidates, in the order in which they are
//! found. Out: the worthiest, and how worthy a newcomer must be.
//!
//! In place of guesses and candidates keys are sorted: of a value and an index eight bytes that one
//! comparison puts in order.

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

/// What may become a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Index of the guess among all.
    pub guess: u32,
    /// Index of its parent among the nodes.
    pub parent: u32,
    /// As of a node.
    pub path_probability: f32,
    /// As of a node; not negative.
    pub worth: f32,
    /// As of a node.
    pub on_first_path: bool,
}

/// The worthiest candidates, as many as nodes are missing, in the order of their worth.
#[derive(Debug, Default)]
pub(super) struct Frontier {
    /// Worth and index: the worthiest last, the older one last among equals.
    keys: Vec<Key>,
    /// In the order of their coming, also those that have left.
    candidates: Vec<Candidate>,
}

impl Frontier {
    /// Forgets all candidates.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.candidates.clear();
    }

    /// Adds a candidate that is [admitted](Self::admits); of more than `num_missing` the least worthy
    /// goes.
    pub fn push(&mut self, candidate: Candidate, num_missing: usize) {
        let key = Key::new(candidate.worth, self.candidates.len());
        self.candidates.push(candidate);
        if self.keys.len() < num_missing {
            return key.insert(&mut self.keys, Key::gt);
        }
        let mut place = 0; // of the least worthy, which most newcomers are hardly above
        while self.keys.get(place + 1).is_some_and(|&next| next < key) {
            self.keys[place] = self.keys[place + 1];
            place += 1;
        }
        self.keys[place] = key;
    }

    /// Takes the worthiest out, the oldest of equals.
    pub fn pop(&mut self) -> Option<Candidate> {
        self.keys.pop().map(|key| self.candidates[key.index() as usize])
    }

    /// The worth that a newcomer must exceed to become one of `num_missing` nodes; `None` where any
    /// would do, or nothing is missing.
    pub fn least_worth(&self, num_missing: usize) -> Option<f32> {
        if self.keys.len() < num_missing {
            return None;
        }
        self.keys.first().map(|known| known.value())
    }

    /// Whether something of this worth may still become one of `num_missing` nodes.
    pub fn admits(&self, worth: f32, num_missing: usize) -> bool {
        if self.keys.len() < num_missing {
            return true;
        }
        self.keys.first().is_some_and(|known| worth > known.value())
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>()
            + self.candidates.capacity() * size_of::<Candidate>()
    }
}
