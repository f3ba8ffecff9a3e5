"""What no config.json and no tensor of a family can be: refused by name, and nothing is written."""

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import LLAMA3_SCALING, save_weights, write_checkpoint
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import text_config
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from gemma4 import CONFIGS as GEMMAS
from gemma4 import write_gemma4
from gpt_oss import CONFIG as GPT_OSS
from gpt_oss import write_gpt_oss
from hybrids import CONFIGS as HYBRIDS
from hybrids import write_hybrid
from json_values import JSON_VALUES
from miniatures import write_miniature
from mixtures import CONFIGS as MIXTURES
from mixtures import write_mixture

FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA4, UNIFIED = GEMMAS["gemma4"], GEMMAS["gemma4_unified"]
LFM2, QWEN35, GRANITE4 = (HYBRIDS[name] for name in ("lfm2", "qwen3_5", "granitemoehybrid"))
QWEN3_MOE, GRANITE4_MOE, LFM2_MOE, QWEN35_MOE = MIXTURES.values()
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
    "vocab_size": 128,
}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
MISTRAL = {"architectures": ["MistralForCausalLM"]}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"]}
GRANITE = {"architectures": ["GraniteForCausalLM"]}
PHI3 = {"architectures": ["Phi3ForCausalLM"]}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"]}
YARN = {"type": "yarn", "factor": 4.0}
GROWTH = {"llama_4_scaling_beta": 0.1}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "original_max_position_embeddings": 64,
}
MINISTRAL = {"architectures": ["Ministral3ForCausalLM"]}
MISTRAL3 = {"architectures": ["Mistral3ForConditionalGeneration"]}
OLMO3 = {
    "architectures": ["Olmo3ForCausalLM"],
    "layer_types": [SLIDING, FULL],
}
GRANITE4_DENSE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_local_experts": 0,
    "layer_types": ["attention", "attention"],
}
ROTATIONS = GEMMA4["rope_parameters"]
MXFP4 = {"quant_method": "mxfp4"}
OF_LLAMA = [
    ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"layer_types": [FULL, SLIDING]}, "layer_types"),
    ({"layer_types": [FULL]}, "each of 2 layers"),
    (QWEN3 | {"layer_types": [FULL, "linear_attention"]}, "linear_attention"),
    (MISTRAL | {"sliding_window": 0}, "sliding_window is 0"),
    (SMOLLM3 | {"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
    (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    (GRANITE | {"residual_multiplier": "small"}, "residual_multiplier is 'small'"),
    (GRANITE | {"logits_scaling": 0}, "logits_scaling is 0"),
    (PHI3 | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "expected 8 numbers"),
    ({"head_dim": None, "hidden_size": 1}, "of dimension 0 cannot be grouped"),
    (PHI3 | {"partial_rotary_factor": 0.2}, "partial_rotary_factor leaves 3 of 16"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    (GEMMA3 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    (GEMMA3 | {"hidden_activation": "silu"}, "hidden_activation"),
    (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config is None"),
    (MISTRAL | {"layer_types": [FULL, SLIDING]}, "layer_types"),
    ({"attention_bias": True}, "attention_bias"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"rope_scaling": YARN | {"factor": "x"}}, "factor is 'x'"),
    ({"rope_scaling": YARN | {"factor": 0.5}}, "factor is 0.5"),
    ({"rope_scaling": YARN | {"beta_fast": -1}}, "beta_fast is -1"),
    ({"rope_scaling": YARN | {"beta_slow": [1]}}, r"beta_slow is \[1\]"),
    ({"rope_scaling": YARN | {"mscale": "1"}}, "mscale is '1'"),
    ({"rope_scaling": YARN | {"attention_factor": 0}}, "attention_factor is 0"),
    ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_pos"),
    ({"rope_scaling": YARN, "rope_theta": 1}, "rope_theta is 1, which YaRN"),
    ({"rope_scaling": YARN | GROWTH}, "llama_4_scaling_beta = 0.1 is not supported in llama"),
    (MINISTRAL | {"rope_parameters": YARN | {"llama_4_scaling_beta": "x"}}, "beta is 'x'"),
    (MINISTRAL | {"rope_parameters": GROWTH}, "original_max_position_embeddings is None"),
    (MINISTRAL | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    (MISTRAL3 | {"text_config": {"model_type": "mistral4"}}, "model_type 'mistral4'"),
    (MISTRAL3 | {"text_config": {"model_type": 3}}, "model_type 3, which is not supported"),
    (MISTRAL3, "text_config is None"),
    (OLMO3 | {"sliding_window": None}, "layer_types"),
    (OLMO3 | {"rope_scaling": LONGROPE}, "longrope is not supported where layers with a"),
    (
        OLMO3 | {"rope_parameters": {SLIDING: YARN}},
        "an attention factor of 1.13863 is not supported in layers with a window",
    ),
    (GRANITE4_DENSE | {"layer_types": ["attention", 7]}, "layer 1 of 2 is of the kind 7"),
    (GRANITE4_DENSE | {"shared_intermediate_size": 0}, "intermediate_size is 0"),
    (GRANITE4_DENSE | {"architectures": ["GraniteMoeForCausalLM"]}, "num_local_experts is 0"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
    ({"rope_scaling": LLAMA3_SCALING | {"factor": 0.5}}, "llama3 has figures out of range"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic' is not supported"),
    ({"hidden_size": "many"}, "hidden_size"),
    ({"head_dim": 25_545_525_350}, "head_dim"),
    ({"head_dim": 1 << 24}, "16777216 dimensions"),
    ({"eos_token_id": 4000}, "4000"),
]
OF_GEMMA4 = [
    ({"enable_moe_block": True}, "enable_moe_block = True: mixtures of experts"),
    ({"enable_moe_block": "yes"}, "enable_moe_block is 'yes', expected true or false"),
    ({"attention_k_eq_v": 1}, "attention_k_eq_v is 1, expected true or false"),
    ({"use_double_wide_mlp": 2}, "use_double_wide_mlp is 2, expected true or false"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
    ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, expected 0 to 5"),
    ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
    ({"num_kv_shared_layers": [3]}, r"num_kv_shared_layers is \[3\]"),
    ({"num_kv_shared_layers": 4}, "is 4, but no layer before them is of the kind"),
    ({"layer_types": ["conv"] * 6}, "layer 0 of 6 is of the kind 'conv'.*Gemma 4"),
    ({"layer_types": [FULL, [], FULL, FULL, FULL, FULL]}, r"layer 1 of 6 .*\[\]"),
    ({"layer_types": [FULL] * 5}, "each of 6 layers"),
    ({"global_head_dim": 31}, "of dimension 31 cannot be grouped and rotated"),
    ({"num_key_value_heads": 3}, "4 heads over 3 key/value heads of dimension 16"),
    ({"hidden_size_per_layer_input": "x"}, "hidden_size_per_layer_input is 'x'"),
    ({"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input = 7 is not supp"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping is 0"),
    ({"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'"),
    ({"rope_parameters": {FULL: {}}}, "rope_parameters is .*expected full_attention"),
    ({"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
    ({"rope_parameters": ROTATIONS | {SLIDING: 3}}, "rope_parameters: sliding_attention is 3"),
    (
        {"rope_parameters": ROTATIONS | {SLIDING: {"partial_rotary_factor": 0.5}}},
        "partial_rotary_factor = 0.5 is not supported in Gemma 4",
    ),
    (
        {"rope_parameters": ROTATIONS | {FULL: {"partial_rotary_factor": 0.5}}},
        "partial_rotary_factor = 0.5 is not supported in Gemma 4",
    ),
    (
        {
            "rope_parameters": ROTATIONS
            | {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.01}}
        },
        "partial_rotary_factor leaves 0 of 32 dimensions to rotate",
    ),
    (
        {"rope_parameters": ROTATIONS | {FULL: {"rope_type": "axial"}}},
        "rope type 'axial' is not supported",
    ),
    ({"architectures": ["Gemma4AssistantForCausalLM"]}, "Gemma4AssistantForCausalLM"),
]
OF_UNIFIED = [
    ({"num_global_key_value_heads": 3}, "4 heads over 3 key/value heads"),
    ({"num_global_key_value_heads": "2"}, "num_global_key_value_heads is '2'"),
    ({"per_layer_config": [1]}, r"per_layer_config is \[1\]"),
    ({"per_layer_config": {"2": 5}}, "per_layer_config is"),
    ({"per_layer_config": {"2": {"window": 5}}}, "layer 2 has .*'window'.*only head_dim"),
    ({"per_layer_config": {"2": {"head_dim": 8}}}, "layer 5 of the kind 'full_att"),
    (
        {"per_layer_config": {"4": {"num_key_value_heads": 1}}, "num_kv_shared_layers": 2},
        "layer 4 of the kind 'sliding_attention' has 1 key/value heads of dimension 16",
    ),
]
OF_NOTHING = [
    ({"architectures": ["Gemma4ForConditionalGeneration"]}, "text_config is None"),
    (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "text_config": GEMMA4 | {"model_type": "gemma3_text"},
        },
        "model_type 'gemma3_text'",
    ),
    (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "text_config": QWEN35_MOE | {"model_type": "qwen3_5_text"},
        },
        "which is not supported, only qwen3_5_moe_text",
    ),
    (
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": QWEN35 | {"model_type": ["qwen3_5_text"]},
        },
        "which is not supported, only qwen3_5_text",
    ),
    ({"architectures": ["Lfm2VlForConditionalGeneration"]}, "text_config is None"),
    (
        {
            "architectures": ["Lfm2VlForConditionalGeneration"],
            "text_config": LFM2 | {"model_type": "lfm2_moe"},
        },
        "model_type 'lfm2_moe'",
    ),
]
OF_GPT_OSS = [
    ({"attention_bias": False}, "attention_bias = False is not supported in gpt-oss"),
    ({"attention_bias": "no"}, "attention_bias is 'no', expected true or false"),
    ({"swiglu_limit": 6.0}, r"swiglu_limit = 6\.0 is not supported in gpt-oss"),
    ({"swiglu_limit": "x"}, "swiglu_limit = 'x' is not supported in gpt-oss"),
    ({"swiglu_alpha": 1.5}, r"swiglu_alpha = 1\.5 is not supported in gpt-oss"),
    ({"num_experts_per_tok": 7}, "num_experts is 6 and num_experts_per_tok 7"),
    ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config = .*fp8"),
    ({"quantization_config": {"quant_method": ["mxfp4"]}}, "quantization_config"),
    ({"quantization_config": {}}, "quantization_config"),
    ({"quantization_config": "mxfp4"}, "quantization_config"),
    ({"architectures": ["LlamaForCausalLM"], "quantization_config": MXFP4}, "quantization_c"),
]
OF_QWEN3_MOE = [
    ({"mlp_only_layers": [0, 1, 2, 3]}, "leave experts to none of 4 layers"),
    ({"decoder_sparse_step": 5}, "leave experts to none of 4 layers"),
    ({"mlp_only_layers": [4]}, r"mlp_only_layers is \[4\], expected numbers of 4"),
    ({"mlp_only_layers": "1"}, "mlp_only_layers is '1'"),
    ({"num_experts_per_tok": 9}, "num_experts is 8 and num_experts_per_tok 9"),
    ({"num_experts": 1 << 13}, "num_experts is 8192 .* expected at most 4096"),
    ({"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
]
OF_GRANITE4_MOE = [
    ({"num_experts_per_tok": 7}, "num_experts is 6 and num_experts_per_tok 7"),
    ({"intermediate_size": None}, "moe_intermediate_size is None"),
]
OF_LFM2_MOE = [
    ({"num_dense_layers": 4}, "num_dense_layers = 4 leaves experts to none of 4"),
    ({"num_dense_layers": -1}, "num_dense_layers is -1"),
    ({"routed_scaling_factor": 1e6}, "routed_scaling_factor is 1000000.0"),
    ({"routed_scaling_factor": None}, "routed_scaling_factor is None, expected 0 to"),
    ({"use_expert_bias": "no"}, "use_expert_bias is 'no'"),
    ({"conv_bias": True}, "conv_bias = True is not supported in LFM2"),
]
OF_QWEN35_MOE = [
    ({"attn_output_gate": False}, "attn_output_gate = False is not supported"),
]
OF_LFM2 = [
    ({"conv_bias": True}, "conv_bias = True is not supported in LFM2"),
    ({"conv_bias": "no"}, "conv_bias is 'no', expected true or false"),
    ({"conv_L_cache": 1}, "conv_L_cache is 1, expected 2 to 8"),
    ({"conv_L_cache": 9}, "conv_L_cache is 9, expected 2 to 8"),
    ({"norm_eps": -1}, "norm_eps is -1"),
    ({"tie_embedding": 1}, "tie_embedding is 1, expected true or false"),
    ({"block_auto_adjust_ff_dim": 2}, "block_auto_adjust_ff_dim is 2"),
    (
        {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": "1"},
        "block_ffn_dim_multiplier is '1'",
    ),
    (
        {"layer_types": ["conv", "mamba", FULL, "conv"]},
        "layer 1 of 4 is of the kind 'mamba', which is not supported in LFM2, only conv, full",
    ),
    ({"layer_types": ["conv", [], FULL, "conv"]}, r"layer 1 of 4 .* \[\]"),
    ({"layer_types": ["conv"] * 4}, "none of the 4 layers has attention"),
    ({"layer_types": ["conv"] * 3}, "each of 4 layers"),
    ({"layer_types": "conv"}, "layer_types is 'conv'"),
    ({"layer_types": None, "full_attn_idxs": [4]}, r"full_attn_idxs is \[4\]"),
    ({"layer_types": None, "full_attn_idxs": 2}, "full_attn_idxs is 2"),
    ({"layer_types": None, "full_attn_idxs": []}, "none of the 4 layers has attention"),
    ({"num_hidden_layers": 1 << 20}, "num_hidden_layers is 1048576, expected 1 to 4096"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"architectures": ["Lfm2MoeForCausalLM"], "num_dense_layers": 4}, "of 4 layers"),
]
OF_QWEN35 = [
    ({"attn_output_gate": False}, "attn_output_gate = False is not supported in Qwen3"),
    ({"output_gate_type": "sigmoid"}, "output_gate_type = 'sigmoid' is not supported"),
    ({"num_experts": 64}, "num_experts = 64 is not supported in Qwen3.5"),
    ({"layer_types": [SLIDING] * 4}, "layer 0 of 4 .*in Qwen3.5"),
    ({"layer_types": ["linear_attention"] * 4}, "none of the 4 layers"),
    ({"linear_num_key_heads": 3}, "linear_num_value_heads is 4, expected a multiple"),
    ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1, expected 2 to 8"),
    ({"linear_key_head_dim": 1 << 20}, r"linear_\* give 4194400 channels"),
    ({"rope_parameters": {"rope_type": "mrope"}}, "rope type 'mrope'"),
    ({"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor is 2"),
    ({"rope_parameters": {"partial_rotary_factor": 0.05}}, "partial_rotary_factor leaves 1 of 24"),
]
OF_GRANITE4 = [
    ({"num_local_experts": 62}, "num_experts_per_tok is 0"),
    ({"mamba_proj_bias": True}, "mamba_proj_bias = True is not supported in Granite"),
    ({"mamba_conv_bias": "yes"}, "mamba_conv_bias is 'yes'"),
    ({"mamba_n_groups": 3}, "mamba_n_heads is 8, expected a multiple of mamba_n_gr"),
    ({"mamba_d_head": 32}, "mamba_n_heads is 8 and mamba_d_head 32, expected 128"),
    ({"mamba_d_head": None, "mamba_n_heads": 3}, "mamba_n_heads is 3"),
    ({"mamba_d_conv": 12}, "mamba_d_conv is 12, expected 2 to 8"),
    ({"mamba_d_state": 1 << 23}, r"mamba_\* give 16777344 channels"),
    ({"time_step_limit": [1.0]}, r"time_step_limit is \[1.0\]"),
    ({"time_step_limit": [2.0, 1.0]}, r"time_step_limit is \[2.0, 1.0\]"),
    ({"time_step_limit": [0, "inf"]}, "time_step_limit is"),
    ({"time_step_limit": 3}, "time_step_limit is 3"),
    ({"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
    ({"layer_types": ["mamba", "attention", "mlp", "moe"]}, "layer 2 of 4 .*'mlp'"),
    ({"layer_types": ["mamba"] * 4}, "none of the 4 layers"),
    ({"layer_types": None}, "none of the 4 layers"),
]
REFUSED: list[tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = [
    (LLAMA, OF_LLAMA),
    (GEMMA4, OF_GEMMA4),
    (UNIFIED, OF_UNIFIED),
    ({}, OF_NOTHING),
    (GPT_OSS, OF_GPT_OSS),
    (QWEN3_MOE, OF_QWEN3_MOE),
    (GRANITE4_MOE, OF_GRANITE4_MOE),
    (LFM2_MOE, OF_LFM2_MOE),
    (QWEN35_MOE, OF_QWEN35_MOE),
    (LFM2, OF_LFM2),
    (QWEN35, OF_QWEN35),
    (GRANITE4, OF_GRANITE4),
]


def parsed(config: dict[str, Any], **changed: Any) -> ModelConfig:
    return parse_config(text_config(config | changed), {})


@pytest.mark.parametrize(
    ("config", "options", "message"), [(config, *row) for config, rows in REFUSED for row in rows]
)
def test_what_the_graphs_cannot_do_is_refused_by_name(config, options, message):
    with pytest.raises(CheckpointError, match=message) as raised:
        parsed(config, **options)
    is_unsupported = isinstance(raised.value, UnsupportedModelError)
    assert is_unsupported or "not supported" not in str(raised.value)


NO_SIZES = ("many", 0, -3, 1.5, [], {}, True, 1 << 40)
SIZES: list[tuple[dict[str, Any], str]] = [
    (GEMMA4, "head_dim global_head_dim vocab_size_per_layer_input num_key_value_heads"),
    (GEMMA4, "sliding_window"),
    (UNIFIED, "head_dim global_head_dim num_hidden_layers"),
    (GPT_OSS, "num_local_experts num_experts_per_tok intermediate_size sliding_window"),
    (
        LFM2 | {"block_auto_adjust_ff_dim": True},
        "conv_L_cache block_ff_dim block_multiple_of hidden_size",
    ),
    (
        {key: value for key, value in QWEN35.items() if key != "layer_types"},
        "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim "
        "linear_conv_kernel_dim full_attention_interval",
    ),
    (
        GRANITE4,
        "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand "
        "shared_intermediate_size",
    ),
    (QWEN3_MOE, "num_experts num_experts_per_tok moe_intermediate_size"),
    (GRANITE4_MOE, "num_experts_per_tok intermediate_size"),
    (LFM2_MOE, "num_experts num_experts_per_tok moe_intermediate_size"),
    (
        QWEN35_MOE,
        "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size",
    ),
]


@pytest.mark.parametrize("value", NO_SIZES, ids=str)
@pytest.mark.parametrize(
    ("config", "name"), [(config, name) for config, names in SIZES for name in names.split()]
)
def test_a_size_that_is_none_is_refused_by_name(config, name, value):
    said = f"moe_{name}" if config is GRANITE4_MOE and name == "intermediate_size" else name
    with pytest.raises(CheckpointError, match=rf"{said} is .*expected"):
        parsed(config, **{name: value})


@pytest.mark.parametrize("value", ["many", -3, 1.5, True, 1 << 40], ids=str)
def test_experts_that_are_called_local_ones_are_refused_by_their_usual_name(value):
    with pytest.raises(CheckpointError, match=r"num_experts is .*expected"):
        parsed(GRANITE4_MOE, num_local_experts=value)


ALTERED = [
    LLAMA | {"layer_types": [FULL] * 2, "rope_scaling": LLAMA3_SCALING},
    LLAMA | MINISTRAL | {"rope_parameters": YARN | GROWTH | {"mscale": 1.0, "beta_fast": 8}},
    *GEMMAS.values(),
    UNIFIED | {"per_layer_config": {}, "num_global_key_value_heads": 1},
    GPT_OSS | {"quantization_config": MXFP4, "swiglu_alpha": 1.702},
    *HYBRIDS.values(),
    *MIXTURES.values(),
]


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_any_altered_config_is_read_or_refused_by_name(data):
    config = data.draw(st.sampled_from(ALTERED))
    changed = data.draw(st.sampled_from(sorted(config)))
    value = data.draw(JSON_VALUES)
    if isinstance(config[changed], dict) and config[changed] and data.draw(st.booleans()):
        inside = data.draw(st.sampled_from(sorted(config[changed])))
        value = config[changed] | {inside: value}
    with contextlib.suppress(CheckpointError):
        parsed(config, **{changed: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GRANITE4_DENSE | {"num_local_experts": 62}, "mlp.gate_proj.weight has the shape"),
        (
            GRANITE4_DENSE
            | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 96},
            "no tensor .*layers.0.mamba.in_proj",
        ),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\."),
        ({"intermediate_size": 99}, r"gate_proj\.weight .*99"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_the_config_are_named(tmp_path, options, message):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text()) | options
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [checkpoint]


PACKED = "model.layers.1.mlp.experts"


def write_packed(path, family):
    return write_gpt_oss(path, packed=True)


@pytest.mark.parametrize(
    ("write", "family", "name", "change", "message"),
    [
        (
            write_gemma4,
            "gemma4",
            "model.embed_tokens_per_layer.weight",
            None,
            "no tensor .*embed_tokens_per_l",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.embed_tokens_per_layer.weight",
            lambda it: it[:9],
            r"\(9, 192\), expect",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.per_layer_model_projection.weight",
            None,
            "no tensor .*model_projection",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.per_layer_projection_norm.weight",
            lambda it: it[:9],
            r"expected \(32,\)",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.layers.4.layer_scalar",
            None,
            "no tensor .*layers.4.layer_scalar",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.layers.4.mlp.up_proj.weight",
            lambda it: it[:96],
            r"expected \(192, 64\)",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.layers.5.self_attn.q_norm.weight",
            lambda it: it[:16],
            r"expected \(32,\)",
        ),
        (
            write_gemma4,
            "gemma4",
            "model.layers.0.per_layer_input_gate.weight",
            None,
            "no tensor .*input_gate",
        ),
        (
            write_gemma4,
            "gemma4_unified",
            "model.layers.2.self_attn.k_proj.weight",
            None,
            "no tensor .*k_proj",
        ),
        (
            write_gemma4,
            "gemma4_unified",
            "model.layers.1.self_attn.v_proj.weight",
            None,
            "no tensor .*v_proj",
        ),
        (
            write_mixture,
            "qwen3_moe",
            "model.layers.0.mlp.experts.3.up_proj.weight",
            None,
            "no expert 3",
        ),
        (
            write_mixture,
            "qwen3_moe",
            "model.layers.0.mlp.experts.3.up_proj.weight",
            lambda it: it[:-1],
            r"experts.up_proj.weight has parts of the shapes \(39, 64\), \(40, 64\)",
        ),
        (
            write_mixture,
            "qwen3_moe",
            "model.layers.2.mlp.experts.7.down_proj.weight",
            None,
            r"down_proj.weight has the shape \(448, 40\), expected \(512, 40\)",
        ),
        (
            write_mixture,
            "qwen3_moe",
            "model.layers.0.mlp.gate.weight",
            lambda it: it[:7],
            "gate.weight .*shape",
        ),
        (
            write_mixture,
            "lfm2_moe",
            "model.layers.1.feed_forward.expert_bias",
            None,
            "no tensor .*expert_bias",
        ),
        (
            write_mixture,
            "granitemoehybrid",
            "model.layers.1.block_sparse_moe.input_linear.weight",
            lambda it: it[:, :-2],
            "gate_proj.weight has the shape",
        ),
        (
            write_mixture,
            "granitemoehybrid",
            "model.layers.1.block_sparse_moe.output_linear.weight",
            None,
            "no tensor .*layers.1.mlp.experts.down_proj",
        ),
        (
            write_mixture,
            "qwen3_5_moe",
            "model.layers.0.mlp.shared_expert_gate.weight",
            None,
            "shared_expert_gate",
        ),
        (
            write_mixture,
            "qwen3_5_moe",
            "model.layers.0.mlp.shared_expert.up_proj.weight",
            None,
            "mlp.up_proj",
        ),
        (
            write_mixture,
            "qwen3_5_moe",
            "model.layers.0.mlp.experts.gate_up_proj",
            None,
            "experts.gate_proj",
        ),
        (
            write_hybrid,
            "qwen3_5",
            "model.layers.0.linear_attn.A_log",
            lambda it: it + 1e6,
            "no logarithm of a",
        ),
        (
            write_hybrid,
            "qwen3_5",
            "model.layers.0.linear_attn.conv1d.weight",
            lambda it: it[:, :, :3],
            "shape",
        ),
        (
            write_hybrid,
            "qwen3_5",
            "model.layers.1.linear_attn.dt_bias",
            lambda it: it[:2],
            r"dt_bias .*\(4,\)",
        ),
        (
            write_hybrid,
            "granitemoehybrid",
            "model.layers.0.mamba.A_log",
            lambda it: it * np.nan,
            "no logarithm",
        ),
        (
            write_hybrid,
            "granitemoehybrid",
            "model.layers.0.mamba.conv1d.bias",
            None,
            "no tensor .*conv1d.bias",
        ),
        (
            write_hybrid,
            "lfm2",
            "model.layers.0.conv.conv.weight",
            lambda it: it[:, 0, 0],
            r"conv.conv.weight has",
        ),
        (
            write_hybrid,
            "lfm2",
            "model.layers.3.conv.in_proj.weight",
            None,
            "no tensor .*layers.3.conv.in_proj",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_scales",
            None,
            "gate_up_proj_blocks, but no .*gate_up_proj_scales",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_blocks",
            None,
            "no tensor .*experts.gate_proj.weight",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_bias",
            None,
            "no tensor .*experts.gate_proj.bias",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_bias",
            lambda it: it[:, :7],
            r"gate_up_proj_bias has the shape \(6, 7\)",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_bias",
            lambda it: it[0],
            r"gate_up_proj_bias has the shape \(192,\)",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.gate_up_proj_blocks",
            lambda it: it[:5],
            r"gate_up_proj_blocks has the shape \(5, 192",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.down_proj_scales",
            lambda it: it | 255,
            "down_proj_scales holds NaN or infinite values",
        ),
        (
            write_packed,
            "gpt_oss",
            f"{PACKED}.down_proj_bias",
            lambda it: it[:5],
            r"down_proj_bias has the shape|down_proj\.bias",
        ),
        (
            write_packed,
            "gpt_oss",
            "model.layers.0.self_attn.sinks",
            None,
            "no tensor model.layers.0.self_attn.sinks",
        ),
        (
            write_packed,
            "gpt_oss",
            "model.layers.0.self_attn.o_proj.bias",
            None,
            "no tensor model.layers.0.self_attn.o_proj.bias",
        ),
        (
            write_packed,
            "gpt_oss",
            "model.layers.0.mlp.router.bias",
            None,
            "no tensor model.layers.0.mlp.gate.bias",
        ),
    ],
)
def test_a_damaged_tensor_is_named(tmp_path, write, family, name, change, message):
    checkpoint = write(tmp_path / "checkpoint", family)
    weights = load_file(checkpoint / "model.safetensors")
    damaged = weights.pop(name)
    if change is not None:
        weights[name] = change(damaged)
    save_weights(checkpoint, {key: np.ascontiguousarray(it) for key, it in weights.items()})
    with pytest.raises(CheckpointError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_experts_that_are_not_finite_are_refused_when_rounded(tmp_path):
    checkpoint = write_mixture(tmp_path / "checkpoint", "granitemoehybrid")
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.2.block_sparse_moe.output_linear.weight"][5, 3, 2] = np.inf
    save_weights(checkpoint, weights)
    with pytest.raises(CheckpointError, match=r"layers.2.* NaN or infinite"):
        export_checkpoint(checkpoint, tmp_path / "out", weights="int8")


ONLY_ON_CPU = {
    "gemma3": "norms behind attention and feed-forward",
    "gemma4": "embeddings of 6 layers",
    "gemma4_unified": "layers with heads of different sizes",
    "gpt_oss": "mixtures of experts",
    "granitemoehybrid": "3 recurrent layers",
    "lfm2": "3 recurrent layers",
    "ministral3": "queries that grow behind 32 tokens",
    "mistral": "a sliding window of 24 tokens",
    "olmo2": "norms behind attention and feed-forward",
    "qwen3_5": "3 recurrent layers",
    "qwen3_moe": "mixtures of experts",
}


@pytest.mark.parametrize(("family", "what"), ONLY_ON_CPU.items())
def test_qnn_refuses_it_by_name(tmp_path, family, what):
    checkpoint = write_miniature(tmp_path / "checkpoint", family)
    message = f"{family} has {what}, which --provider qnn does not support"
    with pytest.raises(UnsupportedModelError, match=message):
        export_qnn(checkpoint, tmp_path / "out", soc="8-elite")
    assert not (tmp_path / "out").exists()
