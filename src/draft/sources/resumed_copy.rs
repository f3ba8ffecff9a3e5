//! A copy that survives a mismatch (CoordGen's missing words and synonyms, Table 2, applied to the
//! context). In: the request, token by token. Out: what the text goes on with behind a place where
//! the answer left it.
//!
//! Proposes nothing while a copy runs undisturbed: that is the automaton's work.

use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Tokens that make a copy.
const LEAST_COPY: usize = 4;
/// Tokens behind a mismatch, of the answer and of the text, in which the copy may be taken up again.
const WINDOW: usize = 10;
/// Tokens of a resumed copy after which it is one like others.
const LONGEST_RESUMED: u32 = 12;

/// Tokens behind a mismatch that may be one for one in place of the text's, or extra ones.
const PATIENCE: usize = 2;
/// Chance that they stand in place of as many of the text, by their number. These figures are what
/// recorded answers of Vicuna-7B, Qwen2.5-1.5B and gpt-4o did, on one half of them.
const AFTER_SUBSTITUTION: [f32; PATIENCE] = [0.10, 0.03];
/// That they stand beside it.
const AFTER_INSERTION: [f32; PATIENCE] = [0.04, 0.02];
/// That the text goes on behind the first of its next tokens that was said again.
const AFTER_ONE_FOUND: f32 = 0.28;
/// That it goes on behind so many tokens that were said again, from one on, the last for all beyond.
const AFTER_SEVERAL: [f32; 5] = [0.54, 0.7, 0.7, 0.75, 0.8];

/// Situations behind a mismatch that are trusted apart from each other.
const SITUATIONS: u32 = 3;

/// Where the answer stands in the text that it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    /// It copies nothing.
    Nothing,
    /// `next` comes next; of the tokens before it `num_resumed` stand behind a mismatch, or none.
    Copy { next: usize, len: usize, num_resumed: u32 },
    /// It left the text before `next`, `num_since` tokens ago.
    Broken { next: usize, num_since: usize },
}

/// Follows the latest copy of `LEAST_COPY` tokens or more through substituted, inserted and left-out
/// tokens: it is taken up again where two tokens of the answer stand side by side in the next ones
/// of the text.
///
/// # How it stores
/// The text, and for each four tokens of it where they ended last, in a table without chains: 12 to
/// 20 bytes a token.
///
/// # Cost
/// `extend`: one look into the table a token, or at most `WINDOW` comparisons behind a mismatch.
/// `successors`: as many comparisons at most.
///
/// # Example
/// ```
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::draft::sources::resumed_copy::ResumedCopy;
/// use coordgen_rs::ids::TokenId;
///
/// let mut copy = ResumedCopy::new();
/// copy.extend(&[1, 2, 3, 4, 5, 6, 7, 8].map(TokenId));
/// copy.extend(&[1, 2, 3, 4].map(TokenId));
/// assert_eq!(copy.cursor(), None); // nothing was mismatched
/// copy.extend(&[TokenId(9)]);
/// let mut successors = Vec::new();
/// copy.successors(copy.cursor().unwrap(), &mut successors);
/// assert_eq!(successors[0].token, TokenId(6)); // 9 in place of 5
/// assert_eq!(successors[1].token, TokenId(5)); // 9 before 5
/// ```
#[derive(Clone, Debug)]
pub struct ResumedCopy {
    text: Vec<TokenId>,
    /// Where tokens of this hash ended last, exclusive; 0 is nowhere. A power of two of entries.
    ends: Vec<u32>,
    following: CopyState,
}

impl Default for ResumedCopy {
    fn default() -> Self {
        Self { text: Vec::new(), ends: Vec::new(), following: CopyState::Nothing }
    }
}

impl ResumedCopy {
    /// The name in options and statistics.
    pub const NAME: &'static str = "resumed-copy";

    /// The place where the answer ends, behind a mismatch; no index of the text.
    const BROKEN: u64 = u64::MAX;

    /// The source of the empty text.
    pub fn new() -> Self {
        Self::default()
    }

