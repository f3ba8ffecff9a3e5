//! Drafting for an engine that runs the model itself, the *host*: llama.cpp, vLLM, a loop in PyTorch.
//! In: the tokens that the host has committed. Out: a chain or a tree for it to verify.
//!
//! Knows no logits: what agrees with a draft is found in what the host reports.

use std::ops::RangeInclusive;

use crate::commit::CommitPolicy;
use crate::draft::choose::drafter::{Drafter, DrafterOptions, Learned, Statistics};
use crate::draft::choose::step_choice::{StepChoice, StepCost, StepShape};
use crate::draft::choose::tree_shape::TreeShape;
use crate::draft::methods::{Method, MethodContext, source_named};
use crate::draft::source::DraftSource;
use crate::draft::sources::history::History;
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::tree::draft_tree::DraftTree;

/// What is fixed for the life of a [`HostDrafter`].
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Number of ids in the host's vocabulary.
    pub vocab_size: usize,
    /// Numbers of rows that a step of the host may have, ascending: the last committed token, and
    /// draft tokens behind it.
    pub rows: Vec<usize>,
    /// What a step of each costs, in any unit; `None` where rows are free.
    pub costs: Option<Vec<StepCost>>,
    /// How the host keeps what it accepts: all of a path, or the first path of a tree alone.
    pub commit: CommitPolicy,
    /// Tokens that end an answer: nothing is drafted behind them.
    pub end_tokens: Vec<TokenId>,
}

impl HostOptions {
    /// Numbers of rows where none are said.
    pub const ROWS: RangeInclusive<usize> = 1..=17;
}

/// What a draft may look like, as it was asked for.
#[derive(Clone, Copy, Debug)]
struct ProposalLimits {
    max_tokens: usize,
    branches: bool,
}

/// Tokens that the host reported together, and what it had asked for before.
#[derive(Clone, Copy, Debug)]
struct Report {
    asked: Option<ProposalLimits>,
    num_tokens: usize,
}

/// Drafts for one request of a host after the other: `begin`, then a proposal and `observe` in turn.
///
/// It proposes what a [`Drafter`] with the same sources proposes. Sources that read logits have
/// nothing to say here. A host of many requests has a drafter for each, over one [`History`].
///
/// # Cost
/// Beginning and observing: what the suffix automaton takes for the tokens. `rewind`: the same for
/// all that stays of the request, and a proposal for each report of it. Memory: the automaton's,
/// and 32 bytes a report.
///
/// # Example
/// A host whose answer repeats its prompt:
///
/// ```
/// use coordgen_rs::draft::host::{HostDrafter, HostOptions};
/// use coordgen_rs::draft::methods::Method;
/// use coordgen_rs::ids::TokenId;
/// use coordgen_rs::CommitPolicy;
///
/// let options = HostOptions {
///     vocab_size: 10,
///     rows: (1..=5).collect(),
///     costs: None,
///     commit: CommitPolicy::Compact,
///     end_tokens: vec![],
/// };
/// let mut drafter = HostDrafter::new(Method::named("auto")?, None, options)?;
/// drafter.begin(&[1, 2, 3, 4, 5, 1, 2].map(TokenId), &[])?;
/// assert_eq!(drafter.propose_chain(3)?, [3, 4, 5].map(TokenId));
/// drafter.observe(&[3, 4, 9].map(TokenId))?; // the host took two of them, and said 9
/// assert_eq!(drafter.statistics().accept_histogram, [0, 0, 1]);
/// # Ok::<(), coordgen_rs::Error>(())
/// ```
pub struct HostDrafter {
    drafter: Drafter,
    /// Prompt and committed tokens of the request.
    text: Vec<TokenId>,
    prompt_len: usize,
    prediction: Vec<TokenId>,
    /// What was learned when the request began.
    learned: Option<Learned>,
    reports: Vec<Report>,
    asked: Option<ProposalLimits>,
}

