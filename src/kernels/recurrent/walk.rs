//! The way through a tree, from state to state.
//!
//! In: the nodes of a sequence. Out: passes over a state, in order: each takes the state behind a node to
//! that behind one of its children, and reads from it what the children's rows need. A state lives
//! while nodes below it are computed. Of a node's children the one with the most nodes below it
//! comes last and takes the node's place, so there are at most `log2(nodes) + 1` at a time.

use super::run::{Run, Sequence};

/// Where a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSlot {
    /// That of the committed tokens.
    Committed,
    /// One of a task's own.
    Own(usize),
}

/// Most rows that a pass reads for.
pub const MOST_ROWS: usize = 2;

/// A pass over a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub from: StateSlot,
    /// The member that the state is taken behind.
    pub applied: Option<usize>,
    /// Where the state behind it is kept, if it is.
    pub to: Option<StateSlot>,
    /// The members whose rows are read for, [`MOST_ROWS`] at most.
    pub rows: [Option<usize>; MOST_ROWS],
}

/// A node that the way leads through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: u32,
    /// Its row in this run; none where its update is there from an earlier one.
    pub row: Option<usize>,
}

/// The way through the nodes of a sequence.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// Those with rows first, in order.
    pub members: Vec<Member>,
    pub passes: Vec<Pass>,
    /// States of a task's own that live at a time.
    pub num_own: usize,
}

/// Members by what they follow.
struct Children {
    /// Of the committed tokens, then of each member.
    of: Vec<Vec<usize>>,
    /// Members that follow each, itself included.
    below: Vec<usize>,
}

impl Walk {
    pub(super) fn new(run: &Run, sequence: &Sequence) -> Self {
        let mut walk = Self::default();
        if sequence.reads {
            walk.straight(run, sequence);
            return walk;
        }
        let children = walk.gather(run, sequence);
        // What is still to be visited: the place of a state, and whom it is behind.
        let first = Pass { from: StateSlot::Committed, applied: None, to: None, rows: [None; 2] };
        let mut open = vec![first];
        while let Some(pass) = open.pop() {
            walk.visit(pass, &children, &mut open);
        }
        walk
    }

    /// Rows that are applied as they are computed.
    fn straight(&mut self, run: &Run, sequence: &Sequence) {
        let member = |node: &u32| Member { node: *node, row: run.row(*node) };
        self.members.extend(sequence.nodes.iter().map(member));
        let (from, count) = (StateSlot::Committed, self.members.len());
        let row = |member: usize| [(member < count).then_some(member), None];
        self.passes.push(Pass { from, applied: None, to: None, rows: row(0) });
        self.passes.extend((0..count).map(|member| {
            let rows = row(member + 1);
            Pass { from, applied: Some(member), to: Some(StateSlot::Committed), rows }
        }));
    }

    /// The nodes with rows and those before them.
    fn gather(&mut self, run: &Run, sequence: &Sequence) -> Children {
        let all = run.nodes.all();
        let mut places = vec![None; all.len()];
        for &node in &sequence.nodes {
            let mut at = Some(node);
            while let Some(node) = at.filter(|node| places[*node as usize].is_none()) {
                places[node as usize] = Some(0);
                at = all[node as usize].parent;
            }
        }
        let is_in = |node: &u32| places[*node as usize].is_some();
        let earlier = (0..run.nodes.first() as u32).filter(is_in);
        let member = |node: u32| Member { node, row: run.row(node) };
        self.members = sequence.nodes.iter().copied().chain(earlier).map(member).collect();
        for (place, member) in self.members.iter().enumerate() {
            places[member.node as usize] = Some(place);
        }
        let count = self.members.len();
        let mut children = Children { of: vec![Vec::new(); count + 1], below: vec![1; count] };
        let mut by_node: Vec<usize> = (0..count).collect();
        by_node.sort_unstable_by_key(|place| self.members[*place].node);
        let parent = |place: usize| {
            let parent = all[self.members[place].node as usize].parent?;
            places[parent as usize]
        };
        for &place in by_node.iter().rev() {
            if let Some(parent) = parent(place) {
                children.below[parent] += children.below[place];
            }
        }
        for place in by_node {
            children.of[parent(place).map_or(0, |parent| parent + 1)].push(place);
        }
        children
    }

    /// Adds the passes that read for the children of the member which `pass` is taken behind, and opens
    /// those of children that have children.
    fn visit(&mut self, pass: Pass, children: &Children, open: &mut Vec<Pass>) {
        let of = |member: Option<usize>| &children.of[member.map_or(0, |member| member + 1)];
        let mut inner: Vec<usize> = of(pass.applied).clone();
        inner.retain(|child| !of(Some(*child)).is_empty());
        inner.sort_by_key(|child| children.below[*child]);
        let with_rows = |child: &usize| self.members[*child].row.is_some();
        let rows: Vec<usize> = of(pass.applied).iter().copied().filter(with_rows).collect();
        let is_kept = !inner.is_empty() || rows.len() > MOST_ROWS;
        let mut pass = Pass { to: pass.to.filter(|_| is_kept), ..pass };
        let mut groups = rows.chunks(MOST_ROWS);
        let mut next = groups.next();
        loop {
            let group = next.unwrap_or_default();
            let rows = std::array::from_fn(|index| group.get(index).copied());
            self.passes.push(Pass { rows, ..pass });
            pass = Pass { from: pass.to.unwrap_or(pass.from), applied: None, to: None, ..pass };
            next = groups.next();
            if next.is_none() {
                break;
            }
        }
        let (from, rows) = (pass.from, [None; MOST_ROWS]);
        let free = match from {
            StateSlot::Committed => 0,
            StateSlot::Own(index) => index + 1,
        };
        // The last to be opened is visited first.
        for (index, child) in inner.into_iter().rev().enumerate() {
            let to = if index == 0 && from != StateSlot::Committed {
                from
            } else {
                StateSlot::Own(free)
            };
            if let StateSlot::Own(index) = to {
                self.num_own = self.num_own.max(index + 1);
            }
            open.push(Pass { from, applied: Some(child), to: Some(to), rows });
        }
    }
}
