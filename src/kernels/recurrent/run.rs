//! A run: what becomes of each sequence's state before, while and after its rows are computed.
//!
//! In: the nodes, which sequences are read, which nodes of the last tree were committed since, states
//! and updates. Out: for each sequence the updates to apply first, and its rows; or what does not fit.
//! Nothing is written before all of it is known to fit.

use super::states::{Half, States, half_bytes};
use super::updates::{self, Origin, Updates};
use crate::kernels::nodes::{self, Nodes};

/// What is wrong with a run, or with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum RecurrentError {
    #[error(transparent)]
    Nodes(#[from] nodes::NodesError),
    #[error("the inputs' sizes do not fit each other")]
    Inputs,
    #[error(
        "there are states of {states} sequences, lengths of {lengths}, and {reads} that say which are read"
    )]
    Sequences { states: usize, lengths: usize, reads: usize },
    #[error("a state has {got} bytes, not {expected}")]
    StateBytes { got: usize, expected: usize },
    #[error("updates of {got} bytes are no header of 64 and rows of {row} bytes")]
    UpdateBytes { got: usize, row: usize },
    #[error(
        "the state of sequence {sequence} is of {applied} tokens, but {length} are committed, {pending} of them pending"
    )]
    Length { sequence: usize, applied: i64, length: i64, pending: usize },
    #[error(
        "the state of sequence {sequence} is of {applied} tokens, but {expected} are read before these rows"
    )]
    ReadLength { sequence: usize, applied: i64, expected: i64 },
    #[error("pending node {node} follows node {parent} in the last tree, not node {before}")]
    PendingParent { node: u32, parent: i32, before: i32 },
    #[error("pending node {node} stands behind {length} tokens, but the state is of {applied}")]
    PendingLength { node: u32, length: i64, applied: i64 },
    #[error(
        "node {node} is no row of this run, and was not computed behind the same tokens before"
    )]
    Earlier { node: u32 },
    #[error("sequence {sequence} is read, but its node {node} does not follow the one before")]
    ReadBranches { sequence: usize, node: u32 },
    #[error("node {node} needs an update, but there is room for {rows}")]
    Rows { node: u32, rows: usize },
    #[error(
        "there is no way back to {length} tokens: the state is of {applied}, the one before of {before}"
    )]
    Undo { length: i64, applied: i64, before: i64 },
    #[error("a saved state has {saved} bytes, a state {bytes}")]
    Saved { saved: usize, bytes: usize },
}

/// What a run is of, as the operators' inputs.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    /// As of [`Nodes::new`].
    pub parents: &'a [i32],
    /// As `parents`.
    pub sequences: &'a [i32],
    /// As `parents`.
    pub lengths: &'a [i32],
    /// As `parents`.
    pub span: [i32; 2],
    /// Of each sequence: not 0 where its rows are a chain that is committed as it is computed.
    pub reads: &'a [i32],
    /// Nodes of the last tree that were committed since, those of a sequence in their order; what is
    /// negative counts as absent.
    pub pending: &'a [i32],
}

/// What a run does to one sequence.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub number: usize,
    /// Committed tokens, those that are pending included.
    pub length: i64,
    /// Nodes of it before those that rows are computed of.
    pub earlier: usize,
    /// Whether rows are applied as they are computed.
    pub reads: bool,
    /// Nodes of the last tree to apply first.
    pub pending: Vec<u32>,
    /// Nodes of which rows are computed.
    pub nodes: Vec<u32>,
}

impl Sequence {
    /// Whether the state is kept as the one before.
    pub fn keeps(&self) -> bool {
        self.reads && self.earlier == 0 && !self.nodes.is_empty()
    }
}

/// A run that fits its states and updates.
pub struct Run {
    pub(super) nodes: Nodes,
    pub(super) sizes: Sizes,
    /// Those to which anything is done.
    pub(super) sequences: Vec<Sequence>,
    pub(super) states: States,
    /// The last tree's updates.
    pub(super) last: updates::Half,
    /// Where those of this run's rows go.
    pub(super) next: updates::Half,
}

/// Numbers that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of a sequence's state.
    pub state: usize,
    /// Of a node's update.
    pub update: usize,
}

impl Run {
    /// A run of at most `rows` rows.
    pub fn new(
        tree: Tree<'_>,
        rows: usize,
        sizes: Sizes,
        states: States,
        updates: Updates,
    ) -> Result<Self, RecurrentError> {
        let Tree { parents, sequences, lengths, span, reads, .. } = tree;
        if states.sequences() != lengths.len() || reads.len() != lengths.len() {
            let (states, lengths) = (states.sequences(), lengths.len());
            return Err(RecurrentError::Sequences { states, lengths, reads: reads.len() });
        }
        let (got, expected) = (states.half_bytes(), half_bytes(sizes.state));
        if got != expected {
            return Err(RecurrentError::StateBytes { got, expected });
        }
        let (got, row) = (updates.half_bytes, updates::row_bytes(sizes.update));
        let wrong = RecurrentError::UpdateBytes { got, row };
        let [last, other] = updates.halves(sizes.update).ok_or(wrong)?;
        let nodes = Nodes::new(parents, sequences, lengths, span, rows, usize::MAX)?;
        // The rest of a tree joins what is there of it.
        let next = if nodes.first() == 0 { other } else { last };
        let mut run = Self { nodes, sizes, sequences: Vec::new(), states, last, next };
        for number in 0..lengths.len() {
            let sequence = run.sequence(number, tree)?;
            if !sequence.nodes.is_empty() || !sequence.pending.is_empty() {
                run.sequences.push(sequence);
            }
        }
        Ok(run)
    }

