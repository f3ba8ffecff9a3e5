"""Frequencies of the rotary position embedding, scaled as config.json says.

In: the parsed config.json. Out: a `Rope`: radians per position of each rotated pair, float32
values as the reference computes them, and what goes with them; another for layers with a window,
where they have one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.rotation import scaled_as_llama3, unscaled
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from coordgen_rs.tools.export.checkpoints.fields import (
    FULL,
    SLIDING,
    number,
    positive,
    rope_parameters,
    rotated_dim,
)

_MOST_HEAD_DIM = 1 << 14
"""No known model has larger heads; a damaged file may, and would fill the memory."""


@dataclass(frozen=True)
class Rope:
    """The rotation of queries and keys."""

    inv_freq: list[float]
    """Radians per position, one for each pair."""
    factor: float | None = None
    """What cosines and sines are multiplied by; None for 1."""
    most_positions: int | None = None
    """The context for which these frequencies are made, where a longer one has others."""


def read_ropes(
    config: Mapping[str, Any], head_dim: int, *, is_gemma: bool, rotates_part: bool
) -> tuple[Rope, Rope | None]:
    """The rotation of most layers, and that of layers with a window where it is another.

    Raises:
        UnsupportedModelError: The graphs cannot do it.
        CheckpointError: A field is malformed.
    """
    parameters = rope_parameters(config, FULL if is_gemma else None)
    rotated = rotated_dim(parameters, head_dim)
    if rotated != head_dim and not rotates_part:
        factor = parameters["partial_rotary_factor"]
        raise UnsupportedModelError(
            f"config.json: partial_rotary_factor = {factor} is not supported"
        )
    rope = read_rope(parameters, rotated)
    if not is_gemma:
        return rope, None
    if rope.factor is not None or rope.most_positions is not None:
        raise UnsupportedModelError("config.json: longrope is not supported in Gemma")
    local = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    if SLIDING in (config.get("rope_parameters") or {}):
        local = rope_parameters({**config, **local}, SLIDING)
    return rope, read_rope(local, head_dim)


def read_rope(parameters: Mapping[str, Any], head_dim: int) -> Rope:
    """The rotation of `head_dim` dimensions of a head.

    Raises:
        UnsupportedModelError: A `rope_type` that is not supported.
        CheckpointError: A scaling lacks a figure, or the heads are too large to be any.
    """
    if head_dim > _MOST_HEAD_DIM:
        raise CheckpointError(
            f"heads have {head_dim} dimensions, expected {_MOST_HEAD_DIM} at most"
        )
    theta = parameters["rope_theta"]
    if not isinstance(theta, int | float) or not 1 <= theta < 1e12:
        raise CheckpointError(f"config.json: rope_theta is {theta!r:.60}, expected 1 to 1e12")
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    frequencies = unscaled(theta, head_dim)
    if rope_type == "llama3":
        frequencies = _scale_llama3(frequencies, parameters)
    elif rope_type == "linear":
        frequencies = frequencies / np.float32(number(parameters, "factor", 1, 1e6))
    elif rope_type in ("longrope", "su"):
        return _longrope(frequencies, parameters)
    elif rope_type != "default":
        raise UnsupportedModelError(
            f"config.json: rope type {rope_type!r:.60} is not supported, "
            "only default, linear, llama3 and longrope"
        )
    return Rope([float(frequency) for frequency in frequencies])


def _scale_llama3(
    frequencies: NDArray[np.float32], parameters: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Llama 3's scaling, by the figures of config.json.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    try:
        factor = float(parameters["factor"])
        low = float(parameters["low_freq_factor"])
        high = float(parameters["high_freq_factor"])
        original = float(parameters["original_max_position_embeddings"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: rope_scaling llama3 lacks {error}") from error
    if not (1 <= factor < 1e6 and 0 < original < 1e12 and 1e-3 < low < high < 1e6):
        raise CheckpointError("config.json: rope_scaling llama3 has figures out of range")
    return scaled_as_llama3(frequencies, factor, low, high, original)


def _longrope(frequencies: NDArray[np.float32], parameters: Mapping[str, Any]) -> Rope:
    """LongRoPE up to the context that it begins with: a factor per pair, and one for all.

    A longer context has other factors for the same tokens, so that keys would have to be computed
    anew. Source: Ding et al. 2024, https://arxiv.org/abs/2402.13753.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    factors = parameters.get("short_factor")
    if not isinstance(factors, list) or len(factors) != len(frequencies):
        raise CheckpointError(
            f"config.json: short_factor is {factors!r:.60}, expected {len(frequencies)} numbers"
        )
    short = np.array([number({"short_factor": it}, "short_factor", 1e-3, 1e6) for it in factors])
    original = positive(parameters, "original_max_position_embeddings")
    most = positive(parameters, "max_position_embeddings")
    factor, attention = most / original, parameters.get("attention_factor")
    if parameters.get("factor") is not None:
        factor = number(parameters, "factor", 1e-3, 1e6)
    if attention is not None:
        attention = number(parameters, "attention_factor", 1e-3, 1e3)
    elif factor > 1 and original > 1:
        attention = math.sqrt(1 + math.log(factor) / math.log(original))
    scaled = (frequencies / short.astype(np.float32)).astype(np.float32)
    cut = original if original < most else None
    return Rope([float(frequency) for frequency in scaled], attention, cut)
