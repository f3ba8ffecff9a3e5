//! Laws of a shared step: by exhaustion on small ones, by the chooser of one request's step on its own.

use proptest::prelude::*;

mod simulate;

use super::*;
use crate::draft::choose::step_choice::{StepChoice, StepCost, StepShape};

fn costs(points: &[(usize, f32, f32)]) -> RowCosts {
    let cost = |&(rows, base, per_token)| (rows, StepCost { base, per_token });
    RowCosts::new(&points.iter().map(cost).collect::<Vec<_>>()).unwrap()
}

/// Worths from the root's 1 on, never increasing.
fn worths(most: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(0.0f32..1.0, 0..most).prop_map(|mut worths| {
        worths.push(1.0);
        worths.sort_by(|one, other| other.total_cmp(one));
        worths
    })
}

/// What is measured at four widths, never less for more rows.
fn growing_costs() -> impl Strategy<Value = RowCosts> {
    let more = || prop::array::uniform3((0.0f32..1.5, 0.0f32..0.01));
    ((0.1f32..2.0, 0.0f32..0.01), more()).prop_map(|((mut base, mut per_token), more)| {
        let mut points = vec![(1, base, per_token)];
        for (rows, (dearer, longer)) in [2, 5, 9].into_iter().zip(more) {
            (base, per_token) = (base + dearer, per_token + longer);
            points.push((rows, base, per_token));
        }
        costs(&points)
    })
}

