//! The draft of a step: its tree, who proposed each node, and how far they are trusted. In: what
//! the sources say, then what came true. Out: the tree, and the origins of what was given out.
//!
//! How wide it pays to make it is decided by the drafter.

use super::DrafterOptions;
use super::request::Request;
use crate::commit::Commit;
use crate::constraint::Constraint;
use crate::draft::choose::acceptance::{Acceptance, Proposal};
use crate::draft::choose::grow::{GrowthLimits, TreeGrower};
use crate::draft::choose::in_vocabulary::InVocabulary;
use crate::draft::choose::origins::{Origin, Origins, SourceStatistics, Statistics};
use crate::draft::choose::step_choice::{Prospect, StepChoice};
use crate::draft::choose::tree_shape::ShapedTrees;
use crate::draft::source::{DraftSource, Propose};
use crate::error::{Error, Result};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;
use crate::verify::Verified;

/// Nodes of the first tree that is grown where rows cost: hardly a step is wider.
const FIRST_NODES: usize = 32;

/// A draft tree in the making, with buffers that are used again for every tree.
pub(super) struct Draft {
    acceptance: Acceptance,
    grower: TreeGrower,
    /// Number of ids that the target knows.
    vocab_size: usize,
    /// In place of the grower, where the method has a shape of its own.
    shaped: Option<ShapedTrees>,
    tree: DraftTree,
    /// Who proposed each node of the tree: `None` for the root, carried and caller's tokens.
    proposals: Vec<Option<Proposal>>,
    origins: Origins,
}

impl Draft {
    /// Nothing drafted, and nothing learned yet of `num_sources` sources. Fails when an option of the
    /// shape is out of its range. Nothing is grown below end tokens.
    pub fn new(num_sources: usize, options: &DrafterOptions) -> Result<Self> {
        let DrafterOptions { vocab_size, end_tokens, shape, .. } = options;
        Ok(Self {
            acceptance: Acceptance::new(num_sources),
            grower: TreeGrower::new(*vocab_size, end_tokens.clone()),
            vocab_size: *vocab_size,
            shaped: ShapedTrees::new(*shape)?,
            tree: DraftTree::new(TokenId(0)),
            proposals: Vec::new(),
            origins: Origins::default(),
        })
    }

    /// Forgets the request before; what was learned of the sources stays, and of further ones,
    /// up to `num_sources`, nothing is seen yet.
    pub fn begin(&mut self, root: TokenId, num_sources: usize) {
        self.acceptance.add_sources(num_sources);
        if let Some(shaped) = &mut self.shaped {
            shaped.begin();
        }
        self.tree.reset(root);
        self.origins.clear();
    }

    /// The learned trust in the sources.
    pub fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// Replaces the learned trust, which is of as many sources or fewer.
    pub fn set_acceptance(&mut self, acceptance: Acceptance) {
        self.acceptance = acceptance;
    }

    /// Whether the method has a shape of its own, whatever rows cost.
    pub fn is_shaped(&self) -> bool {
        self.shaped.is_some()
    }

    /// Grows what the sources say into nodes, to be cut to a tree for one of the `steps` up to
    /// `widest`; `limits` are those of the widest.
    ///
    /// A tree of all its rows is grown only where so many could pay: first one of at most
    /// [`FIRST_NODES`], then of twice as many, and so on. So the cost follows what is drafted, and
    /// not the rows that a step might have.
    pub fn grow(
        &mut self,
        sources: &[Box<dyn DraftSource>],
        request: &Request,
        limits: GrowthLimits,
        (steps, widest, past_len): (&StepChoice, usize, usize),
    ) {
        let mut num_nodes =
            if steps.cost(0, past_len).is_some() { FIRST_NODES } else { usize::MAX };
        loop {
            let limits = GrowthLimits { num_nodes: limits.num_nodes.min(num_nodes), ..limits };
            self.grower.grow(sources, &self.acceptance, request.root, request.certain(), limits);
            let is_full = num_nodes < steps.rows(widest) && self.worths().len() == num_nodes;
            if !(is_full && steps.could_gain_beyond(widest, past_len, self.worths())) {
                return;
            }
            num_nodes *= 2;
        }
    }

    /// The worth of each node that was grown, never increasing.
    pub fn worths(&self) -> impl ExactSizeIterator<Item = f32> + Clone {
        self.grower.worths()
    }

    /// What is expected of each node that was grown, in the order of their worth.
    pub fn prospects(&self) -> impl ExactSizeIterator<Item = Prospect> + Clone {
        self.grower.prospects()
    }

    /// Makes the worthiest nodes the tree.
    pub fn cut(&mut self, num_nodes: usize) {
        self.grower.cut(num_nodes, &mut self.tree, &mut self.proposals);
    }

    /// Builds a tree of the method's own shape.
    pub fn build_shaped(
        &mut self,
        sources: &[Box<dyn DraftSource>],
        request: &Request,
        limits: GrowthLimits,
    ) {
        let known = sources.iter().map(|source| InVocabulary::new(&**source, self.vocab_size));
        let known: Vec<_> = known.collect();
        let sources: Vec<_> = known.iter().map(|source| source as &dyn Propose).collect();
        let certain = (request.root, request.certain());
        let fits = (limits.num_nodes, limits.depth);
        if let Some(shaped) = &mut self.shaped {
            shaped.grow(&sources, certain, fits, &mut self.tree, &mut self.proposals);
        }
    }

