"""Every key of a config.json that transformers reads: read, refused by name, or of no effect.

`KEYS` are the fields of transformers' configurations; where transformers is installed, a test holds
that none is missing. Keys that transformers does not know of a family change nothing there, nor
here.
"""

import json
from typing import Any

import pytest

from coordgen_rs.convert.families.checkpoint import text_config
from coordgen_rs.convert.families.model_config import ModelConfig
from coordgen_rs.convert.families.table import FAMILIES, parse_config
from coordgen_rs.errors import CheckpointError
from families import needs_transformers
from miniatures import MINIATURES, write_miniature

CHANGE_NOTHING = {
    *("attention_dropout", "embd_pdrop", "resid_pdrop", "initializer_range"),  # of training
    *("output_router_logits", "router_aux_loss_coef"),
    *("pad_token_id", "pretraining_tp", "use_cache", "mamba_chunk_size"),  # the same sums
    "_sliding_window_pattern",  # `layer_types` is always beside it
}
NONE_WITHOUT = {
    "gemma4": {"moe_intermediate_size", "num_experts", "top_k_experts"},  # experts, refused
    "lfm2": {"rms_norm_eps"},  # `norm_eps`
    "lfm2_moe": {"rms_norm_eps"},
    "qwen3_5_moe": {"intermediate_size"},  # layers without experts
}
"""What has no effect in a family, for want of something else."""
_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}
BESIDE: dict[str, dict[str, Any]] = {
    "qwen2": {**_WINDOW, "max_window_layers": 2},
    "qwen3": {**_WINDOW, "max_window_layers": 2},
    "qwen3_moe": {**_WINDOW, "num_experts": None, "num_local_experts": 8},
    "smollm3": {**_WINDOW, "no_rope_layers": None},
    "lfm2": {"block_auto_adjust_ff_dim": True, "block_multiple_of": 8, "layer_types": None},
}
"""With what some keys have an effect; None for a key that is not there."""
OF_ALL = """
attention_dropout bos_token_id eos_token_id hidden_size initializer_range intermediate_size
max_position_embeddings num_attention_heads num_hidden_layers num_key_value_heads pad_token_id
rms_norm_eps rope_parameters tie_word_embeddings use_cache vocab_size
"""
GRANITE = """
attention_bias attention_multiplier embedding_multiplier hidden_act logits_scaling
residual_multiplier
"""
ROUTED = "num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef"
LFM2 = "conv_L_cache conv_bias layer_types norm_eps"
QWEN35 = """
attention_bias head_dim hidden_act layer_types linear_conv_kernel_dim linear_key_head_dim
linear_num_key_heads linear_num_value_heads linear_value_head_dim
"""
GEMMA4 = """
attention_bias attention_k_eq_v final_logit_softcapping head_dim hidden_activation layer_types
num_kv_shared_layers per_layer_config sliding_window use_bidirectional_attention
use_double_wide_mlp
"""
KEYS = {
    "llama": "attention_bias head_dim hidden_act mlp_bias pretraining_tp",
    "qwen2": "hidden_act layer_types max_window_layers sliding_window use_sliding_window",
    "qwen3": """attention_bias head_dim hidden_act layer_types max_window_layers sliding_window
        use_sliding_window""",
    "qwen3_moe": f"""{ROUTED} attention_bias decoder_sparse_step hidden_act mlp_only_layers
        moe_intermediate_size norm_topk_prob sliding_window use_sliding_window""",
    "mistral": "head_dim hidden_act sliding_window",
    "ministral3": "head_dim hidden_act sliding_window",
    "olmo2": "attention_bias hidden_act",
    "olmo3": "attention_bias hidden_act layer_types sliding_window",
    "glm4": "attention_bias head_dim hidden_act",
    "smollm3": """attention_bias hidden_act layer_types mlp_bias no_rope_layer_interval
        no_rope_layers sliding_window use_sliding_window""",
    "granite": f"{GRANITE} mlp_bias",
    "granitemoe": f"{GRANITE} {ROUTED}",
    "granitemoeshared": f"{GRANITE} {ROUTED} shared_intermediate_size",
    "granitemoehybrid": f"""{GRANITE} {ROUTED} layer_types mamba_chunk_size mamba_conv_bias
        mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups mamba_n_heads
        mamba_proj_bias position_embedding_type shared_intermediate_size time_step_limit""",
    "lfm2": f"""{LFM2} block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of
        full_attn_idxs""",
    "lfm2_moe": f"""{LFM2} moe_intermediate_size norm_topk_prob num_dense_layers num_experts
        num_experts_per_tok output_router_logits routed_scaling_factor use_expert_bias""",
    "qwen3_5": QWEN35,
    "qwen3_5_moe": f"""{QWEN35} moe_intermediate_size num_experts num_experts_per_tok
        output_router_logits router_aux_loss_coef shared_expert_intermediate_size""",
    "gpt_oss": f"""{ROUTED} attention_bias head_dim hidden_act layer_types sliding_window
        swiglu_alpha swiglu_limit""",
    "phi3": """embd_pdrop hidden_act original_max_position_embeddings resid_pdrop
        sliding_window""",
    "gemma3": """_sliding_window_pattern attention_bias attn_logit_softcapping
        final_logit_softcapping head_dim hidden_activation layer_types query_pre_attn_scalar
        sliding_window use_bidirectional_attention""",
    "gemma4": f"""{GEMMA4} enable_moe_block hidden_size_per_layer_input moe_intermediate_size
        num_experts top_k_experts vocab_size_per_layer_input""",
    "gemma4_unified": GEMMA4,
}
"""Beside those of all."""