/// What a step of these nodes costs.
fn cost_of(costs: &RowCosts, decoding: &[Decoding<'_>], nodes: &[usize]) -> f32 {
    let attention =
        |(request, &nodes): (&Decoding<'_>, &usize)| costs.attention(nodes, request.length);
    costs.base(nodes.iter().sum()) + decoding.iter().zip(nodes).map(attention).sum::<f32>()
}

/// Tokens that these nodes are expected to bring.
fn tokens_of(decoding: &[Decoding<'_>], nodes: &[usize]) -> f32 {
    decoding.iter().zip(nodes).flat_map(|(request, &nodes)| &request.worths[..nodes]).sum()
}

/// Every way to give each request its least and at most all.
fn splits(decoding: &[Decoding<'_>]) -> Vec<Vec<usize>> {
    decoding.iter().fold(vec![vec![]], |splits, &Decoding { worths, least, .. }| {
        let longer = |split: &Vec<usize>| {
            (least..=worths.len()).map(|nodes| [&split[..], &[nodes]].concat()).collect::<Vec<_>>()
        };
        splits.iter().flat_map(longer).collect()
    })
}

#[test]
fn costs_are_linear_between_what_was_measured_and_beyond() {
    let measured = costs(&[(2, 3.0, 0.1), (4, 4.0, 0.3), (8, 5.0, 0.5)]);
    let of_rows = [(0, 0.0), (1, 3.0), (2, 3.0), (3, 3.5), (4, 4.0), (6, 4.5), (8, 5.0), (12, 6.0)];
    for (rows, expected) in of_rows {
        assert_eq!(measured.base(rows), expected, "{rows}");
    }
    assert!((measured.attention(3, 100) - 20.0).abs() < 1e-4);
    assert!((measured.attention(10, 100) - 60.0).abs() < 1e-4);
    assert_eq!(measured.attention(0, 100), 0.0);
    // Of one width the further rows cost as much as its own, and none gets cheaper beyond the last.
    assert_eq!(costs(&[(4, 2.0, 0.0)]).base(6), 3.0);
    assert_eq!(costs(&[(1, 2.0, 0.0), (4, 1.0, 0.0)]).base(9), 1.0);
}

#[test]
fn unusable_costs_and_rows_are_refused() {
    let cost = StepCost::from(1.0);
    let unusable: [&[(usize, StepCost)]; 6] = [
        &[],
        &[(0, cost)],
        &[(4, cost), (4, cost)],
        &[(4, cost), (2, cost)],
        &[(1, StepCost::from(f32::NAN))],
        &[(1, StepCost { base: 1.0, per_token: -1.0 })],
    ];
    for points in unusable {
        assert!(matches!(RowCosts::new(points), Err(Error::BadOption { .. })), "{points:?}");
    }
    assert!(matches!(Batcher::new(None, 0), Err(Error::BadOption { what: "most_rows", .. })));
}

#[test]
fn unusable_requests_are_refused_and_nothing_changes() {
    let mut batcher = Batcher::new(None, 4).unwrap();
    let request = Decoding { worths: &[1.0, 0.5, 0.4], least: 1, length: 0 };
    let oldest = Prefilling { remaining: 9, length: 0 };
    for least in [0, 4] {
        let refused = batcher.share(&[Decoding { least, ..request }], &[oldest]);
        assert!(matches!(refused, Err(Error::BadOption { .. })));
    }
    assert!(batcher.share(&[Decoding { worths: &[], ..request }], &[]).is_err());
    let refused = batcher.share(&[Decoding { least: 3, ..request }; 2], &[oldest]);
    assert_eq!(refused, Err(Error::TooManyNodes { nodes: 6, rows: 4 }));
    for cost in [-1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(batcher.took(1, cost), Err(Error::BadOption { .. })));
    }
    let untouched = Batcher::new(None, 4).unwrap().share(&[request], &[oldest, oldest]);
    assert_eq!(batcher.share(&[request], &[oldest, oldest]), untouched);
}

#[test]
fn rows_that_are_free_are_all_given_and_half_of_them_kept_for_prompts() {
    let mut batcher = Batcher::new(None, 8).unwrap();
    let request = Decoding { worths: &[1.0, 0.5, 0.4, 0.0, 0.0], least: 1, length: 70 };
    let mut nodes_and_tokens = |num_decoding, remaining: &[usize]| {
        let reading = |&remaining: &usize| Prefilling { remaining, length: 5 };
        let reading: Vec<_> = remaining.iter().map(reading).collect();
        let shares = batcher.share(&vec![request; num_decoding], &reading).unwrap();
        assert_eq!((shares.cost, shares.costs), (0.0, vec![0.0; num_decoding]));
        (shares.nodes, shares.tokens)
    };
    assert_eq!(nodes_and_tokens(1, &[]), (vec![5], vec![]));
    assert_eq!(nodes_and_tokens(3, &[]), (vec![3, 3, 2], vec![]));
    assert_eq!(nodes_and_tokens(1, &[100]), (vec![4], vec![4]));
    assert_eq!(nodes_and_tokens(3, &[2]), (vec![2, 2, 2], vec![2]));
    assert_eq!(nodes_and_tokens(7, &[100]), (vec![1; 7], vec![1]));
    assert_eq!(nodes_and_tokens(8, &[100]), (vec![1; 8], vec![0]));
    assert_eq!(nodes_and_tokens(0, &[5, 100]), (vec![], vec![5, 3]));
    assert_eq!(nodes_and_tokens(0, &[]), (vec![], vec![]));
}

#[test]
fn equal_candidates_go_to_the_request_with_fewer_rows() {
    let worths = [1.0, 0.5, 0.5, 0.5];
    let rich = Decoding { worths: &worths, least: 3, length: 0 };
    let nodes = |most_rows| {
        let mut batcher = Batcher::new(None, most_rows).unwrap();
        batcher.share(&[rich, Decoding { least: 1, ..rich }], &[]).unwrap().nodes
    };
    assert_eq!([4, 5, 6, 7].map(nodes), [[3, 1], [3, 2], [3, 3], [4, 3]]);
}

#[test]
fn where_tokens_came_cheap_rows_have_to_bring_more() {
    let worths = [1.0, 0.9, 0.5, 0.3];
    let request = Decoding { worths: &worths, least: 1, length: 0 };
    let nodes_after = |tokens| {
        let mut batcher = Batcher::new(Some(costs(&[(1, 1.0, 0.0), (5, 2.0, 0.0)])), 8).unwrap();
        (0..100).for_each(|_| batcher.took(tokens, 1.0).unwrap());
        batcher.share(&[request], &[]).unwrap().nodes[0]
    };
    assert_eq!([1, 3, 9].map(nodes_after), [4, 2, 1]);
}

#[test]
fn the_oldest_prompt_has_its_quarter_and_short_ones_the_rest() {
    let of = |remaining: &[usize]| {
        remaining.iter().map(|&remaining| Prefilling { remaining, length: 0 }).collect::<Vec<_>>()
    };
    let mut batcher = Batcher::new(None, 100).unwrap();
    let mut tokens = |remaining: &[usize]| batcher.share(&[], &of(remaining)).unwrap().tokens;
    assert_eq!(tokens(&[4_000, 2_000, 64, 64]), [25, 0, 64, 11]);
    assert_eq!(tokens(&[4_000, 2_000, 7]), [25, 68, 7]);
    assert_eq!(tokens(&[10, 2_000]), [10, 90]);
    assert_eq!(tokens(&[0, 0, 3]), [0, 0, 3]);
    // Where a step reads one token, each fourth is the oldest's.
    let mut narrow = Batcher::new(None, 1).unwrap();
    let each = (0..8).map(|_| narrow.share(&[], &of(&[40, 20])).unwrap().tokens);
    assert_eq!(each.map(|tokens| tokens[0]).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn a_step_that_only_reads_ends_with_the_shortest_prompt() {
    let costs = RowCosts::new(&[(1, 1.0.into()), (9, 1.8.into())]).unwrap();
    let mut batcher = Batcher::new(Some(costs), 256).unwrap();
    let prompt = |remaining| Prefilling { remaining, length: 0 };
    let mut tokens = |reading: &[Prefilling]| batcher.share(&[], reading).unwrap().tokens;
    assert_eq!(tokens(&[prompt(4_000)]), [256]);
    assert_eq!(tokens(&[prompt(4_000), prompt(60)]), [20, 60]);
    assert_eq!(tokens(&[prompt(4_000), prompt(3)]), [29, 3]);
    assert_eq!(tokens(&[prompt(4_000), prompt(3_000)]), [64, 192]);
    assert_eq!(tokens(&[prompt(40), prompt(3_000)]), [40, 14]);
}

proptest! {
    #[test]
    fn one_request_gets_the_rows_of_the_step_that_is_chosen_for_it_alone(
        costs in growing_costs(),
        worths in worths(12),
        length in 0usize..200,
        seen in prop::collection::vec((1usize..9, 0.1f32..4.0), 0..20),
    ) {
        let steps = (1..=16).map(|rows| StepShape { rows, attended: 1_000 }).collect();
        let cost = |rows| StepCost { base: costs.base(rows), per_token: costs.attention(rows, 1) };
        let mut choice = StepChoice::new(steps, Some((1..=16).map(cost).collect())).unwrap();
        let mut batcher = Batcher::new(Some(costs.clone()), 16).unwrap();
        for &(tokens, cost) in &seen {
            choice.took(tokens, cost);
            batcher.took(tokens, cost).unwrap();
        }
        let request = Decoding { worths: &worths, least: 1, length };
        let shares = batcher.share(&[request], &[]).unwrap();
        let (_, most) = choice.best_gain(15, length, worths.iter().copied()).unwrap();
        let gain = choice.gain(tokens_of(&[request], &shares.nodes), shares.cost, length);
        prop_assert!((gain - most).abs() < 1e-3, "{gain} of {most}");
    }

    /// With the rate of plain decoding, as nothing was seen.
    #[test]
    fn no_split_of_as_many_rows_brings_more_tokens_and_none_at_all_gains_more(
        costs in growing_costs(),
        requests in prop::collection::vec((worths(4), 0usize..9, 1usize..3), 1..4),
        most_rows in 6usize..14,
    ) {
        let decoding: Vec<Decoding<'_>> = requests.iter().map(|(worths, length, least)| {
            Decoding { worths, least: (*least).min(worths.len()), length: length * 100 }
        }).collect();
        let mut batcher = Batcher::new(Some(costs.clone()), most_rows).unwrap();
        let Shares { nodes, cost, costs: parts, .. } = batcher.share(&decoding, &[]).unwrap();
        prop_assert!((cost - cost_of(&costs, &decoding, &nodes)).abs() < 1e-3);
        prop_assert!((cost - parts.iter().sum::<f32>()).abs() < 1e-3);
        let tokens = tokens_of(&decoding, &nodes);
        let num_rows: usize = nodes.iter().sum();
        prop_assert!(num_rows <= most_rows);

        let splits = splits(&decoding);
        let as_wide = |split: &&Vec<usize>| split.iter().sum::<usize>() == num_rows;
        let best = splits.iter().filter(as_wide).map(|split| tokens_of(&decoding, split));
        prop_assert!(tokens >= best.fold(0.0, f32::max) - 1e-4);

        // Attention costs each request apart, so rows of equal number but of others may cost less.
        let plain = cost_of(&costs, &decoding, &vec![1; decoding.len()]);
        let rate = decoding.len() as f32 / plain;
        let apart: f32 = decoding.iter().map(|it| costs.attention(4, it.length)).sum();
        for split in splits.iter().filter(|split| split.iter().sum::<usize>() <= most_rows) {
            let gain = tokens_of(&decoding, split) - rate * cost_of(&costs, &decoding, split);
            prop_assert!(tokens - rate * cost >= gain - rate * apart - 1e-3);
        }
        if decoding.iter().all(|request| request.length == 0) {
            let gain = |split: &Vec<usize>| {
                tokens_of(&decoding, split) - rate * cost_of(&costs, &decoding, split)
            };
            let fits = splits.iter().filter(|split| split.iter().sum::<usize>() <= most_rows);
            prop_assert!(gain(&nodes) >= fits.map(gain).fold(f32::NEG_INFINITY, f32::max) - 1e-3);
        }
    }

    #[test]
    fn every_token_of_a_step_is_somebodys_and_reading_keeps_within_its_limits(
        costs in prop::option::of(growing_costs()),
        requests in prop::collection::vec((worths(6), 0usize..900), 0..5),
        prompts in prop::collection::vec((1usize..300, 0usize..900), 0..5),
        most_rows in 5usize..300,
    ) {
        let decoding: Vec<_> = requests.iter().map(|(worths, length)| {
            Decoding { worths, least: 1, length: *length }
        }).collect();
        let reading: Vec<_> = prompts.iter().map(|&(remaining, length)| {
            Prefilling { remaining, length }
        }).collect();
        let mut batcher = Batcher::new(costs.clone(), most_rows).unwrap();
        let shares = batcher.share(&decoding, &reading).unwrap();
        let (nodes, tokens): (usize, usize) =
            (shares.nodes.iter().sum(), shares.tokens.iter().sum());
        prop_assert!(nodes + tokens <= most_rows);
        let mut each = shares.nodes.iter().zip(&decoding);
        prop_assert!(each.all(|(nodes, it)| (1..=it.worths.len()).contains(nodes)));
        prop_assert!(shares.tokens.iter().zip(&reading).all(|(&tokens, it)| tokens <= it.remaining));
        let unread: usize = reading.iter().map(|it| it.remaining).sum();
        if decoding.is_empty() {
            let mut all = shares.tokens.iter().zip(&reading);
            let is_one_read = all.any(|(&tokens, it)| tokens == it.remaining);
            prop_assert!(is_one_read || tokens == unread.min(most_rows));
            prop_assert!(tokens >= unread.min(most_rows).min(32));
        } else if unread > 0 && decoding.len() < most_rows {
            let mut later = (0..2_000).map(|_| batcher.share(&decoding, &reading).unwrap());
            prop_assert!(tokens > 0 || later.any(|shares| shares.tokens.iter().any(|&it| it > 0)));
        }
        if let (Some(costs), false) = (costs, decoding.is_empty()) {
            let without = cost_of(&costs, &decoding, &shares.nodes);
            let paid: f32 = shares.costs.iter().sum();
            prop_assert!((without - paid).abs() < 1e-3 * paid);
            prop_assert!(shares.cost <= 2.0 * without * 1.0001);
        }
    }
}