    /// Leaves out of what was grown what the grammar refuses.
    pub fn prune_grown(&mut self, grammar: &mut dyn Constraint) -> Result<()> {
        let (tokens, parents) = self.grower.arrays();
        if tokens.len() > 1 {
            self.grower.retain(&possible(grammar, &tokens, &parents)?);
        }
        Ok(())
    }

    /// Leaves out of the tree what the grammar refuses.
    pub fn prune_tree(&mut self, grammar: &mut dyn Constraint) -> Result<()> {
        let parents: Vec<u32> = self.tree.parents().iter().map(|parent| parent.0).collect();
        if parents.len() > 1 {
            let kept = possible(grammar, self.tree.token_ids(), &parents)?;
            let mut nodes = kept.iter();
            self.proposals.retain(|_| nodes.next().is_none_or(|&kept| kept));
            self.tree = self.tree.retained(&kept);
        }
        Ok(())
    }

    /// The next tree starts with what `request` has for certain.
    pub fn start_certain(&mut self, request: &Request) {
        let num_carried = request.carried.len();
        self.origins.force(num_carried, request.certain().len() - num_carried);
    }

    /// Takes a tree that no source has proposed.
    pub fn take(&mut self, tree: DraftTree) {
        self.tree = tree;
        self.grower.clear();
        self.proposals.clear();
        self.proposals.resize(self.tree.num_nodes(), None);
    }

    /// Leaves out of the tree what is deeper, as if it had not been drafted.
    pub fn trim(&mut self, max_depth: usize) {
        let mut depths = self.tree.depths().iter();
        self.proposals.retain(|_| depths.next().is_some_and(|&depth| depth as usize <= max_depth));
        self.tree = self.tree.trimmed(usize::MAX, max_depth);
        self.grower.clear();
    }

    /// The tree.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// Who put the tokens given out last into their tree.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// Who put each node into the tree; `is_given` where it is the caller's.
    pub fn node_origins(&self, is_given: bool) -> Vec<Origin> {
        self.origins.of_tree(&self.proposals, is_given)
    }

    /// Counts the nodes that the grammar forced, behind the `num_carried` fed again.
    pub fn count_forced(
        &self,
        num_carried: usize,
        verified: &Verified,
        counts: &mut SourceStatistics,
    ) {
        let forced = self.proposals.iter().enumerate().skip(1 + num_carried);
        for (node, _) in forced.take_while(|(_, proposal)| proposal.is_none()) {
            counts.proposed += 1;
            counts.accepted += usize::from(verified.path.contains(&NodeId(node as u32)));
        }
    }

    /// Follows what was given out to who brought it; `is_given` where the tree is the caller's.
    pub fn follow(&mut self, verified: &Verified, decided: &Commit, is_given: bool) {
        self.origins.follow(&verified.path, &self.proposals, is_given, decided);
    }

    /// Every guess after a visited node was one about what the target says there.
    ///
    /// Those that no row was spent on teach as much as the others: so a source that is not drafted
    /// from, because it has been wrong, is drafted from again when it is right.
    pub fn learn(&mut self, verified: &Verified, statistics: &mut Statistics) {
        let last = verified.path.last().copied().unwrap_or(NodeId::ROOT);
        // What the target would say behind the answer's end is not known.
        let is_known = |node: NodeId| node != last || verified.bonus.is_some();
        let visited =
            |node| (node == NodeId::ROOT || verified.path.contains(&node)) && is_known(node);
        for (node, proposal) in self.proposals.iter().enumerate() {
            let Some(proposal) = *proposal else { continue };
            let came_true = verified.path.contains(&NodeId(node as u32));
            statistics.count_node(proposal.source, came_true);
            if visited(self.tree.parents()[node]) {
                self.acceptance.observe(proposal, came_true);
            }
        }
        for (parent, token, proposal) in self.grower.cut_off() {
            if visited(parent) {
                let came_true = parent == last && Some(token) == verified.bonus;
                self.acceptance.observe(proposal, came_true);
            }
        }
    }

    /// Bytes held on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.grower.memory_bytes()
    }
}

/// Which nodes a grammar may allow: the root always, and none below one that it refuses. Fails when it
/// does, or answers for another number of nodes.
fn possible(
    grammar: &mut dyn Constraint,
    tokens: &[TokenId],
    parents: &[u32],
) -> Result<Vec<bool>> {
    let mut possible = grammar.possible(tokens, parents)?;
    if possible.len() != tokens.len() {
        let (what, got, expected) = ("what the grammar keeps", possible.len(), tokens.len());
        return Err(Error::WrongLength { what, got, expected });
    }
    possible[0] = true;
    for node in 1..possible.len() {
        possible[node] &= possible[parents[node] as usize];
    }
    Ok(possible)
}

#[cfg(test)]
impl Draft {
    /// Who proposed each node of the tree.
    pub fn proposals(&self) -> &[Option<Proposal>] {
        &self.proposals
    }
}
