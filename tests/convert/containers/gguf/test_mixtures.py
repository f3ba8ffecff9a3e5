"""GGUF files of models with mixtures of experts: the same weights, and what is refused by name."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gguf", reason="the gguf package is not installed")


from checkpoints import exported
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.config.experts import Experts
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.errors import CheckpointError
from gguf_files import parsed_metadata, write_gguf
from graph_runner import GraphRunner, tokens
from json_values import JSON_VALUES
from mixtures import CONFIGS, write_mixture

_EXPERTS = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 40}
KEYS: dict[str, dict[str, Any]] = {
    "gpt-oss": {**_EXPERTS, "attention.sliding_window": 8},
    "qwen3moe": {**_EXPERTS, "attention.key_length": 24, "attention.value_length": 24},
    "lfm2moe": {
        **_EXPERTS,
        "attention.head_count_kv": [0, 0, 2, 0],
        "shortconv.l_cache": 3,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
    },
    "qwen35moe": {
        **_EXPERTS,
        "attention.key_length": 24,
        "attention.value_length": 24,
        "expert_shared_feed_forward_length": 56,
        "feed_forward_length": None,
        "rope.dimension_count": 6,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 96,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    },
    "granitehybrid": {
        "attention.head_count_kv": [0, 2, 0, 0],
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_shared_feed_forward_length": 80,
        "feed_forward_length": 40,
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 1,
        "ssm.inner_size": 128,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 8,
    },
    "granitemoe": {
        "expert_count": 6,
        "expert_used_count": 2,
        "feed_forward_length": 40,
        "rope.scaling.finetuned": True,
    },
}
"""Beside sizes."""


def parsed(architecture: str, **changed: Any) -> ModelConfig:
    """The configuration of a file's metadata, with dots for double underscores in what changed."""
    sizes = {
        "block_count": 4,
        "context_length": 1024,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    given = sizes | KEYS[architecture] | {it.replace("__", "."): changed[it] for it in changed}
    return parsed_metadata(architecture, given)


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


@pytest.mark.parametrize(
    ("architecture", "changed", "message"),
    [
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
        ("gpt-oss", {"feed_forward_length": [True] * 4}, r"feed_forward_length is True, expected"),
        ("gpt-oss", {"feed_forward_length": [96, 96, 96, 40]}, r"layers that differ in it"),
        ("gpt-oss", {"feed_forward_length": "x"}, r"feed_forward_length is 'x', expected"),
        ("granitemoe", {"feed_forward_length": None}, "feed_forward_length is None"),
        ("granitehybrid", {"expert_shared_count": 2}, "expert_shared_count is 2"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be_is_refused_by_name(architecture, changed, message):
    with pytest.raises(CheckpointError, match=message):
        parsed(architecture, **changed)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_metadata_is_read_or_refused_by_name(data):
    architecture = data.draw(st.sampled_from(sorted(KEYS)))
    more = ["expert_group_count", "expert_gating_func", "expert_weights_norm", "block_count"]
    changed = data.draw(st.sampled_from([*KEYS[architecture], *more, "expert_weights_scale"]))
    values = st.one_of(JSON_VALUES, st.lists(JSON_VALUES, min_size=4, max_size=4))
    with contextlib.suppress(CheckpointError):
        parsed(architecture, **{changed: data.draw(values)})


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_holds_the_tensors_of_the_safetensors(tmp_path, family, fuses):
    options = {"mlp_only_layers": []} if family == "qwen3_moe" else {}  # no file tells of these
    options |= {"linear_num_value_heads": 2} if family == "qwen3_5_moe" else {}
    mtp = "random" if family == "qwen3_5_moe" else None
    checkpoint = write_mixture(tmp_path / "model", family, mtp=mtp, **options)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, fuses_experts=fuses)
    expected, found = (open_checkpoint(path) for path in (checkpoint, file))
    assert found.config.experts == expected.config.experts
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        offset = 1 if "norm" in name and "linear_attn" not in name else 0
        offset *= family == "qwen3_5_moe"
        np.testing.assert_allclose(found.tensors[name].load(), tensor.load() + offset, atol=1e-6)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_computes_what_the_safetensors_do(tmp_path, family):
    options = {"mlp_only_layers": []} if family == "qwen3_moe" else {}
    options |= {"linear_num_value_heads": 2} if family == "qwen3_5_moe" else {}
    checkpoint = write_mixture(tmp_path / "model", family, **options)
    file, logits = write_gguf(tmp_path / "model.gguf", checkpoint), []
    for number, path in enumerate((checkpoint, file)):
        bundle = exported(path, tmp_path / f"{number}", weights="int8", decode_rows=8)
        logits.append(GraphRunner(bundle).feed_all(tokens(60, 1536), 8))
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize(("types", "other"), [("Q8_0", "Q5_1"), ("Q4_0", "Q8_0"), ("F16", "BF16")])
def test_kept_experts_are_the_files(tmp_path, types, other):
    """Also where layers differ in the types of their parts."""
    sizes = {"moe_intermediate_size": 64, "mlp_only_layers": []}
    checkpoint = write_mixture(tmp_path / "model", "qwen3_moe", **sizes)
    of_parts = {"blk.2.ffn_down_exps": other, "ffn_gate_exps": types, "ffn_down_exps": types}
    file = write_gguf(tmp_path / "model.gguf", checkpoint, of_parts)
    ids, logits = tokens(40, 1536), {}
    for weights in ("keep", "fp32"):
        bundle = exported(file, tmp_path / weights, weights=weights, decode_rows=8)
        logits[weights] = GraphRunner(bundle).feed_all(ids, 8)
        if weights == "keep":
            assert bundle.manifest.experts is not None
            assert [region.types for region in bundle.manifest.experts.layers] == [
                [types, "F32", other if layer == 2 else types] for layer in range(4)
            ]
    spread = logits["fp32"].std()
    # Activations are rounded to 8 bits where weights are integers.
    most = 1e-5 if types == "F16" else 0.1
    assert np.abs(logits["keep"] - logits["fp32"]).mean() <= most * spread
