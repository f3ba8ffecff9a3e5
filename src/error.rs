//! What a caller can do wrong, one variant a cause, each with the offending value and the limit.

use crate::ids::{BlockId, Graph, TokenId};

/// Every error of the core.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A token id is not in the target's vocabulary.
    #[error("token id {} is outside the vocabulary of {vocab_size}", token.0)]
    TokenOutOfRange {
        /// The offending token.
        token: TokenId,
        /// Number of ids in the vocabulary.
        vocab_size: usize,
    },
    /// A source draws on what was made for another model.
    #[error(
        "source {source_name:?} has a vocabulary of {got} tokens, but the target has {expected}"
    )]
    OtherVocabulary {
        /// Name of the source.
        source_name: &'static str,
        /// Number of ids in its vocabulary.
        got: usize,
        /// Number of ids in the target's.
        expected: usize,
    },
    /// A request needs at least one token to continue from.
    #[error("the prompt is empty: generation needs at least one token to continue from")]
    EmptyPrompt,
    /// A row of logits holds NaN, or no finite value at all.
    #[error("row {row} of the logits holds no usable maximum: NaN or infinite")]
    NonFiniteLogits {
        /// Row of the step.
        row: usize,
    },
    /// A grammar leaves no token to say.
    #[error("the grammar cannot go on: no token of the vocabulary may follow")]
    NothingAllowed,
    /// A bias of minus infinity is on every token that is left.
    #[error("no token is left: logit_bias forbids each that may follow")]
    AllForbidden,
    /// A grammar has failed; it knows why.
    #[error("the grammar failed: {reason}")]
    ConstraintFailed {
        /// What it said.
        reason: String,
    },
    /// An array has another length than its use asks for.
    #[error("{what} has {got} elements, expected {expected}")]
    WrongLength {
        /// Name of the array.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length asked for.
        expected: usize,
    },
    /// A draft tree breaks the rule that parents stand before children.
    #[error("node {node} of the draft has parent {parent}: parents must stand before children")]
    ParentAfterChild {
        /// The offending node.
        node: usize,
        /// Its parent as given.
        parent: usize,
    },
    /// A caller's draft does not start where the answer ends.
    #[error("the draft's root is token {}, but the last token given out is {}", got.0, expected.0)]
    WrongRoot {
        /// The root as given.
        got: TokenId,
        /// The last token given out.
        expected: TokenId,
    },
    /// A draft tree does not fit into the rows of the graph.
    #[error("the draft has {nodes} nodes, the step has {rows} rows")]
    TooManyNodes {
        /// Number of nodes, the root included.
        nodes: usize,
        /// Rows of the widest step.
        rows: usize,
    },
    /// A step does not fit into the attended slots.
    #[error("{past_len} committed tokens and {rows} rows exceed {attended} attended slots")]
    StepOutOfRange {
        /// Tokens in the cache before the step.
        past_len: usize,
        /// Rows of the step.
        rows: usize,
        /// Slots that a row may see.
        attended: usize,
    },
    /// Rows of a step that are to be committed do not ascend.
    #[error("row {row} cannot be committed behind row {before}: rows must ascend")]
    RowsNotAscending {
        /// The row before it as given.
        before: usize,
        /// The offending row.
        row: usize,
    },
    /// `accept` was called without a tree that waits for it.
    #[error("nothing was proposed: call propose before accept")]
    NothingProposed,
    /// `take` was called without a tree to take nodes of.
    #[error("nothing was offered: call offer before take")]
    NothingOffered,
    /// Another number of nodes is to be taken than was offered.
    #[error("{num_nodes} nodes cannot be taken: at least {least} must be, and {most} were offered")]
    NotOffered {
        /// The number as given.
        num_nodes: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// `propose` was called outside a request, or after its end.
    #[error("no request is running: call begin first")]
    NoRequest,
    /// No drafting source has this name.
    #[error("unknown draft source {name:?}; known are {known}")]
    UnknownSource {
        /// The name as given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No drafting method has this name.
    #[error("method is {name:?}, but must be one of {known}")]
    UnknownMethod {
        /// The name as given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A drafting method has nothing to draft from.
    #[error("method {method:?} needs {needs}")]
    MethodNeeds {
        /// Its name.
        method: &'static str,
        /// What is missing.
        needs: &'static str,
    },
    /// The index of a history cannot be used, and is to be rebuilt.
    #[error("the index of the history cannot be used: {reason}")]
    UnusableIndex {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The index of a history cannot be written; nothing was left behind.
    #[error("the index of the history cannot be written: {reason}")]
    IndexNotWritten {
        /// What the system said.
        reason: String,
    },
    /// The file of a history cannot be used; it is left as it is.
    #[error("the history cannot be used: {reason}")]
    UnusableHistory {
        /// What is wrong with it.
        reason: String,
    },
    /// The file of a history cannot be written; it holds what it held.
    #[error("the history cannot be written: {reason}")]
    HistoryNotWritten {
        /// What the system said.
        reason: String,
    },
    /// Only one has the file of a history open at a time.
    #[error("the history is open elsewhere")]
    HistoryInUse,
    /// A saved look-up table cannot be used.
    #[error("the look-up table cannot be used: {reason}")]
    UnusableTable {
        /// What is wrong with it.
        reason: String,
    },
    /// A look-up table cannot be written; nothing was left behind.
    #[error("the look-up table cannot be written: {reason}")]
    TableNotWritten {
        /// What the system said.
        reason: String,
    },
    /// A graph of a block cannot be loaded.
    #[error("block {}: its {} graph cannot be loaded: {reason}", block.0, graph.name())]
    LoadFailed {
        /// The block.
        block: BlockId,
        /// The graph of it.
        graph: Graph,
        /// What the store said.
        reason: String,
    },
    /// No order of loads and releases keeps within the memory budget.
    #[error(
        "the memory budget is {budget} bytes, but {least} bytes are the least that can be held"
    )]
    BudgetTooSmall {
        /// The budget.
        budget: u64,
        /// The least peak of any plan.
        least: u64,
    },
    /// A file of experts cannot be read, or no longer.
    #[error("{file} cannot be read: {reason}")]
    ExpertsUnreadable {
        /// Its path.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// Loading was cancelled while something waited for it.
    #[error("loading was cancelled")]
    LoadingCancelled,
    /// The store wants no more waiting for the loader, which goes on.
    #[error("waiting for a load was interrupted")]
    WaitInterrupted,
    /// Compute runs another block than its timetable says.
    #[error("block {} was entered, but the timetable runs block {} next", got.0, expected.0)]
    WrongBlock {
        /// The block as given.
        got: BlockId,
        /// The block of the timetable's next run.
        expected: BlockId,
    },
    /// Only one block runs at a time.
    #[error("block {} is still running: call leave first", block.0)]
    StillRunning {
        /// The block.
        block: BlockId,
    },
    /// `leave` was called while no block was running.
    #[error("no block is running: call enter before leave")]
    NothingRunning,
    /// A timetable is over only when compute has done all its runs, or has cancelled it.
    #[error("{num_runs} runs of the timetable have not been done: do or cancel them first")]
    RunsLeft {
        /// How many.
        num_runs: usize,
    },
    /// A store calls its own loader within a load or a release, which would have to end first.
    #[error("a block store cannot call its switcher within its own load or release")]
    WithinAction,
    /// The process is a fork of the one that has the loader's thread.
    #[error(
        "this process is a fork of the one that loads the blocks, whose threads it does not have: \
         open the target in a process started anew"
    )]
    Forked,
    /// The system gives no thread to load on.
    #[error("no thread to load on: {reason}")]
    NoThread {
        /// What the system said.
        reason: String,
    },
    /// An option has a value outside its range.
    #[error("{what} is {got}, but must be {must}")]
    BadOption {
        /// Name of the option.
        what: &'static str,
        /// The value as given.
        got: String,
        /// What it must be.
        must: &'static str,
    },
    /// An option behind the name of a method or source is unknown there, or has a value outside its range.
    #[error("{what} is {got}, but must be {must}")]
    BadSetting {
        /// Name of the option.
        what: &'static str,
        /// The value as given.
        got: String,
        /// What it must be.
        must: String,
    },
}

/// Shorthand for results of the core.
pub type Result<T> = std::result::Result<T, Error>;
