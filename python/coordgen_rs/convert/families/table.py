"""The families of models that can be exported, and which of them a file is of.

In: a parsed config.json, or the metadata of a GGUF file. Out: its `Family`. Dense families are rows
of this table, with their names in GGUF; those that say more have a file each beside this one.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.families.config_json import (
    every_layer,
    flag,
    last_layers,
    number,
    pattern_layers,
    unrotated_layers,
)
from coordgen_rs.convert.families.family import Family, halved_feed_forwards, model_config
from coordgen_rs.convert.families.gemma4 import GEMMA4_FAMILIES
from coordgen_rs.convert.families.gguf import (
    GEMMA_NORMS,
    HEAD_NORMS,
    NORMS_BEHIND,
    Gguf,
    head_dim,
    window_fields,
)
from coordgen_rs.convert.families.gpt_oss import GPT_OSS
from coordgen_rs.convert.families.granite import GRANITE_FAMILIES
from coordgen_rs.convert.families.lfm2 import LFM2_FAMILIES
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.qwen import QWEN3_5_FAMILIES, QWEN3_MOE
from coordgen_rs.errors import UnsupportedModelError

_LAYERS_OF_GEMMA_27B = 62
_NORMS_BEHIND: dict[str, Any] = {"wide_qk_norm": True, "input_norms": False, "output_norms": True}
"""OLMo's blocks: norms stand behind attention and feed-forward, not before them, and those of
queries and keys are over all heads at once."""
_OLMO_GGUF: dict[str, Any] = {
    "architecture": "olmo2",
    "layer_names": HEAD_NORMS | NORMS_BEHIND,
    "has_input_norms": False,
}


def _ministral_fields(config: dict[str, Any]) -> dict[str, Any]:
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


def _has_growth(metadata: GgufMetadata) -> bool:
    """Whether queries grow with their position, as those of Ministral 3 and not of Mistral do."""
    return bool(metadata.number("attention.temperature_scale", 0.0))


def _has_window(metadata: GgufMetadata) -> bool:
    """Whether there is a window, as in OLMo 3 and not in OLMo 2."""
    return bool(metadata.number("attention.sliding_window", 0))


def _olmo3_gguf(metadata: GgufMetadata) -> dict[str, Any]:
    """Windows, and their rotation where it is told."""
    found, local = window_fields(metadata, 4), metadata.get("rope.freq_base_swa")
    return found if local is None else {**found, "rope_local_base_freq": local}


def _glm4_options(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Whether there are biases."""
    return {"qkv_bias": flag(config, "attention_bias", True)}


def _glm4_gguf(metadata: GgufMetadata) -> dict[str, Any]:
    """Whether there are biases, which no metadata tells."""
    return {"attention_bias": "blk.0.attn_q.bias" in metadata.header.tensors}


def _phi3_gguf(metadata: GgufMetadata) -> dict[str, Any]:
    """The window, if there is one."""
    return {"sliding_window": metadata.number("attention.sliding_window", 0) or None}


