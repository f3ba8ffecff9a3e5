"""Frequencies of the rotary position embedding, scaled as config.json says.

In: the objects of config.json that tell of the rotation. Out: a `Rope`: radians per position of
each rotated pair, float32 values as the reference computes them, and what goes with them; another
for layers with a window, where they have one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.rotation import scaled_as_llama3, unscaled
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.tools.export.checkpoints.fields import Rotation, number, positive

_MOST_HEAD_DIM = 1 << 14
"""No known model has larger heads; a damaged file may, and would fill the memory."""


@dataclass(frozen=True)
class _Scaling:
    """What the frequencies and their cosines are scaled by."""

    divisors: NDArray[np.float32] | float = 1.0
    """What each pair's frequency is divided by, `(pairs,)` or one for all."""
    llama3: Sequence[float] = ()
    """The figures of Llama 3's scaling, where that is the one."""
    factor: float | None = None
    """Same as in `Rope`, and so is the next."""
    most_positions: int | None = None


@dataclass(frozen=True)
class Rope:
    """The rotation of queries and keys."""

    inv_freq: list[float]
    """Radians per position, one for each pair."""
    factor: float | None = None
    """What cosines and sines are multiplied by; None for 1."""
    most_positions: int | None = None
    """The context for which these frequencies are made, where a longer one has others."""


def read_ropes(rotations: Sequence[Rotation]) -> tuple[Rope, Rope | None]:
    """The rotation of most layers, and that of layers with a window where it is another.

    Raises:
        UnsupportedModelError: The graphs cannot do it.
        CheckpointError: A field is malformed.
    """
    rope, *others = [read_rope(rotation) for rotation in rotations]
    if others and (rope.factor is not None or rope.most_positions is not None):
        raise UnsupportedModelError("config.json: longrope is not supported in Gemma")
    return rope, others[0] if others else None


def read_rope(rotation: Rotation) -> Rope:
    """The frequencies of a rotation.

    Raises:
        UnsupportedModelError: A `rope_type` that is not supported.
        CheckpointError: A scaling lacks a figure, or the heads are too large to be any.
    """
    dim = rotation.dim
    if dim > _MOST_HEAD_DIM:
        raise CheckpointError(f"heads have {dim} dimensions, expected {_MOST_HEAD_DIM} at most")
    theta = rotation.parameters["rope_theta"]
    if not isinstance(theta, int | float) or not 1 <= theta < 1e12:
        raise CheckpointError(f"config.json: rope_theta is {theta!r:.60}, expected 1 to 1e12")
    scaling = _read_scaling(rotation.parameters, dim // 2)
    frequencies = unscaled(theta, dim) / scaling.divisors
    if scaling.llama3:
        frequencies = scaled_as_llama3(frequencies, *scaling.llama3)
    return Rope(frequencies.tolist(), scaling.factor, scaling.most_positions)


def _read_scaling(parameters: Mapping[str, Any], num_pairs: int) -> _Scaling:
    """The scaling by its type.

    Raises:
        UnsupportedModelError: The type is not supported.
        CheckpointError: A figure is missing or out of range.
    """
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type == "llama3":
        return _llama3(parameters)
    if rope_type in ("longrope", "su"):
        return _longrope(parameters, num_pairs)
    if rope_type == "linear":
        return _Scaling(number(parameters, "factor", 1, 1e6))
    if rope_type != "default":
        raise UnsupportedModelError(
            f"config.json: rope type {rope_type!r:.60} is not supported, "
            "only default, linear, llama3 and longrope"
        )
    return _Scaling()


def _llama3(parameters: Mapping[str, Any]) -> _Scaling:
    """Llama 3's scaling.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    try:
        factor, low, high, original = figures = [float(parameters[name]) for name in names]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: rope_scaling llama3 lacks {error}") from error
    if not (1 <= factor < 1e6 and 0 < original < 1e12 and 1e-3 < low < high < 1e6):
        raise CheckpointError("config.json: rope_scaling llama3 has figures out of range")
    return _Scaling(llama3=figures)


def _longrope(parameters: Mapping[str, Any], num_pairs: int) -> _Scaling:
    """LongRoPE up to the context that it begins with: a factor per pair, and one for all.

    A longer context has other factors for the same tokens, so that keys would have to be computed
    anew. Source: Ding et al. 2024, https://arxiv.org/abs/2402.13753.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    factors = parameters.get("short_factor")
    if not isinstance(factors, list) or len(factors) != num_pairs:
        raise CheckpointError(
            f"config.json: short_factor is {factors!r:.60}, expected {num_pairs} numbers"
        )
    short = [number({"short_factor": it}, "short_factor", 1e-3, 1e6) for it in factors]
    original = positive(parameters, "original_max_position_embeddings")
    most = positive(parameters, "max_position_embeddings")
    factor, attention = most / original, parameters.get("attention_factor")
    if parameters.get("factor") is not None:
        factor = number(parameters, "factor", 1e-3, 1e6)
    if attention is not None:
        attention = number(parameters, "attention_factor", 1e-3, 1e3)
    elif factor > 1 and original > 1:
        attention = math.sqrt(1 + math.log(factor) / math.log(original))
    cut = original if original < most else None
    return _Scaling(np.asarray(short, np.float32), factor=attention, most_positions=cut)
