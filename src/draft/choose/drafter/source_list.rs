//! The sources of a drafter, in their order, told together. In: requests, and what the target made
//! of them. Out: the sources, up to date, ready to be asked.

use crate::draft::source::{DraftSource, TopKRows, Verification};
use crate::draft::sources::prediction::Prediction;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::logits::top_k::{TOP_K, top_k_rows};

/// All sources of a drafter.
pub(super) struct SourceList {
    sources: Vec<Box<dyn DraftSource>>,
    /// The last rows of the prompt, reduced: tokens and probabilities, `(rows, TOP_K)`.
    top_k: (Vec<TokenId>, Vec<f32>),
}

impl SourceList {
    /// These sources, which have been told nothing, for a target that knows `vocab_size` ids. Fails when
    /// one draws on another vocabulary; then none is told anything.
    pub fn new(mut sources: Vec<Box<dyn DraftSource>>, vocab_size: usize) -> Result<Self> {
        for source in &sources {
            if let Some(got) = source.vocab_size().filter(|&got| got != vocab_size) {
                let source_name = source.name();
                return Err(Error::OtherVocabulary { source_name, got, expected: vocab_size });
            }
        }
        sources.iter_mut().for_each(|source| source.set_vocab_size(vocab_size));
        Ok(Self { sources, top_k: (Vec::new(), Vec::new()) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// The name of the one at `index`.
    pub fn name(&self, index: usize) -> &'static str {
        self.sources[index].name()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.sources.iter().map(|source| source.name())
    }

    /// Tells them that another request begins. The first prediction adds the source that draws on
    /// predictions.
    pub fn begin(&mut self, prompt: &[TokenId], prediction: &[TokenId]) {
        if !prediction.is_empty() && !self.names().any(|name| name == Prediction::NAME) {
            self.sources.push(Box::new(Prediction::new()));
        }
        for source in &mut self.sources {
            source.predicted(prediction);
            source.clear();
            source.extend(prompt);
        }
    }

    /// Tells them that the rows of the prompt's first tokens will not be told.
    pub fn reused(&mut self, num_tokens: usize) {
        self.sources.iter_mut().for_each(|source| source.reused(num_tokens));
    }

    /// Whether asking one, or telling it of tokens, may read a file.
    pub fn reads_disk(&self) -> bool {
        self.sources.iter().any(|source| source.reads_disk())
    }

    /// Whether one asks for the logits of the prompt's rows.
    pub fn reads_prefill(&self) -> bool {
        self.sources.iter().any(|source| source.reads_prefill())
    }

    /// Tells them what the target expects after the prompt's tokens from `first_position` on, as
    /// `(rows, vocab_size)` logits. Fails when a row is not finite.
    pub fn prefilled(
        &mut self,
        logits: &[f32],
        vocab_size: usize,
        first_position: usize,
    ) -> Result<()> {
        let (token_ids, probabilities) = (&mut self.top_k.0, &mut self.top_k.1);
        top_k_rows(logits, vocab_size, first_position, token_ids, probabilities)?;
        let rows = TopKRows { first_position, k: TOP_K, token_ids, probabilities };
        self.sources.iter_mut().for_each(|source| source.prefilled(&rows));
        Ok(())
    }

    /// The same of rows that are reduced already.
    pub fn prefilled_top_k(&mut self, rows: &TopKRows<'_>) {
        self.sources.iter_mut().for_each(|source| source.prefilled(rows));
    }

    /// Tells them what a verification saw, then what was given out.
    pub fn verified(&mut self, seen: &mut Verification<'_>) {
        for source in &mut self.sources {
            source.verified(seen);
            source.extend(&seen.commit.token_ids);
        }
    }

    /// Tells them of tokens that no verification gave out.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        self.sources.iter_mut().for_each(|source| source.extend(tokens));
    }

    /// Tells them that the request is over.
    pub fn ended(&mut self) {
        self.sources.iter_mut().for_each(|source| source.ended());
    }

    /// How many rows of a step's logits they read, of a tree of `num_nodes`.
    pub fn rows_read(&self, num_nodes: usize) -> usize {
        self.sources.iter().map(|source| source.rows_read(num_nodes)).sum()
    }

    /// The sources, to be asked.
    pub fn all(&self) -> &[Box<dyn DraftSource>] {
        &self.sources
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.sources.iter().map(|source| source.memory_bytes()).sum()
    }
}
