"""Configurations of Gemma 4: what is read, and what is refused by name."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import exported, save_weights
from coordgen_rs import Bundle
from coordgen_rs.bundle.layers import LayerCache
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint, text_config
from coordgen_rs.convert.families.table import parse_config
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.qnn.rotation import rotated
from coordgen_rs.errors import CheckpointError, UnsupportedModelError
from gemma4 import CONFIGS, write_gemma4
from json_values import JSON_VALUES

SMALL, LARGE = CONFIGS["gemma4"], CONFIGS["gemma4_unified"]
FULL, SLIDING = "full_attention", "sliding_attention"
DAMAGED = ("many", 0, -3, 1.5, [], {}, True, 1 << 40)
"""No number of anything."""
PUBLISHED = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma4_text",
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "vocab_size": 262_144,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
        "layer_types": ([SLIDING] * 4 + [FULL]) * 7,
    },
}
"""As E2B's, what its defaults say left out."""


def parsed(config, **options):
    return parse_config(text_config(config | options), {})


@pytest.mark.parametrize("value", DAMAGED, ids=str)
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (SMALL, "head_dim"),
        (SMALL, "global_head_dim"),
        (SMALL, "vocab_size_per_layer_input"),
        (SMALL, "num_key_value_heads"),
        (SMALL, "sliding_window"),
        (LARGE, "head_dim"),
        (LARGE, "global_head_dim"),
        (LARGE, "num_hidden_layers"),
    ],
    ids=str,
)
def test_a_size_that_is_none_is_refused_by_name(config, name, value):
    with pytest.raises(CheckpointError, match=f"{name} is .*expected"):
        parsed(config, **{name: value})


