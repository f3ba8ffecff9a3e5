"""The Rust core: drafting, verification, commit, inputs of a step; plans of loads."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PLAIN",
    "Accepted",
    "Action",
    "Batcher",
    "BlockCost",
    "BlockLoadError",
    "CallOrderError",
    "CoordgenError",
    "DraftMethod",
    "DraftSource",
    "Drafter",
    "DynamicTree",
    "EmptyPromptError",
    "ExpertStore",
    "ForkedError",
    "GrammarError",
    "HistoryIndexError",
    "HostDrafter",
    "InvalidDraftError",
    "Lock",
    "LookupTable",
    "LookupTableError",
    "MemoryBudgetError",
    "ModelDraft",
    "NonFiniteLogitsError",
    "OptionError",
    "PhraseTable",
    "Plan",
    "PromptLookup",
    "Run",
    "Sampling",
    "SeenTokens",
    "ShapeError",
    "SharedHistory",
    "SimulatedClock",
    "StepInputs",
    "SuffixAutomaton",
    "SwitchReport",
    "Switcher",
    "TokenOutOfRangeError",
    "chat_template_variables",
    "copy_rows",
    "create_unfinished_directory",
    "create_unfinished_file",
    "draft_method",
    "draft_methods",
    "draft_sources",
    "keep_allowed",
    "kernel_processor",
    "least_that_pays",
    "memory_shares",
    "move_rows",
    "name_bus_errors",
    "parse_json_text",
    "plan",
    "prompt_rows",
    "remove_abandoned",
    "render_chat_template",
    "starts",
    "strategies",
    "token_logprob",
    "top_k",
    "weight_panels",
    "weight_rows",
    "weight_types",
]

_Integers = NDArray[np.integer[Any]] | Sequence[int]

_StepCost = float | tuple[float, float] | tuple[float, float, float, float]

_GraphName = Literal["prefill", "decode"]

class CoordgenError(Exception):
    """Base of all errors of coordgen_rs."""

class TokenOutOfRangeError(CoordgenError):
    """A token id is not in the vocabulary."""

class EmptyPromptError(CoordgenError):
    """A request has no token to continue from."""

class NonFiniteLogitsError(CoordgenError):
    """Logits hold NaN, or nothing finite."""

class GrammarError(CoordgenError):
    """A grammar cannot be used, or cannot go on."""

class InvalidDraftError(CoordgenError):
    """A draft tree is malformed or too large."""

class ShapeError(CoordgenError):
    """An array has the wrong shape, or a step does not fit."""

class CallOrderError(CoordgenError):
    """Calls came in the wrong order."""

class HistoryIndexError(CoordgenError):
    """The index of a history cannot be used or written."""

class LookupTableError(CoordgenError):
    """A saved look-up table cannot be used, or a table cannot be written."""

class BlockLoadError(CoordgenError):
    """A graph of a block cannot be loaded (the message names it), or loading was cancelled."""

class ForkedError(CoordgenError):
    """This process is a fork of the one that opened what it uses, and lacks its threads."""

class MemoryBudgetError(CoordgenError):
    """Nothing that can run fits into the memory budget."""

class OptionError(CoordgenError):
    """An option is unknown or outside its range, or `logit_bias` forbids all that may follow."""

@final
class StepInputs:
    """The input buffers of one decode graph, owned by the caller and filled in place.

    Row `i` is node `i` of a draft tree. It is written to cache slot `past_len + i`, has position
    `past_len + depth`, and sees the committed slots, those of its ancestors and its own: by a mask,
    or by a path, along which the graph itself finds the ancestors. Other rows are padding: token 0
    at position 0, which under a mask sees the committed slots and its own.

    A fill rewrites only the part of a mask that differs from the last fill, so nobody else may
    write to it.

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        mask: `(1, .., rows, attended) f32`, additive: 0 where a row sees a slot, -10,000 elsewhere;
            None where there is a path.
        path: In place of a mask, what attention along the path reads: each node's parent `(slots,)
            i32`, -1 for the root; committed tokens `(1,) i32`; the node of row 0 and the number of
            rows that hold nodes `(2,) i32`.

    Raises:
        ShapeError: An array has another dtype or shape, or is not C-contiguous.
        OptionError: There are both a mask and a path, or neither.
    """

    def __new__(
        cls,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.float32] | None = None,
        *,
        path: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None = None,
    ) -> StepInputs: ...
    @property
    def rows(self) -> int:
        """Rows of the step."""

    @property
    def attended(self) -> int:
        """Slots that the mask covers, or that there are."""

    @property
    def num_nodes(self) -> int:
        """Rows that hold a node since the last fill; the others are padding."""

    @property
    def experts_read(self) -> tuple[float, float] | None:
        """Experts of all layers that the last step has read, where rows read experts of their own.

        For its first row, and for all rows; within a memory budget only those that were not in
        memory. Set by who has run it. The drafter takes it with the step's logits, and learns from
        it.
        """

    @experts_read.setter
    def experts_read(self, counts: tuple[float, float] | None) -> None:
        """Tell the `counts`; None where nobody counts."""

    @property
    def input_ids(self) -> NDArray[np.int64]:
        """The array given, `(rows,) i64`."""

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """The array given, `(rows,) i64`."""

    @property
    def mask(self) -> NDArray[np.float32] | None:
        """The array given, `(1, .., rows, attended) f32`, or None."""

    def fill(self, token_ids: _Integers, parents: _Integers, past_len: int) -> None:
        """Fill the buffers with a tree.

        Args:
            token_ids: `(nodes,) u32`; node 0 is the root.
            parents: `(nodes,) u32`; the root's is 0; every parent comes before its children.
            past_len: Committed tokens before the root.

        Raises:
            InvalidDraftError: More nodes than rows, or a parent after its child.
            ShapeError: The arrays differ in length, or the step reaches beyond the slots.
        """

    def fill_chain(self, token_ids: _Integers, past_len: int) -> None:
        """Fill the buffers with a chain: plain decoding, or a part of a prompt.

        Args:
            token_ids: `(nodes,) u32`, each the child of the one before.
            past_len: Committed tokens before them.

        Raises:
            InvalidDraftError: More tokens than rows.
            ShapeError: No token, or the step reaches beyond the slots.
        """

@final
class Accepted:
    """The result of one verification."""

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        """The new tokens, `(tokens,) u32`, at least one."""

    @property
    def rows(self) -> NDArray[np.uint32]:
        """Rows to commit, `(tokens,) u32`: the root's, then accepted nodes' in path order."""

    @property
    def accept_len(self) -> int:
        """Draft tokens accepted for good; the target's own token comes after them."""

    @property
    def num_drafted(self) -> int:
        """How many of `token_ids`, from the first, were in the draft.

        One more than `accept_len` where the target's own token was drafted too, on a side branch.
        """

    @property
    def sources(self) -> list[str]:
        """Who put each of `token_ids` into the draft.

        The name of a source, "grammar" where no other token was allowed, "given" for a caller's own
        draft, or "target" if nobody drafted it.
        A token that was accepted on a side branch and fed again keeps its first source.
        """

    @property
    def finish_reason(self) -> Literal["stop", "length", "grammar"] | None:
        """Why the answer ends with these tokens; None while it continues."""

    @property
    def logprobs(self) -> list[tuple[float, list[tuple[int, float]]]] | None:
        """For each of `token_ids` what `token_logprob` tells of it.

        None where it was not asked for, and empty after a recorded answer.
        """

@final
class DraftSource:
    """An entry of the registry: something that proposes what may come next.

    Args:
        name: Its name in the registry.

    Raises:
        OptionError: There is none of that name.
    """

    def __new__(cls, name: str) -> DraftSource: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[str]: ...
    @property
    def name(self) -> str:
        """The name in options and statistics."""

    @property
    def about(self) -> str:
        """A one-line description of what it proposes."""

    @property
    def needs(self) -> str:
        """What it cannot draft without, or "nothing"."""

    @property
    def can_be_asked_for(self) -> bool:
        """Whether its name may be given to `Drafter`; others come with what they need."""

@final
class DraftMethod:
    """A choice of sources, ours or a paper's, and how their proposals are used.

    Args:
        name: Its name in the registry; options may follow it, joined by colons:
            "diaa:budget=60:update_interval=4".

    Raises:
        OptionError: There is none of that name, or it has no such option, or its value is out of
            range.
    """

    def __new__(cls, name: str) -> DraftMethod: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[str]: ...
    @property
    def name(self) -> str:
        """The name in options and results, with the options behind it."""

    @property
    def about(self) -> str:
        """A one-line description."""

    @property
    def published(self) -> str | None:
        """Paper, section and equation or table, where it is as published; None for the others.

        Such a method has all of its sources, or none.
        """

    @property
    def needs_draft_model(self) -> bool:
        """Whether it drafts from nothing but a draft model."""

    @property
    def tree(self) -> str | DynamicTree:
        """The shape of its trees, for `Drafter`."""

    @property
    def growth(self) -> str:
        """What its draft model reads next: "chain", "paced" (EdgeLLM, Eq. 2) or "surest"."""

    @property
    def stop(self) -> str:
        """When its draft model has drafted enough.

        "count", at as many tokens as it may; "tree-confidence", when the surest branch is below
        alpha (EdgeLLM, Eq. 3); "fixed", the same with the first alpha; "next-token", when the
        surest token that could be read next is below alpha.
        """

    @property
    def weighs_model(self) -> bool:
        """Whether its draft model runs only where that pays, which the papers do not ask."""

    @property
    def takes_mtp(self) -> bool:
        """Whether the target's own head for further tokens (MTP) drafts where no model does."""

    @property
    def most_drafted(self) -> int | None:
        """Most tokens that its draft model drafts a step; None for as many as a step verifies."""

    @property
    def in_gaps(self) -> bool:
        """Whether its draft model keeps drafting while the target waits for its blocks."""

    def sources(
        self,
        *,
        free_rows: bool = False,
        draft_model: bool = False,
        common_phrases: bool = False,
        earlier_requests: bool = False,
        recorded: bool = False,
    ) -> list[str]:
        """The names of its sources, in order, for `Drafter`.

        Options are behind a name where the method asks for other ones than ours:
        "calibration:k=3:least=0.02:occurrences=16".

        Args:
            free_rows: Rows cost nothing: the drafter is given no costs.
            draft_model: There is a draft model.
            common_phrases: There is a `PhraseTable`.
            earlier_requests: Whether to draft from earlier requests.
            recorded: A recorded answer plays the target, so that there are no logits.

        Raises:
            OptionError: All of its sources need something that is missing, or one does and the
                method is `published`; the message says what.
        """

PLAIN: Final[str]
"""The name of plain decoding, the baseline that drafts nothing."""

@final
class Lock:
    """A lock on a file or directory, from now until `release` or the end of the process.

    Args:
        path: What to lock.
        shared: Whether other locks of this kind may be held at the same time.

    Raises:
        OSError: It cannot be opened.
    """

    def __new__(cls, path: PathLike[str], *, shared: bool = False) -> Lock: ...
    @property
    def is_mine(self) -> bool:
        """It is held, and what it is held on still has its name; or there are no locks here."""

    @property
    def is_held(self) -> bool:
        """It is held, and what it is held on still has its name; False where there are no locks."""

    @property
    def is_anothers(self) -> bool:
        """Another process, or another lock of this one, holds it."""

    def release(self) -> None:
        """Let go of it."""

def create_unfinished_file(path: PathLike[str], private: bool) -> tuple[Path, int]:
    """A new locked file beside `path`: its name, and its descriptor (on Windows its handle).

    Args:
        path: Where the file is to be at the end.
        private: Whether only its owner may read it.

    Raises:
        OSError: It cannot be created.
    """

def create_unfinished_directory(path: PathLike[str]) -> tuple[Path, Lock]:
    """A new empty directory beside `path`: its name, and the lock on it.

    Args:
        path: Where the directory is to be at the end.

    Raises:
        OSError: It cannot be created or opened.
    """

def remove_abandoned(path: PathLike[str]) -> list[tuple[Path, int]]:
    """Remove what killed runs left for `path`: where each was, and the bytes of its files.

    Args:
        path: Where the file or directory was to be.
    """

def parse_json_text(document: str | bytes, long_integers: bool) -> Any:
    """What a JSON document says.

    Args:
        document: In UTF-8, with or without a byte order mark.
        long_integers: Take integers beyond 64 bits, too.

    Raises:
        ValueError: It is not UTF-8, or holds what readers disagree on; the message says which.
        SyntaxError: It is not JSON.
    """

def render_chat_template(
    source: str, known: dict[str, Any], strftime_now: Callable[[str], str]
) -> str:
    """The text that a chat template makes of what it reads.

    Args:
        source: In Jinja, as Hugging Face runs it.
        known: What it reads, by name; of JSON's types alone.
        strftime_now: Gives the time as a text, in a format of `strftime`.

    Raises:
        SyntaxError: It is no Jinja; the message says in which line.
        ValueError: It refuses what it was given, calls what is not offered, or does too much.
    """

def chat_template_variables(source: str) -> list[str]:
    """The names that what a chat template renders can depend on, sorted.

    Raises:
        SyntaxError: It is no Jinja; the message says in which line.
    """

def draft_sources() -> list[DraftSource]:
    """All sources."""

def draft_methods() -> list[DraftMethod]:
    """All methods: ours, then the papers'."""

def draft_method(name: str) -> DraftMethod:
    """The method of that name.

    Args:
        name: As in options: "auto", "coordgen", ...

    Raises:
        OptionError: The name is unknown; the message lists all.
    """

class _Constraint(Protocol):
    """A grammar at the start of an answer. A path is the tokens behind those of `extend`.

    What it raises comes out of the drafter's call.

    Attributes:
        words: `(vocab_size / 32,) u32`, rounded up: bit `i % 32` of word `i / 32` is set where
            token `i` may follow the path that `after` was last asked about.
    """

    words: NDArray[np.uint32]

    def forced(self, path: list[int]) -> list[int]:
        """The tokens after `path` of which each is the only one allowed."""

    def possible(self, tokens: list[int], parents: list[int]) -> list[bool]:
        """Which nodes of a tree, the root included, the grammar may allow; more only cost rows."""

    def after(self, path: list[int]) -> bool:
        """Fill `words` with what may follow `path`; whether the answer is complete there."""

    def extend(self, tokens: list[int]) -> bool:
        """Take what was given out, end tokens excluded; whether the answer is complete."""

@final
class Drafter:
    """Drafts from lookups, verifies and commits: `begin`, then `propose` and `accept` in turn.

    A failed call changes nothing. A tree that is never accepted is replaced by the next `propose`.
    Where a step is shared with other requests, `offer` and `take` stand in place of `propose`.

    Args:
        step_inputs: One for each step that the session can run, narrowest first.
        vocab_size: Number of columns of the logits, at most 2^24.
        sources: Names from `draft_sources`, perhaps with options behind them as `DraftMethod` gives
            them: "calibration:k=3". If empty, nothing is drafted.
        costs: What each step costs, in any unit: a number, or a pair: with an empty cache, and
            additionally per committed token; perhaps with two more: the experts that the step
            reads where its tokens are unrelated, and what each costs. Wider steps and drafts are
            only used where they pay. Without costs rows are free, and the sources fill as many as
            they can.
        commit: "canonical" (only the tree's first path is committed; exact even where bits
            depend on slots) or "compact" (all accepted rows are; exact where a row's bits
            depend on its path alone).
        end_token_ids: Tokens that end an answer.
        history: Finished requests to draft from; adds the sources "history" (its index),
            "recent" (what the index does not cover yet) and, above such, "fleet" (its index) and
            "corpus" (its documents).
        lookup_table: The table that "lookup-table" reads and updates; a new one by default.
        model_draft: What "draft-model" proposes: a draft model's tree.
        phrases: What "common-phrases" and "respelling" draw on.
        tree: "best-first", the default, blends all sources; "chain" is its likeliest path, for
            targets that verify no branches. Other trees ask for no costs. Of the first source
            alone, "static" is Token Recycling's, a `DynamicTree` DIAA's, "drafted" EdgeLLM's: all
            that it says. "appended" is CoordGen's: the likeliest path of the longest match, then
            all that the other sources add beside it, in their order, depth first. Options may
            follow it, which hold for "calibration": "appended:depth=8:nodes=60:by_ranks=no", with
            at most so many edges and nodes, and whether nodes come by the sum of the ranks on
            their paths instead.
        beside: A drafter of the same sources and vocabulary, with which this one, and all beside
            it, share "earlier-requests" and what is learned of the sources: for requests of one
            user that run at the same time. A request that runs is not drafted from until it has
            ended and another begins. No other thread may be within a call of it meanwhile.

    Raises:
        OptionError: A source, commit, tree or option of one is unknown, steps or costs are
            unusable, the vocabulary is above 2^24, the history, the look-up table or the draft
            model is of another one, or the drafter beside has other sources or another vocabulary.
    """

    def __new__(
        cls,
        step_inputs: Sequence[StepInputs],
        vocab_size: int,
        *,
        sources: Sequence[str] = ...,
        costs: Sequence[_StepCost] | None = None,
        commit: str = "canonical",
        end_token_ids: Sequence[int] = ...,
        history: SharedHistory | None = None,
        lookup_table: LookupTable | None = None,
        model_draft: ModelDraft | None = None,
        phrases: PhraseTable | None = None,
        tree: str | DynamicTree = ...,
        beside: Drafter | None = None,
    ) -> Drafter: ...
    def begin(
        self,
        prompt_ids: _Integers,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        prediction: _Integers | None = None,
        *,
        ignore_eos: bool = False,
        num_reused: int = 0,
        grammar: _Constraint | None = None,
        logprobs: int | None = None,
    ) -> None:
        """Start a request, and drop the one before; the learned trust in the sources stays.

        Args:
            prompt_ids: `(tokens,) u32`. The last one is the root of the first tree: the session
                has computed the others.
            max_new_tokens: Most new tokens.
            sampling: How the target's tokens are chosen from its logits; None takes the likeliest.
            prediction: `(tokens,) u32`, the answer as the caller expects it. It becomes one more
                source, "prediction".
            ignore_eos: End tokens do not end the answer.
            num_reused: Tokens, from the prompt's first, that the session has kept from earlier
                requests: `prefilled` goes on behind them. Of the rows that were told of them,
                sources keep those of the prompt before.
            grammar: What the target may say, at the start of its answer. Tokens that it forces are
                drafted first, and drafts that it refuses are left out.
            logprobs: How many alternatives, 0 to 20, `Accepted.logprobs` tells of each token; None
                tells nothing, and costs nothing.

        Raises:
            EmptyPromptError: The prompt has no token.
            TokenOutOfRangeError: A token, or one that has a bias, is not in the vocabulary.
            OptionError: `max_new_tokens` is 0, or `logprobs` is above 20.
            ShapeError: `num_reused` is more than the prompt has.
        """

    @property
    def reads_prefill(self) -> bool:
        """Whether a source needs the logits of the prompt's rows, see `prefilled`."""

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Tell the sources what the target expects after the prompt's next tokens.

        Args:
            logits: `(rows, vocab_size) f32`, row after row from the prompt's first token on;
                leading axes of length 1 are allowed. Read in place; only the top-k is kept.

        Raises:
            CallOrderError: No request is running.
            ShapeError: The logits have another dtype or shape, or more rows than the prompt.
            NonFiniteLogitsError: A row has no usable maximum; the message names its position.
        """

    def prefilled_top_k(
        self, token_ids: NDArray[np.uint32], probabilities: NDArray[np.float32]
    ) -> None:
        """`prefilled` of rows that `top_k` has reduced, as a record has them.

        Args:
            token_ids: `(rows, 8) u32`.
            probabilities: `(rows, 8) f32`.

        Raises:
            CallOrderError: No request is running.
            ShapeError: They have another dtype or shape, or more rows than the prompt.
            TokenOutOfRangeError: A token is not in the vocabulary.
        """

    def model_pays(self, past_len: int, *, a_token: float = 0.0, catching_up: float = 0.0) -> bool:
        """Whether a draft model is to run before the next step.

        Always where rows are free; else where it has lately been worth more than what is known now,
        and what it has to read first comes in again over the rest of the answer. Now and then, for
        at most a hundredth of what all steps cost, to see whether it is.

        Args:
            past_len: Committed tokens before the root.
            a_token: Cost of a drafted token as a share of the target's plain step, see
                `least_that_pays`.
            catching_up: Cost of reading what the model has not read, in the unit of the steps'
                costs, see `ModelDraft.reading_cost`.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
            OptionError: A cost is negative, infinite or NaN.
            UnsupportedGrammarError, GrammarError: Same as in `propose`.
        """

    def draft_room(self, past_len: int) -> tuple[int, int]:
        """Most tokens that a draft behind `past_len` committed ones has rows for, and its depth.

        Both behind the tokens that are certain; no deeper than what may still be given out.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
            GrammarError: The grammar cannot go on.
        """

    def model_ran(self, cost: float, *, catching_up: float = 0.0) -> None:
        """Report that the draft model has run for the next step.

        Args:
            cost: Of all its runs, in the unit of the steps' costs.
            catching_up: What reading the text had cost before them.

        Raises:
            CallOrderError: No request is running.
            OptionError: A cost is negative, infinite or NaN.
        """

    def propose(
        self, past_len: int, draft: tuple[_Integers, _Integers] | None = None
    ) -> StepInputs:
        """Draft a tree, choose the step that verifies it, and fill that step's buffers.

        Args:
            past_len: Committed tokens before the root.
            draft: Token ids and parents of the caller's own tree, `(nodes,) u32` each, node 0
                being the last token of the answer so far. Nodes that do not fit, or are deeper
                than the answer may still grow, are left out.

        Returns:
            The one of `step_inputs` to run.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
            InvalidDraftError: `draft` is malformed or has another root.
            TokenOutOfRangeError: `draft` holds an unknown token.
            GrammarError: The grammar cannot go on; or whatever else it raised.
        """

    def offer(self, past_len: int) -> tuple[NDArray[np.float32], int]:
        """Draft a tree as `propose` does, and leave open how many of its nodes are verified.

        `take` says so. A tree that waits for `accept` is withdrawn, and an offer that nothing is
        taken of is replaced by the next one.

        Args:
            past_len: Committed tokens before the root.

        Returns:
            Tokens that each node is expected to bring, `(nodes,) f32`, the root's 1.0 first, never
            increasing; and the fewest nodes that can be taken: 1, or all where the method has a
            shape of its own, whose worths are all 1.0.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits after `past_len` tokens.
            GrammarError: The grammar cannot go on; or whatever else it raised.
        """

    def take(self, num_nodes: int, cost: float | None = None) -> StepInputs:
        """Propose the worthiest nodes of the offered tree, and fill the buffers of a step.

        Args:
            num_nodes: How many. `accept` takes as many rows of logits, whatever rows the step has.
            cost: This request's part of what the shared step costs, in the unit of the drafter's
                costs; by default what the step would cost alone.

        Returns:
            The narrowest of `step_inputs` that holds them.

        Raises:
            CallOrderError: No request is running, or nothing was offered.
            OptionError: `num_nodes` is less or more than was offered, or the cost is negative,
                infinite or NaN.
        """

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Verify the proposed tree, and let the sources learn from the new tokens.

        Args:
            logits: `(rows, vocab_size) f32` of the step that `propose` chose, or of the nodes that
                `take` took; leading axes of length 1 are allowed. Read in place and within the
                call: the rows on the accepted path, and by a source that learns from all rows the
                others too, on several threads where that takes long. While a repetition penalty
                reads a row, the row is changed; afterwards it is as before. With a grammar the rows
                on the path stay masked. A read-only array is copied.

        Raises:
            CallOrderError: Nothing was proposed.
            ShapeError: The logits have another dtype or shape, or are not C-contiguous.
            NonFiniteLogitsError: A row on the path has no usable maximum; the message names it.
            GrammarError: The grammar leaves no token to say; or whatever else it raised.
        """

    def accept_recorded(
        self,
        answer: _Integers,
        rows: tuple[NDArray[np.uint32], NDArray[np.float32]] | None = None,
    ) -> Accepted:
        """`accept` for a target that says `answer`: a recorded answer is replayed without a model.

        Args:
            answer: `(tokens,) u32`, the record's tokens from the next one on; at least as many as
                the tree is deep, and one more.
            rows: What the target held likely after each node of the tree, where that is on the
                record, too: token ids `(nodes, 8) u32` and probabilities `(nodes, 8) f32` as of
                `top_k`, all 0 for a node whose row is unknown. By default the sources learn what is
                said after accepted nodes, and nothing after rejected ones.

        Raises:
            CallOrderError: Nothing was proposed.
            ShapeError: The record ends before the answer does, has another dtype, or not a row for
                each node.
            TokenOutOfRangeError: A token that the step reaches, or in a row, is not in the
                vocabulary.
        """

    def draft_on(self, wait_us: float) -> bool:
        """Use a pause of the target to draft further.

        Args:
            wait_us: Microseconds that it is expected to last.

        Returns:
            Whether there was something to do; always False without a draft model.
        """

    def end(self) -> None:
        """Give the request up, if it has not ended, and what it holds that others share.

        That is the files of a history's indexes, and the texts of its requests: a replaced index
        is closed, and what was cleared leaves memory. A request that comes to its end does so by
        itself. What was counted, and what was learned of the sources, stays.
        """

    @property
    def draft(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Token ids and parents of the last proposed tree, `(nodes,) u32` each, as copies."""

    @property
    def node_sources(self) -> list[str]:
        """Who put each node into the tree that `accept` is to verify next, `(nodes,)`.

        Names as in `Accepted.sources`; the root's is "target". Empty where no tree waits.
        """

    @property
    def num_carried(self) -> int:
        """Tokens accepted on a side branch, which the next tree starts with."""

    @property
    def finish_reason(self) -> Literal["stop", "length", "grammar"] | None:
        """Why the request ended; None while it runs."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the steps since `begin` with an `accept_len` of `n`."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft nodes since `begin`: `{name: {"proposed": n, "accepted": m}}`.

        Accepted are those that the target agreed with, side branches included. Tokens that are fed
        again count where they were first proposed. Under a grammar, "grammar" counts the tokens
        that it forced.
        """

    def memory_bytes(self) -> int:
        """Bytes held by the sources and the drafter's own buffers."""

@final
class Batcher:
    """Shares out the rows of a step among requests: `share` before the step, `took` after it.

    Knows nothing of the requests but numbers: the same calls give the same shares. A failed call
    changes nothing.

    Args:
        rows: Rows of steps of one request whose costs were measured, ascending.
        costs: What each of these steps costs, as in `Drafter`; experts are left out. Costs are
            linear between them, and beyond the last as between the last two. Without costs rows
            are free.
        most_rows: Rows that a step may have at most, of all requests.

    Raises:
        OptionError: `most_rows` is 0, or rows or costs are unusable.
        ShapeError: There are more or fewer costs than rows.
    """

    def __new__(
        cls, rows: Sequence[int], costs: Sequence[_StepCost] | None, most_rows: int
    ) -> Batcher: ...
    def share(
        self,
        decoding: Sequence[tuple[NDArray[np.float32], int, int]],
        reading: Sequence[tuple[int, int]],
    ) -> tuple[list[int], list[int], list[float]]:
        """How many nodes and tokens of each request are in the next step.

        Every request that decodes gets its fewest nodes; further rows go to the worthiest
        candidates, as many as pay. Where somebody decodes, prompts are read once that costs no more
        than the steps since the last time, some dozens of tokens at a time, and up to half of the
        rows are kept for them; else with all rows, or, of several prompts, with as many as end the
        shortest. A quarter of what is read is the oldest prompt's, the rest goes to the prompts
        with the fewest tokens left.

        Args:
            decoding: For each request that decodes: the worths and the fewest nodes that
                `Drafter.offer` returned, and its committed tokens.
            reading: For each prompt that is read, the oldest first: the tokens that are left, and
                those that are read.

        Returns:
            Nodes of each request that decodes, for `Drafter.take`; tokens that are read of each
            prompt; and what each request that decodes pays, for `Drafter.take` too: together what
            the step would cost if nothing were read in it, 0.0 each where rows are free.

        Raises:
            ShapeError: Worths have another dtype or shape.
            OptionError: The fewest nodes are 0, or more than there are worths.
            InvalidDraftError: The fewest nodes of all are more than the step has rows.
        """

    def took(self, tokens: int, cost: float) -> None:
        """Learn what a step has brought: further rows have to bring as much for their cost.

        Args:
            tokens: Tokens that all decoding requests gained.
            cost: What they paid: the sum of the costs that `share` returned.

        Raises:
            OptionError: The cost is negative, infinite or NaN.
        """

def plan(
    blocks: Sequence[BlockCost],
    prefill_rows: int,
    decode_rows: int,
    num_tokens: int,
    *,
    strategy: str = "auto",
    start: str | Sequence[str] = "prefill",
    memory_budget: int | None = None,
) -> Plan:
    """When to load which graph of which block during a prefill.

    Args:
        blocks: What each block costs.
        prefill_rows: Tokens per chunk.
        decode_rows: Tokens of a run of the decode graph; a chunk takes as many as its tokens fill.
        num_tokens: Tokens of the prompt that are computed.
        strategy: One of `strategies()`.
        start: What is in memory: "prefill", "decode", "both" or "nothing"; one word for all blocks,
            or one for each.
        memory_budget: Most bytes that the graphs may take at once; None for no limit.

    Raises:
        OptionError: A name is unknown, a number is out of range, there is no block or token, or
            there are more than 2,048 blocks or 131,072 runs of a block.
        ShapeError: `start` has another length than `blocks`.
        MemoryBudgetError: No plan fits into the budget; the message says how much is needed.
    """

def prompt_rows(
    remaining: int, decode_rows: Sequence[int], prefill_rows: int | None, *, every_row_costs: bool
) -> int | None:
    """The rows of the decode graph that computes the next tokens of a prompt.

    Args:
        remaining: Tokens of the prompt that are left.
        decode_rows: Rows of the decode graphs, narrowest first.
        prefill_rows: Rows of the prefill graph; None where it is not to be used.
        every_row_costs: Whether a run takes longer with every row, as on a CPU.

    Returns:
        None for the prefill graph.

    Raises:
        OptionError: There is no decode graph.
    """

def kernel_processor() -> str:
    """What products are computed with here.

    "AVX-512 VNNI", "AVX-VNNI" or "AVX2"; on arm64 "NEON I8MM", "NEON DotProd" or "NEON"; elsewhere
    "portable".
    """

def weight_panels(weight_type: str, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The weights of a matrix in the order in which products read them.

    Args:
        weight_type: One of `weight_types`.
        rows: Blocks of weights as a GGUF file has them, `(outputs, blocks, bytes of a block)`.

    Returns:
        `(bytes,)`: panels of sixteen outputs, the last filled up with zeros.

    Raises:
        OptionError: The type is unknown.
        ShapeError: The shape is not that of the type.
    """

def weight_rows(
    weight_type: str,
    panels: NDArray[np.uint8],
    outputs: int,
    columns: int,
    numbers: NDArray[np.uint32],
) -> NDArray[np.float32]:
    """Rows of a matrix whose weights stand in panels.

    Args:
        weight_type: One of `weight_types`.
        panels: What `weight_panels` gave for all rows, `(bytes,)`.
        outputs: Rows of the matrix.
        columns: Weights of a row.
        numbers: Which rows, `(n,)`.

    Returns:
        `(n, columns)`.

    Raises:
        OptionError: The type is unknown, or a row is not there.
        ShapeError: The panels are of a matrix of another size.
    """

def weight_types() -> dict[str, tuple[int, int]]:
    """The types of weights that products read, by their names in GGUF files.

    Returns:
        The weights and the bytes of a block of each.
    """

def move_rows(caches: Sequence[NDArray[np.uint8]], rows: _Integers, past_len: int) -> None:
    """Move accepted rows of a step together, in place, to the slots after the committed tokens.

    Row `r` stands in slot `past_len + r`, and `rows[i]` goes to slot `past_len + i`. Caches are not
    looked at where all rows are in their slots.

    Args:
        caches: Keys and values of all layers, each `(1, kv_heads, slots, row_bytes) u8`, all of one
            shape and apart from each other; changed in place.
        rows: `(tokens,) u32`, ascending.
        past_len: Number of tokens that were committed before.

    Raises:
        OptionError: `past_len` is negative.
        ShapeError: An array has another dtype or shape, is not C-contiguous, read-only or given
            twice; rows do not ascend, or a row has no slot. Nothing was moved.
    """

def copy_rows(
    caches: Sequence[NDArray[np.uint8]], sources: Sequence[NDArray[np.uint8]], num_rows: int
) -> None:
    """Copy the first rows of each source over those of its cache, without the interpreter.

    No thread that copies outlives the call, and no signal's handler runs within it.

    Args:
        caches: Keys and values of all layers, each `(1, kv_heads, slots, row_bytes) u8`, apart from
            each other; changed in place.
        sources: As many, of the same shapes but for their slots; in these only the bytes of a row
            must stand together.
        num_rows: Rows to copy of each head.

    Raises:
        OptionError: `num_rows` is negative.
        ShapeError: An array has another dtype or shape, or too few rows; a cache is strided,
            read-only or given twice. Nothing was copied.
    """

def name_bus_errors() -> None:
    """End the process with exit code 2 and a line on stderr when a mapped file was cut short.

    For programs, not for libraries: it is the process's handler of SIGBUS. Does nothing elsewhere
    than on Unix.
    """

def starts() -> list[str]:
    """The names of what may be in memory of a block before a prompt; the first is the default."""

def strategies() -> dict[str, str]:
    """A one-line description of each strategy, by name; in the order used in tables."""

def keep_allowed(logits: NDArray[np.float32], words: NDArray[np.uint32]) -> None:
    """Make the tokens impossible that a mask does not allow: their scores become minus infinity.

    Args:
        logits: One row, `(1, vocab_size) f32`; changed in place.
        words: `(vocab_size / 32,) u32`, rounded up: bit `i % 32` of word `i / 32` is set where
            token `i` is allowed.

    Raises:
        ShapeError: An array has another dtype or shape.
        GrammarError: No token is allowed.
        NonFiniteLogitsError: A score that is not allowed is NaN or infinite.
    """

def token_logprob(
    logits: NDArray[np.float32], token_id: int, num_alternatives: int
) -> tuple[float, list[tuple[int, float]]]:
    """How likely a target held a token, and the likeliest tokens in its place.

    Args:
        logits: The row that the token was chosen from, `(vocab_size,) f32`, as the target gave it.
        token_id: The token.
        num_alternatives: How many others are told, 0 to 20; the token may be among them.

    Returns:
        The natural logarithm of the token's probability in the softmax of the row; and ids with
        theirs, the likeliest first, of equals the lowest id first. The same row gives the same
        bits.

    Raises:
        OptionError: `num_alternatives` is above 20.
        ShapeError: The logits have another dtype, or are not C-contiguous.
        TokenOutOfRangeError: The row has no such token.
        NonFiniteLogitsError: The row has no usable maximum.
    """

def top_k(logits: NDArray[np.float32]) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Token ids and probabilities, `(rows, 8)` each, of the most likely tokens of each row.

    Among equal scores the lowest id comes first. In rows of more than 32,768 scores the softmax
    denominator is estimated. Entries that a row is too short for have probability 0.

    Args:
        logits: `(rows, vocab_size) f32`; leading axes of length 1 are allowed. Read in place.

    Raises:
        ShapeError: The logits have another dtype, no column, or are not C-contiguous.
        NonFiniteLogitsError: A row has no usable maximum; the message names it.
    """

@final
class Sampling:
    """How the target's tokens are chosen.

    Biases come first, then the repetition penalty, the other penalties, temperature, `top_k`,
    `top_p` and `min_p`. Each draw depends on the logits, the seed and the number of the token in
    the answer alone, and penalties on the text before it, so an answer is the same token for token
    with and without drafts. A token that `top_p` forbids is drawn again from the likelier ones.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only the likeliest so many are drawn from; 0 for all.
        top_p: Only the fewest are drawn from whose probabilities reach this; 1 for all.
        min_p: Of those, only the ones at least so many times as likely as the likeliest; 0 for all.
        repetition_penalty: The logits of tokens that prompt or answer hold are divided by this if
            positive, and multiplied by it if not; 0.01 to 100, and 1 changes nothing. (CTRL, Keskar
            et al. 2019, section 4.1.)
        presence_penalty: Subtracted from the logits of tokens that the answer holds; the prompt
            does not count. -2 to 2, and 0 changes nothing.
        frequency_penalty: Subtracted from them for each time that the answer holds the token; -2 to
            2, and 0 changes nothing.
        logit_bias: What is added to the logits of tokens, by id: -100 to 100, or minus infinity,
            with which a token is never said. None for no biases.
        seed: Another seed, another answer; below 2**64.

    Raises:
        OptionError: An option is out of range, or of a wrong type.
    """

    def __new__(
        cls,
        temperature: float = 1.0,
        *,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int = 0,
    ) -> Sampling: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    @property
    def penalises(self) -> bool:
        """Whether the text before a token matters: there is a penalty."""

    @property
    def changes_scores(self) -> bool:
        """Whether tokens are chosen from other scores than the logits: by penalties or biases."""

    def check_tokens(self, vocab_size: int) -> None:
        """Check that biases are on tokens of a vocabulary of `vocab_size`.

        Raises:
            TokenOutOfRangeError: One is not.
        """

    def draw(
        self,
        logits: NDArray[np.float32],
        index: int,
        seen: SeenTokens | None = None,
    ) -> int:
        """The answer's token number `index`, chosen from a row of logits, `(vocab_size,) f32`.

        Args:
            logits: The row; nothing of it is changed.
            index: Counted from 0.
            seen: The tokens of prompt and answer so far, for penalties; None penalises nothing.

        Raises:
            ShapeError: The logits have another dtype or another length than the vocabulary of
                `seen`, or are not C-contiguous.
            TokenOutOfRangeError: A bias is on a token that the row does not have.
            OptionError: A bias of minus infinity is on every token that the row allows.
            NonFiniteLogitsError: The row has no usable maximum.
        """

@final
class SeenTokens:
    """The tokens of a prompt and of an answer that grows, for `Sampling.draw` with a penalty.

    Kept beside the text, it is told each token once: a draw then costs what the distinct tokens do,
    however long the text is. A failed call changes nothing.

    Args:
        vocab_size: Number of ids in the vocabulary, 1 to 2^24.

    Raises:
        OptionError: `vocab_size` is not 1 to 2^24.
    """

    def __new__(cls, vocab_size: int) -> SeenTokens: ...
    def restart(self, prompt_ids: _Integers) -> None:
        """Forget all tokens, for an answer to the prompt `(tokens,) u32`.

        Raises:
            ShapeError, TokenOutOfRangeError: Same as in `extend`.
        """

    def extend(self, tokens: _Integers) -> None:
        """Add the next tokens of the answer, `(tokens,) u32`.

        Raises:
            ShapeError: They are not integers, or have more than one dimension.
            TokenOutOfRangeError: One is not in the vocabulary.
        """

    def __len__(self) -> int:
        """Number of distinct tokens."""

@final
class HostDrafter:
    """Drafts for an engine that runs the model itself: `begin`, then propose and `observe` in turn.

    Needs no logits: what came true of a draft is found in what the engine reports. Costs 0.2 us per
    token of prompt to begin, so an engine with many requests has a drafter for each; they share a
    history. A failed call changes nothing. Calls of several threads wait for each other.

    Token ids are arrays of any integer type, or sequences.

    Args:
        vocab_size: Number of ids in the engine's vocabulary, 1 to 2^24.
        rows: Numbers of tokens that a run of the engine may take, ascending: the last committed
            token and the draft tokens. 1 to 17 by default.
        costs: What a run of each costs, as in `Drafter`; drafts are only as long as pays. Without
            costs rows are free.
        method: A method from `draft_methods`. Its sources that read logits are left out, or it is
            refused if it is published. The chains of "sam" and "prompt-lookup" are weighed as
            "best-first" trees are.
        commit: How the engine keeps what it accepts of a tree: "compact", a path on any branch, or
            "canonical", tokens on the first path (nodes 0, 1, 2, ..) alone.
        end_token_ids: Tokens that end an answer: nothing is drafted behind them.
        history: Finished requests to draft from, as in `Drafter`.

    Raises:
        OptionError: The method or commit is unknown; the method has nothing to draft from
            here, or a tree of its own; rows or costs are unusable; the vocabulary is empty or above
            2^24; the history is of another; or an option is of a wrong type.
        TokenOutOfRangeError: An end token is negative, or 2^32 or more.
    """

    def __new__(
        cls,
        vocab_size: int,
        *,
        rows: _Integers | None = ...,
        costs: Sequence[_StepCost] | None = None,
        method: str = "auto",
        commit: str = "compact",
        end_token_ids: _Integers | None = ...,
        history: SharedHistory | None = None,
    ) -> HostDrafter: ...
    def begin(self, prompt_ids: _Integers, prediction: _Integers | None = None) -> None:
        """Start a request, and drop the one before; the learned trust in the sources stays.

        Args:
            prompt_ids: `(tokens,) u32`.
            prediction: `(tokens,) u32`, the answer as the caller expects it.

        Raises:
            EmptyPromptError: The prompt has no token.
            TokenOutOfRangeError: A token is not in the vocabulary.
            ShapeError: They are not integers, or have more than one dimension.
        """

    def propose_chain(self, max_tokens: int = ...) -> NDArray[np.uint32]:
        """Draft the likeliest continuation.

        Args:
            max_tokens: Most draft tokens; those that fit into `rows` by default.

        Returns:
            `(tokens,) u32`; none where nothing is known or nothing pays.

        Raises:
            CallOrderError: No request is running.
            OptionError: `max_tokens` is negative, or no integer.
        """

    def propose_tree(self, max_tokens: int = ...) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Draft a tree.

        Args:
            max_tokens: Most draft tokens; those that fit into `rows` by default.

        Returns:
            Token ids and parents, `(nodes,) u32` each; node 0 is the last committed token and its
            own parent, and every other parent comes before its children.

        Raises:
            CallOrderError: No request is running.
            OptionError: `max_tokens` is negative, or no integer.
        """

    def observe(self, token_ids: _Integers) -> None:
        """Learn what the engine has committed since the last call.

        Args:
            token_ids: `(tokens,) u32`: the draft tokens that it accepted and the one that it says
                next, or any others if it was not asked about the draft.

        Raises:
            CallOrderError: No request is running.
            TokenOutOfRangeError: A token is not in the vocabulary.
            ShapeError: They are not integers, or have more than one dimension.
        """

    def rewind(self, num_tokens: int) -> None:
        """Forget all but the first tokens of the request, and what was learned from the others.

        Proposals are then those of a drafter that has never seen them. Costs as much as observing
        all that stays.

        Args:
            num_tokens: How many stay, prompt included; a prompt that is cut is a shorter prompt.

        Raises:
            EmptyPromptError: It is 0.
            ShapeError: The request has fewer tokens.
            CallOrderError: No request is running.
            OptionError: `num_tokens` is negative, or no integer.
        """

    def follow(self, token_ids: _Integers) -> bool:
        """Catch up with an engine that tells its whole text each time.

        Observes what is new; rewinds where the text differs behind the prompt; begins a request
        where it differs in the prompt.

        Args:
            token_ids: `(tokens,) u32`, prompt and answer so far.

        Returns:
            Whether a request began.

        Raises:
            EmptyPromptError: There is no token.
            TokenOutOfRangeError: A token is not in the vocabulary.
            ShapeError: They are not integers, or have more than one dimension.
        """

    def end(self) -> None:
        """Give the request up, if there is one, and what it holds that others share.

        That is the files of a history's indexes, and the texts of its requests. Call it when a
        request has ended and the next one may be long in coming. What was learned of the sources
        stays.
        """

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        """Prompt and committed tokens of the request, `(tokens,) u32`, as a copy."""

    @property
    def prompt_len(self) -> int:
        """How many of them are the prompt."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the proposals of the request of which `n` draft tokens came true."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft tokens proposed and accepted in the request, by source."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap, shared history included."""

@final
class SharedHistory:
    """Finished requests of one namespace, shared by the drafters of a process.

    Without an index it is a history in memory. A request drafts from the index that was there when
    it began, and from what was remembered before any request began.

    Args:
        vocab_size: Number of ids in the vocabulary.
        fleet: Whether it stands above a fleet's index, which may be opened later, and again.
        corpus: Whether it stands above a corpus, which may be opened later, and again.

    Raises:
        OptionError: `vocab_size` is not 1 to 2^32 - 1, or an option is of a wrong type.
    """

    TERMINATOR: ClassVar[int]
    """Closes each document of an index; no vocabulary holds it."""

    def __new__(
        cls, vocab_size: int, *, fleet: bool = False, corpus: bool = False
    ) -> SharedHistory: ...
    def remember(self, token_ids: _Integers, number: int | None = None) -> None:
        """Append a finished request.

        Args:
            token_ids: `(tokens,)` integers, prompt and answer together.
            number: Under which a database keeps it. Numbers rise; one that the index covers
                already is left out.

        Raises:
            ShapeError: They are not integers, or have more than one dimension.
            TokenOutOfRangeError: A token is not in the vocabulary.
        """

    def open_index(self, path: str | PathLike[str], key: bytes) -> None:
        """Open an index in place of the one before, and forget the documents that it covers.

        Costs a thousandth of the file; damage beyond is found when it is read, see `is_damaged`.

        Args:
            path: The file.
            key: The 32 bytes that it was written with.

        Raises:
            HistoryIndexError: It is absent, damaged, or of another version, key or vocabulary.
            OptionError: `key` has not 32 bytes.
        """

    def open_fleet_index(self, path: str | PathLike[str], key: bytes) -> None:
        """Open a fleet's index in place of the one before.

        A request that runs drafts on from the one before. Costs a thousandth of the file.

        Args:
            path: The file.
            key: The 32 bytes that it was written with.

        Raises:
            HistoryIndexError: It is absent, damaged, or of another version, key or vocabulary.
            OptionError: `key` has not 32 bytes.
        """

    def open_corpus(self, paths: Sequence[str | PathLike[str]], key: bytes) -> None:
        """Open the segments of a corpus in place of those before; what is open stays open.

        A request that runs drafts on from those before. A path always stands for the same file.
        Costs a thousandth of each file that is new.

        Args:
            paths: The files.
            key: The 32 bytes that they were written with.

        Raises:
            HistoryIndexError: A segment is absent, damaged, or of another version, key or
                vocabulary, or all have 2^32 tokens; then everything stays as it is.
            OptionError: `key` has not 32 bytes.
        """

    @staticmethod
    def is_whole_index(path: str | PathLike[str], key: bytes) -> bool:
        """Whether the file at `path` is an index with that key, and no part of it is damaged.

        Reads the whole file, without the interpreter's lock.

        Raises:
            OptionError: `key` has not 32 bytes.
        """

    @staticmethod
    def write_gathered_index(
        path: str | PathLike[str],
        files: Sequence[str | PathLike[str]],
        places: Sequence[tuple[int, int, int]],
        vocab_size: int,
        key: bytes,
        *,
        private: bool = False,
    ) -> int:
        """Sort documents that lie in files, and replace the index at `path` by theirs.

        Linear time, without the interpreter's lock; 16 bytes of memory per token.

        Args:
            path: The file.
            files: Where the documents lie, as `u32` in little-endian order.
            places: Of each document the index of its file, its first byte there, and its tokens.
            vocab_size: Number of ids in the vocabulary.
            key: 32 bytes that opening must name again.
            private: Whether only its owner may read the file, else whom the process's mask lets.

        Returns:
            The byte of the file at which the documents begin, in their order, a terminator of 4
            bytes behind each.

        Raises:
            HistoryIndexError: A file cannot be read or written; the one before is still there.
            TokenOutOfRangeError: A token is not in the vocabulary.
            OptionError: There are 2^31 tokens or more, a place names no file, or `key` has not 32
                bytes.
        """

    @staticmethod
    def write_index(
        path: str | PathLike[str],
        documents: _Integers,
        vocab_size: int,
        covers: int,
        key: bytes,
    ) -> int:
        """Sort documents, and replace the index at `path` by theirs.

        Linear time, without the interpreter's lock; 16 bytes of memory per token.

        Args:
            path: The file.
            documents: `(tokens,) u32`, each document closed by `TERMINATOR`.
            vocab_size: Number of ids in the vocabulary.
            covers: Number of the last document.
            key: 32 bytes that opening must name again.

        Returns:
            The byte of the file at which the documents begin.

        Raises:
            HistoryIndexError: The file cannot be written; the one before is still there.
            TokenOutOfRangeError: A token is not in the vocabulary.
            OptionError: The last document is open, or `key` has not 32 bytes.
        """

    def check_index(self) -> bool:
        """Check the whole index, without the interpreter's lock; False where it is damaged.

        Brings the file into memory: where it runs in a thread of its own, requests need not wait
        for parts of the index that are read for the first time.
        """

    def warm_shared(self) -> bool:
        """Read the next 16 MiB of the fleet's index and the corpus, without the interpreter's lock.

        Each part is read once. Requests then need not wait for the disk, and damage is found.

        Returns:
            Whether there is more.
        """

    @property
    def is_shared_cold(self) -> bool:
        """Whether `warm_shared` has something to read."""

    def clear(self) -> None:
        """Forget the index and all documents; a fleet's index and a corpus stay."""

    @property
    def vocab_size(self) -> int:
        """Number of ids in the vocabulary."""

    @property
    def is_damaged(self) -> bool:
        """Whether a part of the index was read that is damaged; it drafts nothing any more."""

    @property
    def num_indexed_tokens(self) -> int:
        """Tokens of the index, one more for each document."""

    @property
    def is_fleet_damaged(self) -> bool:
        """Whether a damaged part of the fleet's index was read; it drafts nothing any more."""

    @property
    def num_fleet_tokens(self) -> int:
        """Tokens of the fleet's index, one more for each document; 0 without one."""

    @property
    def is_corpus_damaged(self) -> bool:
        """Whether a damaged part of the corpus was read; that segment drafts nothing any more."""

    @property
    def num_corpus_tokens(self) -> int:
        """Tokens of the corpus, one more for each piece of a document; 0 without one."""

    @property
    def num_recent_tokens(self) -> int:
        """Tokens of the documents that the index does not cover."""

    @property
    def covers(self) -> int:
        """Number of the last document that the index covers; 0 without an index."""

class _BlockStore(Protocol):
    def load(self, block: int, graph: _GraphName, /) -> object: ...
    def release(self, block: int, graph: _GraphName, /) -> object: ...

@final
class BlockCost:
    """What one block costs under its two graphs. Times in whole microseconds.

    Args:
        prefill_load_us: From the call to load its prefill graph until it can run.
        prefill_compute_us: One run of it, of all `prefill_rows` tokens.
        prefill_bytes: What it holds while loaded.
        decode_load_us: As above, of its decode graph.
        decode_compute_us: One run of it, of all `decode_rows` tokens.
        decode_bytes: What it holds while loaded.

    Raises:
        OptionError: A figure is negative, or too large.
    """

    def __new__(
        cls,
        *,
        prefill_load_us: int,
        prefill_compute_us: int,
        prefill_bytes: int,
        decode_load_us: int,
        decode_compute_us: int,
        decode_bytes: int,
    ) -> BlockCost: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    @staticmethod
    def guessed(
        num_bytes: int, prefill_rows: int, decode_rows: int, *, expert_bytes: int = 0
    ) -> BlockCost:
        """An estimate of what a block costs, if it was not measured.

        Within a factor of three of what a CPU of two cores took. Only plans hang on it.

        Args:
            num_bytes: The size of its weights.
            prefill_rows: Tokens per chunk.
            decode_rows: Tokens of a run of its decode graph.
            expert_bytes: Of experts, what a row reads; they are not loaded with the block.

        Raises:
            OptionError: A figure is negative.
        """

    def with_load_delay(self, delay_us: int) -> BlockCost:
        """The same where each load takes so many microseconds longer.

        Raises:
            OptionError: The delay is negative.
        """

    @property
    def prefill_load_us(self) -> int: ...
    @property
    def prefill_compute_us(self) -> int: ...
    @property
    def prefill_bytes(self) -> int: ...
    @property
    def decode_load_us(self) -> int: ...
    @property
    def decode_compute_us(self) -> int: ...
    @property
    def decode_bytes(self) -> int: ...

@final
class ExpertStore:
    """Experts in mapped files, of which as many are in memory as a budget allows.

    With a budget, threads of its own read what a layer chooses before the layer reads it, and drop
    what is expected to be used last; between, they read ahead what the next layers will probably
    choose. The operator `Experts` finds the store by the memory that it reads. Without a budget the
    system reads what is touched. What is computed depends on neither. Not on Windows.

    In a fork of its process it is one without a budget.

    Args:
        files: Their paths.
        regions: Of each layer, in the order in which the layers run: index of the file, offset of
            its first expert, number of experts, bytes from one to the next. Offsets and those bytes
            are multiples of 4,096.
        budget: Most bytes of experts in memory.
        num_threads: Threads that read, each a piece at a time.
        keep_cached: Whether the system may keep copies of what is dropped, beyond the budget, until
            it wants the memory. Otherwise what comes back is read from the disk.

    Raises:
        BlockLoadError: A file cannot be mapped, or the system gives no thread.
        MemoryBudgetError: The budget does not hold all experts of the largest layer.
        OptionError: A region is not whole pages inside its file, or a number is out of range.
    """

    def __new__(
        cls,
        files: Sequence[str | Path],
        regions: Sequence[tuple[int, int, int, int]],
        *,
        budget: int | None = None,
        num_threads: int = 4,
        keep_cached: bool = True,
    ) -> ExpertStore: ...
    def array(self, layer: int) -> NDArray[np.uint8]:
        """All experts of a layer, `(bytes,) u8`: the mapping's own memory, read-only.

        Raises:
            OptionError: There is no such layer.
        """

    def bring(self, layer: int, chosen: Sequence[int], per_row: int) -> None:
        """Do what the operator does: bring what rows have chosen, and wait for it.

        Args:
            layer: Its index.
            chosen: The experts of each row, `per_row` of them each.
            per_row: How many a row chooses.

        Raises:
            BlockLoadError: A file became shorter, or its disk fails; the message names the file.
            OptionError: There is no such layer or expert.
        """

    @property
    def num_read(self) -> tuple[int, int]:
        """Experts that were read so far for the first rows of layers' runs, and for all rows.

        Each once in a run; with a budget only those that were not in memory.
        """

    def take_failure(self) -> str | None:
        """Why what a layer has chosen could not be read, if it failed since this was last asked."""

    def report(self) -> dict[str, int]:
        """What it has done so far.

        `asked`: experts that layers have chosen, once a turn; `misses`: of these, those that were
        not in memory; `read_bytes`; `waited_us`: microseconds in which layers waited; `ahead`:
        experts that were begun to be read ahead, `ahead_used` and `ahead_wasted`: of these, those
        that were chosen, or dropped before, `wasted_bytes`: what was read of the latter;
        `held_bytes`: of experts in memory now.
        """

def memory_shares(
    memory_budget: int, graph_bytes: Sequence[int], layers: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """What a memory budget leaves to the blocks' graphs, and to experts.

    Graphs get what one graph of each block takes, then experts what all of them take, then graphs
    the rest: a plan may hold both graphs of a block.

    Args:
        memory_budget: Bytes for both.
        graph_bytes: Bytes of each block's graph, without experts.
        layers: Of each layer with experts, how many and the bytes of each.

    Raises:
        MemoryBudgetError: One block does not fit beside all experts of the largest layer; the
            message says how much is needed.
        OptionError: The budget is negative, or the experts are more than 2^24, or of 2^64 bytes.
    """

@final
class SimulatedClock:
    """A clock that stands until it is advanced, for a `Switcher` that simulates its loads.

    Several switchers may share one, as those of a target and its draft model do.
    """

    def __new__(cls) -> SimulatedClock: ...
    @property
    def now_us(self) -> int:
        """Microseconds since it was made."""

    def seconds(self) -> float:
        """`now_us` in seconds, in the place of `time.perf_counter`."""

    def advance(self, us: int) -> None:
        """Let `us` microseconds pass, as a run that takes them does.

        Raises:
            OptionError: It is negative.
        """

@final
class Switcher:
    """Decides when graphs of blocks are loaded and released, and does it alongside compute.

    A prompt goes like this: `begin`; for each chunk `begin_pass`, then for each block in order
    `enter`, its run, `leave`; at last `finish`. A decode step is a pass of its own where blocks are
    streamed; elsewhere each block runs under its `step_graph`. After an exception in between,
    `cancel`: what is in memory stays usable.

    A plan's order holds, its clock need not. A run whose planned graph is not there goes on under
    the block's other graph; it waits only while the block has none. When a load fails, the graph
    that was released for it is loaded again, and all else takes place. Whatever waits gives signal
    handlers their turn; they may raise, and then nothing was entered.

    In a fork of its process every call raises ForkedError, but for `cancel` and `close`, which do
    nothing there.

    Args:
        store: Its `load(block, graph)` and `release(block, graph)` are called on a thread of its
            own, one at a time; `graph` is "prefill" or "decode". What `load` raises is the
            `__cause__` of the error; what `release` raises goes to `sys.unraisablehook`. In
            either, calls that begin or wait for something raise CallOrderError.
        costs: What each block costs, measured or guessed: an unfit figure makes plans worse, never
            results, and is mended prompt by prompt. None of their graphs is loaded yet.
        prefill_rows: Tokens per chunk.
        decode_rows: Tokens of a run of the decode graphs.
        is_shared: Whether a block's second graph costs nothing once the first is loaded.
        strategy: Same as in `settle`.
        memory_budget: Same as in `settle`.
        clock: Simulates: loads take what `costs` say on this clock. Whoever waits for a load
            advances it; whoever runs a block advances it by what the run takes. The store is
            called on the thread that calls the switcher, which must be one.

    Raises:
        OptionError: No block, a figure is out of range, or the strategy is unknown.
        BlockLoadError: The system gives no thread.
    """

    def __new__(
        cls,
        store: _BlockStore,
        costs: Sequence[BlockCost],
        prefill_rows: int,
        decode_rows: int,
        *,
        is_shared: bool = False,
        strategy: str = "auto",
        memory_budget: int | None = None,
        clock: SimulatedClock | None = None,
    ) -> Switcher: ...
    def settle(self, strategy: str = "auto", memory_budget: int | None = None) -> None:
        """How graphs are switched in prompts to come.

        Args:
            strategy: One of `strategies()`.
            memory_budget: Most bytes that the graphs may hold; None for no limit. With "auto",
                blocks that do not fit are loaded again in every pass.

        Raises:
            OptionError: The strategy is unknown, or the budget is negative.
        """

    @property
    def costs(self) -> list[BlockCost]:
        """What the blocks cost, as far as is known."""

    @property
    def memory_budget(self) -> int | None:
        """Most bytes that the graphs may hold."""

    @property
    def keeps_both(self) -> bool:
        """Whether both graphs of all blocks simply stay in memory.

        They cost no more than one, there is no limit, and nothing else was asked for.
        """

    @property
    def is_streaming(self) -> bool:
        """Whether blocks come and go in every pass, because not all of them fit."""

    def resident(self) -> list[tuple[bool, bool]]:
        """Of each block, whether its prefill and whether its decode graph can run."""

    def ensure(self, *graphs: str) -> None:
        """Load what of these graphs is not in memory, block after block, and wait for it.

        Raises:
            OptionError: An unknown graph.
            BlockLoadError: A block cannot be loaded; the others are.
            CallOrderError: A block is running, or runs are left.
        """

    def only(self, graph: str) -> None:
        """Have this graph of all blocks in memory, and no other.

        Raises:
            OptionError, BlockLoadError, CallOrderError: Same as in `ensure`.
        """

    def step_graph(self, block: int) -> _GraphName:
        """A graph that the block can run a decode step under: its own if it is there, or can be.

        Raises:
            OptionError: The block does not exist.
            BlockLoadError: It has no graph, and the decode graph cannot be loaded.
            CallOrderError: A block is running, or runs are left.
        """

    def begin(self, num_tokens: int) -> None:
        """Begin a prompt of which so many tokens are computed.

        Plans its loads from what is in memory, or has blocks streamed where nothing fits at once.

        Raises:
            OptionError: No token, or too many.
            MemoryBudgetError: The budget is too small; the message says how much is needed.
            CallOrderError: A block is running, or runs are left.
            BlockLoadError: It is closed.
        """

    def stand_by(self) -> None:
        """Make ready for an answer where no token is to be computed, as a prompt would leave it.

        Raises:
            MemoryBudgetError: The budget is too small; the message says how much is needed.
            BlockLoadError: A block cannot be loaded.
            CallOrderError: A block is running, or runs are left.
        """

    def begin_pass(self) -> None:
        """Begin a run of all blocks; where blocks are streamed, its loads begin here.

        Raises:
            BlockLoadError: A block that streaming starts with cannot be loaded.
            CallOrderError: A block is running, or runs are left.
        """

    def enter(self, block: int) -> _GraphName:
        """Wait until `block` can run; the graph to run it under, which stays until `leave`.

        Raises:
            CallOrderError: Another block is running, or is the next to run.
            OptionError: The block does not exist.
            BlockLoadError: The block has no graph, and none will come; or loading was cancelled.
        """

    def wait_us(self, block: int) -> int:
        """Microseconds until a block has a graph, as far as can be told.

        For a load that takes longer than planned, as long again as it is late.
        """

    def try_enter(self, block: int) -> _GraphName | None:
        """`enter` without waiting: None, and nothing entered, where it would wait.

        Raises:
            CallOrderError, OptionError, BlockLoadError: Same as in `enter`.
        """

    def leave(self) -> None:
        """The run is over. One that was given up by `cancel` may be left, too.

        Raises:
            CallOrderError: Nothing was entered.
        """

    def cancel(self) -> None:
        """Give a prompt or pass up: loads that have not begun are left out.

        The run that this thread is within is given up, too; one on another thread goes on.
        """

    def finish(self) -> SwitchReport:
        """Wait for the loads that a prompt has left, learn from what they took, and report.

        Raises:
            CallOrderError: A block is running, or runs are left.
        """

    def close(self) -> None:
        """Cancel, and end the thread when the action under way is over; what is loaded stays."""

@final
class SwitchReport:
    """How the loads of one prompt went.

    Attributes:
        strategy: The strategy of the plan, of "auto" what it chose; or "streaming".
        planned: The plan; None where blocks are streamed.
        exposed_us: Microseconds that compute waited for loads, those after the prefill included.
        load_us: Microseconds that loads took, failed ones included.
        overlap_us: Microseconds of these during which a block was running.
        peak_bytes: Most bytes that graphs held at once, by the blocks' costs.
        num_under_other_graph: Runs under another graph than planned.
        failures: What each load that failed raised; the request went on without it.
    """

    @property
    def strategy(self) -> str: ...
    @property
    def planned(self) -> Plan | None: ...
    @property
    def exposed_us(self) -> int: ...
    @property
    def load_us(self) -> int: ...
    @property
    def overlap_us(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def num_under_other_graph(self) -> int: ...
    @property
    def failures(self) -> list[BlockLoadError]: ...
    def to_json(self) -> dict[str, Any]:
        """The report as JSON types; of the plan its figures, without runs and actions."""

@final
class Run:
    """One block computes one chunk. Times are microseconds from the start of the prefill.

    Attributes:
        block: Its number, from 0.
        chunk: Number of the chunk, from 0.
        graph: "prefill" or "decode".
        start_us: Planned start.
        end_us: Planned end.
    """

    @property
    def block(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def graph(self) -> _GraphName: ...
    @property
    def start_us(self) -> int: ...
    @property
    def end_us(self) -> int: ...

@final
class Action:
    """A graph is loaded or released. Times are microseconds from the start of the prefill.

    Attributes:
        kind: "load" or "release".
        block: Number of the block, from 0.
        graph: "prefill" or "decode".
        after_runs: Number of runs, from the first, that must be over before it starts.
        start_us: Planned start.
        end_us: Planned end.
    """

    @property
    def kind(self) -> Literal["load", "release"]: ...
    @property
    def block(self) -> int: ...
    @property
    def graph(self) -> _GraphName: ...
    @property
    def after_runs(self) -> int: ...
    @property
    def start_us(self) -> int: ...
    @property
    def end_us(self) -> int: ...

@final
class Plan:
    """What is loaded and released when during a prefill, and what it comes to."""

    @property
    def strategy(self) -> str:
        """What made it; where "auto" was asked for, the strategy that it chose."""

    @property
    def makespan_us(self) -> int:
        """Microseconds until the prefill and the last load are over."""

    @property
    def prefill_us(self) -> int:
        """Microseconds until the prefill is over."""

    @property
    def exposed_load_us(self) -> int:
        """Microseconds of the makespan in which nothing computes."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes of graphs held at once; a graph counts from the start of its load."""

    @property
    def lower_bound_us(self) -> int:
        """Makespan below which no plan comes, whatever memory it may use."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order in which compute does them."""

    @property
    def actions(self) -> list[Action]:
        """All loads and releases, in the order in which the loader does them."""

@final
class PhraseTable:
    """What often comes after a token, or after two, in most texts, and other tokens for a word.

    Several drafters may share one. It learns nothing.

    Args:
        before: `(n,) u32`, the token before the last of each context; 2**32 - 1 where a context has
            one token.
        last: `(n,) u32`, the last token of each context.
        next: `(n,) u32`, a token that often comes next.
        chances: `(n,) f32`, 0 to 1, how often it does. Those of one token and context are added up.

        line_ends: `(n, 2) u32`, tokens with a line break at their end, and what each is without it.
        spaced: `(n, 2) u32`, words, and themselves with or without the space before them.
        cased: `(n, 2) u32`, words, and themselves in another case, the likeliest first.

    Raises:
        OptionError: A chance is not in 0 to 1.
        ShapeError: An array has another dtype or shape, or they have different lengths.
    """

    def __new__(
        cls,
        before: _Integers,
        last: _Integers,
        next: _Integers,
        chances: NDArray[np.float32],
        *,
        line_ends: NDArray[np.uint32] | None = None,
        spaced: NDArray[np.uint32] | None = None,
        cased: NDArray[np.uint32] | None = None,
    ) -> PhraseTable: ...
    @property
    def num_contexts(self) -> int:
        """Contexts that something often comes after."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap."""

@final
class LookupTable:
    """What the target held likely after each token: DIAA's t-LUT and p-LUT in one.

    Several drafters of one vocabulary may share one: it belongs to the vocabulary of the first
    drafter or logits that it meets. Memory grows with the tokens seen, up to 12 bytes an entry.

    Args:
        k: Entries per token, 1 to 8.
        keep: What remains of an entry's probability each time that it is not confirmed; 1 leaves
            entries as they are, 0 forgets them.

    Raises:
        OptionError: An option is out of range.
    """

    def __new__(cls, k: int = 8, keep: float = 0.5) -> LookupTable: ...
    @staticmethod
    def open(path: str | PathLike[str], vocab_size: int, key: bytes) -> LookupTable:
        """Read a saved table.

        Args:
            path: The file.
            vocab_size: Number of ids in the vocabulary.
            key: The 32 bytes that it was saved with: the tokenizer's hash.

        Raises:
            LookupTableError: It is absent, damaged, or of another version, key or vocabulary.
            OptionError: `key` has not 32 bytes.
        """

    def save(self, path: str | PathLike[str], vocab_size: int, key: bytes) -> None:
        """Write the table, replacing the file only when all is written.

        Args:
            path: The file.
            vocab_size: Number of ids in the vocabulary.
            key: 32 bytes that opening must name again.

        Raises:
            LookupTableError: The file cannot be written; the one before is still there.
            OptionError: `key` has not 32 bytes, or the table is of another vocabulary.
        """

    def learn(self, contexts: _Integers, logits: NDArray[np.float32]) -> None:
        """Take in what the target holds likely after tokens.

        Args:
            contexts: `(rows,) u32`, the tokens.
            logits: `(rows, vocab_size) f32`; leading axes of length 1 are allowed.

        Raises:
            ShapeError: The arrays have other dtypes or shapes, or are not C-contiguous.
            OptionError: The table is of another vocabulary.
            TokenOutOfRangeError: A token is not in the vocabulary.
            NonFiniteLogitsError: A row has no usable maximum; what stood before it is learned.
        """

    def row(self, context: int) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Likeliest token ids after the token `context`, `(n,) u32`, and probabilities, `(n,) f32`.

        At most `k`, the likeliest first.
        """

    @property
    def k(self) -> int:
        """Entries per token."""

    @property
    def num_rows(self) -> int:
        """Number of tokens that were a context."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap."""

    def memory_of_tables(self) -> tuple[int, int]:
        """Bytes held on the heap by the t-LUT, with its index, and by the p-LUT (DIAA, Table 4)."""

@final
class ModelDraft:
    """A draft model's tree (EdgeLLM): what the model is to read next, and when it is enough.

    A drafter with the source "draft-model" proposes it and updates it with new tokens; in between,
    whoever runs the model takes the realignment, then alternates `next_step` and `read`.

    Args:
        step_inputs: One for each step that the draft model's session can run, narrowest first.
        vocab_size: Number of ids in the vocabulary.
        end_token_ids: Tokens after which nothing follows.
        costs: What each of the steps costs, as in `Drafter`; None where that is no matter.
        least_that_pays: Share of a step of the target that a step of the draft model costs: a
            branch less sure is not followed. 0 where that is no matter.
        method: Drafts as this method does; None as "edgellm-ours".
        num_scored: Number of columns of the logits, where the model scores the first ids alone.

    Raises:
        OptionError: `least_that_pays` is not 0 to 1, costs are unusable, or `num_scored` is not 1
            to `vocab_size`.
    """

    def __new__(
        cls,
        step_inputs: Sequence[StepInputs],
        vocab_size: int,
        *,
        end_token_ids: Sequence[int] = ...,
        costs: Sequence[_StepCost] | None = None,
        least_that_pays: float = 0.0,
        method: DraftMethod | None = None,
        num_scored: int | None = None,
    ) -> ModelDraft: ...
    def drafts_as(self, method: DraftMethod) -> bool:
        """Whether a draft model drafts in this way under a method, whatever that is named."""

    def take_realignment(self) -> tuple[int, NDArray[np.uint32]] | None:
        """What the session must do with its cache first, once; None where it is as it should be.

        Returns:
            The length to rewind to, and the rows after it to commit then, `(rows,) u32`.
        """

    @property
    def num_unread(self) -> int:
        """Number of tokens of the request that the model has not read."""

    def unread(self) -> NDArray[np.uint32]:
        """These tokens, `(tokens,) u32`: a copy."""

    def reading_cost(self) -> float:
        """What reading these would cost, in the unit of `costs`; 0 without costs."""

    def skip(self, num_tokens: int) -> None:
        """Tell that the session has read the next tokens by itself; the last is always left."""

    def next_step(
        self, max_tokens: int, max_depth: int = ..., *, provisional: bool = False
    ) -> StepInputs | None:
        """The filled inputs of the next step; None where it is enough, or the cache is full.

        All of its `num_nodes` rows are to be committed. A step that is not answered by `read` is
        asked for again.

        Args:
            max_tokens: Tokens to draft at most.
            max_depth: Most tokens of a branch, from the text on.
            provisional: The target verifies what was drafted before: go on although that was
                enough (EdgeLLM III-D). The next draft is the same, and takes fewer steps.

        Raises:
            InvalidDraftError: More tokens are unread than a step has rows: `skip` some.
        """

    def read(self, logits: NDArray[np.float32], row: int) -> None:
        """Take in the logits of the step, `(rows, num_scored) f32`, of which `row` was the last.

        Raises:
            ShapeError: The logits have another dtype or shape.
            NonFiniteLogitsError: The row has no usable maximum.
        """

    @property
    def num_drafted(self) -> int:
        """Tokens that are drafted for the target to verify."""

    @property
    def num_promoted(self) -> int:
        """Drafted tokens that the model had read before, in total: each saved a step."""

    @property
    def threshold(self) -> float:
        """alpha, the confidence below which the target verifies (EdgeLLM, Eq. 3)."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap, about."""

def least_that_pays(
    step_inputs: Sequence[StepInputs],
    costs: Sequence[_StepCost] | None,
    target_step_inputs: Sequence[StepInputs],
    target_costs: Sequence[_StepCost] | None,
) -> float:
    """What a drafted token costs, as a share of the step of the target that it saves if right.

    A step of the draft model, and the cheapest further row of the target.

    Args:
        step_inputs: One for each step of the draft model's session, narrowest first.
        costs: What each of them costs, as in `Drafter`, in the same unit as `target_costs`.
        target_step_inputs: Those of the target's session.
        target_costs: What each of those costs.

    Returns:
        0 to 1, for `ModelDraft`: at 1 no token pays. 0 where either has no costs.

    Raises:
        OptionError: Steps or costs are unusable.
    """

@final
class DynamicTree:
    """DIAA's trees: the paths of the highest scores (Eq. 2), rebuilt every so many steps.

    Args:
        budget: Tokens on all paths from the root to a leaf together, as the paper counts them; by
            default as many nodes as the step has rows.
        counts_paths: Without a budget, it is the number of rows, in place of that of nodes.
        depth_decay: Factor on a path's score for each token beyond the first.
        width_decay: Factor for each rank that its last token is below the likeliest.
        threshold: Paths of two and more tokens that score less are left out.
        update_interval: Steps that a tree's shape is kept for.

    Raises:
        OptionError: An option is out of range, or of a wrong type.
    """

    def __new__(
        cls,
        budget: int | None = None,
        *,
        counts_paths: bool = False,
        depth_decay: float = 0.8,
        width_decay: float = 0.7,
        threshold: float = 0.005,
        update_interval: int = 1,
    ) -> DynamicTree: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[int | None], dict[str, Any]]: ...

@final
class SuffixAutomaton:
    """Every substring of up to 128 tokens of a growing text, with counts and last positions.

    Extending takes constant time per token, amortised; a query takes time by its own length.
    Longer substrings are not known: they have no occurrences.
    """

    def __new__(cls) -> SuffixAutomaton: ...
    def __len__(self) -> int:
        """Number of tokens in the text."""

    def extend(self, tokens: _Integers) -> None:
        """Append `(n,) u32` tokens to the text.

        Raises:
            ShapeError: They are not integers, or have more than one dimension.
        """

    def clear(self) -> None:
        """Forget the text."""

    def count(self, tokens: _Integers) -> int:
        """Number of occurrences of `tokens`, `(tokens,) u32`, up to 256; 0 for none.

        Overlapping ones also count.

        Raises:
            ShapeError: Same as in `extend`.
        """

    def last_end(self, tokens: _Integers) -> int | None:
        """Index after the last token of the latest occurrence of `tokens`, `(tokens,) u32`.

        None without one. Of what occurs 256 times or more, some occurrence rather than the latest.

        Raises:
            ShapeError: Same as in `extend`.
        """

    def contains(self, tokens: _Integers) -> bool:
        """Whether `tokens`, up to 128, `(tokens,) u32`, occur in the text; no tokens always do.

        Raises:
            ShapeError: Same as in `extend`.
        """

    @property
    def match_len(self) -> int:
        """Length, up to 128, of the longest suffix of the text that occurs earlier in it."""

    @property
    def num_states(self) -> int:
        """Number of states."""

    @property
    def num_edges(self) -> int:
        """Number of edges."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap."""

@final
class PromptLookup:
    """What followed the first earlier occurrence of the last three, two or one tokens."""

    def __new__(cls) -> PromptLookup: ...
    def extend(self, tokens: _Integers) -> None:
        """Append `(n,) u32` tokens to the text.

        Raises:
            ShapeError: They are not integers, or have more than one dimension.
        """

    def clear(self) -> None:
        """Forget the text."""

    def propose(self) -> NDArray[np.uint32]:
        """The tokens that followed, `(n,) u32`, at most ten; none where nothing matches."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap."""
