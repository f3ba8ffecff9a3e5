"""A random model of every family becomes the graphs and the weights that it became before.

`COORDGEN_RECORD=1` writes the recordings anew.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the extra export is not installed")

import onnx

from coordgen_rs.convert import export_checkpoint
from miniatures import MINIATURES, NOT_IN_GGUF, write_miniature, write_miniature_gguf

RECORDED = Path(__file__).parent / "recorded" / "conversions.json"
IS_RECORDING = bool(os.environ.get("COORDGEN_RECORD"))
WEIGHTS = ("fp32", "int8")
"""A search of 4 bits sums floats as NumPy does on each processor."""


def contents(path):
    """What is stored in a file; of a graph without who wrote it."""
    if path.suffix != ".onnx":
        return path.read_bytes()
    graph = onnx.load(path, load_external_data=False)
    for told in ("ir_version", "producer_name", "producer_version"):
        graph.ClearField(told)
    return graph.SerializeToString(deterministic=True)


def checksums(bundle):
    """Of each file of graphs and weights."""
    files = {path.name: path for path in sorted(bundle.iterdir()) if path.suffix != ".json"}
    return {name: hashlib.sha256(contents(path)).hexdigest()[:16] for name, path in files.items()}


@pytest.mark.parametrize("family", MINIATURES)
def test_a_family_is_stored_as_it_was(tmp_path, family):
    checkpoint = write_miniature(tmp_path / "checkpoint", family)
    stored = {}
    for weights in WEIGHTS:
        export_checkpoint(checkpoint, tmp_path / weights, weights=weights, blocks=2)
        stored[weights] = checksums(tmp_path / weights)
    if family not in NOT_IN_GGUF:
        file = write_miniature_gguf(tmp_path / "model.gguf", family, checkpoint)
        export_checkpoint(file, tmp_path / "keep", weights="keep")
        stored["GGUF keep"] = checksums(tmp_path / "keep")
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if IS_RECORDING:
        recorded[family] = stored
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    assert stored == recorded[family]
