"""What configurations say of layers that are not all alike: caches, experts, recurrent layers."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import exported, save_weights
from coordgen_rs import Bundle
from coordgen_rs.bundle.layers import LayerCache
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.containers.tensor import Tensor
from coordgen_rs.convert.families.checkpoint import open_checkpoint, text_config, text_tensors
from coordgen_rs.convert.families.model_config import (
    DeltaNet,
    Experts,
    ModelConfig,
    SelectiveState,
    ShortConvolution,
)
from coordgen_rs.convert.families.table import parse_config
from gemma4 import CONFIGS as GEMMAS
from gemma4 import write_gemma4
from hybrids import CONFIGS as HYBRIDS
from mixtures import CONFIGS as MIXTURES
from mixtures import write_mixture

GEMMA4, UNIFIED = GEMMAS["gemma4"], GEMMAS["gemma4_unified"]
LFM2, QWEN35, GRANITE4 = (HYBRIDS[name] for name in ("lfm2", "qwen3_5", "granitemoehybrid"))
QWEN3_MOE, GRANITE4_MOE, LFM2_MOE, QWEN35_MOE = MIXTURES.values()
FULL, SLIDING = "full_attention", "sliding_attention"
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


def parsed(config: dict[str, Any], **changed: Any) -> ModelConfig:
    return parse_config(text_config(config | changed), {})


def experts_of(config: dict[str, Any], **changed: Any) -> Experts:
    experts = parsed(config, **changed).experts
    assert experts is not None
    return experts


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
    config = parsed(UNIFIED)
    assert config.caches[1] == LayerCache(2, 16, 1)
    assert config.caches[5] == LayerCache(1, 32, 5)
    assert config.keys_are_values == {2, 5}
    assert parsed(UNIFIED, attention_k_eq_v=False).caches[5] == LayerCache(2, 32, 5)
    listed = {
        "2": {"head_dim": 32, "num_key_value_heads": 1},
        "5": {"head_dim": 32, "num_key_value_heads": 1},
    }
    newer = {key: value for key, value in UNIFIED.items() if "global" not in key}
    assert parsed(newer, per_layer_config=listed) == config
    padded = {f"0{layer}": own for layer, own in listed.items()}
    assert parsed(newer, per_layer_config=padded) == config


def test_the_last_layer_has_no_window():
    kinds = [SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING]
    config = parsed(UNIFIED, layer_types=kinds)
    assert config.window_layers == {0, 1, 3, 4}
    default = {key: value for key, value in UNIFIED.items() if key != "layer_types"}
    assert parsed(default).window_layers == {0, 1, 2, 3, 4}


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


def test_each_family_chooses_in_its_own_way():
    qwen3 = Experts(frozenset([0, 2, 3]), 8, 3, 40)
    assert experts_of(QWEN3_MOE) == qwen3
    assert not experts_of(QWEN3_MOE, norm_topk_prob=None).is_normed
    assert experts_of(GRANITE4_MOE) == Experts(frozenset(range(4)), 6, 2, 40, shared_size=80)
    lfm2 = Experts(
        frozenset([1, 2, 3]), 8, 3, 40, "sigmoid", share_epsilon=1e-6, has_choice_bias=True
    )
    assert experts_of(LFM2_MOE) == lfm2
    scaled = experts_of(LFM2_MOE, routed_scaling_factor=2.5, use_expert_bias=False)
    assert (scaled.share_scale, scaled.has_choice_bias) == (2.5, False)
    qwen35 = Experts(frozenset(range(4)), 8, 3, 40, shared_size=56, gates_shared=True)
    assert experts_of(QWEN35_MOE) == qwen35


def test_layers_without_experts_are_dense():
    assert [parsed(QWEN3_MOE).dense_size(layer) for layer in range(4)] == [0, 96, 0, 0]
    assert experts_of(QWEN3_MOE, decoder_sparse_step=2, mlp_only_layers=None).layers == {1, 3}
    assert [parsed(LFM2_MOE).dense_size(layer) for layer in range(4)] == [96, 0, 0, 0]
    assert parsed(LFM2_MOE, block_auto_adjust_ff_dim=True).ffn_size == 96
    assert parsed(QWEN35_MOE).dense_size(3) == 56
    assert parsed(GRANITE4_MOE).dense_size(0) == 80
    alone = parsed(GRANITE4_MOE, shared_intermediate_size=0)
    assert [alone.dense_size(layer) for layer in range(4)] == [0] * 4


def test_experts_may_be_called_local_ones():
    config = {name: it for name, it in QWEN3_MOE.items() if name != "num_experts"}
    assert parsed(config, num_local_experts=8) == parsed(QWEN3_MOE)
    assert experts_of(config).num == 128


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
    assert parsed(GRANITE4_MOE, num_local_experts=None).experts is None
    assert parsed(GRANITE4, position_embedding_type="rope").unrotated_layers == frozenset()


def test_a_model_of_which_all_layers_have_attention_has_no_recurrent_ones():
    for config in (LFM2, QWEN35, GRANITE4):
        plain = parsed(config, layer_types=["full_attention"] * 4, mamba_n_heads=-1)
        assert (plain.recurrent, plain.recurrent_layers) == (None, frozenset())


def test_the_head_for_further_tokens_is_part_of_a_model_that_sees_pictures():
    inside = ("model.language_model.norm.weight", "mtp.fc.weight", "model.visual.merger.weight")
    tensors = text_tensors({name: Tensor(name, (1,), lambda *_: np.zeros(1)) for name in inside})
    assert set(tensors) == {"model.norm.weight", "mtp.fc.weight"}
