"""Frequencies of the rotary position embedding, scaled as config.json says.

In: the parsed config.json. Out: `(head_dim / 2,)` float32 values, as the reference computes them.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_MOST_HEAD_DIM = 1 << 14
"""No known model has larger heads; a damaged file may, and would fill the memory."""


def inverse_frequencies(config: dict[str, Any], head_dim: int) -> list[float]:
    """Radians per position for each rotated pair.

    Raises:
        UnsupportedModelError: A `rope_type` other than the unscaled form and `llama3`.
        CheckpointError: A scaling lacks a figure, or the heads are too large to be any.
    """
    if head_dim > _MOST_HEAD_DIM:
        raise CheckpointError(
            f"heads have {head_dim} dimensions, expected {_MOST_HEAD_DIM} at most"
        )
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise CheckpointError(f"config.json: rope_scaling is {parameters!r}, expected an object")
    theta = parameters.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not isinstance(theta, int | float) or not 1 <= theta < 1e12:
        raise CheckpointError(f"config.json: rope_theta is {theta!r}, expected 1 to 1e12")
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    if rope_type == "llama3":
        frequencies = _scale_llama3(frequencies, parameters)
    elif rope_type != "default":
        raise UnsupportedModelError(f"config.json: rope type {rope_type} is not supported")
    return [float(frequency) for frequency in frequencies]


def _scale_llama3(
    frequencies: NDArray[np.float32], parameters: dict[str, Any]
) -> NDArray[np.float32]:
    """Llama 3's scaling: long wavelengths are stretched, short ones kept, a ramp between.

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
    turns = original * frequencies / (2 * math.pi)
    ramp = np.clip((turns - low) / (high - low), 0.0, 1.0)
    scaled = (1 - ramp) * frequencies / factor + ramp * frequencies
    return np.asarray(scaled, np.float32)
