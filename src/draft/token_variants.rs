//! Which tokens of a target stand for nearly the same text. In: pairs of tokens that somebody who
//! knows their texts has found. Out: what else a token may be written as.
//!
//! A tokenizer joins what stands side by side: the last mark of a line with the break behind it, a
//! word with the space before it. A copy that ends sooner, or begins a line, has other tokens.

use crate::ids::TokenId;

/// Other tokens for the text of a token.
///
/// # How it stores
/// Pairs in the order of their tokens, 12 bytes each at most, and a bit for each token up to the
/// largest that has a line break.
///
/// # Cost
/// Asking for [`without_break`](Self::without_break): one read where there is none, as for most
/// tokens; else, as for [`others`](Self::others), a binary search.
#[derive(Debug, Default)]
pub struct TokenVariants {
    /// Bit `token % 64` of word `token / 64` is set where a token is among `line_ends`.
    has_break: Vec<u64>,
    /// Each token once.
    line_ends: Vec<(TokenId, TokenId)>,
    /// Those of a token side by side, the closest first.
    others: Vec<(TokenId, TokenVariant)>,
}

/// Another token for the text of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenVariant {
    /// That token.
    pub token: TokenId,
    /// Whether it is the same word in the same case, with a space before it or without.
    pub is_same_word: bool,
}

impl TokenVariants {
    /// From pairs of tokens: the ends of lines with what they are without the break, of which the first
    /// of a token counts; words with themselves behind a space or not; and words with themselves in
    /// another case, closest first.
    pub fn new(
        line_ends: impl IntoIterator<Item = (TokenId, TokenId)>,
        spaced: impl IntoIterator<Item = (TokenId, TokenId)>,
        cased: impl IntoIterator<Item = (TokenId, TokenId)>,
    ) -> Self {
        let mut line_ends: Vec<_> = line_ends.into_iter().collect();
        line_ends.sort_by_key(|pair| pair.0);
        line_ends.dedup_by_key(|pair| pair.0);
        let num_words = line_ends.last().map_or(0, |pair| pair.0.0 as usize / 64 + 1);
        let mut has_break = vec![0; num_words];
        for (token, _) in &line_ends {
            has_break[token.0 as usize / 64] |= 1 << (token.0 % 64);
        }
        let of_kind = |is_same_word| {
            move |(one, token): (TokenId, TokenId)| (one, TokenVariant { token, is_same_word })
        };
        let spaced = spaced.into_iter().map(of_kind(true));
        let mut others: Vec<_> = spaced.chain(cased.into_iter().map(of_kind(false))).collect();
        others.sort_by_key(|pair| pair.0);
        Self { has_break, line_ends, others }
    }

    /// What a token is without the line break at its end; `None` where it has none.
    #[inline]
    pub fn without_break(&self, token: TokenId) -> Option<TokenId> {
        let bits = self.has_break.get(token.0 as usize / 64)?;
        if bits >> (token.0 % 64) & 1 == 0 {
            return None;
        }
        let place = self.line_ends.binary_search_by_key(&token, |pair| pair.0);
        place.ok().map(|place| self.line_ends[place].1)
    }

    /// Other tokens for the word of a token, the closest first.
    pub fn others(&self, token: TokenId) -> impl Iterator<Item = TokenVariant> {
        let start = self.others.partition_point(|pair| pair.0 < token);
        self.others[start..].iter().take_while(move |pair| pair.0 == token).map(|pair| pair.1)
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.has_break.capacity() * size_of::<u64>()
            + self.line_ends.capacity() * size_of::<(TokenId, TokenId)>()
            + self.others.capacity() * size_of::<(TokenId, TokenVariant)>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs() -> impl Strategy<Value = Vec<(TokenId, TokenId)>> {
        let token = || prop_oneof![0..6u32, 60..70u32].prop_map(TokenId);
        prop::collection::vec((token(), token()), 0..12)
    }

    proptest! {
        #[test]
        fn a_token_has_the_spellings_that_were_paired_with_it(
            line_ends in pairs(), spaced in pairs(), cased in pairs(),
        ) {
            let token_variants = TokenVariants::new(line_ends.clone(), spaced.clone(), cased.clone());
            for token in (0..140).map(TokenId) {
                let of_token = |pair: &&(TokenId, TokenId)| pair.0 == token;
                let without = line_ends.iter().find(of_token).map(|pair| pair.1);
                prop_assert_eq!(token_variants.without_break(token), without);
                let others: Vec<_> = token_variants.others(token).collect();
                let same = others.iter().filter(|other| other.is_same_word).map(|other| other.token);
                let same: Vec<_> = same.collect();
                let expected: Vec<_> = spaced.iter().filter(of_token).map(|pair| pair.1).collect();
                prop_assert_eq!(&same, &expected);
                let rest: Vec<_> = others[same.len()..].iter().map(|other| other.token).collect();
                let expected: Vec<_> = cased.iter().filter(of_token).map(|pair| pair.1).collect();
                prop_assert_eq!(rest, expected);
            }
        }
    }
}
