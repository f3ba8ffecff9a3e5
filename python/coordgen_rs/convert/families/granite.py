"""Granite: factors, experts, and layers with a selective state.

In: the fields of a config.json, or of a GGUF file; tensors. Out: the same in the words of Llama
and, for experts, of Qwen3-MoE. Gate and up of its feed-forward are one tensor. Sources:
transformers' `models/granite*`, llama.cpp's `src/models/granite*.cpp`.
"""

import math
from collections.abc import Mapping
from typing import Any

from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config_json import (
    FULL,
    RECURRENT,
    flag,
    layer_count,
    layer_kinds,
    number,
    per_layer,
    positive,
    refuse_field,
    refused,
)
from coordgen_rs.convert.families.family import Family, halved_feed_forwards
from coordgen_rs.convert.families.gguf import (
    BESIDE_EXPERTS,
    DENSE,
    EXPERTS,
    SOFTMAX,
    Arranged,
    Gguf,
    expert_fields,
    head_dim,
    kinds_by_heads,
)
from coordgen_rs.convert.families.model_config import (
    Experts,
    ModelConfig,
    SelectiveState,
    check_sizes,
    read_experts,
    read_taps,
)
from coordgen_rs.errors import CheckpointError

_LEAST, _MOST = 1e-6, 1e6
"""No known model multiplies by less or more; a damaged file may, and would give infinite values."""
_FACTORS = {
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_GGUF_FACTORS = {
    "embedding_multiplier": ("embedding_scale", 1.0),
    "residual_multiplier": ("residual_scale", 1.0),
    "logits_scaling": ("logit_scale", 1.0),
}
_INFINITY = {"__float__": "Infinity"}
"""What transformers writes for it."""
_NAMES = {
    ".block_sparse_moe.router.layer.": ".mlp.gate.",
    ".block_sparse_moe.router.": ".mlp.gate.",
    ".block_sparse_moe.input_linear.": ".mlp.experts.gate_up_proj.",
    ".block_sparse_moe.output_linear.": ".mlp.experts.down_proj.",
    ".shared_mlp.input_linear.": ".mlp.gate_up_proj.",
    ".shared_mlp.output_linear.": ".mlp.down_proj.",
}
_VECTORS = (".mamba.A", ".mamba.D", ".mamba.norm.weight")
"""Tensors that GGUF files hold as matrices: of a column, or of a row for each group."""


def _granite_options(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
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


def _granite_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Granite 3 with experts, perhaps beside a shared one.

    Raises:
        CheckpointError: A field is malformed.
    """
    shared, size = config.get("shared_intermediate_size", 0), positive(config, "intermediate_size")
    return {
        **config,
        "num_experts": positive(config, "num_local_experts", 8),
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": shared,
        "intermediate_size": shared or size,
    }


def _granite_hybrid_fields(config: dict[str, Any]) -> dict[str, Any]:
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
        "layer_types": layer_kinds(name, kinds, known),
        "intermediate_size": positive(
            config, "intermediate_size" if is_alone else "shared_intermediate_size", 1024
        ),
        "num_experts": experts,
        "shared_expert_intermediate_size": shared,
        "moe_intermediate_size": config.get("intermediate_size"),
        "no_rope_layers": [int(position == "rope")] * layers,
    }


def _selective_state(config: Mapping[str, Any], hidden_size: int) -> SelectiveState:
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
        taps=read_taps(config, "mamba_d_conv", 4),
        has_bias=flag(config, "mamba_conv_bias", True),
        least_step=least,
        most_step=most,
    )
    check_sizes("mamba_", found.channels, width * found.state_dim)
    return found


def _step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
    """What steps are limited to.

    Raises:
        CheckpointError: It is no range.
    """
    limits = config.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    listed = limits if isinstance(limits, list) else []
    found = [math.inf if it == _INFINITY else it for it in listed]
    are_numbers = all(isinstance(it, int | float) and not isinstance(it, bool) for it in found)
    if len(found) != 2 or not are_numbers or not 0 <= found[0] <= found[1] or found[0] == math.inf:
        refuse_field(config, "time_step_limit", "the least and the most")
    return float(found[0]), float(found[1])


def _granite_experts(config: Mapping[str, Any], num_layers: int) -> Experts | None:
    """Those of Granite: in every layer, perhaps beside a shared expert; None for dense models.

    Shares are the softmax over the chosen alone, which is that over all, normed.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    if not config["num_experts"]:
        return None
    shared = config["shared_expert_intermediate_size"] and positive(config, "intermediate_size")
    return read_experts(config, range(num_layers), shared_size=shared)


def _gguf_factors(metadata: GgufMetadata) -> dict[str, Any]:
    """The factor of scores, and whether queries and keys are rotated, which all layers have."""
    multiplier = metadata.number("attention.scale", head_dim(metadata) ** -0.5)
    is_rotated = metadata.get("rope.scaling.finetuned", True) is not False
    return {
        "attention_multiplier": multiplier,
        "position_embedding_type": "rope" if is_rotated else None,
        "no_rope_layers": [int(is_rotated)] * metadata.layers,
    }


def _gguf_experts(metadata: GgufMetadata) -> dict[str, Any]:
    """Granite 4, with experts or without.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Experts are chosen in another way.
    """
    found = {"layer_types": [FULL] * metadata.layers, **_gguf_factors(metadata)}
    if not metadata.number("expert_count", 0):
        return found | {"num_local_experts": 0}
    sizes = expert_fields(metadata, SOFTMAX)
    return {
        **found,
        **sizes,
        "num_local_experts": sizes["num_experts"],
        "intermediate_size": metadata.number("feed_forward_length"),
        "shared_intermediate_size": metadata.number("expert_shared_feed_forward_length", 0),
    }


def _gguf_hybrid(metadata: GgufMetadata) -> dict[str, Any]:
    """Granite 4 with recurrent layers; raises as `_gguf_experts` does."""
    return {
        "shared_intermediate_size": metadata.number("feed_forward_length"),
        **_gguf_experts(metadata),
        **kinds_by_heads(metadata, "mamba"),
        "mamba_d_head": metadata.quotient("ssm.inner_size", "ssm.time_step_rank"),
        "mamba_expand": metadata.quotient("ssm.inner_size", "embedding_length"),
        "mamba_conv_bias": any(
            name.endswith(".ssm_conv1d.bias") for name in metadata.header.tensors
        ),
    }


def _as_vectors(tensors: dict[str, Tensor], config: ModelConfig) -> Arranged:
    """Tensors of a GGUF file whose vectors have one dimension."""
    return {
        name: it.as_vector() if name.endswith(_VECTORS) else it for name, it in tensors.items()
    }, config


def _with_experts(name: str, architecture: str, **own: Any) -> Family:
    """A family of Granite whose layers may have experts."""
    return Family(
        name,
        architecture,
        {**_FACTORS, "rms_norm_eps": 1e-6, "num_experts_per_tok": 2},
        options=_granite_options,
        experts=_granite_experts,
        names=_NAMES,
        tensors=halved_feed_forwards,
        **own,
    )


GRANITE_FAMILIES = (
    Family(
        "granite",
        "GraniteForCausalLM",
        _FACTORS,
        options=_granite_options,
        gguf=(Gguf("granite", rotates_neighbours=True, keys=_GGUF_FACTORS, fields=_gguf_factors),),
    ),
    _with_experts("granitemoe", "GraniteMoeForCausalLM", fields=_granite_moe_fields),
    _with_experts("granitemoeshared", "GraniteMoeSharedForCausalLM", fields=_granite_moe_fields),
    _with_experts(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        fields=_granite_hybrid_fields,
        recurrent=_selective_state,
        gguf=(
            Gguf(
                "granitemoe",
                EXPERTS | BESIDE_EXPERTS,
                rotates_neighbours=True,
                keys=_GGUF_FACTORS,
                fields=_gguf_experts,
            ),
            Gguf(
                "granitehybrid",
                {
                    "ssm_in": "mamba.in_proj",
                    "ssm_conv1d": "mamba.conv1d",
                    "ssm_norm": "mamba.norm",
                    "ssm_out": "mamba.out_proj",
                    **EXPERTS,
                    **BESIDE_EXPERTS,
                    **DENSE,
                },
                rotates_neighbours=True,
                keys={
                    **_GGUF_FACTORS,
                    "mamba_n_heads": "ssm.time_step_rank",
                    "mamba_n_groups": ("ssm.group_count", 1),
                    "mamba_d_state": "ssm.state_size",
                    "mamba_d_conv": "ssm.conv_kernel",
                },
                fields=_gguf_hybrid,
                arranged=_as_vectors,
                whole_names={
                    "ssm_a": "mamba.A",
                    "ssm_d": "mamba.D",
                    "ssm_dt.bias": "mamba.dt_bias",
                },
            ),
        ),
    ),
)
