"""Tiny random models of every family, made by transformers, beside what is exported from them.

`python tests/support/families.py` prints the largest difference of logits, and whether greedy
decoding gives the same tokens, for each family and file format. It needs torch and transformers.
"""

import copy
import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpoints import character_tokenizer
from coordgen_rs import Bundle, OrtSession, plain
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.runtime.cpu import CpuDevice

NUM_TOKENS, NUM_GREEDY = 90, 30
_VOCAB = 128
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}

_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
_GEMMA: dict[str, Any] = {
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    },
}

_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 8,
    "head_dim": 24,
    "global_head_dim": 48,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
    "num_kv_shared_layers": 4,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": _VOCAB,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 3.0,
}
"""As E2B: embeddings of layers, shared keys and values, wider feed-forwards behind."""
_GEMMA4_DENSE: dict[str, Any] = {
    **_GEMMA4,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
    },
}
"""As the larger ones: keys that are values, one of their heads in layers without a window."""
_GEMMA4_UNIFIED = {
    name: value for name, value in _GEMMA4_DENSE.items() if not name.endswith("per_layer_input")
}

_OF_SCORES = ("q_norm.weight", "k_norm.weight")

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_MINISTRAL: dict[str, Any] = {
    "head_dim": 24,
    "rope_parameters": {
        **_YARN,
        "original_max_position_embeddings": 32,
        "factor": 8.0,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
    },
}
_SHORT_MINISTRAL: dict[str, Any] = {
    **_MINISTRAL,
    "rope_parameters": {
        **_MINISTRAL["rope_parameters"],
        "original_max_position_embeddings": 128,
        "factor": 2.0,
    },
    "tie_word_embeddings": True,
}
"""Its queries grow behind the texts that are read."""
_OLMO: dict[str, Any] = {
    "sliding_window": 24,
    "rope_parameters": {
        "full_attention": {**_YARN, "attention_factor": 0.1 * math.log(4) + 1},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_GLM4: dict[str, Any] = {
    "eos_token_id": [],  # it takes None for those of GLM-4-9B
    "head_dim": 24,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
_GRANITE4: dict[str, Any] = {
    **_GRANITE,
    "layer_types": ["full_attention"] * 4,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "position_embedding_type": "rope",
    "shared_intermediate_size": 80,
}
_LFM2: dict[str, Any] = {
    "hidden_size": 48,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 32,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
_QWEN35: dict[str, Any] = {
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 12,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e5,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 1],
        "mrope_interleaved": True,
    },
}
_GRANITE4_HYBRID: dict[str, Any] = {
    **_GRANITE4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "position_embedding_type": "nope",
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}
_QWEN_MOE: dict[str, Any] = {**_EXPERTS, "head_dim": 24, "norm_topk_prob": True}
_LFM2_MOE: dict[str, Any] = {**_EXPERTS, **_LFM2, "num_dense_layers": 1}
_QWEN35_MOE: dict[str, Any] = {**_EXPERTS, **_QWEN35, "shared_expert_intermediate_size": 56}
_GRANITE4_MOE: dict[str, Any] = {
    **_GRANITE4_HYBRID,
    "intermediate_size": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
_GPT_OSS: dict[str, Any] = {
    "head_dim": 16,
    "intermediate_size": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 24,
    "rope_parameters": {**_YARN, "rope_theta": 1.5e5, "truncate": False},
}
_EYES = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 16,
    "patch_size": 8,
}


def _longrope(pairs: int) -> dict[str, Any]:
    """Scaling of so many pairs of dimensions."""
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1 + i / 8 for i in range(pairs)],
        "long_factor": [2.0 + i for i in range(pairs)],
    }


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {}),
    "Qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 24, "tie_word_embeddings": True}),
    "Mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "Mistral, window 24": ("MistralForCausalLM", {"sliding_window": 24}),
    "Qwen3, windows of 5": (
        "Qwen3ForCausalLM",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "Qwen3, untied": ("Qwen3ForCausalLM", {"head_dim": 16, "num_key_value_heads": 4}),
    "Qwen3, YaRN": ("Qwen3ForCausalLM", {"head_dim": 24, "rope_parameters": _YARN}),
    "Ministral 3": ("Ministral3ForCausalLM", _MINISTRAL),
    "Ministral 3, tied, short": ("Ministral3ForCausalLM", _SHORT_MINISTRAL),
    "Ministral 3 with pictures": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": _MINISTRAL | {"model_type": "ministral3"},
            "vision_config": {"model_type": "pixtral", **_EYES, "head_dim": 8},
            "tie_word_embeddings": False,
        },
    ),
    "OLMo 2": ("Olmo2ForCausalLM", {"rope_parameters": {"rope_theta": 5e5}}),
    "OLMo 3": ("Olmo3ForCausalLM", _OLMO),
    "OLMo 3, context in window": ("Olmo3ForCausalLM", _OLMO | {"sliding_window": 512}),
    "GLM-4": ("Glm4ForCausalLM", _GLM4),
    "GLM-4 without biases": (
        "Glm4ForCausalLM",
        _GLM4 | {"attention_bias": False, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "SmolLM3": ("SmolLM3ForCausalLM", {}),
    "Granite 3": ("GraniteForCausalLM", _GRANITE | {"tie_word_embeddings": True}),
    "Granite 3, untied": ("GraniteForCausalLM", _GRANITE),
    "Granite 4 dense": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4 | {"tie_word_embeddings": True},
    ),
    "Granite 4 dense, unrotated": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4 | {"position_embedding_type": None},
    ),
    "Granite 4 hybrid": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4_HYBRID | {"tie_word_embeddings": True},
    ),
    "Granite 4 hybrid, 2 groups": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4_HYBRID
        | {
            "hidden_size": 48,
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 12,
            "position_embedding_type": "rope",
        },
    ),
    "Granite 4 hybrid, limited steps": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4_HYBRID
        | {
            "time_step_limit": [0.5, 1.5],
            "mamba_d_conv": 3,
            "mamba_d_state": 20,
            "mamba_conv_bias": False,
        },
    ),
    "LFM2": ("Lfm2ForCausalLM", _LFM2),
    "LFM2, untied": (
        "Lfm2ForCausalLM",
        _LFM2 | {"conv_L_cache": 4, "tie_word_embeddings": False, "block_ffn_dim_multiplier": 1.3},
    ),
    "LFM2 with pictures": (
        "Lfm2VlForConditionalGeneration",
        {
            "text_config": _LFM2 | {"model_type": "lfm2"},
            "vision_config": {"model_type": "siglip2_vision_model", **_EYES, "num_patches": 4},
            "projector_hidden_size": 8,
        },
    ),
    "Qwen3.5": (
        "Qwen3_5ForCausalLM",
        _QWEN35
        | {
            "tie_word_embeddings": True,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 20,
        },
    ),
    "Qwen3.5, more value heads": (
        "Qwen3_5ForCausalLM",
        _QWEN35 | {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    ),
    "Qwen3.5, each second with attention": (
        "Qwen3_5ForCausalLM",
        _QWEN35
        | {
            "hidden_size": 56,
            "full_attention_interval": 2,
            "linear_conv_kernel_dim": 2,
            "linear_num_key_heads": 3,
            "linear_key_head_dim": 12,
        },
    ),
    "Qwen3.5 with pictures": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": _QWEN35 | {"model_type": "qwen3_5_text", "tie_word_embeddings": True},
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "depth": 1,
                "num_heads": 1,
                "patch_size": 4,
                "out_hidden_size": 64,
                "num_position_embeddings": 4,
            },
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", _QWEN_MOE | {"tie_word_embeddings": True}),
    "Qwen3-MoE, shares as they are": ("Qwen3MoeForCausalLM", _QWEN_MOE | {"norm_topk_prob": False}),
    "Qwen3-MoE, two layers dense": (
        "Qwen3MoeForCausalLM",
        _QWEN_MOE | {"mlp_only_layers": [0, 2], "num_experts_per_tok": 1},
    ),
    "Granite 3 with experts": (
        "GraniteMoeForCausalLM",
        _GRANITE | {"intermediate_size": 40, "num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    "Granite 3 with a shared expert": (
        "GraniteMoeSharedForCausalLM",
        _GRANITE
        | {
            "intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
        },
    ),
    "Granite 4 with experts": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4_MOE | {"tie_word_embeddings": True},
    ),
    "Granite 4 with experts, no recurrent layer": (
        "GraniteMoeHybridForCausalLM",
        _GRANITE4_MOE | {"layer_types": ["attention"] * 4, "position_embedding_type": "rope"},
    ),
    "LFM2-MoE": ("Lfm2MoeForCausalLM", _LFM2_MOE),
    "LFM2-MoE, untied": (
        "Lfm2MoeForCausalLM",
        _LFM2_MOE
        | {
            "tie_word_embeddings": False,
            "num_dense_layers": 2,
            "norm_topk_prob": False,
            "use_expert_bias": False,
            "routed_scaling_factor": 1.5,
        },
    ),
    "Qwen3.5-MoE": (
        "Qwen3_5MoeForCausalLM",
        _QWEN35_MOE | {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    ),
    "Qwen3.5-MoE, as many value heads": (
        "Qwen3_5MoeForCausalLM",
        _QWEN35_MOE
        | {
            "tie_word_embeddings": True,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 20,
        },
    ),
    "Qwen3.5-MoE with pictures": (
        "Qwen3_5MoeForConditionalGeneration",
        {
            "text_config": _QWEN35_MOE | {"model_type": "qwen3_5_moe_text"},
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "depth": 1,
                "num_heads": 1,
                "patch_size": 4,
                "out_hidden_size": 64,
                "num_position_embeddings": 4,
            },
        },
    ),
    "gpt-oss": ("GptOssForCausalLM", _GPT_OSS),
    "gpt-oss, context in window": (
        "GptOssForCausalLM",
        _GPT_OSS
        | {
            "intermediate_size": 96,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 1,
            "sliding_window": 512,
            # A ramp over all pairs, whose ends are the same whether rounded or not.
            "rope_parameters": {**_YARN, "rope_theta": 3.0},
        },
    ),
    "Phi-3-mini, window 24": ("Phi3ForCausalLM", {"num_key_value_heads": 4, "sliding_window": 24}),
    "Phi-3.5-mini": (
        "Phi3ForCausalLM",
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 256,
            "rope_parameters": _longrope(8),
        },
    ),
    "Phi-4-mini": (
        "Phi3ForCausalLM",
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 256,
            "rope_parameters": {**_longrope(6), "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
    ),
    "Gemma 3": ("Gemma3ForCausalLM", _GEMMA | {"sliding_window": 16}),
    "Gemma 3, context in window": (
        "Gemma3ForCausalLM",
        _GEMMA | {"sliding_window": 512, "query_pre_attn_scalar": 20},
    ),
    "Gemma 3 with pictures": (
        "Gemma3ForConditionalGeneration",
        {"text_config": _GEMMA | {"sliding_window": 16}, "vision_config": _EYES},
    ),
    "Gemma 4 E2B": ("Gemma4ForCausalLM", _GEMMA4),
    "Gemma 4 E2B, context in window": (
        "Gemma4ForCausalLM",
        _GEMMA4 | {"sliding_window": 512, "num_kv_shared_layers": 2, "use_double_wide_mlp": False},
    ),
    "Gemma 4, keys are values": ("Gemma4ForCausalLM", _GEMMA4_DENSE),
    "Gemma 4 12B": ("Gemma4UnifiedForCausalLM", _GEMMA4_UNIFIED),
    "Gemma 4 12B, uncapped": (
        "Gemma4UnifiedForCausalLM",
        _GEMMA4_UNIFIED
        | {
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 4,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
    ),
    "Gemma 4 with pictures and sounds": (
        "Gemma4ForConditionalGeneration",
        {
            "text_config": _GEMMA4 | {"model_type": "gemma4_text"},
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "patch_size": 4,
                "position_embedding_size": 16,
            },
            "audio_config": {
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "subsampling_conv_channels": [4, 4],
                "output_proj_dims": 8,
            },
        },
    ),
    "Gemma 4 12B with pictures": (
        "Gemma4UnifiedForConditionalGeneration",
        {
            "text_config": _GEMMA4_UNIFIED | {"model_type": "gemma4_unified_text"},
            "vision_config": {
                "patch_size": 4,
                "mm_embed_dim": 8,
                "mm_posemb_size": 4,
                "output_proj_dims": 8,
            },
            "audio_config": {"audio_embed_dim": 8},
        },
    ),
}
"""Architecture, and what its configuration has beyond `_SIZES`, by the name of a case."""

needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="no torch and transformers here: make setup-train",
)


class Comparison(NamedTuple):
    """A family's exported model beside transformers' own."""

    largest_logit: float
    difference: float
    """Largest absolute difference of any logit."""
    same_greedy: bool


def random_model(name: str, seed: int = 0) -> Any:
    """A model of transformers with random float32 weights."""
    import torch
    import transformers

    architecture, options = copy.deepcopy(MODELS[name])  # transformers writes into it
    model_class = getattr(transformers, architecture)
    if "text_config" in options:
        options = {**options, "text_config": {**_SIZES, **options["text_config"]}}
    config = model_class.config_class(**{**_SIZES, **options})
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5, generator=generator)
        for parameter_name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name:
                parameter.copy_(parameter + values / 8)  # near what the family starts with
                if "Gemma4" in architecture and parameter_name.endswith(_OF_SCORES):
                    # Its scores have no factor: trained norms hold what one would be.
                    parameter.mul_(parameter.shape[0] ** -0.25)
            else:
                parameter.copy_(values * 1.4 / parameter.shape[-1] ** 0.5)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("expert_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) / 8)
    return model


def write_safetensors(model: Any, path: Path) -> Path:
    """A Hugging Face directory of a model."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(character_tokenizer(_VOCAB)))
    return path


def write_gguf_file(model: Any, path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of a model, as llama.cpp's converter writes it, in float32."""
    from gguf_files import write_gguf

    return write_gguf(path / "model.gguf", write_safetensors(model, path), metadata=metadata)


_ATTENTION_FACTOR = (1 + math.log(4096 / 256) / math.log(256)) ** 0.5
_PHI_METADATA = {
    "phi3.rope.scaling.attn_factor": _ATTENTION_FACTOR,
    "phi3.rope.scaling.original_context_length": 256,
}
IN_GGUF: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3, untied": {},
    "Mistral": {},
    "GLM-4": {},
    "GLM-4 without biases": {},
    "SmolLM3": {},
    "Qwen3, YaRN": {},
    "Ministral 3": {},
    "Ministral 3, tied, short": {},
    "OLMo 2": {},
    "OLMo 3": {},
    "OLMo 3, context in window": {},
    "Granite 3": {},
    "Granite 3, untied": {},
    "Granite 4 dense": {},
    "Granite 4 dense, unrotated": {},
    "Granite 4 hybrid": {},
    "Granite 4 hybrid, 2 groups": {},
    "LFM2": {},
    "LFM2, untied": {},
    "Qwen3.5": {},
    "Qwen3.5, more value heads": {},
    "Qwen3.5, each second with attention": {},
    "Qwen3-MoE": {},
    "Granite 3 with experts": {},
    "Granite 3 with a shared expert": {},
    "Granite 4 with experts": {},
    "Granite 4 with experts, no recurrent layer": {},
    "LFM2-MoE": {},
    "Qwen3.5-MoE": {},
    "Qwen3.5-MoE, as many value heads": {},
    "gpt-oss": {},
    "gpt-oss, context in window": {},
    "Phi-3-mini, window 24": {},
    "Phi-3.5-mini": _PHI_METADATA,
    "Phi-4-mini": _PHI_METADATA,
    "Gemma 3": {
        "gemma3.attention.sliding_window_pattern": 2,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    },
    "Gemma 4 E2B": {},
    "Gemma 4 E2B, context in window": {},
    "Gemma 4, keys are values": {},
    "Gemma 4 12B": {},
    "Gemma 4 12B, uncapped": {},
}
"""Cases that a GGUF file can hold, with metadata beyond sizes. Windows of Mistral and Qwen3, and a
query_pre_attn_scalar of Gemma, are not in it."""

