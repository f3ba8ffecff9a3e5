//! The states of a layer: what each sequence's committed tokens have left.
//!
//! In: a buffer `(sequences, 2, bytes)` of bytes, zeros before the first token. Out: of each sequence
//! its numbers, and how many tokens they stand for. The second half is the state before the last read,
//! so that a read that fails can be undone.
//!
//! A half is a header of 64 bytes, which begins with that count as an int64, and the numbers in
//! float32. Zeros are the state of no token. To save a state, copy the first half; to go back to it,
//! [`restore`].

use super::RecurrentError;

/// Bytes before the numbers: a cache line.
pub(super) const HEADER: usize = 64;

/// The count of a half that holds no state.
const NONE: i64 = -1;

/// Bytes of a half that holds so many numbers.
pub fn half_bytes(numbers: usize) -> usize {
    HEADER + numbers * size_of::<f32>()
}

/// States of sequences.
#[derive(Clone, Copy)]
pub struct States {
    at: *mut u8,
    sequences: usize,
    half_bytes: usize,
}

// SAFETY: tasks read and write different numbers, and counts are written when they are done.
unsafe impl Send for States {}
unsafe impl Sync for States {}

/// One of a sequence's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Of the tokens that are committed and applied.
    Now,
    /// Of those before the last read.
    Before,
}

impl States {
    /// # Safety
    ///
    /// There are so many sequences' two halves at `at`, aligned to numbers of 64 bits, as long as this.
    pub unsafe fn new(at: *mut u8, sequences: usize, half_bytes: usize) -> Self {
        Self { at, sequences, half_bytes }
    }

    pub(super) fn sequences(&self) -> usize {
        self.sequences
    }

    pub(super) fn half_bytes(&self) -> usize {
        self.half_bytes
    }

    fn half(&self, sequence: usize, half: Half) -> *mut u8 {
        assert!(sequence < self.sequences, "a sequence has a state");
        // SAFETY: by contract of `new`.
        unsafe { self.at.add((2 * sequence + half as usize) * self.half_bytes) }
    }

    /// The first number of a sequence's state.
    #[inline(always)]
    pub(super) fn numbers(&self, sequence: usize, half: Half) -> *mut f32 {
        // SAFETY: behind the header there are numbers.
        unsafe { self.half(sequence, half).add(HEADER).cast() }
    }

    /// How many tokens a state stands for.
    pub(super) fn applied(&self, sequence: usize, half: Half) -> i64 {
        // SAFETY: a header begins with it.
        unsafe { self.half(sequence, half).cast::<i64>().read() }
    }

    /// Writes how many tokens a state stands for.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes it.
    pub(super) unsafe fn set_applied(&self, sequence: usize, half: Half, count: i64) {
        // SAFETY: by contract.
        unsafe { self.half(sequence, half).cast::<i64>().write(count) }
    }
}

/// How many tokens a sequence's state `(2, bytes)`, or a saved one `(bytes,)`, stands for.
pub fn applied(state: &[u8]) -> i64 {
    state.first_chunk().map_or(NONE, |count| i64::from_ne_bytes(*count))
}

/// Goes back to the state before the last read, where a sequence's state `(2, bytes)` is of more than
/// `length` tokens. Returns whether it was.
pub fn undo(state: &mut [u8], length: i64) -> Result<bool, RecurrentError> {
    let (now, before) = state.split_at_mut(state.len() / 2);
    if applied(now) <= length {
        return Ok(false);
    }
    if applied(before) != length {
        let (applied, before) = (applied(now), applied(before));
        return Err(RecurrentError::Undo { length, applied, before });
    }
    now.copy_from_slice(before);
    Ok(true)
}

/// Makes a saved state `(bytes,)` that of a sequence `(2, bytes)`.
pub fn restore(state: &mut [u8], saved: &[u8]) -> Result<(), RecurrentError> {
    let half_bytes = state.len() / 2;
    if saved.len() != half_bytes || half_bytes < HEADER {
        return Err(RecurrentError::Saved { saved: saved.len(), bytes: half_bytes });
    }
    let (now, before) = state.split_at_mut(half_bytes);
    now.copy_from_slice(saved);
    before[..size_of::<i64>()].copy_from_slice(&NONE.to_ne_bytes());
    Ok(())
}
