//! In-context distribution calibration (CoordGen, section 3.3, Figure 9): the calibrated tree, what
//! the target expected while it read the prompt. In: the likeliest tokens after each prompt token.
//! Out: those after the place of the prompt that is most like the end of the text.

use std::collections::HashMap;

use crate::draft::setting::{Setting, Settings};
use crate::draft::source::{Cursor, Learn, MAX_CONTEXT, Propose, Successor, TopKRows, agreement};
use crate::ids::TokenId;
use crate::logits::top_k::TOP_K;

/// What the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationOptions {
    /// Likeliest tokens after a place that are its children, at most [`TOP_K`].
    pub k: usize,
    /// Probability of a child, at least: likely tokens are proposed, not all that were kept.
    pub least: f32,
    /// Occurrences of a token that are compared, the latest first.
    pub occurrences: usize,
}

impl CalibrationOptions {
    /// What did well in trees that weigh all sources.
    pub const OURS: Self = Self { k: TOP_K, least: 0.02, occurrences: 16 };

    /// Section 3.3, which says "high-probability" tokens and "the occurrence".
    pub const PUBLISHED: Self = Self { k: 3, least: 0.02, occurrences: 1 };

    /// What a user may set, by the names of its fields.
    pub fn settings(&mut self) -> Settings<'_> {
        vec![
            ("k", Setting::Count(&mut self.k, 1..=TOP_K)),
            ("least", Setting::Share(&mut self.least, 0.0)),
            ("occurrences", Setting::Count(&mut self.occurrences, 1..=usize::MAX)),
        ]
    }
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self::OURS
    }
}

/// A prompt as the target read it: the words that it expected, not those that stood there.
///
/// A document says "Clinton's security detail has arrived at", where the target, asked to sum it
/// up, says "Clinton arrived at". Copying the document proposes "'s" after "Clinton"; but "arrived"
/// is among what the target itself held likely there, and leads back into the document.
///
/// The paper's two steps make a tree. *Sample*: the children of a token are the likeliest tokens
/// after its place in the prompt. *Search*: the place of a child is the next one of the prompt,
/// where the child stands there, or else the occurrence whose preceding tokens agree most with
/// those before the child, the latest among equals. This ranking is ours: the paper only says "the
/// occurrence". It builds the tree beforehand by depth-first search. Here a place is a cursor and
/// the drafter walks the same tree as far as its own limits reach, best first: a node that is
/// never looked at costs nothing.
///
/// Use it beside sources that copy. By itself it ends where a likely token never occurs in the
/// prompt.
///
/// # How it stores
/// Of each prompt token the likeliest followers, id and probability, 8 bytes each, and the position
/// of its previous occurrence: with 8 followers about 80 bytes a token. The text itself.
///
/// # Cost
/// `prefilled`: a hash insertion a token. `advance`: a comparison of at most 15 tokens for each
/// occurrence; `successors`: an `advance` for each answer.
///
/// # Example
/// ```
/// use coordgen_rs::draft::sources::calibration::Calibration;
/// use coordgen_rs::draft::source::{Learn, Propose, TopKRows};
/// use coordgen_rs::ids::TokenId;
///
/// let mut calibration = Calibration::default();
/// calibration.extend(&[5, 6, 7, 5].map(TokenId));
/// // After 5 the target expected 7 rather than 6; after 6 it was sure of 7; after 7 of 8.
/// calibration.prefilled(&TopKRows {
///     first_position: 0,
///     k: 2,
///     token_ids: &[7, 6, 7, 0, 8, 0].map(TokenId),
///     probabilities: &[0.75, 0.25, 1.0, 0.0, 1.0, 0.0],
/// });
/// let mut after_5 = Vec::new();
/// calibration.successors(calibration.cursor().unwrap(), &mut after_5);
/// assert_eq!(after_5[0].token, TokenId(7));
/// let mut after_7 = Vec::new();
/// calibration.successors(after_5[0].cursor, &mut after_7);
/// assert_eq!(after_7[0].token, TokenId(8));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    options: CalibrationOptions,
    text: Vec<TokenId>,
    /// `(num_positions, k)`, likeliest first; a probability of 0 is no entry.
    followers: Vec<(TokenId, f32)>,
    k: usize,
    /// The latest position of each token.
    latest: HashMap<TokenId, u32>,
    /// The previous position of the token at each position.
    previous: Vec<Option<u32>>,
    /// Text and followers of the request before, while it is not known what of it is reused.
    before: (Vec<TokenId>, Vec<(TokenId, f32)>),
}

impl Calibration {
    /// The name in options and statistics.
    pub const NAME: &'static str = "calibration";

