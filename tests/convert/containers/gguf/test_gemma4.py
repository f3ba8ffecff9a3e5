"""GGUF files of Gemma 4: the same weights, its tokenizer, and what is refused by name."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

pytest.importorskip("gguf", reason="the gguf package is not installed")


from checkpoints import exported
from coordgen_rs import Bundle, OrtSession
from coordgen_rs.convert.containers.gguf.chat import generation_config
from coordgen_rs.convert.containers.gguf.header import GgufHeader
from coordgen_rs.convert.containers.gguf.metadata import GgufMetadata
from coordgen_rs.convert.containers.gguf.tokenizer import tokenizer_json
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.errors import CheckpointError
from coordgen_rs.runtime.cpu.device import CpuDevice
from families import prompt_logits
from gemma4 import CONFIGS, write_gemma4
from gguf_files import parsed_metadata, write_gguf
from graph_runner import tokens
from json_values import JSON_VALUES

WINDOWS = [True, True, False] * 2
KEYS: dict[str, Any] = {
    "attention.head_count_kv": [2, 2, 1, 2, 2, 1],
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.shared_kv_layers": 3,
    "attention.sliding_window": 24,
    "attention.sliding_window_pattern": WINDOWS,
    "embedding_length_per_layer_input": 8,
    "feed_forward_length": [96, 96, 96, 192, 192, 192],
    "final_logit_softcapping": 30.0,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
}
"""Beside sizes."""
VALUES = [f"blk.{layer}.attn_v.weight" for layer in range(3)]


@pytest.fixture(autouse=True)
def frequencies(monkeypatch):
    """What `rope_freqs.weight` of a header without a file holds: to be changed by tests."""
    factors = [1.0] * 4 + [1e30] * 12
    read = GgufMetadata.vector

    def vector(metadata, name):
        return factors if metadata.header.path == Path("x.gguf") else read(metadata, name)

    monkeypatch.setattr(GgufMetadata, "vector", vector)
    return factors


def parsed(lacking: tuple[str, ...] = (), **changed: Any) -> ModelConfig:
    """The configuration of a file's metadata, with dots for double underscores in what changed."""
    sizes = {
        "block_count": 6,
        "context_length": 1024,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    given = sizes | KEYS | {it.replace("__", "."): changed[it] for it in changed}
    names = [*VALUES, "token_embd.weight", "per_layer_token_embd.weight"]
    return parsed_metadata("gemma4", given, [name for name in names if name not in lacking])


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_computes_what_the_safetensors_do(tmp_path, family, weights):
    checkpoint = write_gemma4(tmp_path / "model", family)
    file, logits = write_gguf(tmp_path / "model.gguf", checkpoint), []
    for number, path in enumerate((checkpoint, file)):
        bundle = exported(path, tmp_path / f"{number}", weights=weights, prefill_rows=32)
        session = OrtSession(CpuDevice(bundle))
        logits.append(prompt_logits(session, tokens(60, 1536).astype(np.uint32)))
    assert np.array_equal(*logits)


@pytest.mark.parametrize(
    ("types", "size"),
    [("Q8_0", 32), ("Q4_0", 32), ("Q5_1", 32), ("BF16", 32), ("Q4_K", 256), ("Q6_K", 256)],
)
def test_an_embedding_of_layers_is_kept_as_the_file_has_it(tmp_path, types, size):
    wide = {"hidden_size_per_layer_input": size}
    checkpoint = write_gemma4(tmp_path / "model", "gemma4", **wide)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, {"per_layer_token_embd": types})
    bundle = exported(file, tmp_path / "bundle", weights="keep", prefill_rows=32)
    assert bundle.manifest.per_layer.dtype == types
    rows = bundle.per_layer_embedding()[np.array([700, 3, 1535])]
    table = open_checkpoint(file).tensors["model.embed_tokens_per_layer.weight"]
    expected = np.concatenate([table.read_rows(row, row + 1) for row in (700, 3, 1535)])
    np.testing.assert_allclose(rows, expected * np.float32((size / 2) ** 0.5), rtol=1e-6)


def test_parts_of_rows_that_end_within_a_block_become_the_nearest_integers(tmp_path):
    """Of 16 numbers a layer two share a block; the values differ by half a step of their own."""
    checkpoint = write_gemma4(tmp_path / "model", "gemma4", hidden_size_per_layer_input=16)
    file = write_gguf(tmp_path / "model.gguf", checkpoint, {"per_layer_token_embd": "Q8_0"})
    bundle = exported(file, tmp_path / "bundle", weights="keep", prefill_rows=32)
    rows = bundle.per_layer_embedding()[np.arange(1536)]
    table = open_checkpoint(file).tensors["model.embed_tokens_per_layer.weight"].load()
    scale = np.float32(16**0.5 * 2**-0.5)
    assert np.abs(rows / scale - table).max() <= np.abs(table).max() / 127


def test_a_file_says_what_a_config_does():
    config = parsed()
    assert (config.head_dim, config.num_kv_heads, config.ffn_size) == (16, 2, 96)
    assert [cache.head_dim for cache in config.caches] == [16, 16, 32] * 2
    assert [cache.num_kv_heads for cache in config.caches] == [2, 2, 1] * 2
    assert [cache.written_by for cache in config.caches] == [0, 1, 2, 1, 1, 2]
    assert config.wide_ffn_layers == {3, 4, 5}
    assert (config.logits_cap, config.per_layer_size, config.window) == (30.0, 8, 24)
    assert config.keys_are_values == frozenset()
    assert [frequency > 0 for frequency in config.inv_freq] == [True] * 4 + [False] * 12
    assert len(config.window_inv_freq) == 8
    assert parsed(("blk.2.attn_v.weight",)).keys_are_values == {2, 5}
    assert parsed(feed_forward_length=96).wide_ffn_layers == frozenset()
    assert parsed(final_logit_softcapping=None).logits_cap is None


