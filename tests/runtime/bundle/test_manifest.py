"""Manifests: what each field may say, and that bundles written before open as before."""

import contextlib
import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import exported, write_checkpoint
from coordgen_rs import Bundle, open_session
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import BlockLoadError, BundleError
from coordgen_rs.loading.directory import ProviderChoice, open_bundle
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession
from gemma4 import write_gemma4
from json_values import JSON_VALUES
from qnn_bundles import SMALL


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle for CPU, one whose layers share caches and have embeddings, and one for QNN."""
    path = tmp_path_factory.mktemp("bundles")
    plain = write_checkpoint(path / "plain")
    exported(plain, path / "cpu", weights="int8")
    options = {"blocks": 2, "prefill_rows": 32, "context": 128}
    exported(write_gemma4(path / "gemma4", "gemma4"), path / "layers", **options)
    export_qnn(plain, path / "qnn", soc="8-elite", **SMALL)
    return {name: path / name for name in ("cpu", "layers", "qnn")}


def document_of(folders: dict[str, Path], kind: str) -> Any:
    return json.loads((folders[kind] / "manifest.json").read_text())


def changed(document: Any, place: str, value: Any) -> Any:
    """The document with another value at a place such as `caches.3.written_by`."""
    *parents, last = (int(key) if key.isdigit() else key for key in place.split(" "))
    inside = document
    for key in parents:
        inside = inside[key]
    inside[last] = value
    return document


PANELS = {"file": "embedding.bin", "dtype": "Q4_0", "panels": {"offset": 16000, "scale": 1.0}}
FILE = {"num_bytes": 1, "sha256": ""}
CACHE = {"num_kv_heads": 2, "head_dim": 32, "written_by": 0}
NOT_PLAIN = (
    *("../secret", "a\0b", "..\\x", "C:x", "/x", "NUL", "a\nb", "a/../b", "x" * 300, "x."),
    "manifest.json",
)
REFUSED: list[tuple[str, str, Any, str]] = [
    ("cpu", "schema_version", 1, "schema version 1"),
    ("cpu", "schema_version", None, "schema version None"),
    ("cpu", "slots", "many", r"manifest\.slots is str 'many', expected int"),
    ("cpu", "slots", True, r"manifest\.slots"),
    ("cpu", "slots", 300, r"manifest\.slots is 300, too few"),
    ("cpu", "slots", 10**30, "64 bits"),
    ("cpu", "slots", 10**18, r"manifest\.slots is 1000000000000000000, expected 1 to"),
    ("cpu", "context", 2**40, r"manifest\.context is 1099511627776, expected 1 to"),
    ("cpu", "weights", "int3", r"manifest\.weights is 'int3'"),
    ("cpu", "widths", [1, 1, 32, 256], r"manifest\.widths is .*, expected ascending"),
    ("cpu", "widths", [1, 256], r"manifest\.widths .* lack prefill_rows or decode_rows"),
    ("cpu", "widths", [1, 32, 256, 512], r"manifest\.slots is .*, too few"),
    ("cpu", "widths", [1, 32, 256], "lacks the graph of a width"),
    ("cpu", "prefill_rows", 16, r"manifest\.decode_rows is 32, more than prefill_rows, 16"),
    ("cpu", "decode_rows", 0, r"manifest\.decode_rows is 0, expected 1 to"),
    ("cpu", "inv_freq", [], r"manifest\.inv_freq has 0 entries, expected 1 to head_dim / 2, 8"),
    ("cpu", "window_inv_freq", [1.0] * 9, r"manifest\.window_inv_freq has 9 entries"),
    ("cpu", "window", 0, r"manifest\.window is 0"),
    ("cpu", "rope_factor", -1.0, r"manifest\.rope_factor is -1"),
    ("cpu", "query_scaling", {"beta": -1.0, "period": 8}, r"query_scaling\.beta is -1"),
    ("cpu", "query_scaling", {"beta": 0.1, "period": 0}, r"query_scaling\.period is 0"),
    ("cpu", "end_token_ids", [128], "the token id 128, outside the vocabulary"),
    ("cpu", "end_token_ids", [True], r"manifest\.end_token_ids\[0\] is bool"),
    ("cpu", "blocks", [], r"manifest\.blocks hold 0 layers, the model has 2"),
    ("cpu", "blocks 0 first_layer", 1, r"manifest\.blocks\[0\] does not start at layer 0"),
    ("cpu", "files", {}, r"manifest\.files lacks"),
    ("cpu", "files tokenizer.json num_bytes", -1, r"num_bytes is -1"),
    *(("cpu", f"files {name}", FILE, "not a plain file name") for name in NOT_PLAIN),
    ("cpu", "files \ud800", FILE, "half of a surrogate pair"),
    ("cpu", "model", {}, r"manifest\.model has no field"),
    ("cpu", "model vocab_size", 10**30, "64 bits"),
    ("cpu", "model vocab_size", 2**30, r"vocab_size is 1073741824, expected"),
    ("cpu", "model vocab_size", 256, "16384 bytes, but 256 rows"),
    ("cpu", "model rms_norm_eps", -1.0, r"rms_norm_eps is -1"),
    ("cpu", "model num_layers", 2**62, r"num_layers is 4611686018427387904"),
    ("cpu", "embedding file", "../secret", "lacks ../secret"),
    ("cpu", "embedding file", "tokenizer.json", "are 16384"),
    ("cpu", "embedding dtype", "float32", "16384 bytes, but 128 rows"),
    ("cpu", "embedding dtype", "Q8_0", "Q8_0 and panels do not go together"),
    ("cpu", "embedding", PANELS, "16384 bytes, but"),
    ("layers", "caches 3 written_by", 4, r"caches\[3\].written_by is 4, expected 0 to 3"),
    ("layers", "caches 3 written_by", -1, r"caches\[3\].written_by is -1, expected 0 to 3"),
    ("layers", "caches 3 written_by", 2, r"caches\[3\] and the layer 2 that writes it differ"),
    ("layers", "caches 3 num_kv_heads", 1, r"caches\[3\] and the layer 1 that writes it differ"),
    ("layers", "caches 2 head_dim", 0, r"caches\[2\].head_dim is 0, expected 1"),
    ("layers", "caches 2 head_dim", "x", r"caches\[2\].head_dim is str 'x'"),
    ("layers", "caches", [CACHE], r"manifest.caches holds 1 layers, the model has 6"),
    ("layers", "per_layer size", 31, r"per_layer.weights has 1179648 bytes, but 9216 rows"),
    ("layers", "per_layer size", 0, "per_layer.size is 0, expected 1"),
    ("layers", "per_layer scale", 0.0, "per_layer.scale is 0.0"),
    ("layers", "per_layer dtype", "Q8_0", "has 1179648 bytes, but 9216 rows of 32 Q8_0"),
    ("layers", "per_layer file", "none", "files lacks none"),
    ("layers", "per_layer file", "manifest.json", "files lacks manifest.json"),
    ("qnn", "qnn caches", [], "caches holds 0 layers"),
    ("qnn", "qnn hidden", [], "hidden holds 0 encodings"),
    ("qnn", "qnn mask", {"dtype": "uint8", "zero_point": 0}, r"qnn\.mask has no field scale"),
    ("qnn", "qnn mask scale", 0.0, r"qnn\.mask\.scale is 0\.0"),
    ("qnn", "qnn mask zero_point", 1 << 16, "a zero point is 65536, expected 0 to 65535"),
    ("qnn", "qnn logits dtype", "int3", "expected one of uint8, uint16"),
    ("qnn", "embedding", {"file": "embedding.bin", "dtype": "float16"}, "dtype is float16 for QNN"),
    ("qnn", "schema_version", 1, "schema version 1"),
]


@pytest.mark.parametrize(("kind", "place", "value", "message"), REFUSED, ids=str)
def test_a_field_that_cannot_be_used_is_named(folders, kind, place, value, message):
    document = changed(document_of(folders, kind), place, value)
    with pytest.raises(BundleError, match=message):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize("name", ["caches", "per_layer"])
def test_what_only_the_cpu_runs_is_refused_for_qnn(folders, name):
    document = document_of(folders, "layers") | {"qnn": document_of(folders, "qnn")["qnn"]}
    others = {"inv_freq": [1.0]} | {it: None for it in ("caches", "per_layer") if it != name}
    with pytest.raises(BundleError, match=f"manifest.{name}: a model that has some does not run"):
        Manifest.from_json(json.dumps(document | others))


def paths_into(document: Any) -> list[list[Any]]:
    """The path to every value in a JSON document."""
    if not isinstance(document, dict | list):
        return [[]]
    items = document.items() if isinstance(document, dict) else enumerate(document)
    return [[]] + [[key, *path] for key, value in items for path in paths_into(value)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_manifest_opens_or_raises_a_bundle_error(folders, data):
    document = document_of(folders, data.draw(st.sampled_from(["cpu", "layers", "qnn"])))
    altered = copy.deepcopy(document)
    *parents, last = data.draw(st.sampled_from([path for path in paths_into(document) if path]))
    place = altered
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON_VALUES)
    with contextlib.suppress(BundleError):
        Manifest.from_json(json.dumps(altered))


def test_a_manifest_survives_its_text_also_behind_a_byte_order_mark(folders):
    manifest = Bundle.open(folders["cpu"]).manifest
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(b"\xef\xbb\xbf" + manifest.to_json().encode()) == manifest


def write_changed(folders: dict[str, Path], kind: str, folder: Path, **fields: Any) -> Path:
    """A folder with the bundle's files, of which the manifest is changed."""
    folder.mkdir()
    for file in folders[kind].iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "manifest.json").unlink()
    text = json.dumps(document_of(folders, kind) | fields)
    (folder / "manifest.json").write_text(text)
    return folder


