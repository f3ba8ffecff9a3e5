"""Configurations of families with mixtures of experts: what is read, and what is refused."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import save_weights
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint, text_config
from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.convert.qnn.rotation import rotated
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from json_values import JSON_VALUES
from mixtures import CONFIGS, write_mixture

QWEN3, GRANITE4, LFM2, QWEN35 = CONFIGS.values()
SIZES = {
    "qwen3_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "granitemoehybrid": ("num_local_experts", "num_experts_per_tok", "intermediate_size"),
    "lfm2_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "qwen3_5_moe": (
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ),
}
DAMAGED = ("many", -3, 1.5, [], {}, True, 1 << 40)
"""No number of anything."""


def parsed(config: dict[str, Any], **changed: Any) -> ModelConfig:
    return parse_config(text_config(config | changed), {})


def experts_of(config: dict[str, Any], **changed: Any) -> Experts:
    experts = parsed(config, **changed).experts
    assert experts is not None
    return experts


def test_each_family_chooses_in_its_own_way():
    qwen3 = Experts(frozenset([0, 2, 3]), 8, 3, 40)
    assert experts_of(QWEN3) == qwen3
    assert not experts_of(QWEN3, norm_topk_prob=None).is_normed
    assert experts_of(GRANITE4) == Experts(frozenset(range(4)), 6, 2, 40, shared_size=80)
    lfm2 = Experts(
        frozenset([1, 2, 3]), 8, 3, 40, "sigmoid", share_epsilon=1e-6, has_choice_bias=True
    )
    assert experts_of(LFM2) == lfm2
    scaled = experts_of(LFM2, routed_scaling_factor=2.5, use_expert_bias=False)
    assert (scaled.share_scale, scaled.has_choice_bias) == (2.5, False)
    qwen35 = Experts(frozenset(range(4)), 8, 3, 40, shared_size=56, gates_shared=True)
    assert experts_of(QWEN35) == qwen35


def test_layers_without_experts_are_dense():
    assert [parsed(QWEN3).dense_size(layer) for layer in range(4)] == [0, 96, 0, 0]
    assert experts_of(QWEN3, decoder_sparse_step=2, mlp_only_layers=None).layers == {1, 3}
    assert [parsed(LFM2).dense_size(layer) for layer in range(4)] == [96, 0, 0, 0]
    assert parsed(LFM2, block_auto_adjust_ff_dim=True).ffn_size == 96
    assert parsed(QWEN35).dense_size(3) == 56
    assert parsed(GRANITE4).dense_size(0) == 80
    alone = parsed(GRANITE4, shared_intermediate_size=0)
    assert [alone.dense_size(layer) for layer in range(4)] == [0] * 4


def test_experts_may_be_called_local_ones():
    config = {name: it for name, it in QWEN3.items() if name != "num_experts"}
    assert parsed(config, num_local_experts=8) == parsed(QWEN3)
    assert experts_of(config).num == 128


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (QWEN3, {"mlp_only_layers": [0, 1, 2, 3]}, "leave experts to none of 4 layers"),
        (QWEN3, {"decoder_sparse_step": 5}, "leave experts to none of 4 layers"),
        (QWEN3, {"mlp_only_layers": [4]}, r"mlp_only_layers is \[4\], expected numbers of 4"),
        (QWEN3, {"mlp_only_layers": "1"}, "mlp_only_layers is '1'"),
        (QWEN3, {"num_experts_per_tok": 9}, "num_experts is 8 and num_experts_per_tok 9"),
        (QWEN3, {"num_experts": 1 << 13}, "num_experts is 8192 .* expected at most 4096"),
        (QWEN3, {"num_experts": 0}, "num_experts is 0"),
        (QWEN3, {"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
        (QWEN3, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (QWEN3, {"attention_bias": True}, "attention_bias"),
        (GRANITE4, {"num_experts_per_tok": 7}, "num_experts is 6 and num_experts_per_tok 7"),
        (GRANITE4, {"intermediate_size": None}, "moe_intermediate_size is None"),
        (LFM2, {"num_dense_layers": 4}, "num_dense_layers = 4 leaves experts to none of 4"),
        (LFM2, {"num_dense_layers": -1}, "num_dense_layers is -1"),
        (LFM2, {"routed_scaling_factor": 1e6}, "routed_scaling_factor is 1000000.0"),
        (LFM2, {"routed_scaling_factor": None}, "routed_scaling_factor is None, expected 0 to"),
        (LFM2, {"use_expert_bias": "no"}, "use_expert_bias is 'no'"),
        (LFM2, {"conv_bias": True}, "conv_bias = True is not supported in LFM2"),
        (QWEN35, {"attn_output_gate": False}, "attn_output_gate = False is not supported"),
        (QWEN35, {"architectures": ["Qwen3NextForCausalLM"]}, "Qwen3NextForCausalLM"),
        (QWEN3, {"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM"),
        (QWEN3, {"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        (
            {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
            {"text_config": QWEN35 | {"model_type": "qwen3_5_text"}},
            "which is not supported, only qwen3_5_moe_text",
        ),
    ],
    ids=str,
)
def test_what_the_graphs_cannot_do_is_refused_by_name(config, options, message):
    with pytest.raises(CheckpointError, match=message):
        parsed(config, **options)


@pytest.mark.parametrize("value", DAMAGED, ids=str)
@pytest.mark.parametrize(("family", "name"), [(it, name) for it in SIZES for name in SIZES[it]])
def test_a_size_that_is_none_is_refused_by_name(family, name, value):
    said = {"num_local_experts": "num_experts", "intermediate_size": "moe_intermediate_size"}
    is_local = family == "granitemoehybrid"
    if is_local and name == "num_local_experts" and value in ([], {}):
        return  # as good as none
    with pytest.raises(CheckpointError, match=said.get(name, name) if is_local else name):
        parsed(CONFIGS[family], **{name: value})


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_config_is_read_or_refused_by_name(data):
    config = data.draw(st.sampled_from(list(CONFIGS.values())))
    changed = data.draw(st.sampled_from(sorted(config)))
    with contextlib.suppress(CheckpointError):
        parsed(config, **{changed: data.draw(JSON_VALUES)})


@pytest.mark.parametrize("family", CONFIGS)
def test_the_turn_of_the_residual_stream_is_refused(tmp_path, family):
    source = open_checkpoint(write_mixture(tmp_path / "checkpoint", family))
    what = "mixtures of experts" if family == "qwen3_moe" else "3 recurrent layers"
    with pytest.raises(UnsupportedModelError, match=f"{family} has {what}"):
        rotated(source)


def test_experts_one_by_one_are_those_all_together(tmp_path):
    """As transformers 5 holds them, and as checkpoints of most families do."""
    checkpoint = write_mixture(tmp_path / "single", "qwen3_moe")
    weights, expected = load_file(checkpoint / "model.safetensors"), open_checkpoint(checkpoint)
    together = write_mixture(tmp_path / "together", "qwen3_moe")
    for layer in (0, 2, 3):
        prefix = f"model.layers.{layer}.mlp.experts."
        gates, ups, downs = (
            np.stack([weights.pop(f"{prefix}{number}.{part}.weight") for number in range(8)])
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        weights[f"{prefix}gate_up_proj"] = np.concatenate([gates, ups], 1)
        weights[f"{prefix}down_proj"] = downs
    save_weights(together, weights)
    found = open_checkpoint(together)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name].load(), tensor.load())
        one, other = tensor.blocks, found.tensors[name].blocks
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            middle = tensor.shape[0] // 3, 2 * tensor.shape[0] // 3
            np.testing.assert_array_equal(other.read_rows(*middle), one.read_rows(*middle))


@pytest.mark.parametrize(
    ("family", "name", "change", "message"),
    [
        ("qwen3_moe", "model.layers.0.mlp.experts.3.up_proj.weight", None, "no expert 3"),
        (
            "qwen3_moe",
            "model.layers.0.mlp.experts.3.up_proj.weight",
            lambda it: it[:-1],
            r"experts.up_proj.weight has parts of the shapes \(39, 64\), \(40, 64\)",
        ),
        (
            "qwen3_moe",
            "model.layers.2.mlp.experts.7.down_proj.weight",
            None,
            r"down_proj.weight has the shape \(448, 40\), expected \(512, 40\)",
        ),
        ("qwen3_moe", "model.layers.0.mlp.gate.weight", lambda it: it[:7], "gate.weight .*shape"),
        ("lfm2_moe", "model.layers.1.feed_forward.expert_bias", None, "no tensor .*expert_bias"),
        (
            "granitemoehybrid",
            "model.layers.1.block_sparse_moe.input_linear.weight",
            lambda it: it[:, :-2],
            "gate_proj.weight has the shape",
        ),
        (
            "granitemoehybrid",
            "model.layers.1.block_sparse_moe.output_linear.weight",
            None,
            "no tensor .*layers.1.mlp.experts.down_proj",
        ),
        ("qwen3_5_moe", "model.layers.0.mlp.shared_expert_gate.weight", None, "shared_expert_gate"),
        ("qwen3_5_moe", "model.layers.0.mlp.shared_expert.up_proj.weight", None, "mlp.up_proj"),
        ("qwen3_5_moe", "model.layers.0.mlp.experts.gate_up_proj", None, "experts.gate_proj"),
    ],
)
def test_a_damaged_tensor_is_named(tmp_path, family, name, change, message):
    checkpoint = write_mixture(tmp_path / "checkpoint", family)
    weights = load_file(checkpoint / "model.safetensors")
    damaged = weights.pop(name)
    if change is not None:
        weights[name] = np.ascontiguousarray(change(damaged))
    save_weights(checkpoint, weights)
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
