"""Keys and values of the committed tokens: fixed slots, which the host owns.

Slot `s` of a layer holds the key and value of the token at position `s`. On CPU (`KvCache`) a step
writes its rows to the slots after the committed ones; rows that are not committed are masked, and
overwritten by the next step. On an NPU (`qnn/kv_cache.py`) a step outputs its rows, and the host
copies them.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]

_GRAIN = 128
"""Slots are laid out in multiples of this. A multiple of what ONNX Runtime's kernels sum at a time:
slots after the last visible one then only add zeros to any sum."""


class Cache(Protocol):
    """Keys and values of the committed tokens."""

    length: int

    @property
    def has_fixed_slots(self) -> bool:
        """Whether the graphs always get the same number of slots."""

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""

    def attend_to_all(self) -> None:
        """Give the graphs all slots from now on, because fewer would change bits."""

    def attending_to_all(self) -> AbstractContextManager[None]:
        """Give the graphs all slots for a while."""

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens."""

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order."""

    def copied(self, length: int) -> list[Pair]:
        """Per layer copies of the keys and values of the first committed tokens."""

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of such copies, in place of all that is there."""


class KvCache:
    """Cache of one request, all layers, float32, in place.

    Attention takes time for every slot that a graph gets, so it gets no more than needed: the
    arrays of a layer use the front of its memory, and are laid out again when a request outgrows
    them.

    Args:
        num_layers: Layers of the target.
        num_kv_heads: Heads of keys and values.
        num_slots: Tokens that fit, including the rows of the widest step.
        head_dim: Width of a head.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
        num_slots: Slots that the graphs get: all at first, later as few as needed.
    """

    has_fixed_slots = False

    def __init__(self, num_layers: int, num_kv_heads: int, num_slots: int, head_dim: int) -> None:
        self.length, self.num_slots, self._most = 0, num_slots, num_slots
        self._grain = _GRAIN
        self._heads, self._head_dim = num_kv_heads, head_dim
        size = num_kv_heads * num_slots * head_dim
        self._memory = [
            (np.zeros(size, np.float32), np.zeros(size, np.float32)) for _ in range(num_layers)
        ]
        self._arrays = self._laid_out()
        self._values: dict[int, list[tuple[onnxruntime.OrtValue, ...]]] = {}

    @property
    def values(self) -> list[tuple[onnxruntime.OrtValue, ...]]:
        """Per layer keys and values, each `(1, kv_heads, num_slots, head_dim)`.

        Bind them both as input and as output of the block that owns them.
        """
        if self.num_slots not in self._values:
            from_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
            pairs = [tuple(from_numpy(array) for array in pair) for pair in self._arrays]
            self._values[self.num_slots] = pairs
        return self._values[self.num_slots]

    def fit(self, num_tokens: int) -> None:
        """Make room for this many tokens, including those that are being written."""
        if num_tokens > self.num_slots:
            self._lay_out(self._slots_for(num_tokens), kept=self.num_slots)

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens, and shrink to fewer slots if far too many."""
        self.length = length
        if 2 * self._slots_for(length) < self.num_slots:
            self._lay_out(self._slots_for(length), kept=length)

    def attend_to_all(self) -> None:
        """Give the graphs all slots from now on, because fewer would change bits."""
        self._grain = self._most
        self.fit(self._most)

    @contextmanager
    def attending_to_all(self) -> Iterator[None]:
        """Give the graphs all slots for a while."""
        grain = self._grain
        self.attend_to_all()
        try:
            yield
        finally:
            self._grain = grain

    def _slots_for(self, num_tokens: int) -> int:
        return min(max(-(-num_tokens // self._grain), 1) * self._grain, self._most)

    def _lay_out(self, num_slots: int, kept: int) -> None:
        """Change the number of slots; the first ones keep their contents."""
        before, self.num_slots = self._arrays, num_slots
        self._arrays = self._laid_out()
        for old, new in zip(before, self._arrays, strict=True):
            for source, target in zip(old, new, strict=True):
                target[:, :, :kept] = source[:, :, :kept].copy()

    def _laid_out(self) -> list[Pair]:
        shape = (1, self._heads, self.num_slots, self._head_dim)
        size = self._heads * self.num_slots * self._head_dim
        return [
            (keys[:size].reshape(shape), values[:size].reshape(shape))
            for keys, values in self._memory
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(array.nbytes for pair in self._memory for array in pair)

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order.

        A path's rows ascend. Rows `0 .. n-1` are already in their slots (canonical commit);
        others are moved together.
        """
        count = len(rows)
        if count and rows[-1] != count - 1:
            source = self.length + rows.astype(np.intp)
            target = slice(self.length, self.length + count)
            for pair in self._arrays:
                for array in pair:
                    array[:, :, target] = array[:, :, source]
        self.length += count

    def copied(self, length: int) -> list[Pair]:
        """Per layer copies of the keys and values of the first committed tokens."""
        return copied(self._arrays, length)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of such copies, in place of all that is there."""
        self.length = 0
        if length > self.num_slots:
            self._lay_out(self._slots_for(length), kept=0)
        put(self._arrays, layers, length)
        self.length = length


def copied(layers: Sequence[Pair], length: int) -> list[Pair]:
    """Copies of the first `length` slots of each layer's keys and values."""
    return [(keys[:, :, :length].copy(), values[:, :, :length].copy()) for keys, values in layers]


def put(target: Sequence[Pair], source: Sequence[Pair], length: int) -> None:
    """Write the first `length` slots of `source` into those of `target`, layer by layer."""
    for to, of in zip(target, source, strict=True):
        for array, saved in zip(to, of, strict=True):
            array[:, :, :length] = saved[:, :, :length]
