"""Configurations of families with recurrent layers: what is read, and what is refused by name."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import save_weights
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import open_checkpoint, text_config
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.recurrent import DeltaNet, SelectiveState, ShortConvolution
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.convert.families.tensors import text_tensors
from coordgen_rs.convert.qnn.rotation import rotated
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from hybrids import CONFIGS, write_hybrid
from json_values import JSON_VALUES

LFM2, QWEN35, GRANITE4 = (CONFIGS[name] for name in ("lfm2", "qwen3_5", "granitemoehybrid"))
SIZES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "LFM2": (
        LFM2 | {"block_auto_adjust_ff_dim": True},
        ("conv_L_cache", "block_ff_dim", "block_multiple_of", "hidden_size"),
    ),
    "Qwen3.5": (
        {key: value for key, value in QWEN35.items() if key != "layer_types"},
        (
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
            "full_attention_interval",
        ),
    ),
    "Granite 4": (
        GRANITE4,
        (
            "mamba_n_heads",
            "mamba_d_head",
            "mamba_n_groups",
            "mamba_d_state",
            "mamba_d_conv",
            "mamba_expand",
            "shared_intermediate_size",
        ),
    ),
}
DAMAGED = ("many", 0, -3, 1.5, [], {}, True, 1 << 40)
"""No number of anything."""


def parsed(config: dict[str, Any], **options: Any) -> ModelConfig:
    return parse_config(text_config(config | options), {})


@pytest.mark.parametrize("value", DAMAGED, ids=str)
@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, (_, names) in SIZES.items() for name in names]
)
def test_a_size_that_is_none_is_refused_by_name(family, name, value):
    with pytest.raises(CheckpointError, match=f"{name} is .*expected"):
        parsed(SIZES[family][0], **{name: value})


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (LFM2, {"conv_bias": True}, "conv_bias = True is not supported in LFM2"),
        (LFM2, {"conv_bias": "no"}, "conv_bias is 'no', expected true or false"),
        (LFM2, {"conv_L_cache": 1}, "conv_L_cache is 1, expected 2 to 8"),
        (LFM2, {"conv_L_cache": 9}, "conv_L_cache is 9, expected 2 to 8"),
        (LFM2, {"norm_eps": -1}, "norm_eps is -1"),
        (LFM2, {"tie_embedding": 1}, "tie_embedding is 1, expected true or false"),
        (LFM2, {"block_auto_adjust_ff_dim": 2}, "block_auto_adjust_ff_dim is 2"),
        (
            LFM2 | {"block_auto_adjust_ff_dim": True},
            {"block_ffn_dim_multiplier": "1"},
            "block_ffn_dim_multiplier is '1'",
        ),
        (
            LFM2,
            {"layer_types": ["conv", "mamba", "full_attention", "conv"]},
            "layer 1 of 4 is of the kind 'mamba', which is not supported in LFM2, only conv, full",
        ),
        (LFM2, {"layer_types": ["conv", [], "full_attention", "conv"]}, r"layer 1 of 4 .* \[\]"),
        (LFM2, {"layer_types": ["conv"] * 4}, "none of the 4 layers has attention"),
        (LFM2, {"layer_types": ["conv"] * 3}, "each of 4 layers"),
        (LFM2, {"layer_types": "conv"}, "layer_types is 'conv'"),
        (LFM2, {"layer_types": None, "full_attn_idxs": [4]}, r"full_attn_idxs is \[4\]"),
        (LFM2, {"layer_types": None, "full_attn_idxs": 2}, "full_attn_idxs is 2"),
        (LFM2, {"layer_types": None, "full_attn_idxs": []}, "none of the 4 layers has attention"),
        (LFM2, {"num_hidden_layers": 1 << 20}, "num_hidden_layers is 1048576, expected 1 to 4096"),
        (LFM2, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (LFM2, {"use_sliding_window": True}, "use_sliding_window"),
        (LFM2, {"architectures": ["Lfm2MoeForCausalLM"], "num_dense_layers": 4}, "of 4 layers"),
        (QWEN35, {"attn_output_gate": False}, "attn_output_gate = False is not supported in Qwen3"),
        (QWEN35, {"output_gate_type": "sigmoid"}, "output_gate_type = 'sigmoid' is not supported"),
        (QWEN35, {"num_experts": 64}, "num_experts = 64 is not supported in Qwen3.5"),
        (QWEN35, {"attention_bias": True}, "attention_bias"),
        (QWEN35, {"hidden_act": "relu"}, "hidden_act"),
        (QWEN35, {"layer_types": ["sliding_attention"] * 4}, "layer 0 of 4 .*in Qwen3.5"),
        (QWEN35, {"layer_types": ["conv"] * 4}, "layer 0 of 4 is of the kind 'conv'"),
        (QWEN35, {"layer_types": ["linear_attention"] * 4}, "none of the 4 layers"),
        (QWEN35, {"linear_num_key_heads": 3}, "linear_num_value_heads is 4, expected a multiple"),
        (QWEN35, {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1, expected 2 to 8"),
        (QWEN35, {"linear_key_head_dim": 1 << 20}, r"linear_\* give 4194400 channels"),
        (QWEN35, {"rope_parameters": {"rope_type": "mrope"}}, "rope type 'mrope'"),
        (QWEN35, {"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor is 2"),
        (
            QWEN35,
            {"rope_parameters": {"partial_rotary_factor": 0.05}},
            "partial_rotary_factor leaves 1 of 24",
        ),
        (QWEN35, {"architectures": ["Qwen3NextForCausalLM"]}, "Qwen3NextForCausalLM"),
        (
            {"architectures": ["Qwen3_5ForConditionalGeneration"]},
            {"text_config": QWEN35 | {"model_type": ["qwen3_5_text"]}},
            "which is not supported, only qwen3_5_text",
        ),
        ({"architectures": ["Lfm2VlForConditionalGeneration"]}, {}, "text_config is None"),
        (
            {"architectures": ["Lfm2VlForConditionalGeneration"]},
            {"text_config": LFM2 | {"model_type": "lfm2_moe"}},
            "model_type 'lfm2_moe'",
        ),
        (GRANITE4, {"num_local_experts": 62}, "num_experts_per_tok is 0"),
        (GRANITE4, {"num_local_experts": None}, None),
        (GRANITE4, {"mamba_proj_bias": True}, "mamba_proj_bias = True is not supported in Granite"),
        (GRANITE4, {"mamba_conv_bias": "yes"}, "mamba_conv_bias is 'yes'"),
        (GRANITE4, {"mamba_n_groups": 3}, "mamba_n_heads is 8, expected a multiple of mamba_n_gr"),
        (GRANITE4, {"mamba_d_head": 32}, "mamba_n_heads is 8 and mamba_d_head 32, expected 128"),
        (GRANITE4, {"mamba_d_head": None, "mamba_n_heads": 3}, "mamba_n_heads is 3"),
        (GRANITE4, {"mamba_d_conv": 12}, "mamba_d_conv is 12, expected 2 to 8"),
        (GRANITE4, {"mamba_d_state": 1 << 23}, r"mamba_\* give 16777344 channels"),
        (GRANITE4, {"time_step_limit": [1.0]}, r"time_step_limit is \[1.0\]"),
        (GRANITE4, {"time_step_limit": [2.0, 1.0]}, r"time_step_limit is \[2.0, 1.0\]"),
        (GRANITE4, {"time_step_limit": [0, "inf"]}, "time_step_limit is"),
        (GRANITE4, {"time_step_limit": 3}, "time_step_limit is 3"),
        (GRANITE4, {"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
        (GRANITE4, {"layer_types": ["mamba", "attention", "mlp", "moe"]}, "layer 2 of 4 .*'mlp'"),
        (GRANITE4, {"layer_types": ["mamba"] * 4}, "none of the 4 layers"),
        (GRANITE4, {"layer_types": None}, "none of the 4 layers"),
        (GRANITE4, {"architectures": ["BambaForCausalLM"]}, "BambaForCausalLM"),
        (GRANITE4, {"architectures": ["FalconH1ForCausalLM"]}, "FalconH1ForCausalLM"),
    ],
    ids=str,
)
def test_what_the_graphs_cannot_do_is_refused_by_name(config, options, message):
    if message is None:
        assert parsed(config, **options).recurrent is not None
        return
    with pytest.raises(CheckpointError, match=message):
        parsed(config, **options)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_config_is_read_or_refused_by_name(data):
    config = data.draw(st.sampled_from([LFM2, QWEN35, GRANITE4]))
    changed = data.draw(st.sampled_from(sorted(config)))
    with contextlib.suppress(CheckpointError):
        parsed(config, **{changed: data.draw(JSON_VALUES)})


def test_older_files_of_lfm2_mean_the_same_as_newer_ones():
    newer = parsed(LFM2 | {"intermediate_size": 64, "tie_word_embeddings": True})
    older = LFM2 | {
        "block_auto_adjust_ff_dim": True,
        "block_ff_dim": 90,
        "block_multiple_of": 32,
        "full_attn_idxs": [2],
        "intermediate_size": 7,
        "layer_types": None,
        "tie_embedding": True,
    }
    del older["tie_word_embeddings"]
    assert parsed(older) == newer
    assert newer.recurrent == ShortConvolution(64, 3)
    assert newer.recurrent_layers == {0, 1, 3}


def test_layers_of_qwen35_may_be_told_by_an_interval():
    config = {key: value for key, value in QWEN35.items() if key != "layer_types"}
    assert parsed(config) == parsed(QWEN35)
    assert parsed(config, full_attention_interval=2).recurrent_layers == {0, 2}
    assert parsed(QWEN35).recurrent == DeltaNet(2, 4, 16, 24, 4)
    assert (parsed(QWEN35).gated_attention, parsed(QWEN35).norm_offset) == (True, 1.0)
    assert len(parsed(QWEN35).inv_freq) == 3  # of 24 / 2, a quarter is rotated


def test_steps_of_granite_may_be_limited():
    limited = parsed(GRANITE4, time_step_limit=[0.5, {"__float__": "Infinity"}]).recurrent
    assert isinstance(limited, SelectiveState)
    assert (limited.least_step, limited.most_step) == (0.5, np.inf)
    assert parsed(GRANITE4, mamba_d_head="auto") == parsed(GRANITE4)
    assert parsed(GRANITE4).unrotated_layers == {0, 1, 2, 3}
    assert parsed(GRANITE4, position_embedding_type="rope").unrotated_layers == frozenset()


def test_a_model_of_which_all_layers_have_attention_has_no_recurrent_ones():
    for config in (LFM2, QWEN35, GRANITE4):
        plain = parsed(config, layer_types=["full_attention"] * 4, mamba_n_heads=-1)
        assert (plain.recurrent, plain.recurrent_layers) == (None, frozenset())


def test_the_head_for_further_tokens_is_part_of_a_model_that_sees_pictures():
    inside = ("model.language_model.norm.weight", "mtp.fc.weight", "model.visual.merger.weight")
    tensors = text_tensors({name: Tensor(name, (1,), lambda *_: np.zeros(1)) for name in inside})
    assert set(tensors) == {"model.norm.weight", "mtp.fc.weight"}


@pytest.mark.parametrize("family", CONFIGS)
def test_the_turn_of_the_residual_stream_is_refused(tmp_path, family):
    source = open_checkpoint(write_hybrid(tmp_path / "checkpoint", family))
    with pytest.raises(UnsupportedModelError, match=f"{family} has 3 recurrent layers"):
        rotated(source)


@pytest.mark.parametrize(
    ("family", "name", "change", "message"),
    [
        ("qwen3_5", "model.layers.0.linear_attn.A_log", lambda it: it + 1e6, "no logarithm of a"),
        ("qwen3_5", "model.layers.0.linear_attn.conv1d.weight", lambda it: it[:, :, :3], "shape"),
        ("qwen3_5", "model.layers.1.linear_attn.dt_bias", lambda it: it[:2], r"dt_bias .*\(4,\)"),
        ("granitemoehybrid", "model.layers.0.mamba.A_log", lambda it: it * np.nan, "no logarithm"),
        ("granitemoehybrid", "model.layers.0.mamba.conv1d.bias", None, "no tensor .*conv1d.bias"),
        (
            "lfm2",
            "model.layers.0.conv.conv.weight",
            lambda it: it[:, 0, 0],
            r"conv.conv.weight has",
        ),
        ("lfm2", "model.layers.3.conv.in_proj.weight", None, "no tensor .*layers.3.conv.in_proj"),
    ],
)
def test_a_damaged_tensor_is_named(tmp_path, family, name, change, message):
    checkpoint = write_hybrid(tmp_path / "checkpoint", family)
    weights = load_file(checkpoint / "model.safetensors")
    damaged = weights.pop(name)
    if change is not None:
        weights[name] = np.ascontiguousarray(change(damaged))
    save_weights(checkpoint, weights)
    with pytest.raises(CheckpointError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()
