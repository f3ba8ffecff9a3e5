"""Weights rounded to integers in blocks of 32 along the row, as GGUF files have them.

In: rows of a float32 matrix. Out: blocks of Q8_0 or Q4_1, with float16 scales.

A scale beyond float16 is refused: that of weights from some 60,000 on in 4 bits, from 8.4 million
on in 8. Scales below 2^-14 have fewer digits, and those below 2^-25 are zero, as are their weights.

8 bits are symmetric: a zero point of their own lowers the weights' error only from 0.53 to 0.48 %.

4 bits have a step and an integer zero point from 0 to 15 in each block, which are searched by
error; a weight is `(value - zero point) * step`, and the minimum that is stored the zero point
times the step. Each block takes the candidate of the least squared error, the first of equal ones:
- the range from its least to its largest weight, zero included, cut into 15 steps, which is exact
  for blocks of that form;
- its weight of largest magnitude as -8 steps and zero in the middle, which is exact for blocks of
  Q4_0, so that this is never worse than symmetric 4 bits;
- a range shrunk or stretched, from 0.85 to 1.05, whose middle is the grid's, with the step then
  fitted by least squares. Without the fit and with fifteen ranges and three zero points each, the
  error is the same and takes four times as long.
Minima that are no multiple of the step, which Q4_1 can also hold, were not searched for.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import weight_types
from coordgen_rs.errors import CheckpointError

_Array = NDArray[np.float32]

BLOCK_SIZE = 32
QUANTIZED_TYPES = {4: "Q4_1", 8: "Q8_0"}
"""What integers of so many bits are written as, those of 4 with zero points."""
BITS_OF_TYPES = {name: 8 * size / weights for name, (weights, size) in weight_types().items()}
"""Bits of a weight, with its part of the scale and the minimum."""
_AT_A_TIME = 4096
"""Blocks that are searched at a time."""
_STEPS = np.float32(15)
_RANGES = (1.0, 0.95, 0.9, 0.85, 1.05)
_MOST_EXPONENT = 126
"""Powers of two up to this one, and their inverses, are float32."""


def num_blocks(in_features: int) -> int:
    """Blocks per row; the last one is padded with zeros."""
    return math.ceil(in_features / BLOCK_SIZE)


def quantize_rows(rows: _Array, bits: int, name: str) -> NDArray[np.uint8]:
    """Rows `(n, in_features)` in blocks of 4 or 8 bits, `(n, blocks, bytes of a block)`.

    Args:
        rows: Finite weights.
        bits: 4 or 8.
        name: What an error calls them.

    Raises:
        CheckpointError: They are too large for scales of float16.
    """
    n, in_features = rows.shape
    padded = np.zeros((n, num_blocks(in_features) * BLOCK_SIZE), np.float32)
    padded[:, :in_features] = rows
    blocks = padded.reshape(n, -1, BLOCK_SIZE)
    return _rounded_to_8(blocks, name) if bits == 8 else _rounded_to_4(blocks, name)


def _rounded_to_8(blocks: _Array, name: str) -> NDArray[np.uint8]:
    """The element of largest magnitude becomes -128, its sign goes into the scale."""
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
    scales = as_half(extremes / np.float32(-128))
    values = np.clip(np.rint(blocks * inverse(scales)), -128, 127).astype(np.int8)
    return _with_halves([scales[..., 0]], values.view(np.uint8), 8, name)


def _rounded_to_4(blocks: _Array, name: str) -> NDArray[np.uint8]:
    """The grids of least error; some blocks at a time, which stay in the cache."""
    n, num, size = blocks.shape
    parts = []
    for some in np.array_split(blocks.reshape(-1, size), -(-n * num // _AT_A_TIME)):
        grids = search_grids(some)
        parts.append((grids.values(some), grids.steps, grids.zeros))
    joined = (np.concatenate(it).reshape(n, num, -1) for it in zip(*parts, strict=True))
    values, steps, zeros = joined
    return blocks_of_4(values, steps[..., 0], zeros[..., 0], name)


def blocks_of_4(values: NDArray[Any], steps: _Array, zeros: _Array, name: str) -> NDArray[np.uint8]:
    """Numbers on grids of 4 bits as blocks of Q4_1, `(n, blocks, bytes of a block)`.

    Args:
        values: Whole numbers from 0 to 15, `(n, blocks, block size)`.
        steps: Those of the grids, `(n, blocks)`.
        zeros: Their zero points, `(n, blocks)`.
        name: What an error calls the weights.

    Raises:
        CheckpointError: Steps, or what zero points stand for, are beyond float16.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        minima = -(zeros + np.float32(0)) * steps  # zeros of either sign are one
    numbers = values.astype(np.uint8)
    packed = numbers[..., :16] | numbers[..., 16:] << np.uint8(4)
    return _with_halves([steps, minima], packed, 4, name)


