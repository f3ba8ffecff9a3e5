"""Qwen with experts, and Qwen3.5, whose layers mostly have a gated delta net.

In: the fields of a config.json, or of a GGUF file; tensors. Out: the same in the words of Llama and
of Qwen3-MoE. Sources: transformers' `models/qwen3*`, llama.cpp's `src/models/qwen3*.cpp`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.config_json import (
    FULL,
    RECURRENT,
    every_layer,
    flag,
    layer_count,
    layer_kinds,
    layer_numbers,
    per_layer,
    positive,
    refused,
)
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.gguf import (
    BESIDE_EXPERTS,
    EXPERTS,
    HEAD_NORMS,
    NORM_BEHIND_ATTENTION,
    SOFTMAX,
    Arranged,
    Gguf,
    expert_fields,
)
from coordgen_rs.convert.families.model_config import (
    BESIDE_GATE,
    DeltaNet,
    Experts,
    ModelConfig,
    check_sizes,
    read_experts,
    read_taps,
)
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_ROW = f".{BESIDE_GATE}.weight"
"""Of one row, which GGUF files hold as a vector."""


def _qwen3_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Qwen3-MoE, which may call its experts local ones."""
    num = config.get("num_experts", config.get("num_local_experts", 128))
    return {**config, "num_experts": num}


def _qwen3_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of Qwen3-MoE: in every layer but for those that the config.json excepts.

    Raises:
        UnsupportedModelError: No layer has experts.
        CheckpointError: A field is malformed, or out of range.
    """
    step = positive(config, "decoder_sparse_step", 1)
    dense = layer_numbers(config, "mlp_only_layers", num_layers) or []
    layers = {layer for layer in range(num_layers) if (layer + 1) % step == 0}.difference(dense)
    if not layers:
        raise UnsupportedModelError(
            f"config.json: decoder_sparse_step = {step} and mlp_only_layers leave experts to none "
            f"of {num_layers} layers, which is not supported in Qwen3-MoE"
        )
    return read_experts(config, layers, is_normed=flag(config, "norm_topk_prob", False))


def _qwen35_fields(config: dict[str, Any]) -> dict[str, Any]:
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
    return {**config, "layer_types": layer_kinds(name, kinds, {RECURRENT: RECURRENT, FULL: FULL})}


def _delta_net(config: Mapping[str, Any], hidden_size: int) -> DeltaNet:
    """The recurrent layers of Qwen3.5.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    found = DeltaNet(
        key_heads=positive(config, "linear_num_key_heads", 16),
        value_heads=positive(config, "linear_num_value_heads", 32),
        key_dim=positive(config, "linear_key_head_dim", 128),
        value_dim=positive(config, "linear_value_head_dim", 128),
        taps=read_taps(config, "linear_conv_kernel_dim", 4),
    )
    if found.value_heads % found.key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads is {found.value_heads}, expected a multiple of "
            f"linear_num_key_heads, {found.key_heads}"
        )
    check_sizes("linear_", found.channels, found.width * found.key_dim)
    return found