    /// The entry of the last [`LEAST_COPY`] tokens of the text up to `end`.
    fn entry(&self, end: usize) -> usize {
        let tokens = &self.text[end - LEAST_COPY..end];
        let mixed = |hash: u64, token: &TokenId| {
            (hash ^ u64::from(token.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        };
        tokens.iter().fold(0, mixed) as usize & (self.ends.len() - 1)
    }

    /// Makes room for `additional` tokens.
    fn reserve(&mut self, additional: usize) {
        let num_entries = (2 * (self.text.len() + additional)).next_power_of_two();
        if num_entries <= self.ends.len() {
            return;
        }
        self.ends.clear();
        self.ends.resize(num_entries.max(1024), 0);
        for end in LEAST_COPY..=self.text.len() {
            let entry = self.entry(end);
            self.ends[entry] = end as u32;
        }
    }

    fn push(&mut self, token: TokenId) {
        self.text.push(token);
        let end = self.text.len();
        self.following = match self.following {
            CopyState::Copy { next, len, num_resumed } if self.text[next] == token => {
                let num_resumed = if num_resumed > 0 { num_resumed + 1 } else { 0 };
                CopyState::Copy { next: next + 1, len: len + 1, num_resumed }
            }
            CopyState::Copy { next, len, .. } if len >= LEAST_COPY => {
                CopyState::Broken { next, num_since: 1 }
            }
            CopyState::Broken { next, num_since } if num_since < WINDOW => {
                match self.taken_up(next, 2) {
                    Some(next) => CopyState::Copy { next, len: LEAST_COPY, num_resumed: 2 },
                    None => CopyState::Broken { next, num_since: num_since + 1 },
                }
            }
            _ => CopyState::Nothing,
        };
        if end < LEAST_COPY {
            return;
        }
        let entry = self.entry(end);
        let before = self.ends[entry] as usize;
        self.ends[entry] = u32::try_from(end).expect("a text holds less than 2^32 tokens");
        if !matches!(self.following, CopyState::Copy { .. })
            && before > 0
            && self.text[before - LEAST_COPY..before] == self.text[end - LEAST_COPY..]
        {
            self.following = CopyState::Copy { next: before, len: LEAST_COPY, num_resumed: 0 };
        }
    }

    /// The first place of the text from `next` on, within the window, behind the answer's last
    /// `num_tokens`.
    fn taken_up(&self, next: usize, num_tokens: usize) -> Option<usize> {
        let answer = &self.text[self.text.len() - num_tokens..];
        let last = (next + WINDOW).min(self.text.len() - num_tokens);
        (next + num_tokens..=last).find(|&end| self.text[end - num_tokens..end] == *answer)
    }

    /// Where the text may go on `num_since` tokens after it was left before `next`, and how likely that
    /// is; the likeliest first.
    fn places(&self, next: usize, num_since: usize) -> impl Iterator<Item = (usize, f32)> {
        let found = self.taken_up(next, 1).map(|place| (place, AFTER_ONE_FOUND));
        let chances = AFTER_SUBSTITUTION.get(num_since - 1).zip(AFTER_INSERTION.get(num_since - 1));
        let unfound =
            chances.map(|(&in_place, &beside)| [(next + num_since, in_place), (next, beside)]);
        found.into_iter().chain(unfound.into_iter().flatten())
    }

    /// Appends the token at `place` unless it is there already.
    fn add(&self, place: usize, probability: f32, start: usize, out: &mut Vec<Successor>) {
        let Some(&token) = self.text.get(place) else { return };
        if out[start..].iter().all(|known| known.token != token) {
            let cursor = Cursor { place: place as u64 + 1, match_len: SITUATIONS + 1 };
            out.push(Successor { token, probability, cursor });
        }
    }
}

impl Propose for ResumedCopy {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// `None` while nothing was mismatched. The `match_len` tells situations apart that deserve
    /// different trust: up to 4 the tokens since the mismatch, then 4 more than those that agreed.
    fn cursor(&self) -> Option<Cursor> {
        match self.following {
            CopyState::Copy { next, num_resumed, .. }
                if (1..=LONGEST_RESUMED).contains(&num_resumed) =>
            {
                Some(Cursor { place: next as u64, match_len: SITUATIONS + num_resumed })
            }
            CopyState::Broken { num_since, .. } => {
                let match_len = SITUATIONS.min(num_since as u32);
                Some(Cursor { place: Self::BROKEN, match_len })
            }
            _ => None,
        }
    }

    /// The place after `token` where one of the successors is that token.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        if cursor.place != Self::BROKEN {
            let goes_on = self.text.get(cursor.place as usize) == Some(&token);
            let next = Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 };
            return goes_on.then_some(next);
        }
        let CopyState::Broken { next, num_since } = self.following else { return None };
        let place = self.places(next, num_since).find(|&(at, _)| self.text.get(at) == Some(&token));
        let (place, _) = place?;
        Some(Cursor { place: place as u64 + 1, match_len: SITUATIONS + 1 })
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        if cursor.place != Self::BROKEN {
            let num_agreed = cursor.match_len - SITUATIONS;
            let probability = AFTER_SEVERAL[(num_agreed as usize - 1).min(AFTER_SEVERAL.len() - 1)];
            let Some(&token) = self.text.get(cursor.place as usize) else { return };
            let cursor = Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 };
            out.push(Successor { token, probability, cursor });
            return;
        }
        let CopyState::Broken { next, num_since } = self.following else { return };
        let start = out.len();
        for (place, probability) in self.places(next, num_since) {
            self.add(place, probability, start, out);
        }
    }
}

