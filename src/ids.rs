//! Index newtypes. In: plain integers at the borders. Out: types that cannot be mixed up.
//!
//! All indices are zero-based. Ranges are half-open.

/// A token of the target's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// A node of a draft tree; also the row of the step that verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct NodeId(pub u32);

/// A state of a suffix automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct StateId(pub u32);

/// A block of the target: some consecutive layers, numbered in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block as an index into per-block arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The root of every draft tree: the last committed token.
    pub const ROOT: Self = Self(0);

    /// The node as an index into per-node arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StateId {
    /// The state as an index into per-state arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
