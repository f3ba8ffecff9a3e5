"""8-bit integers for weights that have no exact ones, losing as little as may be.

In: weights in blocks and, where the file has them, a scale and a minimum per block: a weight is
`scale * q + minimum`. Out: `IntegerRows` with a zero point per block, which has to be an integer.
Nothing is rounded but the zero point: steps are divided by a whole number, up to 17 for 4 bits, and
of all divisors that one is taken which puts zero nearest to a step. So a block is shifted by at
most 1 / 34 (2.9 %) of a 4-bit step, and by 0.4 % in the mean. Rounding every weight to one of 256
symmetric steps, the other way, is off by up to 5.9 %.
"""

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.tools.export.checkpoints.tensor import IntegerRows

_Floats = NDArray[np.float32]


def steps_with_minima(weights: _Floats, scales: _Floats, minima: _Floats, most: int) -> IntegerRows:
    """The weights of blocks whose steps start at a minimum.

    Args:
        weights: `(n, blocks, block_size)`
        scales: `(n, blocks)`
        minima: `(n, blocks)`
        most: The largest number of steps above the minimum.
    """
    # How many steps of the file zero lies above the minimum.
    zeros = -minima * inverse(scales)
    divisors = np.arange(1, 255 // most + 1, dtype=np.float32)
    offs = np.abs(zeros[..., None] * divisors - np.rint(zeros[..., None] * divisors)) / divisors
    divisor = divisors[offs.argmin(-1)]
    zero_points = np.rint(zeros * divisor)
    steps = np.rint((weights - minima[..., None]) * inverse(scales)[..., None])
    values = steps.clip(0, most) * divisor[..., None]
    # Where zero is no step, or all weights of a block are the same, those of the range are taken.
    others = nearest_integers(weights)
    fits = (scales != 0) & (zero_points >= 0) & (zero_points <= 255)
    assert others.zero_points is not None
    return IntegerRows(
        np.where(fits[..., None], values, others.values.reshape(weights.shape))
        .astype(np.uint8)
        .reshape(len(weights), -1),
        np.where(fits, scales / divisor, others.scales).astype(np.float32),
        np.where(fits, zero_points, others.zero_points).astype(np.uint8),
    )


def nearest_integers(weights: _Floats) -> IntegerRows:
    """Weights in blocks `(n, blocks, block_size)`, the range of each cut into 255 steps."""
    lowest = np.minimum(weights.min(-1), 0)
    highest = np.maximum(weights.max(-1), 0)
    scales = (highest - lowest) / np.float32(255)
    inverses = inverse(scales)
    zero_points = np.rint(-lowest * inverses)
    values = np.rint(weights * inverses[..., None]) + zero_points[..., None]
    integers = values.clip(0, 255).astype(np.uint8).reshape(len(weights), -1)
    return IntegerRows(integers, scales, zero_points.astype(np.uint8))


def inverse(scales: _Floats) -> _Floats:
    """1 / scale, and 0 for a block of zeros."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
