"""Configurations as they are published, and as transformers writes them today: the same model."""

import math
from copy import deepcopy
from typing import Any

import pytest

from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.convert.families.checkpoint import text_config
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.recurrent import DeltaNet, SelectiveState, ShortConvolution
from coordgen_rs.convert.families.table import parse_config
from families import needs_transformers

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i for i in range(12)],
    "long_factor": [9.0] * 12,
}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-0.6B": (
        "Qwen3ForCausalLM",
        {
            **SIZES,
            "attention_bias": False,
            "head_dim": 32,
            "max_window_layers": 28,
            "rope_scaling": None,
            "rope_theta": 1_000_000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
        },
    ),
    "GLM-4-9B-0414": (
        "Glm4ForCausalLM",
        {
            **SIZES,
            "attention_bias": False,
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10_000.0,
        },
    ),
    "Qwen2 with windows": (
        "Qwen2ForCausalLM",
        {**SIZES, "max_window_layers": 3, "sliding_window": 512, "use_sliding_window": True},
    ),
    "Mistral-7B-v0.1": ("MistralForCausalLM", {**SIZES, "sliding_window": 4096}),
    "Mistral-7B-v0.3": ("MistralForCausalLM", {**SIZES, "sliding_window": None, "rope_theta": 1e6}),
    "Qwen3-0.6B with YaRN": (
        "Qwen3ForCausalLM",
        {
            **SIZES,
            "head_dim": 32,
            "rope_theta": 1_000_000,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32_768,
            },
        },
    ),
    "Ministral-3-3B-Base-2512": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {
                **SIZES,
                "model_type": "ministral3",
                "head_dim": 32,
                "max_position_embeddings": 262_144,
                "rope_parameters": {
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "factor": 16.0,
                    "llama_4_scaling_beta": 0.1,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 16_384,
                    "rope_theta": 1_000_000.0,
                    "rope_type": "yarn",
                    "type": "yarn",
                },
                "sliding_window": None,
                "tie_word_embeddings": True,
            },
        },
    ),
    "Ministral 3, all left out": ("Ministral3ForCausalLM", {**SIZES, "num_attention_heads": 8}),
    "Mistral-Small-3.1-24B": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {
                **SIZES,
                "model_type": "mistral",
                "head_dim": 32,
                "rope_theta": 1e9,
                "sliding_window": None,
                "tie_word_embeddings": False,
            },
        },
    ),
    "OLMo-2-1124-7B": (
        "Olmo2ForCausalLM",
        {
            **SIZES,
            "attention_bias": False,
            "max_position_embeddings": 4096,
            "rope_scaling": None,
            "rope_theta": 500_000,
        },
    ),
    "Olmo-3-7B-Instruct": (
        "Olmo3ForCausalLM",
        {
            **SIZES,
            "attention_bias": False,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2,
            "max_position_embeddings": 65_536,
            "rope_scaling": {
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "yarn",
            },
            "rope_theta": 500_000,
            "sliding_window": 4096,
        },
    ),
    "granite-4.0-micro": (
        "GraniteMoeHybridForCausalLM",
        {
            **SIZES,
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12,
            "layer_types": ["attention"] * 8,
            "logits_scaling": 10,
            "mamba_d_head": 64,
            "mamba_n_heads": 3,
            "num_experts_per_tok": 0,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "residual_multiplier": 0.22,
            "rope_theta": 10_000_000,
            "shared_intermediate_size": 112,
            "tie_word_embeddings": True,
        },
    ),
    "granite-4.0-h-1b": (
        "GraniteMoeHybridForCausalLM",
        {
            **SIZES,
            "attention_bias": False,
            "attention_multiplier": 0.0078125,
            "embedding_multiplier": 12,
            "hidden_act": "silu",
            "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 2,
            "logits_scaling": 6,
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 3,
            "mamba_proj_bias": False,
            "normalization_function": "rmsnorm",
            "num_experts_per_tok": 0,
            "num_local_experts": 0,
            "position_embedding_type": "nope",
            "residual_multiplier": 0.22,
            "rope_scaling": None,
            "rope_theta": 10_000,
            "shared_intermediate_size": 112,
            "tie_word_embeddings": True,
        },
    ),
    "LFM2-1.2B": (
        "Lfm2ForCausalLM",
        {
            **{key: value for key, value in SIZES.items() if key != "rms_norm_eps"},
            "block_auto_adjust_ff_dim": True,
            "block_dim": 96,
            "block_ff_dim": 12_288,
            "block_ffn_dim_multiplier": 1.0,
            "block_mlp_init_scale": 1.0,
            "block_multiple_of": 256,
            "block_norm_eps": 1e-5,
            "block_use_swiglu": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "conv_dim": 96,
            "full_attn_idxs": [2, 5],
            "norm_eps": 1e-5,
            "num_heads": 4,
            "rope_theta": 1_000_000.0,
            "tie_embedding": True,
            "use_pos_enc": True,
        },
    ),
    "LFM2.5-1.2B-Instruct": (
        "Lfm2ForCausalLM",
        {
            **{key: value for key, value in SIZES.items() if key != "rms_norm_eps"},
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
            "conv_bias": False,
            "layer_types": ["conv", "conv", "full_attention", "conv"] * 2,
            "norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3.5-0.8B": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": {
                **SIZES,
                "attention_bias": False,
                "attn_output_gate": True,
                "full_attention_interval": 4,
                "head_dim": 64,
                "hidden_act": "silu",
                "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 16,
                "linear_value_head_dim": 128,
                "mamba_ssm_dtype": "float32",
                "mlp_only_layers": [],
                "model_type": "qwen3_5_text",
                "mtp_num_hidden_layers": 1,
                "mtp_use_dedicated_embeddings": False,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 10_000_000,
                    "rope_type": "default",
                },
                "tie_word_embeddings": True,
            },
            "tie_word_embeddings": True,
        },
    ),
    "Qwen3.5, most left out": (
        "Qwen3_5ForCausalLM",
        {key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
    ),
    "SmolLM3-3B": (
        "SmolLM3ForCausalLM",
        {
            **SIZES,
            "layer_types": ["full_attention"] * 8,
            "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0],
            "rope_theta": 5e6,
            "use_sliding_window": False,
        },
    ),
    "granite-3.3-2b-instruct": (
        "GraniteForCausalLM",
        {
            **SIZES,
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
            "rope_theta": 1e7,
        },
    ),
    "Phi-3-mini-4k-instruct": (
        "Phi3ForCausalLM",
        {
            **SIZES,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rope_scaling": None,
            "sliding_window": 2047,
        },
    ),
    "Phi-3.5-mini-instruct": (
        "Phi3ForCausalLM",
        {
            **SIZES,
            "original_max_position_embeddings": 4096,
            "rope_scaling": _LONGROPE,
            "rope_theta": 10_000.0,
            "sliding_window": 262_144,
        },
    ),
    "Phi-4-mini-instruct": (
        "Phi3ForCausalLM",
        {
            **SIZES,
            "hidden_size": 128,
            "original_max_position_embeddings": 4096,
            "partial_rotary_factor": 0.75,
            "rope_scaling": _LONGROPE,
            "tie_word_embeddings": True,
            "sliding_window": 262_144,
        },
    ),
    "gemma-3-1b-it": (
        "Gemma3ForCausalLM",
        {
            **SIZES,
            "head_dim": 32,
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "query_pre_attn_scalar": 256,
            "rope_local_base_freq": 10_000,
            "rope_scaling": None,
            "rope_theta": 1_000_000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
    ),
    "gemma-3-4b-it": (
        "Gemma3ForConditionalGeneration",
        {
            "eos_token_id": [1, 106],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
    ),
}
"""With small sizes, but for the last, whose text_config leaves most of them out."""


def parsed(architecture: str, config: dict[str, Any]) -> ModelConfig:
    return parse_config(text_config({**config, "architectures": [architecture]}), {})


@needs_transformers
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_and_present_configurations_mean_the_same(name):
    import transformers

    architecture, config = PUBLISHED[name]
    present = getattr(transformers, architecture).config_class(**deepcopy(config)).to_dict()
    old, new = parsed(architecture, config), parsed(architecture, present)
    assert "rope_theta" not in present
    if name == "gemma-3-4b-it":
        assert (old.num_heads, old.num_kv_heads, old.vocab_size) == (8, 4, 262_208)
        assert old.end_token_ids == [1, 106]
    else:
        assert old == new


def test_switches_of_published_configurations():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    glm = configs["GLM-4-9B-0414"]
    assert (glm.qkv_bias, glm.input_norms, glm.output_norms) == (False, True, True)
    assert (len(glm.inv_freq), glm.head_dim) == (8, 32)
    gemma = configs["gemma-3-1b-it"]
    assert (gemma.norm_offset, gemma.output_norms, gemma.qk_norm) == (1.0, True, True)
    assert (gemma.window, gemma.window_layers) == (512, frozenset(range(8)) - {5})
    assert gemma.score_scale == 256**-0.5
    assert gemma.window_inv_freq != gemma.inv_freq
    large = configs["gemma-3-4b-it"]
    assert large.inv_freq[0] == 0.125
    assert large.window_inv_freq is not None
    assert large.window_inv_freq[0] == 1.0
    phi = configs["Phi-4-mini-instruct"]
    assert (phi.max_positions, len(phi.inv_freq), phi.head_dim) == (4096, 12, 32)
    assert phi.rope_factor == pytest.approx(1.190238, abs=1e-6)
    assert configs["Phi-3-mini-4k-instruct"].rope_factor is None
    assert configs["SmolLM3-3B"].unrotated_layers == {3, 7}
    assert configs["SmolLM3-3B"].tied_head
    assert configs["Mistral-7B-v0.3"].window is None
    assert configs["Mistral-7B-v0.1"].within(4096).window is None
    assert configs["Mistral-7B-v0.1"].within(4097).window == 4096
    assert configs["Qwen2 with windows"].window_layers == {3, 4, 5, 6, 7}
    assert configs["granite-3.3-2b-instruct"].logits_scale == 0.125
    granite = configs["granite-4.0-micro"]
    assert (granite.ffn_size, granite.unrotated_layers) == (112, frozenset())


def test_switches_of_models_with_yarn():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    qwen = configs["Qwen3-0.6B with YaRN"]
    assert qwen.rope_factor == pytest.approx(1.138629, abs=1e-6)
    ministral = configs["Ministral-3-3B-Base-2512"]
    assert ministral.tied_head
    assert ministral.rope_factor is None  # mscale and mscale_all_dim are the same
    assert ministral.query_scaling == QueryScaling(0.1, 16_384)
    assert ministral.within(16_384).query_scaling is None
    assert ministral.within(16_385) == ministral
    assert configs["Ministral 3, all left out"].query_scaling == QueryScaling(0.1, 16_384)
    small = configs["Mistral-Small-3.1-24B"]
    assert (small.family, small.window, small.query_scaling) == ("mistral", None, None)
    olmo = configs["Olmo-3-7B-Instruct"]
    assert (olmo.window, olmo.window_layers) == (4096, {0, 1, 2, 4, 5, 6})
    assert (olmo.input_norms, olmo.output_norms, olmo.wide_qk_norm) == (False, True, True)
    assert olmo.window_inv_freq == configs["OLMo-2-1124-7B"].inv_freq
    assert olmo.inv_freq != olmo.window_inv_freq
    assert olmo.rope_factor == pytest.approx(1.207944, abs=1e-6)


def test_switches_of_models_with_recurrent_layers():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    granite = configs["granite-4.0-h-1b"]
    assert granite.recurrent == SelectiveState(3, 64, 1, 128, 4, True, 0.0, math.inf)
    assert (granite.recurrent_layers, len(granite.unrotated_layers)) == (set(range(8)) - {5}, 8)
    assert (granite.ffn_size, granite.score_scale) == (112, 0.0078125)
    older, newer = configs["LFM2-1.2B"], configs["LFM2.5-1.2B-Instruct"]
    assert older.recurrent == newer.recurrent == ShortConvolution(96, 3)
    assert (older.ffn_size, newer.ffn_size) == (8192, 128)
    assert (older.recurrent_layers, older.tied_head) == ({0, 1, 3, 4, 6, 7}, True)
    assert older.inv_freq == newer.inv_freq
    qwen = configs["Qwen3.5-0.8B"]
    assert qwen.recurrent == DeltaNet(16, 16, 128, 128, 4)
    assert qwen.recurrent_layers == {0, 1, 2, 4, 5, 6}
    assert (qwen.gated_attention, qwen.norm_offset, qwen.tied_head) == (True, 1.0, True)
    assert (len(qwen.inv_freq), qwen.inv_freq[1]) == (8, pytest.approx(1e7 ** (-1 / 8)))
    left_out = configs["Qwen3.5, most left out"]
    assert left_out.recurrent == DeltaNet(16, 32, 128, 128, 4)
    assert (left_out.head_dim, len(left_out.inv_freq), left_out.num_kv_heads) == (256, 32, 4)


def test_windows_of_gemma_have_their_own_rotation_where_the_file_does_not_say_which():
    parameters: dict[str, dict[str, Any]] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default"},
    }
    config = {**SIZES, "architectures": ["Gemma3ForCausalLM"], "head_dim": 32}
    said = parse_config(config | {"rope_parameters": parameters}, {})
    parameters["sliding_attention"]["rope_theta"] = 1e4
    assert said == parse_config(config | {"rope_parameters": parameters}, {})
    assert said.inv_freq != said.window_inv_freq
