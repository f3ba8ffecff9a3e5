"""The Rust core: drafting, verification, commit, and the inputs of a step."""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Accepted",
    "CallOrderError",
    "CoordgenError",
    "Drafter",
    "EmptyPromptError",
    "InvalidDraftError",
    "NonFiniteLogitsError",
    "OptionError",
    "PromptLookup",
    "ShapeError",
    "StepInputs",
    "SuffixAutomaton",
    "TokenOutOfRangeError",
]

class CoordgenError(Exception):
    """Base of all errors of coordgen_rs."""

class TokenOutOfRangeError(CoordgenError):
    """A token id is not in the vocabulary."""

class EmptyPromptError(CoordgenError):
    """A request has no token to continue from."""

class NonFiniteLogitsError(CoordgenError):
    """Logits hold NaN, or nothing finite."""

class InvalidDraftError(CoordgenError):
    """A draft tree is malformed or too large."""

class ShapeError(CoordgenError):
    """An array has the wrong shape, or a step does not fit."""

class CallOrderError(CoordgenError):
    """begin, propose and accept were called out of order."""

class OptionError(CoordgenError):
    """An option is unknown or outside its range."""

@final
class StepInputs:
    """The input buffers of one decode graph, owned by the caller and filled in place.

    Row `i` holds node `i` of a draft tree. It is written to cache slot `past_len + i`, stands at
    position `past_len + depth`, and sees the committed slots, its ancestors' and its own. Other
    rows are padding: token 0 at position 0, which sees the committed slots and its own.

    A fill rewrites only the part of the mask that differs from the last fill, so nobody else may
    write to the mask.

    Args:
        input_ids: `(rows,) i64`.
        position_ids: `(rows,) i64`.
        mask: `(1, .., rows, attended) f32`, additive: 0 where a row sees a slot, -10,000 elsewhere.

    Raises:
        ShapeError: An array has another dtype or shape, or is not C-contiguous.
    """

    def __new__(
        cls,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.float32],
    ) -> StepInputs: ...
    @property
    def rows(self) -> int:
        """Rows of the step."""

    @property
    def attended(self) -> int:
        """Slots that the mask covers."""

    @property
    def num_nodes(self) -> int:
        """Rows that the last fill gave a node to; the others are padding."""

    @property
    def input_ids(self) -> NDArray[np.int64]:
        """The array given, `(rows,) i64`."""

    @property
    def position_ids(self) -> NDArray[np.int64]:
        """The array given, `(rows,) i64`."""

    @property
    def mask(self) -> NDArray[np.float32]:
        """The array given, `(1, .., rows, attended) f32`."""

    def fill(
        self, token_ids: NDArray[np.uint32], parents: NDArray[np.uint32], past_len: int
    ) -> None:
        """Fill the buffers with a tree.

        Args:
            token_ids: `(nodes,) u32`; node 0 is the root.
            parents: `(nodes,) u32`; the root's is 0, every other stands before its child.
            past_len: Committed tokens before the root.

        Raises:
            InvalidDraftError: More nodes than rows, or a parent behind its child.
            ShapeError: The arrays differ in length, or the step reaches beyond the slots.
        """

    def fill_chain(self, token_ids: NDArray[np.uint32], past_len: int) -> None:
        """Fill the buffers with a chain, `(nodes,) u32`: plain decoding, or a part of a prompt.

        Raises:
            InvalidDraftError: More tokens than rows.
            ShapeError: No token, or the step reaches beyond the slots.
        """

