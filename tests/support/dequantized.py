"""What quantised rows stand for, number by number."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.tools.export.cpu.quantize import QuantizedRows


def unpacked(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """4-bit numbers, two to a byte along the last axis, the first in the low half."""
    pairs = np.stack([numbers & 15, numbers >> 4], -1)
    return pairs.reshape(*numbers.shape[:-1], -1)


def dequantized(rows: QuantizedRows) -> NDArray[Any]:
    """`(n, blocks * block size)` float32: the padding of the last block is there, too."""
    num_blocks, values = rows.scales.shape[1], rows.values
    zeros = np.full(rows.scales.shape, 128, np.uint8)
    if rows.zero_points is not None:
        values, zeros = unpacked(values), unpacked(rows.zero_points)[:, :num_blocks]
    numbers = values.astype(np.float32) - zeros[..., None].astype(np.float32)
    return (numbers * rows.scales[..., None]).reshape(len(values), -1)
