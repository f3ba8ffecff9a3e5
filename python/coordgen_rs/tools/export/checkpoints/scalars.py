"""Numbers by which some families multiply what others leave as it is.

In: the parsed config.json. Out: fields of a `ModelConfig`.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.tools.export.checkpoints.fields import number

_LEAST, _MOST = 1e-6, 1e6
"""No known model multiplies by less or more; a damaged file may, and would give infinite values."""

Scalars = dict[str, float]
"""Factors by field of `ModelConfig`; those that are left out are Llama's."""


def no_scalars(config: Mapping[str, Any], hidden_size: int) -> Scalars:
    """No factors, as in Llama."""
    return {}


def granite_scalars(config: Mapping[str, Any], hidden_size: int) -> Scalars:
    """Granite's factors: of embeddings, attention scores, additions to the residual, and logits.

    Raises:
        CheckpointError: One is no number, or out of range.
    """
    return {
        "embedding_scale": number(config, "embedding_multiplier", _LEAST, _MOST),
        "attention_scale": number(config, "attention_multiplier", _LEAST, _MOST),
        "residual_scale": number(config, "residual_multiplier", _LEAST, _MOST),
        "logits_scale": 1 / number(config, "logits_scaling", _LEAST, _MOST),
    }


def gemma_scalars(config: Mapping[str, Any], hidden_size: int) -> Scalars:
    """Gemma's factors: the root of their size for embeddings, a number of its own for scores.

    Raises:
        CheckpointError: One is no number, or out of range.
    """
    divisor = number(config, "query_pre_attn_scalar", _LEAST, _MOST)
    return {"embedding_scale": hidden_size**0.5, "attention_scale": divisor**-0.5}
