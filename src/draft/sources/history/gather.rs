//! An index of documents that lie in files, such as the shards of a fleet's requests. In: files, and
//! where in them each document is. Out: an index file.
//!
//! Which documents, and in which order, is the caller's choice: the same choice gives the same bytes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::format::{Key, MOST_TOKENS, ReadFile, TERMINATOR, write_own_index};
use crate::atomic_file::Permissions;
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentSpan {
    /// Index of its file.
    pub file: usize,
    /// Byte of its first token.
    pub start: u64,
    /// Number of its tokens, 4 bytes each, little-endian.
    pub num_tokens: usize,
}

/// What an index file is written for.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Number of ids in the vocabulary.
    pub vocab_size: u32,
    /// What opening it must name again.
    pub key: Key,
    /// Whether its owner alone may read it, else whom the process's mask lets.
    pub is_private: bool,
}

/// Sorts the documents at `places` and writes their index to `path`. Returns the byte of that file at which the documents begin, one after the other as in
/// `places`, a terminator behind each.
///
/// Cost: as [`write_index`](super::format::write_index), 16 bytes of memory a token, of which the
/// documents themselves are 4. Fails as that does, and when a file cannot be read.
pub fn write_gathered_index(
    path: &Path,
    files: &[PathBuf],
    places: &[DocumentSpan],
    options: IndexOptions,
) -> Result<u64> {
    let documents = gather(files, places)?;
    let IndexOptions { vocab_size, key, is_private } = options;
    let covers = places.len() as u64;
    let permissions = if is_private { Permissions::OwnerOnly } else { Permissions::Default };
    write_own_index(path, documents, vocab_size, covers, key, permissions)
}

fn gather(files: &[PathBuf], places: &[DocumentSpan]) -> Result<Vec<TokenId>> {
    let open = |path: &PathBuf| ReadFile::open(path).map_err(|error| not_read(path, &error));
    let opened = files.iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut documents = Vec::new();
    let num_tokens = checked_len(places, files, &opened)?;
    documents.try_reserve_exact(num_tokens).map_err(|_| too_long(num_tokens))?;
    for place in places {
        let (file, path) = (&opened[place.file], &files[place.file]);
        let num_bytes = 4 * place.num_tokens;
        let bytes = file.read(place.start, num_bytes).map_err(|error| not_read(path, &error))?;
        let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        documents.extend(words.map(|word| TokenId(u32::from_le_bytes(word))));
        documents.push(TERMINATOR);
    }
    Ok(documents)
}

/// Tokens of all places, a terminator each included. Fails where a file does not have one of them, or
/// they are more than an index can hold: both before any memory is taken for them.
fn checked_len(places: &[DocumentSpan], files: &[PathBuf], opened: &[ReadFile]) -> Result<usize> {
    let mut num_tokens = 0;
    for place in places {
        let (Some(file), Some(path)) = (opened.get(place.file), files.get(place.file)) else {
            let (got, must) = (place.file.to_string(), "the index of a file");
            return Err(Error::BadOption { what: "places", got, must });
        };
        let num_bytes = (place.num_tokens as u64).checked_mul(4);
        let end = num_bytes.and_then(|num_bytes| place.start.checked_add(num_bytes));
        if end.is_none_or(|end| end > file.num_bytes()) {
            return Err(not_read(path, &ErrorKind::UnexpectedEof.into()));
        }
        num_tokens += place.num_tokens + 1; // fits: each is a quarter of its file at most
        if num_tokens >= MOST_TOKENS {
            return Err(too_long(num_tokens));
        }
    }
    Ok(num_tokens)
}

fn too_long(num_tokens: usize) -> Error {
    let must = "less than 2^31 tokens, and fit into memory";
    Error::BadOption { what: "documents", got: format!("{num_tokens} tokens"), must }
}

fn not_read(path: &Path, error: &std::io::Error) -> Error {
    Error::IndexNotWritten { reason: format!("{}: {error}", path.display()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::format::write_index;
    use super::*;

    #[test]
    fn gathered_documents_give_the_bytes_of_joined_ones() {
        let folder = std::env::temp_dir().join(format!("coordgen-{}-gather", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let documents: [&[u32]; 4] = [&[1, 2, 3, 1, 2], &[], &[3, 1, 2], &[2]];
        let files = [folder.join("one"), folder.join("two")];
        let write = |path: &Path, words: &[u32]| {
            fs::write(path, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        write(&files[0], &[9, 3, 1, 2, 2]).unwrap();
        write(&files[1], &[1, 2, 3, 1, 2]).unwrap();
        let place = |file, start, num_tokens| DocumentSpan { file, start, num_tokens };
        let places = [place(1, 0, 5), place(0, 8, 0), place(0, 4, 3), place(0, 16, 1)];
        let joined: Vec<TokenId> = documents
            .iter()
            .flat_map(|document| document.iter().map(|&id| TokenId(id)).chain([TERMINATOR]))
            .collect();

        let key = [3; 32];
        let (expected, got) = (folder.join("expected.index"), folder.join("got.index"));
        write_index(&expected, &joined, 5, 4, key).unwrap();
        let options = IndexOptions { vocab_size: 5, key, is_private: false };
        let start = write_gathered_index(&got, &files, &places, options).unwrap() as usize;
        let text = [1u32, 2, 3, 1, 2, TERMINATOR.0].map(u32::to_le_bytes).concat();
        assert_eq!(fs::read(&got).unwrap()[start..][..text.len()], text);
        assert_eq!(fs::read(&got).unwrap(), fs::read(&expected).unwrap());

        for beyond in [place(0, 16, 2), place(0, 21, 0), place(1, u64::MAX, 1)] {
            let failed = write_gathered_index(&got, &files, &[places[0], beyond], options);
            assert!(failed.unwrap_err().to_string().contains(["one", "two"][beyond.file]));
            assert_eq!(fs::read(&got).unwrap(), fs::read(&expected).unwrap());
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_place_of_any_length_is_refused_before_memory_is_taken_for_it() {
        let path = std::env::temp_dir().join(format!("coordgen-{}-huge", std::process::id()));
        fs::write(&path, [0; 8]).unwrap();
        let options = IndexOptions { vocab_size: 5, key: [3; 32], is_private: true };
        for shift in [31, 40, 61, 62, 63] {
            for num_tokens in [1 << shift, usize::MAX] {
                let places = [DocumentSpan { file: 0, start: 0, num_tokens }; 9];
                let into = path.with_extension("index");
                let failed =
                    write_gathered_index(&into, std::slice::from_ref(&path), &places, options);
                assert!(matches!(failed, Err(Error::IndexNotWritten { .. })), "{failed:?}");
                assert!(!into.exists());
            }
        }
        fs::remove_file(&path).unwrap();
    }
}
