//! Many requests in one step: who gets its rows. In: what each request's candidates are worth, how much
//! of each prompt is left to read, what rows cost. Out: how many nodes and tokens of each are in the
//! step, and what each request pays.
//!
//! The rows go to what brings most tokens for what they cost, which is known as goodput (TurboSpec, Liu
//! et al. 2024; AdaServe, Li et al. 2025), and prompts are read in pieces beside it (Sarathi-Serve, Agrawal
//! et al. 2024). Decides by numbers alone: it knows no clock, no thread and no text.

mod row_costs;
mod shares;

pub use self::row_costs::RowCosts;
use self::shares::{Candidates, DecodeRows, PrefillChunks};
use crate::draft::choose::step_gains::Rate;
use crate::error::{Error, Result};

/// What reading may cost beside others for what their own steps cost. They are to keep half of their
/// speed: with 0.7 a plain answer keeps 0.57 to 0.65 of it beside a prompt of 4,000 tokens, as a step
/// that reads takes longer than those it is reckoned from (`benches/peers/clients.py`).
const READING_SHARE: f32 = 0.7;
/// Tokens that are worth a step beside others: fewer at a time take longer each, the more so the more
/// tokens are before them.
const LEAST_PIECE: usize = 32;

/// A request that decodes.
#[derive(Clone, Copy, Debug)]
pub struct Decoding<'a> {
    /// Tokens that each of its nodes is expected to bring, the root's first, never increasing; see
    /// [`Offer`](crate::draft::choose::drafter::Offer).
    pub worths: &'a [f32],
    /// The fewest nodes that it can do with, at least 1.
    pub least: usize,
    /// Committed tokens before its root.
    pub length: usize,
}

/// A request whose prompt is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilling {
    /// Tokens that are still to be read.
    pub remaining: usize,
    /// Tokens that are read.
    pub length: usize,
}

/// What a step is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// Nodes of each request that decodes.
    pub nodes: Vec<usize>,
    /// Tokens that are read of each prompt.
    pub tokens: Vec<usize>,
    /// What the whole step is expected to cost; 0 where rows are free.
    pub cost: f32,
    /// What each request that decodes pays of it: together, what the step would cost if nothing were
    /// read in it. Its rows' part of what all share, and what its rows attend to.
    pub costs: Vec<f32>,
}

/// Shares out the rows of each step.
///
/// [`Batcher::share`] before a step, [`Batcher::took`] after it.
///
/// ```
/// use coordgen_rs::batch::{Batcher, Decoding, Prefilling, RowCosts};
///
/// let costs = RowCosts::new(&[(1, 1.0.into()), (9, 1.8.into())])?; // a tenth for each row more
/// let mut batcher = Batcher::new(Some(costs), 64)?;
/// let sure = Decoding { worths: &[1.0, 0.9, 0.8, 0.05], least: 1, length: 0 };
/// let unsure = Decoding { worths: &[1.0, 0.2, 0.02], ..sure };
/// assert_eq!(batcher.share(&[sure, unsure], &[])?.nodes, [3, 2]);
/// let prompt = Prefilling { remaining: 100, length: 0 };
/// let mut tokens = || Ok::<_, coordgen_rs::Error>(batcher.share(&[sure, unsure], &[prompt])?.tokens[0]);
/// assert_eq!([tokens()?, tokens()?, tokens()?, tokens()?], [0, 0, 0, 39]); // 0.7 of what four steps cost
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Batcher {
    costs: Option<RowCosts>,
    most_rows: usize,
    rate: Rate,
    candidates: Candidates,
    chunks: PrefillChunks,
    /// What reading may cost by now.
    saved: f32,
}

impl Batcher {
    /// For steps of at most `most_rows` rows; without costs rows are free. Fails when that is 0.
    pub fn new(costs: Option<RowCosts>, most_rows: usize) -> Result<Self> {
        if most_rows == 0 {
            let (what, must) = ("most_rows", "at least 1");
            return Err(Error::BadOption { what, got: "0".into(), must });
        }
        let (candidates, chunks) = (Candidates::default(), PrefillChunks::default());
        Ok(Self { costs, most_rows, rate: Rate::default(), candidates, chunks, saved: 0.0 })
    }

