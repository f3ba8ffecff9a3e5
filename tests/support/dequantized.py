"""What weights in blocks stand for, number by number."""

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from coordgen_rs.tools.export.cpu.quantize import QUANTIZED_TYPES

PANEL_OUTPUTS = 16


def dequantized(blocks: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """Blocks as `quantize_rows` gives them, to `(n, blocks * 32)`: with the last one's padding."""
    return dequantized_as(QUANTIZED_TYPES[bits], blocks)


def dequantized_as(weight_type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Blocks `(n, blocks, bytes of a block)` of a type of GGUF, to `(n, blocks * 32)`."""
    rows = blocks.reshape(len(blocks), -1)
    return np.asarray(quants.dequantize(rows, GGMLQuantizationType[weight_type]), np.float32)


def scales_of(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The scale of each block, `(n, blocks)`."""
    return np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float32)
