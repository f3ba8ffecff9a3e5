"""The rotary position embedding: radians per position of each rotated pair, and their tables.

In: the base and the figures of a scaling. Out: float32 values, near to what the reference computes
and the same on every processor.
Where the figures stand, and whether they can be, is for those who read them
(`tools/export/checkpoints/rope.py`, `foreign/genie/config.py`).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def unscaled(theta: float, head_dim: int) -> NDArray[np.float32]:
    """`(head_dim / 2,)` radians per position without any scaling, the same on any processor."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # numpy's powers of float32 are other ones with AVX-512; these are the nearest float32.
    base = float(np.float32(theta))
    powers = np.array([base**exponent for exponent in exponents.tolist()], np.float32)
    return np.float32(1) / powers


def tables(
    num_positions: int, inv_freq: Sequence[float], factor: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of positions 0 and on, `(num_positions, pairs) f32` each.

    Args:
        num_positions: How many.
        inv_freq: Radians per position of each pair.
        factor: What both are multiplied by.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * np.asarray(inv_freq, np.float32)
    # numpy's bits of float32 depend on the processor; those of float64 far behind the last one.
    cos, sin = (f(angles, dtype=np.float64).astype(np.float32) for f in (np.cos, np.sin))
    return cos * np.float32(factor), sin * np.float32(factor)


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