@final
class Accepted:
    """What one verification gave out."""

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
        """How many of `token_ids`, from the first, stood in the draft.

        One more than `accept_len` where the target's own token was drafted too, on a side branch.
        """

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the answer ends with these tokens; None while it goes on."""

@final
class Drafter:
    """Drafts from lookups, verifies and commits: `begin`, then `propose` and `accept` in turn.

    A failed call changes nothing. A tree that is never accepted is replaced by the next `propose`.

    Args:
        step_inputs: One for each step that the session can run, narrowest first.
        vocab_size: Number of columns of the logits.
        sources: Who drafts: "automaton" (suffix automaton over the request), "lookup" (prompt
            lookup). None of them: nothing is drafted.
        costs: What each step costs, in any unit; a step is run, and a draft made, only where
            it pays. Without costs rows are free, and filled as far as the sources reach.
        commit: "canonical" (only the tree's first path is committed; exact wherever equal
            slots give equal bits) or "compact" (all accepted rows are).
        end_token_ids: Tokens that end an answer.

    Raises:
        OptionError: A source or commit is unknown, or steps or costs are unusable.
    """

    def __new__(
        cls,
        step_inputs: Sequence[StepInputs],
        vocab_size: int,
        *,
        sources: Sequence[str] = ...,
        costs: Sequence[float] | None = None,
        commit: str = "canonical",
        end_token_ids: Sequence[int] = ...,
    ) -> Drafter: ...
    def begin(self, prompt_ids: NDArray[np.uint32], max_new_tokens: int) -> None:
        """Start a request, and drop what ran before; the learned trust in the sources stays.

        Args:
            prompt_ids: `(tokens,) u32`. The last one is the root of the first tree: the session
                has computed the others.
            max_new_tokens: Tokens to give out at most.

        Raises:
            EmptyPromptError: There is no token.
            TokenOutOfRangeError: A token is not in the vocabulary.
            OptionError: `max_new_tokens` is 0.
        """

    def propose(
        self, past_len: int, draft: tuple[NDArray[np.uint32], NDArray[np.uint32]] | None = None
    ) -> StepInputs:
        """Draft a tree, choose the step that verifies it, and fill that step's buffers.

        Args:
            past_len: Committed tokens before the root.
            draft: Token ids and parents of the caller's own tree, `(nodes,) u32` each, node 0
                being the last token given out. Nodes that do not fit, or lie deeper than may
                still be given out, are left out.

        Returns:
            The one of `step_inputs` to run.

        Raises:
            CallOrderError: No request is running.
            ShapeError: No step fits behind `past_len` tokens.
            InvalidDraftError: `draft` is malformed or has another root.
            TokenOutOfRangeError: `draft` holds an unknown token.
        """

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Verify the proposed tree, and tell the sources what was given out.

        Args:
            logits: `(rows, vocab_size) f32` of the step that `propose` chose; leading axes of
                length 1 are allowed. Read in place, and only the rows on the accepted path.

        Raises:
            CallOrderError: Nothing was proposed.
            ShapeError: The logits have another dtype or shape, or are not C-contiguous.
            NonFiniteLogitsError: A row on the path has no usable maximum; the message names it.
        """

    @property
    def draft(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Token ids and parents of the last proposed tree, `(nodes,) u32` each, as copies."""

    @property
    def num_carried(self) -> int:
        """Tokens accepted on a side branch, which the next tree starts with."""

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the request ended; None while it runs."""

    @property
    def accept_histogram(self) -> list[int]:
        """Entry `n` counts the steps since `begin` with an `accept_len` of `n`."""

    @property
    def per_source(self) -> dict[str, dict[str, int]]:
        """Draft nodes since `begin`: `{name: {"proposed": n, "accepted": m}}`.

        Accepted are those that the target agreed with, side branches included. Tokens that are fed
        again count where they were first proposed.
        """

    def memory_bytes(self) -> int:
        """Bytes held by the sources and the drafter's own buffers."""

@final
class SuffixAutomaton:
    """Every substring of a growing text, with counts and last positions.

    Extending costs constant time a token, amortised; a question costs its own length.
    """

    def __new__(cls) -> SuffixAutomaton: ...
    def __len__(self) -> int:
        """Number of tokens in the text."""

    def extend(self, tokens: NDArray[np.uint32]) -> None:
        """Append `(n,) u32` tokens to the text.

        Raises:
            ShapeError: The array has another dtype or shape, or is not C-contiguous.
        """

    def clear(self) -> None:
        """Forget the text."""

    def count(self, tokens: NDArray[np.uint32]) -> int:
        """Number of occurrences of `tokens`, overlapping ones included, up to 256; 0 for none.

        Raises:
            ShapeError: As of `extend`.
        """

    def last_end(self, tokens: NDArray[np.uint32]) -> int | None:
        """Index behind the last token of the latest occurrence of `tokens`; None without one.

        Of what occurs 256 times or more, some occurrence rather than the latest.

        Of tokens that occur 256 times and more it is the end of one of the occurrences.

        Raises:
            ShapeError: As of `extend`.
        """

    def contains(self, tokens: NDArray[np.uint32]) -> bool:
        """Whether `tokens` occur in the text; no tokens always do.

        Raises:
            ShapeError: As of `extend`.
        """

    @property
    def match_len(self) -> int:
        """Length of the longest suffix of the text that occurs earlier in it."""

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
    def extend(self, tokens: NDArray[np.uint32]) -> None:
        """Append `(n,) u32` tokens to the text.

        Raises:
            ShapeError: The array has another dtype or shape, or is not C-contiguous.
        """

    def clear(self) -> None:
        """Forget the text."""

    def propose(self) -> NDArray[np.uint32]:
        """The tokens that followed, `(n,) u32`, at most ten; none where nothing matches."""

    def memory_bytes(self) -> int:
        """Bytes held on the heap."""
