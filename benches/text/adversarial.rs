//! Texts that are as unlike language as a text can be: periodic ones, those with the most and with
//! the fewest different substrings, and noise.

use coordgen_rs::ids::TokenId;

/// The names of the texts, in the order of [`texts`].
pub const NAMES: [&str; 6] =
    ["one token", "period 2", "period 3", "Fibonacci", "de Bruijn", "random"];

/// `len` tokens of each text; only the last one uses all of the vocabulary from `first` on.
pub fn texts(len: usize, first: u32, vocab_size: u32) -> [Vec<TokenId>; 6] {
    let periodic = |period: usize| (0..len).map(|at| (at % period) as u32).collect();
    let noise =
        crate::text::numbers().map(|number| (number * f64::from(vocab_size - first)) as u32);
    let ids: [Vec<u32>; 6] = [
        periodic(1),
        periodic(2),
        periodic(3),
        fibonacci(len),
        de_bruijn(len),
        noise.take(len).collect(),
    ];
    ids.map(|ids| ids.into_iter().map(|id| TokenId(first + id)).collect())
}

/// The Fibonacci word: every length has one substring more than the length before.
fn fibonacci(len: usize) -> Vec<u32> {
    let (mut word, mut before) = (vec![0, 1], 1);
    while word.len() < len {
        let end = before;
        before = word.len();
        word.extend_from_within(..end);
    }
    word.truncate(len);
    word
}

/// Every binary word of some length once, by the Lyndon words that divide it (Fredricksen and
/// Maiorana 1978).
fn de_bruijn(len: usize) -> Vec<u32> {
    let order = len.next_power_of_two().ilog2() as usize;
    let (mut sequence, mut word) = (Vec::with_capacity(len + order), vec![0]);
    while sequence.len() < len && !word.is_empty() {
        if order.is_multiple_of(word.len()) {
            sequence.extend_from_slice(&word);
        }
        let period = word.len();
        for at in period..order {
            word.push(word[at - period]);
        }
        while word.last() == Some(&1) {
            word.pop();
        }
        if let Some(last) = word.last_mut() {
            *last = 1;
        }
    }
    sequence.extend_from_within(..len.saturating_sub(sequence.len()).min(sequence.len()));
    sequence.truncate(len);
    sequence
}
