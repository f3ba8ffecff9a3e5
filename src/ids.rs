//! Index newtypes, and the name of a block's graph. In: plain integers at the borders. Out: types
//! that cannot be mixed up.
//!
//! All indices are zero-based. Ranges are half-open.

/// A token of the target's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// Most ids of a vocabulary: 64 times those of the largest models. What is kept for each id stays
/// within megabytes, whatever a caller says.
pub const MAX_VOCAB_SIZE: usize = 1 << 24;

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

/// One of a block's two graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Graph {
    /// G1 of CoordGen, section 3.2: made for chunks of `prefill_rows` tokens.
    Prefill,
    /// G2: made for steps of up to `decode_rows` tokens; runs a chunk as several pieces.
    Decode,
}

impl BlockId {
    /// The block as an index into per-block arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Graph {
    /// Both, G1 first.
    pub const BOTH: [Self; 2] = [Self::Prefill, Self::Decode];

    /// As an index into arrays of two, G1 first.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The block's other graph.
    pub fn other(self) -> Self {
        match self {
            Self::Prefill => Self::Decode,
            Self::Decode => Self::Prefill,
        }
    }

    /// The name in options, profiles and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
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
