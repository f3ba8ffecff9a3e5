//! Laws of the growing tree: it is the worthiest, and sources are asked no more than need be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frontier::MAX_PROBABILITY;
use super::*;
use crate::draft::choose::acceptance::Agreement;
use crate::draft::choose::tests::Scripted;
use crate::draft::source::{Learn, Propose, Successor};
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use proptest::prelude::*;

/// Worths of all nodes below a node, however small, down to `depth` more edges.
fn naive_worths(
    sources: &[Box<dyn DraftSource>],
    cursors: &[Cursor],
    (path_probability, on_first_path): (f32, bool),
    side_worth: f32,
    depth: usize,
) -> Vec<f32> {
    if depth == 0 {
        return vec![];
    }
    let acceptance = Acceptance::new(sources.len());
    let mut probabilities = [0.0_f32; Scripted::VOCAB_SIZE];
    for (index, source) in sources.iter().enumerate() {
        let mut successors = vec![];
        source.successors(cursors[index], &mut successors);
        let factor = acceptance.factor(index, cursors[index].match_len, Agreement::Unopposed);
        for Successor { token, probability, .. } in successors {
            let known = &mut probabilities[token.0 as usize];
            *known = known.max((probability * factor).min(MAX_PROBABILITY));
        }
    }
    let total = probabilities.iter().sum::<f32>().max(1.0);
    let largest = probabilities.iter().copied().fold(0.0, f32::max);
    let likeliest = probabilities.iter().position(|&probability| probability == largest);
    let mut worths = vec![];
    for (token, probability) in probabilities.into_iter().enumerate() {
        let below = path_probability * probability / total;
        let is_first = on_first_path && Some(token) == likeliest;
        worths.push(below * if is_first { 1.0 } else { side_worth });
        let follow =
            |index: usize| sources[index].advance(cursors[index], TokenId(token as u32)).unwrap();
        let cursors: Vec<Cursor> = (0..sources.len()).map(follow).collect();
        let node = (below, is_first);
        worths.extend(naive_worths(sources, &cursors, node, side_worth, depth - 1));
    }
    worths
}

proptest! {
    #[test]
    fn the_grown_tree_is_the_worthiest(
        rules in prop::collection::vec(0u32..20, 1..3),
        carried in prop::collection::vec((0u32..3).prop_map(TokenId), 0..3),
        num_nodes in 1usize..20,
        depth in 0usize..5,
        side_worth in prop::sample::select(vec![0.25_f32, 1.0]),
    ) {
        let sources = Scripted::sources(&rules);
        let limits = GrowthLimits { num_nodes, depth, side_worth, branches: true };
        let acceptance = Acceptance::new(sources.len());
        let mut grower = TreeGrower::new(usize::MAX, vec![]);
        grower.grow(&sources, &acceptance, TokenId(0), &carried, limits);

        let certain = 1 + carried.len().min(depth).min(num_nodes - 1);
        let mut cursors: Vec<_> = sources.iter().map(|source| source.cursor().unwrap()).collect();
        for &token in &carried[..certain - 1] {
            for (source, cursor) in sources.iter().zip(&mut cursors) {
                *cursor = source.advance(*cursor, token).unwrap();
            }
        }
        let left = depth + 1 - certain;
        let mut below = naive_worths(&sources, &cursors, (1.0, true), side_worth, left);
        below.sort_by(|one, other| other.total_cmp(one));
        below.truncate(num_nodes - certain);
        let expected = std::iter::repeat_n(1.0, certain).chain(below);
        prop_assert_eq!(grower.worths().len(), expected.clone().count());
        for (worth, expected) in grower.worths().zip(expected) {
            prop_assert!((worth - expected).abs() < 1e-6, "{worth} is not {expected}");
        }
    }

    #[test]
    fn the_first_path_stands_first_in_a_cut(
        rules in prop::collection::vec(0u32..20, 1..3),
        num_nodes in 1usize..20,
        cut in 1usize..20,
    ) {
        let sources = Scripted::sources(&rules);
        let acceptance = Acceptance::new(sources.len());
        let limits = GrowthLimits { num_nodes, depth: 9, side_worth: 0.25, branches: true };
        let mut grower = TreeGrower::new(usize::MAX, vec![]);
        grower.grow(&sources, &acceptance, TokenId(0), &[], limits);
        let (mut tree, mut proposals) = (DraftTree::new(TokenId(9)), vec![]);
        grower.cut(cut, &mut tree, &mut proposals);

        prop_assert_eq!(tree.num_nodes(), cut.min(num_nodes));
        prop_assert_eq!(proposals.len(), tree.num_nodes());
        let on_first_path = grower.nodes[..tree.num_nodes()].iter().filter(|node| node.on_first_path);
        prop_assert_eq!(tree.first_path_len() + 1, on_first_path.count());
        let siblings: std::collections::HashSet<_> =
            tree.parents().iter().zip(tree.token_ids()).skip(1).collect();
        prop_assert_eq!(siblings.len() + 1, tree.num_nodes());
    }
}

