//! Draft reuse (CoordGen, section 3.4, Eq. 3): of a rejected draft, the part that the target would
//! have said after it. In: verifications. Out: that part again, where its beginning fits, or right
//! away.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::draft::setting::{Setting, Settings};
use crate::draft::source::{
    Cursor, Learn, MAX_CONTEXT, Propose, Successor, Verification, agreement,
};
use crate::ids::{NodeId, TokenId};
use crate::tree::draft_tree::DraftTree;

/// Tokens of all segments together: when a new one exceeds them, the oldest go.
const MAX_KEPT: usize = 32;

/// No step drafts more: no segment would ever go, and each costs a scan.
const MOST_DRAFTED: usize = 4096;

/// Steps that a segment is proposed in, the one after its rejection included.
const LIFETIME: u32 = 8;

/// That a segment comes next at all, with nothing before it to agree, is a guess.
const START_PROBABILITY: f32 = 0.2;

/// What the paper leaves open, and what is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseOptions {
    /// Drafted tokens of a step beyond which all segments go that it had (section 3.4), each of which
    /// is proposed whole until then. `None`: by the steps and tokens of ours, and also from where the
    /// text agrees with it.
    pub threshold: Option<usize>,
    /// Whether the token before a segment is kept, too, without which a word that was missing is not
    /// mended: the token that was rejected is not what was said there.
    pub anchor: bool,
    /// Whether what the target said after the segment is kept, too.
    pub own_word: bool,
}

impl ReuseOptions {
    /// Ours.
    pub const OURS: Self = Self { threshold: None, anchor: true, own_word: true };

    /// Section 3.4: Eq. 3's segment alone.
    pub const PUBLISHED: Self = Self { threshold: Some(16), anchor: false, own_word: false };

    /// What a user may set, by the names of its fields.
    pub fn settings(&mut self) -> Settings<'_> {
        vec![
            ("threshold", Setting::Bound(&mut self.threshold, 1..=MOST_DRAFTED)),
            ("anchor", Setting::Switch(&mut self.anchor)),
            ("own_word", Setting::Switch(&mut self.own_word)),
        ]
    }
}

impl Default for ReuseOptions {
    fn default() -> Self {
        Self::OURS
    }
}

/// Segments of rejected drafts that the target agreed with once it was past their first token.
///
/// A draft `x` is rejected at its first token that the target does not say. Often it was right but
/// for that token (Table 2 of the paper): the target puts something in before it (*missing*), or
/// says it in other words (*synonym*), and then goes on as drafted. The rows behind the rejection
/// are computed anyway. Eq. 3: keep the longest segment of which each token is what the target
/// said after the tokens of the draft before it. The token before the segment is kept as its anchor,
/// and, beyond the paper, what the target said after the segment: the only token there that is its
/// own. Without it reuse gained far less on the embedded model.
///
/// Kept segments are proposed after an agreement with their own tokens, as a lookup in a text
/// would; and everywhere else from their beginning: the first token in the synonym case, the anchor
/// in the missing one.
///
/// The paper keeps a segment for one step at least, and discards it when the draft of a step exceeds a
/// threshold that it does not give. Ours are: that a segment is proposed for 8 steps, and until all
/// of them have more than 32 tokens together; that it grows into one tree with what other sources
/// say, and the probabilities with which it competes there; which of equal segments is kept; and
/// that a rejected row says its likeliest token also where tokens are drawn.
///
/// # Cost
/// A step: a pass over the logits of each rejected row at most that is not a leaf's, and of one that
/// may be. `advance` and `cursor`: a scan of the kept tokens.
#[derive(Clone, Debug, Default)]
pub struct DraftReuse {
    options: ReuseOptions,
    /// The last tokens given out, at most [`MAX_CONTEXT`].
    recent: Vec<TokenId>,
    /// The newest first.
    segments: VecDeque<Segment>,
}

#[derive(Clone, Debug)]
struct Segment {
    /// The anchor, if it is kept, then the segment.
    tokens: Vec<TokenId>,
    /// Steps that it was proposed in.
    age: u32,
}

impl DraftReuse {
    /// The name in options and statistics.
    pub const NAME: &'static str = "reuse";

