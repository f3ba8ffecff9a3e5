"""How the error of one column of a matrix is made good by those behind it.

In: products of what enters a linear layer. Out: a triangular matrix, as GPTQ uses it
(https://arxiv.org/abs/2210.17323, algorithm 1). It rounds nothing: which grid the weights get is
each processor's own (`rounding.py`, `cpu/compensation.py`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError

DAMPING = 0.01
"""Added to the diagonal, in units of its mean, so that few texts suffice."""


def damped(products: NDArray[Any], damping: float = DAMPING) -> NDArray[np.float64]:
    """Products of inputs with more on their diagonal, and something for inputs that are zero."""
    products = products.astype(np.float64)
    diagonal = np.einsum("ii->i", products)
    # A column that is always zero has nothing to make good, and nothing goes with it.
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    return products


def spreading(products: NDArray[Any], damping: float = DAMPING) -> NDArray[np.float32]:
    """How an error of each column spreads to those behind it: `(in_features, in_features)`.

    The upper Cholesky factor of the inverse of the inputs' products.

    Args:
        products: Of each input with each, summed over all rows, `(in_features, in_features)`.
        damping: What is added to their diagonal, in units of its mean.

    Raises:
        CheckpointError: That factor does not exist, or is no float32.
    """
    try:
        inverse = np.linalg.inv(damped(products, damping))
        factor = np.linalg.cholesky(inverse).T.astype(np.float32)
    except np.linalg.LinAlgError:
        factor = np.full(products.shape, np.nan, np.float32)
    if not np.isfinite(factor).all():
        raise CheckpointError(
            "what enters a layer on the calibration text is too large or too uneven to round "
            "weights by it: use another text"
        )
    return factor