ROTATIONS = SMALL["rope_parameters"]


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (SMALL, {"enable_moe_block": True}, "enable_moe_block = True: mixtures of experts"),
        (SMALL, {"enable_moe_block": "yes"}, "enable_moe_block is 'yes', expected true or false"),
        (SMALL, {"attention_k_eq_v": 1}, "attention_k_eq_v is 1, expected true or false"),
        (SMALL, {"use_double_wide_mlp": 2}, "use_double_wide_mlp is 2, expected true or false"),
        (SMALL, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        (SMALL, {"attention_bias": True}, "attention_bias"),
        (SMALL, {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        (SMALL, {"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, expected 0 to 5"),
        (SMALL, {"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
        (SMALL, {"num_kv_shared_layers": [3]}, r"num_kv_shared_layers is \[3\]"),
        (SMALL, {"num_kv_shared_layers": 4}, "is 4, but no layer before them is of the kind"),
        (SMALL, {"layer_types": ["conv"] * 6}, "layer 0 of 6 is of the kind 'conv'.*Gemma 4"),
        (SMALL, {"layer_types": [FULL, [], FULL, FULL, FULL, FULL]}, r"layer 1 of 6 .*\[\]"),
        (SMALL, {"layer_types": [FULL] * 5}, "each of 6 layers"),
        (SMALL, {"global_head_dim": 31}, "of dimension 31 cannot be grouped and rotated"),
        (SMALL, {"num_key_value_heads": 3}, "4 heads over 3 key/value heads of dimension 16"),
        (SMALL, {"hidden_size_per_layer_input": "x"}, "hidden_size_per_layer_input is 'x'"),
        (SMALL, {"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input = 7 is not supp"),
        (SMALL, {"final_logit_softcapping": 0}, "final_logit_softcapping is 0"),
        (SMALL, {"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'"),
        (SMALL, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (SMALL, {"rope_parameters": {FULL: {}}}, "rope_parameters is .*expected full_attention"),
        (SMALL, {"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
        (
            SMALL,
            {"rope_parameters": {**ROTATIONS, SLIDING: 3}},
            "rope_parameters: sliding_attention is 3",
        ),
        (
            SMALL,
            {"rope_parameters": {**ROTATIONS, SLIDING: {"partial_rotary_factor": 0.5}}},
            "partial_rotary_factor = 0.5 is not supported in Gemma 4",
        ),
        (
            SMALL,
            {"rope_parameters": {**ROTATIONS, FULL: {"partial_rotary_factor": 0.5}}},
            "partial_rotary_factor = 0.5 is not supported in Gemma 4",
        ),
        (
            SMALL,
            {
                "rope_parameters": {
                    **ROTATIONS,
                    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.01},
                }
            },
            "partial_rotary_factor leaves 0 of 32 dimensions to rotate",
        ),
        (
            SMALL,
            {"rope_parameters": {**ROTATIONS, FULL: {"rope_type": "axial"}}},
            "rope type 'axial' is not supported",
        ),
        (LARGE, {"num_global_key_value_heads": 3}, "4 heads over 3 key/value heads"),
        (LARGE, {"num_global_key_value_heads": "2"}, "num_global_key_value_heads is '2'"),
        (LARGE, {"per_layer_config": [1]}, r"per_layer_config is \[1\]"),
        (LARGE, {"per_layer_config": {"2": 5}}, "per_layer_config is"),
        (
            LARGE,
            {"per_layer_config": {"2": {"window": 5}}},
            "layer 2 has .*'window'.*only head_dim",
        ),
        (LARGE, {"per_layer_config": {"2": {"head_dim": 8}}}, "layer 5 of the kind 'full_att"),
        (
            LARGE,
            {"per_layer_config": {"4": {"num_key_value_heads": 1}}, "num_kv_shared_layers": 2},
            "layer 4 of the kind 'sliding_attention' has 1 key/value heads of dimension 16",
        ),
        ({"architectures": ["Gemma4ForConditionalGeneration"]}, {}, "text_config is None"),
        (
            {"architectures": ["Gemma4ForConditionalGeneration"]},
            {"text_config": SMALL | {"model_type": "gemma3_text"}},
            "model_type 'gemma3_text'",
        ),
        (SMALL, {"architectures": ["Gemma4AssistantForCausalLM"]}, "Gemma4AssistantForCausalLM"),
    ],
    ids=str,
)
def test_what_the_graphs_cannot_do_is_refused_by_name(config, options, message):
    with pytest.raises(CheckpointError, match=message):
        parsed(config, **options)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_config_is_read_or_refused_by_name(data):
    config = data.draw(st.sampled_from([SMALL, LARGE]))
    names = sorted({*config, "per_layer_config", "num_global_key_value_heads"})
    changed = data.draw(st.sampled_from(names))
    with contextlib.suppress(CheckpointError):
        parsed(config, **{changed: data.draw(JSON_VALUES)})


def test_a_published_config_says_the_rest_by_its_defaults():
    config = parsed(PUBLISHED)
    assert (config.head_dim, config.caches[4].head_dim) == (256, 512)
    assert [config.cache_of(layer).written_by for layer in (0, 13, 14, 15, 19, 34)] == [
        *(0, 13, 14, 13, 14, 14)
    ]
    assert (config.dense_size(14), config.dense_size(15)) == (6144, 12_288)
    assert (config.per_layer_size, config.logits_cap, config.window) == (256, 30.0, 512)
    assert (config.embedding_scale, config.score_scale) == (1536**0.5, 1.0)
    turning = [frequency for frequency in config.inv_freq if frequency]
    assert (len(config.inv_freq), len(turning), len(config.window_inv_freq)) == (256, 64, 128)
    np.testing.assert_allclose(turning[-1], 1e6 ** (-126 / 512), rtol=1e-6)
    assert config.tied_head
    assert config.norm_names(20).keys() >= {"query_norm", "attention_out_norm", "ffn_out_norm"}
    assert "key_norm" not in config.norm_names(20)


def test_larger_models_have_fewer_heads_of_keys_without_a_window():
    config = parsed(LARGE)
    assert config.caches[1] == LayerCache(2, 16, 1)
    assert config.caches[5] == LayerCache(1, 32, 5)
    assert config.keys_are_values == {2, 5}
    assert parsed(LARGE, attention_k_eq_v=False).caches[5] == LayerCache(2, 32, 5)
    listed = {
        "2": {"head_dim": 32, "num_key_value_heads": 1},
        "5": {"head_dim": 32, "num_key_value_heads": 1},
    }
    newer = {key: value for key, value in LARGE.items() if "global" not in key}
    assert parsed(newer, per_layer_config=listed) == config


def test_the_last_layer_has_no_window():
    kinds = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING]
    config = parsed(LARGE, layer_types=kinds)
    assert config.window_layers == {0, 1, 3, 4}
    default = {key: value for key, value in LARGE.items() if key != "layer_types"}
    assert parsed(default).window_layers == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("family", CONFIGS)
def test_the_turn_of_the_residual_stream_is_refused(tmp_path, family):
    source = open_checkpoint(write_gemma4(tmp_path / "checkpoint", family))
    with pytest.raises(UnsupportedModelError, match=f"{family} has norms behind attention"):
        rotated(source)


@pytest.mark.parametrize(
    ("family", "message"),
    [("gemma4", "embeddings of 6 layers"), ("gemma4_unified", "heads of different sizes")],
)
def test_qnn_refuses_it_by_name(tmp_path, family, message):
    checkpoint = write_gemma4(tmp_path / "checkpoint", family)
    with pytest.raises(UnsupportedModelError, match=rf"{family} has .*{message}.*provider qnn"):
        export_qnn(checkpoint, tmp_path / "out", soc="8-elite")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "name", "change", "message"),
    [
        ("gemma4", "model.embed_tokens_per_layer.weight", None, "no tensor .*embed_tokens_per_l"),
        ("gemma4", "model.embed_tokens_per_layer.weight", lambda it: it[:9], r"\(9, 192\), expect"),
        ("gemma4", "model.per_layer_model_projection.weight", None, "no tensor .*model_projection"),
        (
            "gemma4",
            "model.per_layer_projection_norm.weight",
            lambda it: it[:9],
            r"expected \(32,\)",
        ),
        ("gemma4", "model.layers.4.layer_scalar", None, "no tensor .*layers.4.layer_scalar"),
        (
            "gemma4",
            "model.layers.4.mlp.up_proj.weight",
            lambda it: it[:96],
            r"expected \(192, 64\)",
        ),
        (
            "gemma4",
            "model.layers.5.self_attn.q_norm.weight",
            lambda it: it[:16],
            r"expected \(32,\)",
        ),
        ("gemma4", "model.layers.0.per_layer_input_gate.weight", None, "no tensor .*input_gate"),
        ("gemma4_unified", "model.layers.2.self_attn.k_proj.weight", None, "no tensor .*k_proj"),
        ("gemma4_unified", "model.layers.1.self_attn.v_proj.weight", None, "no tensor .*v_proj"),
    ],
)
def test_a_damaged_tensor_is_named(tmp_path, family, name, change, message):
    checkpoint = write_gemma4(tmp_path / "checkpoint", family)
    weights = load_file(checkpoint / "model.safetensors")
    damaged = weights.pop(name)
    if change is not None:
        weights[name] = np.ascontiguousarray(change(damaged))
    save_weights(checkpoint, weights)
    with pytest.raises(CheckpointError, match=message):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_keys_that_no_layer_reads_are_left_out(tmp_path):
    """Published checkpoints have them, in layers that read those of others."""
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4")
    exported(checkpoint, tmp_path / "before", prefill_rows=32, context=128)
    weights = load_file(checkpoint / "model.safetensors")
    for part in ("k_proj", "v_proj"):
        weights[f"model.layers.4.self_attn.{part}.weight"] = np.ones((32, 64), np.float32)
    weights["model.layers.4.self_attn.k_norm.weight"] = np.ones(16, np.float32)
    save_weights(checkpoint, weights)
    exported(checkpoint, tmp_path / "after", prefill_rows=32, context=128)
    before, after = (Bundle.open(tmp_path / name).manifest.files for name in ("before", "after"))
    assert before == after


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_the_size_of_weights_is_told_before(tmp_path, weights):
    wide = {"hidden_size_per_layer_input": 512}
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4", **wide)
    sizes = export_checkpoint(checkpoint, tmp_path / "out", weights=weights, context=128)
    files = Bundle.open(tmp_path / "out").manifest.files
    written = sum(
        record.num_bytes for name, record in files.items() if name.endswith((".weights", ".bin"))
    )
    assert written == pytest.approx(sizes[weights], rel=0.1)
