//! Who gets the rows of a step: those that verify drafts, and those that read prompts. In: what each
//! request's candidates are worth, what rows cost and bring elsewhere; how much is left of each prompt, and
//! how many tokens a step reads. Out: how many nodes each request gets, and how many tokens of each prompt
//! are read.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::{Decoding, Prefilling, RowCosts};
use crate::draft::choose::step_gains::Rate;

/// A request's next candidate, greater where it comes before others: the worthier, of equals that of
/// the request with fewer rows, of those the first.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    worth: f32,
    rows: Reverse<usize>,
    request: Reverse<usize>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let worth = self.worth.total_cmp(&other.worth);
        worth.then((self.rows, self.request).cmp(&(other.rows, other.request)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// The rows of requests that decode.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DecodeRows {
    /// Of each request.
    pub nodes: Vec<usize>,
    /// Of all.
    pub rows: usize,
    /// What the rows of all cost more for what they attend to; 0 where rows are free.
    pub attention: f32,
}

/// The candidates of all requests, with buffers that are used again for every step.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    next: BinaryHeap<Candidate>,
    /// The requests that rows were given to, in their order.
    order: Vec<usize>,
}

impl Candidates {
    /// Gives each request its least, and of the candidates the worthiest, at most `most` nodes in all:
    /// as many as bring most beyond what their cost brings elsewhere, the fewest of equals.
    ///
    /// Tokens alone decide on the order, so for any number of rows nothing else brings more of them.
    pub fn given(
        &mut self,
        decoding: &[Decoding<'_>],
        most: usize,
        costs: Option<&RowCosts>,
        rate: &Rate,
    ) -> DecodeRows {
        let attention = |request: usize, nodes: usize| {
            costs.map_or(0.0, |costs| costs.attention(nodes, decoding[request].length))
        };
        let mut given = DecodeRows::default();
        self.next.clear();
        self.order.clear();
        for (request, &Decoding { least, worths, .. }) in decoding.iter().enumerate() {
            given.nodes.push(least);
            given.rows += least;
            given.attention += attention(request, least);
            self.push(request, least, worths);
        }
        let rate = costs.map_or(0.0, |costs| plain_rate(decoding, costs, rate));
        let gain = |tokens: f32, given: &DecodeRows| {
            tokens - costs.map_or(0.0, |costs| rate * (costs.base(given.rows) + given.attention))
        };
        let mut tokens: f32 = decoding.iter().flat_map(|it| &it.worths[..it.least]).sum();
        let (mut best, mut num_best, mut of_best) = (gain(tokens, &given), 0, given.attention);
        while given.rows < most {
            let Some(Candidate { worth, request: Reverse(request), .. }) = self.next.pop() else {
                break;
            };
            let nodes = given.nodes[request] + 1;
            given.attention += attention(request, nodes) - attention(request, nodes - 1);
            given.nodes[request] = nodes;
            given.rows += 1;
            tokens += worth;
            self.order.push(request);
            self.push(request, nodes, decoding[request].worths);
            let gain = gain(tokens, &given);
            if gain > best || costs.is_none() {
                (best, num_best, of_best) = (gain, self.order.len(), given.attention);
            }
        }
        for &request in &self.order[num_best..] {
            given.nodes[request] -= 1;
            given.rows -= 1;
        }
        given.attention = of_best;
        given
    }

    /// The candidate of a request that has so many rows, if there is one.
    fn push(&mut self, request: usize, rows: usize, worths: &[f32]) {
        if let Some(&worth) = worths.get(rows) {
            self.next.push(Candidate { worth, rows: Reverse(rows), request: Reverse(request) });
        }
    }
}

/// Tokens that a unit of cost brings elsewhere, beside plain decoding of the same requests.
fn plain_rate(decoding: &[Decoding<'_>], costs: &RowCosts, rate: &Rate) -> f32 {
    if decoding.is_empty() {
        return 0.0;
    }
    let attention = decoding.iter().map(|it| costs.attention(1, it.length)).sum::<f32>();
    rate.beside_plain(decoding.len() as f32, costs.base(decoding.len()) + attention)
}

/// Of so many tokens that are read, one is the oldest prompt's for certain.
const OLDEST_SHARE: usize = 4;
/// Tokens that a step reads in any case where nobody decodes: fewer at a time take longer each.
const LEAST_STEP: usize = 32;

/// Shares out the tokens that are read, with what is owed to the oldest prompt from step to step.
#[derive(Clone, Debug, Default)]
pub(super) struct PrefillChunks {
    /// Prompts in the order in which they are read: the fewest tokens left first, of equals the oldest.
    order: Vec<usize>,
    /// Tokens that others have read of which the oldest prompt has not had its share yet.
    owed: usize,
}

impl PrefillChunks {
    /// Another step, of these prompts, the oldest first.
    pub fn begin(&mut self, reading: &[Prefilling]) {
        self.order.clear();
        self.order.extend(0..reading.len());
        self.order.sort_by_key(|&prompt| (reading[prompt].remaining, prompt));
    }

    /// How many tokens a step reads at least that ends the shortest prompt; nothing is gained where its
    /// answer waits for more of the others.
    pub fn to_shortest(&self, reading: &[Prefilling]) -> usize {
        let Some(&shortest) = self.order.first() else { return 0 };
        let tokens = reading[shortest].remaining;
        let with_oldest = tokens.saturating_mul(OLDEST_SHARE).div_ceil(OLDEST_SHARE - 1);
        LEAST_STEP.max(if reading.len() > 1 { with_oldest } else { usize::MAX })
    }

    /// How many tokens of each prompt a step of `num_tokens` reads.
    pub fn of(&self, reading: &[Prefilling], num_tokens: usize) -> Vec<usize> {
        let mut chunks = vec![0; reading.len()];
        let mut left = num_tokens;
        if let (Some(piece), Some(oldest)) = (chunks.first_mut(), reading.first()) {
            *piece = ((self.owed + num_tokens) / OLDEST_SHARE).min(oldest.remaining).min(left);
            left -= *piece;
        }
        for &prompt in &self.order {
            let piece = left.min(reading[prompt].remaining - chunks[prompt]);
            chunks[prompt] += piece;
            left -= piece;
        }
        chunks
    }

    /// [`of`](Self::of), and that is what is read.
    pub fn take(&mut self, reading: &[Prefilling], num_tokens: usize) -> Vec<usize> {
        let chunks = self.of(reading, num_tokens);
        self.owed = if reading.is_empty() { 0 } else { (self.owed + num_tokens) % OLDEST_SHARE };
        chunks
    }
}
