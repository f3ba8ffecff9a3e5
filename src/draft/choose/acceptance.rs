//! How far a source's own estimates can be trusted. In: which proposals came true. Out: a factor
//! on the source's probabilities, learned online for each match length.

/// Match lengths from here on share one estimate.
const LONGEST_MATCH: usize = 15;
/// Weight of the belief that is held before anything is seen.
const PRIOR_WEIGHT: f32 = 4.0;
/// Factor on what a draft model contradicts, before anything is seen.
const DISAGREEMENT_PRIOR: f32 = 0.25;
/// What is kept of earlier observations at each new one: about the last 200 count.
const DECAY: f32 = 0.995;

/// A draft node as its source estimated it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// Index of the source in the drafter's list.
    pub source: usize,
    /// Length of the match that the proposal continues.
    pub match_len: u32,
    /// The source's own estimate that the target says the token, given the node's parent.
    pub probability: f32,
    /// What those say to it that know the target better than a copy does.
    pub agreement: Agreement,
}

/// What is said to a proposal by those that know the target better than a copy does. Proposals of each
/// kind are trusted apart: what a long match is worth depends on what it is up against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Nothing, or a draft model holds it likeliest.
    Unopposed,
    /// A draft model holds another token likelier.
    ModelDisagrees,
    /// What the target held likeliest in a like place is this token.
    ExpectationAgrees,
    /// It is another one.
    ExpectationDisagrees,
}

impl Agreement {
    const ALL: [Self; 4] = [
        Self::Unopposed,
        Self::ModelDisagrees,
        Self::ExpectationAgrees,
        Self::ExpectationDisagrees,
    ];
}

/// Running sums over the proposals of one source at one match length.
#[derive(Clone, Copy, Debug)]
struct Record {
    expected: f32,
    came_true: f32,
}

/// By the standing of a proposal, and by match length.
type ByKind<T> = [[T; LONGEST_MATCH + 1]; Agreement::ALL.len()];

/// What is known of a source.
#[derive(Clone, Debug)]
struct BySource {
    records: ByKind<Record>,
    /// How much more of the proposals came true than was expected.
    factors: ByKind<f32>,
    /// The largest of them.
    largest: f32,
}

/// Learned trust in every source, by match length and [`Agreement`]. Kept across requests.
#[derive(Clone, Debug)]
pub struct Acceptance {
    sources: Vec<BySource>,
}

impl Acceptance {
    /// Before anything is seen: long matches are trusted fully, short ones less.
    pub fn new(num_sources: usize) -> Self {
        Self { sources: vec![BySource::unseen(); num_sources] }
    }

    /// Adds sources, of which nothing is seen yet, where there are fewer than `num_sources`.
    pub fn add_sources(&mut self, num_sources: usize) {
        if self.sources.len() < num_sources {
            self.sources.resize(num_sources, BySource::unseen());
        }
    }

    /// Factor on the probabilities that `source` gives after a match of `match_len` tokens.
    pub fn factor(&self, source: usize, match_len: u32, agreement: Agreement) -> f32 {
        self.sources[source].factors[agreement as usize][bucket(match_len)]
    }

    /// The largest factor on the probabilities that `source` gives, whatever it matches.
    pub fn largest_factor(&self, source: usize) -> f32 {
        self.sources[source].largest
    }

    /// Learns that the target, asked after the proposal's parent, said its token or another one.
    pub fn observe(&mut self, proposal: Proposal, came_true: bool) {
        let (agreement, bucket) = (proposal.agreement, bucket(proposal.match_len));
        let source = &mut self.sources[proposal.source];
        let record = &mut source.records[agreement as usize][bucket];
        let fade = |sum: f32, prior: f32| prior + (sum - prior) * DECAY;
        let Record { expected, came_true: prior } = prior(bucket, agreement);
        record.expected = fade(record.expected, expected) + proposal.probability;
        record.came_true = fade(record.came_true, prior) + f32::from(u8::from(came_true));
        let factor = record.came_true / record.expected;
        let before = std::mem::replace(&mut source.factors[agreement as usize][bucket], factor);
        if factor >= source.largest {
            source.largest = factor;
        } else if before == source.largest {
            source.largest = largest(&source.factors);
        }
    }
}

