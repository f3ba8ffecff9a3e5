"""Families with recurrent layers: what their config.json says, in Llama's words.

In: a parsed config.json. Out: the same with fields called as in Llama's, and layers of
`full_attention` and `linear_attention` alone; the sizes of the recurrent layers (`recurrent.py`).
What their graphs cannot do is refused, with the model and the layer named.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coordgen_rs.convert.families.config.fields import (
    FULL,
    RECURRENT,
    flag,
    layer_count,
    number,
    per_layer,
    positive,
    refused,
)
from coordgen_rs.convert.families.config.recurrent import (
    DeltaNet,
    SelectiveState,
    ShortConvolution,
)
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_LEAST_TAPS, _MOST_TAPS = 2, 8
"""Of a convolution; those of known models have 3 and 4."""
_MOST_CHANNELS = 1 << 20
_MOST_STATE = 1 << 28
"""Numbers of a layer's state; no known model has as many, a damaged file may."""
_MOST_FACTOR = 64
"""Of a feed-forward's size."""
_INFINITY = {"__float__": "Infinity"}
"""What transformers writes for it."""


def lfm2_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of LFM2: the size of the feed-forward is adjusted, older files list attention.

    Raises:
        UnsupportedModelError: Convolutions have a bias, or a layer is of another kind.
        CheckpointError: A field is malformed.
    """
    refused(config, "LFM2", "conv_bias", flag(config, "conv_bias", False))
    layers = layer_count(config)
    kinds = per_layer(config, "layer_types", layers)
    if kinds is None:
        kinds = _listed(config, layers)
    ffn = config.get("block_ff_dim")
    size = positive(config, "intermediate_size" if ffn is None else "block_ff_dim")
    tied = flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True))
    return {
        **config,
        "intermediate_size": _adjusted(config, size),
        "rms_norm_eps": number(config, "norm_eps"),
        "tie_word_embeddings": tied,
        "layer_types": _kinds("LFM2", kinds, {"conv": RECURRENT, FULL: FULL}),
    }


def _listed(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kinds of layers by the list of those with attention, which all have without one.

    Raises:
        CheckpointError: The list is malformed.
    """
    listed = config.get("full_attn_idxs")
    if listed is None:
        return [FULL] * layers
    if not isinstance(listed, list) or not all(
        isinstance(it, int) and not isinstance(it, bool) and 0 <= it < layers for it in listed
    ):
        raise CheckpointError(
            f"config.json: full_attn_idxs is {listed!r:.60}, expected numbers of {layers} layers"
        )
    return [FULL if layer in listed else "conv" for layer in range(layers)]


