//! The index of a history: any file is refused or drafted from, and one that was written finds what
//! its documents hold.
//!
//! The first byte says what follows: a file; the words of a file whose sums are right; documents.

#![no_main]

use coordgen_fuzz::{Scratch, within_memory, words};
use coordgen_rs::draft::sources::history::History;
use coordgen_rs::draft::sources::history::format::{TERMINATOR, write_index};
use coordgen_rs::draft::sources::history::index::{HistoryIndex, Range};
use coordgen_rs::{Error, TokenId};
use libfuzzer_sys::fuzz_target;

const BLOCK_BYTES: usize = 4096;
const KEY: [u8; 32] = [7; 32];

fuzz_target!(|data: &[u8]| {
    let Some((&form, rest)) = data.split_first() else { return };
    match form % 3 {
        0 => read(rest),
        1 => with_right_sums(rest).iter().for_each(|file| read(file)),
        _ => write_and_read(rest),
    }
});

/// Opens a file, whatever it is, and drafts from it.
fn read(file: &[u8]) {
    let word = |start: usize| file.get(start..start + 4)?.try_into().ok().map(u32::from_le_bytes);
    let vocab_size = word(20).unwrap_or(4);
    let key = file.get(40..72).map_or(KEY, |key| key.try_into().expect("32 bytes"));
    let scratch = Scratch::holding("index", file);
    within_memory(file.len(), || {
        let history = History::new(vocab_size);
        match history.open_index(scratch.path(), &key) {
            Ok(()) => draft(&history),
            Err(Error::UnusableIndex { .. }) => {}
            Err(error) => panic!("a file is refused as another thing: {error}"),
        }
    });
}

fn draft(history: &History) {
    let vocab_size = history.vocab_size();
    let text: Vec<TokenId> = [0, 1, 2, 3, 1, 0, 0, 1].map(TokenId).to_vec();
    let [mut source, _] = history.sources();
    source.clear();
    for part in [&text[..1], &text[1..4], &text[4..]] {
        source.extend(part);
        let mut cursor = source.cursor();
        for depth in 0..12 {
            let Some(place) = cursor else { break };
            let mut found = Vec::new();
            source.successors(place, &mut found);
            for next in &found {
                assert!(next.token.0 < vocab_size, "{next:?} of {vocab_size}");
                assert!(next.probability > 0.0 && next.probability <= 1.0, "{next:?}");
                source.advance(place, next.token);
            }
            source.advance(place, TokenId(u32::MAX));
            cursor = found.get(depth % found.len().max(1)).map(|next| next.cursor);
        }
    }
    let is_right = history.check_index();
    assert_eq!(is_right, !history.is_damaged());
}

/// A file whose header and words are the input's and whose sums are right: what a program that knows
/// the format can write.
fn with_right_sums(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = bytes.split_at_checked(4)?;
    let num_tokens = usize::from(u16::from_le_bytes([head[0], head[1]]) % 1024);
    let (vocab_size, has_starts) = (usize::from(head[2]), head[3] % 2 == 1);
    let num_starts = if has_starts { vocab_size + 2 } else { 0 };
    let num_words = 2 * num_tokens + 4 * num_tokens.div_ceil(64) + num_starts;
    let given = words(rest).chain(std::iter::repeat(0)).take(num_words);
    let body: Vec<u8> = given.flat_map(u32::to_le_bytes).collect();
    let sums = body.chunks(BLOCK_BYTES).map(crc32fast::hash).flat_map(u32::to_le_bytes);

    let mut file = vec![0; 80];
    file[..8].copy_from_slice(b"coordgen");
    file[8..12].copy_from_slice(&1u32.to_le_bytes());
    file[16..20].copy_from_slice(&(num_tokens as u32).to_le_bytes());
    file[20..24].copy_from_slice(&(vocab_size as u32).to_le_bytes());
    file[32] = u8::from(has_starts);
    file[40..72].copy_from_slice(&KEY);
    file.extend(sums);
    let sum = crc32fast::hash(&file[16..]);
    file[12..16].copy_from_slice(&sum.to_le_bytes());
    file.resize(file.len().next_multiple_of(BLOCK_BYTES), 0);
    file.extend(body);
    Some(file)
}

/// Writes documents, and looks up what they hold: each byte is a token or the end of a document.
fn write_and_read(bytes: &[u8]) {
    let Some((&size, bytes)) = bytes.split_first() else { return };
    let vocab_size = 1 + u32::from(size % 5);
    let token = |&byte: &u8| match byte {
        255 => TERMINATOR,
        byte => TokenId(u32::from(byte) % vocab_size),
    };
    let mut tokens: Vec<TokenId> = bytes.iter().map(token).collect();
    tokens.push(TERMINATOR);
    let scratch = Scratch::new("written");
    within_memory(tokens.len(), || {
        write_index(scratch.path(), &tokens, vocab_size, 3, KEY).expect("documents can be written");
        let index = HistoryIndex::open(scratch.path(), &KEY).expect("what was written is read");
        assert!(index.check_all() && index.header().covers == 3);
        let query = &tokens[tokens.len() - tokens.len().min(12)..tokens.len() - 1];
        let mut range = Some(index.all());
        for depth in 0..query.len() {
            range = range.and_then(|range| index.find(range, depth as u32, query[depth]));
            let occurs = tokens.windows(depth + 1).filter(|found| *found == &query[..=depth]);
            let expected = if query[..=depth].contains(&TERMINATOR) { 0 } else { occurs.count() };
            assert_eq!(range.map_or(0, Range::count) as usize, expected);
        }
        let history = History::new(vocab_size);
        history.open_index(scratch.path(), &KEY).expect("what was written is drafted from");
        draft(&history);
    });
}
