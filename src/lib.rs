//! Lossless drafting and tree verification for text generation on fixed-shape graphs.
//!
//! A language model that answers from a context repeats much of it. This crate proposes such
//! continuations from lookups alone, as a tree of draft tokens; one run of the model, the *target*,
//! verifies all of them; and the tokens given out, several a run, are exactly those of plain
//! decoding. The crate runs no model: it prepares the inputs of a run, reads its logits, and says
//! which rows of the key and value cache to keep.
//!
//! # The way of the data
//!
//! ```text
//! prompt --begin--> sources
//! the target's logits over the prompt --prefilled--> top-k of each row --> calibration
//! sources --propose--> draft tree --fill--> ids, positions, paths --> the target's run --> logits
//! logits --verify--> accepted path, bonus token --commit--> tokens given out, rows to keep
//! tokens given out --extend--> sources               side branch --carried--> next draft tree
//! profile --switcher--> plan --loader--> blocks loaded and released while the prompt is read
//! ```
//!
//! In use, a loop of two calls:
//!
//! 1. [`Drafter::begin`] reads the prompt; the target computes all of it but the last token, which
//!    is the root of the first tree.
//! 2. [`Drafter::propose`] grows a tree and chooses a step; [`StepInputs::fill`] writes its inputs.
//! 3. The target runs; [`Drafter::accept`] takes the logits and returns a [`Commit`].
//!    Under a grammar, [`Drafter::constrain`], it asks for the mask of each row that it visits.
//! 4. The target keeps the rows that the commit names; back to 2 until there is a finish reason.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | target | the model whose output is wanted |
//! | draft, draft tree | proposed continuations; node 0, the root, is the last token given out; parents stand before children |
//! | source | something that proposes: a suffix automaton over the request, prompt lookup, earlier requests in memory or on disk, the user's own prediction, what the target expected in the prompt, what it held likely after a token, parts of rejected drafts, a draft model |
//! | host | an engine that runs the target itself, asks for drafts and reports what it committed |
//! | method | a named choice of sources, tree shape and needs: ours, and those of the papers |
//! | rows | number of tokens that a run takes, fixed by its graph; row `i` computes node `i` |
//! | step | one run of the target over a draft tree, in which each row sees its own path alone: by the tree's parents, or under a tree attention mask |
//! | `past_len` | tokens whose keys and values are in the cache; row `i` is written to slot `past_len + i` |
//! | path | a node and its ancestors: behind the committed tokens, all that its row sees |
//! | first path | nodes 0, 1, 2, .. of which each is the parent of the next; the rows whose slot is their position |
//! | `accept_len` | draft tokens accepted for good in one step |
//! | bonus token | the target's own token after the accepted ones |
//! | commit | the accepted rows' keys and values join the cache, all others are dropped; `Compact` moves those of a side branch into place, which is exact where a row's bits depend on its path alone; `Canonical` commits the first path alone |
//! | forced tokens | the only ones that a request's grammar allows: drafted first |
//! | carried tokens | accepted on a side branch under a canonical commit, as their rows stand in other slots: fed again first |
//! | worth | tokens that a draft node is expected to bring |
//! | `least_that_pays` | what a token of a draft model costs, as a share of the target's step that it saves if right |
//! | state | what a recurrent layer keeps instead of keys and values, of the tokens that are applied to it |
//! | expert | one of a layer's feed-forwards, of which each row takes those of its best scores, in the order of rank |
//! | update | what a row would do to a state, kept until the row is committed or dropped |
//! | block | some consecutive layers of the target, with two graphs: G1 for chunks of a prompt, G2 for steps |
//! | switch | to load a block's G2 in place of its G1, while other blocks compute |
//! | k* | the fewest runs that hide a load, by which CoordGen's greedy rule spaces its switches |
//! | strategy | a rule for making plans of loads and switches, by name |
//! | stream | to load and release blocks in every pass, where not all of them fit into memory |
//!
//! # What it costs
//!
//! With `n` nodes in a tree, `rows` rows in a step, `V` tokens in the vocabulary, `a` tokens accepted.
//!
//! | call | cost |
//! |---|---|
//! | [`Drafter::begin`] | each source's `extend` over the prompt |
//! | [`Drafter::propose`] | at most `2 n` times each source's `successors` and `advance`, and a sorted insertion for each answer, with `n` the rows of steps that may pay; whatever the text is and however long, but for cache misses |
//! | [`StepInputs::fill`] | a parent for each node; with a mask `rows * (rows + tokens committed since the last fill)` entries, whatever `past_len` is |
//! | [`Drafter::accept`] | `a + 1` passes over `V` logits, none behind the answer's end, a scan of the tree for each, each source's `extend` over the new tokens |
//! | [`MovedRows::apply`](commit::cache_rows::MovedRows::apply) | a copy of a head's bytes for each head and row that is not in its slot |
//! | [`HostDrafter::rewind`](draft::host::HostDrafter::rewind) | a new request over what stays, and a proposal for each of its steps |
//! | [`SuffixAutomaton`] | `extend` amortised O(1) a token; `advance` and each token of `extend` at most 129 suffix levels; `successors` O(1) |
//! | [`PromptLookup`] | `extend` and `successors` O(1) a token |
//! | [`Drafter::prefilled`] | a pass over `V` logits a row, and a hash insertion |
//! | [`Calibration`] | `advance` compares at most 16 occurrences with 15 tokens each, `successors` at most 8 times that |
//! | [`LookupTable`] | `learn` 64 comparisons; what its source learns in a step is a pass over `V` logits a node, on several threads where that is long |
//! | [`ModelDraft`] | a step scans at most 8 tokens for each that the model has read; where it is not run, what the new tokens take |
//! | [`Sampling::draw`] | two passes over `V` logits; with `top_p` 0.95 a third over a sixth of them at most, on average |
//! | [`keep_allowed`](constraint::keep_allowed) | a pass over the mask, and over the scores of words that refuse a token |
//! | [`SeenTokens::penalised`] | two accesses to the row for each distinct token of the text |
//! | [`RowLogprobs`](logits::logprobs::RowLogprobs) | three passes over `V` logits, one of them with an exponential for each; only where logprobs are asked for |
//! | [`DraftReuse`] | `advance` scans at most 32 tokens; at most 16 passes over `V` logits a step |
//! | [`Batcher::share`](batch::Batcher::share) | an insertion into a heap for each row; for each doubling of the rows that read, a look at each prompt |
//! | [`load::plan::plan`] | some dozen passes over the runs, and a search of at most some million more; at most 131,072 runs |
//! | [`History`] | `extend` a few binary searches a token, `successors` at most 32 suffixes read a level; opening its index reads a thousandth of its bytes |
//! | [`load::switcher`] | `begin` a plan; `enter` and `leave` a lock each, and a wake-up where there is something to load |
//! | [`load::experts`] | for each turn of a layer a pass over its experts and the next layer's; for each expert that is read two over all |
//! | [`product`](kernels::product) | a pass over the weights in their blocks, and for each row a multiply-add for each weight: of bytes, or of floats where weights are floats |
//! | [`experts`](kernels::experts) | a pass over the weights of each expert that any row takes; a [`product`](kernels::product) for each row and each of its experts |
//! | [`attention`](kernels::attention) | `2 heads head_dim` multiply-adds for each token on a row's path; a head's keys are read once for 192 of its queries |
//! | [`recurrent`](kernels::recurrent) | a pass over the state, in which what is pending is applied; for each row two to four multiply-adds for each number of the state, whatever the text before it |
//!
//! What a step costs does not grow with the text before it or with the steps of the answer, but for
//! arrays that grow by a share of their length now and then: `make growth` counts the instructions of
//! every source, method and chooser after 1,000 to 1,000,000 tokens.
//!
//! # Key types, in reading order
//!
//! - [`ids`]: [`TokenId`], [`NodeId`] and [`StateId`]; [`error`]: one [`Error`] for all that a
//!   caller can do wrong.
//! - [`logits`]: [`Logits`], argmax, and the tie rule on which losslessness hangs;
//!   [`top_k`](logits::top_k), the likeliest tokens of a row, to which a prompt's rows are reduced;
//!   [`logprobs`](logits::logprobs), how likely the target held the tokens of its answer, and others in
//!   their place; `scores`, the passes over rows, the same to the last bit on every machine.
//! - [`sampling`]: drawing the target's token instead, by seed and position; penalties on the tokens
//!   that were said before, and biases.
//! - [`constraint`]: [`Constraint`], what a grammar lets the target say, and a row masked by it.
//! - [`tree`]: [`DraftTree`]; [`StepInputs`], its ids and positions, and what each row sees: a mask,
//!   or [the tree's own parents](PathBuffers).
//! - [`verify`]: how far a draft agrees with the target.
//! - [`commit`]: [`Commit`], which of it is given out and kept, by [`CommitPolicy`].
//! - [`commit::cache_rows`]: [`MovedRows`](commit::cache_rows::MovedRows), how rows of a side branch come to their
//!   slots, and [`copy_all`](commit::cache_rows::copy_all), how those of a kept prefix come back.
//! - [`draft::methods`]: the registry of sources and of named choices among them, ours and the
//!   papers'.
//! - [`draft::source`]: what a source is asked, [`Propose`], and told, [`Learn`]; both are a
//!   [`DraftSource`].
//! - [`draft::sources`]: who answers. [`automaton`], the [`SuffixAutomaton`], and
//!   [`escape`], on which its estimates rest; [`PromptLookup`]; [`Calibration`], what the target
//!   expected in the prompt; [`DraftReuse`], parts of rejected drafts; [`ResumedCopy`], a copy behind a
//!   mismatch; [`CommonPhrases`], what is common anywhere; [`Respelling`], other tokens for the others'
//!   words; [`EarlierRequests`] and [`Prediction`], automata over other texts; [`SamDecoding`], for
//!   comparison.
//! - [`history`]: [`History`], finished requests as two sources, those of many machines as a third, and the
//!   documents of a corpus as a fourth;
//!   [`index`](draft::sources::history::index), the suffix array over the older ones, read by blocks,
//!   [`format`](draft::sources::history::format), its file,
//!   [`gather`](draft::sources::history::gather), an index of documents that lie in files,
//!   [`persistent`](draft::sources::history::persistent), a history at a path, and
//!   [`suffix_array`](draft::sources::history::suffix_array), how it is sorted.
//! - [`lookup_table`]: [`LookupTable`], what the target held likely after each token;
//!   [`source`](draft::sources::lookup_table::source), how it drafts and what it reads of the logits, and
//!   [`file`](draft::sources::lookup_table::file), how it is kept.
//! - [`model`]: [`ModelDraft`], what a draft model reads and when it is enough;
//!   [`branches`](draft::sources::model::branches), what it reads next;
//!   [`shape`](draft::sources::model::shape), what its tree looks like, and when it is enough; and
//!   [`source`](draft::sources::model::source), how it drafts.
//! - [`draft::choose`]: which guesses are drafted. [`acceptance`], the learned trust in a source;
//!   [`grow`], one tree from all of them; [`step_choice`], which width of step pays;
//!   [`step_gains`], what a unit of cost has brought lately, and what a running copy is still worth
//!   behind a step; [`expert_reads`], what rows that share experts save;
//!   [`model_choice`], when a draft model pays; [`in_vocabulary`], which ids the target knows; [`origins`], who
//!   proposed each token; and the [`Drafter`] above them all.
//! - [`tree_shape`]: methods that have trees of their own, for comparison and alone:
//!   [`dynamic_tree`](draft::choose::tree_shape::dynamic_tree), DIAA's;
//!   [`ranked_tree`](draft::choose::tree_shape::ranked_tree), a shape before it has tokens, and Token
//!   Recycling's.
//! - [`host`](draft::host): [`HostDrafter`](draft::host::HostDrafter), which drafts for an engine that
//!   runs the model itself and tells what it has committed.
//! - [`chat_template`]: from messages to the text that an instruct model reads, within bounds.
//! - [`batch`]: many requests in one step; [`Batcher`](batch::Batcher), who gets its rows, by
//!   [`RowCosts`](batch::RowCosts), what they cost, what candidates are worth and which prompts are
//!   read first (`shares`).
//! - [`load`]: which graph of a block is in memory when; [`load::profile`], what the blocks cost on
//!   a device; [`load::timetable`], a plan written out; [`load::plan`], how it is made, with the
//!   registry of strategies (`strategy`) and the paper's k* (`fixed`); its tests have the best there
//!   is, to judge it by; [`load::stream`], a target larger than its memory; [`load::experts`], experts larger than memory, kept by use; [`load::BlockStore`], where
//!   graphs come from; [`load::prompt_rows`], how a
//!   prompt is cut where nothing is loaded; [`load::loader`], which carries a
//!   timetable out on a thread of its own; [`load::switcher`], which decides for each prompt
//!   whether to plan or to stream, and learns what blocks cost.
//!
//! With feature `ort` the built library registers the kernels as operators of ONNX Runtime: `ort/`.
//! With feature `python`, which includes it, the crate is also the extension module
//! `coordgen_rs._core`: `py/` converts, in folders named like those above, and decides nothing.
//! With feature `c` the built library is one for C: `c/` is the interface that `include/coordgen.h` declares.
//! `atomic_file` names and locks what is being written, and replaces a file at once; `locks` takes locks
//! without holding up Python; `tests` holds that imports run one way.
//!
//! # Example
//!
//! A target that counts in circles, verified up to eight tokens at a time:
//!
//! ```
//! use coordgen_rs::draft::methods::source_named;
//! use coordgen_rs::draft::choose::tree_shape::TreeShape;
//! use coordgen_rs::{CommitPolicy, Drafter, DrafterOptions, StepChoice, StepShape, TokenId};
//!
//! let steps = StepChoice::new(vec![StepShape { rows: 8, attended: 64 }], None)?;
//! let options = DrafterOptions {
//!     steps,
//!     vocab_size: 5,
//!     commit: CommitPolicy::Canonical,
//!     end_tokens: vec![],
//!     shape: TreeShape::BestFirst,
//! };
//! let mut drafter = Drafter::new(vec![source_named("automaton")?], options)?;
//! let mut text: Vec<TokenId> = (0..12).map(|index| TokenId(index % 5)).collect();
//! drafter.begin(&text, 20)?;
//! let mut num_steps = 0;
//! while drafter.finish_reason().is_none() {
//!     drafter.propose(text.len() - 1)?;
//!     let mut logits = [0.0; 8 * 5];
//!     for (row, token) in drafter.tree().token_ids().iter().enumerate() {
//!         logits[row * 5 + (token.0 as usize + 1) % 5] = 1.0;
//!     }
//!     text.extend(drafter.accept(&mut logits)?.token_ids);
//!     num_steps += 1;
//! }
//! assert!(text.iter().enumerate().all(|(index, token)| token.0 == index as u32 % 5));
//! assert!(num_steps <= 5);
//! # Ok::<(), coordgen_rs::Error>(())
//! ```
//!
//! [`acceptance`]: draft::choose::acceptance
//! [`expert_reads`]: draft::choose::expert_reads
//! [`automaton`]: draft::sources::automaton
//! [`Calibration`]: draft::sources::calibration::Calibration
//! [`DraftReuse`]: draft::sources::reuse::DraftReuse
//! [`CommonPhrases`]: draft::sources::common_phrases::CommonPhrases
//! [`Respelling`]: draft::sources::respelling::Respelling
//! [`ResumedCopy`]: draft::sources::resumed_copy::ResumedCopy
//! [`EarlierRequests`]: draft::sources::earlier_requests::EarlierRequests
//! [`escape`]: draft::sources::automaton::escape
//! [`grow`]: draft::choose::grow
//! [`history`]: draft::sources::history
//! [`LookupTable`]: draft::sources::lookup_table::LookupTable
//! [`lookup_table`]: draft::sources::lookup_table
//! [`model`]: draft::sources::model
//! [`model_choice`]: draft::choose::model_choice
//! [`ModelDraft`]: draft::sources::model::ModelDraft
//! [`origins`]: draft::choose::origins
//! [`Prediction`]: draft::sources::prediction::Prediction
//! [`SamDecoding`]: draft::sources::sam_decoding::SamDecoding
//! [`Sampling::draw`]: sampling::Sampling::draw
//! [`SeenTokens::penalised`]: sampling::SeenTokens::penalised
//! [`step_choice`]: draft::choose::step_choice
//! [`step_gains`]: draft::choose::step_gains
//! [`tree_shape`]: draft::choose::tree_shape
//! [`in_vocabulary`]: draft::choose::in_vocabulary

#[cfg(test)]
extern crate self as coordgen_rs; // tests share files with benches

mod atomic_file;
pub mod batch;
#[cfg(any(feature = "c", test))]
pub mod c;
pub mod chat_template;
pub mod commit;
pub mod constraint;
pub mod draft;
pub mod error;
pub mod ids;
pub mod kernels;
pub mod load;
mod locks;
pub mod logits;
#[cfg(feature = "ort")]
mod ort;
#[cfg(feature = "python")]
mod py;
pub mod sampling;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod verify;

pub use commit::{Commit, CommitPolicy, FinishReason};
pub use constraint::Constraint;
pub use draft::choose::drafter::{Drafter, DrafterOptions};
pub use draft::choose::step_choice::{StepChoice, StepCost, StepShape};
pub use draft::source::{DraftSource, Learn, Propose};
pub use draft::sources::automaton::suffix_automaton::SuffixAutomaton;
pub use draft::sources::history::History;
pub use draft::sources::prompt_lookup::PromptLookup;
pub use error::{Error, Result};
pub use ids::{BlockId, Graph, NodeId, StateId, TokenId};
pub use logits::Logits;
pub use tree::draft_tree::DraftTree;
pub use tree::step_inputs::{PathBuffers, StepBuffers, StepInputs};
