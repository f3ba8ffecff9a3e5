"""Frequencies of the rotary position embedding: radians per position of each rotated pair.

In: the base and the figures of a scaling. Out: float32 values as the reference computes them.
Where the figures stand, and whether they can be, is for those who read them
(`tools/export/checkpoints/rope.py`, `foreign/genie/config.py`).
"""

import math

import numpy as np
from numpy.typing import NDArray


def unscaled(theta: float, head_dim: int) -> NDArray[np.float32]:
    """`(head_dim / 2,)` radians per position without any scaling."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def scaled_as_llama3(
    frequencies: NDArray[np.float32], factor: float, low: float, high: float, original: float
) -> NDArray[np.float32]:
    """Llama 3's scaling: long wavelengths are stretched, short ones kept, a ramp between.

    Args:
        frequencies: `(pairs,) f32`, unscaled.
        factor: How far the longest are stretched.
        low: Turns within the original context below which they are stretched in full.
        high: Turns above which they are kept.
        original: Positions for which the frequencies were made.
    """
    turns = original * frequencies / (2 * math.pi)
    ramp = np.clip((turns - low) / (high - low), 0.0, 1.0)
    scaled = (1 - ramp) * frequencies / factor + ramp * frequencies
    return np.asarray(scaled, np.float32)
