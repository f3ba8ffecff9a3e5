"""A prefix of a session's tokens: in place, copied, and as blocks of bytes that are to be written.

In: a session that knows its tokens. Out: a prefix of them with keys, values and states, which it or
another session of the same target takes back; or blocks, one after the other, for a thread that
writes beside the session's runs. Runs only add tokens behind those; before any is overwritten, what
is left of the blocks is copied. So a session waits for no disk, and what is written costs it no
copy. A block holds its tokens, then layer by layer keys and values as the cache holds them. Where
prefixes are kept is `pool.py`'s and `store.py`'s matter.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Keys and values of a layer, `(1, kv_heads, tokens, ..)` as a cache holds them."""

COUNT = np.dtype(np.int64).itemsize
"""Bytes of the number that stands before a state: how many tokens have left it."""

BLOCK_TOKENS = 32
"""Tokens of a block. The rest of a prompt is computed again, at most so many less one."""

TOKEN_BYTES = np.dtype("<u4").itemsize

_Array = tuple[int, int, np.dtype[Any]]
"""Heads, numbers of a head, and their type."""


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


@dataclass(frozen=True)
class Layout:
    """What a token and a snapshot take.

    Attributes:
        arrays: Keys and values of all layers, in turns.
        state_sizes: Bytes of each operator's state; empty where no layer is recurrent.
    """

    arrays: tuple[_Array, ...]
    state_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, session: KeepsPrefixes) -> "Layout":
        """That of a session."""
        every = chain(*session.prefix_in_place(0).layers)
        arrays = tuple((it.shape[1], it.shape[3], it.dtype) for it in every)
        return cls(arrays, tuple(session.state_sizes))

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return sum(heads * size * dtype.itemsize for heads, size, dtype in self.arrays)

    @property
    def states_bytes(self) -> int:
        """Bytes of a snapshot."""
        return sum(self.state_sizes)

    def block_bytes(self, num_tokens: int) -> int:
        """Bytes of a block of so many tokens: the tokens, then their keys and values."""
        return num_tokens * (TOKEN_BYTES + self.token_bytes)

    def packed(
        self,
        token_ids: NDArray[np.uint32],
        layers: Sequence[Pair],
        start: int,
        num_tokens: int,
        num_blocks: int = 1,
    ) -> NDArray[np.uint8]:
        """Copies of blocks, `(num_blocks, bytes) u8`.

        Args:
            token_ids: All tokens, `(tokens,) u32`.
            layers: Per layer their keys and values, `(1, heads, tokens, size)`.
            start: The first token of the first block.
            num_tokens: Tokens of a block.
            num_blocks: How many blocks.
        """
        end = start + num_tokens * num_blocks
        blocks = np.empty((num_blocks, self.block_bytes(num_tokens)), np.uint8)
        of_tokens = blocks[:, : TOKEN_BYTES * num_tokens].view("<u4")
        of_tokens[:] = token_ids[start:end].reshape(num_blocks, num_tokens)
        for part, array in zip(self._parts(blocks, num_tokens), chain(*layers), strict=True):
            _, heads, _, size = array.shape
            by_blocks = array[0, :, start:end].reshape(heads, num_blocks, num_tokens, size)
            part[:] = by_blocks.transpose(1, 0, 2, 3)
        return blocks

    def room(self, num_tokens: int) -> list[Pair]:
        """Per layer room for keys and values of so many tokens."""
        every = [np.empty((1, heads, num_tokens, size), of) for heads, size, of in self.arrays]
        return list(zip(every[::2], every[1::2], strict=True))

    def unpack(
        self, block: NDArray[np.uint8], layers: Sequence[Pair], start: int, num_tokens: int
    ) -> None:
        """Copy a block's keys and values to where they belong.

        Args:
            block: As `packed` gives it, `(bytes,) u8`.
            layers: Per layer keys and values.
            start: The block's first token.
            num_tokens: Tokens of the block.
        """
        parts = self._parts(block[np.newaxis], num_tokens)
        for part, array in zip(parts, chain(*layers), strict=True):
            array[0, :, start : start + num_tokens] = part[0]

    def snapshot(self, states: NDArray[np.uint8], length: int) -> Snapshot:
        """A snapshot of so many tokens, from its bytes `(bytes,) u8`, which are copied."""
        ends = np.cumsum(self.state_sizes)[:-1]
        return Snapshot(length, [state.copy() for state in np.split(states, ends)])

    def _parts(self, blocks: NDArray[np.uint8], num_tokens: int) -> list[NDArray[Any]]:
        """Each array's part of blocks, `(num_blocks, heads, num_tokens, size)`, in place."""
        parts, at = [], TOKEN_BYTES * num_tokens
        for heads, size, dtype in self.arrays:
            end = at + heads * num_tokens * size * dtype.itemsize
            part = blocks[:, at:end].view(dtype)
            parts.append(part.reshape(len(blocks), heads, num_tokens, size))
            at = end
        return parts


