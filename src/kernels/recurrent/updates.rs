//! The updates of a layer: what the rows of the last step's tree would do to states.
//!
//! In: a buffer `(2, bytes)` of bytes, zeros at first. Out: of each node of the last tree the numbers
//! that apply it once more, and what it followed, so that nothing is applied to a state which it was not
//! computed from. One half holds the last tree's; the next tree's are written to the other, as some task
//! may not have applied its pending ones yet.
//!
//! A half is a header of 64 bytes, and as many rows as there is room for, each a header of 64 bytes and
//! numbers in float32, whose order the layer knows.

use super::states::HEADER;
use crate::kernels::nodes::Node;

/// Bytes of a half with room for so many nodes, each of so many numbers.
pub fn updates_bytes(nodes: usize, numbers: usize) -> usize {
    HEADER + nodes * row_bytes(numbers)
}

/// Bytes of a node.
pub(super) fn row_bytes(numbers: usize) -> usize {
    HEADER + numbers * size_of::<f32>()
}

/// What a half's header holds.
#[repr(C)]
struct HalfHeader {
    /// Whether it holds the last tree's.
    is_last: u32,
    /// Nodes of that tree.
    nodes: u32,
}

/// What a row's header holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Origin {
    /// Of the committed tokens that its tree follows.
    pub length: i64,
    /// Whether it is of a drafted node; else nothing of it is read.
    is_drafted: u32,
    pub sequence: u32,
    /// The node before it, or -1.
    pub parent: i32,
}

impl Origin {
    /// That of a node behind `length` committed tokens.
    pub fn of(node: Node, length: i64) -> Self {
        let parent = node.parent.map_or(-1, |parent| parent as i32);
        Self { length, is_drafted: 1, sequence: node.sequence, parent }
    }
}

/// Updates of nodes.
#[derive(Clone, Copy)]
pub struct Updates {
    at: *mut u8,
    pub(super) half_bytes: usize,
}

/// The rows of a half.
#[derive(Clone, Copy)]
pub(super) struct Half {
    at: *mut u8,
    row_bytes: usize,
    /// For which there is room.
    pub rows: usize,
}

// SAFETY: tasks read and write different numbers, and headers are written when they are done.
unsafe impl Send for Half {}
unsafe impl Sync for Half {}

impl Updates {
    /// # Safety
    ///
    /// There are two halves of so many bytes at `at`, aligned to numbers of 64 bits, as long as this.
    pub unsafe fn new(at: *mut u8, half_bytes: usize) -> Self {
        Self { at, half_bytes }
    }

    /// The last tree's updates, of which each has so many numbers, and room for the next tree's; none
    /// where halves are no headers and whole rows.
    pub(super) fn halves(self, numbers: usize) -> Option<[Half; 2]> {
        let rows = self.half_bytes.checked_sub(HEADER)?;
        if !rows.is_multiple_of(row_bytes(numbers)) {
            return None;
        }
        let rows = rows / row_bytes(numbers);
        // SAFETY: by contract of `new`, both halves are there.
        let half = |index: usize| Half {
            at: unsafe { self.at.add(index * self.half_bytes) },
            row_bytes: row_bytes(numbers),
            rows,
        };
        let [one, other] = [half(0), half(1)];
        Some(if other.held().is_last == 1 { [other, one] } else { [one, other] })
    }
}

impl Half {
    fn held(&self) -> HalfHeader {
        // SAFETY: a half begins with it, and any bytes are one.
        unsafe { self.at.cast::<HalfHeader>().read() }
    }

    fn row(&self, node: usize) -> *mut u8 {
        assert!(node < self.rows, "a node has a row");
        // SAFETY: there are so many rows.
        unsafe { self.at.add(HEADER + node * self.row_bytes) }
    }

    /// The first number of a node's update.
    #[inline(always)]
    pub fn numbers(&self, node: usize) -> *mut f32 {
        // SAFETY: behind the header there are numbers.
        unsafe { self.row(node).add(HEADER).cast() }
    }

    /// Where a node of the last tree stood.
    pub fn origin(&self, node: usize) -> Option<Origin> {
        let held = self.held();
        if held.is_last != 1 || node >= (held.nodes as usize).min(self.rows) {
            return None;
        }
        // SAFETY: a header begins with it, and any bytes are one.
        let origin = unsafe { self.row(node).cast::<Origin>().read() };
        (origin.is_drafted == 1).then_some(origin)
    }

    /// Says where a node stands, or that it was read.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes it.
    pub unsafe fn set_origin(&self, node: usize, origin: Option<Origin>) {
        let none = Origin { length: 0, is_drafted: 0, sequence: 0, parent: -1 };
        // SAFETY: by contract.
        unsafe { self.row(node).cast::<Origin>().write(origin.unwrap_or(none)) }
    }

    /// Says whether this is of the last tree, which has so many nodes.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes it.
    pub unsafe fn set_held(&self, is_last: bool, nodes: usize) {
        let held = HalfHeader { is_last: is_last.into(), nodes: nodes as u32 };
        // SAFETY: by contract.
        unsafe { self.at.cast::<HalfHeader>().write(held) }
    }
}
