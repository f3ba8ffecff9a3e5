"""A bundle's folder: its files are those that the manifest names, and what is wrong is named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoints import write_checkpoint
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.loading.directory import open_bundle


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle")
    export_checkpoint(write_checkpoint(path / "checkpoint"), path / "out", weights="int8")
    return path / "out"


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "bundle")


def test_opening_gives_the_manifest_the_embedding_and_rotations_of_every_slot(bundle):
    opened = Bundle.open(bundle)
    assert opened.manifest.model.hidden_size == 64
    assert opened.manifest.decode_widths == [*range(1, 9), 12, 16, 24, 32]
    embedding = opened.embedding()
    assert (embedding.shape, embedding.dtype) == ((128, 64), np.float16)
    assert opened.file(opened.manifest.tokenizer).is_file()
    cos, sin = opened.rope_tables().values()
    assert cos.shape == sin.shape == (opened.manifest.slots, 8)
    assert cos.dtype == sin.dtype == np.float32
    assert np.array_equal(cos[0], np.ones(8))
    np.testing.assert_allclose(np.arctan2(sin[1], cos[1]), opened.manifest.inv_freq, rtol=1e-5)


def test_a_directory_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(tmp_path)
    with pytest.raises(BundleError, match="nowhere"):
        Bundle.open(tmp_path / "nowhere")


@pytest.mark.parametrize("config", ["genai_config.json", "genie_config.json"])
def test_a_directory_of_another_tool_is_left_to_open_bundle(tmp_path, config):
    (tmp_path / config).write_text("{}", "utf-8")
    for path in (tmp_path, tmp_path / config):
        with pytest.raises(BundleError, match="another tool's, which open_bundle"):
            Bundle.open(path)
        with pytest.raises(BundleError, match="does not describe"):
            open_bundle(path)


def test_a_manifest_goes_before_the_config_of_another_tool(bundle):
    (bundle / "genai_config.json").write_text("{}", "utf-8")
    assert open_bundle(bundle) == Bundle.open(bundle)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '"schema_version"', "\ud800", "[" * 200_000], ids=len
)
def test_a_manifest_that_is_no_object_is_refused(bundle, text):
    (bundle / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(bundle)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def empty_pipe_among_the_files(manifest: Path) -> None:
    document = json.loads(manifest.read_text())
    document["files"]["more"] = {"num_bytes": 0, "sha256": ""}
    manifest.write_text(json.dumps(document))
    os.mkfifo(manifest.with_name("more"))


@pytest.mark.parametrize(
    ("name", "damage", "error", "match"),
    [
        ("manifest.json", pipe, BundleError, r"manifest\.json is a pipe"),
        ("manifest.json", empty_pipe_among_the_files, BundleDamagedError, "more is damaged: not"),
        ("head.weights", Path.unlink, BundleDamagedError, r"head\.weights is missing"),
        (
            "block_00.weights",
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            BundleDamagedError,
            r"block_00\.weights is damaged",
        ),
    ],
)
def test_a_file_that_is_none_or_damaged_is_named_at_once(bundle, name, damage, error, match):
    damage(bundle / name)
    with pytest.raises(error, match=match):
        Bundle.open(bundle)


def test_every_byte_is_verified_and_the_file_of_an_altered_one_named(bundle):
    seen: list[tuple[str, int, int]] = []
    opened = Bundle.open(bundle)
    opened.verify(lambda name, done, total: seen.append((name, done, total)))
    assert {name for name, _, _ in seen} == set(opened.manifest.files)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    total = sum(record.num_bytes for record in opened.manifest.files.values())
    assert seen[-1][1:] == (total, total)
    file = bundle / "block_00.weights"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(BundleDamagedError, match=r"block_00\.weights is damaged"):
        Bundle.open(bundle).verify()


def test_opening_needs_no_onnx():
    code = "import sys, coordgen_rs.bundle.directory; sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
