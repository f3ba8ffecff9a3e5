//! A source that counts what it is asked. In: any source. Out: the same answers, and how often there
//! was a question.
//!
//! Where a step after a longer text takes more, this tells whether each question costs more, or more
//! was asked: what is likely hangs on all of the text, and what is likely is asked about.

use std::sync::atomic::{AtomicU64, Ordering};

use coordgen_rs::draft::source::{
    Cursor, DraftSource, Learn, Propose, Successor, TopKRows, Verification,
};
use coordgen_rs::ids::TokenId;

static QUESTIONS: AtomicU64 = AtomicU64::new(0);

/// Questions to all sources so far: for the successors of a place, or for the place after a token.
pub fn questions() -> u64 {
    QUESTIONS.load(Ordering::Relaxed)
}

/// A source that counts what it is asked.
pub struct Asked(pub Box<dyn DraftSource>);

fn count() {
    QUESTIONS.fetch_add(1, Ordering::Relaxed);
}

impl Propose for Asked {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn vocab_size(&self) -> Option<usize> {
        self.0.vocab_size()
    }

    fn cursor(&self) -> Option<Cursor> {
        self.0.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        count();
        self.0.advance(cursor, token)
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        count();
        self.0.successors_above(cursor, at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        self.0.leaves_out_the_unlikely()
    }

    fn is_model(&self) -> bool {
        self.0.is_model()
    }

    fn is_expectation(&self) -> bool {
        self.0.is_expectation()
    }
}

impl Learn for Asked {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.0.extend(tokens);
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.0.set_vocab_size(vocab_size);
    }

    fn predicted(&mut self, prediction: &[TokenId]) {
        self.0.predicted(prediction);
    }

    fn reads_prefill(&self) -> bool {
        self.0.reads_prefill()
    }

    fn prefilled(&mut self, rows: &TopKRows<'_>) {
        self.0.prefilled(rows);
    }

    fn reused(&mut self, num_tokens: usize) {
        self.0.reused(num_tokens);
    }

    fn verified(&mut self, seen: &mut Verification<'_>) {
        self.0.verified(seen);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn ended(&mut self) {
        self.0.ended();
    }

    fn rows_read(&self, num_nodes: usize) -> usize {
        self.0.rows_read(num_nodes)
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
