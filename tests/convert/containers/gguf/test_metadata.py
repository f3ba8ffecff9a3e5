"""The metadata of GGUF files: every key is read, refused by name, or of no effect."""

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gguf", reason="the gguf package is not installed")

from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.convert.containers.gguf.metadata import CHANGE_NOTHING, GgufMetadata
from coordgen_rs.convert.families.model_config import Experts, ModelConfig
from coordgen_rs.errors import CheckpointError
from gguf_files import parsed_metadata
from json_values import JSON_VALUES

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
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4,
}
EXPERTS = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 40}
WINDOW = {"attention.sliding_window": 8}
HEADS = {"attention.key_length": 24, "attention.value_length": 24}
DELTA = HEADS | {
    "rope.dimension_count": 6,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 96,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
}
MAMBA = {
    "attention.head_count_kv": [0, 2, 0, 0],
    "rope.scaling.finetuned": False,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 1,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
}
CONVOLUTION = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0]}
GRANITE = {"expert_count": 6, "expert_used_count": 2, "feed_forward_length": 40}
USUAL = ("llama", "glm4", "smollm3", "granite", "mistral3", "qwen2", "qwen3", "phi3", "olmo2")
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{name: {"attention.key_length": 16} for name in USUAL},
    "gemma3": WINDOW,
    "qwen3moe": EXPERTS | HEADS,
    "lfm2": CONVOLUTION,
    "lfm2moe": {
        **CONVOLUTION,
        **EXPERTS,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
    },
    "qwen35": DELTA,
    "qwen35moe": {
        **DELTA,
        **EXPERTS,
        "expert_shared_feed_forward_length": 56,
        "feed_forward_length": None,
    },
    "granitemoe": GRANITE | {"rope.scaling.finetuned": True},
    "granitehybrid": MAMBA | GRANITE | {"expert_shared_feed_forward_length": 80},
    "gpt-oss": WINDOW | EXPERTS,
    "gemma4": {
        "block_count": 6,
        "attention.head_count_kv": [2, 2, 1, 2, 2, 1],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.shared_kv_layers": 3,
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [True, True, False] * 2,
        "embedding_length_per_layer_input": 8,
        "feed_forward_length": [96, 96, 96, 192, 192, 192],
        "final_logit_softcapping": 30.0,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base": 1e6,
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


@pytest.fixture(autouse=True)
def frequencies(monkeypatch):
    """What `rope_freqs.weight` of a header without a file holds: to be changed by tests."""
    factors = [1.0] * 4 + [1e30] * 12
    monkeypatch.setattr(GgufMetadata, "vector", lambda *_: factors)
    return factors


def parsed(architecture: str, lacking: tuple[str, ...] = (), **changed: Any) -> ModelConfig:
    """The configuration of a file's metadata, with dots for double underscores in what changed."""
    told = {key.replace("__", "."): value for key, value in changed.items()}
    given = {**SIZES, **ARCHITECTURES[architecture], **told}
    layers = [f"blk.{layer}.attn_v" for layer in range(4)]
    names = [f"{it}.weight" for it in ("token_embd", *layers, "per_layer_token_embd")]
    return parsed_metadata(architecture, given, [name for name in names if name not in lacking])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_key_is_read_or_refused_by_name_or_changes_nothing(architecture):
    usual, silent = parsed(architecture), []
    has_experts = "expert_count" in ARCHITECTURES[architecture]
    for key in KEYS.split():
        try:
            is_read = parsed(architecture, **{key: OTHERS.get(key, 7)}) != usual
        except CheckpointError as error:
            is_read = any(it in str(error) for it in (key, *CLEAR))
        is_silent = key in CHANGE_NOTHING or (key.startswith("expert_") and not has_experts)
        if not is_read and not is_silent:
            silent.append(key)
    assert silent == []


def test_an_unscaled_file_may_say_so():
    usual = parsed("llama")
    for options in (
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0},
        {"rope.scaling.attn_factor": 1.0, "attention.causal": True},
        {"attention.sliding_window": 0, "rope.dimension_count_swa": 16, "a.key.of.others": 5},
    ):
        assert parsed("llama", **options) == usual


def test_sizes_may_be_told_for_each_layer_where_they_are_the_same():
    listed = {"attention__head_count": [4] * 4, "feed_forward_length": [96] * 4}
    assert parsed("llama", **listed) == parsed("llama")


