"""What exporting refuses, by name, and that it leaves nothing behind."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from checkpoints import (
    STORIES,
    exported,
    needs_shared,
    save_weights,
    sums,
    write_checkpoint,
)
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import CheckpointError, ExportError, OptionError


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint")


def refuse(checkpoint: Path, out: Path, error: type[Exception], match: str, **options: Any) -> None:
    """Exporting fails with a message that has `match`, and leaves nothing beside the checkpoint."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(error, match=match):
        export_checkpoint(checkpoint, out, **options)
    assert sorted(out.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("file", "spoiled"),
    [
        *((file, None) for file in ("config.json", "model.safetensors", "tokenizer.json")),
        ("tokenizer.json", lambda _: b'{"model": 7}'),
        *(("model.safetensors", lambda it, kept=kept: it[:kept]) for kept in (0, 4, 100, -1)),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path, file, spoiled, checkpoint):
    content = (checkpoint / file).read_bytes()
    (checkpoint / file).unlink()
    if spoiled is not None:
        (checkpoint / file).write_bytes(spoiled(content))
    refuse(checkpoint, tmp_path / "out", CheckpointError, file)


def test_tensors_that_are_not_used_may_have_any_type(tmp_path, checkpoint):
    weights = load_file(checkpoint / "model.safetensors")
    bundle = exported(checkpoint, tmp_path / "a")
    save_weights(checkpoint, weights | {"rotary.position_ids": np.arange(4)})
    assert sums(exported(checkpoint, tmp_path / "b")) == sums(bundle)
    save_weights(checkpoint, weights | {"model.norm.weight": np.ones(64, np.int64)})
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"model\.norm\.weight has the type I64")


def test_a_missing_shard_is_named(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", shards=2)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    refuse(checkpoint, tmp_path / "out", CheckpointError, "model-00002-of-00002")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_offsets": [0, float("inf")]}, r"model\.safetensors: the header holds Infinity"),
        ({"shape": [float("inf")]}, r"model\.safetensors: the header holds Infinity"),
        ({"shape": [1.5]}, r"damaged header at model\.norm\.weight: .*shape\[0\] is float 1\.5"),
        ({"shape": [2**62] * 1_000}, r"damaged header at model\.norm\.weight"),
        ({"shape": [2]}, r"damaged header at model\.norm\.weight"),
        ({"data_offsets": [4, 0]}, r"damaged header at model\.norm\.weight"),
        ({"data_offsets": [0, 4, 8]}, r"damaged header at model\.norm\.weight"),
        ({"dtype": "I16", "data_offsets": [0, 2**62]}, "truncated"),
        ({"dtype": "I64", "data_offsets": [0, 2**62]}, r"damaged header at model\.norm\.weight"),
        ({"dtype": None}, r"damaged header at model\.norm\.weight: .*dtype is NoneType"),
    ],
    ids=str,
)
def test_a_header_that_cannot_be_true_is_named(tmp_path, fields, message, checkpoint):
    fields = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | fields
    write_header(checkpoint, json.dumps({"model.norm.weight": fields}).encode())
    refuse(checkpoint, tmp_path / "out", CheckpointError, message)


def write_header(checkpoint: Path, header: bytes) -> None:
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (checkpoint / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "header", "index"])
@pytest.mark.parametrize("text", ["[" * 200_000, r'{"a": "\ud800"}', '{"a": 1, "a": 2}'], ids=len)
def test_hostile_json_in_a_checkpoint_is_refused_with_its_file(tmp_path, file, text, checkpoint):
    name = {"header": "model.safetensors", "index": "model.safetensors.index.json"}.get(file, file)
    if file == "header":
        write_header(checkpoint, text.encode())
    else:
        (checkpoint / name).write_text(text)
    refuse(checkpoint, tmp_path / "out", CheckpointError, name.replace(".", r"\."))


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_pipe_in_a_checkpoint_is_refused_not_waited_for(tmp_path, file, checkpoint):
    (checkpoint / file).unlink(missing_ok=True)
    os.mkfifo(checkpoint / file)
    refuse(checkpoint, tmp_path / "out", CheckpointError, f"{file}.* is a pipe")


