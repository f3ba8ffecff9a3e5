"""What queries and keys owe to their position: rotations, and in some models a scale of queries.

In: the base and the figures of a scaling. Out: radians per position of each rotated pair, and
tables by position: float32 values, near to what the reference computes and the same on every
processor.
Where the figures stand, and whether they can be, is for those who read them
(`convert/families/rope.py`, `formats/genie/config.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors.json_text import Within

QUERY_SCALE = "query_scale"
"""The table of what queries are multiplied by."""


@dataclass(frozen=True)
class QueryScaling:
    """Queries grow with their position: by `1 + beta * ln(1 + position // period)`, as in Llama 4.

    Up to `period` tokens they stay as they are.
    """

    beta: Annotated[float, Within(0, 1000)]
    period: Annotated[int, Within(1, 1 << 24)]


class Positions(Protocol):
    """What says how rows depend on their position: a manifest, or a checkpoint's configuration."""

    @property
    def inv_freq(self) -> list[float]:
        """Radians per position, one for each rotated pair."""

    @property
    def rope_factor(self) -> float | None:
        """What cosines and sines of `inv_freq` are multiplied by; None for 1."""

    @property
    def window_inv_freq(self) -> list[float] | None:
        """Rotation in layers with a sliding window, where it is another."""

    @property
    def query_scaling(self) -> QueryScaling | None:
        """How queries grow with their position; None where they do not."""


def tables_by_input(num_positions: int, source: Positions) -> dict[str, NDArray[np.float32]]:
    """What graphs read of positions 0 and on, `(num_positions, n) f32` each, by the input's name.

    `cos` and `sin`; `window_cos` and `window_sin` where layers with a sliding window are rotated
    otherwise; `query_scale`, with one column, where queries grow with their position.
    """
    factor = 1.0 if source.rope_factor is None else source.rope_factor
    cos, sin = tables(num_positions, source.inv_freq, factor)
    found = {"cos": cos, "sin": sin}
    if source.window_inv_freq is not None:
        cos, sin = tables(num_positions, source.window_inv_freq)
        found |= {"window_cos": cos, "window_sin": sin}
    if source.query_scaling is not None:
        scaling = source.query_scaling
        periods = np.arange(num_positions, dtype=np.float64) // scaling.period
        scales = 1 + scaling.beta * np.log(1 + periods)
        found[QUERY_SCALE] = scales.astype(np.float32)[:, np.newaxis]
    return found


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


def scaled_as_yarn(
    frequencies: NDArray[np.float32], factor: float, span: tuple[float, float]
) -> NDArray[np.float32]:
    """YaRN's scaling: fast pairs are kept, slow ones stretched, a ramp over pairs between.

    Source: Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2.

    Args:
        frequencies: `(pairs,) f32`, unscaled.
        factor: How far the slow ones are stretched.
        span: The first and the last pair of the ramp, as `yarn_span` gives them.
    """
    low, high = span
    if low == high:
        high += 0.001
    pairs = np.arange(len(frequencies), dtype=np.float32)
    ramp = np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
    kept = 1 - ramp
    scaled = frequencies / np.float32(factor) * (1 - kept) + frequencies * kept
    return np.asarray(scaled, np.float32)


def yarn_span(
    theta: float, head_dim: int, turns: tuple[float, float], original: float, *, is_whole: bool
) -> tuple[float, float]:
    """The pairs between which YaRN's ramp lies.

    Args:
        theta: The base.
        head_dim: Rotated dimensions of a head.
        turns: Turns within the original context of the ramp's first pair and its last.
        original: Positions for which the frequencies were made.
        is_whole: Whether the ramp begins and ends at whole pairs.
    """
    low, high = (
        head_dim * math.log(original / (turn * 2 * math.pi)) / (2 * math.log(theta))
        for turn in turns
    )
    if is_whole:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, head_dim - 1)
