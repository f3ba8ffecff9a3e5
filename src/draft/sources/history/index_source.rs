//! An index as a draft source. In: the request's text. Out: what followed its longest suffixes in
//! earlier requests.

use std::sync::{Arc, Mutex};

use super::follower::Follower;
use super::{History, Shared, lock};
use crate::draft::source::{Cursor, Learn, Propose, Successor};
use crate::ids::TokenId;

/// Which of a history's two indexes a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// That of its own documents.
    Own,
    /// That of a fleet's.
    Fleet,
}

/// Drafts for one drafter from the index.
pub(super) struct IndexSource {
    shared: Arc<Mutex<Shared>>,
    layer: Layer,
    /// Nothing before a request, and where there is no index.
    follower: Option<Follower>,
}

impl IndexSource {
    pub(super) fn new(shared: Arc<Mutex<Shared>>, layer: Layer) -> Self {
        Self { shared, layer, follower: None }
    }
}

impl Propose for IndexSource {
    fn name(&self) -> &'static str {
        match self.layer {
            Layer::Own => History::INDEX,
            Layer::Fleet => History::FLEET,
        }
    }

    fn cursor(&self) -> Option<Cursor> {
        self.follower.as_ref()?.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.follower.as_ref()?.advance(cursor, token)
    }

    fn successors(&self, cursor: Cursor, out: &mut Vec<Successor>) {
        self.successors_above(cursor, 0.0, out);
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        if let Some(follower) = &self.follower {
            follower.successors_above(cursor, at_least, out);
        }
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        true
    }

    fn reads_disk(&self) -> bool {
        self.follower.is_some()
    }
}

impl Learn for IndexSource {
    fn extend(&mut self, tokens: &[TokenId]) {
        if let Some(follower) = &mut self.follower {
            follower.extend(tokens);
        }
    }

    /// Takes up the index as it is now; one that was found damaged is left alone.
    fn clear(&mut self) {
        let shared = lock(&self.shared);
        let index = match self.layer {
            Layer::Own => &shared.index,
            Layer::Fleet => &shared.fleet,
        };
        let index = index.clone().filter(|index| !index.is_damaged());
        drop(shared);
        self.follower = index.map(Follower::new);
    }

    fn ended(&mut self) {
        self.follower = None;
    }

    fn memory_bytes(&self) -> usize {
        self.follower.as_ref().map_or(0, Follower::memory_bytes)
    }
}
