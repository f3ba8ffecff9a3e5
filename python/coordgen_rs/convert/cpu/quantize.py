"""Weights rounded to integers in blocks.

In: rows of a float32 matrix. Out: blocks of 32 along the row as GGUF files have them (Q4_1, Q8_0),
with float16 scales.

A scale beyond float16 is refused: that of weights from some 60,000 on in 4 bits, from 8.4 million
on in 8. Scales below 2^-14 have fewer digits, and those below 2^-25 are zero, as are their weights.

8 bits are symmetric: a zero point of their own lowers the weights' error only from 0.53 to 0.48 %.
4 bits are asymmetric, and their steps are searched (`int4.py`).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.convert.cpu.int4 import as_half, inverse, search_grids
from coordgen_rs.errors import CheckpointError

BLOCK_SIZE = 32
MIDDLE_OF_8_BITS = 128
"""The zero point of 8 bits: integers less it are signed."""
QUANTIZED_TYPES = {4: "Q4_1", 8: "Q8_0"}
"""What integers of so many bits are written as, those of 4 with zero points."""
BITS_OF_TYPES = {name: 8 * size / weights for name, (weights, size) in weight_types().items()}
"""Bits of a weight, with its part of the scale and the minimum."""
TOO_LARGE = "{} holds weights too large for {} bits in blocks, whose scales are float16"
_AT_A_TIME = 4096
"""Blocks that are searched at a time."""


@dataclass(frozen=True)
class IntegerRows:
    """Some rows as integers: a weight is `(value - zero point) * scale` of its block."""

    values: NDArray[np.uint8]
    """`(n, in_features)`, one number each; rows are whole blocks"""
    scales: NDArray[np.float32]
    """`(n, blocks)`"""
    zero_points: NDArray[np.uint8] | None
    """`(n, blocks)`; None stands for 128, the middle of 8 bits"""


def num_blocks(in_features: int) -> int:
    """Blocks per row; the last one is padded with zeros."""
    return math.ceil(in_features / BLOCK_SIZE)


def quantize_rows(rows: NDArray[np.float32], bits: int, name: str) -> NDArray[np.uint8]:
    """Rows `(n, in_features)` in blocks of 4 or 8 bits, `(n, blocks, bytes of a block)`.

    Args:
        rows: Finite weights.
        bits: 4 or 8.
        name: What an error calls them.

    Raises:
        CheckpointError: Same as of `blocks_of`.
    """
    n, in_features = rows.shape
    blocks = num_blocks(in_features)
    padded = np.zeros((n, blocks * BLOCK_SIZE), np.float32)
    padded[:, :in_features] = rows
    in_blocks = padded.reshape(n, blocks, BLOCK_SIZE)
    integers = _symmetric_8(in_blocks) if bits == 8 else _asymmetric_4(in_blocks)
    return blocks_of(integers, bits, name)


def blocks_of(rows: IntegerRows, bits: int, name: str) -> NDArray[np.uint8]:
    """Integers of 4 or 8 bits in blocks of 32 as GGUF has them, `(n, blocks, bytes of a block)`.

    Scales, and what zero points stand for, are rounded to float16.

    Raises:
        CheckpointError: They are too large for it; `name` is what the weights are called.
    """
    n, num = rows.scales.shape
    values = rows.values.reshape(n, num, BLOCK_SIZE)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = [rows.scales]
        if rows.zero_points is not None:
            numbers.append(-rows.zero_points.astype(np.float32) * rows.scales)
        halves = np.stack(numbers, -1).astype("<f2")
    if not np.isfinite(halves).all():
        raise CheckpointError(TOO_LARGE.format(name, bits))
    if bits == 8:
        values = values ^ np.uint8(MIDDLE_OF_8_BITS)
    else:
        values = values[..., :16] | values[..., 16:] << np.uint8(4)
    return np.concatenate([halves.view(np.uint8), values], -1)


def _symmetric_8(blocks: NDArray[np.float32]) -> IntegerRows:
    """The element of largest magnitude becomes -128, its sign goes into the scale."""
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = as_half(extremes / np.float32(-128))
    values = np.clip(np.rint(blocks * inverse(scales)) + MIDDLE_OF_8_BITS, 0, 255)
    return IntegerRows(_as_rows(values), scales[..., 0], None)


def _asymmetric_4(blocks: NDArray[np.float32]) -> IntegerRows:
    """The grids of least error; some blocks at a time, which stay in the cache."""
    n, num, size = blocks.shape
    parts = []
    for some in np.array_split(blocks.reshape(-1, size), -(-n * num // _AT_A_TIME)):
        grids = search_grids(some)
        parts.append((grids.values(some), grids.steps, grids.zeros))
    values, steps, zeros = (np.concatenate(part) for part in zip(*parts, strict=True))
    zeros = zeros.astype(np.uint8).reshape(n, num)
    return IntegerRows(_as_rows(values.reshape(n, num, size)), steps.reshape(n, num), zeros)


def _as_rows(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Whole numbers `(n, blocks, block size)` as bytes, row by row."""
    return values.astype(np.uint8).reshape(len(values), -1)
