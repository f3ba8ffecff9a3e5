//! The tokens that a text says in the most different places. In: each token that follows another one
//! for the first time. Out: a few of them, and how much more often than others they do.
//!
//! What comes next where nothing that was seen before fits.

use crate::ids::TokenId;

/// Tokens that are told apart from the rest. In recorded answers 16 do as well in a draft of 16 tokens;
/// they fall behind by 1.5 % at 32 tokens and by 3 % at 64.
pub(super) const MOST_FREQUENT: usize = 48;

/// Tokens that are counted: a power of two, 32 kB.
const NUM_COUNTED: usize = 1 << 12;

/// A token, and how many different tokens it came after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frequent {
    pub(super) token: TokenId,
    pub(super) num_contexts: u32,
}

/// Continuation counts (Kneser and Ney 1995): a token counts once for each different one before it. What
/// is repeated in one phrase only is the business of longer matches; what comes after many
/// different tokens comes after new ones too. On recorded answers it foretells up to 3 % more tokens a
/// step than the number of occurrences.
///
/// Two tokens that share a place fight for it: the one that is counted more often stays, less what
/// the other one took.
#[derive(Clone, Debug, Default)]
pub(super) struct FrequentTokens {
    /// [`NUM_COUNTED`] places, or none before the first token.
    counted: Vec<Frequent>,
    /// The most frequent first.
    most: Vec<Frequent>,
    total: u32,
}

impl FrequentTokens {
    /// Counts a token that has come after a new one.
    pub fn count(&mut self, token: TokenId) {
        if self.counted.is_empty() {
            self.counted = vec![Frequent { token, num_contexts: 0 }; NUM_COUNTED];
        }
        self.total += 1;
        let hash = u64::from(token.0).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let place = &mut self.counted[hash as usize & (NUM_COUNTED - 1)];
        if place.num_contexts == 0 {
            place.token = token;
        }
        if place.token != token {
            place.num_contexts -= 1;
            return;
        }
        place.num_contexts += 1;
        let counted = *place;
        if self.most.len() == MOST_FREQUENT
            && counted.num_contexts <= self.most[MOST_FREQUENT - 1].num_contexts
        {
            return;
        }
        self.rank(counted);
    }

    /// The most frequent tokens, at most [`MOST_FREQUENT`], the most frequent first.
    pub fn most(&self) -> &[Frequent] {
        &self.most
    }

    /// Of all tokens together.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Forgets the text; capacity stays allocated.
    pub fn clear(&mut self) {
        self.counted.fill(Frequent { token: TokenId(0), num_contexts: 0 });
        self.most.clear();
        self.total = 0;
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        (self.counted.capacity() + self.most.capacity()) * size_of::<Frequent>()
    }

    /// Puts a token that is frequent enough into its place among the most frequent.
    fn rank(&mut self, counted: Frequent) {
        let known = self.most.iter().position(|known| known.token == counted.token);
        let mut place = known.unwrap_or_else(|| {
            self.most.truncate(MOST_FREQUENT - 1);
            self.most.push(counted);
            self.most.len() - 1
        });
        let num_contexts = self.most[place].num_contexts.max(counted.num_contexts);
        self.most[place].num_contexts = num_contexts;
        while place > 0 && self.most[place - 1].num_contexts < num_contexts {
            self.most.swap(place, place - 1);
            place -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(tokens: &[u32]) -> FrequentTokens {
        let mut frequent = FrequentTokens::default();
        tokens.iter().for_each(|&token| frequent.count(TokenId(token)));
        frequent
    }

    proptest! {
        #[test]
        fn the_most_frequent_stand_first(tokens in prop::collection::vec(0u32..60, 0..400)) {
            let frequent = counted(&tokens);
            let num_of = |of: u32| tokens.iter().filter(|&&token| token == of).count() as u32;
            let mut expected: Vec<u32> = (0..60).map(num_of).filter(|&num| num > 0).collect();
            expected.sort_by(|one, other| other.cmp(one));
            expected.truncate(MOST_FREQUENT);
            for known in frequent.most() {
                prop_assert_eq!(known.num_contexts, num_of(known.token.0));
            }
            let found: Vec<u32> = frequent.most().iter().map(|known| known.num_contexts).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(frequent.total() as usize, tokens.len());
        }
    }

    #[test]
    fn the_most_frequent_are_known_in_a_large_vocabulary() {
        let mut tokens: Vec<u32> = (0..100_000).map(|at| at * 7919 % 1_000_003).collect();
        tokens.iter_mut().step_by(10).for_each(|token| *token = 5);
        tokens.iter_mut().skip(1).step_by(20).for_each(|token| *token = 6);
        let frequent = counted(&tokens);
        let first: Vec<u32> = frequent.most()[..2].iter().map(|known| known.token.0).collect();
        assert_eq!(first, [5, 6]);
        assert_eq!(frequent.most().len(), MOST_FREQUENT);
    }

    #[test]
    fn cleared_is_as_good_as_new() {
        let mut frequent = counted(&[1, 2, 2]);
        frequent.clear();
        assert!(frequent.most().is_empty() && frequent.total() == 0);
        frequent.count(TokenId(2));
        assert_eq!(frequent.most(), counted(&[2]).most());
    }
}
