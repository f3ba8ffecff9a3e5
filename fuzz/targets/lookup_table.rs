//! The file of a look-up table: any file is refused, or drafts, learns, and is the same when it is
//! saved again.
//!
//! The first byte says what follows: a file, or the words of a file whose sum is right.

#![no_main]

use std::fs;

use coordgen_fuzz::{Scratch, within_memory, words};
use coordgen_rs::draft::sources::lookup_table::LookupTable;
use coordgen_rs::draft::sources::lookup_table::file::Owner;
use coordgen_rs::logits::top_k::top_k;
use coordgen_rs::{Error, TokenId};
use libfuzzer_sys::fuzz_target;

const OWNER: Owner = Owner { vocab_size: 300, key: [7; 32] };

fuzz_target!(|data: &[u8]| {
    let Some((&form, rest)) = data.split_first() else { return };
    match form % 2 {
        0 => read(rest),
        _ => with_a_right_sum(rest).iter().for_each(|file| read(file)),
    }
});

fn read(file: &[u8]) {
    let scratch = Scratch::holding("table", file);
    within_memory(file.len(), || match LookupTable::open(scratch.path(), &OWNER) {
        Ok(table) => use_up(table, file, &scratch),
        Err(Error::UnusableTable { .. }) => {}
        Err(error) => panic!("a file is refused as another thing: {error}"),
    });
}

fn use_up(mut table: LookupTable, file: &[u8], scratch: &Scratch) {
    table.save(scratch.path(), &OWNER).expect("a table can be written");
    assert_eq!(fs::read(scratch.path()).expect("it was written"), file);
    for context in (0..OWNER.vocab_size + 1).map(TokenId) {
        check_row(&table, context);
    }
    for context in [0, 1, OWNER.vocab_size - 1].map(TokenId) {
        for row in [[3.0, 1.0, 2.0], [0.0, 0.0, 9.0]] {
            table.learn(context, &top_k(&row).expect("the row is finite"));
            check_row(&table, context);
        }
    }
    table.save(scratch.path(), &OWNER).expect("a table can be written");
    assert_eq!(LookupTable::open(scratch.path(), &OWNER), Ok(table));
}

/// What is drafted are tokens of the vocabulary, each once, likeliest first.
fn check_row(table: &LookupTable, context: TokenId) {
    let row: Vec<_> = table.row(context).collect();
    assert!(row.is_sorted_by(|one, next| one.1 >= next.1), "{row:?}");
    for (index, (token, probability)) in row.iter().enumerate() {
        assert!(token.0 < OWNER.vocab_size && *probability > 0.0 && *probability <= 1.0);
        assert!(row[..index].iter().all(|(earlier, _)| earlier != token), "{row:?}");
    }
}

/// A file whose numbers are the input's, and whose sum is right.
fn with_a_right_sum(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = bytes.split_at_checked(4)?;
    let keep = [0.0, 0.5, 1.0, f32::NAN][usize::from(head[1] % 4)];
    let mut file = b"coordlut\x01\0\0\0\0\0\0\0".to_vec();
    for word in [OWNER.vocab_size, head[0].into(), head[2].into(), f32::to_bits(keep)] {
        file.extend(word.to_le_bytes());
    }
    file.extend(OWNER.key);
    let (num_rows, k) = (usize::from(head[2]), usize::from(head[0] % 9));
    // Tokens are small words; probabilities the upper halves of floats, of any kind.
    let num_tokens = (num_rows * (1 + k)).min(rest.len() / 2);
    let (tokens, probabilities) = rest.split_at(2 * num_tokens);
    file.extend(words(tokens).flat_map(u32::to_le_bytes));
    file.extend(probabilities.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]));
    let sum = crc32fast::hash(&file[16..]);
    file[12..16].copy_from_slice(&sum.to_le_bytes());
    Some(file)
}
