"""What a GGUF file's metadata says, as a Hugging Face config.json would say it.

In: the header. Out: the dict of a config.json, and that of a generation_config.json, for
`parse_config`, which stays the one judge of what can be exported. What llama.cpp knows of an
architecture without being told by the file is filled in here.
Sources: llama.cpp's `llama-model.cpp` (loading), `conversion/` (the same, backwards).
"""

import math
from typing import Any

import numpy as np

from coordgen_rs.convert.containers.gguf.ends import NORMAL, ends
from coordgen_rs.convert.containers.gguf.keys import check_keys
from coordgen_rs.convert.containers.gguf.tensors import read_numbers
from coordgen_rs.convert.containers.gguf.values import GgufMetadata, num_layers
from coordgen_rs.convert.families.config.rope import yarn_attention
from coordgen_rs.convert.families.gguf.architectures import Architecture
from coordgen_rs.convert.families.gguf.gemma4 import gemma4_options
from coordgen_rs.convert.families.gguf.hybrids import (
    granite_hybrid_options,
    lfm2_options,
    qwen35_options,
)
from coordgen_rs.convert.families.gguf.mixtures import (
    all_attention,
    gpt_oss_options,
    granite_moe_options,
    lfm2_moe_options,
    qwen3_moe_options,
    qwen35_moe_options,
)
from coordgen_rs.errors import CheckpointError, UnsupportedModelError

