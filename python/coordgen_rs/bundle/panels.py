"""Rows of a matrix whose weights stand in panels, as the operator `Product` reads them.

In: the bytes of all panels (`src/kernels/product/panels.rs`). Out: some rows in float32. So an
embedding that is also the output layer is stored once.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

WeightType = Literal["Q4_0", "Q4_1", "Q8_0"]

OUTPUTS, BLOCK = 16, 32
"""Rows of a panel, and weights of a row that share a scale."""
_VALUE_BYTES = {"Q4_0": 16, "Q4_1": 16, "Q8_0": 32}
_HALVES = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}
_ZEROS = {"Q4_0": 8, "Q4_1": 0, "Q8_0": 128}


def num_bytes(weight_type: str, rows: int, columns: int) -> int:
    """Bytes of a matrix in panels."""
    blocks = -(-columns // BLOCK)
    block = _VALUE_BYTES[weight_type] + 2 * _HALVES[weight_type]
    return -(-rows // OUTPUTS) * OUTPUTS * blocks * block


class PanelRows:
    """Rows `(rows, columns)` that are made float32 when they are asked for.

    Args:
        content: `(num_bytes,) u8`.
        weight_type: A `WeightType`.
        rows: Rows of the matrix.
        columns: Weights of a row.
        scale: What each weight is multiplied by.
    """

    def __init__(
        self, content: NDArray[np.uint8], weight_type: str, rows: int, columns: int, scale: float
    ) -> None:
        panels, blocks = -(-rows // OUTPUTS), -(-columns // BLOCK)
        self._type, self._columns, self._scale = weight_type, columns, np.float32(scale)
        by_panel = content.reshape(panels, -1)
        num_values = OUTPUTS * blocks * _VALUE_BYTES[weight_type]
        values, halves = np.split(by_panel, [num_values], axis=1)
        self._values = values.reshape(panels, blocks, -1, OUTPUTS, 4)
        self._halves = halves.view("<f2").reshape(panels, -1, blocks, OUTPUTS)

    def __getitem__(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of some numbers `(n,)`, `(n, columns) f32`."""
        panels, lanes = np.divmod(numbers, OUTPUTS)
        values = self._values[panels, :, :, lanes]
        scales, *minima = self._halves[panels, :, :, lanes].astype(np.float32).swapaxes(0, 1)
        if self._type != "Q8_0":  # a byte's low half is of one group, its high half of the next
            values = np.stack([values & 15, values >> 4], axis=3)
        weights = values.reshape(*scales.shape, BLOCK).astype(np.float32)
        weights = (weights - np.float32(_ZEROS[self._type])) * scales[..., np.newaxis]
        for minimum in minima:
            weights += minimum[..., np.newaxis]
        rows: NDArray[np.float32] = weights.reshape(len(numbers), -1)[:, : self._columns]
        return rows * self._scale
