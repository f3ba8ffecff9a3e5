//! Drafters that share what they learn, and the requests that they have served.

use super::*;
use crate::draft::sources::automaton::suffix_automaton::SuffixAutomaton;
use crate::draft::sources::earlier_requests::{EarlierRequests, SharedRequests};

/// The request's own text, and those before it.
fn sources(finished: &SharedRequests) -> Vec<Box<dyn DraftSource>> {
    let earlier = EarlierRequests::new(finished.clone());
    vec![Box::new(SuffixAutomaton::new()), Box::new(earlier)]
}

fn options(costs: [f32; 2]) -> DrafterOptions {
    let shapes = [1, 8].map(|rows| StepShape { rows, attended: 4_000 });
    DrafterOptions {
        steps: StepChoice::new(shapes.to_vec(), Some(costs.map(StepCost::from).to_vec())).unwrap(),
        vocab_size: VOCAB_SIZE,
        commit: CommitPolicy::Compact,
        end_tokens: vec![],
        shape: TreeShape::BestFirst,
    }
}

/// Drafters beside each other, of which the second has dearer steps.
fn two() -> [Drafter; 2] {
    let finished = SharedRequests::default();
    let [one, mut other] = [[1.0, 1.3], [2.0, 2.6]]
        .map(|costs| Drafter::new(sources(&finished), options(costs)).unwrap());
    other.share_with(&one).unwrap();
    [one, other]
}

/// Serves a request to its end, and returns the answer and the number of steps.
fn serve(drafter: &mut Drafter, prompt: &[TokenId], num_tokens: usize) -> (Vec<TokenId>, usize) {
    let mut text = prompt.to_vec();
    drafter.begin(prompt, num_tokens).unwrap();
    while drafter.finish_reason().is_none() {
        let rows = [1, 8][drafter.propose(text.len() - 1).unwrap()];
        text.extend(drafter.accept(&mut run_step(drafter, &text, rows)).unwrap().token_ids);
    }
    let num_steps = drafter.statistics().accept_histogram.iter().sum();
    (text.split_off(prompt.len()), num_steps)
}

fn trust(drafter: &Drafter) -> String {
    format!("{:?}", drafter.draft.acceptance())
}

#[test]
fn a_request_begins_with_what_was_learned_in_the_one_that_ended_last() {
    let [mut one, mut other] = two();
    let untouched = trust(&other);
    serve(&mut one, &[TokenId(1)], 60);
    assert_eq!(trust(&other), untouched, "nothing changes within a request");
    other.begin(&[TokenId(2)], 9).unwrap();
    assert_ne!(trust(&one), untouched);
    assert_eq!(trust(&other), trust(&one));
    let rate = |drafter: &Drafter| drafter.options.steps.gain(0.0, 1.0, 0);
    let learned = rate(&one);
    let cost = |drafter: &Drafter| drafter.options.steps.cost(1, 0);
    assert_eq!([cost(&one), cost(&other)], [Some(1.3), Some(2.6)], "steps stay each one's own");
    assert_ne!(learned, -1.0);

    other.propose(0).unwrap();
    other.accept_recorded(&[TokenId(0); 9]).unwrap();
    one.begin(&[TokenId(1)], 9).unwrap();
    assert_ne!(trust(&one), trust(&other), "the other is running");
    other.end();
    one.begin(&[TokenId(1)], 9).unwrap();
    assert_ne!(trust(&one), trust(&other), "what one gives up last is what is learned last");
    other.begin(&[TokenId(1)], 9).unwrap();
    assert_eq!(trust(&one), trust(&other));
}

#[test]
fn what_one_has_served_is_drafted_by_the_other() {
    let prompt = [TokenId(1), TokenId(2)];
    let [mut one, mut other] = two();
    let (answer, num_steps) = serve(&mut one, &prompt, 60);
    let (again, num_steps_again) = serve(&mut other, &prompt, 60);
    assert_eq!((&answer, &again), (&plain(&prompt, TokenId(9), 60), &answer));
    assert!(num_steps_again < num_steps, "{num_steps_again} after {num_steps}");
    let [mut alone, _] = two();
    assert_eq!(serve(&mut alone, &prompt, 60), (answer, num_steps));
}

#[test]
fn a_prediction_is_a_source_of_one_of_them() {
    let [mut one, mut other] = two();
    one.begin_predicted(&[TokenId(1)], 20, &[0, 1, 2].map(TokenId)).unwrap();
    one.propose(0).unwrap();
    other.share_with(&one).unwrap();
    serve(&mut other, &[TokenId(1)], 20);
    one.share_with(&other).unwrap();
    one.propose(0).unwrap();
    one.end();
    serve(&mut one, &[TokenId(1)], 20);
}

#[test]
fn a_drafter_of_other_sources_or_another_vocabulary_is_refused() {
    let [mut one, _] = two();
    let of = |num_sources, vocab_size| {
        let mut sources = sources(&SharedRequests::default());
        sources.truncate(num_sources);
        Drafter::new(sources, DrafterOptions { vocab_size, ..options([1.0, 2.0]) }).unwrap()
    };
    for other in [of(1, VOCAB_SIZE), of(2, VOCAB_SIZE + 1)] {
        let refused = one.share_with(&other);
        assert!(matches!(refused, Err(Error::BadOption { what: "the drafter beside", .. })));
    }
    assert_eq!(one.share_with(&of(2, VOCAB_SIZE)), Ok(()));
}

#[test]
fn both_serve_at_once_and_answer_as_plain_decoding_does() {
    let prompts = |seed: u32| (0..20).map(move |each| [seed, each % 3, each / 3 % 3].map(TokenId));
    std::thread::scope(|scope| {
        for (seed, mut drafter) in (0..).zip(two()) {
            scope.spawn(move || {
                for prompt in prompts(seed) {
                    let (answer, _) = serve(&mut drafter, &prompt, 50);
                    assert_eq!(answer, plain(&prompt, TokenId(9), 50));
                }
            });
        }
    });
}