_ROPE_FREQS, _LONG, _SHORT = (
    f"rope_{kind}.weight" for kind in ("freqs", "factors_long", "factors_short")
)
ROPE_TENSORS = (_ROPE_FREQS, _LONG, _SHORT)
"""Tensors that belong to the configuration, not to the weights."""

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Names of a generation_config.json, and those of `general.sampling.NAME`."""

_LAYERS_OF_GEMMA_27B = 62


def config_document(metadata: GgufMetadata, architecture: Architecture) -> dict[str, Any]:
    """What a config.json would hold.

    Raises:
        CheckpointError: A key is missing or no number.
        UnsupportedModelError: The file needs what no config.json says, or what nothing here reads.
    """
    header = metadata.header
    hidden, heads = metadata.number("embedding_length"), metadata.same("attention.head_count")
    if not heads:
        raise CheckpointError(f"{header.path}: attention.head_count is {heads}")
    head_dim = metadata.number("attention.key_length", hidden // heads)
    if metadata.number("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(
            f"{header.path}: attention.value_length is not attention.key_length, {head_dim}, which "
            "is not supported"
        )
    if metadata.number("expert_count", 0) and not architecture.has_experts:
        raise UnsupportedModelError(
            f"{header.path}: expert_count is not 0, and mixtures of experts are not supported in "
            "this architecture"
        )
    embedding = header.tensors.get("token_embd.weight")
    document = {
        "architectures": [architecture.hugging_face],
        "hidden_size": hidden,
        "num_hidden_layers": num_layers(metadata),
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "vocab_size": None if embedding is None else embedding.shape[0],
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": _shortest(metadata.number("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **({} if architecture.lists_sizes else _sizes(metadata, architecture, heads, head_dim)),
        **_family_options(metadata, head_dim),
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }
    check_keys(metadata)
    return document


def _sizes(
    metadata: GgufMetadata, architecture: Architecture, heads: int, head_dim: int
) -> dict[str, Any]:
    """What all layers have in common, and how they are rotated."""
    return {
        "intermediate_size": _feed_forward(metadata, architecture),
        "num_key_value_heads": _kv_heads(metadata, heads, architecture.has_recurrent),
        **_rope(metadata, head_dim),
    }


def generation_document(metadata: GgufMetadata) -> dict[str, Any]:
    """What a generation_config.json would hold: ends of answers, suppressed tokens, sampling."""
    values = metadata.header.metadata
    names = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    found = [values[name] for name in names if name in values]
    several = values.get("tokenizer.ggml.eos_token_ids", [])
    found += several if isinstance(several, list) else [several]
    tokens = values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        kinds = values.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        found += ends(tokens, kinds) if isinstance(kinds, list) else []
    told = {name: values.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    told["suppress_tokens"] = values.get("tokenizer.ggml.suppress_tokens")
    return {name: value for name, value in told.items() if value is not None} | {
        "eos_token_id": [token for n, token in enumerate(found) if token not in found[:n]]
    }


def _feed_forward(metadata: GgufMetadata, architecture: Architecture) -> Any:
    """The size of the feed-forward, which files need not tell where no layer is dense.

    Raises:
        CheckpointError: It is missing, or no number.
    """
    if architecture.has_experts and metadata.get("feed_forward_length") is None:
        return None
    return metadata.same("feed_forward_length")


def _kv_heads(metadata: GgufMetadata, heads: int, has_recurrent: bool) -> Any:
    """The number of key and value heads, which some files tell for each layer.

    Raises:
        CheckpointError: It is something else.
        UnsupportedModelError: Layers differ; 0 stands for a recurrent layer.
    """
    value = metadata.get("attention.head_count_kv")
    if isinstance(value, list) and has_recurrent:
        value = [it for it in value if it] or value
    if isinstance(value, list) and value:
        if set(map(repr, value)) != {repr(value[0])}:
            raise UnsupportedModelError(
                f"{metadata.header.path}: attention.head_count_kv is {value!r:.60}: layers with "
                "different numbers of heads, 0 being a recurrent one, are not supported"
            )
        return metadata.of("attention.head_count_kv", value[0])
    return metadata.number("attention.head_count_kv", heads)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value)))


def _rope(metadata: GgufMetadata, head_dim: int) -> dict[str, Any]:
    """The rotary embedding.

    Raises:
        CheckpointError: A factor is missing.
        UnsupportedModelError: It is scaled in a way that is not known.
    """
    tensors, most = metadata.header.tensors, metadata.number("context_length")
    rope: dict[str, Any] = {"rope_theta": metadata.number("rope.freq_base", 10_000.0)}
    rotated = metadata.number("rope.dimension_count", head_dim)
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    kind = metadata.get("rope.scaling.type", "linear")
    has_factors = _ROPE_FREQS in tensors or _LONG in tensors
    if kind == "none":
        metadata.read |= {"rope.scaling.factor", "rope.scale_linear"}  # of no effect then
    if has_factors and kind in ("none", "linear", "longrope"):
        # Llama 3's scaling stands in the file as its result; longrope takes any factors.
        long, short = (_LONG, _SHORT) if _LONG in tensors else (_ROPE_FREQS, _ROPE_FREQS)
        rope["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": read_numbers(metadata.header, long),
            "short_factor": read_numbers(metadata.header, short),
            "attention_factor": metadata.number("rope.scaling.attn_factor", 1.0),
        }
        # Only longrope has other factors behind it.
        original = metadata.number("rope.scaling.original_context_length", most)
        rope["original_max_position_embeddings"] = original if _LONG in tensors else most
    elif kind == "yarn" and not has_factors:
        rope["rope_scaling"] = _yarn(metadata)
    elif kind == "linear":
        old = metadata.number("rope.scale_linear", 0.0)
        factor = metadata.number("rope.scaling.factor", old) or 1.0
        if factor != 1:
            rope["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind != "none":
        raise UnsupportedModelError(
            f"{metadata.header.path}: rope.scaling.type is {kind!r:.60}, which is not supported"
            + (" beside factors of frequencies" if has_factors else "")
        )
    growth = metadata.number("attention.temperature_scale", 0.0)
    if growth:
        rope["rope_scaling"] = {
            "original_max_position_embeddings": metadata.number(
                "rope.scaling.original_context_length", most
            ),
            **rope.get("rope_scaling", {}),
            "llama_4_scaling_beta": _shortest(growth),
        }
    return rope


def _yarn(metadata: GgufMetadata) -> dict[str, Any]:
    """YaRN's figures.

    Raises:
        CheckpointError: One is no number.
        UnsupportedModelError: One has a meaning that is not known.
    """
    factor = metadata.number("rope.scaling.factor", 1.0)
    scale = metadata.number("rope.scaling.yarn_log_multiplier", 0.0)
    found = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.number(
            "rope.scaling.original_context_length", metadata.number("context_length")
        ),
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        # No file says so, and llama.cpp rounds the ramp of all: gpt-oss was trained without.
        "truncate": metadata.architecture != "gpt-oss",
    }
    if scale:
        found |= {"mscale": 1.0, "mscale_all_dim": scale}
    # A converter writes config.json's, which llama.cpp does not read: it computes its own.
    said, computed = metadata.get("rope.scaling.yarn_attn_factor"), yarn_attention(found, factor)
    if said is not None and not math.isclose(
        metadata.of("rope.scaling.yarn_attn_factor", said), computed, rel_tol=1e-5
    ):
        raise UnsupportedModelError(
            f"{metadata.header.path}: rope.scaling.yarn_attn_factor is {said:g}, where yarn's "
            f"other figures give {computed:g}"
        )
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor"):
        value = metadata.number(name, 1.0)
        if value != 1:
            raise UnsupportedModelError(
                f"{metadata.header.path}: {name} is {value:g}, which is not supported beside yarn"
            )
    return found


def _family_options(metadata: GgufMetadata, head_dim: int) -> dict[str, Any]:
    """What only one architecture has."""
    layers = num_layers(metadata)
    if metadata.architecture == "granite":
        is_rotated = int(metadata.get("rope.scaling.finetuned", True) is not False)
        return {"no_rope_layers": [is_rotated] * layers, **_granite_factors(metadata, head_dim)}
    if metadata.architecture in ("granitehybrid", "granitemoe"):
        is_hybrid = metadata.architecture == "granitehybrid"
        layer_options = granite_hybrid_options if is_hybrid else all_attention
        factors = _granite_factors(metadata, head_dim)
        return {**layer_options(metadata), **granite_moe_options(metadata), **factors}
    if metadata.architecture == "lfm2":
        return lfm2_options(metadata)
    if metadata.architecture == "lfm2moe":
        return lfm2_options(metadata) | lfm2_moe_options(metadata)
    if metadata.architecture == "qwen3moe":
        return qwen3_moe_options(metadata)
    if metadata.architecture in ("qwen35", "qwen35moe"):
        is_mixture = metadata.architecture == "qwen35moe"
        experts = qwen35_moe_options(metadata) if is_mixture else {}
        return qwen35_options(metadata, layers, head_dim) | experts
    if metadata.architecture == "gpt-oss":
        return gpt_oss_options(metadata) | _windows(metadata, layers, 2)
    if metadata.architecture == "mistral3":
        return _mistral(metadata)
    if metadata.architecture == "olmo2":
        return _olmo(metadata, layers)
    if metadata.architecture == "smollm3":
        # llama.cpp takes each fourth layer without being told.
        return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)]}
    if metadata.architecture == "phi3":
        window = metadata.number("attention.sliding_window", 0)
        return {"sliding_window": window or None}
    if metadata.architecture == "gemma4":
        return gemma4_options(metadata)
    if metadata.architecture == "gemma3":
        pattern = metadata.number("attention.sliding_window_pattern", 6)
        scalar = head_dim
        if layers == _LAYERS_OF_GEMMA_27B:
            # No file says so: llama.cpp knows the model by its number of layers.
            scalar = metadata.number("embedding_length") // metadata.same("attention.head_count")
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "sliding_window": metadata.number("attention.sliding_window"),
            "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10_000.0),
            "layer_types": [
                "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
                for layer in range(layers)
            ],
        }
    return {}


def _granite_factors(metadata: GgufMetadata, head_dim: int) -> dict[str, Any]:
    """What Granite multiplies by."""
    return {
        "attention_multiplier": metadata.number("attention.scale", head_dim**-0.5),
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def _mistral(metadata: GgufMetadata) -> dict[str, Any]:
    """Ministral 3, whose queries grow with their position, or Mistral Small 3, without."""
    if metadata.number("attention.temperature_scale", 0.0):
        return {}
    return {"architectures": ["MistralForCausalLM"], "sliding_window": None}


def _olmo(metadata: GgufMetadata, layers: int) -> dict[str, Any]:
    """OLMo 3, whose layers have windows but for each fourth, or OLMo 2, without.

    Raises:
        CheckpointError: The pattern is malformed.
    """
    if not metadata.number("attention.sliding_window", 0):
        return {"architectures": ["Olmo2ForCausalLM"]}
    found, local = _windows(metadata, layers, 4), metadata.get("rope.freq_base_swa")
    return found if local is None else {**found, "rope_local_base_freq": local}


def _windows(metadata: GgufMetadata, layers: int, every: int) -> dict[str, Any]:
    """The window, and the layers that have one: all but each `every`th, or those that are told.

    Raises:
        CheckpointError: The pattern is malformed.
    """
    pattern = metadata.get("attention.sliding_window_pattern", every)
    if not isinstance(pattern, list):
        every = metadata.of("attention.sliding_window_pattern", pattern)
        if not isinstance(every, int) or every < 1:
            raise CheckpointError(f"{metadata.header.path}: sliding_window_pattern is {every}")
        pattern = [bool((layer + 1) % every) for layer in range(layers)]
    return {
        "sliding_window": metadata.number("attention.sliding_window"),
        "layer_types": ["sliding_attention" if it else "full_attention" for it in pattern],
    }
