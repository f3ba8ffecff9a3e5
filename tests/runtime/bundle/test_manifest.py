"""Manifests: what each field may say, and that bundles written before open as before."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assistants import write_pair
from checkpoints import exported, write_checkpoint
from coordgen_rs import Bundle, open_session
from coordgen_rs.bundle.manifest import Manifest
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.errors import BlockLoadError, BundleError
from coordgen_rs.loading.directory import ProviderChoice, open_bundle
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession
from gemma4 import write_gemma4
from json_values import altered, changed, table_rows
from mixtures import write_mixture
from qnn_bundles import SMALL


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles: plain; layers that share caches and have embeddings; a drafter; experts; QNN."""
    path = tmp_path_factory.mktemp("bundles")
    plain = write_checkpoint(path / "plain")
    exported(plain, path / "cpu", weights="int8")
    options = {"blocks": 2, "prefill_rows": 32, "context": 128}
    exported(write_gemma4(path / "gemma4", "gemma4"), path / "layers", **options)
    exported(write_mixture(path / "mixture", "qwen3_moe"), path / "experts", **options)
    target, drafter = write_pair(path / "pair", "gemma4", "random")
    exported(target, path / "assistant", assistant=drafter, context=1024)
    export_qnn(plain, path / "qnn", soc="8-elite", **SMALL)
    return {name: path / name for name in ("cpu", "layers", "experts", "assistant", "qnn")}


def document_of(folders: dict[str, Path], kind: str) -> Any:
    return json.loads((folders[kind] / "manifest.json").read_text())


FILE = {"num_bytes": 1, "sha256": ""}
NOT_PLAIN = (
    *("../secret", "a\0b", "..\\x", "C:x", "/x", "NUL", "a\nb", "a/../b", "x" * 300, "x."),
    "manifest.json",
)
REFUSED = table_rows(Path(__file__).with_name("refused_manifests.jsonl"))
REFUSED += [["cpu", f"files {name}", FILE, "not a plain file name"] for name in NOT_PLAIN]


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


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_altered_manifest_opens_or_raises_a_bundle_error(folders, data):
    document = document_of(folders, data.draw(st.sampled_from(["cpu", "layers", "qnn"])))
    with contextlib.suppress(BundleError):
        Manifest.from_json(json.dumps(altered(data, document)))


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
