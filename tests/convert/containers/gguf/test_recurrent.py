"""GGUF files of models with recurrent layers: the same weights, and what is refused by name."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.config.model import ModelConfig
from coordgen_rs.convert.families.config.recurrent import DeltaNet
from coordgen_rs.convert.families.qwen import grouped
from coordgen_rs.errors import CheckpointError
from gguf_files import parsed_metadata, write_gguf
from graph_runner import GraphRunner, tokens
from hybrids import write_hybrid
from json_values import JSON_VALUES

KEYS: dict[str, dict[str, Any]] = {
    "lfm2": {"attention.head_count_kv": [0, 0, 2, 0], "shortconv.l_cache": 3},
    "qwen35": {
        "attention.key_length": 24,
        "attention.value_length": 24,
        "rope.dimension_count": 6,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 2,
        "ssm.inner_size": 96,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
    },
    "granitehybrid": {
        "attention.head_count_kv": [0, 2, 0, 0],
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 1,
        "ssm.inner_size": 128,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 8,
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


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("family", "options"),
    [("lfm2", {}), ("qwen3_5", {"linear_num_value_heads": 2}), ("granitemoehybrid", {})],
)
def test_a_file_computes_what_the_safetensors_do(tmp_path, family, options, weights):
    logits = logits_of_both(tmp_path, family, options, weights)
    assert np.array_equal(*logits)


def test_a_file_with_more_value_heads_has_their_columns_in_another_order(tmp_path):
    expected, found = logits_of_both(tmp_path, "qwen3_5", {}, "fp32")
    assert np.abs(found - expected).max() < 1e-4


def logits_of_both(folder: Path, family: str, options: dict[str, Any], weights: str) -> list[Any]:
    """Logits of a Hugging Face directory, and of a GGUF file with the same weights."""
    checkpoint = write_hybrid(folder / "model", family, **options)
    file, logits = write_gguf(folder / "model.gguf", checkpoint), []
    for number, path in enumerate((checkpoint, file)):
        bundle = exported(path, folder / f"{number}", weights=weights, decode_rows=8)
        logits.append(GraphRunner(bundle).feed_all(tokens(60, 1536), 8))
    return logits


@pytest.mark.parametrize("types", ["Q8_0", "Q5_1", "F16"])
def test_kept_value_heads_are_the_files(tmp_path, types):
    """Of 6 value heads of 16, two are in a block of 32 columns."""
    sizes = {"linear_num_value_heads": 6, "linear_value_head_dim": 16}
    checkpoint = write_hybrid(tmp_path / "model", "qwen3_5", **sizes)
    parts = ("attn", "ssm_alpha", "ssm_beta", "ssm_out")
    file = write_gguf(tmp_path / "model.gguf", checkpoint, dict.fromkeys(parts, types))
    ids, logits = tokens(40, 1536), {}
    for weights in ("keep", "fp32"):
        bundle = exported(file, tmp_path / weights, weights=weights, decode_rows=8)
        logits[weights] = GraphRunner(bundle).feed_all(ids, 8)
    spread = logits["fp32"].std()
    # Activations are rounded to 8 bits where weights are integers.
    most = 1e-5 if types == "F16" else 0.1
    assert np.abs(logits["keep"] - logits["fp32"]).mean() <= most * spread


def test_rows_of_value_heads_are_put_back_and_columns_named():
    kind = DeltaNet(key_heads=2, value_heads=6, key_dim=3, value_dim=4, taps=2)
    of_head = [f"{key}.{number}" for number in range(3) for key in range(2)]
    rows = [f"row {i}" for i in range(12)] + [f"{it} {i}" for it in of_head for i in range(4)]
    numbers = np.arange(len(rows), dtype=np.float32)[:, None]

    def read(first: int, last: int) -> Any:
        return numbers[first:last]

    def read_bytes(first: int, last: int) -> Any:
        return numbers[first:last].astype(np.uint8)

    name = "model.layers.3.linear_attn.in_proj_qkv.weight"
    stored = Tensor(name, numbers.shape, read, StoredBlocks("F32", read_bytes), "F32")
    tensors, found = grouped({name: stored, "lm_head.weight": stored}, kind)
    assert found.is_tiled
    assert tensors["lm_head.weight"] is stored
    ordered = tensors[name]
    expected = rows[:12] + [
        f"{key}.{number} {i}" for key in range(2) for number in range(3) for i in range(4)
    ]
    assert [rows[int(it)] for it in ordered.load()[:, 0]] == expected
    for first, last in ((0, 36), (5, 13), (12, 13), (14, 31), (35, 36)):
        for read_rows in (ordered.read_rows, ordered.blocks and ordered.blocks.read_rows):
            assert read_rows is not None
            assert [rows[int(it)] for it in read_rows(first, last)[:, 0]] == expected[first:last]


def test_a_head_for_further_tokens_is_that_of_the_safetensors(tmp_path):
    checkpoint = write_hybrid(tmp_path / "model", "qwen3_5", mtp="random")
    file = write_gguf(tmp_path / "model.gguf", checkpoint)
    expected, found = (open_checkpoint(path) for path in (checkpoint, file))
    assert found.config.num_layers == 4
    names = {name for name in expected.tensors if name.startswith("mtp.")}
    assert names
    assert names == {name for name in found.tensors if name.startswith("mtp.")}
    for name in names:
        offset = 1 if "norm" in name else 0
        np.testing.assert_allclose(
            found.tensors[name].load(), expected.tensors[name].load() + offset, atol=1e-6
        )


def test_other_heads_for_further_tokens_are_left_out(tmp_path):
    checkpoint = write_hybrid(tmp_path / "model", "qwen3_5")
    file = write_gguf(
        tmp_path / "model.gguf",
        checkpoint,
        metadata={"qwen35.nextn_predict_layers": 1, "qwen35.full_attention_interval": 3},
    )
    found = open_checkpoint(file)
    assert found.config.num_layers == 3
    assert found.config.recurrent_layers == {0, 1}
    assert not any("layers.3." in name or "mtp" in name for name in found.tensors)


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


@pytest.mark.parametrize(
    ("architecture", "changed", "message"),
    [
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
        ("granitehybrid", {"expert_count": 62}, "expert_used_count is None"),
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
    more = ["block_count", "nextn_predict_layers", "attention.recurrent_layers"]
    changed = data.draw(st.sampled_from([*KEYS[architecture], *more, "full_attention_interval"]))
    values = st.one_of(JSON_VALUES, st.lists(JSON_VALUES, min_size=4, max_size=4))
    with contextlib.suppress(CheckpointError):
        parsed(architecture, **{changed: data.draw(values)})


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("lfm2", "output_norm.weight", "the tensor output_norm.weight is not one of this kind"),
        ("qwen3_5", "blk.0.ffn_norm.weight", "the tensor blk.0.ffn_norm.weight is not one"),
        ("granitemoehybrid", "blk.0.ssm_in.bias", "in_proj.bias is a bias, which is not supported"),
    ],
)
def test_a_tensor_of_another_kind_is_refused(tmp_path, monkeypatch, family, name, message):
    import gguf_files

    known = gguf_files.hugging_face_names

    def with_another(*arguments: Any) -> dict[str, str]:
        return {**known(*arguments), name: "model.layers.0.post_attention_layernorm.weight"}

    monkeypatch.setattr(gguf_files, "hugging_face_names", with_another)
    file = write_gguf(tmp_path / "model.gguf", write_hybrid(tmp_path / "model", family))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(file)
