"""What no config.json and no tensor of a family can be: refused by name, and nothing is written."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
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
YARN = {"type": "yarn", "factor": 4.0}
GROWTH = {"llama_4_scaling_beta": 0.1}
MINISTRAL = {"architectures": ["Ministral3ForCausalLM"]}
GRANITE4_DENSE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "num_local_experts": 0,
    "layer_types": ["attention", "attention"],
}
MXFP4 = {"quant_method": "mxfp4"}
BASES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "none": {},
    "gpt_oss": GPT_OSS,
    **GEMMAS,
    **{name: HYBRIDS[name] for name in ("lfm2", "qwen3_5")},
    **{name: MIXTURES[name] for name in ("qwen3_moe", "lfm2_moe", "qwen3_5_moe")},
    "granite_hybrid": GRANITE4,
    "granite_moe": GRANITE4_MOE,
}
REFUSED = [
    json.loads(line)
    for line in Path(__file__).with_name("refused.jsonl").read_text("utf-8").splitlines()
]
"""What is changed in a configuration of `BASES`, and what is told of it."""


def parsed(config: dict[str, Any], **changed: Any) -> ModelConfig:
    return parse_config(text_config(config | changed), {})


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row['of']}: {row['told']}")
def test_what_the_graphs_cannot_do_is_refused_by_name(row):
    with pytest.raises(CheckpointError, match=row["told"]) as raised:
        parsed(BASES[row["of"]], **row["changed"])
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


def write_packed(path, family):
    return write_gpt_oss(path, packed=True)


DAMAGED: dict[tuple[Callable[..., Path], str], list[tuple[str, Any, str]]] = {
    (write_gemma4, "gemma4"): [
        ("embed_tokens_per_layer.weight", None, "no tensor .*embed_tokens_per_l"),
        ("embed_tokens_per_layer.weight", lambda it: it[:9], r"\(9, 192\), expect"),
        ("per_layer_model_projection.weight", None, "no tensor .*model_projection"),
        ("per_layer_projection_norm.weight", lambda it: it[:9], r"expected \(32,\)"),
        ("layers.4.layer_scalar", None, "no tensor .*layers.4.layer_scalar"),
        ("layers.4.mlp.up_proj.weight", lambda it: it[:96], r"expected \(192, 64\)"),
        ("layers.5.self_attn.q_norm.weight", lambda it: it[:16], r"expected \(32,\)"),
        ("layers.0.per_layer_input_gate.weight", None, "no tensor .*input_gate"),
    ],
    (write_gemma4, "gemma4_unified"): [
        ("layers.2.self_attn.k_proj.weight", None, "no tensor .*k_proj"),
        ("layers.1.self_attn.v_proj.weight", None, "no tensor .*v_proj"),
    ],
    (write_mixture, "qwen3_moe"): [
        ("layers.0.mlp.experts.3.up_proj.weight", None, "no expert 3"),
        (
            "layers.0.mlp.experts.3.up_proj.weight",
            lambda it: it[:-1],
            r"experts.up_proj.weight has parts of the shapes \(39, 64\), \(40, 64\)",
        ),
        (
            "layers.2.mlp.experts.7.down_proj.weight",
            None,
            r"down_proj.weight has the shape \(448, 40\), expected \(512, 40\)",
        ),
        ("layers.0.mlp.gate.weight", lambda it: it[:7], "gate.weight .*shape"),
    ],
    (write_mixture, "lfm2_moe"): [
        ("layers.1.feed_forward.expert_bias", None, "no tensor .*expert_bias"),
    ],
    (write_mixture, "granitemoehybrid"): [
        (
            "layers.1.block_sparse_moe.input_linear.weight",
            lambda it: it[:, :-2],
            "gate_proj.weight has the shape",
        ),
        (
            "layers.1.block_sparse_moe.output_linear.weight",
            None,
            "no tensor .*layers.1.mlp.experts.down_proj",
        ),
    ],
    (write_mixture, "qwen3_5_moe"): [
        ("layers.0.mlp.shared_expert_gate.weight", None, "shared_expert_gate"),
        ("layers.0.mlp.shared_expert.up_proj.weight", None, "mlp.up_proj"),
        ("layers.0.mlp.experts.gate_up_proj", None, "experts.gate_proj"),
    ],
    (write_hybrid, "qwen3_5"): [
        ("layers.0.linear_attn.A_log", lambda it: it + 1e6, "no logarithm of a"),
        ("layers.0.linear_attn.conv1d.weight", lambda it: it[:, :, :3], "shape"),
        ("layers.1.linear_attn.dt_bias", lambda it: it[:2], r"dt_bias .*\(4,\)"),
    ],
    (write_hybrid, "granitemoehybrid"): [
        ("layers.0.mamba.A_log", lambda it: it * np.nan, "no logarithm"),
        ("layers.0.mamba.conv1d.bias", None, "no tensor .*conv1d.bias"),
    ],
    (write_hybrid, "lfm2"): [
        ("layers.0.conv.conv.weight", lambda it: it[:, 0, 0], r"conv.conv.weight has"),
        ("layers.3.conv.in_proj.weight", None, "no tensor .*layers.3.conv.in_proj"),
    ],
    (write_packed, "gpt_oss"): [
        (
            "layers.1.mlp.experts.gate_up_proj_scales",
            None,
            "gate_up_proj_blocks, but no .*gate_up_proj_scales",
        ),
        ("layers.1.mlp.experts.gate_up_proj_blocks", None, "no tensor .*experts.gate_proj.weight"),
        ("layers.1.mlp.experts.gate_up_proj_bias", None, "no tensor .*experts.gate_proj.bias"),
        (
            "layers.1.mlp.experts.gate_up_proj_bias",
            lambda it: it[:, :7],
            r"gate_up_proj_bias has the shape \(6, 7\)",
        ),
        (
            "layers.1.mlp.experts.gate_up_proj_bias",
            lambda it: it[0],
            r"gate_up_proj_bias has the shape \(192,\)",
        ),
        (
            "layers.1.mlp.experts.gate_up_proj_blocks",
            lambda it: it[:5],
            r"gate_up_proj_blocks has the shape \(5, 192",
        ),
        (
            "layers.1.mlp.experts.down_proj_scales",
            lambda it: it | 255,
            "down_proj_scales holds NaN or infinite values",
        ),
        (
            "layers.1.mlp.experts.down_proj_bias",
            lambda it: it[:5],
            r"down_proj_bias has the shape|down_proj\.bias",
        ),
        ("layers.0.self_attn.sinks", None, "no tensor model.layers.0.self_attn.sinks"),
        ("layers.0.self_attn.o_proj.bias", None, "no tensor model.layers.0.self_attn.o_proj.bias"),
        ("layers.0.mlp.router.bias", None, "no tensor model.layers.0.mlp.gate.bias"),
    ],
}
"""By what writes a checkpoint: its tensors, what becomes of them (None: they go), what is told."""


@pytest.mark.parametrize(
    ("write", "family", "name", "change", "message"),
    [(*written, *row) for written, rows in DAMAGED.items() for row in rows],
)
def test_a_damaged_tensor_is_named(tmp_path, write, family, name, change, message):
    checkpoint = write(tmp_path / "checkpoint", family)
    weights = load_file(checkpoint / "model.safetensors")
    damaged = weights.pop(f"model.{name}")
    if change is not None:
        weights[f"model.{name}"] = change(damaged)
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