@pytest.mark.parametrize(
    "shard", ["/etc/passwd", "../other.safetensors", "..\\x", "C:x", "a\0b", ""]
)
def test_a_shard_outside_the_checkpoint_is_refused(tmp_path, shard, checkpoint):
    index = {"weight_map": {"model.norm.weight": shard}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse(checkpoint, tmp_path / "out", CheckpointError, "not a plain file name")


@pytest.mark.parametrize("value", [10**400, "1e400", 1e300, -1, True, float("nan")], ids=str)
def test_an_impossible_epsilon_is_refused(tmp_path, value, checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    text = json.dumps(config | {"rms_norm_eps": "HERE"})
    text = text.replace('"HERE"', value if isinstance(value, str) else json.dumps(value))
    (checkpoint / "config.json").write_text(text)
    refuse(checkpoint, tmp_path / "out", CheckpointError, r"config\.json")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_weight_header_never_raises_anything_unnamed(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    if not path.exists():
        write_checkpoint(path / "checkpoint")
    original = (path / "checkpoint" / "model.safetensors").read_bytes()
    raw = bytearray(original)
    end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    (path / "checkpoint" / "model.safetensors").write_bytes(raw)
    try:
        export_checkpoint(path / "checkpoint", path / "out", decode_rows=1, prefill_rows=1)
    except CheckpointError:
        assert [entry.name for entry in path.iterdir()] == ["checkpoint"]
    else:
        for file in (path / "out").iterdir():
            file.unlink()
        (path / "out").rmdir()
    finally:
        (path / "checkpoint" / "model.safetensors").write_bytes(original)


@pytest.mark.parametrize(
    "options",
    [{"weights": "int3"}, {"blocks": 3}, {"blocks": 0}, {"decode_rows": 0}, {"context": 513}],
    ids=str,
)
def test_options_out_of_range_are_named(tmp_path, options, checkpoint):
    refuse(checkpoint, tmp_path / "out", OptionError, next(iter(options)), **options)


def test_weights_of_earlier_versions_are_refused_with_what_to_take(tmp_path, capsys, checkpoint):
    message = "w8a8 is gone: int8 is faster and rounds less"
    refuse(checkpoint, tmp_path / "out", OptionError, f"^weights {message}$", weights="w8a8")
    for provider in ("cpu", "qnn"):
        options = ["--provider", provider, "--weights", "w8a8"]
        assert main(["export", str(checkpoint), str(tmp_path / "out"), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"error: --weights {message}")


def test_a_step_wider_than_a_chunk_is_refused(tmp_path, checkpoint):
    options = {"prefill_rows": 4, "decode_rows": 32}
    message = "decode_rows is 32, expected at most prefill_rows, 4"
    refuse(checkpoint, tmp_path / "out", OptionError, message, **options)


def test_an_existing_target_is_left_alone(tmp_path, checkpoint):
    out = tmp_path / "out"
    out.mkdir()
    exported(checkpoint, out)  # an empty directory is taken over
    before = {file: hashlib.sha256(file.read_bytes()).digest() for file in out.iterdir()}
    refuse(checkpoint, out, ExportError, "exists already")
    assert before == {file: hashlib.sha256(file.read_bytes()).digest() for file in out.iterdir()}


# What is left behind


def test_an_interrupt_leaves_nothing_behind(tmp_path, checkpoint):

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "layer 1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_checkpoint(checkpoint, tmp_path / "out", on_progress=interrupt)
    assert list(tmp_path.iterdir()) == [checkpoint]


def in_child(code: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_full_disk_leaves_nothing_behind(tmp_path, checkpoint):
    code = """
import resource, sys
from coordgen_rs.errors import ExportError
from coordgen_rs.convert import export_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    export_checkpoint(sys.argv[1], sys.argv[2])
except ExportError as error:
    print(error)
"""
    message = in_child(code, checkpoint, tmp_path / "out")
    assert "block_00.weights cannot be written" in message
    assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_peak_memory_is_below_one_and_a_half_checkpoints(tmp_path, weights):
    sizes = {"hidden": 1024, "ffn": 4096, "heads": 16, "layers": 2, "vocab": 32_000}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", dtype="BF16", **sizes)
    code = """
import sys
from coordgen_rs.convert import export_checkpoint
export_checkpoint(sys.argv[1], sys.argv[2], weights=sys.argv[3])
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""
    peak_bytes = 1024 * int(in_child(code, checkpoint, tmp_path / "out", Path(weights)))
    assert peak_bytes < 1.5 * (checkpoint / "model.safetensors").stat().st_size


def test_a_llama2c_header_that_names_millions_of_layers_is_refused_at_once(tmp_path):
    model = tmp_path / "model.bin"
    model.write_bytes(struct.pack("<7i", 4, 3, (1 << 24) - 1, 2, 1, 264, 4))
    with pytest.raises(CheckpointError, match="its header says 6174019420"):
        open_checkpoint(model)


@needs_shared
@pytest.mark.parametrize("damaged", ["stories260K.bin", "tok512.bin"])
def test_a_truncated_llama2c_file_is_named(tmp_path, damaged):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for file in ("stories260K.bin", "tok512.bin"):
        raw = (STORIES / file).read_bytes()
        (checkpoint / file).write_bytes(raw[:-100] if file == damaged else raw)
    refuse(checkpoint, tmp_path / "out", CheckpointError, damaged)