impl HostDrafter {
    /// A drafter by `method`, which also draws on `history`. What sources say is weighed, also where the
    /// method as published appends it.
    ///
    /// Fails when the method has no source that does without logits and a draft model, or has trees
    /// of its own; when rows or costs are unusable; and when the history has another vocabulary.
    pub fn new(method: Method, history: Option<&History>, options: HostOptions) -> Result<Self> {
        if !matches!(method.tree, TreeShape::BestFirst | TreeShape::Appended(_)) {
            let (what, must) = ("method of a host", "one without a tree of its own");
            return Err(Error::BadOption { what, got: format!("{:?}", method.name), must });
        }
        let free_rows = options.costs.is_none();
        let context = MethodContext { free_rows, recorded: true, ..MethodContext::default() };
        let names = method.sources(context)?;
        let sources: Result<Vec<Box<dyn DraftSource>>> =
            names.iter().map(|name| source_named(name)).collect();
        let mut sources = sources?;
        if let Some(history) = history {
            if history.vocab_size() as usize != options.vocab_size {
                let (what, must) = ("vocabulary of the history", "the host's");
                return Err(Error::BadOption { what, got: history.vocab_size().to_string(), must });
            }
            sources.extend(history.all_sources());
        }
        let shapes = options.rows.iter().map(|&rows| StepShape { rows, attended: usize::MAX });
        let options = DrafterOptions {
            steps: StepChoice::new(shapes.collect(), options.costs)?,
            vocab_size: options.vocab_size,
            commit: options.commit,
            end_tokens: options.end_tokens,
            shape: TreeShape::BestFirst,
        };
        let mut drafter = Drafter::new(sources, options)?;
        drafter.ignore_end_tokens(true); // when an answer ends is for the host to say
        Ok(Self {
            drafter,
            text: Vec::new(),
            prompt_len: 0,
            prediction: Vec::new(),
            learned: None,
            reports: Vec::new(),
            asked: None,
        })
    }

    /// Starts a request, with the caller's own prediction of the answer or an empty one; the one
    /// before is dropped, and what was learned of the sources stays.
    ///
    /// Fails when the prompt is empty, or a token unknown; then the request before goes on.
    pub fn begin(&mut self, prompt: &[TokenId], prediction: &[TokenId]) -> Result<()> {
        self.drafter.begin_predicted(prompt, usize::MAX, prediction)?;
        self.learned = Some(self.drafter.learned());
        self.text.clear();
        self.text.extend(prompt);
        self.prompt_len = prompt.len();
        self.prediction.clear();
        self.prediction.extend(prediction);
        self.reports.clear();
        self.asked = None;
        Ok(())
    }

    /// The likeliest continuation, of `max_tokens` tokens at most: fewer where the sources know no
    /// more or, with costs, where more would not pay. Asking again replaces what was proposed.
    ///
    /// Fails without a request.
    pub fn propose_chain(&mut self, max_tokens: usize) -> Result<&[TokenId]> {
        Ok(&self.propose(ProposalLimits { max_tokens, branches: false })?.token_ids()[1..])
    }

    /// Continuations as a tree whose root is the last committed token, of `max_tokens` draft tokens at
    /// most. Else as [`propose_chain`](Self::propose_chain).
    pub fn propose_tree(&mut self, max_tokens: usize) -> Result<&DraftTree> {
        self.propose(ProposalLimits { max_tokens, branches: true })
    }

    fn propose(&mut self, asked: ProposalLimits) -> Result<&DraftTree> {
        let past_len = self.text.len().checked_sub(1).ok_or(Error::NoRequest)?;
        let most_nodes = asked.max_tokens.saturating_add(1);
        let proposed = self.drafter.propose_hosted(past_len, most_nodes, asked.branches)?;
        self.asked = Some(asked);
        Ok(proposed)
    }