    /// Shares out a step among requests that decode and prompts that are read, the oldest first.
    ///
    /// Every request that decodes gets its `least` nodes. Further ones go to the candidates of the
    /// highest worth, as many of them as bring most tokens beyond those that their cost brings
    /// elsewhere, which is at least what plain decoding of these requests brings. All are given where
    /// rows are free.
    ///
    /// Where somebody decodes, tokens are read once reading them costs no more than 0.7 of the steps since
    /// the last ones, some dozens at a time or what is left, and up to half of the rows are kept for them: so
    /// others keep half of their speed. Where nobody does, all rows read, or, of several prompts, as many
    /// as end the shortest. Of these tokens the oldest prompt has a quarter, so that it comes to its end;
    /// the others go to the prompts with the fewest left, so that a short one does not wait for a long
    /// one.
    ///
    /// Cost: an insertion into a heap for each row, and for each doubling of the rows a look at each
    /// prompt. Fails when a request can do with no nodes or with more than it has, or those that all
    /// must get are more than the step has rows; nothing changes then.
    pub fn share(&mut self, decoding: &[Decoding<'_>], reading: &[Prefilling]) -> Result<Shares> {
        let must = self.checked(decoding)?;
        let unread = reading.iter().fold(0, |sum: usize, it| sum.saturating_add(it.remaining));
        let kept = unread.min(self.most_rows / 2);
        let most_nodes = must.max(self.most_rows - kept);
        let given = self.candidates.given(decoding, most_nodes, self.costs.as_ref(), &self.rate);
        let costs = self.parts(decoding, &given);
        let room = unread.min(self.most_rows - given.rows);
        let (tokens, cost) = self.read(reading, &given, room);
        Ok(Shares { nodes: given.nodes, tokens, cost, costs })
    }

    /// Learns how many tokens all decoding requests gained in a step, and what they paid for it: the
    /// sum of [`Shares::costs`], as it was expected or measured, and what was spent on drafting. Fails
    /// when that is negative or not finite.
    pub fn took(&mut self, tokens: usize, cost: f32) -> Result<()> {
        if !(cost.is_finite() && cost >= 0.0) {
            let (what, must) = ("the cost of a step", "finite and not negative");
            return Err(Error::BadOption { what, got: cost.to_string(), must });
        }
        self.rate.took(tokens, cost);
        Ok(())
    }

    /// The rows that all requests must get. Fails when there are not so many, or one must get none or
    /// more than it has.
    fn checked(&self, decoding: &[Decoding<'_>]) -> Result<usize> {
        for &Decoding { worths, least, .. } in decoding {
            if !(1..=worths.len()).contains(&least) {
                let (what, must) = ("the least of nodes", "at least 1, and at most all nodes");
                let got = format!("{least} of {}", worths.len());
                return Err(Error::BadOption { what, got, must });
            }
        }
        let must = decoding.iter().fold(0, |sum: usize, it| sum.saturating_add(it.least));
        if must > self.most_rows {
            return Err(Error::TooManyNodes { nodes: must, rows: self.most_rows });
        }
        Ok(must)
    }

    /// What each request that decodes pays.
    fn parts(&self, decoding: &[Decoding<'_>], given: &DecodeRows) -> Vec<f32> {
        let Some(costs) = &self.costs else { return vec![0.0; decoding.len()] };
        let a_row = costs.base(given.rows) / given.rows as f32;
        let part = |(&nodes, request): (&usize, &Decoding<'_>)| {
            a_row * nodes as f32 + costs.attention(nodes, request.length)
        };
        given.nodes.iter().zip(decoding).map(part).collect()
    }

    /// How many tokens of each prompt are read, at most `room`, and what the step then costs.
    fn read(
        &mut self,
        reading: &[Prefilling],
        given: &DecodeRows,
        room: usize,
    ) -> (Vec<usize>, f32) {
        self.chunks.begin(reading);
        let Some(costs) = &self.costs else { return (self.chunks.take(reading, room), 0.0) };
        let chunks = &self.chunks;
        let cost = |num_tokens: usize| {
            let attention =
                |(piece, prompt): (usize, &Prefilling)| costs.attention(piece, prompt.length);
            let read = chunks.of(reading, num_tokens).into_iter().zip(reading).map(attention);
            costs.base(given.rows + num_tokens) + given.attention + read.sum::<f32>()
        };
        let mut num_tokens = room.min(chunks.to_shortest(reading));
        let mut saved = 0.0;
        if given.rows > 0 && room > 0 {
            let without = cost(0);
            saved = self.saved + READING_SHARE * without;
            num_tokens = most_within(room, |num_tokens| cost(num_tokens) - without <= saved);
            if num_tokens < room.min(LEAST_PIECE) {
                num_tokens = 0;
            }
            saved -= cost(num_tokens) - without;
        }
        let cost = cost(num_tokens);
        self.saved = saved;
        (self.chunks.take(reading, num_tokens), cost)
    }
}

/// The largest number up to `most` that fits, where what is larger than one that does not fit does not
/// fit either; 0 always fits.
fn most_within(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut fitting, mut beyond) = (0, most + 1);
    while fitting + 1 < beyond {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    fitting
}

#[cfg(test)]
mod tests;