    /// Reuse by other choices than ours.
    pub fn new(options: ReuseOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The kept segments, the newest first, each behind its anchor.
    pub fn segments(&self) -> impl Iterator<Item = &[TokenId]> {
        self.segments.iter().map(|segment| &segment.tokens[..])
    }

    /// A place in a segment, as behind its first `offset` tokens.
    fn place(segment: usize, offset: usize) -> u64 {
        (segment as u64) << 32 | offset as u64
    }

    /// The place outside all segments.
    fn outside(&self) -> Cursor {
        Cursor { place: Self::place(self.segments.len(), 0), match_len: 0 }
    }

    /// The tokens before and after a place; `None` outside all segments.
    fn around(&self, cursor: Cursor) -> Option<(&[TokenId], &[TokenId])> {
        let segment = self.segments.get((cursor.place >> 32) as usize)?;
        Some(segment.tokens.split_at(cursor.place as u32 as usize))
    }

    /// The place behind the `token` whose predecessors agree most with the end of `context`, in
    /// the newest segment among equals; as published, always outside.
    fn search(&self, token: TokenId, context: &[TokenId]) -> Cursor {
        let mut best = self.outside();
        if self.options.threshold.is_some() {
            return best;
        }
        for (index, Segment { tokens, .. }) in self.segments.iter().enumerate() {
            for offset in (0..tokens.len()).filter(|&offset| tokens[offset] == token) {
                let match_len = 1 + agreement(&tokens[..offset], context);
                if match_len > best.match_len {
                    best = Cursor { place: Self::place(index, offset + 1), match_len };
                }
            }
        }
        best
    }

    fn keep(&mut self, tokens: Vec<TokenId>) {
        self.segments.retain(|segment| segment.tokens != tokens);
        self.segments.push_front(Segment { tokens, age: 0 });
        let (mut num_kept, most) = (0, self.options.threshold.unwrap_or(MAX_KEPT));
        let fits = |segment: &Segment| {
            num_kept += segment.tokens.len();
            segment.age == 0 || num_kept <= most
        };
        let num_fitting = self.segments.iter().map(fits).take_while(|&fits| fits).count();
        self.segments.truncate(num_fitting);
    }
}

impl Propose for DraftReuse {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// `None` while nothing is kept.
    fn cursor(&self) -> Option<Cursor> {
        let (&last, context) = self.recent.split_last()?;
        (!self.segments.is_empty()).then(|| self.search(last, context))
    }

    /// Never `None`: what is drafted may be what was missing before a segment.
    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let Some((before, after)) = self.around(cursor) else {
            return Some(self.search(token, &[]));
        };
        if after.first() == Some(&token) {
            return Some(Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 });
        }
        Some(self.search(token, &before[before.len() - cursor.match_len as usize..]))
    }

    /// In a segment its next token, surer the longer the agreement; outside, how each may begin.
    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        if let Some((_, after)) = self.around(cursor) {
            let probability = cursor.match_len as f32 / (cursor.match_len + 1) as f32;
            let next = Cursor { place: cursor.place + 1, match_len: cursor.match_len + 1 };
            out.extend(after.first().map(|&token| Successor { token, probability, cursor: next }));
            return;
        }
        for (index, segment) in self.segments.iter().enumerate() {
            let anchor = usize::from(self.options.anchor);
            for (offset, probability) in [(anchor, START_PROBABILITY), (0, START_PROBABILITY / 2.0)]
            {
                let place = Self::place(index, offset + 1);
                let cursor = Cursor { place, match_len: 1 };
                let token = segment.tokens[offset];
                if !out.iter().any(|known| known.token == token) {
                    out.push(Successor { token, probability, cursor });
                }
            }
        }
    }
}