    /// Gives up the request, if there is one, and gives back what is shared with others: the files of
    /// an index, and texts of other requests. What was learned of the sources stays.
    pub fn end(&mut self) {
        self.drafter.end();
        self.text.clear();
        self.prompt_len = 0;
        self.prediction.clear();
        self.learned = None;
        self.reports.clear();
        self.asked = None;
    }

    /// Learns what the host has committed since the last call: the draft tokens that it took and its
    /// own next one, or any others. Without tokens nothing happens.
    ///
    /// Fails without a request, or when a token is unknown; then nothing is learned.
    pub fn observe(&mut self, token_ids: &[TokenId]) -> Result<()> {
        self.drafter.observe(token_ids)?;
        if !token_ids.is_empty() {
            self.text.extend(token_ids);
            let (asked, num_tokens) = (self.asked.take(), token_ids.len());
            self.reports.push(Report { asked, num_tokens });
        }
        Ok(())
    }

    /// Forgets all but the first `len` tokens of the request, and what was learned from the others:
    /// it goes on as if the host had never committed them.
    ///
    /// A prompt that is cut is a shorter prompt. Fails without a request, when it has fewer tokens, and
    /// when `len` is 0; then nothing is forgotten.
    pub fn rewind(&mut self, len: usize) -> Result<()> {
        let before = self.learned.clone().ok_or(Error::NoRequest)?;
        if len > self.text.len() {
            let what = "the request to be rewound";
            return Err(Error::WrongLength { what, got: self.text.len(), expected: len });
        }
        let (text, reports) = (self.text[..len].to_vec(), std::mem::take(&mut self.reports));
        let prediction = std::mem::take(&mut self.prediction);
        let learned_last = self.drafter.learned();
        self.drafter.set_learned(&before);
        let prompt = &text[..len.min(self.prompt_len)];
        if let Err(error) = self.begin(prompt, &prediction) {
            self.drafter.set_learned(&learned_last);
            (self.reports, self.prediction) = (reports, prediction);
            return Err(error);
        }
        let mut seen = prompt.len();
        for Report { asked, num_tokens } in reports {
            if seen == len {
                break;
            }
            if let Some(asked) = asked {
                self.propose(asked)?;
            }
            let end = len.min(seen + num_tokens);
            self.observe(&text[seen..end])?;
            seen = end;
        }
        Ok(())
    }

    /// Follows a host that tells its whole text each time: observes what is new, rewinds where the
    /// text has left what was observed behind the prompt, and begins a request where it has left
    /// the prompt. Returns whether a request began.
    ///
    /// Cost: a comparison of the texts, beside that of the calls. Fails as they do.
    pub fn follow(&mut self, text: &[TokenId]) -> Result<bool> {
        let num_equal = self.text.iter().zip(text).take_while(|(one, other)| one == other).count();
        if self.text.is_empty() || num_equal < self.prompt_len {
            self.begin(text, &[])?;
            return Ok(true);
        }
        self.drafter.check_tokens(&text[num_equal..])?;
        if num_equal < self.text.len() {
            self.rewind(num_equal)?;
        }
        self.observe(&text[num_equal..])?;
        Ok(false)
    }

    /// Prompt and committed tokens of the request; none before the first.
    pub fn text(&self) -> &[TokenId] {
        &self.text
    }

    /// How many of them are the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// What came of the proposals of the request.
    pub fn statistics(&self) -> &Statistics {
        self.drafter.statistics()
    }

    /// Whether proposing and observing may read a file, see [`Drafter::reads_disk`].
    pub fn reads_disk(&self) -> bool {
        self.drafter.reads_disk()
    }

    /// The names of the sources, in the order of the statistics.
    pub fn source_names(&self) -> impl Iterator<Item = &'static str> {
        self.drafter.source_names()
    }

    /// Bytes held on the heap, a shared history included.
    pub fn memory_bytes(&self) -> usize {
        self.drafter.memory_bytes()
            + (self.text.capacity() + self.prediction.capacity()) * size_of::<TokenId>()
            + self.reports.capacity() * size_of::<Report>()
    }
}

#[cfg(test)]
mod tests;
