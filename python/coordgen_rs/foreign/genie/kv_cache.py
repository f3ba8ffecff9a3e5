"""Keys and values of the committed tokens, in the layouts that graphs of Genie read.

Keys are (kv_heads, 1, head_dim, slots) and values (kv_heads, 1, slots, head_dim). Slot `s` holds
the token at position `s`: positions and mask are inputs of the graphs, so that tokens may stand at
the left end, where none has to move. Graphs of different widths read caches of different lengths,
so each length has arrays of its own, and tokens are committed to all of them. With `cache_index`
(native) all widths read the same arrays.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.fixed_point import Encoding
from coordgen_rs.bundle.manifest import CacheEncodings
from coordgen_rs.target.kv_cache import Pair, copied, put


class GenieCache:
    """Cache of one request, all layers, as the integers that the graphs read.

    Args:
        encodings: Of each layer.
        num_kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        slots: Slots that the graph of each width reads.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
    """

    has_fixed_slots = True

    def __init__(
        self,
        encodings: Sequence[CacheEncodings],
        num_kv_heads: int,
        head_dim: int,
        slots: Mapping[int, int],
    ) -> None:
        self.length = 0
        self._encodings, self._heads, self._head_dim = encodings, num_kv_heads, head_dim
        self._arrays = {size: self._filled(size, is_past=True) for size in set(slots.values())}
        self._slots = slots
        self._new = {rows: self._filled(rows, is_past=False) for rows in slots}
        self._views = {size: as_rows(arrays) for size, arrays in self._arrays.items()}
        self._new_views = {rows: as_rows(arrays) for rows, arrays in self._new.items()}
        longest = self._views[max(self._arrays)]
        self._last, self._longest = list(longest), longest
        self._stored_until = [0] * len(encodings)

    def _filled(self, size: int, *, is_past: bool) -> list[Pair]:
        """Arrays of all layers that hold zeros."""
        arrays = []
        for layer in self._encodings:
            key, value = (layer.key, layer.value) if is_past else (layer.key_new, layer.value_new)
            keys = np.full((self._heads, 1, self._head_dim, size), key.zero_point, key.dtype)
            values = np.full((self._heads, 1, size, self._head_dim), value.zero_point, value.dtype)
            arrays.append((keys, values))
        return arrays

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        every = [pair for arrays in self._arrays.values() for pair in arrays]
        return sum(array.nbytes for pair in every for array in pair)

    def past(self, rows: int) -> list[Pair]:
        """Per layer the arrays that the graph of a width reads; the same in every call."""
        return self._arrays[self._slots[rows]]

    def new_rows(self, rows: int) -> list[Pair]:
        """Per layer the arrays that the graph of a width writes; the same in every call."""
        return self._new[rows]

    def rewind(self, length: int) -> None:
        """Forget all but the first committed tokens."""
        self.length = length

    def attend_to_all(self) -> None:
        """Does nothing: the graphs always get all slots."""

    def attending_to_all(self) -> AbstractContextManager[None]:
        """Does nothing: the graphs always get all slots."""
        return nullcontext()

    def note(self, layers: Iterable[int], rows: int) -> None:
        """Take the output of a step of that width, for some layers, as what `commit` is about."""
        for layer in layers:
            self._last[layer] = self._new_views[rows][layer]
            self._stored_until[layer] = 0

    def store(self, layers: Iterable[int], rows: int, start: int) -> None:
        """Copy the output of a part of a chunk to the slots from `start` on, not committed.

        Later parts of the same chunk read it there.
        """
        for layer in layers:
            self._last[layer] = self._new_views[rows][layer]
            self._copy(layer, slice(rows), start)
            self._stored_until[layer] = start + rows

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order."""
        for layer, stored_until in enumerate(self._stored_until):
            if self.length + len(rows) > stored_until:
                self._copy(layer, rows, self.length)
        self.length += len(rows)

    def copied(self, length: int) -> list[Pair]:
        """Per layer copies of the keys and values of the first committed tokens."""
        return copied(self._longest, length)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of such copies, in place of all that is there."""
        self.length = 0
        for views in self._views.values():
            put(views, layers, length)
        self.length = length

    def _copy(self, layer: int, rows: slice | NDArray[np.uint32], start: int) -> None:
        """Copy rows of the last step to the slots from `start` on, as far as there are any."""
        layout = self._encodings[layer]
        encodings = ((layout.key, layout.key_new), (layout.value, layout.value_new))
        for index, pair in enumerate(encodings):
            taken = encoded_as(*pair, self._last[layer][index][:, :, rows])
            for views in self._views.values():
                target = views[layer][index][:, :, start : start + taken.shape[2]]
                target[:] = taken[:, :, : target.shape[2]]


def as_rows(arrays: Iterable[Pair]) -> list[Pair]:
    """The same memory as (1, kv_heads, slots, head_dim)."""
    return [(keys.transpose(1, 0, 3, 2), values.transpose(1, 0, 2, 3)) for keys, values in arrays]


def encoded_as(past: Encoding, new: Encoding, taken: NDArray[Any]) -> NDArray[Any]:
    """New rows as past ones: the graphs may read them under another encoding."""
    return taken if past == new else past.quantize(new.dequantize(taken))
