"""Block-wise quantisation of weights, in the layout of ONNX Runtime's MatMulNBits.

In: rows of a float32 matrix. Out: unsigned 8- or 4-bit values in blocks of 32 along the row, a
float32 scale per block and, for 4 bits, a zero point per block. Or integers as a checkpoint holds
them, whose values stay exactly what they are.

8 bits are symmetric: a zero point of their own lowers the weights' error only from 0.53 to 0.48 %.
4 bits are asymmetric, and their steps are searched (`int4.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.tools.export.checkpoints.tensor import IntegerFormat, IntegerRows
from coordgen_rs.tools.export.cpu.int4 import Grids, inverse, search_grids

BLOCK_SIZE = 32
_AT_A_TIME = 4096
"""Blocks that are searched at a time."""


@dataclass(frozen=True)
class QuantizedRows:
    """Some rows of a matrix; a weight is `(value - zero point) * scale` of its block.

    Two 4-bit numbers share a byte, the first in its low half. Without zero points they are 128.
    """

    values: NDArray[np.uint8]
    """`(n, blocks, block size * bits / 8)`"""
    scales: NDArray[np.float32]
    """`(n, blocks)`"""
    zero_points: NDArray[np.uint8] | None
    """`(n, blocks / 2 rounded up)` for 4 bits, `(n, blocks)` for 8"""


def num_blocks(in_features: int) -> int:
    """Blocks per row; the last one is padded with zeros."""
    return math.ceil(in_features / BLOCK_SIZE)


def quantize_rows(rows: NDArray[np.float32], bits: int) -> QuantizedRows:
    """Quantises `(n, in_features)` float32 rows to 8 or 4 bits."""
    n, in_features = rows.shape
    blocks = num_blocks(in_features)
    padded = np.zeros((n, blocks * BLOCK_SIZE), np.float32)
    padded[:, :in_features] = rows
    in_blocks = padded.reshape(n, blocks, BLOCK_SIZE)
    return _symmetric_8(in_blocks) if bits == 8 else _asymmetric_4(in_blocks)


def common_format(formats: Sequence[IntegerFormat]) -> IntegerFormat:
    """The format of the fewest bits that holds the values of all formats exactly."""
    return IntegerFormat(
        max(it.bits for it in formats),
        min(it.block_size for it in formats),
        any(it.has_zero_points for it in formats),
    )


def pack_rows(rows: IntegerRows, held: IntegerFormat, wanted: IntegerFormat) -> QuantizedRows:
    """Integers in the format `wanted`, one that `common_format` gave for `held` and others."""
    middle, shift = 1 << held.bits - 1, (1 << wanted.bits - 1) - (1 << held.bits - 1)
    repeats = held.block_size // wanted.block_size
    values = (rows.values + np.uint8(shift)).reshape(len(rows.values), -1, wanted.block_size)
    zero_points = None
    if wanted.has_zero_points:
        zeros = rows.zero_points
        zeros = np.full(rows.scales.shape, middle, np.uint8) if zeros is None else zeros
        zero_points = (zeros + np.uint8(shift)).repeat(repeats, axis=1)
        zero_points = _pack(zero_points) if wanted.bits == 4 else zero_points
    packed = _pack(values) if wanted.bits == 4 else values
    return QuantizedRows(packed, rows.scales.repeat(repeats, axis=1), zero_points)


def _symmetric_8(blocks: NDArray[np.float32]) -> QuantizedRows:
    """The element of largest magnitude becomes exactly -128, its sign goes into the scale."""
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = extremes / np.float32(-128)
    values = np.clip(np.rint(blocks * inverse(scales)) + 128, 0, 255)
    return QuantizedRows(values.astype(np.uint8), scales[..., 0], None)


def _asymmetric_4(blocks: NDArray[np.float32]) -> QuantizedRows:
    """The grids of least error; some blocks at a time, which stay in the cache."""
    n, num_blocks, size = blocks.shape
    parts = []
    for some in np.array_split(blocks.reshape(-1, size), -(-n * num_blocks // _AT_A_TIME)):
        grids = search_grids(some)
        parts.append((grids.values(some), grids.steps, grids.zeros))
    values, steps, zeros = (np.concatenate(part) for part in zip(*parts, strict=True))
    return packed_4(values, Grids(steps, zeros), (n, num_blocks))


def packed_4(values: NDArray[np.float32], grids: Grids, shape: tuple[int, int]) -> QuantizedRows:
    """Whole numbers of 4 bits `(n * blocks, block size)` as stored; `shape` is `n, blocks`."""
    return QuantizedRows(
        _pack(values.reshape(*shape, -1)),
        grids.steps.reshape(shape),
        _pack(grids.zeros.reshape(shape)),
    )


def _pack(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Two 4-bit numbers to a byte along the last axis, an odd one alone."""
    packed = numbers[..., 0::2].astype(np.uint8)
    second = numbers[..., 1::2].astype(np.uint8)
    packed[..., : second.shape[-1]] |= second << 4
    return packed
