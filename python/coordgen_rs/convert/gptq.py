"""Weights rounded so that what a layer gives on real text changes least.

In: a matrix, and the products of what enters it on real text. Out: integers of any grid
(`compensated`), and those of the HTP: with a step for each output feature, which may be multiplied
by another small integer in each block of inputs (LPBQ of Qualcomm's libraries), so that most
weights are spared the step of their column's largest.

Inputs are rounded one after the other, and the error of each is taken off those that are still to
come, as far as they go together on the texts: GPTQ (https://arxiv.org/abs/2210.17323, algorithm 1).
For the HTP, inputs that weigh most come first, since the last have nowhere to leave their errors.
Steps are searched before: those of a dozen that leave the least error of the weights, each counting
by the mean square of its input.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError

Array = NDArray[np.float32]
_Matrix = NDArray[np.float64]
RoundInput = Callable[[int, Array], tuple[Array, Array]]
"""From the number of an input and its weights, `(out_features,)`, to their integers, and what these
stand for."""

_DAMPING = 0.01
"""Added to the diagonal of products, in units of its mean, so that few texts suffice."""
_FACTORISED = 256
"""Columns of a triangular factor that are computed at a time."""
_SHARES = tuple(np.linspace(1.0, 0.4, 13).tolist())
"""Shares of the full range that the steps are tried on."""
_AT_A_TIME = 64
"""Columns whose errors reach those far behind together."""
_LEAST_STEP = np.float32(1e-12)
_DAMPING_BY_ROW, _MOST_DAMPING = 0.5, 1.0
"""Measured on SmolLM2, by the error on other texts than those that were calibrated on."""
_ROUNDS = 2
BLOCK = 32
"""Inputs that share a multiple of a step."""
_MOST_MULTIPLE = 16
"""What the HTP takes; the largest of a column is always that, or it would choose another step."""


@dataclass(frozen=True)
class ColumnIntegers:
    """A matrix in fixed point: a weight is its integer times the step of its output feature.

    With multiples, times that of its block, too.
    """

    values: NDArray[np.int8]
    """`(in_features, out_features)`; of 4 bits from -8 to 7."""
    steps: Array
    """`(out_features,)`"""
    bits: int
    multiples: NDArray[np.uint8] | None = None
    """`(in_features / BLOCK, out_features)`, from 1 to 16."""

    def floats(self) -> Array:
        """The weights that they stand for, `(in_features, out_features)`."""
        weight: Array = self.values * self.steps
        if self.multiples is not None:
            weight *= np.repeat(self.multiples, BLOCK, 0)
        return weight


def may_have_blocks(in_features: int, bits: int) -> bool:
    """Whether the steps of a matrix can differ from block to block."""
    return bits == 4 and in_features % BLOCK == 0 and in_features > BLOCK


def bits_taken(shape: tuple[int, int], bits: int) -> int:
    """Bits of all weights of a matrix `(in_features, out_features)`, of steps and multiples."""
    in_features, out_features = shape
    multiples = in_features // BLOCK * 8 if may_have_blocks(in_features, bits) else 0
    return (in_features * bits + multiples + 32) * out_features


def damped(products: NDArray[Any], damping: float = _DAMPING) -> _Matrix:
    """Products of inputs with more on their diagonal, and something for inputs that are zero."""
    products = products.astype(np.float64)
    diagonal = np.einsum("ii->i", products)
    # A column that is always zero has nothing to make good, and nothing goes with it.
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    return products


def spreading(products: NDArray[Any], damping: float = _DAMPING) -> NDArray[np.float32]:
    """How an error of each column spreads to those behind it: `(in_features, in_features)`.

    The upper Cholesky factor of the inverse of the inputs' products. That is the inverse of the
    triangular factor of the products themselves, taken from the last column on, so no inverse of
    the whole is computed. Memory: one square matrix of float64, and one of float32.

    Args:
        products: Sums over all rows of each input times each, `(in_features, in_features)`.
        damping: What is added to their diagonal, in units of its mean.

    Raises:
        CheckpointError: That factor does not exist, or is no float32.
    """
    reversed_products = damped(products[::-1, ::-1], damping)
    try:
        _factorise(reversed_products)
        _invert_lower(reversed_products)
        factor = reversed_products[::-1, ::-1].astype(np.float32)
    except np.linalg.LinAlgError:
        factor = np.full(products.shape, np.nan, np.float32)
    if not np.isfinite(factor).all():
        raise CheckpointError(
            "what enters a layer on the calibration text is too large or too uneven to round "
            "weights by it: use another text"
        )
    return factor


def _factorise(matrix: _Matrix) -> None:
    """Put the lower Cholesky factor of a matrix in its place, zeros above the diagonal.

    Raises:
        LinAlgError: There is none.
    """
    for start, stop in _blocks(len(matrix)):
        block = slice(start, stop)
        matrix[start:, block] -= matrix[start:, :start] @ matrix[block, :start].T
        matrix[block, block] = np.linalg.cholesky(matrix[block, block])
        matrix[stop:, block] = matrix[stop:, block] @ np.linalg.inv(matrix[block, block]).T
        matrix[block, stop:] = 0


def _invert_lower(matrix: _Matrix) -> None:
    """Put the inverse of a lower triangular matrix in its place."""
    for start, stop in _blocks(len(matrix)):
        block = slice(start, stop)
        inverse = np.linalg.inv(matrix[block, block])
        for first, last in _blocks(start):
            columns = slice(first, last)
            product = matrix[block, first:start] @ matrix[first:start, columns]
            matrix[block, columns] = -inverse @ product
        matrix[block, block] = inverse


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _FACTORISED):
        yield start, min(start + _FACTORISED, size)


def compensated(
    left: Array, spread: Array, at_a_time: int, rounding: Callable[[int, Array], RoundInput]
) -> NDArray[np.int8]:
    """Integers whose errors later inputs make good, `(in_features, out_features)`.

    Args:
        left: The weights, inputs in the order in which they are rounded; they are overwritten.
        spread: How errors spread, see `spreading`.
        at_a_time: Inputs whose errors reach those far behind together.
        rounding: What rounds the next of them, given the number of the first and the weights that
            are left of them.
    """
    values = np.empty(left.shape, np.int8)
    for start in range(0, len(left), at_a_time):
        stop = min(start + at_a_time, len(left))
        rounded_input = rounding(start, left[start:stop])
        errors = np.empty((stop - start, left.shape[1]), np.float32)
        for row in range(start, stop):
            values[row], meant = rounded_input(row, left[row])
            errors[row - start] = (left[row] - meant) / spread[row, row]
            left[row + 1 : stop] -= np.outer(spread[row, row + 1 : stop], errors[row - start])
        left[stop:] -= spread[start:stop, stop:].T @ errors
    return values


def rounded_in_blocks(weight: Array, products: Array, bits: int, num_rows: int) -> ColumnIntegers:
    """A matrix in so many bits, whose steps differ from block to block (`may_have_blocks`).

    The fewer rows there are for each input, the less what they say of inputs that go together is
    believed. Steps are those of the least error of the weights, whatever their inputs. Afterwards
    each integer is chosen again, twice, as suits all others best.

    Args:
        weight: Finite, `(in_features, out_features)`.
        products: Products of each input with each, summed over rows, `(in_features, in_features)`.
        bits: 4 or 8.
        num_rows: The number of those rows.

    Raises:
        CheckpointError: What enters it cannot be compensated for.
    """
    damping = min(_MOST_DAMPING, max(_DAMPING, _DAMPING_BY_ROW * len(weight) / num_rows))
    steps, multiples = _searched_multiples(weight, bits)
    by_row = np.repeat(multiples, BLOCK, 0) * steps
    values = _by_weight(weight, products, by_row, bits, damping)
    _choose_again(values, weight, damped(products, damping).astype(np.float32), by_row, bits)
    return ColumnIntegers(values, steps, bits, multiples)


def rounded(weight: Array, products: Array, bits: int) -> ColumnIntegers:
    """A matrix in so many bits.

    Args:
        weight: Finite, `(in_features, out_features)`.
        products: Products of each input with each, summed over rows, `(in_features, in_features)`.
        bits: 4 or 8.

    Raises:
        CheckpointError: What enters it cannot be compensated for.
    """
    steps = _searched_steps(weight, np.diagonal(products), bits)
    by_row = np.broadcast_to(steps, weight.shape)
    return ColumnIntegers(_by_weight(weight, products, by_row, bits, _DAMPING), steps, bits)


def _by_weight(
    weight: Array, products: Array, by_row: Array, bits: int, damping: float
) -> NDArray[np.int8]:
    """Integers, of the inputs that weigh most first; `by_row` are the steps of all weights."""
    order, highest = _most_first(products), (1 << bits - 1) - 1

    def rounded_input(row: int, left: Array) -> tuple[Array, Array]:
        steps = by_row[order[row]]
        integers = np.rint(left / steps).clip(-highest - 1, highest)
        return integers, integers * steps

    spread = spreading(products[np.ix_(order, order)], damping)
    values = np.empty(weight.shape, np.int8)
    values[order] = compensated(weight[order], spread, _AT_A_TIME, lambda *_: rounded_input)
    return values


def _most_first(products: Array) -> NDArray[np.int64]:
    return np.argsort(-np.diagonal(products), kind="stable")


def _choose_again(
    values: NDArray[np.int8], weight: Array, products: Array, by_row: Array, bits: int
) -> None:
    """Replace each integer by the one of least error of the outputs, all others being as they are.

    Those of one input are chosen together; inputs that weigh most come first.
    """
    order, highest = _most_first(products), (1 << bits - 1) - 1
    lost = weight - values * by_row
    for start in [*range(0, len(order), _AT_A_TIME)] * _ROUNDS:
        rows = order[start : start + _AT_A_TIME]
        pull, among = products[rows] @ lost, products[np.ix_(rows, rows)]
        for place, row in enumerate(rows):
            wanted = values[row] + pull[place] / (among[place, place] * by_row[row])
            integers = np.rint(wanted).clip(-highest - 1, highest)
            change = (integers - values[row]) * by_row[row]
            pull -= np.outer(among[:, place], change)
            lost[row] -= change
            values[row] = integers


def output_error(weight: Array, products: Array, integers: ColumnIntegers) -> float:
    """Squared error of the outputs, summed over the rows that `products` were made of."""
    lost = weight - integers.floats()
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


def _searched_multiples(weight: Array, bits: int) -> tuple[Array, NDArray[np.uint8]]:
    """Steps `(out_features,)`, and what they are multiplied by, `(blocks, out_features)`."""
    alike = np.ones(BLOCK, np.float32)
    blocks = weight.reshape(-1, BLOCK, weight.shape[1])
    wanted = np.stack([_searched_steps(block, alike, bits) for block in blocks])
    steps = wanted.max(0) / np.float32(_MOST_MULTIPLE)
    multiples = np.rint(wanted / steps).clip(1, _MOST_MULTIPLE).astype(np.uint8)
    return steps, multiples
