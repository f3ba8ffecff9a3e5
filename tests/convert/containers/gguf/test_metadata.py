"""The metadata of GGUF files: every key is read, refused by name, or of no effect."""

import contextlib
import json
import math
from pathlib import Path
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

FOLDER = Path(__file__).parent
SAID = json.loads((FOLDER / "metadata.json").read_text("utf-8"))
KEYS: list[str] = SAID["keys"]
"""Those of `LLM_KV_NAMES` in llama.cpp, but for what only other architectures have."""
SIZES: dict[str, Any] = SAID["sizes"]
ARCHITECTURES: dict[str, dict[str, Any]] = SAID["architectures"]
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
    for key in KEYS:
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


REFUSED = [json.loads(line) for line in (FOLDER / "refused.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row['of']}: {row['told']}")
def test_metadata_that_cannot_be_is_refused_by_the_names_of_the_file(row):
    with pytest.raises(CheckpointError, match=rf"^x\.gguf[: ].*{row['told']}") as raised:
        parsed(row["of"], **row["changed"])
    assert "config.json" not in str(raised.value)


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_any_altered_metadata_is_read_or_refused_by_name(data):
    architecture = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    changed = data.draw(st.sampled_from([*SIZES, *ARCHITECTURES[architecture], *KEYS]))
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
