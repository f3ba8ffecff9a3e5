//! The rows of a step that a compact commit keeps, moved together within a layer's cache; and rows of
//! a kept prefix, copied back.
//!
//! In: keys or values of all slots, and which rows of the last step were accepted. Out: the same, with
//! those rows in the slots behind the committed tokens. Which rows are accepted is decided in
//! [`commit`](crate::commit).

use std::sync::Mutex;
use std::thread;

use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::locks::lock;

/// Rows of a step on their way to the slots where plain decoding has them.
///
/// A step writes row `r` to slot `past_len + r`. The `i`-th accepted row belongs in slot
/// `past_len + i`, which is never behind it: as rows ascend, none is overwritten before it has been
/// moved. Making one costs a pass over the rows; [`apply`](Self::apply) copies the bytes of each head for
/// each row that is not in its slot yet.
///
/// ```
/// use coordgen_rs::commit::cache_rows::MovedRows;
/// use coordgen_rs::ids::NodeId;
///
/// // One head of two bytes in five slots; slot 0 is committed, rows 0 and 2 were accepted.
/// let mut keys = [9, 9, 10, 10, 11, 11, 12, 12, 0, 0];
/// let rows = [0, 2].map(NodeId);
/// MovedRows::new(&rows, 1, 5)?.apply(&mut keys, 2);
/// assert_eq!(keys[..6], [9, 9, 10, 10, 12, 12]);
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MovedRows<'a> {
    /// Accepted rows that are not in their slots yet.
    rows: &'a [NodeId],
    /// Where the first of them belongs.
    target: usize,
    past_len: usize,
    num_slots: usize,
}

impl<'a> MovedRows<'a> {
    /// The accepted `rows` of a step that was written behind `past_len` tokens of `num_slots`.
    ///
    /// # Errors
    ///
    /// [`Error::RowsNotAscending`], and [`Error::StepOutOfRange`] where a row has no slot.
    pub fn new(rows: &'a [NodeId], past_len: usize, num_slots: usize) -> Result<Self> {
        for pair in rows.windows(2) {
            if pair[0] >= pair[1] {
                let [before, row] = [pair[0].index(), pair[1].index()];
                return Err(Error::RowsNotAscending { before, row });
            }
        }
        let num_rows = rows.last().map_or(0, |row| row.index() + 1);
        if num_slots.checked_sub(num_rows).is_none_or(|most| past_len > most) {
            return Err(Error::StepOutOfRange { past_len, rows: num_rows, attended: num_slots });
        }
        let in_place = rows.iter().enumerate().take_while(|(at, row)| row.index() == *at).count();
        Ok(Self { rows: &rows[in_place..], target: past_len + in_place, past_len, num_slots })
    }

    /// Whether all rows are where they belong.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Moves the rows of `cache (heads, num_slots, row_bytes)`.
    ///
    /// # Panics
    ///
    /// If `row_bytes` is 0, or there is no slot.
    pub fn apply(&self, cache: &mut [u8], row_bytes: usize) {
        let heads = cache.chunks_exact_mut(self.num_slots * row_bytes);
        for head in heads {
            for (slot, row) in (self.target..).zip(self.rows) {
                let from = (self.past_len + row.index()) * row_bytes;
                head.copy_within(from..from + row_bytes, slot * row_bytes);
            }
        }
    }
}

/// Copies each source over its target, which is as long, in up to `num_threads` threads: this one,
/// and others that end before it returns. Where the system gives no others, it copies alone.
///
/// # Panics
///
/// If a source is longer or shorter than its target.
pub fn copy_all(pairs: Vec<(&mut [u8], &[u8])>, num_threads: usize) {
    let rest = Mutex::new(pairs.into_iter());
    let copy = || loop {
        let Some((to, from)) = lock(&rest).next() else { break };
        to.copy_from_slice(from);
    };
    thread::scope(|scope| {
        for _ in 1..num_threads {
            let _ = thread::Builder::new().spawn_scoped(scope, copy);
        }
        copy();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same into a new array: a gather of slots, head by head.
    fn gathered(
        cache: &[u8],
        num_slots: usize,
        row_bytes: usize,
        past_len: usize,
        rows: &[NodeId],
    ) -> Vec<u8> {
        let mut to = cache.to_vec();
        for (index, byte) in to.iter_mut().enumerate() {
            let (head, slot) = (index / (num_slots * row_bytes), index / row_bytes % num_slots);
            if let Some(row) = slot.checked_sub(past_len).and_then(|at| rows.get(at)) {
                let from = head * num_slots + past_len + row.index();
                *byte = cache[from * row_bytes + index % row_bytes];
            }
        }
        to
    }

    proptest! {
        #[test]
        fn rows_are_moved_as_a_gather_would(
            heads in 1usize..4,
            row_bytes in 1usize..4,
            past_len in 0usize..6,
            kept in prop::collection::vec(any::<bool>(), 0..9),
            spare in 0usize..3,
        ) {
            let num_slots = (past_len + kept.len() + spare).max(1);
            let cache: Vec<u8> = (0..heads * num_slots * row_bytes).map(|at| at as u8).collect();
            let nodes = kept.iter().zip(0..).filter(|&(&kept, _)| kept);
            let rows: Vec<NodeId> = nodes.map(|(_, row)| NodeId(row)).collect();
            let moved = MovedRows::new(&rows, past_len, num_slots).unwrap();
            let mut found = cache.clone();
            moved.apply(&mut found, row_bytes);
            prop_assert_eq!(&found, &gathered(&cache, num_slots, row_bytes, past_len, &rows));
            prop_assert_eq!(moved.is_empty(), found == cache);
        }

        #[test]
        fn rows_that_do_not_ascend_or_have_no_slot_are_refused(
            rows in prop::collection::vec((0u32..6).prop_map(NodeId), 0..5),
            past_len in 0usize..6,
            num_slots in 0usize..10,
        ) {
            let ascend = rows.is_sorted_by(|before, row| before < row);
            let fit = rows.iter().all(|row| past_len + row.index() < num_slots);
            let made = MovedRows::new(&rows, past_len, num_slots);
            prop_assert_eq!(made.is_ok(), ascend && fit && past_len <= num_slots);
        }
    }

    #[test]
    fn a_row_beyond_all_numbers_is_refused_rather_than_wrapped() {
        let rows = [NodeId(u32::MAX)];
        assert!(MovedRows::new(&rows, usize::MAX, usize::MAX).is_err());
        assert!(MovedRows::new(&[], usize::MAX, 3).is_err());
    }

    #[test]
    fn every_source_is_copied_whatever_the_threads() {
        for num_threads in 0..5 {
            let sources: Vec<Vec<u8>> = (0..7).map(|size| vec![size + 1; size.into()]).collect();
            let mut targets: Vec<Vec<u8>> = (0..7).map(|size| vec![0; size]).collect();
            let pairs = targets.iter_mut().zip(&sources);
            copy_all(pairs.map(|(to, from)| (&mut to[..], &from[..])).collect(), num_threads);
            assert_eq!(targets, sources, "{num_threads} threads");
        }
    }

    #[test]
    fn rows_that_overlap_their_new_slots_are_moved_whole() {
        let mut values = [0, 1, 2, 3, 4, 5, 6];
        let rows = [1, 2, 3, 5].map(NodeId);
        MovedRows::new(&rows, 1, 7).unwrap().apply(&mut values, 1);
        assert_eq!(values, [0, 2, 3, 4, 6, 5, 6]);
    }
}