impl Learn for DraftReuse {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.recent.extend(&tokens[tokens.len().saturating_sub(MAX_CONTEXT)..]);
        let num_old = self.recent.len().saturating_sub(MAX_CONTEXT);
        self.recent.drain(..num_old);
    }

    fn verified(&mut self, seen: &mut Verification<'_>) {
        for segment in &mut self.segments {
            segment.age += 1;
        }
        let num_drafted = seen.tree.num_nodes() - 1;
        let stays = |segment: &Segment| match self.options.threshold {
            Some(threshold) => num_drafted <= threshold,
            None => segment.age < LIFETIME,
        };
        self.segments.retain(stays);
        let kept = agreeing_segment(seen.tree, &seen.verified.path, &mut *seen.says);
        if let Some((segment, own_word)) = kept {
            let own_word = own_word.filter(|_| self.options.own_word);
            let with_anchor = segment.into_iter().skip(usize::from(!self.options.anchor));
            self.keep(with_anchor.chain(own_word).collect());
        }
    }

    fn rows_read(&self, num_nodes: usize) -> usize {
        num_nodes.saturating_sub(1)
    }

    fn clear(&mut self) {
        self.recent.clear();
        self.segments.clear();
    }

    fn memory_bytes(&self) -> usize {
        let tokens: usize = self.segments.iter().map(|segment| segment.tokens.capacity()).sum();
        (self.recent.capacity() + tokens) * size_of::<TokenId>()
            + self.segments.capacity() * size_of::<Segment>()
    }
}

