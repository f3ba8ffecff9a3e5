"""The families of models that can be exported: what each one's architecture says.

In: a parsed config.json. Out: its `Family`, and config.json with what that leaves unsaid; the
numbers by which some families multiply what others leave as it is. Options that a family's graphs
do not know are refused. All of them are one decoder with some switches set (`config.py`); no family
has an exporter of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.fields import (
    WindowRule,
    every_layer,
    last_layers,
    no_layer,
    number,
    pattern_layers,
    unrotated_layers,
)
from coordgen_rs.convert.families.config.recurrent import Recurrent
from coordgen_rs.convert.families.gemma4 import (
    GEMMA4,
    UNIFIED,
    gemma4_fields,
    gemma4_options,
    gemma4_scalars,
)
from coordgen_rs.convert.families.gpt_oss import (
    GPT_OSS_DEFAULTS,
    gpt_oss_experts,
    gpt_oss_fields,
)
from coordgen_rs.convert.families.hybrids import (
    delta_net,
    granite_hybrid_fields,
    lfm2_fields,
    qwen35_fields,
    selective_state,
    short_convolution,
)
from coordgen_rs.convert.families.mixtures import (
    granite_experts,
    granite_moe_fields,
    lfm2_experts,
    lfm2_moe_fields,
    qwen3_experts,
    qwen3_moe_fields,
    qwen35_experts,
    qwen35_moe_fields,
)
from coordgen_rs.errors import UnsupportedModelError

_ACTIVATIONS = {
    False: ("hidden_act", ("silu", "swish")),
    True: ("hidden_activation", ("gelu_pytorch_tanh",)),
}
"""Field and accepted names, for Gemma and for others."""
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


def no_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing that only one family has."""
    return {}


