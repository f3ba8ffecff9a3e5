//! A host that follows the proposals sees what our own loop drafts, and a rewound drafter has
//! forgotten.

use proptest::prelude::*;

use super::*;
use crate::ids::NodeId;

const VOCAB_SIZE: usize = 3;
const ROWS: [usize; 4] = [1, 2, 4, 8];

fn token() -> impl Strategy<Value = TokenId> {
    (0..VOCAB_SIZE as u32).prop_map(TokenId)
}

fn text(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec(token(), len)
}

fn costs() -> impl Strategy<Value = Option<Vec<StepCost>>> {
    let growing = [(1.0, 0.0), (1.1, 0.001), (1.4, 0.002), (2.0, 0.004)];
    let costs = growing.map(|(base, per_token)| StepCost { base, per_token });
    prop::option::of(Just(costs.to_vec()))
}

fn options(costs: Option<Vec<StepCost>>) -> HostOptions {
    HostOptions {
        vocab_size: VOCAB_SIZE,
        rows: ROWS.to_vec(),
        costs,
        commit: CommitPolicy::Compact,
        end_tokens: vec![TokenId(2)],
    }
}

fn host(costs: Option<Vec<StepCost>>, history: Option<&History>) -> HostDrafter {
    HostDrafter::new(Method::named("auto").unwrap(), history, options(costs)).unwrap()
}

/// Our own drafter of chains, with the sources of [`host`].
fn own(costs: Option<Vec<StepCost>>) -> Drafter {
    let HostOptions { vocab_size, rows, costs, end_tokens, .. } = options(costs);
    let shapes = rows.iter().map(|&rows| StepShape { rows, attended: usize::MAX }).collect();
    let options = DrafterOptions {
        steps: StepChoice::new(shapes, costs).unwrap(),
        vocab_size,
        commit: CommitPolicy::Canonical,
        end_tokens,
        shape: TreeShape::Chain,
    };
    let names = ["automaton", "resumed-copy"];
    let sources = names.map(|name| source_named(name).unwrap()).into_iter().collect();
    let mut own = Drafter::new(sources, options).unwrap();
    own.ignore_end_tokens(true);
    own
}

/// One thing that a host does: asks for a chain or a tree of so many tokens, or for nothing; then
/// commits so many tokens of what it says.
type Deed = (Option<(usize, bool)>, usize);

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let asked = prop::option::weighted(0.8, (0usize..9, any::<bool>()));
    prop::collection::vec((asked, 0usize..10), 1..12)
}

/// Asks as a host does; what is drafted, as tokens and parents.
fn ask(drafter: &mut HostDrafter, asked: Option<(usize, bool)>) -> (Vec<TokenId>, Vec<NodeId>) {
    match asked {
        None => (vec![], vec![]),
        Some((max_tokens, false)) => (drafter.propose_chain(max_tokens).unwrap().to_vec(), vec![]),
        Some((max_tokens, true)) => {
            let tree = drafter.propose_tree(max_tokens).unwrap();
            (tree.token_ids().to_vec(), tree.parents().to_vec())
        }
    }
}

/// Carries out `deeds` with a host that says `answer`; returns what was asked when each ended.
fn carry_out(
    drafter: &mut HostDrafter,
    prompt: &[TokenId],
    answer: &[TokenId],
    deeds: &[Deed],
) -> Vec<usize> {
    drafter.begin(prompt, &[]).unwrap();
    let mut said = 0;
    let mut ends = vec![];
    for &(asked, num_tokens) in deeds {
        ask(drafter, asked);
        let end = answer.len().min(said + num_tokens);
        drafter.observe(&answer[said..end]).unwrap();
        said = end;
        ends.push(said);
    }
    ends
}

proptest! {
    #[test]
    fn a_host_sees_the_chains_of_our_own_loop(
        requests in prop::collection::vec((text(1..30), text(60..61)), 1..4),
        costs in costs(),
    ) {
        let (mut host, mut own) = (host(costs.clone(), None), own(costs));
        for (prompt, answer) in &requests {
            let mut past_len = prompt.len() - 1;
            host.begin(prompt, &[]).unwrap();
            own.begin(prompt, usize::MAX).unwrap();
            let mut rest = &answer[..];
            while rest.len() > ROWS[3] {
                own.propose(past_len).unwrap();
                let chain = host.propose_chain(usize::MAX).unwrap();
                prop_assert_eq!(chain, &own.tree().token_ids()[1..]);
                let accepted = own.accept_recorded(rest).unwrap().token_ids;
                host.observe(&accepted).unwrap();
                rest = &rest[accepted.len()..];
                past_len += accepted.len();
            }
            prop_assert_eq!(host.statistics(), own.statistics());
        }
    }

    #[test]
    fn what_was_rewound_was_never_seen(
        earlier in (text(1..20), text(20..21)),
        prompt in text(1..30),
        answer in text(40..41),
        deeds in deeds(),
        costs in costs(),
        kept in any::<prop::sample::Index>(),
        asked in (0usize..9, any::<bool>()),
    ) {
        let mut rewound = host(costs.clone(), None);
        let mut fresh = host(costs, None);
        for drafter in [&mut rewound, &mut fresh] {
            carry_out(drafter, &earlier.0, &earlier.1, &[(Some((7, false)), 9), (None, 9)]);
        }
        let ends = carry_out(&mut rewound, &prompt, &answer, &deeds);
        let num_said = ends[ends.len() - 1];
        let len = 1 + kept.index(prompt.len() + num_said);
        rewound.rewind(len).unwrap();
        prop_assert_eq!(rewound.text().len(), len);
        // The twin stops where the rewound one was sent back to.
        let num_kept = len.saturating_sub(prompt.len());
        let prompt = &prompt[..len.min(prompt.len())];
        carry_out(&mut fresh, prompt, &answer[..num_kept], &deeds);
        prop_assert_eq!(fresh.text(), rewound.text());
        prop_assert_eq!(ask(&mut rewound, Some(asked)), ask(&mut fresh, Some(asked)));
        for drafter in [&mut rewound, &mut fresh] {
            drafter.observe(&answer[num_kept..]).unwrap();
        }
        prop_assert_eq!(ask(&mut rewound, Some(asked)), ask(&mut fresh, Some(asked)));
        prop_assert_eq!(rewound.statistics(), fresh.statistics());
    }

    #[test]
    fn telling_the_whole_text_is_telling_what_is_new(
        prompt in text(1..20),
        answer in text(40..41),
        deeds in deeds(),
    ) {
        let (mut told, mut following) = (host(None, None), host(None, None));
        told.begin(&prompt, &[]).unwrap();
        prop_assert!(following.follow(&prompt).unwrap());
        let (mut said, mut whole) = (0, prompt.clone());
        for (asked, num_tokens) in deeds {
            prop_assert_eq!(ask(&mut told, asked), ask(&mut following, asked));
            let end = answer.len().min(said + num_tokens);
            told.observe(&answer[said..end]).unwrap();
            whole.extend(&answer[said..end]);
            prop_assert!(!following.follow(&whole).unwrap());
            said = end;
        }
        prop_assert_eq!(told.statistics(), following.statistics());
    }

    #[test]
    fn no_draft_is_larger_than_asked_for(prompt in text(1..40), max_tokens in 0usize..9) {
        let mut drafter = host(None, None);
        drafter.begin(&prompt, &[]).unwrap();
        prop_assert!(drafter.propose_chain(max_tokens).unwrap().len() <= max_tokens);
        let tree = drafter.propose_tree(max_tokens).unwrap();
        prop_assert!(tree.num_nodes() <= max_tokens + 1);
        prop_assert_eq!(Some(&tree.token_ids()[0]), prompt.last());
    }
}

