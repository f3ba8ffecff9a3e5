"""Files of experts: mapped, not copied, and refused by name where they do not fit the manifest."""

import json

import numpy as np
import pytest

from checkpoints import exported
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BlockLoadError, BundleDamagedError, BundleError
from coordgen_rs.runtime.cpu.device import CpuDevice
from coordgen_rs.runtime.experts import ExpertFiles
from coordgen_rs.runtime.ort_session import OrtSession
from mixtures import write_mixture


@pytest.fixture
def bundle(tmp_path):
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_moe")
    return exported(checkpoint, tmp_path / "bundle", blocks=2, prefill_rows=32, context=128)


def test_a_layers_experts_are_the_files_own_memory(bundle):
    """What is written to the file afterwards is seen through the mapping."""
    files, region = ExpertFiles(bundle), bundle.manifest.experts.layers[1]
    assert region.file == "block_01.experts"
    assert files.inputs(1) == {}
    ((name, value),) = files.inputs(region.layer).items()
    assert (name, value.shape()) == ("experts_2", [region.num_bytes])
    with bundle.file(region.file).open("r+b") as stream:
        stream.seek(region.offset + 5)
        stream.write(b"\x5a")
    assert value.numpy()[5] == 0x5A


def test_experts_begin_at_pages_and_take_what_the_manifest_says(bundle):
    experts = bundle.manifest.experts
    for region in experts.layers:
        stride = experts.stride(region, 64)
        assert (region.offset % 4096, stride % 4096) == (0, 0)
        assert region.num_bytes == 8 * stride
        assert bundle.file(region.file).stat().st_size >= region.offset + region.num_bytes


def test_a_graph_of_other_experts_is_refused(bundle):
    region = bundle.manifest.experts.layers[0]
    object.__setattr__(region, "num_bytes", region.num_bytes + 4096)
    with pytest.raises(BlockLoadError, match="does not fit its manifest: experts_0 is"):
        OrtSession(CpuDevice(bundle))


def test_a_file_that_became_shorter_or_went_is_named(bundle):
    region = bundle.manifest.experts.layers[-1]
    path = bundle.file(region.file)
    with path.open("r+b") as stream:
        stream.truncate(region.offset + 4096)
    with pytest.raises(BundleDamagedError, match=r"block_01.experts is damaged: it ends inside"):
        ExpertFiles(bundle).inputs(region.layer)
    with pytest.raises(BundleDamagedError, match=r"block_01.experts is damaged: .* expected"):
        Bundle.open(bundle.path)
    path.unlink()
    with pytest.raises(BundleDamagedError, match=r"block_01.experts cannot be mapped"):
        ExpertFiles(bundle).inputs(region.layer)


def test_experts_are_among_what_is_verified(bundle):
    path = bundle.file("block_00.experts")
    content = np.fromfile(path, np.uint8)
    content[100] ^= 1
    content.tofile(path)
    with pytest.raises(BundleDamagedError, match=r"block_00.experts is damaged: its SHA-256"):
        Bundle.open(bundle.path).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num": 9}, "experts of layer 0 are .* expected"),
        ({"num": 0}, "experts.num is 0"),
        ({"num": 1 << 20}, "experts.num is 1048576, expected 1 to 4096"),
        ({"chosen": 9}, "experts.chosen is 9, expected 1 to 8"),
        ({"size": 41 << 4}, "experts of layer 0 are"),
        ({"layers": []}, "experts.layers are"),
        ({"layers.0.layer": 2}, "experts.layers are"),
        ({"layers.2.layer": 4}, "experts.layers are"),
        ({"layers.0.offset": 64}, "at 64 of block_00.experts, .* multiple of 4096"),
        ({"layers.0.offset": -4096}, "at -4096 of block_00.experts"),
        ({"layers.0.offset": 1 << 40}, "block_00.experts, which has"),
        ({"layers.0.num_bytes": 4096}, "are 4096 bytes"),
        ({"layers.0.file": "gone"}, "manifest.files lacks gone"),
        ({"layers.0.types": ["F32", "F32"]}, "have 2 types, expected 3"),
        ({"layers.0.types": ["F32", "F32", "F64"]}, "types"),
        ({"layers.0.types": ["F32", "F16", "F32"]}, "experts of layer 0 are"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_is_refused_by_name(bundle, change, message):
    path = bundle.path / "manifest.json"
    document = json.loads(path.read_text())
    ((name, value),) = change.items()
    place, *steps = document["experts"], *name.split(".")
    for step in steps[:-1]:
        place = place[int(step) if isinstance(place, list) else step]
    place[steps[-1]] = value
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle.path)
