"""Configurations as they are published, and as transformers writes them today: the same model."""

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from coordgen_rs.bundle.rope import QueryScaling
from coordgen_rs.convert.families.checkpoint import text_config
from coordgen_rs.convert.families.model_config import (
    DeltaNet,
    ModelConfig,
    SelectiveState,
    ShortConvolution,
)
from coordgen_rs.convert.families.table import parse_config
from families import needs_transformers

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FILE = Path(__file__).with_name("published.json")


def published(said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A model's architecture, and its config.json, with small sizes unless the file says others."""
    sizes = SIZES if said.get("sizes", True) else {}
    lacking = said.get("lacking", ())
    config = {key: it for key, it in sizes.items() if key not in lacking} | said["config"]
    if "outside" in said:
        config = {**said["outside"], "text_config": config}
    return said["architecture"], config


PUBLISHED = {name: published(said) for name, said in json.loads(FILE.read_text()).items()}


def parsed(architecture: str, config: dict[str, Any]) -> ModelConfig:
    return parse_config(text_config({**config, "architectures": [architecture]}), {})


@needs_transformers
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_and_present_configurations_mean_the_same(name):
    import transformers

    architecture, config = PUBLISHED[name]
    present = getattr(transformers, architecture).config_class(**deepcopy(config)).to_dict()
    old, new = parsed(architecture, config), parsed(architecture, present)
    assert "rope_theta" not in present
    if name == "gemma-3-4b-it":
        assert (old.num_heads, old.num_kv_heads, old.vocab_size) == (8, 4, 262_208)
        assert old.end_token_ids == [1, 106]
    else:
        assert old == new


def test_switches_of_published_configurations():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    glm = configs["GLM-4-9B-0414"]
    assert (glm.qkv_bias, glm.input_norms, glm.output_norms) == (False, True, True)
    assert (len(glm.inv_freq), glm.head_dim) == (8, 32)
    gemma = configs["gemma-3-1b-it"]
    assert (gemma.norm_offset, gemma.output_norms, gemma.qk_norm) == (1.0, True, True)
    assert (gemma.window, gemma.window_layers) == (512, frozenset(range(8)) - {5})
    assert gemma.score_scale == 256**-0.5
    assert gemma.window_inv_freq != gemma.inv_freq
    large = configs["gemma-3-4b-it"]
    assert large.inv_freq[0] == 0.125
    assert large.window_inv_freq is not None
    assert large.window_inv_freq[0] == 1.0
    phi = configs["Phi-4-mini-instruct"]
    assert (phi.max_positions, len(phi.inv_freq), phi.head_dim) == (4096, 12, 32)
    assert phi.rope_factor == pytest.approx(1.190238, abs=1e-6)
    assert configs["Phi-3-mini-4k-instruct"].rope_factor is None
    assert configs["SmolLM3-3B"].unrotated_layers == {3, 7}
    assert configs["SmolLM3-3B"].tied_head
    assert configs["Mistral-7B-v0.3"].window is None
    assert configs["Mistral-7B-v0.1"].within(4096).window is None
    assert configs["Mistral-7B-v0.1"].within(4097).window == 4096
    assert configs["Qwen2 with windows"].window_layers == {3, 4, 5, 6, 7}
    assert configs["granite-3.3-2b-instruct"].logits_scale == 0.125
    granite = configs["granite-4.0-micro"]
    assert (granite.ffn_size, granite.unrotated_layers) == (112, frozenset())


def test_switches_of_models_with_yarn():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    qwen = configs["Qwen3-0.6B with YaRN"]
    assert qwen.rope_factor == pytest.approx(1.138629, abs=1e-6)
    ministral = configs["Ministral-3-3B-Base-2512"]
    assert ministral.tied_head
    assert ministral.rope_factor is None  # mscale and mscale_all_dim are the same
    assert ministral.query_scaling == QueryScaling(0.1, 16_384)
    assert ministral.within(16_384).query_scaling is None
    assert ministral.within(16_385) == ministral
    assert configs["Ministral 3, all left out"].query_scaling == QueryScaling(0.1, 16_384)
    small = configs["Mistral-Small-3.1-24B"]
    assert (small.family, small.window, small.query_scaling) == ("mistral", None, None)
    olmo = configs["Olmo-3-7B-Instruct"]
    assert (olmo.window, olmo.window_layers) == (4096, {0, 1, 2, 4, 5, 6})
    assert (olmo.input_norms, olmo.output_norms, olmo.wide_qk_norm) == (False, True, True)
    assert olmo.window_inv_freq == configs["OLMo-2-1124-7B"].inv_freq
    assert olmo.inv_freq != olmo.window_inv_freq
    assert olmo.rope_factor == pytest.approx(1.207944, abs=1e-6)


def test_switches_of_models_with_recurrent_layers():
    configs = {name: parsed(*published) for name, published in PUBLISHED.items()}
    granite = configs["granite-4.0-h-1b"]
    assert granite.recurrent == SelectiveState(3, 64, 1, 128, 4, True, 0.0, math.inf)
    assert (granite.recurrent_layers, len(granite.unrotated_layers)) == (set(range(8)) - {5}, 8)
    assert (granite.ffn_size, granite.score_scale) == (112, 0.0078125)
    older, newer = configs["LFM2-1.2B"], configs["LFM2.5-1.2B-Instruct"]
    assert older.recurrent == newer.recurrent == ShortConvolution(96, 3)
    assert (older.ffn_size, newer.ffn_size) == (8192, 128)
    assert (older.recurrent_layers, older.tied_head) == ({0, 1, 3, 4, 6, 7}, True)
    assert older.inv_freq == newer.inv_freq
    qwen = configs["Qwen3.5-0.8B"]
    assert qwen.recurrent == DeltaNet(16, 16, 128, 128, 4)
    assert qwen.recurrent_layers == {0, 1, 2, 4, 5, 6}
    assert (qwen.gated_attention, qwen.norm_offset, qwen.tied_head) == (True, 1.0, True)
    assert (len(qwen.inv_freq), qwen.inv_freq[1]) == (8, pytest.approx(1e7 ** (-1 / 8)))
    left_out = configs["Qwen3.5, most left out"]
    assert left_out.recurrent == DeltaNet(16, 32, 128, 128, 4)
    assert (left_out.head_dim, len(left_out.inv_freq), left_out.num_kv_heads) == (256, 32, 4)


def test_windows_of_gemma_have_their_own_rotation_where_the_file_does_not_say_which():
    parameters: dict[str, dict[str, Any]] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default"},
    }
    config = {**SIZES, "architectures": ["Gemma3ForCausalLM"], "head_dim": 32}
    said = parse_config(config | {"rope_parameters": parameters}, {})
    parameters["sliding_attention"]["rope_theta"] = 1e4
    assert said == parse_config(config | {"rope_parameters": parameters}, {})
    assert said.inv_freq != said.window_inv_freq
