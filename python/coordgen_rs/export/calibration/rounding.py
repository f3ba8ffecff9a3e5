"""Weights as integers with one step for each output feature: what the HTP and W8A8 multiply by.

In: a matrix, and the products of what enters it on real text. Out: integers and steps.

Columns are rounded one after the other, and the error of each is taken off those that are still to
come (`calibration/spreading.py`): inputs that weigh most come first, since the last have nowhere to
leave their errors. The step is searched before: the one of a dozen that leaves the least error of
the weights, each counting by the mean square of its input.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.export.calibration.spreading import spreading

Array = NDArray[np.float32]

_SHARES = tuple(np.linspace(1.0, 0.4, 13).tolist())
"""Of the range that a step covers."""
_AT_A_TIME = 64
"""Columns whose errors reach those far behind together."""
_LEAST_STEP = np.float32(1e-12)


@dataclass(frozen=True)
class ColumnIntegers:
    """A matrix in fixed point: a weight is its integer times the step of its output feature."""

    values: NDArray[np.int8]
    """`(in_features, out_features)`; of 4 bits from -8 to 7."""
    steps: Array
    """`(out_features,)`"""
    bits: int


def rounded(weight: Array, products: Array, bits: int) -> ColumnIntegers:
    """A matrix in so many bits.

    Args:
        weight: Finite, `(in_features, out_features)`.
        products: Of each input with each, summed over rows, `(in_features, in_features)`.
        bits: 4 or 8.

    Raises:
        CheckpointError: What enters it cannot be compensated for.
    """
    steps = _searched_steps(weight, np.diagonal(products), bits)
    order = np.argsort(-np.diagonal(products), kind="stable")
    spread = spreading(products[np.ix_(order, order)])
    left, highest = weight[order], (1 << bits - 1) - 1
    values = np.empty(weight.shape, np.int8)
    for start in range(0, len(left), _AT_A_TIME):
        stop = min(start + _AT_A_TIME, len(left))
        errors = np.empty((stop - start, left.shape[1]), np.float32)
        for row in range(start, stop):
            integers = np.rint(left[row] / steps).clip(-highest - 1, highest)
            values[order[row]] = integers
            errors[row - start] = (left[row] - integers * steps) / spread[row, row]
            left[row + 1 : stop] -= np.outer(spread[row, row + 1 : stop], errors[row - start])
        left[stop:] -= spread[start:stop, stop:].T @ errors
    return ColumnIntegers(values, steps, bits)


def output_error(weight: Array, products: Array, integers: ColumnIntegers) -> float:
    """Squared error of the outputs, summed over the rows that `products` were made of."""
    lost = weight - integers.values * integers.steps
    return float(np.einsum("io,io->", products @ lost, lost, dtype=np.float64))


def _searched_steps(weight: Array, importance: Array, bits: int) -> Array:
    """The step of each output feature, `(out_features,)`."""
    middle = np.float32(1 << bits - 1)
    largest = np.maximum(np.abs(weight).max(0), _LEAST_STEP * middle)
    best = largest / (middle - np.float32(0.5))
    least = np.full(best.shape, np.inf, np.float32)
    for share in _SHARES:
        steps = largest * np.float32(share) / (middle - np.float32(0.5))
        integers = np.rint(weight / steps).clip(-middle, middle - 1)
        error = importance @ np.square(weight - integers * steps)
        is_better = error < least
        best, least = np.where(is_better, steps, best), np.where(is_better, error, least)
    return np.asarray(best, np.float32)
