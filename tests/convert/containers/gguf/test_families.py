"""GGUF files of families whose layers are not all alike: the same weights as the safetensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the gguf package is not installed")

from checkpoints import exported
from coordgen_rs import OrtSession
from coordgen_rs.convert.containers.tensor import StoredBlocks, Tensor
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.convert.families.model_config import DeltaNet
from coordgen_rs.convert.families.qwen import grouped
from coordgen_rs.errors import CheckpointError
from coordgen_rs.runtime.cpu import CpuDevice
from families import prompt_logits
from gemma4 import CONFIGS as GEMMAS
from gemma4 import write_gemma4
from gguf_files import write_gguf
from graph_runner import tokens
from hybrids import write_hybrid
from mixtures import CONFIGS as MIXTURES
from mixtures import write_mixture

OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"mlp_only_layers": []},  # no file tells of these
    "qwen3_5": {"linear_num_value_heads": 2},  # more of them are in another order
    "qwen3_5_moe": {"linear_num_value_heads": 2},
}
CASES = [
    *((write_gemma4, family) for family in GEMMAS),
    *((write_hybrid, family) for family in ("lfm2", "qwen3_5", "granitemoehybrid")),
    *((write_mixture, family) for family in MIXTURES),
]


def logits_of_both(folder: Path, checkpoint: Path, weights: str) -> list[Any]:
    """Logits of a Hugging Face directory, and of a GGUF file with the same weights."""
    file, logits, told = write_gguf(folder / "model.gguf", checkpoint), [], []
    for number, path in enumerate((checkpoint, file)):
        sizes = {"prefill_rows": 32, "decode_rows": 8}
        bundle = exported(path, folder / f"{number}", weights=weights, **sizes)
        session = OrtSession(CpuDevice(bundle))
        logits.append(prompt_logits(session, tokens(60, 1536).astype(np.uint32)))
        names = ("caches", "per_layer", "inv_freq", "window", "recurrent", "experts")
        told.append([getattr(bundle.manifest, name) for name in names])
    assert told[0] == told[1]
    return logits


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize(("write", "family"), CASES)
def test_a_file_computes_what_the_safetensors_do(tmp_path, write, family, weights):
    checkpoint = write(tmp_path / "model", family, **OPTIONS.get(family, {}))
    assert np.array_equal(*logits_of_both(tmp_path, checkpoint, weights))


def test_a_file_with_more_value_heads_has_their_columns_in_another_order(tmp_path):
    checkpoint = write_hybrid(tmp_path / "model", "qwen3_5")
    expected, found = logits_of_both(tmp_path, checkpoint, "fp32")
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("family", MIXTURES)
def test_a_file_holds_the_tensors_of_the_safetensors(tmp_path, family, fuses):
    mtp = "random" if family == "qwen3_5_moe" else None
    checkpoint = write_mixture(tmp_path / "model", family, mtp=mtp, **OPTIONS.get(family, {}))
    file = write_gguf(tmp_path / "model.gguf", checkpoint, fuses_experts=fuses)
    expected, found = (open_checkpoint(path) for path in (checkpoint, file))
    assert found.config.experts == expected.config.experts
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        offset = 1 if "norm" in name and "linear_attn" not in name else 0
        offset *= family == "qwen3_5_moe"
        np.testing.assert_allclose(found.tensors[name].load(), tensor.load() + offset, atol=1e-6)


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