#[test]
fn drafters_of_many_requests_share_what_was_finished() {
    let history = History::new(VOCAB_SIZE as u32);
    let (mut one, mut other) = (host(None, Some(&history)), host(None, Some(&history)));
    let document = [0, 1, 1, 0, 0, 1, 0, 1].map(TokenId);
    one.begin(&[TokenId(0)], &[]).unwrap();
    history.remember(&document).unwrap();
    other.begin(&document[..4], &[]).unwrap();
    assert_eq!(other.propose_chain(4).unwrap(), &document[4..]);
    one.begin(&document[..5], &[]).unwrap();
    assert_eq!(one.propose_chain(3).unwrap(), &document[5..]);
}

proptest! {
    /// What a host keeps of a tree whose first path alone it may keep, it reports.
    #[test]
    fn the_first_path_can_be_all_that_is_reported(prompt in text(1..30), answer in text(40..41)) {
        let policy = HostOptions { commit: CommitPolicy::Canonical, ..options(None) };
        let mut drafter = HostDrafter::new(Method::named("auto").unwrap(), None, policy).unwrap();
        drafter.begin(&prompt, &[]).unwrap();
        let mut said = 0;
        while said + ROWS[3] < answer.len() {
            let tree = drafter.propose_tree(7).unwrap();
            let agreed = |&node: &usize| tree.path_is(NodeId(node as u32), &answer[said..]);
            let num_kept = (1..tree.first_path_len()).take_while(agreed).count();
            drafter.observe(&answer[said..=said + num_kept]).unwrap();
            said += num_kept + 1;
        }
        prop_assert_eq!(&drafter.text()[prompt.len()..], &answer[..said]);
    }
}

#[test]
fn a_prediction_survives_a_rewind() {
    let mut drafter = host(None, None);
    let prediction = [1, 0, 0, 1, 1, 0, 1].map(TokenId);
    drafter.begin(&[TokenId(0)], &prediction).unwrap();
    drafter.observe(&prediction[..3]).unwrap();
    drafter.rewind(1).unwrap();
    assert_eq!(drafter.propose_chain(7).unwrap(), prediction);
}

#[test]
fn what_cannot_be_followed_changes_nothing() {
    let mut drafter = host(None, None);
    assert_eq!(drafter.propose_chain(4).err(), Some(Error::NoRequest));
    assert_eq!(drafter.observe(&[TokenId(0)]), Err(Error::NoRequest));
    assert_eq!(drafter.rewind(1), Err(Error::NoRequest));
    drafter.begin(&[0, 1, 0].map(TokenId), &[]).unwrap();
    drafter.observe(&[TokenId(1)]).unwrap();
    let unknown = TokenId(VOCAB_SIZE as u32);
    assert!(drafter.observe(&[TokenId(0), unknown]).is_err());
    assert!(drafter.begin(&[unknown], &[]).is_err());
    assert!(drafter.follow(&[TokenId(0), TokenId(1), TokenId(0), TokenId(2), unknown]).is_err());
    assert_eq!(drafter.rewind(0), Err(Error::EmptyPrompt));
    assert!(drafter.rewind(5).is_err());
    assert_eq!(drafter.text(), [0, 1, 0, 1].map(TokenId));
    assert_eq!(drafter.propose_chain(2).unwrap(), [0, 1].map(TokenId));
}

#[test]
fn methods_that_need_more_than_tokens_are_refused() {
    for name in ["edgellm", "token-recycling", "diaa"] {
        let method = Method::named(name).unwrap();
        assert!(HostDrafter::new(method, None, options(None)).is_err(), "{name}");
    }
    let other = History::new(VOCAB_SIZE as u32 + 1);
    let auto = Method::named("auto").unwrap();
    assert!(HostDrafter::new(auto, Some(&other), options(None)).is_err());
}
