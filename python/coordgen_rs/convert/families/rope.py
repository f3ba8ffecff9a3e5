"""Frequencies of the rotary position embedding, scaled as config.json says.

In: the parsed config.json. Out: the objects that tell of the rotation; a `Rope`: radians per
position of each rotated pair, float32 values as the reference computes them, and what goes with
them; another for layers with a window, where they have one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.bundle.rope import (
    QueryScaling,
    scaled_as_llama3,
    scaled_as_yarn,
    unscaled,
    yarn_span,
)
from coordgen_rs.convert.families.config_json import FULL, SLIDING, number, positive, refuse_field
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_Frequencies = NDArray[np.float32]

_MOST_HEAD_DIM = 1 << 14
"""No known model has larger heads; a damaged file may, and would fill the memory."""
QUERY_BETA = "llama_4_scaling_beta"
PROPORTIONAL = "proportional"
"""A rotation whose last pairs do not turn."""
_OUTSIDE = (
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)
"""What older files have beside the object that tells of the rotation, not in it."""


@dataclass(frozen=True)
class RopeFields:
    """What a config.json says of how some layers rotate queries and keys."""

    parameters: Mapping[str, Any]
    """The object that tells of it."""
    dim: int
    """Dimensions of a head that are rotated: the first ones."""


@dataclass(frozen=True)
class Rope:
    """The rotation of queries and keys."""

    inv_freq: list[float]
    """Radians per position, one for each pair."""
    factor: float | None = None
    """What cosines and sines are multiplied by; None for 1."""
    most_positions: int | None = None
    """The context for which these frequencies are made, where a longer one has others."""


def rope_fields(
    config: Mapping[str, Any],
    head_dim: int,
    *,
    by_kind: bool,
    rotates_part: bool,
    window_head_dim: int | None = None,
) -> list[RopeFields]:
    """What tells of the rotation of most layers and, `by_kind`, that of layers with a window.

    Args:
        config: The parsed config.json.
        head_dim: Dimensions of a head.
        by_kind: Whether layers with a window may be rotated otherwise.
        rotates_part: Whether only the first dimensions may be rotated.
        window_head_dim: Dimensions of a head in layers with a window, where these are others.

    Raises:
        UnsupportedModelError: Only a part of each head is rotated, unless `rotates_part`.
        CheckpointError: A field is malformed.
    """
    parameters = _rope_parameters(config, FULL if by_kind else None)
    rotated = _rotated_dim(parameters, head_dim)
    if rotated != head_dim and not rotates_part:
        factor = parameters["partial_rotary_factor"]
        raise UnsupportedModelError(
            f"config.json: partial_rotary_factor = {factor} is not supported"
        )
    if not by_kind:
        return [RopeFields(parameters, rotated)]
    local = {"rope_theta": config.get("rope_local_base_freq", config.get("rope_theta", 10_000.0))}
    if SLIDING in (config.get("rope_parameters") or {}):
        local = _rope_parameters({**config, **local}, SLIDING)
    return [RopeFields(parameters, rotated), RopeFields(local, window_head_dim or head_dim)]


def _rope_parameters(config: Mapping[str, Any], layer_kind: str | None) -> dict[str, Any]:
    """The object that tells of the rotation, `rope_parameters` or, before that, `rope_scaling`.

    Args:
        config: The parsed config.json.
        layer_kind: Where the object has one inside for each kind of layer, the one to take.

    Raises:
        CheckpointError: It is no object.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(parameters, dict) and layer_kind in parameters:
        parameters = parameters[layer_kind]
    if not isinstance(parameters, dict):
        refuse_field({"rope_scaling": parameters}, "rope_scaling", "an object")
    outside = {name: config[name] for name in _OUTSIDE if name in config}
    return {"rope_theta": 10_000.0, **outside, **parameters}


def _rotated_dim(parameters: Mapping[str, Any], head_dim: int) -> int:
    """How many dimensions of a head are rotated: the first ones.

    Raises:
        CheckpointError: `partial_rotary_factor` leaves none, or an odd number.
    """
    is_proportional = parameters.get("rope_type") == PROPORTIONAL
    if parameters.get("partial_rotary_factor") is None or is_proportional:
        return head_dim
    dim = int(head_dim * number(parameters, "partial_rotary_factor"))
    if dim < 2 or dim % 2:
        raise CheckpointError(
            f"config.json: partial_rotary_factor leaves {dim} of {head_dim} dimensions to rotate"
        )
    return dim


def read_ropes(told: Sequence[RopeFields]) -> tuple[Rope, Rope | None]:
    """The rotation of most layers, and that of layers with a window where it is another.

    Raises:
        UnsupportedModelError: The graphs cannot do it.
        CheckpointError: A field is malformed.
    """
    rope, *others = [_read_rope(it) for it in told]
    if not others or others[0] == rope:
        return rope, None
    if rope.most_positions is not None or others[0].most_positions is not None:
        raise UnsupportedModelError(
            "config.json: longrope is not supported where layers with a window have their own "
            "rotation"
        )
    if others[0].factor is not None:
        raise UnsupportedModelError(
            f"config.json: an attention factor of {others[0].factor:g} is not supported in layers "
            "with a window"
        )
    return rope, others[0]