    /// Calibrated trees by other choices than ours.
    pub fn new(options: CalibrationOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Positions of the prompt whose followers are known.
    pub fn num_positions(&self) -> usize {
        self.previous.len()
    }

    /// The place behind all others, where nothing is known.
    fn nowhere(&self) -> Cursor {
        Cursor { place: self.num_positions() as u64, match_len: 0 }
    }

    /// The occurrence of `token` whose preceding tokens agree most with the end of `context`.
    fn search(&self, token: TokenId, context: &[TokenId]) -> Cursor {
        let mut best = self.nowhere();
        let mut position = self.latest.get(&token).copied();
        let most = 1 + context.len().min(MAX_CONTEXT) as u32;
        for _ in 0..self.options.occurrences {
            if best.match_len == most {
                break; // the latest among equals
            }
            let Some(here) = position else { break };
            let match_len = 1 + agreement(&self.text[..here as usize], context);
            if match_len > best.match_len {
                best = Cursor { place: here.into(), match_len };
            }
            position = self.previous[here as usize];
        }
        best
    }

    fn add_position(&mut self) {
        let position =
            u32::try_from(self.previous.len()).expect("a prompt has fewer than 2^32 tokens");
        let token = self.text[position as usize];
        self.previous.push(self.latest.insert(token, position));
    }
}

impl Propose for Calibration {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// `None` before the first row.
    fn cursor(&self) -> Option<Cursor> {
        let (&last, context) = self.text.split_last()?;
        (self.num_positions() > 0).then(|| self.search(last, context))
    }

    /// Never `None`: where the prompt does not know a token, it may know the one after it.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let (place, match_len) = (cursor.place as usize, cursor.match_len);
        if place >= self.num_positions() {
            return Some(self.search(token, &[]));
        }
        if place + 1 < self.num_positions() && self.text[place + 1] == token {
            return Some(Cursor { place: cursor.place + 1, match_len: match_len + 1 });
        }
        Some(self.search(token, &self.text[place + 1 - match_len as usize..=place]))
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        let start = cursor.place as usize * self.k;
        let CalibrationOptions { k, least, .. } = self.options;
        for &(token, probability) in self.followers.iter().skip(start).take(self.k.min(k)) {
            if probability < least.max(at_least).max(f32::MIN_POSITIVE) {
                break;
            }
            let next = self.advance(cursor, token);
            out.extend(next.map(|cursor| Successor { token, probability, cursor }));
        }
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }

    fn is_expectation(&self) -> bool {
        true
    }
}

