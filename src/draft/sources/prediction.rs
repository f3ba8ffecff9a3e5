//! The user's own prediction of an answer, as a draft source. In: the predicted tokens. Out: what
//! comes next in them, from their beginning, and wherever the answer comes back to them.

use super::automaton::suffix_automaton::SuffixAutomaton;
use super::automaton::{BORDER, add_part, successors_above};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// The beginning is trusted as much as a match of this length.
const TRUSTED_LEN: u32 = 8;

/// A predicted answer: the edited file, the form to fill in, last time's answer.
///
/// The answer is expected to begin as the prediction does. Where it leaves it, the longest match
/// of what was said since is looked for, so that insertions, deletions and changed words cost a
/// step or two each. The prompt is not matched.
///
/// Cost: that of a [`SuffixAutomaton`] over the prediction.
///
/// ```
/// use coordgen_rs::draft::sources::prediction::Prediction;
/// use coordgen_rs::draft::source::{Learn, Propose};
/// use coordgen_rs::ids::TokenId;
///
/// let mut prediction = Prediction::new();
/// prediction.set(&[5, 6, 7, 8].map(TokenId));
/// prediction.clear(); // as a request begins
/// prediction.extend(&[1, 2].map(TokenId)); // its prompt
/// let mut next = |said: &[u32]| {
///     let said: Vec<TokenId> = said.iter().copied().map(TokenId).collect();
///     prediction.extend(&said);
///     let mut successors = Vec::new();
///     prediction.successors(prediction.cursor().unwrap(), &mut successors);
///     successors[0].token
/// };
/// assert_eq!(next(&[]), TokenId(5));
/// assert_eq!(next(&[5, 9, 7]), TokenId(8));
/// ```
#[derive(Debug, Default)]
pub struct Prediction {
    /// A border stands before it, where an answer begins.
    predicted: SuffixAutomaton,
    /// Where the answer ends in it.
    place: Option<Cursor>,
    has_prompt: bool,
}

impl Prediction {
    /// The name in options and statistics.
    pub const NAME: &'static str = "prediction";

    /// No prediction yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the prediction, for requests that begin from now on; an empty one is none.
    pub fn set(&mut self, predicted: &[TokenId]) {
        self.predicted.clear();
        if !predicted.is_empty() {
            add_part(&mut self.predicted, &[]);
            add_part(&mut self.predicted, predicted);
            self.predicted.settle();
        }
        self.clear();
    }
}

impl Propose for Prediction {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cursor(&self) -> Option<Cursor> {
        self.place
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.predicted.advance(cursor, token)
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        successors_above(&self.predicted, cursor, at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }
}

impl Learn for Prediction {
    fn predicted(&mut self, prediction: &[TokenId]) {
        self.set(prediction);
    }

    /// Follows the answer; the first tokens after `clear` are the prompt.
    fn extend(&mut self, tokens: &[TokenId]) {
        if !std::mem::replace(&mut self.has_prompt, true) {
            let beginning = self.predicted.advance(SuffixAutomaton::START, BORDER);
            self.place = beginning.map(|place| Cursor { match_len: TRUSTED_LEN, ..place });
            return;
        }
        for &token in tokens {
            let from = self.place.unwrap_or(SuffixAutomaton::START);
            self.place = self.predicted.advance(from, token);
        }
    }

    /// The request ends; the prediction stays until another is set.
    fn clear(&mut self) {
        self.place = None;
        self.has_prompt = false;
    }

    fn memory_bytes(&self) -> usize {
        self.predicted.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected_next(prediction: &Prediction) -> Option<TokenId> {
        let mut found = Vec::new();
        prediction.successors(prediction.cursor()?, &mut found);
        found.first().map(|next| next.token)
    }

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    #[test]
    fn the_answer_is_followed_from_the_beginning_and_after_every_change() {
        let mut prediction = Prediction::new();
        prediction.set(&tokens(&[5, 6, 7, 8, 9]));
        for _ in 0..2 {
            prediction.clear();
            prediction.extend(&tokens(&[6, 7])); // a prompt is not followed
            let mut said = Vec::new();
            for (token, next) in [(5, 6), (6, 7), (1, 5), (7, 8), (8, 9)] {
                said.push(TokenId(token));
                prediction.extend(&tokens(&[token]));
                if token != 1 {
                    assert_eq!(expected_next(&prediction), Some(TokenId(next)), "after {said:?}");
                }
            }
        }
    }

    #[test]
    fn without_a_prediction_nothing_is_proposed() {
        let mut prediction = Prediction::new();
        prediction.set(&tokens(&[5, 6]));
        prediction.set(&[]);
        prediction.clear();
        prediction.extend(&tokens(&[1]));
        assert_eq!(expected_next(&prediction), None);
        prediction.extend(&tokens(&[5]));
        assert_eq!(expected_next(&prediction), None);
    }

    #[test]
    fn the_beginning_is_surer_than_a_chance_match() {
        let mut prediction = Prediction::new();
        prediction.set(&tokens(&[5, 6, 7, 6]));
        prediction.clear();
        prediction.extend(&tokens(&[1]));
        let mut found = Vec::new();
        prediction.successors(prediction.cursor().unwrap(), &mut found);
        assert!(found[0].token == TokenId(5) && found[0].probability > 0.6);
        assert!(found.iter().all(|next| next.token != BORDER));
    }
}