class MemoryBudget:
    """How much memory what waits to be written may take.

    Args:
        most_bytes: Most bytes; more only for what is alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._taken = most_bytes, dict[object, int]()
        self._lock = Lock()

    def take(self, owner: object, num_bytes: int) -> bool:
        """Take so many bytes more, if there is room.

        Args:
            owner: Gives back all that was taken in its name.
            num_bytes: How many.
        """
        with self._lock:
            taken = sum(self._taken.values())
            if taken and taken + num_bytes > self._most_bytes:
                return False
            self._taken[owner] = self._taken.get(owner, 0) + num_bytes
            return True

    def give_back(self, owner: object) -> None:
        """Give back what was taken, if anything was."""
        with self._lock:
            self._taken.pop(owner, None)


class CopyOnWriteBlocks:
    """Whole blocks of a session's tokens.

    Args:
        token_ids: All tokens, `(tokens,) u32`; not to be written.
        layers: Per layer their keys and values, in place.
        layout: How they lie in a block.
        fresh: The number of the first block that may be copied: of those before it, what is not
            written until they are overwritten is dropped.
        end: That behind the last.
        budget: Where copies find room; where there is none, what is left is dropped. All that is
            taken in this name is given back with `close`.
    """

    def __init__(
        self,
        token_ids: NDArray[np.uint32],
        layers: Sequence[Pair],
        layout: Layout,
        fresh: int,
        end: int,
        budget: MemoryBudget,
    ) -> None:
        self._token_ids, self._layout, self._budget = token_ids, layout, budget
        self._layers: Sequence[Pair] | None = layers
        self._fresh, self._end = fresh, end
        self._copies: NDArray[np.uint8] | None = None  # of those from `_copied_from` on
        self._copied_from = end
        self._lock = Lock()

    @property
    def is_over(self) -> bool:
        """Whether nothing is read in place any more."""
        return self._layers is None

    def before_change(self, length: int) -> None:
        """Copy what is left, if tokens behind the first `length` are about to be overwritten."""
        with self._lock:
            if self._layers is None or length >= self._end * BLOCK_TOKENS:
                return
            layers, self._layers = self._layers, None
            self._copied_from, num_blocks = self._fresh, self._end - self._fresh
            num_bytes = num_blocks * self._layout.block_bytes(BLOCK_TOKENS)
            if num_blocks and self._budget.take(self, num_bytes):
                start = self._fresh * BLOCK_TOKENS
                with suppress(MemoryError):  # dropped, as where there is no room
                    self._copies = self._layout.packed(
                        self._token_ids, layers, start, BLOCK_TOKENS, num_blocks
                    )

    def block(self, number: int) -> NDArray[np.uint8] | None:
        """A block's bytes, `(bytes,) u8`; None where it was dropped.

        Args:
            number: Which; ascending from call to call.
        """
        with self._lock:
            self._fresh = max(self._fresh, number + 1)
            if self._layers is not None:
                start = number * BLOCK_TOKENS
                packed = self._layout.packed(self._token_ids, self._layers, start, BLOCK_TOKENS)
                return packed.reshape(-1)
            if self._copies is None or number < self._copied_from:
                return None
            at = number - self._copied_from
            return self._copies[at : at + 1].reshape(-1)

    def close(self) -> None:
        """Read nothing any more."""
        with self._lock:
            self._layers = self._copies = None
            self._budget.give_back(self)
