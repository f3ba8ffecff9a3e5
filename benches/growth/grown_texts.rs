//! Texts of any length that end alike and go on alike, and in each of which all ids stand: only what
//! lies before their last tokens is longer. Two of the three kinds ask the same of a step at any length.

use coordgen_rs::ids::TokenId;

use crate::text;

/// Small, so that reading the logits does not hide the rest.
pub const VOCAB_SIZE: usize = 256;
/// Ids, from 0 on, that the target never says, and holds likely everywhere.
pub const NUM_LIKELY: usize = 5;
/// Ids of the text's end are below this, those of what is before it from here on.
const FIRST_BEFORE: u32 = 128;
/// Tokens in which all texts end.
const TAIL: usize = 600;
/// Tokens of the answer.
const ANSWER: usize = 420;

/// What is before the end of a text.
pub const KINDS: [&str; 3] = ["other words before", "the same words before", ANY_ORDER];
/// The kind of text after which not the same is asked, whatever the length.
pub const ANY_ORDER: &str = "words in any order before";

/// A prompt, and what the target says after it.
pub struct Text {
    kind: &'static str,
    pub prompt: Vec<TokenId>,
    pub answer: Vec<TokenId>,
    /// Both.
    pub all: Vec<TokenId>,
    /// For each token, the scores that a draft model has after it.
    pub likely: Vec<Vec<f32>>,
}

impl Text {
    /// A prompt of `len` tokens: every id once, then text, which in the first kind shares no token with
    /// the end, and in the second is the end over and over.
    ///
    /// Of the other words each comes after two that are always the same, in no order that repeats
    /// itself. After more of them they would be frequent, which sources draft, and which frequent
    /// tokens there are would hang on the length: so it is in the third kind.
    pub fn new(kind: &'static str, len: usize) -> Self {
        let words = |len, first: u32, last: u32| {
            let ids = text::text(len, last - first).into_iter();
            ids.map(move |id| TokenId(first + id.0)).collect::<Vec<_>>()
        };
        let mut tail = words(TAIL + ANSWER, NUM_LIKELY as u32, FIRST_BEFORE);
        let answer = tail.split_off(TAIL);
        let ids = (0..VOCAB_SIZE as u32 - 1).map(TokenId);
        let num_before = len.checked_sub(TAIL + ids.len()).expect("room for all ids and the end");
        let before = if kind == KINDS[0] {
            let num_ids = VOCAB_SIZE as u32 - 1 - FIRST_BEFORE;
            let next =
                |word: u32, number: f64| (word + if number < 0.5 { 1 } else { 37 }) % num_ids;
            let words = text::numbers().scan(0, |word, number| {
                *word = next(*word, number);
                Some(TokenId(FIRST_BEFORE + *word))
            });
            words.take(num_before).collect::<Vec<_>>()
        } else if kind == ANY_ORDER {
            words(num_before, FIRST_BEFORE, VOCAB_SIZE as u32 - 1)
        } else {
            let turns = tail.iter().copied().cycle();
            turns.skip(TAIL - num_before % TAIL).take(num_before).collect()
        };
        let prompt: Vec<_> = ids.chain(before).chain(tail.iter().copied()).collect();
        let mut likely = vec![vec![0.0; VOCAB_SIZE]; VOCAB_SIZE];
        for pair in [&tail[..], &answer].concat().windows(2) {
            likely[pair[0].0 as usize][pair[1].0 as usize] += 1.0;
        }
        let all = [&prompt[..], &answer].concat();
        Self { kind, prompt, answer, all, likely }
    }

    /// A prompt of its kind, of `len` tokens.
    pub fn ending_alike(&self, len: usize) -> Vec<TokenId> {
        Self::new(self.kind, len).prompt
    }
}