@pytest.mark.parametrize("pairs", range(1, 17))
def test_as_many_pairs_turn_as_a_file_says(frequencies, pairs):
    frequencies[:] = [1.0] * pairs + [1e30] * (16 - pairs)
    assert sum(frequency > 0 for frequency in parsed().inv_freq) == pairs


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
        parsed()


@pytest.mark.parametrize(
    ("lacking", "changed", "message"),
    [
        ((), {"attention__sliding_window_pattern": [True]}, "pattern has 1 entries, .* 6 layers"),
        ((), {"attention__head_count_kv": [2] * 5}, "head_count_kv has 5 entries"),
        ((), {"attention__head_count_kv": [2, 4, 1, 2, 2, 1]}, "is 4 in layer 1, but 2 in others"),
        ((), {"attention__head_count_kv": [2, 2, 1, 2, 2, "1"]}, "head_count_kv is '1'"),
        ((), {"attention__head_count_kv": [3, 3, 1] * 2}, "4 heads over 3 key/value heads"),
        ((), {"feed_forward_length": [96] * 3 + [200] * 3}, "is 96, and 200 in the last layers"),
        ((), {"feed_forward_length": [96, 96, 96, 192, 192, 96]}, "is 96 in layer 5, but 192"),
        ((), {"feed_forward_length": None}, "feed_forward_length is None"),
        (
            (),
            {"feed_forward_length": 96, "attention__shared_kv_layers": 6},
            "attention.shared_kv_layers is 6, expected 0 to 5",
        ),
        ((), {"attention__shared_kv_layers": "3"}, "shared_kv_layers is '3'"),
        (
            (),
            {"feed_forward_length": 96, "attention__shared_kv_layers": 4},
            "no layer before them is of the kind",
        ),
        ((), {"attention__value_length": 16}, "attention.value_length is not"),
        ((), {"attention__sliding_window": None}, "attention.sliding_window is None"),
        ((), {"rope__freq_base": None}, "rope.freq_base is None"),
        ((), {"rope__scaling__type": "yarn"}, "type is 'yarn'"),
        ((), {"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'"),
        ((), {"embedding_length_per_layer_input": "8"}, "per_layer_input is '8'"),
        ((), {"expert_count": 128}, "mixtures of experts are not supported"),
        (("per_layer_token_embd.weight",), {}, "vocab_size_per_layer_input is None"),
        (("blk.1.attn_v.weight",), {}, "lacks tensors blk.N.attn_v.weight"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be_is_refused_by_name(lacking, changed, message):
    with pytest.raises(CheckpointError, match=message):
        parsed(lacking, **changed)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_metadata_is_read_or_refused_by_name(data):
    changed = data.draw(st.sampled_from([*KEYS, "block_count", "rope.scaling.type"]))
    values = st.one_of(JSON_VALUES, st.lists(JSON_VALUES, min_size=6, max_size=6))
    with contextlib.suppress(CheckpointError):
        parsed(**{changed: data.draw(values)})


PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "▁", "a", "b", "ab", "▁ab", "\n", "\n\n"]
MERGES = ["a b", "▁ ab", "\n \n"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer_of(**changed: Any) -> Tokenizer:
    metadata = {
        "model": "gemma4",
        "tokens": [*PIECES, *BYTES],
        "token_type": [3, 3, 3, 2, 3, *[1] * 7, *[6] * 256],
        "merges": MERGES,
        "bos_token_id": 2,
        "eos_token_id": 1,
        **changed,
    }
    header = GgufHeader(
        Path("x.gguf"), {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, {}
    )
    return Tokenizer.from_str(tokenizer_json(header))


def test_its_tokenizer_merges_pieces_and_falls_back_to_bytes():
    tokenizer = tokenizer_of()
    for text, pieces in {
        "ab ab": ["ab", "▁ab"],
        "a  ab\n\n\n": ["a", "▁", "▁ab", "\n\n", "\n"],
        "é<turn|>b": ["<0xC3>", "<0xA9>", "<turn|>", "b"],
    }.items():
        encoded = tokenizer.encode(text)
        assert encoded.tokens == ["<bos>", *pieces]
        assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == f"<bos>{text}"
    assert json.loads(tokenizer.to_str())["model"]["byte_fallback"]


def test_a_tokenizer_without_merges_is_refused():
    for merges, message in ((None, "merges is missing"), (["ab"], "'ab' is no merge of two")):
        with pytest.raises(CheckpointError, match=message):
            tokenizer_of(merges=merges)


def test_answers_end_at_the_end_of_a_turn(tmp_path):
    ends = {
        "tokenizer.ggml.tokens": ["<eos>", "<turn|>", "x"],
        "tokenizer.ggml.token_type": [3] * 3,
    }
    header = GgufHeader(
        tmp_path, {"general.architecture": "gemma4", "tokenizer.ggml.eos_token_id": 0, **ends}, {}
    )
    assert generation_config(header) == {"eos_token_id": [0, 1]}


def test_what_bundles_say_is_the_same_from_both(tmp_path):
    checkpoint = write_gemma4(tmp_path / "model", "gemma4")
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    exported(checkpoint, tmp_path / "0", weights="fp32", prefill_rows=32)
    exported(file, tmp_path / "1", weights="fp32", prefill_rows=32)
    one, other = (Bundle.open(tmp_path / name).manifest for name in "01")
    assert (one.caches, one.per_layer, one.inv_freq) == (
        *(other.caches, other.per_layer, other.inv_freq),
    )