/// Counts how often it is asked.
struct Counted(Box<dyn DraftSource>, Arc<AtomicUsize>);

impl Propose for Counted {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cursor(&self) -> Option<Cursor> {
        self.0.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.0.advance(cursor, token)
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.successors_above(cursor, at_least, out);
    }
}

impl Learn for Counted {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.0.extend(tokens);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

proptest! {
    #[test]
    fn a_source_is_asked_at_most_twice_a_node(
        rule in 0u32..20,
        num_nodes in 1usize..40,
    ) {
        let asked = Arc::<AtomicUsize>::default();
        let scripted = Scripted::sources(&[rule]).pop().unwrap();
        let sources: Vec<Box<dyn DraftSource>> =
            vec![Box::new(Counted(scripted, Arc::clone(&asked)))];
        let limits = GrowthLimits { num_nodes, depth: 99, side_worth: 1.0, branches: true };
        let mut grower = TreeGrower::new(usize::MAX, vec![]);
        grower.grow(&sources, &Acceptance::new(1), TokenId(0), &[], limits);
        prop_assert!(asked.load(Ordering::Relaxed) <= 2 * num_nodes);
    }
}

/// An automaton that may keep to itself that it leaves out the unlikely.
struct Discreet(SuffixAutomaton, bool);

impl Propose for Discreet {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cursor(&self) -> Option<Cursor> {
        self.0.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.0.advance(cursor, token)
    }

    fn successors_above(&self, cursor: Cursor, at_least: f32, out: &mut Vec<Successor>) {
        self.0.successors_above(cursor, at_least, out);
    }

