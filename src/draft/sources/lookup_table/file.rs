//! The file of a look-up table. In: a table, and what it belongs to. Out: a file that is whole or
//! absent, and the table again.
//!
//! All numbers are little-endian: a header, then `u32` words: the contexts that have a row
//! (`num_rows`), the t-LUT (`num_rows * k` ids), the p-LUT (as many `f32`). One CRC-32 covers
//! everything behind it: what is to be found is damage, not an attacker.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::Path;

use super::LookupTable;
use super::source::TableSource;
use crate::atomic_file::{Permissions, replace_file};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Raised whenever the layout or the meaning of the file changes.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"coordlut";
const HEADER_BYTES: usize = 64;
/// The checksum covers everything from here on.
const CHECKED_FROM: usize = 16;

/// What a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Number of ids in the vocabulary.
    pub vocab_size: u32,
    /// Hash of the tokenizer, the caller's.
    pub key: [u8; 32],
}

impl LookupTable {
    /// Writes the table to `path`, replacing what was there only when all is written.
    ///
    /// Fails when the file cannot be written; then what was there before is still there. Fails too when
    /// the table is of another vocabulary.
    pub fn save(&self, path: &Path, owner: &Owner) -> Result<()> {
        let expected = owner.vocab_size as usize;
        if let Some(got) = self.vocab_size.filter(|&got| got != expected) {
            let source_name = TableSource::NAME;
            return Err(Error::OtherVocabulary { source_name, got, expected });
        }
        let bytes = self.to_bytes(owner);
        replace_file(path, Permissions::Default, |file| file.write_all(&bytes))
            .map_err(|error| Error::TableNotWritten { reason: error.to_string() })
    }

    /// Reads the table at `path`.
    ///
    /// Fails when the file is absent, damaged, or of another version, tokenizer or vocabulary.
    pub fn open(path: &Path, owner: &Owner) -> Result<Self> {
        let unusable = |error: io::Error| Error::UnusableTable { reason: error.to_string() };
        // A pipe would be waited for, and a device may have no end.
        if !path.metadata().map_err(unusable)?.is_file() {
            return Err(Error::UnusableTable { reason: "it is not a regular file".into() });
        }
        let bytes = fs::read(path).map_err(unusable)?;
        Self::from_bytes(&bytes, owner)
            .map_err(|reason| Error::UnusableTable { reason: reason.into() })
    }

    fn to_bytes(&self, owner: &Owner) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let fields = [owner.vocab_size, self.k as u32, self.num_rows() as u32, self.keep.to_bits()];
        write_words(&mut bytes[8..12], [VERSION]);
        write_words(&mut bytes[16..32], fields);
        bytes[32..64].copy_from_slice(&owner.key);
        let words = self.contexts().into_iter().map(|context| context.0);
        let words = words.chain(self.token_ids.iter().map(|token| token.0));
        let words = words.chain(self.probabilities.iter().map(|probability| probability.to_bits()));
        words.for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        let checksum = crc32fast::hash(&bytes[CHECKED_FROM..]);
        write_words(&mut bytes[12..16], [checksum]);
        bytes
    }

    fn from_bytes(bytes: &[u8], owner: &Owner) -> std::result::Result<Self, &'static str> {
        let word = |index: usize| read_word(bytes, index).ok_or("it is cut off");
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err("it is no look-up table");
        }
        if word(2)? != VERSION {
            return Err("it has another version");
        }
        if bytes.get(CHECKED_FROM..).map(crc32fast::hash) != Some(word(3)?) {
            return Err("it is damaged");
        }
        let (k, num_rows, keep) = (word(5)? as usize, word(6)? as usize, f32::from_bits(word(7)?));
        if bytes.get(32..HEADER_BYTES) != Some(&owner.key[..]) || word(4)? != owner.vocab_size {
            return Err("it belongs to another tokenizer");
        }
        let mut table = Self::new(k, keep).map_err(|_| "its header makes no sense")?;
        if bytes.len() != HEADER_BYTES + 4 * num_rows * (1 + 2 * k) {
            return Err("it has another length than its header says");
        }
        let words: Vec<u32> = bytes[HEADER_BYTES..]
            .chunks_exact(4)
            .filter_map(|word| word.try_into().ok().map(u32::from_le_bytes))
            .collect();
        table.fill(&words, num_rows, owner.vocab_size)?;
        table.vocab_size = Some(owner.vocab_size as usize);
        Ok(table)
    }

    /// Takes over the words behind the header, if they are what a table may hold.
    fn fill(
        &mut self,
        words: &[u32],
        num_rows: usize,
        vocab_size: u32,
    ) -> std::result::Result<(), &'static str> {
        let (contexts, entries) = words.split_at(num_rows);
        let (token_ids, probabilities) = entries.split_at(num_rows * self.k);
        if contexts.iter().chain(token_ids).any(|&token| token >= vocab_size) {
            return Err("it holds an unknown token");
        }
        self.rows.resize(contexts.iter().max().map_or(0, |&last| last as usize + 1), None);
        for (row, &context) in contexts.iter().enumerate() {
            if self.rows[context as usize].replace(number_of(row)).is_some() {
                return Err("it holds a row twice");
            }
        }
        self.token_ids.extend(token_ids.iter().map(|&token| TokenId(token)));
        self.probabilities.extend(probabilities.iter().map(|&bits| f32::from_bits(bits)));
        let is_probability = |number: &f32| (0.0..=1.0).contains(number);
        let is_row = |row: &[f32]| {
            row.iter().all(is_probability) && row.is_sorted_by(|one, next| one >= next)
        };
        if !self.probabilities.chunks(self.k).all(is_row) {
            return Err("it holds unusable probabilities");
        }
        let mut contexts = contexts.iter().map(|&context| TokenId(context));
        if contexts.any(|context| self.holds_a_token_twice(context)) {
            return Err("it holds a token twice in a row");
        }
        Ok(())
    }

    fn holds_a_token_twice(&self, context: TokenId) -> bool {
        let tokens = || self.row(context).map(|(token, _)| token);
        tokens().enumerate().any(|(place, token)| tokens().take(place).any(|one| one == token))
    }

    /// The contexts that have a row, in the order of their rows.
    fn contexts(&self) -> Vec<TokenId> {
        let mut contexts = vec![TokenId(0); self.num_rows()];
        for (context, row) in self.rows.iter().enumerate() {
            if let Some(row) = row {
                contexts[row.get() as usize - 1] = TokenId(context as u32);
            }
        }
        contexts
    }
}