def _adjusted(config: Mapping[str, Any], size: int) -> int:
    """The size of the feed-forward: two thirds of what is said, times a factor, rounded up.

    Raises:
        CheckpointError: A field is malformed.
    """
    if not flag(config, "block_auto_adjust_ff_dim", True):
        return size
    size = max(int(2 * size / 3), 1)
    if config.get("block_ffn_dim_multiplier") is None:
        return size
    size = int(number(config, "block_ffn_dim_multiplier", 1 / size, _MOST_FACTOR) * size)
    multiple = positive(config, "block_multiple_of", 256)
    return -(-size // multiple) * multiple


def short_convolution(config: Mapping[str, Any], hidden_size: int) -> ShortConvolution:
    """The recurrent layers of LFM2.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    return ShortConvolution(hidden_size, _taps(config, "conv_L_cache", 3))


def qwen35_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Qwen3.5, of whose layers each fourth has attention unless it says others.

    Raises:
        UnsupportedModelError: An option is set that changes the arithmetic, or a layer is of
            another kind.
        CheckpointError: A field is malformed.
    """
    name, gate = "Qwen3.5", config.get("output_gate_type")
    refused(config, name, "attn_output_gate", not flag(config, "attn_output_gate", True))
    refused(config, name, "output_gate_type", gate not in (None, "silu", "swish"))
    refused(config, name, "num_experts", bool(config.get("num_experts")))
    layers = layer_count(config)
    kinds = per_layer(config, "layer_types", layers)
    if kinds is None:
        every = positive(config, "full_attention_interval", 4)
        kinds = [RECURRENT if (layer + 1) % every else FULL for layer in range(layers)]
    return {**config, "layer_types": _kinds(name, kinds, {RECURRENT: RECURRENT, FULL: FULL})}


def delta_net(config: Mapping[str, Any], hidden_size: int) -> DeltaNet:
    """The recurrent layers of Qwen3.5.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    found = DeltaNet(
        key_heads=positive(config, "linear_num_key_heads", 16),
        value_heads=positive(config, "linear_num_value_heads", 32),
        key_dim=positive(config, "linear_key_head_dim", 128),
        value_dim=positive(config, "linear_value_head_dim", 128),
        taps=_taps(config, "linear_conv_kernel_dim", 4),
    )
    if found.value_heads % found.key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads is {found.value_heads}, expected a multiple of "
            f"linear_num_key_heads, {found.key_heads}"
        )
    _check_sizes("linear_", found.channels, found.width * found.key_dim)
    return found


def granite_hybrid_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Granite 4 in the words of Granite 3, and of Qwen3-MoE for its experts.

    Raises:
        UnsupportedModelError: There are projections with a bias, or a layer is of another kind.
        CheckpointError: A field is malformed.
    """
    experts = config.get("num_local_experts", 8)
    shared = config.get("shared_intermediate_size", 1024)
    is_alone = experts and shared == 0  # then no feed-forward is beside the experts
    name, position = "Granite 4", config.get("position_embedding_type")
    refused(config, name, "position_embedding_type", position not in (None, "nope", "rope"))
    refused(config, name, "mamba_proj_bias", flag(config, "mamba_proj_bias", False))
    layers = layer_count(config)
    kinds = per_layer(config, "layer_types", layers) or ["mamba"] * layers
    known = {"mamba": RECURRENT, RECURRENT: RECURRENT, "attention": FULL, FULL: FULL}
    return {
        **config,
        "layer_types": _kinds(name, kinds, known),
        "intermediate_size": positive(
            config, "intermediate_size" if is_alone else "shared_intermediate_size", 1024
        ),
        "num_experts": experts,
        "shared_expert_intermediate_size": shared,
        "moe_intermediate_size": config.get("intermediate_size"),
        "no_rope_layers": [int(position == "rope")] * layers,
    }


def selective_state(config: Mapping[str, Any], hidden_size: int) -> SelectiveState:
    """The recurrent layers of Granite 4.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    heads, groups = positive(config, "mamba_n_heads", 128), positive(config, "mamba_n_groups", 1)
    width = positive(config, "mamba_expand", 2) * hidden_size
    given = dict(config)
    if given.get("mamba_d_head") == "auto":
        del given["mamba_d_head"]
    head_dim = positive(given, "mamba_d_head", max(width // heads, 1))
    if heads * head_dim != width:
        raise CheckpointError(
            f"config.json: mamba_n_heads is {heads} and mamba_d_head {head_dim}, expected "
            f"{width} as their product, mamba_expand times hidden_size"
        )
    if heads % groups:
        raise CheckpointError(
            f"config.json: mamba_n_heads is {heads}, expected a multiple of mamba_n_groups, "
            f"{groups}"
        )
    least, most = _step_limits(config)
    found = SelectiveState(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state_dim=positive(config, "mamba_d_state", 256),
        taps=_taps(config, "mamba_d_conv", 4),
        has_bias=flag(config, "mamba_conv_bias", True),
        least_step=least,
        most_step=most,
    )
    _check_sizes("mamba_", found.channels, width * found.state_dim)
    return found


def _step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
    """What steps are limited to.

    Raises:
        CheckpointError: It is no range.
    """
    limits = config.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    if isinstance(limits, list) and len(limits) == 2:
        least, most = (math.inf if it == _INFINITY else it for it in limits)
        are_numbers = all(
            isinstance(it, int | float) and not isinstance(it, bool) for it in (least, most)
        )
        if are_numbers and 0 <= least <= most and least < math.inf:
            return float(least), float(most)
    raise CheckpointError(
        f"config.json: time_step_limit is {limits!r:.60}, expected the least and the most"
    )


def _kinds(model: str, kinds: Sequence[Any], known: Mapping[str, str]) -> list[str]:
    """The kinds of layers in the words of `known`.

    Raises:
        UnsupportedModelError: One is not known, or none has attention.
    """
    for layer, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in known:
            raise UnsupportedModelError(
                f"config.json: layer_types: layer {layer} of {len(kinds)} is of the kind "
                f"{kind!r:.60}, which is not supported in {model}, only {', '.join(known)}"
            )
    found = [known[kind] for kind in kinds]
    if FULL not in found:
        raise UnsupportedModelError(
            f"config.json: layer_types: none of the {len(kinds)} layers has attention, which "
            f"is not supported in {model}"
        )
    return found


def _taps(config: Mapping[str, Any], name: str, default: int) -> int:
    """The taps of a convolution.

    Raises:
        CheckpointError: There are too few or too many.
    """
    taps = positive(config, name, default)
    if not _LEAST_TAPS <= taps <= _MOST_TAPS:
        raise CheckpointError(
            f"config.json: {name} is {taps}, expected {_LEAST_TAPS} to {_MOST_TAPS}"
        )
    return taps


def _check_sizes(prefix: str, channels: int, state: int) -> None:
    """Refuse what no model has.

    Raises:
        CheckpointError: The layers are too large to be any.
    """
    if channels > _MOST_CHANNELS or state > _MOST_STATE:
        raise CheckpointError(
            f"config.json: {prefix}* give {channels} channels and a state of {state} numbers, "
            f"expected {_MOST_CHANNELS} and {_MOST_STATE} at most"
        )
