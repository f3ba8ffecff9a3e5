//! What does not fit is told by name, and nothing is written.

use super::*;

/// A session of a layer, in which each of two sequences has three tokens and a tree of four nodes.
fn session(layer: &Delta) -> Session<'_, Delta> {
    let random = &mut Random(7);
    let mut session = Session::new(layer, 2);
    let parents = vec![-1, 0, 1, -1, 3, 4];
    let sequences = vec![0, 0, 0, 1, 1, 1];
    let tokens: Vec<Token> = (0..6).map(|_| layer.token(random)).collect();
    let chains = Trees { parents, sequences, tokens: tokens.clone() };
    session.run(&chains, &[1, 1], &[], random.way());
    for (sequence, tokens) in tokens.chunks(3).enumerate() {
        session.committed[sequence].extend_from_slice(tokens);
    }
    session.run(&tree(&tokens), &[0, 0], &[], random.way());
    session
}

fn tree(tokens: &[Token]) -> Trees {
    let tokens = tokens.iter().chain(tokens).take(8).cloned().collect();
    Trees {
        parents: vec![-1, 0, 0, 2, -1, 4, 4, 6],
        sequences: vec![0, 0, 0, 0, 1, 1, 1, 1],
        tokens,
    }
}

#[test]
fn what_is_wrong_with_a_run_is_told() {
    let layer = Delta::of(&mut Random(1), Heads { key_heads: 1, heads: 1, keys: 4, values: 4 });
    let token = layer.token(&mut Random(2));
    let trees = |parents: &[i32]| Trees {
        parents: parents.to_vec(),
        sequences: vec![0; parents.len()],
        tokens: vec![token.clone(); parents.len()],
    };
    let one = trees(&[-1]);
    // How many tokens are committed beyond three, which nodes are pending, whether they are read.
    for (more, pending, reads, tree, span, message) in [
        (0, vec![], 0, &one, [0, 1], None),
        (2, vec![0, 2], 0, &one, [0, 1], None),
        (2, vec![0, 2], 1, &one, [0, 1], None),
        (
            1,
            vec![],
            0,
            &one,
            [0, 1],
            Some("the state of sequence 0 is of 3 tokens, but 4 are committed, 0 of them pending"),
        ),
        (
            1,
            vec![0, 2],
            0,
            &one,
            [0, 1],
            Some("the state of sequence 0 is of 3 tokens, but 4 are committed, 2 of them pending"),
        ),
        (
            2,
            vec![0, 4],
            0,
            &one,
            [0, 1],
            Some("the state of sequence 0 is of 3 tokens, but 5 are committed, 1 of them pending"),
        ),
        (
            2,
            vec![0, 20],
            0,
            &one,
            [0, 1],
            Some("the state of sequence 0 is of 3 tokens, but 5 are committed, 1 of them pending"),
        ),
        (
            -1,
            vec![],
            0,
            &one,
            [0, 1],
            Some("the state of sequence 0 is of 3 tokens, but 2 are committed, 0 of them pending"),
        ),
        (
            2,
            vec![0, 2],
            0,
            &trees(&[-1, -1]),
            [1, 1],
            Some("the state of sequence 0 is of 3 tokens, but 5 are committed, 2 of them pending"),
        ),
        (
            2,
            vec![2, 3],
            0,
            &one,
            [0, 1],
            Some("pending node 2 follows node 0 in the last tree, not node -1"),
        ),
        (
            3,
            vec![0, 1, 2],
            0,
            &one,
            [0, 1],
            Some("pending node 2 follows node 0 in the last tree, not node 1"),
        ),
        (
            0,
            vec![],
            1,
            &trees(&[-1, -1]),
            [0, 2],
            Some("sequence 0 is read, but its node 1 does not follow the one before"),
        ),
        (
            0,
            vec![],
            1,
            &trees(&[-1, 0]),
            [1, 1],
            Some("the state of sequence 0 is of 3 tokens, but 4 are read before these rows"),
        ),
        (
            0,
            vec![],
            0,
            &trees(&[-1, 0, 0, 0, 3]),
            [4, 1],
            Some(
                "node 3 is no row of this run, and was not computed behind the same tokens before",
            ),
        ),
        (
            0,
            vec![],
            0,
            &trees(&[-1; CAPACITY + 1]),
            [0, CAPACITY as i32 + 1],
            Some("node 24 needs an update, but there is room for 24"),
        ),
        (
            0,
            vec![],
            0,
            &trees(&[0]),
            [0, 1],
            Some("node 0 has the parent 0, which is no earlier node"),
        ),
    ] {
        let mut session = session(&layer);
        let committed = (session.committed[0].len() as i32 + more) as usize;
        session.committed[0].resize(committed, token.clone());
        session.pending = pending;
        let (states, updates) = (session.states.clone(), session.updates.clone());
        let begun = session.begin(tree, &[reads, 0], span).map(|_| ());
        assert_eq!(begun.map_err(|wrong| wrong.to_string()).err().as_deref(), message);
        assert!(session.states == states && session.updates == updates);
    }
}

#[test]
fn an_update_of_another_time_is_refused() {
    let layer = Delta::of(&mut Random(1), Heads { key_heads: 1, heads: 1, keys: 4, values: 4 });
    let mut session = session(&layer);
    // As if the state had been restored to that before the tree's parent tokens.
    let state = session.state(0);
    state[..8].copy_from_slice(&2_i64.to_ne_bytes());
    session.pending = vec![0];
    let one = Trees { parents: vec![-1], sequences: vec![0], tokens: vec![] };
    let wrong = session.begin(&one, &[0, 0], [0, 1]).map(|_| ()).unwrap_err();
    assert_eq!(wrong.to_string(), "pending node 0 stands behind 3 tokens, but the state is of 2");
}

#[test]
fn buffers_of_another_size_are_refused() {
    let layer = Delta::of(&mut Random(1), Heads { key_heads: 1, heads: 1, keys: 4, values: 4 });
    let other = Delta::of(&mut Random(1), Heads { key_heads: 1, heads: 1, keys: 8, values: 4 });
    let mut session = session(&layer);
    let one = Trees { parents: vec![-1], sequences: vec![0], tokens: vec![] };
    session.layer = &other;
    let wrong = session.begin(&one, &[0, 0], [0, 1]).map(|_| ()).unwrap_err();
    assert_eq!(wrong.to_string(), "a state has 320 bytes, not 576");
    session.layer = &layer;
    let wrong = session.begin(&one, &[0], [0, 1]).map(|_| ()).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "there are states of 2 sequences, lengths of 2, and 1 that say which are read"
    );
}
