"""Keys and values of the committed tokens: fixed slots, which the host owns.

Slot `s` of a layer holds the key and value of the token at position `s`. On CPU (`KvCache`) a step
writes its rows to the slots behind the committed ones; what is not committed is masked, and
overwritten by the next. On an NPU (`QnnCache`) a step gives its rows out, and the host copies them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import CacheEncodings

Pair = tuple[NDArray[Any], NDArray[Any]]

_GRAIN = 128
"""Slots are laid out in multiples of this. A multiple of what ONNX Runtime's kernels sum at a time:
slots behind the last one that is seen then add nothing but zeros to any sum."""


class KvCache:
    """Cache of one request, all layers, float32, in place.

    Attention takes time for all slots that a graph is given, so it is given no more than are
    needed: the arrays of a layer lie in the front of its memory, and are laid out anew when the
    request has outgrown them.

    Args:
        num_layers: Layers of the target.
        num_kv_heads: Heads of keys and values.
        num_slots: Tokens that fit, the rows of the widest step included.
        head_dim: Width of a head.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
        num_slots: Slots that the graphs are given: all at first, later as few as will do.
    """

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

        They are to be bound both as input and as output of the block that owns them.
        """
        if self.num_slots not in self._values:
            from_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
            pairs = [tuple(from_numpy(array) for array in pair) for pair in self._arrays]
            self._values[self.num_slots] = pairs
        return self._values[self.num_slots]

    def fit(self, num_tokens: int) -> None:
        """Make room for so many tokens, those that are being written included."""
        if num_tokens > self.num_slots:
            self._lay_out(self._slots_for(num_tokens), kept=self.num_slots)

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens, and slots that are far too many for them."""
        self.length = length
        if 2 * self._slots_for(length) < self.num_slots:
            self._lay_out(self._slots_for(length), kept=length)

    def attend_to_all(self) -> None:
        """Give the graphs all slots from now on, where fewer would change bits."""
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
        """Change the number of slots; the first ones keep what they hold."""
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

        A path's rows ascend. Rows `0 .. n-1` already stand in their slots (canonical commit);
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


class QnnCache:
    """Cache of one request, all layers, as the integers that the graphs read.

    Args:
        encodings: Of each layer.
        num_kv_heads: Heads of keys and values.
        num_slots: Tokens that fit.
        head_dim: Width of a head.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
        arrays: Per layer keys and values, each `(1, kv_heads, slots, head_dim)`; zero at first.
    """

    def __init__(
        self,
        encodings: Sequence[CacheEncodings],
        num_kv_heads: int,
        num_slots: int,
        head_dim: int,
    ) -> None:
        shape = (1, num_kv_heads, num_slots, head_dim)
        self.length = 0
        self._encodings = encodings
        self._heads, self._head_dim = num_kv_heads, head_dim
        self.arrays: list[Pair] = [
            (
                np.full(shape, layer.key.zero_point, layer.key.dtype),
                np.full(shape, layer.value.zero_point, layer.value.dtype),
            )
            for layer in encodings
        ]
        self._num_slots = num_slots
        self._new: dict[int, list[Pair]] = {}
        self._last = list(self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(array.nbytes for pair in self.arrays for array in pair)

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens."""
        self.length = length

    def new_rows(self, rows: int) -> list[Pair]:
        """Where steps of that width leave their keys and values, `(1, kv_heads, rows, head_dim)`.

        The same arrays in every call.
        """
        if rows not in self._new:
            shape = (1, self._heads, rows, self._head_dim)
            self._new[rows] = [
                (np.zeros(shape, layer.key_new.dtype), np.zeros(shape, layer.value_new.dtype))
                for layer in self._encodings
            ]
        return self._new[rows]

    def store(self, layers: Iterable[int], rows: int, start: int) -> None:
        """Write what a step of that width has left for some layers to the slots from `start` on.

        There later runs over the same chunk read it; it is not committed. Rows beyond the last slot
        are kept for `commit` alone.
        """
        for layer in layers:
            self._last[layer] = self.new_rows(rows)[layer]
            self._copy(layer, slice(min(rows, self._num_slots - start)), start)

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order.

        Rows `0 .. n-1` already stand in their slots (canonical commit).
        """
        if not np.array_equal(rows, np.arange(len(rows))):
            for layer in range(len(self.arrays)):
                self._copy(layer, rows, self.length)
        self.length += len(rows)

    def _copy(self, layer: int, rows: slice | NDArray[np.uint32], start: int) -> None:
        """Copy rows of the last step to the slots from `start` on."""
        layout = self._encodings[layer]
        encodings = ((layout.key, layout.key_new), (layout.value, layout.value_new))
        pairs = zip(self.arrays[layer], self._last[layer], encodings, strict=True)
        for past, new, (encoding, new_encoding) in pairs:
            taken = new[:, :, rows]
            if encoding != new_encoding:  # not tied: the past is read under another encoding
                taken = encoding.quantize(new_encoding.dequantize(taken))
            past[:, :, start : start + taken.shape[2]] = taken
