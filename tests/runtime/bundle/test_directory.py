import contextlib
import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import write_checkpoint
from coordgen_rs import open_session
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import BundleDamagedError, BundleError
from coordgen_rs.loading.directory import ProviderChoice, open_bundle
from json_values import JSON_VALUES
from qnn_bundles import SMALL


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle")
    export_checkpoint(write_checkpoint(path / "checkpoint"), path / "out", weights="int8")
    return path / "out"


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "bundle")


def change_manifest(bundle: Path, **fields: Any) -> None:
    file = bundle / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_opening_gives_the_manifest_and_the_embedding(bundle):
    opened = Bundle.open(bundle)
    assert opened.manifest.model.hidden_size == 64
    assert opened.manifest.decode_widths == [*range(1, 9), 12, 16, 24, 32]
    embedding = opened.embedding()
    assert (embedding.shape, embedding.dtype) == ((128, 64), np.float16)
    assert opened.file(opened.manifest.tokenizer).is_file()


def test_rope_tables_cover_every_slot(bundle):
    opened = Bundle.open(bundle)
    cos, sin = opened.rope_tables().values()
    assert cos.shape == sin.shape == (opened.manifest.slots, 8)
    assert cos.dtype == sin.dtype == np.float32
    assert np.array_equal(cos[0], np.ones(8))
    np.testing.assert_allclose(np.arctan2(sin[1], cos[1]), opened.manifest.inv_freq, rtol=1e-5)


def test_a_manifest_survives_its_text(bundle):
    manifest = Bundle.open(bundle).manifest
    assert Manifest.from_json(manifest.to_json()) == manifest


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


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_a_bundle_for_cpu_of_an_older_version_has_to_be_exported_again(bundle, version):
    change_manifest(bundle, schema_version=version)
    for opening in (Bundle.open, open_bundle, open_session):
        with pytest.raises(
            BundleError,
            match=rf"manifest\.json has schema version {version}, this coordgen_rs reads 7: "
            "export the checkpoint again",
        ):
            opening(bundle)


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6, 7])
def test_a_bundle_with_weights_of_an_older_version_has_to_be_exported_with_others(bundle, version):
    change_manifest(bundle, schema_version=version, weights="w8a8")
    for opening in (Bundle.open, open_bundle, open_session):
        with pytest.raises(
            BundleError, match=r"w8a8 weights, .* gone: export it again with --weights int8$"
        ):
            opening(bundle)


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_a_bundle_for_qnn_of_an_older_version_still_opens(tmp_path, version):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    export_qnn(checkpoint, tmp_path / "out", soc="8-elite", **SMALL)
    new = Bundle.open(tmp_path / "out")
    change_manifest(tmp_path / "out", schema_version=version)
    old = open_bundle(tmp_path / "out")
    old.verify()
    assert (old.manifest.schema_version, new.manifest.schema_version) == (version, 7)
    assert old.manifest == dataclasses.replace(new.manifest, schema_version=version)
    change_manifest(tmp_path / "out", schema_version=1)
    with pytest.raises(BundleError, match="schema version 1"):
        Bundle.open(tmp_path / "out")


