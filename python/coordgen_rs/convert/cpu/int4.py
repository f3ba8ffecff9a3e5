"""Four bits: the step and the zero point of each block of weights, searched by error.

In: float32 weights in blocks. Out: steps, and integer zero points from 0 to 15; a weight is
`(value - zero point) * step`. The layout in which they are stored is `quantize.py`'s: Q4_1, whose
minimum is the zero point times the step, rounded to float16.

Each block takes the candidate of the least squared error, the first of equal ones:
- the range from its least to its largest weight, zero included, cut into 15 steps, which is exact
  for blocks of that form;
- its weight of largest magnitude as -8 steps and zero in the middle, which is exact for blocks of
  Q4_0, so that this is never worse than symmetric 4 bits;
- a range shrunk or stretched, from 0.85 to 1.05, whose middle is the grid's, with the step then
  fitted by least squares. Without the fit and with fifteen ranges and three zero points each, the
  error is the same and takes four times as long.
Minima that are no multiple of the step, which Q4_1 can also hold, were not searched for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float32]

_STEPS = np.float32(15)
_RANGES = (1.0, 0.95, 0.9, 0.85, 1.05)
_MOST_EXPONENT = 126
"""Powers of two up to this one, and their inverses, are float32."""


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