def _gemma3_options(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Gemma's factors: the root of their size for embeddings, a number of its own for scores.

    Raises:
        CheckpointError: One is no number, or out of range.
    """
    divisor = number(config, "query_pre_attn_scalar", 1e-6, 1e6)
    return {"embedding_scale": hidden_size**0.5, "attention_scale": divisor**-0.5}


def _gemma3_gguf(metadata: GgufMetadata) -> dict[str, Any]:
    """Windows, and the factor of scores: no file says so, llama.cpp knows a model by its layers."""
    is_27b = metadata.layers == _LAYERS_OF_GEMMA_27B
    hidden, heads = metadata.number("embedding_length"), metadata.number("attention.head_count")
    return {
        **window_fields(metadata, 6),
        "query_pre_attn_scalar": hidden // heads if is_27b else head_dim(metadata),
    }


FAMILIES = (
    Family("llama", "LlamaForCausalLM", gguf=(Gguf("llama", rotates_neighbours=True),)),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        {"sliding_window": 4096},
        qkv_bias=True,
        window_rule=last_layers,
        has_layer_types=True,
        gguf=(Gguf("qwen2"),),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        {"head_dim": 128, "sliding_window": 4096},
        qk_norm=True,
        window_rule=last_layers,
        has_layer_types=True,
        gguf=(Gguf("qwen3", HEAD_NORMS),),
    ),
    QWEN3_MOE,
    Family(
        "mistral",
        "MistralForCausalLM",
        {"use_sliding_window": True, "sliding_window": 4096},
        window_rule=every_layer,
        inside=("Mistral3ForConditionalGeneration", "mistral"),
        gguf=(
            Gguf(
                "mistral3",
                rotates_neighbours=True,
                keys={"sliding_window": ("attention.sliding_window", None)},
                is_meant=lambda metadata: not _has_growth(metadata),
            ),
        ),
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
        _ministral_fields,
        window_rule=every_layer,
        scales_queries=True,
        inside=("Mistral3ForConditionalGeneration", "ministral3"),
        gguf=(Gguf("mistral3", rotates_neighbours=True, is_meant=_has_growth),),
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        qk_norm=True,
        **_NORMS_BEHIND,
        gguf=(Gguf(**_OLMO_GGUF, is_meant=lambda metadata: not _has_window(metadata)),),
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
        **_NORMS_BEHIND,
        window_rule=pattern_layers,
        has_layer_types=True,
        rotates_by_kind=True,
        gguf=(Gguf(**_OLMO_GGUF, fields=_olmo3_gguf, is_meant=_has_window),),
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1.5625e-7,
            "partial_rotary_factor": 0.5,
        },
        tells_bias=True,
        options=_glm4_options,
        output_norms=True,
        rotates_part=True,
        rotates_neighbours=True,
        names={
            ".post_attention_layernorm.": ".pre_feedforward_layernorm.",
            ".post_self_attn_layernorm.": ".post_attention_layernorm.",
            ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
        },
        tensors=halved_feed_forwards,
        gguf=(
            Gguf(
                "glm4",
                GEMMA_NORMS | {"ffn_up": "mlp.gate_up_proj"},
                rotates_neighbours=True,
                fields=_glm4_gguf,
                arranged=lambda tensors, config: (halved_feed_forwards(tensors), config),
            ),
        ),
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        {"no_rope_layer_interval": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
        window_rule=unrotated_layers,
        has_layer_types=True,
        gguf=(Gguf("smollm3", rotates_neighbours=True),),
    ),
    *GRANITE_FAMILIES,
    *LFM2_FAMILIES,
    *QWEN3_5_FAMILIES,
    GPT_OSS,
    Family(
        "phi3",
        "Phi3ForCausalLM",
        {"use_sliding_window": True, "original_max_position_embeddings": 4096},
        window_rule=every_layer,
        is_fused=True,
        rotates_part=True,
        gguf=(
            Gguf(
                "phi3",
                {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
                fields=_phi3_gguf,
            ),
        ),
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
        options=_gemma3_options,
        rotates_by_kind=True,
        output_norms=True,
        activation="gelu_tanh",
        norm_offset=1.0,
        inside=("Gemma3ForConditionalGeneration", "gemma3_text"),
        gguf=(
            Gguf(
                "gemma3",
                HEAD_NORMS | GEMMA_NORMS,
                keys={"rope_local_base_freq": ("rope.freq_base_swa", 10_000.0)},
                fields=_gemma3_gguf,
            ),
        ),
    ),
    *GEMMA4_FAMILIES,
)


def parse_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Reads a config.json and, where there is one, a generation_config.json (else an empty dict).

    Raises:
        UnsupportedModelError: The exporter cannot do this model.
        CheckpointError: A field is missing or malformed.
    """
    return model_config(family_of(config), config, generation)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config.json.

    Raises:
        UnsupportedModelError: Its architecture is none of those in `FAMILIES`.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if architectures == [family.architecture]:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UnsupportedModelError(
        f"config.json: architectures {architectures} are not supported, only {known}"
    )


def gguf_family_of(metadata: GgufMetadata) -> tuple[Family, Gguf]:
    """The family of a GGUF file, and what its architecture says.

    Raises:
        UnsupportedModelError: The architecture is none of those in `FAMILIES`.
    """
    named = [(family, gguf) for family in FAMILIES for gguf in family.gguf]
    for family, gguf in named:
        if gguf.architecture == metadata.architecture and gguf.is_meant(metadata):
            return family, gguf
    known = ", ".join(dict.fromkeys(gguf.architecture for _, gguf in named))
    raise UnsupportedModelError(
        f"the GGUF architecture {metadata.architecture!r:.60} is not supported, only {known}"
    )