impl Learn for Calibration {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.text.extend(tokens);
    }

    fn reads_prefill(&self) -> bool {
        true
    }

    /// Keeps the rows of the request before, as far as its prompt reached and the texts agree.
    fn reused(&mut self, num_tokens: usize) {
        let (text, mut followers) = std::mem::take(&mut self.before);
        let pairs = text.iter().zip(&self.text[..num_tokens]);
        let num_equal = pairs.take_while(|(one, other)| one == other).count();
        followers.truncate(num_equal * self.k);
        self.followers = followers;
        while self.k > 0 && self.num_positions() < self.followers.len() / self.k {
            self.add_position();
        }
    }

    /// # Panics
    /// When `k` changes within a request, or rows follow tokens that were never told.
    fn prefilled(&mut self, rows: &TopKRows<'_>) {
        assert!(
            self.k == rows.k || self.followers.is_empty(),
            "every row of a request has k entries"
        );
        self.k = rows.k;
        let num_rows = rows.token_ids.len() / rows.k;
        assert!(
            rows.first_position + num_rows <= self.text.len(),
            "rows follow tokens of the prompt"
        );
        // Tokens that were computed for an earlier request, but not in its prompt, have no rows.
        self.followers.resize(rows.first_position * rows.k, (TokenId(0), 0.0));
        let entries = rows.token_ids.iter().copied().zip(rows.probabilities.iter().copied());
        self.followers.extend(entries);
        while self.num_positions() < rows.first_position + num_rows {
            self.add_position();
        }
    }

    fn clear(&mut self) {
        self.before = (std::mem::take(&mut self.text), std::mem::take(&mut self.followers));
        self.latest.clear();
        self.previous.clear();
    }

    fn memory_bytes(&self) -> usize {
        (self.text.capacity() + self.before.0.capacity()) * size_of::<TokenId>()
            + (self.followers.capacity() + self.before.1.capacity()) * size_of::<(TokenId, f32)>()
            + self.previous.capacity() * size_of::<Option<u32>>()
            + self.latest.capacity() * (size_of::<(TokenId, u32)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calibrated(text: &[u32], rows: &[(&[u32], &[f32])]) -> Calibration {
        let mut calibration = Calibration::default();
        let text: Vec<TokenId> = text.iter().copied().map(TokenId).collect();
        calibration.extend(&text);
        for (position, (tokens, probabilities)) in rows.iter().enumerate() {
            let token_ids: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
            let k = token_ids.len();
            let row =
                TopKRows { first_position: position, k, token_ids: &token_ids, probabilities };
            calibration.prefilled(&row);
        }
        calibration
    }

    fn successors(calibration: &Calibration, cursor: Cursor) -> Vec<Successor> {
        let mut found = Vec::new();
        calibration.successors(cursor, &mut found);
        found
    }

    /// Figure 9: the document says "Clinton 's security detail has arrived at Des Moines .", the
    /// summary "Clinton arrived at Des Moines".
    #[test]
    fn clinton_arrived_at_although_the_document_says_it_otherwise() {
        let [clinton, s, security, detail, has, arrived, at, des, moines, within, stop] =
            std::array::from_fn(|id| id as u32);
        let document = [clinton, s, security, detail, has, arrived, at, des, moines, stop, clinton];
        let expected: [(&[u32], &[f32]); 10] = [
            (&[s, has, arrived], &[0.4, 0.3, 0.2]),
            (&[security, detail, within], &[0.3, 0.2, 0.1]),
            (&[detail, has, within], &[0.8, 0.1, 0.01]),
            (&[has, within, at], &[0.8, 0.1, 0.01]),
            (&[arrived, within, at], &[0.8, 0.1, 0.01]),
            (&[at, within, stop], &[0.5, 0.3, 0.1]),
            (&[des, at, within], &[0.9, 0.01, 0.0]),
            (&[moines, within, at], &[1.0, 0.0, 0.0]),
            (&[stop, within, at], &[0.9, 0.05, 0.0]),
            (&[has, within, at], &[0.1, 0.05, 0.0]),
        ];
        let mut calibration = calibrated(&document, &expected);
        calibration.options = CalibrationOptions::PUBLISHED;

        let after_clinton = successors(&calibration, calibration.cursor().unwrap());
        let tokens: Vec<u32> = after_clinton.iter().map(|next| next.token.0).collect();
        assert_eq!(tokens, [s, has, arrived]);
        let mut cursor = after_clinton[2].cursor;
        for expected in [at, des, moines] {
            let next = successors(&calibration, cursor)[0];
            assert_eq!(next.token, TokenId(expected));
            cursor = next.cursor;
        }
    }

    #[test]
    fn children_are_as_many_and_as_likely_as_the_options_say() {
        let rows: [(&[u32], &[f32]); 2] =
            [(&[2, 3, 1], &[0.5, 0.3, 0.1]), (&[1, 3, 2], &[0.9, 0.0, 0.0])];
        let tokens = |k, least| -> Vec<u32> {
            let mut calibration = calibrated(&[1, 2, 1], &rows);
            calibration.options = CalibrationOptions { k, least, ..CalibrationOptions::OURS };
            let cursor = calibration.cursor().unwrap();
            successors(&calibration, cursor).iter().map(|next| next.token.0).collect()
        };
        assert_eq!(tokens(8, 0.02), [2, 3, 1]);
        assert_eq!(tokens(2, 0.02), [2, 3]);
        assert_eq!(tokens(8, 0.2), [2, 3]);
        assert_eq!(tokens(8, 0.0), [2, 3, 1]);
        let mut newest = calibrated(&[1, 2, 3, 1, 2, 4, 2], &[(&[0][..], &[0.5][..]); 6]);
        newest.extend(&[TokenId(3), TokenId(1), TokenId(2)]);
        assert_eq!(newest.cursor().unwrap().place, 4);
        newest.options.occurrences = 1;
        assert_eq!(newest.cursor().unwrap().place, 6 - 2);
    }

    #[test]
    fn without_rows_nothing_is_proposed() {
        assert_eq!(calibrated(&[1, 2, 1], &[]).cursor(), None);
        let calibration = calibrated(&[1, 2, 3], &[(&[2], &[0.5])]);
        let cursor = calibration.cursor().unwrap();
        assert_eq!(cursor.match_len, 0);
        assert_eq!(successors(&calibration, cursor), []);
        // A token that the prompt knows leads back into it.
        let cursor = calibration.advance(cursor, TokenId(1)).unwrap();
        assert_eq!(successors(&calibration, cursor)[0].token, TokenId(2));
    }

    #[test]
    fn positions_before_the_first_row_stay_silent() {
        let mut calibration = calibrated(&[1, 2, 3, 1], &[]);
        let (token_ids, probabilities) = ([TokenId(3)], [0.9]);
        let token_ids = &token_ids;
        calibration.prefilled(&TopKRows {
            first_position: 1,
            k: 1,
            token_ids,
            probabilities: &probabilities,
        });
        let cursor = calibration.cursor().unwrap();
        assert_eq!((cursor.place, cursor.match_len), (0, 1));
        assert_eq!(successors(&calibration, cursor), []);
        let cursor = calibration.advance(cursor, TokenId(2)).unwrap();
        assert_eq!(successors(&calibration, cursor)[0].token, TokenId(3));
    }

    #[test]
    fn rows_of_the_request_before_stay_as_far_as_its_prompt_is_the_same() {
        let rows: [(&[u32], &[f32]); 3] = [(&[7], &[0.5]), (&[8], &[0.6]), (&[9], &[0.7])];
        let mut calibration = calibrated(&[1, 2, 3], &rows);
        calibration.extend(&[4, 5].map(TokenId)); // the answer, of which no row is told
        calibration.clear();
        calibration.extend(&[1, 2, 6, 1, 5, 2].map(TokenId));
        calibration.reused(2);
        assert_eq!(calibration.num_positions(), 2);
        let after = |calibration: &Calibration, place| {
            successors(calibration, Cursor { place, match_len: 1 }).first().map(|next| next.token.0)
        };
        assert_eq!([0, 1].map(|place| after(&calibration, place)), [Some(7), Some(8)]);
        let (token_ids, probabilities) = (&[TokenId(3)], &[0.9]);
        calibration.prefilled(&TopKRows { first_position: 4, k: 1, token_ids, probabilities });
        let places = [0, 1, 2, 3, 4].map(|place| after(&calibration, place));
        assert_eq!(places, [Some(7), Some(8), None, None, Some(3)]);
        calibration.clear();
        calibration.extend(&[1, 2].map(TokenId));
        calibration.reused(0);
        assert_eq!(calibration.cursor(), None);
    }

    #[test]
    fn memory_of_a_long_prompt_is_bounded() {
        let num_tokens = 2048;
        let mut calibration = Calibration::default();
        calibration.extend(&vec![TokenId(7); num_tokens]);
        for first_position in (0..num_tokens).step_by(256) {
            let (token_ids, probabilities) = (&[TokenId(7); 256 * 8], &[0.1; 256 * 8]);
            calibration.prefilled(&TopKRows { first_position, k: 8, token_ids, probabilities });
        }
        assert_eq!(calibration.num_positions(), num_tokens);
        assert!(calibration.memory_bytes() < 1 << 20);
    }

    /// All occurrences compared with all tokens before them.
    fn naive_search(text: &[TokenId], num_positions: usize, wanted: &[TokenId]) -> Cursor {
        let mut best = Cursor { place: num_positions as u64, match_len: 0 };
        for end in (1..=num_positions).rev() {
            let agrees =
                |len: &usize| *len <= end && text[end - len..end] == wanted[wanted.len() - len..];
            let match_len = (0..=wanted.len()).rev().find(agrees).unwrap_or(0) as u32;
            if match_len > best.match_len {
                best = Cursor { place: end as u64 - 1, match_len };
            }
        }
        best
    }

    proptest! {
        #[test]
        fn a_place_is_the_occurrence_that_agrees_most(
            text in prop::collection::vec((0u32..3).prop_map(TokenId), 1..14),
            draft in prop::collection::vec((0u32..4).prop_map(TokenId), 0..6),
            missing in 1usize..4,
        ) {
            let mut calibration = Calibration::default();
            calibration.extend(&text);
            let num_positions = text.len().saturating_sub(missing);
            let (token_ids, probabilities) = (&vec![TokenId(1); 2 * num_positions], &vec![0.5; 2 * num_positions]);
            calibration.prefilled(&TopKRows { first_position: 0, k: 2, token_ids, probabilities });
            let mut cursor = calibration.cursor();
            prop_assert_eq!(cursor.is_some(), num_positions > 0);
            let Some(start) = cursor else { return Ok(()) };
            prop_assert_eq!(start, naive_search(&text, num_positions, &text));
            for token in draft {
                let before = cursor.unwrap();
                let (place, match_len) = (before.place as usize, before.match_len as usize);
                cursor = calibration.advance(before, token);
                let after = cursor.unwrap();
                if match_len > 0 && place + 1 < num_positions && text[place + 1] == token {
                    // The next position, and nothing agrees in more tokens than it.
                    prop_assert_eq!(after.place, before.place + 1);
                    prop_assert_eq!(after.match_len, before.match_len + 1);
                } else {
                    let mut wanted = match match_len {
                        0 => vec![],
                        _ => text[place + 1 - match_len..=place].to_vec(),
                    };
                    wanted.push(token);
                    prop_assert_eq!(after, naive_search(&text, num_positions, &wanted));
                }
                for next in successors(&calibration, after) {
                    prop_assert_eq!(Some(next.cursor), calibration.advance(after, next.token));
                }
            }
        }
    }
}