def read_query_scaling(parameters: Mapping[str, Any]) -> QueryScaling | None:
    """How queries grow with their position, as Ministral 3's `llama_4_scaling_beta` says.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    beta = number(parameters, QUERY_BETA, 0, 1000, 0.0)
    if beta == 0:
        return None
    return QueryScaling(beta, positive(parameters, "original_max_position_embeddings"))


def _read_rope(told: RopeFields) -> Rope:
    """The frequencies of a rotation.

    Raises:
        UnsupportedModelError: A `rope_type` that is not supported.
        CheckpointError: A scaling lacks a figure, or the heads are too large to be any.
    """
    parameters, dim = told.parameters, told.dim
    if dim > _MOST_HEAD_DIM:
        raise CheckpointError(f"heads have {dim} dimensions, expected {_MOST_HEAD_DIM} at most")
    theta = parameters["rope_theta"]
    if not isinstance(theta, int | float) or not 1 <= theta < 1e12:
        refuse_field(parameters, "rope_theta", "1 to 1e12")
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    scaled = _SCALINGS.get(rope_type) if isinstance(rope_type, str) else None
    if scaled is None:
        raise UnsupportedModelError(
            f"config.json: rope type {rope_type!r:.60} is not supported, "
            "only default, linear, llama3, longrope, proportional and yarn"
        )
    return scaled(parameters, unscaled(theta, dim))


def _default(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    return Rope(frequencies.tolist())


def _linear(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    """All frequencies divided by one number.

    Raises:
        CheckpointError: It is missing or out of range.
    """
    return Rope((frequencies / np.float32(number(parameters, "factor", 1, 1e6))).tolist())


def _proportional(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    """Some of the first pairs turn as all would, the others not at all.

    Raises:
        CheckpointError: A figure is out of range, or no pair turns.
    """
    share = number(parameters, "partial_rotary_factor", default=1.0)
    factor = number(parameters, "factor", 1e-3, 1e6, 1.0)
    dim = 2 * len(frequencies)
    pairs = int(share * dim // 2)
    if not pairs:
        raise CheckpointError(
            f"config.json: partial_rotary_factor leaves 0 of {dim} dimensions to rotate"
        )
    turns = np.where(np.arange(dim // 2) < pairs, np.float32(1), np.float32(0))
    return Rope((frequencies * turns / np.float32(factor)).tolist())


def _llama3(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    """Llama 3's scaling.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    try:
        factor, low, high, original = (float(parameters[name]) for name in names)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: rope_scaling llama3 lacks {error}") from error
    if not (1 <= factor < 1e6 and 0 < original < 1e12 and 1e-3 < low < high < 1e6):
        raise CheckpointError("config.json: rope_scaling llama3 has figures out of range")
    return Rope(scaled_as_llama3(frequencies, factor, low, high, original).tolist())


def _yarn(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    """YaRN, whose factors hold for contexts of any length.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    theta = parameters["rope_theta"]
    if theta == 1:
        raise CheckpointError("config.json: rope_theta is 1, which YaRN cannot scale")
    most = positive(parameters, "max_position_embeddings")
    original = positive(parameters, "original_max_position_embeddings", most)
    factor = number(parameters, "factor", 1, 1e6, most / original)
    # 0 is none, as in transformers.
    given = {name: it for name, it in parameters.items() if it or not name.startswith("beta_")}
    turns = (
        number(given, "beta_fast", 1e-6, 1e6, 32.0),
        number(given, "beta_slow", 1e-6, 1e6, 1.0),
    )
    is_whole = bool(parameters.get("truncate", True))
    span = yarn_span(theta, 2 * len(frequencies), turns, original, is_whole=is_whole)
    attention = yarn_attention(parameters, factor)
    scaled = scaled_as_yarn(frequencies, factor, span)
    return Rope(scaled.tolist(), None if attention == 1 else attention)


def yarn_attention(parameters: Mapping[str, Any], factor: float) -> float:
    """What YaRN multiplies cosines and sines by.

    Raises:
        CheckpointError: A figure is out of range.
    """
    if parameters.get("attention_factor") is not None:
        return number(parameters, "attention_factor", 1e-3, 1e3)
    scales = [number(parameters, name, 0, 1e3, 0.0) for name in ("mscale", "mscale_all_dim")]
    above, below = (0.1 * scale * math.log(max(factor, 1.0)) + 1 for scale in scales)
    return above / below if all(scales) else 0.1 * math.log(max(factor, 1.0)) + 1


def _longrope(parameters: Mapping[str, Any], frequencies: _Frequencies) -> Rope:
    """LongRoPE up to the context that it begins with: a factor per pair, and one for all.

    A longer context has other factors for the same tokens, so that keys would have to be computed
    anew. Source: Ding et al. 2024, https://arxiv.org/abs/2402.13753.

    Raises:
        CheckpointError: A figure is missing or out of range.
    """
    factors, num_pairs = parameters.get("short_factor"), len(frequencies)
    if not isinstance(factors, list) or len(factors) != num_pairs:
        refuse_field(parameters, "short_factor", f"{num_pairs} numbers")
    short = [number({"short_factor": it}, "short_factor", 1e-3, 1e6) for it in factors]
    original = positive(parameters, "original_max_position_embeddings")
    most = positive(parameters, "max_position_embeddings")
    factor = number(parameters, "factor", 1e-3, 1e6, most / original)
    attention = parameters.get("attention_factor")
    if attention is not None:
        attention = number(parameters, "attention_factor", 1e-3, 1e3)
    elif factor > 1 and original > 1:
        attention = math.sqrt(1 + math.log(factor) / math.log(original))
    cut = original if original < most else None
    return Rope((frequencies / np.asarray(short, np.float32)).tolist(), attention, cut)


_SCALINGS: dict[str, Callable[[Mapping[str, Any], _Frequencies], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
    PROPORTIONAL: _proportional,
    "yarn": _yarn,
}
"""What makes the rotation of unscaled frequencies, `(pairs,)`, by the name of its type."""