    /// What is done to a sequence.
    fn sequence(&self, number: usize, tree: Tree<'_>) -> Result<Sequence, RecurrentError> {
        let first = self.nodes.first();
        let of_it = self.nodes.all().iter().enumerate();
        let of_it = of_it.filter(|(_, node)| node.sequence as usize == number);
        let nodes: Vec<u32> = of_it.map(|(node, _)| node as u32).collect();
        let earlier = nodes.partition_point(|node| (*node as usize) < first);
        let sequence = Sequence {
            number,
            length: i64::from(tree.lengths[number]),
            earlier,
            reads: tree.reads[number] != 0,
            pending: self.pending(number, tree),
            nodes: nodes[earlier..].to_vec(),
        };
        if sequence.nodes.is_empty() && sequence.pending.is_empty() {
            return Ok(sequence);
        }
        if sequence.reads {
            self.check_chain(number, &nodes)?;
        } else {
            self.check_updates(&sequence)?;
        }
        self.with_right_pending(sequence)
    }

    /// The pending nodes that the last tree had of a sequence.
    fn pending(&self, sequence: usize, tree: Tree<'_>) -> Vec<u32> {
        let nodes = tree.pending.iter().filter_map(|node| u32::try_from(*node).ok());
        let of_it = |node: &u32| {
            let origin = self.last.origin(*node as usize);
            origin.is_some_and(|origin| origin.sequence as usize == sequence)
        };
        nodes.filter(of_it).collect()
    }

    /// The sequence, which is left with the pending nodes that its state does not have yet. Those of a
    /// run that failed elsewhere are in it already, and their updates may be overwritten.
    fn with_right_pending(&self, sequence: Sequence) -> Result<Sequence, RecurrentError> {
        let Sequence { number, length, earlier, reads, .. } = sequence;
        let applied = self.states.applied(number, Half::Now);
        if reads && earlier > 0 {
            let expected = length + earlier as i64;
            return if applied == expected {
                Ok(Sequence { pending: Vec::new(), ..sequence })
            } else {
                Err(RecurrentError::ReadLength { sequence: number, applied, expected })
            };
        }
        if applied == length {
            return Ok(Sequence { pending: Vec::new(), ..sequence });
        }
        let pending = sequence.pending.len();
        // The first part of a tree has applied them, and its updates stand where they stood.
        let is_late = self.nodes.first() > 0;
        if is_late || applied != length - pending as i64 {
            return Err(RecurrentError::Length { sequence: number, applied, length, pending });
        }
        let mut before = -1;
        for &node in &sequence.pending {
            let origin = self.last.origin(node as usize).expect("the last tree had it");
            let Origin { length, parent, .. } = origin;
            if length != applied {
                return Err(RecurrentError::PendingLength { node, length, applied });
            }
            if parent != before {
                return Err(RecurrentError::PendingParent { node, parent, before });
            }
            before = node as i32;
        }
        Ok(sequence)
    }

    /// That all nodes of a sequence follow each other.
    fn check_chain(&self, sequence: usize, nodes: &[u32]) -> Result<(), RecurrentError> {
        let mut before = None;
        for &node in nodes {
            if self.nodes.all()[node as usize].parent != before {
                return Err(RecurrentError::ReadBranches { sequence, node });
            }
            before = Some(node);
        }
        Ok(())
    }

    /// That there is an update of each node, or room for it.
    fn check_updates(&self, sequence: &Sequence) -> Result<(), RecurrentError> {
        for &node in &sequence.nodes {
            let rows = self.next.rows;
            if node as usize >= rows {
                return Err(RecurrentError::Rows { node, rows });
            }
            let mut parent = self.nodes.all()[node as usize].parent;
            while let Some(node) = parent.filter(|node| (*node as usize) < self.nodes.first()) {
                let place = self.nodes.all()[node as usize];
                let origin = Origin::of(place, sequence.length);
                if self.last.origin(node as usize) != Some(origin) {
                    return Err(RecurrentError::Earlier { node });
                }
                parent = place.parent;
            }
        }
        Ok(())
    }

    /// Rows that are computed; others are padding.
    pub fn num_rows(&self) -> usize {
        self.nodes.num_rows()
    }

    /// The row of a node, where it is one of this run.
    pub(super) fn row(&self, node: u32) -> Option<usize> {
        (node as usize).checked_sub(self.nodes.first())
    }

    /// Says what states and updates are of, now that they are.
    ///
    /// # Safety
    ///
    /// All tasks of the run are done, and nobody else reads or writes states or updates.
    pub unsafe fn finish(&self) {
        // SAFETY: by contract, here and below.
        for sequence in &self.sequences {
            let Sequence { number, length, earlier, reads, .. } = *sequence;
            let read = if reads { earlier + sequence.nodes.len() } else { 0 };
            unsafe {
                if sequence.keeps() {
                    self.states.set_applied(number, Half::Before, length);
                }
                self.states.set_applied(number, Half::Now, length + read as i64);
            }
            for &node in sequence.nodes.iter().filter(|node| (**node as usize) < self.next.rows) {
                let origin = Origin::of(self.nodes.all()[node as usize], length);
                unsafe { self.next.set_origin(node as usize, (!reads).then_some(origin)) };
            }
        }
        unsafe {
            self.last.set_held(false, 0);
            self.next.set_held(true, self.nodes.all().len());
        }
    }
}