impl BySource {
    /// Before anything is seen.
    fn unseen() -> Self {
        let by_length = |agreement| std::array::from_fn(|bucket| prior(bucket, agreement));
        let records = Agreement::ALL.map(by_length);
        let factor = |record: Record| record.came_true / record.expected;
        let factors = records.map(|of_agreement| of_agreement.map(factor));
        Self { records, factors, largest: largest(&factors) }
    }
}

/// The largest of all, found length by length side by side.
fn largest(factors: &ByKind<f32>) -> f32 {
    let mut by_length = factors[0];
    for of_agreement in &factors[1..] {
        for (largest, &factor) in by_length.iter_mut().zip(of_agreement) {
            *largest = if factor > *largest { factor } else { *largest };
        }
    }
    by_length.into_iter().fold(0.0, f32::max)
}

/// A short match is partly chance, more so in other texts than the request's own. Sources whose
/// estimates already account for the length are soon corrected, and lose less than 0.1 % of their
/// steps to it. A model that was trained to say the same as the target is more often right than a copy
/// is.
fn prior(bucket: usize, agreement: Agreement) -> Record {
    let share = match agreement {
        Agreement::ModelDisagrees => DISAGREEMENT_PRIOR,
        _ => 1.0 - 0.3 / bucket.max(1) as f32,
    };
    Record { expected: PRIOR_WEIGHT, came_true: PRIOR_WEIGHT * share }
}

fn bucket(match_len: u32) -> usize {
    (match_len as usize).min(LONGEST_MATCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_follows_what_came_true() {
        let mut acceptance = Acceptance::new(2);
        let proposal = Proposal {
            source: 1,
            match_len: 3,
            probability: 0.5,
            agreement: Agreement::ExpectationAgrees,
        };
        let unseen = acceptance.factor(1, 3, Agreement::ExpectationAgrees);
        for _ in 0..1000 {
            acceptance.observe(proposal, false);
        }
        assert!(acceptance.factor(1, 3, Agreement::ExpectationAgrees) < 0.1);
        for _ in 0..1000 {
            acceptance.observe(proposal, true);
        }
        assert!((acceptance.factor(1, 3, Agreement::ExpectationAgrees) - 2.0).abs() < 0.1);
        assert_eq!(acceptance.factor(0, 3, Agreement::ExpectationAgrees), unseen);
        let untouched = Acceptance::new(2);
        let others = Agreement::ALL.into_iter().filter(|&it| it != Agreement::ExpectationAgrees);
        for (match_len, agreement) in
            others.map(|it| (3, it)).chain([(4, Agreement::ExpectationAgrees)])
        {
            let factor = acceptance.factor(1, match_len, agreement);
            assert_eq!(factor, untouched.factor(1, match_len, agreement));
        }
    }

    #[test]
    fn the_largest_factor_is_that_of_all_records() {
        let mut acceptance = Acceptance::new(1);
        for step in 0..500u32 {
            let (match_len, agreement) = (step * 7 % 17, Agreement::ALL[step as usize * 5 % 4]);
            let proposal = Proposal { source: 0, match_len, probability: 0.3, agreement };
            acceptance.observe(proposal, step % 50 < 20);
            let lengths = 0..=LONGEST_MATCH as u32;
            let all =
                lengths.flat_map(|len| Agreement::ALL.map(|it| acceptance.factor(0, len, it)));
            assert_eq!(acceptance.largest_factor(0), all.fold(0.0, f32::max));
        }
    }

    #[test]
    fn long_matches_share_one_estimate() {
        let mut acceptance = Acceptance::new(1);
        acceptance.observe(
            Proposal {
                source: 0,
                match_len: 15,
                probability: 1.0,
                agreement: Agreement::Unopposed,
            },
            false,
        );
        let factor = acceptance.factor(0, 15, Agreement::Unopposed);
        assert_eq!(acceptance.factor(0, u32::MAX, Agreement::Unopposed), factor);
        assert!(factor < Acceptance::new(1).factor(0, 15, Agreement::Unopposed));
    }
}
