"""What the types of GGUF files stand for.

In: the raw bytes of rows. Out: float32, which the gguf package makes of them, and Q4_0 for the
ternary types, whose weights it holds exactly. Types that products read go past this file as they
are (`../tensor.py`, `StoredBlocks`).
"""

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
"""Types that are floats, not integers in blocks."""
TERNARY = ("TQ1_0", "TQ2_0")
"""Types whose weights are -1, 0 or 1 times the scale of 256."""
MOST_EXPONENT = 252
"""Of MXFP4: with a larger one some weight is no float32."""

_BLOCK = 32
_MIDDLE = 8
"""Of the integers of Q4_0."""


def float_rows(kind: GGMLQuantizationType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The rows of `raw (n, bytes of a row)` as float32.

    Raises:
        NotImplementedError: The gguf package cannot do this type.
    """
    return np.asarray(quants.dequantize(raw, kind), np.float32)


def as_q4_0(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows of ternary weights `(n, in_features)` in Q4_0, `(n, blocks, bytes of a block)`."""
    in_blocks = weights.reshape(len(weights), -1, _BLOCK)
    sizes = np.abs(in_blocks)
    # A damaged file may hold 2, too.
    scales = sizes.min(-1, keepdims=True, where=sizes > 0, initial=np.inf)
    scales[np.isinf(scales)] = 1
    values = (np.rint(in_blocks / scales) + _MIDDLE).astype(np.uint8)
    nibbles = values[..., : _BLOCK // 2] | values[..., _BLOCK // 2 :] << np.uint8(4)
    return np.concatenate([scales.astype("<f2").view(np.uint8), nibbles], -1)
