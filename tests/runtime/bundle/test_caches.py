"""Manifests whose layers have keys and values of different sizes, and embeddings."""

import json

import pytest

from checkpoints import exported
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BlockLoadError, BundleError
from coordgen_rs.runtime.cpu.device import CpuDevice
from coordgen_rs.runtime.ort_session import OrtSession
from gemma4 import write_gemma4


@pytest.fixture
def bundle(tmp_path):
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4")
    exported(checkpoint, tmp_path / "bundle", blocks=2, prefill_rows=32, context=128)
    return tmp_path / "bundle"


def change(bundle, name, index, **fields):
    """Change a field's object, one of a list where there is an index."""
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    (manifest[name] if index is None else manifest[name][index]).update(fields)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "index", "fields", "message"),
    [
        ("caches", 3, {"written_by": 4}, r"caches\[3\].written_by is 4, expected 0 to 3"),
        ("caches", 3, {"written_by": -1}, r"caches\[3\].written_by is -1, expected 0 to 3"),
        ("caches", 3, {"written_by": 0}, None),
        ("caches", 3, {"written_by": 2}, r"caches\[3\] and the layer 2 that writes it differ"),
        ("caches", 3, {"num_kv_heads": 1}, r"caches\[3\] and the layer 1 that writes it differ"),
        ("caches", 2, {"head_dim": 0}, r"caches\[2\].head_dim is 0, expected 1"),
        ("caches", 2, {"head_dim": "x"}, r"caches\[2\].head_dim is str 'x'"),
        ("per_layer", None, {"size": 31}, r"per_layer.weights has 1179648 bytes, but 9216 rows"),
        ("per_layer", None, {"size": 0}, "per_layer.size is 0, expected 1"),
        ("per_layer", None, {"scale": 0.0}, "per_layer.scale is 0.0"),
        ("per_layer", None, {"dtype": "Q8_0"}, "has 1179648 bytes, but 9216 rows of 32 Q8_0"),
        ("per_layer", None, {"file": "none"}, "files lacks none"),
        ("per_layer", None, {"file": "manifest.json"}, "files lacks manifest.json"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_used_is_named(bundle, name, index, fields, message):
    change(bundle, name, index, **fields)
    if message is None:  # the graphs tell
        message = "block_01.onnx does not fit its manifest: one of them lacks key_"
        with pytest.raises(BlockLoadError, match=message):
            OrtSession(CpuDevice(Bundle.open(bundle)))
        return
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle)


def test_fewer_layers_than_the_model_has_are_refused(bundle):
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"caches": manifest["caches"][:5]}))
    with pytest.raises(BundleError, match=r"manifest.caches holds 5 layers, the model has 6"):
        Bundle.open(bundle)


def test_a_bundle_without_its_embedding_of_layers_does_not_fit_its_graphs(bundle):
    path = bundle / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"per_layer": None}))
    with pytest.raises(BlockLoadError, match="one of them lacks embedded"):
        OrtSession(CpuDevice(Bundle.open(bundle)))