def _with_halves(
    numbers: list[_Array], values: NDArray[np.uint8], bits: int, name: str
) -> NDArray[np.uint8]:
    """Blocks that begin with numbers rounded to float16.

    Raises:
        CheckpointError: They are too large for it.
    """
    with np.errstate(over="ignore"):
        halves = np.stack(numbers, -1).astype("<f2")
    if not np.isfinite(halves).all():
        raise CheckpointError(
            f"{name} holds weights too large for {bits} bits in blocks, whose scales are float16"
        )
    return np.concatenate([halves.view(np.uint8), values], -1)


@dataclass(frozen=True)
class Grids:
    """The sixteen numbers that each of some blocks can hold."""

    steps: _Array
    """`(n, 1)`, numbers of float16, in which they are stored"""
    zeros: _Array
    """`(n, 1)`, whole numbers from 0 to 15"""

    def values(self, weights: _Array) -> _Array:
        """The nearest of the sixteen, by number: whole numbers from 0 to 15, as float32."""
        numbers: _Array = np.rint(weights * inverse(self.steps)) + self.zeros
        return numbers.clip(0, _STEPS)

    def weights(self, values: _Array) -> _Array:
        """What values stand for."""
        return (values - self.zeros) * self.steps


def search_grids(blocks: _Array, importance: _Array | None = None) -> Grids:
    """The grid of each block.

    Args:
        blocks: Finite weights, `(n, block_size)`.
        importance: What the squared error of each weight counts, `(block_size,)`; None for 1.
    """
    largest = np.abs(blocks).max(-1, keepdims=True)
    exponents = np.frexp(largest)[1].clip(-_MOST_EXPONENT, _MOST_EXPONENT)
    # Scaled by a power of two, which rounds nothing, squares neither overflow nor vanish.
    blocks = blocks * np.exp2(-exponents, dtype=np.float32)
    counted = blocks if importance is None else blocks * importance
    best = _range(blocks)
    least = _error(blocks, best, importance)
    symmetric = _symmetric(blocks)
    fitted = (_fitted(blocks, counted, share, importance) for share in _RANGES)
    for grids, error in ((symmetric, _error(blocks, symmetric, importance)), *fitted):
        is_better = error < least
        best = Grids(
            np.where(is_better, grids.steps, best.steps),
            np.where(is_better, grids.zeros, best.zeros),
        )
        least = np.where(is_better, error, least)
    return Grids(as_half(best.steps * np.exp2(exponents, dtype=np.float32)), best.zeros)


def _bounds(blocks: _Array) -> tuple[_Array, _Array]:
    """The least and the largest weight, or 0."""
    lowest = np.minimum(blocks.min(-1, keepdims=True), 0)
    return lowest, np.maximum(blocks.max(-1, keepdims=True), 0)


def _range(blocks: _Array) -> Grids:
    lowest, highest = _bounds(blocks)
    steps = (highest - lowest) / _STEPS
    return Grids(steps, np.rint(-lowest * inverse(steps)))


def _symmetric(blocks: _Array) -> Grids:
    extremes = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[:, None], -1)
    return Grids(extremes / np.float32(-8), np.full_like(extremes, 8))


def _fitted(
    blocks: _Array, counted: _Array, share: float, importance: _Array | None
) -> tuple[Grids, _Array]:
    """A share of the range in the middle of the grid, the step fitted, and its error `(n, 1)`.

    `counted` are the blocks times the importance.
    """
    lowest, highest = _bounds(blocks)
    steps = (highest - lowest) * np.float32(share / 15)
    middle = (highest + lowest) / 2 * inverse(steps)
    grids = Grids(steps, np.clip(np.rint(_STEPS / 2 - middle), 0, _STEPS))
    numbers = grids.values(blocks) - grids.zeros
    weighted = numbers if importance is None else numbers * importance
    products, lengths = _dot(counted, numbers), _dot(weighted, numbers)
    fitted = np.divide(products, lengths, out=steps, where=lengths > 0)
    error = np.maximum(_dot(counted, blocks) - fitted * products, 0)
    return Grids(fitted, grids.zeros), error


def _error(blocks: _Array, grids: Grids, importance: _Array | None) -> _Array:
    """The squared error of each block, `(n, 1)`."""
    off = grids.weights(grids.values(blocks)) - blocks
    return _dot(off if importance is None else off * importance, off)


def _dot(one: _Array, other: _Array) -> _Array:
    """Products of rows with rows, `(n, 1)`."""
    products: _Array = np.einsum("ij,ij->i", one, other)
    return products[:, None]


def as_half(steps: _Array) -> _Array:
    """The nearest numbers of float16: infinite where there is none."""
    with np.errstate(over="ignore"):
        return steps.astype(np.float16).astype(np.float32)


def inverse(steps: _Array) -> _Array:
    """1 / step, and 0 where that is no float32."""
    inverses = np.zeros_like(steps)
    return np.divide(1, steps, out=inverses, where=np.abs(steps) >= np.finfo(np.float32).tiny)
