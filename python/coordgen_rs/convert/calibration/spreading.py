"""How the error of one column of a matrix is made good by those behind it.

In: products of what enters a linear layer. Out: a triangular matrix, as GPTQ uses it
(https://arxiv.org/abs/2210.17323, algorithm 1). It rounds nothing: which grid the weights get is
each processor's own (`rounding.py`, `../cpu/compensation.py`).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError

_Matrix = NDArray[np.float64]

DAMPING = 0.01
"""Added to the diagonal, in units of its mean, so that few texts suffice."""
_BLOCK = 256
"""Columns that are computed at a time."""


def damped(products: NDArray[Any], damping: float = DAMPING) -> _Matrix:
    """Products of inputs with more on their diagonal, and something for inputs that are zero."""
    products = products.astype(np.float64)
    diagonal = np.einsum("ii->i", products)
    # A column that is always zero has nothing to make good, and nothing goes with it.
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    return products


def spreading(products: NDArray[Any], damping: float = DAMPING) -> NDArray[np.float32]:
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
    for start in range(0, size, _BLOCK):
        yield start, min(start + _BLOCK, size)
