"""Keys and values of the committed tokens on Qualcomm's HTP: fixed slots, integers.

A step outputs its rows, and the host copies them to the slots; the number of slots is fixed.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import CacheEncodings
from coordgen_rs.target.kv_cache import Pair, copied, put


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

    has_fixed_slots = True

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

    def attend_to_all(self) -> None:
        """Does nothing: the graphs always get all slots."""

    def attending_to_all(self) -> AbstractContextManager[None]:
        """Does nothing: the graphs always get all slots."""
        return nullcontext()

    def new_rows(self, rows: int) -> list[Pair]:
        """The keys and values of steps of that width, `(1, kv_heads, rows, head_dim)`.

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
        """Copy the output of a step of that width, for some layers, to the slots from `start` on.

        Later runs over the same chunk read it there; it is not committed. Rows beyond the last slot
        are only kept for `commit`.
        """
        for layer in layers:
            self._last[layer] = self.new_rows(rows)[layer]
            self._copy(layer, slice(min(rows, self._num_slots - start)), start)

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order.

        Rows `0 .. n-1` are already in their slots (canonical commit).
        """
        if not np.array_equal(rows, np.arange(len(rows))):
            for layer in range(len(self.arrays)):
                self._copy(layer, rows, self.length)
        self.length += len(rows)

    def copied(self, length: int) -> list[Pair]:
        """Per layer copies of the keys and values of the first committed tokens."""
        return copied(self.arrays, length)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of such copies, in place of all that is there."""
        self.length = 0
        put(self.arrays, layers, length)
        self.length = length

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