/// The longest run of rejected nodes, on any path of the tree, that hold what the target says after
/// their parents (CoordGen, section 3.4, Eq. 3: the largest `eps - gamma`), with the node before it
/// and what the target says next; `None` where there is no such node.
///
/// Of equal runs that below the deepest accepted node, then that which ends in the lowest. A row is
/// read where a run as long as the best so far could still go through its node.
fn agreeing_segment(
    tree: &DraftTree,
    accepted: &[NodeId],
    says: &mut dyn FnMut(NodeId) -> Option<TokenId>,
) -> Option<(Vec<TokenId>, Option<TokenId>)> {
    let num_nodes = tree.num_nodes();
    // Nodes on the longest path below each.
    let mut heights = vec![0; num_nodes];
    for node in (1..num_nodes).rev() {
        let parent = tree.parents()[node].index();
        heights[parent] = heights[parent].max(heights[node] + 1);
    }
    // Of each rejected node the length of the run that it ends, and what is said after it.
    let (mut runs, mut said) = (vec![None; num_nodes], vec![None; num_nodes]);
    let mut roots = vec![NodeId::ROOT; num_nodes]; // the deepest accepted nodes above
    let mut best = (0, 0, Reverse(0));
    for node in 1..num_nodes {
        let parent = tree.parents()[node];
        roots[node] = roots[parent.index()];
        if accepted.contains(&NodeId(node as u32)) {
            roots[node] = NodeId(node as u32);
            continue;
        }
        runs[node] = Some(0);
        let Some(run) = runs[parent.index()] else { continue };
        if run + 1 + heights[node] < best.0 {
            continue;
        }
        let word = said[parent.index()].get_or_insert_with(|| says(parent));
        if *word == Some(tree.token(NodeId(node as u32))) {
            runs[node] = Some(run + 1);
            let depth = tree.depths()[roots[node].index()];
            best = best.max((run + 1, depth, Reverse(node)));
        }
    }
    let (run, _, Reverse(end)) = best;
    let end = NodeId(end as u32);
    let own_word = (run > 0).then(|| said[end.index()].unwrap_or_else(|| says(end)))?;
    let up = std::iter::successors(Some(end), |node| Some(tree.parents()[node.index()]));
    let mut tokens: Vec<_> = up.take(run + 1).map(|node| tree.token(node)).collect();
    tokens.reverse();
    Some((tokens, own_word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commit::{CommitPolicy, Limits, commit};
    use crate::tree::draft_tree::strategies;
    use crate::verify::verify;

    const T: u32 = 100;

    /// Tells `reuse` of one step: the tree is verified by a target that says `says` row by row.
    fn step(reuse: &mut DraftReuse, tree: &DraftTree, says: &[TokenId]) {
        let verified = verify(tree, |node| Ok(Some(says[node.index()]))).unwrap();
        let limits = Limits { end_tokens: &[], remaining: 100 };
        let commit = commit(CommitPolicy::Canonical, tree, &verified, limits);
        let mut says = |node: NodeId| Some(says[node.index()]);
        let mut seen = Verification {
            tree,
            verified: &verified,
            commit: &commit,
            says: &mut says,
            top_k: &mut |_| None,
            logits: None,
        };
        reuse.verified(&mut seen);
        reuse.extend(&commit.token_ids);
    }

    fn chain_step(reuse: &mut DraftReuse, draft: &[u32], says: &[u32]) {
        let tokens: Vec<TokenId> = draft.iter().copied().map(TokenId).collect();
        let says: Vec<TokenId> = says.iter().copied().map(TokenId).collect();
        step(reuse, &DraftTree::chain(&tokens).unwrap(), &says);
    }

    /// Whether the tokens can be reached from the end of the text by what is proposed.
    fn proposes(reuse: &DraftReuse, tokens: &[u32]) -> bool {
        let mut cursor = reuse.cursor();
        tokens.iter().all(|&token| {
            let mut found = Vec::new();
            cursor.iter().for_each(|&cursor| reuse.successors(cursor, &mut found));
            let next = found.iter().find(|next| next.token == TokenId(token));
            if let Some(next) = next {
                // A beginning is a guess; what it matches is only known to `advance`.
                assert!(
                    cursor == Some(reuse.outside())
                        || reuse.advance(cursor.unwrap(), TokenId(token)) == Some(next.cursor)
                );
                assert!(next.probability > 0.0 && next.probability < 1.0);
            }
            cursor = next.map(|next| next.cursor);
            next.is_some()
        })
    }

    /// Table 2, first row: the target says 9 before 1 2 3 4, which the draft lacks.
    #[test]
    fn a_missing_token_leaves_the_draft_to_come() {
        let mut reuse = DraftReuse::default();
        reuse.extend(&[TokenId(T)]);
        chain_step(&mut reuse, &[T, 1, 2, 3, 4], &[9, 2, 3, 4, 5]);
        assert_eq!(reuse.segments().next().unwrap(), [1, 2, 3, 4, 5].map(TokenId));
        assert!(proposes(&reuse, &[1, 2, 3, 4, 5]));
        // Another word is missing too: "9 8 1 2 3 4". Whichever source drafts 8, the segment goes on.
        let after_8 = reuse.advance(reuse.cursor().unwrap(), TokenId(8)).unwrap();
        let mut found = Vec::new();
        reuse.successors(after_8, &mut found);
        assert!(found.iter().any(|next| next.token == TokenId(1)));
    }

    /// Table 2, second row: the target says 9 for the draft's 1, then 2 3 4 as drafted.
    #[test]
    fn a_synonym_is_followed_by_the_rest_of_the_draft() {
        let mut reuse = DraftReuse::default();
        reuse.extend(&[TokenId(T)]);
        chain_step(&mut reuse, &[T, 1, 2, 3, 4], &[9, 2, 3, 4, 5]);
        assert!(proposes(&reuse, &[2, 3, 4]));
        // Once 2 is given out, its match makes 3 likely.
        reuse.extend(&[TokenId(2)]);
        let mut found = Vec::new();
        reuse.successors(reuse.cursor().unwrap(), &mut found);
        assert_eq!((found.len(), found[0].token), (1, TokenId(3)));
        assert!(found[0].probability > START_PROBABILITY);
    }

    /// Table 2, third row.
    #[test]
    fn a_redundant_draft_is_dropped() {
        let mut reuse = DraftReuse::default();
        reuse.extend(&[TokenId(T)]);
        chain_step(&mut reuse, &[T, 1, 2, 3, 4], &[9, 7, 7, 7, 7]);
        assert_eq!(reuse.segments().count(), 0);
        assert_eq!(reuse.cursor(), None);
    }

    #[test]
    fn the_oldest_go_when_the_kept_tokens_exceed_the_threshold() {
        let mut reuse = DraftReuse::default();
        reuse.extend(&[TokenId(T)]);
        let long: Vec<u32> = (0..=16).collect();
        for round in 0..4 {
            let draft: Vec<u32> =
                [T].into_iter().chain(long.iter().map(|at| at + 20 * round)).collect();
            let mut says: Vec<u32> = draft[1..].to_vec();
            says[0] = 99;
            says.push(99);
            chain_step(&mut reuse, &draft, &says);
            let kept: usize = reuse.segments().map(<[TokenId]>::len).sum();
            assert!(kept <= MAX_KEPT || reuse.segments().count() == 1);
            assert_eq!(reuse.segments().next().unwrap()[0], TokenId(20 * round));
        }
    }

    #[test]
    fn segments_are_proposed_for_their_lifetime() {
        let mut reuse = DraftReuse::default();
        reuse.extend(&[TokenId(T)]);
        chain_step(&mut reuse, &[T, 1, 2, 3, 4], &[9, 2, 3, 4, 5]);
        for _ in 0..LIFETIME {
            assert!(proposes(&reuse, &[2, 3, 4]));
            chain_step(&mut reuse, &[9], &[9]);
        }
        assert_eq!(reuse.segments().count(), 0);
    }

    /// Section 3.4 to the letter: the segment alone, proposed whole at the root, for a step at least,
    /// and until a step's draft is longer than the threshold.
    #[test]
    fn as_published_a_segment_goes_with_the_first_draft_above_the_threshold() {
        let options = ReuseOptions { threshold: Some(4), anchor: false, own_word: false };
        let mut reuse = DraftReuse::new(options);
        reuse.extend(&[TokenId(T)]);
        chain_step(&mut reuse, &[T, 1, 2, 3, 4, 2, 8], &[9, 2, 3, 4, 5, 6, 7]);
        for _ in 0..2 {
            assert_eq!(reuse.segments().collect::<Vec<_>>(), [[2, 3, 4].map(TokenId)]);
            // Not from within the segment, although the text ends in a token of it.
            assert!(proposes(&reuse, &[2, 3, 4]) && !proposes(&reuse, &[4]));
            // The same behind a token that is carried.
            let carried = reuse.advance(reuse.cursor().unwrap(), TokenId(2));
            assert_eq!(carried, reuse.cursor());
            chain_step(&mut reuse, &[9, 2, 3, 7, 7], &[3, 9, 9, 9, 9]);
        }
        chain_step(&mut reuse, &[3, 2, 3, 7, 7, 7], &[3, 9, 9, 9, 9, 9]);
        assert_eq!(reuse.segments().count(), 0);
    }

    /// Every stretch of every rejected path, tried one by one.
    fn naive_segment(
        tree: &DraftTree,
        says: &[TokenId],
        accepted: &[NodeId],
    ) -> Option<Vec<TokenId>> {
        let is_rejected = |node: NodeId| node != NodeId::ROOT && !accepted.contains(&node);
        let mut found = vec![];
        for end in (1..tree.num_nodes() as u32).map(NodeId) {
            let up = std::iter::successors(Some(end), |node| Some(tree.parents()[node.index()]));
            let path: Vec<NodeId> = up.take_while(|&node| is_rejected(node)).collect();
            let above = path.last().map_or(end, |&node| tree.parents()[node.index()]);
            for len in 1..path.len() {
                let pairs = path[..len].iter().zip(&path[1..]);
                if pairs.clone().all(|(node, before)| tree.token(*node) == says[before.index()]) {
                    let mut tokens: Vec<_> =
                        path[..=len].iter().map(|&it| tree.token(it)).collect();
                    tokens.reverse();
                    tokens.push(says[end.index()]);
                    found.push((len, tree.depths()[above.index()], Reverse(end.0), tokens));
                }
            }
        }
        found.into_iter().max().map(|(.., tokens)| tokens)
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_longest_agreeing_segment(
            steps in prop::collection::vec(
                (strategies::tree(12), prop::collection::vec((0u32..3).prop_map(TokenId), 12)),
                1..5,
            ),
        ) {
            let mut reuse = DraftReuse::default();
            for (tree, says) in &steps {
                let verified = verify(tree, |node| Ok(Some(says[node.index()]))).unwrap();
                let expected = naive_segment(tree, says, &verified.path);
                let old: Vec<Vec<TokenId>> = reuse.segments().map(<[TokenId]>::to_vec).collect();
                step(&mut reuse, tree, says);
                let mut segments = reuse.segments().map(<[TokenId]>::to_vec);
                if let Some(expected) = expected {
                    prop_assert_eq!(segments.next(), Some(expected));
                }
                prop_assert!(segments.all(|segment| old.contains(&segment)));
            }
        }
    }
}
