"""Every key that llama.cpp reads of an architecture: read, refused by name, or of no effect."""

from typing import Any

import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")


from coordgen_rs.convert.containers.gguf.metadata import CHANGE_NOTHING, GgufMetadata
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from gguf_files import parsed_metadata

KEYS = """
attention.causal attention.clamp_kqv attention.decay_lora_rank attention.gate_lora_rank
attention.group_norm_epsilon attention.group_norm_groups attention.head_count
attention.head_count_kv attention.iclr_lora_rank attention.indexer.head_count
attention.indexer.key_length attention.indexer.top_k attention.key_length attention.key_length_mla
attention.key_length_swa attention.kv_lora_rank attention.layer_norm_epsilon
attention.layer_norm_rms_epsilon attention.max_alibi_bias attention.output_scale
attention.q_lora_rank attention.recurrent_layers attention.relative_buckets_count attention.scale
attention.shared_kv_layers attention.sliding_window attention.sliding_window_pattern
attention.temperature_length attention.temperature_scale attention.value_length
attention.value_length_mla attention.value_length_swa attention.value_residual_mix_lora_rank
attention.value_scale attn_logit_softcapping block_count classifier.output_labels
classifier.pooling_type context_length convnext.block_count convnext.embedding_length
decoder_block_count decoder_start_token_id deepstack_mapping dense_2_feat_in dense_2_feat_out
dense_3_feat_in dense_3_feat_out embedding_length embedding_length_out
embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length expert_count
expert_feed_forward_length expert_gating_func expert_group_count expert_group_scale
expert_group_used_count expert_shared_count expert_shared_feed_forward_length expert_used_count
expert_weights_norm expert_weights_scale experts_per_group features_length feed_forward_length
final_logit_softcapping full_attention_interval interleave_moe_layer_step kda.head_dim
leading_dense_block_count logit_scale moe_every_n_layers moe_latent_size n_deepstack_layers
nextn_predict_layers pooling_type posnet.block_count posnet.embedding_length rescale_every_n_layers
residual_scale rope.dimension_count rope.dimension_count_swa rope.dimension_sections rope.freq_base
rope.freq_base_swa rope.scale_linear rope.scaling.alpha rope.scaling.attn_factor rope.scaling.factor
rope.scaling.finetuned rope.scaling.original_context_length rope.scaling.type
rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier router_logit_softcapping
shortconv.l_cache ssm.conv_kernel ssm.dt_b_c_rms ssm.group_count ssm.inner_size ssm.state_size
ssm.time_step_rank swiglu_clamp_exp swiglu_clamp_shexp swin_norm tensor_data_layout
time_decay_extra_dim time_mix_extra_dim token_shift_count use_parallel_residual vocab_size
wkv.head_size
"""
"""Those of `LLM_KV_NAMES` in llama.cpp, but for what only other architectures have."""

SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 1024,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4,
}
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
WINDOW = {"attention.sliding_window": 8}
STATES = {"ssm.conv_kernel": 4, "ssm.group_count": 2, "ssm.state_size": 16}
DELTA = STATES | {"ssm.inner_size": 64, "ssm.time_step_rank": 4}
MAMBA = STATES | {"ssm.inner_size": 128, "ssm.time_step_rank": 8}
CONVOLUTION = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in ("llama", "glm4", "smollm3", "granite", "mistral3", "qwen2", "qwen3", "phi3")
    },
    "olmo2": WINDOW,
    "gemma3": WINDOW,
    "qwen3moe": EXPERTS,
    "lfm2": CONVOLUTION,
    "lfm2moe": CONVOLUTION | EXPERTS,
    "qwen35": DELTA,
    "qwen35moe": DELTA | EXPERTS,
    "granitemoe": EXPERTS,
    "granitehybrid": MAMBA | EXPERTS | {"attention.head_count_kv": [0, 2, 0, 2]},
    "gpt-oss": WINDOW | EXPERTS,
    "gemma4": WINDOW
    | {
        "attention.head_count_kv": [2, 1, 2, 1],
        "attention.key_length_swa": 8,
        "attention.value_length_swa": 8,
        "attention.sliding_window_pattern": [True, False, True, False],
        "embedding_length_per_layer_input": 8,
        "rope.dimension_count": 16,
        "rope.dimension_count_swa": 8,
        "rope.freq_base_swa": 1e4,
    },
}
"""By name, what each tells beside sizes."""
OTHERS = {
    "attention.causal": False,
    "attention.sliding_window_pattern": 3,
    "rope.scaling.finetuned": False,
    "rope.scaling.type": "dynamic",
}
"""Values that no architecture takes by itself, where 7 is none."""
CLEAR = "heads over", "layers has attention", "each of 7 layers", "of its kind"
"""What tells of a key in other words."""


def parsed(architecture: str, options: dict[str, Any]) -> ModelConfig:
    """The configuration of a file with these keys."""
    given = {**SIZES, **ARCHITECTURES[architecture], **options}
    layers = [f"blk.{layer}.attn_v" for layer in range(4)]
    names = [f"{it}.weight" for it in ("token_embd", *layers, "per_layer_token_embd")]
    return parsed_metadata(architecture, given, names)


@pytest.fixture(autouse=True)
def frequencies(monkeypatch):
    """What `rope_freqs.weight` of a header without a file holds."""
    monkeypatch.setattr(GgufMetadata, "vector", lambda *_: [1.0] * 2 + [1e30] * 6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_key_is_read_or_refused_by_name_or_changes_nothing(architecture):
    usual, silent = parsed(architecture, {}), []
    for key in KEYS.split():
        try:
            is_read = parsed(architecture, {key: OTHERS.get(key, 7)}) != usual
        except CheckpointError as error:
            is_read = any(it in str(error) for it in (key, *CLEAR))
        has_experts = "expert_count" in ARCHITECTURES[architecture]
        is_silent = key in CHANGE_NOTHING or (key.startswith("expert_") and not has_experts)
        if not is_read and not is_silent:
            silent.append(key)
    assert silent == []


def test_an_unscaled_file_may_say_so():
    usual = parsed("llama", {})
    for options in (
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0},
        {"rope.scaling.attn_factor": 1.0, "attention.causal": True},
        {"attention.sliding_window": 0, "rope.dimension_count_swa": 16, "a.key.of.others": 5},
    ):
        assert parsed("llama", options) == usual


def test_a_factor_alone_is_linear_also_by_its_old_name():
    scaled = parsed("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert scaled.inv_freq == [it / 4 for it in parsed("llama", {}).inv_freq]
    assert parsed("llama", {"rope.scaling.factor": 4.0}) == scaled
    assert parsed("llama", {"rope.scale_linear": 4.0}) == scaled


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope.scaling.attn_factor", 1.2), ("attention.causal", False), ("logit_scale", 2.0)],
)
def test_what_changes_the_arithmetic_and_is_not_known_is_named(key, value):
    with pytest.raises(UnsupportedModelError, match=rf"x\.gguf: llama\.{key} is {value}"):
        parsed("llama", {key: value})