@pytest.mark.parametrize("opening", [Bundle.open, open_bundle, open_session])
def test_bundles_for_cpu_of_older_versions_have_to_be_exported_again(folders, tmp_path, opening):
    for version in (2, 3, 4, 5, 6):
        bundle = write_changed(folders, "cpu", tmp_path / f"{version}", schema_version=version)
        told = rf"manifest\.json has schema version {version}, this coordgen_rs reads 7: export the"
        with pytest.raises(BundleError, match=told):
            opening(bundle)
    for version in (2, 7):
        gone = {"schema_version": version, "weights": "w8a8"}
        bundle = write_changed(folders, "cpu", tmp_path / f"gone-{version}", **gone)
        told = r"w8a8 weights, .* gone: export it again with --weights int8$"
        with pytest.raises(BundleError, match=told):
            opening(bundle)


def test_bundles_for_qnn_of_older_versions_still_open(folders, tmp_path):
    new = Bundle.open(folders["qnn"])
    for version in (2, 3, 4, 5, 6):
        path = write_changed(folders, "qnn", tmp_path / f"{version}", schema_version=version)
        old = open_bundle(path)
        old.verify()
        assert old.manifest == dataclasses.replace(new.manifest, schema_version=version)


def test_fields_that_came_later_may_be_absent(folders):
    document, optional = (
        document_of(folders, "cpu"),
        ["qnn", "chat", "mtp", "recommended", "caches"],
    )
    for name in optional:
        del document[name]
    assert Manifest.from_json(json.dumps(document)) == Bundle.open(folders["cpu"]).manifest


def test_a_bundle_for_qnn_has_keys_and_values_of_its_own(folders):
    with pytest.raises(BundleError, match="made for qnn, but keys and values in f16 are only for"):
        ProviderChoice().device(Bundle.open(folders["qnn"]), kv_cache="f16")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("caches 3 written_by", 0, "one of them lacks key_"),
        ("per_layer", None, "one of them lacks embedded"),
    ],
)
def test_a_manifest_that_does_not_fit_its_graphs_is_told_by_them(
    folders, tmp_path, place, value, message
):
    document = changed(document_of(folders, "layers"), place, value)
    bundle = write_changed(folders, "layers", tmp_path / "bundle", **document)
    with pytest.raises(BlockLoadError, match=message):
        OrtSession(CpuDevice(Bundle.open(bundle)))