def test_a_factor_alone_is_linear_also_by_its_old_name():
    scaled = parsed("llama", rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert scaled.inv_freq == [it / 4 for it in parsed("llama").inv_freq]
    assert parsed("llama", rope__scaling__factor=4.0) == scaled
    assert parsed("llama", rope__scale_linear=4.0) == scaled


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
REFUSED = [
    ("llama", {"rope.scaling.attn_factor": 1.2}, "llama.rope.scaling.attn_factor is 1.2, which is"),
    ("llama", {"attention.causal": False}, "llama.attention.causal is False, which is not supp"),
    ("llama", {"logit_scale": 2.0}, "llama.logit_scale is 2.0, which is not supported"),
    ("llama", {"block_count": None}, "llama.block_count is None"),
    ("llama", {"block_count": 1 << 31}, "block_count is 2147483648"),
    ("llama", {"attention.head_count": 0}, "head_count is 0"),
    ("llama", {"attention.head_count": "x"}, "head_count is 'x', expected a number"),
    ("llama", {"attention.head_count": [4, 4]}, "head_count has 2 entries"),
    ("llama", {"attention.head_count": [4, 4, 4, 2]}, "head_count is .*: layers that differ"),
    ("llama", {"feed_forward_length": [96] * 3}, "feed_forward_length has 3 entries"),
    ("llama", {"attention.head_count_kv": [2, 0, 2, 2]}, "layers that differ"),
    ("llama", {"attention.head_count_kv": ["2"] * 4}, "head_count_kv is '2', expected a number"),
    ("llama", {"attention.head_count_kv": 3}, "4 heads over 3 key/value heads"),
    ("llama", {"attention.value_length": 8}, "attention.value_length is 8, but"),
    ("llama", {"context_length": 0}, "context_length is 0, expected 1 to"),
    ("llama", {"rope.freq_base": 0.5}, "rope.freq_base is 0.5, expected 1 to"),
    ("llama", {"attention.layer_norm_rms_epsilon": 2.0}, "layer_norm_rms_epsilon is 2.0"),
    ("llama", {"expert_count": 8}, "expert_count is 8, and mixtures of experts"),
    ("llama", {"nextn_predict_layers": 1}, "nextn_predict_layers is 1, which is not supported"),
    ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
    ("llama", {"final_logit_softcapping": 9.0}, "final_logit_softcapping = 9.0 is not supported"),
    ("llama", {"rope.scaling.type": "dynamic"}, "rope.scaling.type is 'dynamic'"),
    ("llama", YARN | {"rope.scaling.factor": "x"}, "rope.scaling.factor is 'x'"),
    ("llama", YARN | {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5, .* yarn"),
    ("llama", YARN | {"rope.scaling.yarn_attn_factor": 1.0}, "is 1.0, where yarn's .* 1.13863"),
    ("llama", YARN | {"attention.temperature_scale": 0.1}, "temperature_scale = 0.1 is not supp"),
    ("granite", {"attention.scale": math.nan}, "attention.scale is nan, expected"),
    ("qwen3", YARN | {"rope.scaling.yarn_beta_fast": math.nan}, "yarn_beta_fast is nan, expected"),
    ("qwen3", YARN | {"rope.scaling.yarn_beta_slow": math.nan}, "yarn_beta_slow is nan, expected"),
    ("qwen3", YARN | {"rope.scaling.yarn_log_multiplier": math.nan}, "multiplier is nan, expected"),
    ("gemma4", {"attention__sliding_window_pattern": [True]}, "pattern has 1 entries, .* 6 layers"),
    ("gemma4", {"attention__head_count_kv": [2] * 5}, "head_count_kv has 5 entries"),
    (
        "gemma4",
        {"attention__head_count_kv": [2, 4, 1, 2, 2, 1]},
        "is 4 in layer 1, but 2 in others",
    ),
    ("gemma4", {"attention__head_count_kv": [2, 2, 1, 2, 2, "1"]}, "head_count_kv is '1'"),
    ("gemma4", {"attention__head_count_kv": [3, 3, 1] * 2}, "4 heads over 3 key/value heads"),
    ("gemma4", {"feed_forward_length": [96] * 3 + [200] * 3}, "is 96, and 200 in the last layers"),
    ("gemma4", {"feed_forward_length": [96, 96, 96, 192, 192, 96]}, "is 96 in layer 5, but 192"),
    ("gemma4", {"feed_forward_length": None}, "feed_forward_length is None"),
    (
        "gemma4",
        {"feed_forward_length": 96, "attention__shared_kv_layers": 6},
        "attention.shared_kv_layers is 6, expected 0 to 5",
    ),
    ("gemma4", {"attention__shared_kv_layers": "3"}, "shared_kv_layers is '3'"),
    (
        "gemma4",
        {"feed_forward_length": 96, "attention__shared_kv_layers": 4},
        "no layer before them is of the kind",
    ),
    ("gemma4", {"attention__value_length": 16}, "attention.value_length is 16, but"),
    ("gemma4", {"attention__sliding_window": None}, "attention.sliding_window is None"),
    ("gemma4", {"rope__freq_base": None}, "rope.freq_base is None"),
    ("gemma4", {"rope__scaling__type": "yarn"}, "type is 'yarn'"),
    ("gemma4", {"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'"),
    ("gemma4", {"embedding_length_per_layer_input": "8"}, "per_layer_input is '8'"),
    ("gemma4", {"expert_count": 128}, "mixtures of experts are not supported"),
    ("gemma4", {"lacking": ("per_layer_token_embd.weight",)}, "vocab_size_per_layer_input is None"),
    ("gemma4", {"lacking": ("blk.1.attn_v.weight",)}, "lacks tensors blk.N.attn_v.weight"),
    ("qwen3moe", {"expert_count": None}, "expert_count is None, expected a number"),
    ("qwen3moe", {"expert_count": [8]}, r"expert_count is \[8\]"),
    ("qwen3moe", {"expert_used_count": 9}, "expert_used_count 9"),
    ("qwen3moe", {"expert_group_count": 4}, "qwen3moe.expert_group_count is 4, which is not"),
    ("qwen3moe", {"expert_gating_func": 2}, "expert_gating_func is 2"),
    ("qwen3moe", {"expert_weights_norm": False}, "expert_weights_norm is False"),
    ("qwen3moe", {"expert_weights_scale": 2.5}, "expert_weights_scale is 2.5"),
    ("lfm2moe", {"expert_weights_scale": 1.5}, "expert_weights_scale is 1.5"),
    ("lfm2moe", {"expert_gating_func": 1}, "expert_gating_func is 1"),
    ("lfm2moe", {"leading_dense_block_count": 4}, "leading_dense_block_count = 4"),
    ("qwen35moe", {"moe_every_n_layers": 2}, "moe_every_n_layers is 2"),
    ("qwen35moe", {"expert_shared_feed_forward_length": None}, "feed_forward_length is None"),
    ("gpt-oss", {"expert_count": None}, "expert_count is None"),
    ("gpt-oss", {"expert_count": 0}, "expert_count is 0"),
    ("gpt-oss", {"expert_used_count": "two"}, "expert_used_count is 'two'"),
    ("gpt-oss", {"expert_used_count": 9}, "expert_count is 8 and expert_used_count 9"),
    ("gpt-oss", {"expert_gating_func": 2}, "expert_gating_func is 2"),
    ("gpt-oss", {"attention.sliding_window": None}, "attention.sliding_window is None"),
    ("gpt-oss", {"attention.sliding_window": 0}, "attention.sliding_window is 0"),
    ("gpt-oss", {"feed_forward_length": [True] * 4}, r"feed_forward_length is True, expected"),
    ("gpt-oss", {"feed_forward_length": "x"}, r"feed_forward_length is 'x', expected"),
    ("granitemoe", {"feed_forward_length": None}, "feed_forward_length is None"),
    ("granitehybrid", {"expert_shared_count": 2}, "expert_shared_count is 2"),
    ("lfm2", {"attention__head_count_kv": [0, 2]}, "head_count_kv has 2 entries, .* 4 layers"),
    ("lfm2", {"attention__head_count_kv": [0, 0, 0, 0]}, "none of the 4 layers has"),
    ("lfm2", {"attention__head_count_kv": [0, 2, 4, 0]}, "layers that differ in it"),
    ("lfm2", {"attention__head_count_kv": [0, "2", "2", 0]}, "head_count_kv is '2'"),
    ("lfm2", {"attention__sliding_window": 64}, "attention.sliding_window is 64"),
    ("lfm2", {"shortconv__l_cache": None}, "shortconv.l_cache is None, expected a number"),
    ("lfm2", {"shortconv__l_cache": 3.5}, "shortconv.l_cache is 3.5"),
    ("lfm2", {"expert_count": 32}, "mixtures of experts"),
    ("qwen35", {"attention__recurrent_layers": [True]}, "recurrent_layers has 1 entries"),
    ("qwen35", {"full_attention_interval": 0}, "full_attention_interval is 0"),
    ("qwen35", {"full_attention_interval": "4"}, "full_attention_interval is '4'"),
    ("qwen35", {"ssm__inner_size": 97}, "ssm.inner_size is 97, expected a multiple"),
    ("qwen35", {"ssm__time_step_rank": 0}, "ssm.inner_size is 96, expected a multiple"),
    ("qwen35", {"ssm__group_count": 3}, "expected a multiple of ssm.group_count, 3"),
    ("qwen35", {"ssm__state_size": None}, "ssm.state_size is None, expected a number"),
    ("qwen35", {"ssm__conv_kernel": 40}, "ssm.conv_kernel is 40, expected 2 to 8"),
    ("qwen35", {"nextn_predict_layers": 4}, "nextn_predict_layers is 4, expected 0 to 3"),
    ("qwen35", {"nextn_predict_layers": -1}, "nextn_predict_layers is -1, expected 0 to 3"),
    ("qwen35", {"rope__dimension_count": 48}, "rope.dimension_count is 2.0"),
    ("granitehybrid", {"ssm__inner_size": 100}, "ssm.inner_size is 100, expected a multiple"),
    ("granitehybrid", {"ssm__time_step_rank": [8]}, r"time_step_rank is \[8\]"),
    ("granitehybrid", {"ssm__group_count": 3}, "expected a multiple of ssm.group_count, 3"),
    ("granitehybrid", {"attention__head_count_kv": [2] * 3}, "head_count_kv has 3 entries"),
    ("granitehybrid", {"expert_used_count": None}, "expert_used_count is None"),
]


@pytest.mark.parametrize(("architecture", "changed", "message"), REFUSED, ids=str)
def test_metadata_that_cannot_be_is_refused_by_the_names_of_the_file(
    architecture, changed, message
):
    with pytest.raises(CheckpointError, match=rf"^x\.gguf[: ].*{message}") as raised:
        parsed(architecture, **changed)
    assert "config.json" not in str(raised.value)


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_any_altered_metadata_is_read_or_refused_by_name(data):
    architecture = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    changed = data.draw(st.sampled_from([*SIZES, *ARCHITECTURES[architecture], *KEYS.split()]))
    values = st.one_of(JSON_VALUES, st.lists(JSON_VALUES, min_size=4, max_size=6))
    with contextlib.suppress(CheckpointError):
        parsed(architecture, **{changed: data.draw(values)})


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (0, "is 0, expected a whole number from 1 on"),
        (-1, "is -1, expected a whole number from 1 on"),
        (2.5, "is 2.5, expected a whole number from 1 on"),
        ("4", "is '4', expected a number"),
        ([True], "has 1 entries, expected one for each of 4 layers"),
        ([True, True, math.nan, False], "is nan, expected true or false in layer 2"),
        ([1, 1, 1, 7], "is 7, expected true or false in layer 3"),
    ],
)
@pytest.mark.parametrize("architecture", ["olmo2", "gemma3", "gpt-oss"])
def test_a_pattern_of_windows_that_cannot_be_is_refused(architecture, pattern, message):
    options = {"attention__sliding_window": 8, "attention__sliding_window_pattern": pattern}
    key = rf"^x\.gguf: {architecture}\.attention\.sliding_window_pattern"
    with pytest.raises(CheckpointError, match=f"{key} {message}"):
        parsed(architecture, **options)


def test_an_architecture_of_two_families_is_the_one_that_its_metadata_says():
    assert parsed("mistral3").family == "mistral"
    ministral = parsed("mistral3", attention__temperature_scale=0.5)
    assert (ministral.family, ministral.query_scaling) == ("ministral3", QueryScaling(0.5, 1024))
    assert parsed("olmo2").family == "olmo2"
    olmo = parsed("olmo2", attention__sliding_window=8)
    assert (olmo.family, olmo.window_layers) == ("olmo3", {0, 1, 2})
    pattern = [False, True, True, True]
    options = {"attention__sliding_window": 8, "attention__sliding_window_pattern": pattern}
    assert parsed("olmo2", **options, rope__freq_base_swa=7e4).window_layers == {1, 2, 3}


@pytest.mark.parametrize(("layers", "scale"), [(26, 256**-0.5), (62, 168**-0.5)])
def test_attention_of_gemma_is_scaled_as_its_number_of_layers_says(layers, scale):
    sizes = {
        "block_count": layers,
        "context_length": 1024,
        "embedding_length": 5376,
        "feed_forward_length": 64,
        "attention.head_count": 32,
        "attention.key_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 512,
    }
    config = parsed_metadata("gemma3", sizes)
    assert config.score_scale == pytest.approx(scale)


def test_what_files_leave_out_is_what_llama_cpp_does():
    assert parsed("qwen3moe").experts == Experts(frozenset(range(4)), 8, 3, 40)
    assert parsed("lfm2moe").experts == Experts(
        frozenset([1, 2, 3]), 8, 3, 40, "sigmoid", share_epsilon=1e-6, has_choice_bias=True
    )
    assert parsed("lfm2moe", expert_weights_scale=1.0) == parsed("lfm2moe")
    assert parsed("qwen35moe").experts == Experts(
        frozenset(range(4)), 8, 3, 40, shared_size=56, gates_shared=True
    )
    assert parsed("granitehybrid").experts == Experts(frozenset(range(4)), 6, 2, 40, shared_size=80)
    assert parsed("granitehybrid", expert_count=0).experts is None
    alone = parsed("granitemoe")
    assert alone.experts == Experts(frozenset(range(4)), 6, 2, 40)
    assert (alone.recurrent, alone.unrotated_layers) == (None, frozenset())


def test_layers_are_told_by_heads_by_a_list_or_by_an_interval():
    assert parsed("lfm2").recurrent_layers == {0, 1, 3}
    assert parsed("lfm2").ffn_size == 96
    assert parsed("granitehybrid").recurrent_layers == {0, 2, 3}
    assert parsed("granitehybrid").num_kv_heads == 2
    assert parsed("granitehybrid").unrotated_layers == {0, 1, 2, 3}
    assert parsed("granitehybrid", rope__scaling__finetuned=True).unrotated_layers == frozenset()
    assert parsed("qwen35").recurrent_layers == {0, 1, 2}
    assert parsed("qwen35", full_attention_interval=2).recurrent_layers == {0, 2}
    told = parsed("qwen35", attention__recurrent_layers=[True, False, True, True])
    assert told.recurrent_layers == {0, 2, 3}
    assert parsed("qwen35", rope__dimension_count=None).inv_freq[1:] != []


def test_a_file_of_gemma_4_says_what_a_config_does():
    config = parsed("gemma4")
    assert (config.head_dim, config.num_kv_heads, config.ffn_size) == (16, 2, 96)
    assert [cache.head_dim for cache in config.caches] == [16, 16, 32] * 2
    assert [cache.num_kv_heads for cache in config.caches] == [2, 2, 1] * 2
    assert [cache.written_by for cache in config.caches] == [0, 1, 2, 1, 1, 2]
    assert config.wide_ffn_layers == {3, 4, 5}
    assert (config.logits_cap, config.per_layer_size, config.window) == (30.0, 8, 24)
    assert config.keys_are_values == frozenset()
    assert [frequency > 0 for frequency in config.inv_freq] == [True] * 4 + [False] * 12
    assert len(config.window_inv_freq) == 8
    assert parsed("gemma4", ("blk.2.attn_v.weight",)).keys_are_values == {2, 5}
    assert parsed("gemma4", feed_forward_length=96).wide_ffn_layers == frozenset()
    assert parsed("gemma4", final_logit_softcapping=None).logits_cap is None


@pytest.mark.parametrize("pairs", range(1, 17))
def test_as_many_pairs_turn_as_a_file_says(frequencies, pairs):
    frequencies[:] = [1.0] * pairs + [1e30] * (16 - pairs)
    assert sum(frequency > 0 for frequency in parsed("gemma4").inv_freq) == pairs


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([1.0] * 4 + [2.0] * 12, "factors other than 1 and 1e30"),
        ([1e30] * 12 + [1.0] * 4, "factors other than 1 and 1e30"),
        ([1e30] * 16, "leaves 0 of 32"),
    ],
    ids=str,
)
def test_frequencies_that_are_not_known_are_refused(frequencies, factors, message):
    frequencies[:] = factors
    with pytest.raises(CheckpointError, match=message):
        parsed("gemma4")
