//! A draft source for tests: it proposes all of three tokens everywhere, to any depth.

use crate::draft::source::{Cursor, DraftSource, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Which token is likeliest depends on the place and on `rule`.
pub struct Scripted {
    rule: u64,
    text_len: u64,
}

impl Scripted {
    /// Number of tokens that it knows.
    pub const VOCAB_SIZE: usize = 3;

    /// One source for each rule.
    pub fn sources(rules: &[u32]) -> Vec<Box<dyn DraftSource>> {
        rules.iter().map(|&rule| Box::new(Self { rule: rule.into(), text_len: 0 }) as _).collect()
    }
}

impl Propose for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: self.text_len, match_len: 1 })
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let place = 3 * cursor.place + u64::from(token.0);
        Some(Cursor { place: place % 100, match_len: cursor.match_len + 1 })
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        out.extend((0..Self::VOCAB_SIZE as u32).map(|token| {
            let probability =
                0.1 + ((cursor.place + 2 * u64::from(token)) * self.rule % 7) as f32 / 10.0;
            let cursor = self.advance(cursor, TokenId(token)).unwrap();
            Successor { token: TokenId(token), probability, cursor }
        }));
    }
}

impl Learn for Scripted {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.text_len += tokens.len() as u64;
    }

    fn clear(&mut self) {
        self.text_len = 0;
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}