impl Learn for ResumedCopy {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.reserve(tokens.len());
        tokens.iter().for_each(|&token| self.push(token));
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.fill(0);
        self.following = CopyState::Nothing;
    }

    fn memory_bytes(&self) -> usize {
        self.text.capacity() * size_of::<TokenId>() + self.ends.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::sources::automaton::suffix_automaton::tests::{texts, tokens};

    /// What is proposed once the answer stands behind the text.
    fn proposed(text: &[u32], answer: &[u32]) -> Vec<u32> {
        let mut copy = ResumedCopy::new();
        copy.extend(&tokens(text));
        copy.extend(&tokens(answer));
        let mut found = Vec::new();
        if let Some(cursor) = copy.cursor() {
            copy.successors(cursor, &mut found);
        }
        found.iter().map(|next| next.token.0).collect()
    }

    const TEXT: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

    #[test]
    fn behind_a_mismatch_the_text_goes_on_behind_it_or_where_it_was_left() {
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 50]), [6, 5]);
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 50, 51]), [7, 5]);
    }

    #[test]
    fn a_token_that_was_left_out_is_followed_first() {
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 6])[0], 7);
    }

    #[test]
    fn two_tokens_take_the_copy_up_again() {
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 50, 6, 7]), [8]);
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 50, 51, 52, 5, 6]), [7]);
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 8, 9]), [10]);
    }

    #[test]
    fn what_is_no_copy_is_not_resumed() {
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 50]), [] as [u32; 0]);
        assert_eq!(proposed(&TEXT, &[1, 2, 3, 4, 5]), [] as [u32; 0]);
        let long_ago = [&[1, 2, 3, 4][..], &[50; 11]].concat();
        assert_eq!(proposed(&TEXT, &long_ago), [] as [u32; 0]);
    }

    #[test]
    fn nothing_comes_behind_the_end_of_the_text() {
        let mut copy = ResumedCopy::new();
        copy.extend(&tokens(&[0, 1, 2, 3, 4, 0, 1, 2, 3, 9, 9]));
        let mut found = Vec::new();
        let cursor = Cursor { place: copy.text.len() as u64, match_len: SITUATIONS + 2 };
        copy.successors(cursor, &mut found);
        assert!(found.is_empty() && copy.advance(cursor, TokenId(0)).is_none());
    }

    proptest! {
        #[test]
        fn every_successor_is_reached_by_advancing(text in texts()) {
            let mut copy = ResumedCopy::new();
            for &token in &text {
                copy.extend(&[token]);
                let mut cursor = copy.cursor();
                for _ in 0..4 {
                    let Some(place) = cursor else { break };
                    let mut found = Vec::new();
                    copy.successors(place, &mut found);
                    prop_assert!(found.is_sorted_by(|a, b| a.probability >= b.probability));
                    for next in &found {
                        prop_assert!(next.probability > 0.0 && next.probability <= 1.0);
                        prop_assert!(next.cursor.place as usize <= copy.text.len());
                        let advanced = copy.advance(place, next.token);
                        prop_assert_eq!(advanced, Some(next.cursor));
                    }
                    cursor = found.first().map(|next| next.cursor);
                }
            }
        }

        #[test]
        fn told_at_once_or_token_by_token_it_stands_at_the_same_place(old in texts(), text in texts()) {
            let (mut whole, mut single) = (ResumedCopy::new(), ResumedCopy::new());
            whole.extend(&old);
            whole.clear();
            whole.extend(&text);
            text.iter().for_each(|&token| single.extend(&[token]));
            prop_assert_eq!(whole.following, single.following);
            prop_assert_eq!(whole.cursor(), single.cursor());
        }
    }
}
