"""How keys and values lie in a file: layer by layer, each as the cache holds it.

In: keys and values of a session's tokens, in place. Out: the bytes of blocks, which depend on the
session no longer; and the way back. What the numbers mean is the kernels' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.runtime.session import StoresPrefixes
from coordgen_rs.runtime.snapshot import Snapshot

if TYPE_CHECKING:
    from coordgen_rs.runtime.caches.kv_cache import Pair

TOKEN_BYTES = np.dtype("<u4").itemsize

_Array = tuple[int, int, np.dtype[Any]]
"""Heads, numbers of a head, and their type."""


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
    def of(cls, session: StoresPrefixes) -> "Layout":
        """That of a session."""
        every = [array for pair in session.prefix_in_place(0).layers for array in pair]
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
        layers: "Sequence[Pair]",
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
        for part, array in zip(self._parts(blocks, num_tokens), _in_turns(layers), strict=True):
            _, heads, _, size = array.shape
            rows = array[0, :, start:end]
            by_blocks = rows.reshape(heads, num_blocks, num_tokens, size)
            part[:] = by_blocks.transpose(1, 0, 2, 3)
        return blocks

    def room(self, num_tokens: int) -> "list[Pair]":
        """Per layer room for keys and values of so many tokens."""
        every = [np.empty((1, heads, num_tokens, size), of) for heads, size, of in self.arrays]
        return list(zip(every[::2], every[1::2], strict=True))

    def unpack(
        self, block: NDArray[np.uint8], layers: "Sequence[Pair]", start: int, num_tokens: int
    ) -> None:
        """Copy a block's keys and values to where they belong.

        Args:
            block: As `packed` gives it, `(bytes,) u8`.
            layers: Per layer keys and values.
            start: The block's first token.
            num_tokens: Tokens of the block.
        """
        parts = self._parts(block[np.newaxis], num_tokens)
        for part, array in zip(parts, _in_turns(layers), strict=True):
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


def _in_turns(layers: "Sequence[Pair]") -> list[NDArray[Any]]:
    return [array for pair in layers for array in pair]