    fn leaves_out_the_unlikely(&self) -> bool {
        self.1
    }
}

impl Learn for Discreet {
    fn extend(&mut self, tokens: &[TokenId]) {
        self.0.extend(tokens);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

proptest! {
    #[test]
    fn not_asking_where_nothing_is_said_changes_no_tree(
        texts in prop::collection::vec(prop::collection::vec(0u32..6, 1..80), 1..3),
        came_true in prop::collection::vec(any::<bool>(), 0..40),
        num_nodes in 1usize..40,
        side_worth in prop::sample::select(vec![0.25_f32, 1.0]),
    ) {
        let mut acceptance = Acceptance::new(texts.len());
        for (index, came_true) in came_true.into_iter().enumerate() {
            let (source, match_len) = (index % texts.len(), (index % 5) as u32);
            let proposal = Proposal { source, match_len, probability: 0.5, agreement: Agreement::Unopposed };
            acceptance.observe(proposal, came_true);
        }
        let limits = GrowthLimits { num_nodes, depth: 9, side_worth, branches: true };
        let grown = |leaves_out| {
            let sources: Vec<Box<dyn DraftSource>> = texts.iter().map(|text| {
                let mut source = Discreet(SuffixAutomaton::new(), leaves_out);
                source.extend(&text.iter().copied().map(TokenId).collect::<Vec<_>>());
                Box::new(source) as Box<dyn DraftSource>
            }).collect();
            let mut grower = TreeGrower::new(usize::MAX, vec![]);
            grower.grow(&sources, &acceptance, TokenId(0), &[], limits);
            let mut tree = DraftTree::new(TokenId(0));
            grower.cut(num_nodes, &mut tree, &mut vec![]);
            (tree, grower.worths().collect::<Vec<_>>())
        };
        prop_assert_eq!(grown(true), grown(false));
    }
}

/// Says one token everywhere, with one probability.
struct Says {
    token: TokenId,
    probability: f32,
    is_model: bool,
    is_background: bool,
}

impl Propose for Says {
    fn name(&self) -> &'static str {
        "says"
    }

    fn cursor(&self) -> Option<Cursor> {
        Some(Cursor { place: 0, match_len: 15 })
    }

    fn advance(&self, cursor: Cursor, _: TokenId) -> Option<Cursor> {
        Some(cursor)
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        out.push(Successor { token: self.token, probability: self.probability, cursor });
    }

    fn is_model(&self) -> bool {
        self.is_model
    }

    fn is_background(&self) -> bool {
        self.is_background
    }
}

impl Learn for Says {
    fn extend(&mut self, _: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

/// Of a tree from a copy that is sure of token 1, and one more that is nearly so of token 2.
fn first_path_beside(is_model: bool, acceptance: &Acceptance) -> Vec<f32> {
    let copy = Says { token: TokenId(1), probability: 0.9, is_model: false, is_background: false };
    let other = Says { token: TokenId(2), probability: 0.8, is_model, is_background: false };
    let sources: Vec<Box<dyn DraftSource>> = vec![Box::new(copy), Box::new(other)];
    let limits = GrowthLimits { num_nodes: 12, depth: 9, side_worth: 0.25, branches: true };
    let mut grower = TreeGrower::new(usize::MAX, vec![]);
    grower.grow(&sources, acceptance, TokenId(0), &[], limits);
    let on_first_path = grower.nodes.iter().skip(1).filter(|node| node.on_first_path);
    on_first_path
        .map(|node| node.worth * if node.token == TokenId(2) { 1.0 } else { -1.0 })
        .collect()
}

#[test]
fn a_draft_model_keeps_its_estimate_where_a_copy_contradicts_it() {
    let acceptance = Acceptance::new(2);
    let worths = first_path_beside(true, &acceptance);
    let own = 0.8 * acceptance.factor(1, 15, Agreement::Unopposed);
    for (depth, worth) in worths.iter().enumerate() {
        assert!((worth - own.powi(depth as i32 + 1)).abs() < 1e-6, "{worths:?}");
    }
    let diluted = first_path_beside(false, &acceptance);
    assert!(diluted[0] < 0.0, "the surer copy comes first");
    assert!(diluted[0].abs() < own);
}

#[test]
fn a_copy_that_is_right_against_the_model_comes_first() {
    let mut acceptance = Acceptance::new(2);
    let proposal = Proposal {
        source: 0,
        match_len: 15,
        probability: 0.9,
        agreement: Agreement::ModelDisagrees,
    };
    (0..100).for_each(|_| acceptance.observe(proposal, true));
    assert!(first_path_beside(true, &acceptance)[0] < 0.0);
}

#[test]
fn an_end_token_is_not_grown_and_nothing_below_a_carried_one() {
    let end = TokenId(1);
    let (acceptance, sources) = (Acceptance::new(1), Scripted::sources(&[3]));
    let limits = GrowthLimits { num_nodes: 40, depth: 6, side_worth: 1.0, branches: true };
    let mut grower = TreeGrower::new(usize::MAX, vec![end]);
    grower.grow(&sources, &acceptance, end, &[], limits);
    assert!(grower.nodes.len() > 1, "the root is no part of the answer");
    assert!(grower.nodes[1..].iter().all(|node| node.token != end));
    let first_path_len = grower.nodes.iter().filter(|node| node.on_first_path).count();
    assert_eq!(first_path_len, 7, "it goes on with the likeliest of the others");
    grower.grow(&sources, &acceptance, TokenId(0), &[end], limits);
    assert_eq!(grower.nodes.len(), 2);
}

/// Says what it was told the target held likely.
struct Expectation(Box<dyn DraftSource>);

impl Propose for Expectation {
    fn name(&self) -> &'static str {
        "expectation"
    }

    fn cursor(&self) -> Option<Cursor> {
        self.0.cursor()
    }

    fn advance(&self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        self.0.advance(cursor, token)
    }

    fn successors_above(&self, cursor: Cursor, _at_least: f32, out: &mut Vec<Successor>) {
        self.0.successors(cursor, out);
    }

    fn is_expectation(&self) -> bool {
        true
    }
}

impl Learn for Expectation {
    fn extend(&mut self, _tokens: &[TokenId]) {}