def test_a_bundle_for_qnn_has_keys_and_values_of_its_own(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    export_qnn(checkpoint, tmp_path / "out", soc="8-elite", **SMALL)
    with pytest.raises(BundleError, match="made for qnn, but keys and values in f16 are only for"):
        ProviderChoice().device(Bundle.open(tmp_path / "out"), kv_cache="f16")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": 1}, "schema version 1"),
        ({"schema_version": None}, "schema version None"),
        ({"slots": "many"}, r"manifest\.slots is str 'many', expected int"),
        ({"slots": True}, r"manifest\.slots"),
        ({"slots": 300}, r"manifest\.slots is 300"),
        ({"weights": "int3"}, r"manifest\.weights is 'int3'"),
        ({"widths": [1, 1, 32, 256]}, r"manifest\.widths"),
        ({"widths": [1, 32, 256, 512]}, r"manifest\.slots"),
        ({"inv_freq": []}, r"manifest\.inv_freq has 0 entries, expected 1 to head_dim / 2, 8"),
        ({"window_inv_freq": [1.0] * 9}, r"manifest\.window_inv_freq has 9 entries"),
        ({"window": 0}, r"manifest\.window is 0"),
        ({"rope_factor": -1.0}, r"manifest\.rope_factor is -1"),
        ({"end_token_ids": [128]}, "128"),
        ({"blocks": []}, r"manifest\.blocks"),
        ({"files": {}}, r"manifest\.files lacks"),
        ({"model": {}}, r"manifest\.model has no field"),
        ({"embedding": {"file": "../secret", "dtype": "float16"}}, "secret"),
        ({"embedding": {"file": "embedding.bin", "dtype": "float32"}}, "16384 bytes, but 128 rows"),
        ({"embedding": {"file": "embedding.bin", "dtype": "Q8_0"}}, "Q8_0 and panels do not go"),
        (
            {
                "embedding": {
                    "file": "embedding.bin",
                    "dtype": "Q4_0",
                    "panels": {"offset": 16000, "scale": 1.0},
                }
            },
            "16384 bytes, but",
        ),
        ({"embedding": {"file": "tokenizer.json", "dtype": "float16"}}, "are 16384"),
        ({"slots": 10**30}, "64 bits"),
        ({"slots": 10**18}, r"manifest\.slots is 1000000000000000000, expected 1 to"),
        ({"context": 2**40, "slots": 2**41}, r"manifest\.context is 1099511627776"),
        ({"decode_rows": 256, "prefill_rows": 32}, r"manifest\.decode_rows is 256, more than"),
        ({"end_token_ids": [True]}, r"manifest\.end_token_ids\[0\] is bool"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_used_is_named(bundle, fields, message):
    change_manifest(bundle, **fields)
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle)


def test_a_file_outside_the_bundle_is_refused(bundle):
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    change_manifest(bundle, files=files | {"../secret": {"num_bytes": 1, "sha256": ""}})
    with pytest.raises(BundleError, match="secret"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    "name", ["a\0b", "\ud800", "..\\x", "C:x", "/x", "NUL", "a\nb", "a/../b", "x" * 300, "x."]
)
def test_a_name_that_is_no_plain_file_name_is_refused(bundle, name):
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    change_manifest(bundle, files=files | {name: {"num_bytes": 1, "sha256": ""}})
    with pytest.raises(BundleError, match=r"plain file name|half of a surrogate pair"):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 10**30),
        ("vocab_size", 2**30),
        ("vocab_size", 256),
        ("rms_norm_eps", 10**400),
        ("rms_norm_eps", -1.0),
        ("num_layers", 2**62),
    ],
)
def test_an_impossible_size_of_the_model_is_refused(bundle, field, value):
    model = json.loads((bundle / "manifest.json").read_text())["model"]
    change_manifest(bundle, model=model | {field: value})
    with pytest.raises(BundleError, match=r"manifest"):
        Bundle.open(bundle)


def test_a_manifest_may_begin_with_a_byte_order_mark(bundle):
    file = bundle / "manifest.json"
    expected = Bundle.open(bundle).manifest
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert Bundle.open(bundle).manifest == expected


def test_a_pipe_as_manifest_is_refused_not_waited_for(bundle):
    (bundle / "manifest.json").unlink()
    os.mkfifo(bundle / "manifest.json")
    with pytest.raises(BundleError, match=r"manifest\.json is a pipe"):
        Bundle.open(bundle)


def test_a_missing_file_is_named(bundle):
    (bundle / "head.weights").unlink()
    with pytest.raises(BundleDamagedError, match=r"head\.weights is missing"):
        Bundle.open(bundle)


def test_a_pipe_as_a_file_is_refused_not_waited_for(bundle):
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    change_manifest(bundle, files=files | {"more": {"num_bytes": 0, "sha256": ""}})
    os.mkfifo(bundle / "more")
    with pytest.raises(BundleDamagedError, match="more is damaged: not a regular file"):
        Bundle.open(bundle)


def test_a_truncated_file_is_named(bundle):
    file = bundle / "block_00.weights"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleDamagedError, match=r"block_00\.weights is damaged"):
        Bundle.open(bundle)


def test_an_altered_byte_is_found_and_its_file_named(bundle):
    opened = Bundle.open(bundle)
    opened.verify()
    file = bundle / "block_00.weights"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(BundleDamagedError, match=r"block_00\.weights is damaged"):
        Bundle.open(bundle).verify()


def test_verifying_reports_every_byte(bundle):
    opened = Bundle.open(bundle)
    seen: list[tuple[str, int, int]] = []
    opened.verify(lambda name, done, total: seen.append((name, done, total)))
    assert {name for name, _, _ in seen} == set(opened.manifest.files)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    total = sum(record.num_bytes for record in opened.manifest.files.values())
    assert seen[-1][1:] == (total, total)


def test_opening_needs_no_onnx():
    code = "import sys, coordgen_rs.bundle.directory; sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def paths_into(document: Any) -> list[list[Any]]:
    """The path to every value in a JSON document."""
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    else:
        return [[]]
    return [[]] + [[key, *path] for key, value in items for path in paths_into(value)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_manifest_opens_or_raises_a_bundle_error(original, data):
    document = json.loads((original / "manifest.json").read_text())
    changed = copy.deepcopy(document)
    *parents, last = data.draw(st.sampled_from([path for path in paths_into(document) if path]))
    place = changed
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON_VALUES)
    with contextlib.suppress(BundleError):
        Manifest.from_json(json.dumps(changed))
