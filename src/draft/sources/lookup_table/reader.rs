//! Reads what the target held likely after every node of a step. In: the step's logits. Out: the
//! top-k of the rows of its nodes.
//!
//! Reading the logits is what takes the time, not the table: long ones are read on several threads.
//! They end before the call does, so that nobody reads a buffer that its owner may write again.
//! DIAA overlaps the update with other work. A thread that outlived the call did so here: it saved
//! nothing measurable, for the next draft needs the table, and what a session and its caller do in
//! between takes far less time than a pass over the logits.

use std::num::NonZero;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use crate::ids::NodeId;
use crate::logits::Logits;
use crate::top_k::TopK;

/// Scores that are worth a thread: starting one takes some 20 us, reading so many 100.
const MIN_SCORES: usize = 1 << 19;

/// The top-k of the first `num_rows` rows; `None` for a row that holds NaN or nothing finite.
///
/// Cost: a pass over these rows, on as many threads as pay and there are cores.
pub fn likely(logits: Logits<'_>, num_rows: usize) -> Vec<Option<TopK>> {
    let num_threads = (num_rows * logits.vocab_size() / MIN_SCORES).clamp(1, num_cores());
    read_on(num_threads, logits, num_rows)
}

fn num_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

fn read_on(num_threads: usize, logits: Logits<'_>, num_rows: usize) -> Vec<Option<TopK>> {
    let mut likely = vec![None; num_rows];
    let places = Mutex::new(likely.iter_mut().enumerate());
    let read = || loop {
        let next = places.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((row, place)) = next else { break };
        *place = logits.top_k(NodeId(row as u32));
    };
    thread::scope(|scope| {
        for _ in 1..num_threads {
            // Where the system gives no thread, those that there are read all rows.
            let _ = thread::Builder::new().spawn_scoped(scope, read);
        }
        read();
    });
    likely
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top_k::top_k;
    use proptest::prelude::*;

    const VOCAB_SIZE: usize = 12;

    proptest! {
        #[test]
        fn any_number_of_threads_reads_what_one_would(
            rows in prop::collection::vec(prop::collection::vec(-9i8..9, VOCAB_SIZE), 1..9),
            unusable in any::<prop::sample::Index>(),
            num_threads in 1usize..6,
        ) {
            let mut values: Vec<f32> = rows.iter().flatten().map(|&score| score.into()).collect();
            values[unusable.index(rows.len()) * VOCAB_SIZE] = f32::NAN;
            let logits = Logits::new(&values, rows.len(), VOCAB_SIZE).unwrap();
            let expected: Vec<_> = values.chunks(VOCAB_SIZE).map(top_k).collect();
            prop_assert_eq!(read_on(num_threads, logits, rows.len()), expected);
        }
    }
}