def same_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json as it is."""
    return config


def ministral_fields(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of Ministral 3 with the rotation that it means by telling of none."""
    if config.get("rope_parameters") or config.get("rope_scaling"):
        return config
    rotation = {
        "type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    return {**config, "rope_parameters": rotation}


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    name: str
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a config.json means by leaving a field out, where it is not what Llama's means."""
    fields: Callable[[dict[str, Any]], dict[str, Any]] = same_fields
    """Says in Llama's words what a config.json says in others, or refuses it."""
    qkv_bias: bool = False
    out_bias: bool = False
    """What attention gives back to the stream has a bias."""
    has_sinks: bool = False
    """Each head of attention has a score that no value stands behind."""
    quantized_by: str | None = None
    """What `quantization_config` may name as its method."""
    qk_norm: bool = False
    """Queries and keys are normed before they are rotated, each head by itself."""
    norms_behind: bool = False
    """OLMo's blocks: norms stand behind attention and feed-forward, not before them, and those of
    queries and keys are over all heads at once."""
    window_rule: WindowRule = no_layer
    """Which layers have a sliding window, where there is one; for others than that of Llama,
    `use_sliding_window` says whether."""
    has_layer_types: bool = False
    """Whether `layer_types` may say otherwise than the rule."""
    scalars: Callable[[Mapping[str, Any], int], Scalars] = no_scalars
    """What is multiplied, from a config.json and the hidden size."""
    is_fused: bool = False
    """Query, key and value weights are one tensor, as are gate and up."""
    rotates_part: bool = False
    """Only the first dimensions of a head may be rotated."""
    rotates_by_kind: bool = False
    """Layers with a window may be rotated otherwise than others."""
    scales_queries: bool = False
    """Queries may grow with their position."""
    options: Callable[[Mapping[str, Any]], dict[str, Any]] = no_options
    """Fields of `ModelConfig` that others leave as they are, from a config.json."""
    is_gemma: bool = False
    """Gemma's blocks: four norms, and GELU."""
    caps_logits: bool = False
    """Logits may be kept below a number."""
    norm_offset: float = 0.0
    """What is added to the weights of all norms but those inside recurrent layers."""
    gated_attention: bool = False
    """What attention gives is multiplied by a gate."""
    recurrent: Callable[[Mapping[str, Any], int], Recurrent] | None = None
    """What layers without attention have, from a config.json and the hidden size; None for a family
    without such layers."""
    experts: Callable[[Mapping[str, Any], int], Experts | None] | None = None
    """The mixtures of experts, from a config.json and the number of layers; None for a family
    without."""


_GRANITE = {
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}


def _gemma4(name: str, architecture: str, **defaults: Any) -> Family:
    """A family of Gemma 4."""
    return Family(
        name,
        architecture,
        {**GEMMA4, **defaults},
        gemma4_fields,
        qk_norm=True,
        has_layer_types=True,
        window_rule=every_layer,
        scalars=gemma4_scalars,
        options=gemma4_options,
        rotates_by_kind=True,
        is_gemma=True,
        caps_logits=True,
    )


FAMILIES = (
    Family("llama", "LlamaForCausalLM"),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        {"sliding_window": 4096},
        qkv_bias=True,
        window_rule=last_layers,
        has_layer_types=True,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        {"head_dim": 128, "sliding_window": 4096},
        qk_norm=True,
        window_rule=last_layers,
        has_layer_types=True,
    ),
    Family(
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
        qwen3_moe_fields,
        qk_norm=True,
        window_rule=every_layer,
        experts=qwen3_experts,
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        {"use_sliding_window": True, "sliding_window": 4096},
        window_rule=every_layer,
    ),
    Family(
        "ministral3",
        "Ministral3ForCausalLM",
        {
            "head_dim": 128,
            "num_key_value_heads": 8,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-5,
            "use_sliding_window": True,
            "sliding_window": None,
        },
        ministral_fields,
        window_rule=every_layer,
        scales_queries=True,
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        qk_norm=True,
        norms_behind=True,
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        {
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "use_sliding_window": True,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        qk_norm=True,
        norms_behind=True,
        window_rule=pattern_layers,
        has_layer_types=True,
        rotates_by_kind=True,
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        {"no_rope_layer_interval": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
        window_rule=unrotated_layers,
        has_layer_types=True,
    ),
    Family("granite", "GraniteForCausalLM", _GRANITE, scalars=granite_scalars),
    *(
        Family(
            name,
            architecture,
            {**_GRANITE, "rms_norm_eps": 1e-6, "num_experts_per_tok": 2},
            granite_moe_fields,
            scalars=granite_scalars,
            experts=granite_experts,
        )
        for name, architecture in (
            ("granitemoe", "GraniteMoeForCausalLM"),
            ("granitemoeshared", "GraniteMoeSharedForCausalLM"),
        )
    ),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, "rms_norm_eps": 1e-6, "num_experts_per_tok": 2},
        granite_hybrid_fields,
        scalars=granite_scalars,
        recurrent=selective_state,
        experts=granite_experts,
    ),
    Family(
        "lfm2",
        "Lfm2ForCausalLM",
        {
            "num_key_value_heads": 8,
            "intermediate_size": 12_288,
            "max_position_embeddings": 128_000,
            "norm_eps": 1e-5,
            "block_ffn_dim_multiplier": 1.0,
            "rope_theta": 1e6,
        },
        lfm2_fields,
        qk_norm=True,
        recurrent=short_convolution,
    ),
    Family(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        {
            "num_key_value_heads": 8,
            "intermediate_size": 7168,
            "max_position_embeddings": 128_000,
            "norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1792,
        },
        lfm2_moe_fields,
        qk_norm=True,
        recurrent=short_convolution,
        experts=lfm2_experts,
    ),
    Family(
        "qwen3_5",
        "Qwen3_5ForCausalLM",
        {
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "partial_rotary_factor": 0.25,
        },
        qwen35_fields,
        qk_norm=True,
        rotates_part=True,
        norm_offset=1.0,
        gated_attention=True,
        recurrent=delta_net,
    ),
    Family(
        "qwen3_5_moe",
        "Qwen3_5MoeForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "partial_rotary_factor": 0.25,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
        },
        qwen35_moe_fields,
        qk_norm=True,
        rotates_part=True,
        norm_offset=1.0,
        gated_attention=True,
        recurrent=delta_net,
        experts=qwen35_experts,
    ),
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        GPT_OSS_DEFAULTS,
        gpt_oss_fields,
        qkv_bias=True,
        out_bias=True,
        has_sinks=True,
        quantized_by="mxfp4",
        window_rule=pattern_layers,
        has_layer_types=True,
        experts=gpt_oss_experts,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        {"use_sliding_window": True, "original_max_position_embeddings": 4096},
        window_rule=every_layer,
        is_fused=True,
        rotates_part=True,
    ),
    Family(
        "gemma3",
        "Gemma3ForCausalLM",
        {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 256,
            "use_sliding_window": True,
            "sliding_window": 4096,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10_000.0,
            "tie_word_embeddings": True,
        },
        qk_norm=True,
        window_rule=pattern_layers,
        has_layer_types=True,
        scalars=gemma_scalars,
        rotates_by_kind=True,
        is_gemma=True,
        norm_offset=1.0,
    ),
    _gemma4("gemma4", "Gemma4ForCausalLM"),
    _gemma4("gemma4_unified", "Gemma4UnifiedForCausalLM", **UNIFIED),
)


def family_of(config: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The family of a config.json, and its fields with the family's defaults.

    Raises:
        UnsupportedModelError: Its architecture is none of those in `FAMILIES`, or an option is set
            that changes the arithmetic.
        CheckpointError: A field is malformed.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if architectures == [family.architecture]:
            config = family.fields({**family.defaults, **config})
            _refuse_options(config, family)
            return family, config
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UnsupportedModelError(
        f"config.json: architectures {architectures} are not supported, only {known}"
    )


def _refuse_options(config: dict[str, Any], family: Family) -> None:
    """Refuse options that change the arithmetic.

    Raises:
        UnsupportedModelError: There is one; the message names it.
    """
    activation, names = _ACTIVATIONS[family.is_gemma]
    refused = {
        "quantization_config": _is_otherwise_quantized(config, family),
        "attention_bias": not family.qkv_bias and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        activation: config.get(activation, names[0]) not in names,
        "attn_logit_softcapping": config.get("attn_logit_softcapping") is not None,
        "final_logit_softcapping": config.get("final_logit_softcapping") is not None
        and not family.caps_logits,
        "use_bidirectional_attention": bool(config.get("use_bidirectional_attention")),
    }
    for name, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(
                f"config.json: {name} = {config[name]!r:.200} is not supported"
            )


def _is_otherwise_quantized(config: Mapping[str, Any], family: Family) -> bool:
    """Whether weights are quantised in a way that the family's readers do not know."""
    given = config.get("quantization_config")
    if given is None:
        return False
    method = given.get("quant_method") if isinstance(given, dict) else None
    return family.quantized_by is None or method != family.quantized_by