    fn clear(&mut self) {}

    fn memory_bytes(&self) -> usize {
        0
    }
}

#[test]
fn copies_that_agree_with_what_the_target_held_likely_are_trusted_apart() {
    let grown = |with_expectation: bool| {
        let mut sources = Scripted::sources(&[3]);
        if with_expectation {
            // Its first token is 0.
            sources.push(Box::new(Expectation(Scripted::sources(&[0]).remove(0))));
        }
        let acceptance = Acceptance::new(sources.len());
        let limits = GrowthLimits { num_nodes: 40, depth: 1, side_worth: 1.0, branches: true };
        let mut grower = TreeGrower::new(usize::MAX, vec![]);
        grower.grow(&sources, &acceptance, TokenId(0), &[], limits);
        let guesses = grower
            .nodes
            .iter()
            .filter_map(|node| node.guess.map(|it| (node, grower.guesses.get(it))));
        let of_copy = guesses.filter(|(_, guess)| guess.proposal.source == 0);
        let standings = of_copy.map(|(node, guess)| (node.token, guess.proposal.agreement));
        standings.collect::<Vec<_>>()
    };
    let with = grown(true);
    assert!(
        with.iter().any(|&(_, agreement)| agreement == Agreement::ExpectationDisagrees),
        "{with:?}"
    );
    for (token, agreement) in with {
        assert_eq!(agreement == Agreement::ExpectationAgrees, token == TokenId(0), "{token:?}");
    }
    assert!(grown(false).iter().all(|&(_, agreement)| agreement == Agreement::Unopposed));
}

#[test]
fn what_is_common_anywhere_shares_what_the_copies_leave_over() {
    let says = |token, probability, is_background| -> Box<dyn DraftSource> {
        Box::new(Says { token: TokenId(token), probability, is_model: false, is_background })
    };
    let acceptance = Acceptance::new(3);
    let trust = acceptance.factor(0, 15, Agreement::Unopposed);
    let limits = GrowthLimits { num_nodes: 40, depth: 1, side_worth: 1.0, branches: true };
    let mut grower = TreeGrower::new(usize::MAX, vec![]);
    // Wherever it stands in the list.
    for at in 0..3 {
        let mut sources = vec![says(1, 0.5, false), says(2, 0.25, false)];
        sources.insert(at, says(3, 0.4, true));
        grower.grow(&sources, &acceptance, TokenId(0), &[], limits);
        let [_, one, other, common] = &grower.nodes[..] else { panic!("{:?}", grower.nodes) };
        let [sure, less] = [0.5, 0.25].map(|own| own * trust);
        let share = 0.4 * (1.0 - sure - less);
        for (node, token, worth) in [(one, 1, sure), (other, 2, less), (common, 3, share * trust)] {
            assert_eq!(node.token, TokenId(token));
            assert!((node.worth - worth).abs() < 1e-6, "{:?}", grower.nodes);
        }
        let learned = grower.guesses.get(common.guess.unwrap()).proposal;
        assert_eq!((learned.source, learned.agreement), (at, Agreement::Unopposed));
        assert!((learned.probability - share).abs() < 1e-6, "what it is held to is its share");
    }
}