def keys_of(family: str) -> set[str]:
    """The keys of a family that transformers knows."""
    return {*OF_ALL.split(), *KEYS[family].split()}


def config_of(family: str, folder: Any) -> dict[str, Any]:
    """The config.json of a family's miniature, of its language model."""
    write_miniature(folder / family, family)
    return text_config(json.loads((folder / family / "config.json").read_text()))


def others(value: Any) -> list[Any]:
    """Values that are not the same."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value + 1]
    if isinstance(value, list):
        return [value[::-1] + value[:1], ["another"] * len(value)]
    return [7, True, "another", {"another": 1}]


def changes(config: dict[str, Any], key: str) -> bool:
    """Whether another value of a key is read, or refused."""
    usual = parse_config(config, {})
    for value in others(config.get(key)):
        try:
            if parse_config({**config, key: value}, {}) != usual:
                return True
        except CheckpointError:
            return True
    return False


@pytest.mark.parametrize("family", MINIATURES)
def test_every_key_is_read_or_refused_or_changes_nothing(tmp_path, family):
    config = config_of(family, tmp_path)
    silent = {key for key in keys_of(family) - CHANGE_NOTHING if not changes(config, key)}
    changed = {**config, **BESIDE.get(family, {})}
    changed = {key: value for key, value in changed.items() if value is not None}
    silent = {key for key in silent if not changes(changed, key)}
    assert silent == NONE_WITHOUT.get(family, set())


ROTATIONS = {
    "linear": ("llama", {"factor": 2.0}),
    "llama3": (
        "llama",
        {
            "factor": 2.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 256,
        },
    ),
    "longrope": (
        "phi3",
        {
            "short_factor": [1.0, 2.0] * 3,
            "original_max_position_embeddings": 256,
            "attention_factor": 1.1,
            "partial_rotary_factor": 0.75,
        },
    ),
    "yarn": (
        "ministral3",
        {
            "factor": 8.0,
            "beta_fast": 2.0,
            "beta_slow": 0.5,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "original_max_position_embeddings": 32,
            "llama_4_scaling_beta": 0.3,
            "truncate": True,
        },
    ),
    "proportional": ("gemma4", {"partial_rotary_factor": 0.25, "factor": 2.0}),
}
"""By `rope_type`, a family that has it, and all that transformers reads of it."""


@pytest.mark.parametrize("kind", ROTATIONS)
def test_every_key_of_a_rotation_is_read(tmp_path, kind):
    family, given = ROTATIONS[kind]
    config, rotation = config_of(family, tmp_path), {"rope_type": kind, "rope_theta": 1e4, **given}

    def turned(parameters: dict[str, Any]) -> ModelConfig:
        both = {"full_attention": parameters, "sliding_attention": {"rope_theta": 1e4}}
        return parse_config(
            {**config, "rope_parameters": both if family == "gemma4" else parameters}, {}
        )

    usual, silent = turned(rotation), []
    for key, value in rotation.items():
        try:
            if all(turned({**rotation, key: it}) == usual for it in others(value)[:1]):
                silent.append(key)
        except CheckpointError:
            pass
    assert silent == []


@needs_transformers
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_key_of_transformers_is_missing(family):
    import transformers

    usual = transformers.PretrainedConfig().to_dict()
    model = getattr(transformers, family.architecture)
    assert set(model.config_class().to_dict()) - set(usual) <= keys_of(family.name)
