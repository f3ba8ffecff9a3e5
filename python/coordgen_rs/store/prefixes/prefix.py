"""What sessions give to whoever keeps prefixes, and take back: tokens, keys, values and states.

In: a session that knows its tokens. Out: a prefix of them, copied or in place, which it or another
session of the same target takes back. Where they are kept is `pool.py`'s and `store.py`'s matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Keys and values of a layer, `(1, kv_heads, tokens, ..)` as a cache holds them."""

COUNT = np.dtype(np.int64).itemsize
"""Bytes of the number that stands before a state: how many tokens have left it."""


@dataclass(frozen=True)
class Snapshot:
    """All states of recurrent layers as they were behind some tokens.

    Attributes:
        length: How many tokens.
        states: Of each operator its state, `(bytes,) u8`; not to be written.
        is_turn: Whether a turn of a dialogue may end here.
    """

    length: int
    states: Sequence[NDArray[np.uint8]]
    is_turn: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self.states)

    def behind(self, length: int) -> "Snapshot":
        """The same numbers, as if so many tokens had left them."""
        states = [state.copy() for state in self.states]
        for state in states:
            state[:COUNT].view(np.int64)[0] = length
        return replace(self, length=length, states=states)


class SavedPrefix(NamedTuple):
    """Committed tokens of a session, to be put back into it later.

    Attributes:
        token_ids: `(tokens,) u32`.
        layers: Per layer keys and values; copies.
        states: Those of recurrent layers behind some of the tokens; None where there are no such
            layers.
    """

    token_ids: NDArray[np.uint32]
    layers: Sequence[Pair]
    states: Sequence[Snapshot] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, and states."""
        states = sum(state.nbytes for state in self.states or ())
        return states + sum(array.nbytes for pair in self.layers for array in pair)

    def reachable(self, length: int) -> int:
        """Most tokens, at most `length`, that are put back without any being read again."""
        if self.states is None:
            return length
        return max((it.length for it in self.states if it.length <= length), default=0)


class PrefixReader(Protocol):
    """Reads a session's tokens in place, beside its runs, which only add to them."""

    @property
    def is_over(self) -> bool:
        """Whether it reads nothing any more."""

    def before_change(self, length: int) -> None:
        """Tokens behind the first `length` are about to be overwritten; waits for no disk."""


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A session that knows which tokens it holds, so that later requests may reuse them.

    They can be saved, put back after other requests, and outlast the process (`prefix_store`).
    """

    @property
    def reusable_ids(self) -> NDArray[np.uint32]:
        """The committed tokens, from the first, that need not be computed again, `(tokens,) u32`.

        Keys and values of each are bit-equal to what a prefill of the same tokens would give.
        """

    @property
    def state_sizes(self) -> Sequence[int]:
        """Bytes of the states of each operator of recurrent layers; empty where there are none."""

    def reachable(self, length: int) -> int:
        """Most tokens, at most `length`, that `rewind` leaves without reading any again."""

    def saved_prefix(self) -> SavedPrefix:
        """A copy of `reusable_ids` with their keys and values."""

    def restore_prefix(self, prefix: SavedPrefix, num_tokens: int) -> None:
        """Commit the first `num_tokens` tokens of a saved prefix, in place of all that is there.

        Keys and values are bit-equal to those that were saved; behind what `reachable` tells,
        tokens are read again. If it fails, nothing else is committed.
        """

    def prefix_in_place(self, num_tokens: int) -> SavedPrefix:
        """The first tokens of `reusable_ids`, with their keys and values, not copied."""

    def snapshots(self) -> Sequence[Snapshot] | None:
        """States of recurrent layers behind some of the tokens, ascending; None without such."""

    def add_reader(self, reader: PrefixReader) -> None:
        """Tell a reader before tokens that are committed now are overwritten."""
