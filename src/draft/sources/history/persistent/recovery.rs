//! What stands behind damage in a file of documents. In: its bytes, from a document that is damaged on. Out: the
//! whole documents behind it, wherever they begin.
//!
//! Every word may be the first of a document, and which one is, its checksum tells. That is had from the
//! checksums of all beginnings of the bytes: of `a` behind `b` it is, but for a product with a power of two,
//! the difference of both. So a place costs the logarithm of its length, whatever the damage says.

use std::ops::Range;

use crc32fast::Hasher;

/// Bytes of a document before its tokens.
pub(super) const HEAD_BYTES: usize = 8;

/// The number that begins at a byte.
pub(super) fn word(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(start..start + 4)?.try_into().ok()?))
}

/// Finds documents, the first one first.
pub(super) struct RecoveredDocuments<'a> {
    bytes: &'a [u8],
    vocab_size: u32,
    /// Of the words before each word, and of all.
    checksums: Vec<u32>,
    /// The word to look at.
    next: usize,
    /// Words before this one, from any that was asked about, are tokens.
    known: usize,
}

impl<'a> RecoveredDocuments<'a> {
    /// Cost: a pass over the bytes, and as much memory.
    pub fn new(bytes: &'a [u8], vocab_size: u32) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let mut checksum = Hasher::new();
        let of_words = words.iter().map(|word| {
            checksum.update(word);
            checksum.clone().finalize()
        });
        let checksums = std::iter::once(0).chain(of_words).collect();
        Self { bytes, vocab_size, checksums, next: 0, known: 0 }
    }

    /// Where the document ends that begins with a word, if one does.
    fn end(&mut self, start: usize) -> Option<usize> {
        let (len, stored) = (self.word(start)?, self.word(start + 1)?);
        let tokens = start + HEAD_BYTES / 4;
        let end = tokens.checked_add(len as usize)?;
        let is_whole = end < self.checksums.len() && self.are_tokens(tokens, end);
        (is_whole && stored == self.checksum(len, tokens, end)).then_some(end)
    }

    fn word(&self, index: usize) -> Option<u32> {
        word(self.bytes, 4 * index)
    }

    /// Whether words are tokens, none of them before those that were asked about.
    fn are_tokens(&mut self, start: usize, end: usize) -> bool {
        self.known = self.known.max(start);
        while self.known < end && self.word(self.known).is_some_and(|it| it < self.vocab_size) {
            self.known += 1;
        }
        self.known >= end
    }

    /// Of a document's length and its words.
    fn checksum(&self, len: u32, start: usize, end: usize) -> u32 {
        let before = crc32fast::hash(&len.to_le_bytes()) ^ self.checksums[start];
        let num_bytes = 4 * (end - start) as u64;
        let mut product = Hasher::new_with_initial(before);
        product.combine(&Hasher::new_with_initial_len(0, num_bytes));
        product.finalize() ^ self.checksums[end]
    }
}

impl Iterator for RecoveredDocuments<'_> {
    /// The bytes of a document, its head included.
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.next + HEAD_BYTES / 4 < self.checksums.len() {
            let start = self.next;
            if let Some(end) = self.end(start) {
                self.next = end;
                return Some(4 * start..4 * end);
            }
            self.next += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::log::{document, to_bytes};
    use super::*;
    use crate::ids::TokenId;

    const VOCAB_SIZE: u32 = 6;

    /// Each place looked at by itself.
    fn naive(bytes: &[u8]) -> Vec<Range<usize>> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let end = document(&bytes[at..], VOCAB_SIZE).map(|(_, num_bytes)| at + num_bytes);
            found.extend(end.map(|end| at..end));
            at = end.unwrap_or(at + 4);
        }
        found
    }

    proptest! {
        #[test]
        fn documents_are_found_behind_any_damage(
            documents in prop::collection::vec(prop::collection::vec(0..VOCAB_SIZE, 0..9), 0..12),
            damage in prop::collection::vec((0.0..1.0, 0u32..=VOCAB_SIZE), 0..6),
            cut in 0usize..6,
        ) {
            let bytes = documents.iter().flat_map(|document| {
                to_bytes(&document.iter().copied().map(TokenId).collect::<Vec<_>>())
            });
            let mut bytes: Vec<u8> = bytes.collect();
            for (place, word) in damage {
                let at = 4 * (place * (bytes.len() / 4) as f64) as usize;
                if let Some(damaged) = bytes.get_mut(at..at + 4) {
                    damaged.copy_from_slice(&word.to_le_bytes());
                }
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let found: Vec<_> = RecoveredDocuments::new(&bytes, VOCAB_SIZE).collect();
            prop_assert_eq!(found, naive(&bytes));
        }
    }

    /// Each token of the first could be the length of a document, which takes a look at all of it.
    #[test]
    fn a_long_document_that_is_damaged_is_searched_once() {
        const LEN: u32 = 1 << 20;
        let long: Vec<TokenId> = (0..LEN).map(|token| TokenId(LEN - token)).collect();
        let mut bytes = to_bytes(&long);
        let short = bytes.len()..bytes.len() + 16;
        bytes[4] ^= 1;
        bytes.extend(to_bytes(&[TokenId(1), TokenId(2)]));
        assert!(RecoveredDocuments::new(&bytes, 2 * LEN).eq([short]));
    }
}