def _qwen35_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Qwen3.5-MoE, none of whose layers are dense.

    Raises UnsupportedModelError and CheckpointError as `_qwen35_fields` does.
    """
    shared = positive(config, "shared_expert_intermediate_size", 512)
    experts = {"num_experts": config.get("num_experts"), "intermediate_size": shared}
    return _qwen35_fields({**config, "num_experts": None}) | experts


def _qwen35_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of Qwen3.5-MoE: in every layer, with a shared expert whose gate is its own.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    shared = positive(config, "shared_expert_intermediate_size", 512)
    return read_experts(config, range(num_layers), shared_size=shared, gates_shared=True)


def _gguf_moe_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """Qwen3-MoE, whose shares llama.cpp always norms.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Experts are chosen in another way.
    """
    return {**expert_fields(metadata, SOFTMAX), "norm_topk_prob": True}


def _gguf35_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """Qwen3.5, whose layers are told by a list, or by how many lie between those with attention.

    Raises:
        CheckpointError: A value is missing, no number, or not divided by another.
    """
    name, kinds = "attention.recurrent_layers", None
    if metadata.get(name) is not None:
        is_recurrent = metadata.by_layer(name, metadata.blocks)[: metadata.layers]
        kinds = [RECURRENT if it else FULL for it in is_recurrent]
    value_dim = metadata.quotient("ssm.inner_size", "ssm.time_step_rank")
    return {"layer_types": kinds, "linear_value_head_dim": value_dim}


def _gguf35_moe_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """Qwen3.5-MoE; raises as `_gguf_moe_fields` does."""
    shared = metadata.get("expert_shared_feed_forward_length")
    if shared is None:
        shared = metadata.number("feed_forward_length")
    sizes = expert_fields(metadata, SOFTMAX)
    return {**_gguf35_fields(metadata), **sizes, "shared_expert_intermediate_size": shared}


def _arranged(tensors: dict[str, Tensor], config: ModelConfig) -> Arranged:
    """Tensors of a GGUF file with their value heads in order, and gates of experts as rows."""
    found = {name: it.as_row() if name.endswith(_ROW) else it for name, it in tensors.items()}
    if not isinstance(config.recurrent, DeltaNet):
        return found, config
    found, recurrent = grouped(found, config.recurrent)
    return found, replace(config, recurrent=recurrent)


def grouped(tensors: dict[str, Tensor], kind: DeltaNet) -> tuple[dict[str, Tensor], DeltaNet]:
    """Tensors of a GGUF file with the rows of value heads in the order of their key heads.

    Of a model with more value heads than key heads llama.cpp's converter puts the first of every
    key head first, then the second of each, so that queries and keys are repeated as a whole. Rows
    are put back here. Columns of the projection back stay: some types hold several heads in one
    block, so a graph orders what it multiplies.
    """
    if kind.key_heads == kind.value_heads:
        return tensors, kind
    first = 2 * kind.key_heads * kind.key_dim
    rows = {
        "linear_attn.in_proj_qkv.weight": (first, kind.value_dim),
        "linear_attn.conv1d.weight": (first, kind.value_dim),
        "linear_attn.in_proj_z.weight": (0, kind.value_dim),
        "linear_attn.in_proj_b.weight": (0, 1),
        "linear_attn.in_proj_a.weight": (0, 1),
        "linear_attn.A": (0, 1),
        "linear_attn.dt_bias": (0, 1),
    }
    found = dict(tensors)
    for name, tensor in tensors.items():
        _, _, part = name.removeprefix("model.layers.").partition(".")
        if part in rows and tensor.shape[0] == rows[part][0] + kind.value_heads * rows[part][1]:
            found[name] = tensor.joined(_spans(kind, *rows[part]))
    return found, replace(kind, is_tiled=True)


def _spans(kind: DeltaNet, first: int, size: int) -> list[tuple[int, int]]:
    """The rows before the value heads, and those of each head: where they are in the file."""
    of_key = kind.value_heads // kind.key_heads
    heads = [
        number * kind.key_heads + key for key in range(kind.key_heads) for number in range(of_key)
    ]
    spans = [(first + head * size, first + (head + 1) * size) for head in heads]
    return [(0, first), *spans] if first else spans


QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    {
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    _qwen3_moe_fields,
    qk_norm=True,
    window_rule=every_layer,
    experts=_qwen3_experts,
    gguf=(Gguf("qwen3moe", HEAD_NORMS | EXPERTS, fields=_gguf_moe_fields),),
)
_GGUF35: dict[str, Any] = {
    "arranged": _arranged,
    "keys": {
        "full_attention_interval": ("full_attention_interval", 4),
        "linear_num_key_heads": "ssm.group_count",
        "linear_num_value_heads": "ssm.time_step_rank",
        "linear_key_head_dim": "ssm.state_size",
        "linear_conv_kernel_dim": "ssm.conv_kernel",
    },
    "whole_names": {"ssm_a": "linear_attn.A", "ssm_dt.bias": "linear_attn.dt_bias"},
    "next_names": {
        "nextn.eh_proj": "fc",
        "nextn.enorm": "pre_fc_norm_embedding",
        "nextn.hnorm": "pre_fc_norm_hidden",
        "nextn.shared_head_norm": "norm",
    },
}
_GGUF35_NAMES = {
    **HEAD_NORMS,
    **NORM_BEHIND_ATTENTION,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_DEFAULTS35 = {
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
}
_SWITCHES35: dict[str, Any] = {
    "qk_norm": True,
    "rotates_part": True,
    "norm_offset": 1.0,
    "gated_attention": True,
    "recurrent": _delta_net,
}
QWEN3_5_FAMILIES = (
    Family(
        "qwen3_5",
        "Qwen3_5ForCausalLM",
        {**_DEFAULTS35, "num_key_value_heads": 4},
        _qwen35_fields,
        inside=("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
        gguf=(Gguf("qwen35", _GGUF35_NAMES, fields=_gguf35_fields, **_GGUF35),),
        **_SWITCHES35,
    ),
    Family(
        "qwen3_5_moe",
        "Qwen3_5MoeForCausalLM",
        {
            **_DEFAULTS35,
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
        },
        _qwen35_moe_fields,
        inside=("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
        experts=_qwen35_experts,
        names={".mlp.shared_expert.": ".mlp."},
        gguf=(
            Gguf(
                "qwen35moe",
                {**_GGUF35_NAMES, **EXPERTS, **BESIDE_EXPERTS, "ffn_gate_inp_shexp": BESIDE_GATE},
                fields=_gguf35_moe_fields,
                **_GGUF35,
            ),
        ),
        **_SWITCHES35,
    ),
)
