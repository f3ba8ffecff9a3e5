//! What happened in a request, counted. In: steps and who proposed their nodes. Out: the counts.

/// What happened since `begin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of steps by `accept_len`, up to the largest that occurred.
    pub accept_histogram: Vec<usize>,
    /// Draft nodes of each source, in the order of the sources.
    pub sources: Vec<SourceStatistics>,
    /// Draft nodes that a grammar forced.
    pub forced: SourceStatistics,
}

/// The draft nodes of one source. Tokens fed again after a side branch are counted where they
/// were first proposed, and a caller's own drafts nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatistics {
    /// Nodes verified.
    pub proposed: usize,
    /// Nodes that the target agreed with, side branches included.
    pub accepted: usize,
}

impl Statistics {
    /// Nothing counted yet.
    pub(super) fn new(num_sources: usize) -> Self {
        let sources = vec![SourceStatistics::default(); num_sources];
        Self { sources, ..Self::default() }
    }

    /// A step ended.
    pub(super) fn count_step(&mut self, accept_len: usize) {
        if self.accept_histogram.len() <= accept_len {
            self.accept_histogram.resize(accept_len + 1, 0);
        }
        self.accept_histogram[accept_len] += 1;
    }

    /// A node that a source proposed was verified.
    pub(super) fn count_node(&mut self, source: usize, came_true: bool) {
        let counts = &mut self.sources[source];
        counts.proposed += 1;
        counts.accepted += usize::from(came_true);
    }
}