fn write_words<const N: usize>(bytes: &mut [u8], words: [u32; N]) {
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// The number of the row at `index`, counted from 1.
fn number_of(index: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(index as u32)
}

/// The word number `index` of the file.
fn read_word(bytes: &[u8], index: usize) -> Option<u32> {
    let word = bytes.get(4 * index..4 * index + 4)?;
    word.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tests::seen_rows;
    use super::*;
    use proptest::prelude::*;

    const OWNER: Owner = Owner { vocab_size: 12, key: [7; 32] };

    fn table_of(rows: &[(TokenId, crate::logits::top_k::TopK)]) -> LookupTable {
        let mut table = LookupTable::default();
        rows.iter().for_each(|(context, seen)| table.learn(*context, seen));
        table
    }

    proptest! {
        #[test]
        fn a_saved_table_drafts_the_same(rows in seen_rows()) {
            let table = table_of(&rows);
            let read = LookupTable::from_bytes(&table.to_bytes(&OWNER), &OWNER).unwrap();
            for context in (0..12).map(TokenId) {
                prop_assert!(read.row(context).eq(table.row(context)));
            }
            prop_assert_eq!(read.num_rows(), table.num_rows());
        }

        #[test]
        fn every_damaged_byte_is_found(rows in seen_rows(), at: prop::sample::Index, flip in 1u8..) {
            let mut bytes = table_of(&rows).to_bytes(&OWNER);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(LookupTable::from_bytes(&bytes, &OWNER).is_err());
            bytes[at] ^= flip;
            prop_assert!(LookupTable::from_bytes(&bytes[..at], &OWNER).is_err());
        }
    }

    #[test]
    fn a_token_or_a_row_that_stands_twice_is_refused() {
        let likely = crate::logits::top_k::top_k(&[0.0, 5.0, 9.0]).unwrap();
        let file = table_of(&[(TokenId(1), likely), (TokenId(2), likely)]).to_bytes(&OWNER);
        let with_word = |index: usize, word: u32| {
            let mut bytes = file.clone();
            write_words(&mut bytes[4 * index..4 * index + 4], [word]);
            let checksum = crc32fast::hash(&bytes[CHECKED_FROM..]);
            write_words(&mut bytes[12..16], [checksum]);
            LookupTable::from_bytes(&bytes, &OWNER).map(|_| ())
        };
        let (first_row, first_token) = (HEADER_BYTES / 4, HEADER_BYTES / 4 + 2);
        assert_eq!(with_word(first_row, 1), Ok(()));
        assert_eq!(with_word(first_row, 2), Err("it holds a row twice"));
        assert_eq!(with_word(first_token, 2), Ok(()));
        assert_eq!(with_word(first_token, 1), Err("it holds a token twice in a row"));
    }

    #[test]
    fn what_is_no_probability_is_refused_also_where_it_stands_alone() {
        let mut table = LookupTable::new(1, 0.0).unwrap();
        table.learn(TokenId(1), &crate::logits::top_k::top_k(&[0.0, 5.0]).unwrap());
        for number in [-1.0, f32::NEG_INFINITY, f32::NAN, 1.5] {
            table.probabilities[0] = number;
            let refused = LookupTable::from_bytes(&table.to_bytes(&OWNER), &OWNER);
            assert_eq!(refused, Err("it holds unusable probabilities"));
        }
    }

    #[test]
    fn another_owner_is_refused() {
        let bytes = LookupTable::default().to_bytes(&OWNER);
        for other in [Owner { vocab_size: 13, ..OWNER }, Owner { key: [8; 32], ..OWNER }] {
            let refused = LookupTable::from_bytes(&bytes, &other);
            assert_eq!(refused, Err("it belongs to another tokenizer"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing() {
        let directory = std::env::temp_dir().join("coordgen-no-such-directory");
        let refused = LookupTable::default().save(&directory.join("table"), &OWNER);
        assert!(matches!(refused, Err(Error::TableNotWritten { .. })));
        let absent = LookupTable::open(&directory.join("table"), &OWNER);
        assert!(matches!(absent, Err(Error::UnusableTable { .. })));
    }
}
