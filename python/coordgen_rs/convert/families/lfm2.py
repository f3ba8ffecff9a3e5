"""LFM2: short convolutions in place of attention in most layers, perhaps experts.

In: the fields of a config.json, or of a GGUF file. Out: the same in the words of Llama and, for
experts, of Qwen3-MoE. Sources: transformers' `models/lfm2*`, llama.cpp's `src/models/lfm2.cpp`.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.config_json import (
    FULL,
    RECURRENT,
    flag,
    layer_count,
    layer_kinds,
    layer_numbers,
    number,
    per_layer,
    positive,
    refuse_field,
    refused,
)
from coordgen_rs.convert.families.family import Family
from coordgen_rs.convert.families.gguf import (
    EXPERTS,
    HEAD_NORMS,
    SIGMOID,
    Gguf,
    expert_fields,
    kinds_by_heads,
)
from coordgen_rs.convert.families.model_config import (
    Experts,
    ShortConvolution,
    read_experts,
    read_taps,
)
from coordgen_rs.errors import UnsupportedModelError

_MOST_FACTOR = 64
"""Of a feed-forward's size."""
_MOST_SHARE_SCALE = 1e3
_SHARE_EPSILON = 1e-6
"""What LFM2-MoE adds to the sum of shares."""
_DEFAULTS = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_NAMES = {
    "model.embedding_norm.": "model.norm.",
    ".operator_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".feed_forward.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".self_attn.q_layernorm.": ".self_attn.q_norm.",
    ".self_attn.k_layernorm.": ".self_attn.k_norm.",
}
_GGUF_NAMES = HEAD_NORMS | {
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_GGUF_KEYS = {"conv_L_cache": "shortconv.l_cache", "norm_eps": "attention.layer_norm_rms_epsilon"}


def _lfm2_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of LFM2: the size of the feed-forward is adjusted, older files list attention.

    Raises:
        UnsupportedModelError: Convolutions have a bias, or a layer is of another kind.
        CheckpointError: A field is malformed.
    """
    refused(config, "LFM2", "conv_bias", flag(config, "conv_bias", False))
    layers = layer_count(config)
    kinds = per_layer(config, "layer_types", layers)
    if kinds is None:
        listed = layer_numbers(config, "full_attn_idxs", layers)
        kinds = [FULL if listed is None or it in listed else "conv" for it in range(layers)]
    ffn = config.get("block_ff_dim")
    size = positive(config, "intermediate_size" if ffn is None else "block_ff_dim")
    tied = flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True))
    return {
        **config,
        "intermediate_size": _adjusted(config, size),
        "rms_norm_eps": number(config, "norm_eps"),
        "tie_word_embeddings": tied,
        "layer_types": layer_kinds("LFM2", kinds, {"conv": RECURRENT, FULL: FULL}),
    }


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


def _short_convolution(config: Mapping[str, Any], hidden_size: int) -> ShortConvolution:
    """The recurrent layers of LFM2.

    Raises:
        CheckpointError: A field is malformed, or out of range.
    """
    return ShortConvolution(hidden_size, read_taps(config, "conv_L_cache", 3))


def _lfm2_moe_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of LFM2-MoE, the sizes of whose dense layers are never adjusted.

    Raises UnsupportedModelError and CheckpointError as `_lfm2_fields` does.
    """
    return _lfm2_fields({**config, "block_auto_adjust_ff_dim": False, "block_ff_dim": None})


def _lfm2_experts(config: Mapping[str, Any], num_layers: int) -> Experts:
    """Those of LFM2-MoE: in every layer behind the first, which are dense.

    Raises:
        UnsupportedModelError: No layer has experts.
        CheckpointError: A field is malformed, or out of range.
    """
    dense = config.get("num_dense_layers", 2)
    if not isinstance(dense, int) or isinstance(dense, bool) or dense < 0:
        refuse_field(config, "num_dense_layers", "a number")
    if dense >= num_layers:
        raise UnsupportedModelError(
            f"config.json: num_dense_layers = {dense} leaves experts to none of {num_layers} "
            "layers, which is not supported in LFM2-MoE"
        )
    return read_experts(
        config,
        range(dense, num_layers),
        scoring="sigmoid",
        is_normed=flag(config, "norm_topk_prob", True),
        share_epsilon=_SHARE_EPSILON,
        share_scale=number(config, "routed_scaling_factor", 0, _MOST_SHARE_SCALE),
        has_choice_bias=flag(config, "use_expert_bias", True),
    )


def _gguf_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """LFM2, whose metadata holds the final size of the feed-forward.

    Raises:
        CheckpointError: A value is missing or no number.
        UnsupportedModelError: Attention has a window.
    """
    if window := metadata.number("attention.sliding_window", 0):
        why = ", which is not supported in LFM2"
        raise metadata.unsupported("attention.sliding_window", window, why)
    return {**kinds_by_heads(metadata, "conv"), "block_auto_adjust_ff_dim": False}


def _gguf_moe_fields(metadata: GgufMetadata) -> dict[str, Any]:
    """LFM2-MoE, whose shares llama.cpp always norms; raises as `_gguf_fields` does."""
    switches = {"norm_topk_prob": True, "use_expert_bias": True}
    return {**_gguf_fields(metadata), **expert_fields(metadata, SIGMOID), **switches}


LFM2_FAMILIES = (
    Family(
        "lfm2",
        "Lfm2ForCausalLM",
        {**_DEFAULTS, "intermediate_size": 12_288, "block_ffn_dim_multiplier": 1.0},
        _lfm2_fields,
        inside=("Lfm2VlForConditionalGeneration", "lfm2"),
        qk_norm=True,
        recurrent=_short_convolution,
        names=_NAMES,
        gguf=(
            Gguf(
                "lfm2",
                _GGUF_NAMES,
                keys=_GGUF_KEYS,
                fields=_gguf_fields,
                output_norm="token_embd_norm",
            ),
        ),
    ),
    Family(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        {
            **_DEFAULTS,
            "intermediate_size": 7168,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1792,
            "routed_scaling_factor": 1.0,
        },
        _lfm2_moe_fields,
        qk_norm=True,
        recurrent=_short_convolution,
        experts=_lfm2_experts,
        names=_NAMES,
        gguf=(
            Gguf(
                "lfm2moe",
                _GGUF_NAMES | EXPERTS,
                keys={**_GGUF_KEYS, "num_dense_layers": ("leading_dense_block_count", 0)},
                fields=_gguf_moe_fields,
                whole_names={"exp_probs_b.bias": "mlp.expert_bias"},
                output_norm="token_embd_norm",
            ),
        ),
    ),
)
