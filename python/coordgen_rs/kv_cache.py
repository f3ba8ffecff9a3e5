"""Keys and values of the committed tokens: fixed slots that the graphs write and the host owns.

Slot `s` of a layer holds the key and value of the token at position `s`. A step writes its rows to
the slots behind the committed ones; what is not committed is masked, and overwritten by the next.
"""

import numpy as np
import onnxruntime
from numpy.typing import NDArray


class KvCache:
    """Cache of one request, all layers, float32, in place.

    Args:
        num_layers: Layers of the target.
        num_kv_heads: Heads of keys and values.
        num_slots: Tokens that fit, the rows of the widest step included.
        head_dim: Width of a head.

    Attributes:
        length: Number of committed tokens; their slots are `0 .. length - 1`.
        values: Per layer a pair of OrtValues, keys and values, each `(1, kv_heads, slots,
            head_dim) f32`, to be bound both as input and as output of the block that owns them.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, num_slots: int, head_dim: int) -> None:
        shape = (1, num_kv_heads, num_slots, head_dim)
        self.length = 0
        self._arrays = [
            (np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in range(num_layers)
        ]
        self.values = [
            tuple(onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in pair)
            for pair in self._arrays
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(array.nbytes for pair in self._arrays for array in pair)

    def commit(self, rows: NDArray[np.uint32]) -> None:
        """Append the given rows of the last step, in path order.

        Rows `0 .. n-1` already stand in their slots (canonical commit); others are moved together.
        """
        count = len(rows)
        if not np.array_equal(rows, np.arange(count)):
            source = self.length + rows.astype(np.intp)
            target = slice(self.length, self.length + count)
            for pair in self._arrays:
                for array in pair:
                    array[:, :, target] = array[:, :, source]
        self.length += count
