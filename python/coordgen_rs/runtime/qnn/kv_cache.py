"""Keys and values of the committed tokens on Qualcomm's HTP: fixed slots, integers.

A step outputs its rows, and the host copies them to the slots. Slot `s` holds the token at position
`s`: positions and mask are inputs of the graphs, so that tokens may stand at the left end, where
none has to move. Graphs of different widths may read caches of different lengths; each length then
has arrays of its own, and tokens are committed to all of them.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.qnn import CacheEncodings
from coordgen_rs.runtime.caches.kv_cache import Cache, Pair

Axes = tuple[int, int, int, int]

BY_ROWS: tuple[Axes, Axes] = (0, 1, 2, 3), (0, 1, 2, 3)
"""Keys and values are both `(1, kv_heads, slots, head_dim)`."""
KEYS_BY_DIM: tuple[Axes, Axes] = (1, 0, 3, 2), (1, 0, 2, 3)
"""Keys are `(kv_heads, 1, head_dim, slots)`, and values `(kv_heads, 1, slots, head_dim)`."""


class IntegerCache(Cache):
    """Cache of one request, all layers, as the integers that the graphs read.

    Args:
        encodings: The encodings of each layer.
        num_kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        slots: Slots that the graph of each width reads.
        layout: How the graphs lay out keys and values: the axes of `BY_ROWS`, reordered. The same
            order must lead back.
    """

    def __init__(
        self,
        encodings: Sequence[CacheEncodings],
        num_kv_heads: int,
        head_dim: int,
        slots: Mapping[int, int],
        layout: tuple[Axes, Axes] = BY_ROWS,
    ) -> None:
        self._encodings, self._heads, self._head_dim = encodings, num_kv_heads, head_dim
        self._slots, self._layout = slots, layout
        self._arrays = {size: self._zeros(size, is_past=True) for size in set(slots.values())}
        self._new = {rows: self._zeros(rows, is_past=False) for rows in slots}
        self._views = {size: self._by_rows(arrays) for size, arrays in self._arrays.items()}
        self._new_views = {rows: self._by_rows(arrays) for rows, arrays in self._new.items()}
        longest = self._views[max(self._views)]
        super().__init__(longest)
        self._last = list(longest)
        self._stored_until = [0] * len(encodings)

    def _zeros(self, size: int, *, is_past: bool) -> list[Pair]:
        """Arrays of all layers that hold zeros, in the graphs' layout."""
        shape = (1, self._heads, size, self._head_dim)
        keys, values = (tuple(shape[axis] for axis in axes) for axes in self._layout)
        arrays = []
        for layer in self._encodings:
            key, value = (layer.key, layer.value) if is_past else (layer.key_new, layer.value_new)
            of_keys = np.full(keys, key.zero_point, key.dtype)
            arrays.append((of_keys, np.full(values, value.zero_point, value.dtype)))
        return arrays

    def _by_rows(self, arrays: Iterable[Pair]) -> list[Pair]:
        """The same memory as `BY_ROWS`."""
        of_keys, of_values = self._layout
        return [(keys.transpose(of_keys), values.transpose(of_values)) for keys, values in arrays]

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
        """Append the given rows of the last step, in path order.

        Rows `0 .. n-1` of a chunk that was stored in parts are already in their slots.
        """
        is_canonical = np.array_equal(rows, np.arange(len(rows)))
        for layer, stored_until in enumerate(self._stored_until):
            if not is_canonical or self.length + len(rows) > stored_until:
                self._copy(layer, rows, self.length)
        self.length += len(rows)

    def put(self, layers: Sequence[Pair], length: int) -> None:
        """Commit the first `length` tokens of copies, in place of all that is there."""
        self.length = 0
        for views in self._views.values():
            for arrays, saved in zip(views, layers, strict=True):
                for array, copy in zip(arrays, saved, strict=True):
                    array[:, :, :length] = copy[:, :, :length]
        self.length = length

    def _copy(self, layer: int, rows: slice | NDArray[np.uint32], start: int) -> None:
        """Copy rows of the last step to the slots from `start` on, as far as there are any."""
        layout = self._encodings[layer]
        encodings = ((layout.key, layout.key_new), (layout.value, layout.value_new))
        for index, (encoding, new_encoding) in enumerate(encodings):
            taken = self._last[layer][index][:, :, rows]
            if encoding != new_encoding:  # not tied: the past is read under another encoding
                taken = encoding.quantize(new_encoding.dequantize(taken))
            for views in self._views.values():
                target = views[layer][index][:, :, start : start + taken.shape[2]]
                target[:] = taken[:, :, : target.shape[2]]