FORMATS: dict[str, Callable[[str, Any, Path], Path]] = {
    "safetensors": lambda name, model, path: write_safetensors(model, path),
    "gguf": lambda name, model, path: write_gguf_file(model, path, IN_GGUF[name]),
}
"""Writes a model to a new path and returns what `export_checkpoint` is to be given, by format."""

CASES = [
    (name, file_format)
    for name in MODELS
    for file_format in FORMATS
    if file_format == "safetensors" or name in IN_GGUF
]
"""Names of models, each with a format that can hold it."""


def exported_model(
    name: str, folder: Path, file_format: str = "safetensors", **options: Any
) -> Any:
    """A model of transformers, and an opened bundle of it in `folder`."""
    model = random_model(name)
    checkpoint = FORMATS[file_format](name, model, folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", **{"prefill_rows": 32, **options})
    return model, Bundle.open(folder / "bundle")


def prompt_logits(session: OrtSession, token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Logits `(tokens, vocab)` of a prompt, read as every prompt is read."""
    parts: list[NDArray[np.float32]] = []
    session.rewind(0)
    session.prefill(token_ids, on_logits=lambda logits: parts.append(logits.copy()))
    return np.concatenate(parts)


def chain_logits(
    session: OrtSession, token_ids: NDArray[np.uint32], width: int
) -> NDArray[np.float32]:
    """Logits `(tokens, vocab)` of a text that is read in decode steps of `width` rows."""
    inputs = next(inputs for inputs in session.step_inputs if inputs.rows == width)
    parts: list[NDArray[np.float32]] = []
    session.rewind(0)
    for start in range(0, len(token_ids), width):
        part = token_ids[start : start + width]
        inputs.fill_chain(part, session.length)
        parts.append(session.step(inputs)[: len(part)].copy())
        session.commit(np.arange(len(part), dtype=np.uint32))
    return np.concatenate(parts)


def tokens(count: int = NUM_TOKENS) -> NDArray[np.uint32]:
    """Random tokens, the same in every run."""
    return np.random.default_rng(7).integers(3, _VOCAB, count).astype(np.uint32)


def compare(model: Any, bundle: Bundle) -> Comparison:
    """Logits of a prompt, and greedy tokens behind it, of a bundle and of transformers."""
    import torch

    torch.set_num_threads(1)  # its threads would wait in a loop for work that ours are doing
    session, ids = OrtSession(CpuDevice(bundle)), tokens()
    steps = plain(session, ids, max_new_tokens=NUM_GREEDY)
    answer = [token for step in steps for token in step.token_ids]
    text = np.concatenate([ids, np.array(answer, np.uint32)])
    with torch.no_grad():
        expected = model(torch.from_numpy(text.astype(np.int64))[None]).logits[0].numpy()
    difference = np.abs(prompt_logits(session, text) - expected).max()
    behind = expected[len(ids) - 1 : -1]
    # Of two that are as likely, another processor may choose the other.
    missed = behind.max(-1) - behind[np.arange(len(answer)), answer]
    return Comparison(float(np.abs(expected).max()), float(difference), bool((missed < 1e-3).all()))


def main() -> int:
    """Print the table; the exit code is 1 if any case is further away than 1e-4."""
    worst = 0.0
    print(
        f"{'family':<28}{'format':<14}{'largest logit':>14}{'difference':>12}  same greedy tokens"
    )
    for name, file_format in CASES:
        with tempfile.TemporaryDirectory() as folder:
            result = compare(*exported_model(name, Path(folder), file_format))
        worst = max(worst, result.difference if result.same_greedy else 1.0)
        same = f"{NUM_GREEDY}" if result.same_greedy else "no"
        print(
            f"{name:<28}{file_format:<14}{result.largest_logit:>14.2f}"
            f"{result.difference:>12.1e}  {same}"
        )
    for name, largest, difference in compared_drafters():
        worst = max(worst, difference)
        print(f"{name:<28}{'safetensors':<14}{largest:>14.2f}{difference:>12.1e}  drafted alike")
    return int(worst > 1e-4)


def compared_drafters() -> Iterator[tuple[str, float, float]]:
    """Names of Gemma 4's drafters, their largest logit, and the largest difference of any."""
    from assistants import compared

    for family in ("gemma4", "gemma4_unified"):
        for has_clusters in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                expected, got = compared(Path(folder), family, tokens(), has_clusters=has_clusters)
            name = f"{family}'s drafter{', clusters' if has_clusters else ''}"
            yield name, float(np.abs(expected).max()), float(np.abs(got - expected).max())


if __name__ == "__main__":
    sys.exit(main())
