"""Exports that were interrupted: what is done is not done again, and nothing old gets in."""

import pytest

from checkpoints import write_checkpoint
from coordgen_rs.errors import ExportError
from coordgen_rs.export.qnn.exporter import export_qnn
from qnn_bundles import SMALL


class StoppedError(Exception):
    """What the tests stop an export by."""


def stop_at(what, seen):
    def on_progress(step, done, total):
        seen.append(step)
        if step == what:
            raise StoppedError

    return on_progress


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", family="qwen2", layers=3)


def export(source, out, stop=None, **options):
    """What was done, in order."""
    seen = []
    options = {"soc": "8-elite", "blocks": 2, **SMALL, **options}
    export_qnn(source, out, on_progress=stop_at(stop, seen), **options)
    return seen


def interrupted(source, out, stop, **options):
    with pytest.raises(StoppedError):
        export(source, out, stop, **options)
    return out.with_name(f".{out.name}.export")


def layers_of(seen):
    return [step for step in seen if step.startswith("layer")]


@pytest.mark.parametrize("stop", ["layer 2", "comparing"])
def test_an_interrupted_export_goes_on_and_gives_the_same_bundle(tmp_path, source, stop):
    work = interrupted(source, tmp_path / "bundle", stop)
    assert work.is_dir()
    seen = layers_of(export(source, tmp_path / "bundle"))
    assert seen == (["layer 2"] if stop == "layer 2" else [])
    assert not work.exists()
    assert layers_of(export(source, tmp_path / "whole")) == ["layer 0", "layer 1", "layer 2"]
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "bundle" / file.name).read_bytes() == file.read_bytes(), file.name
    assert {it.name for it in tmp_path.iterdir()} == {"bundle", "checkpoint", "whole"}


@pytest.mark.parametrize("options", [{"weights": "int4"}, {"blocks": 1}])
def test_another_option_starts_anew(tmp_path, source, options):
    interrupted(source, tmp_path / "bundle", "layer 2")
    seen = export(source, tmp_path / "bundle", **options)
    assert layers_of(seen) == ["layer 0", "layer 1", "layer 2"]


def test_another_checkpoint_or_text_starts_anew(tmp_path, source):
    interrupted(source, tmp_path / "bundle", "layer 2")
    other = write_checkpoint(tmp_path / "other", family="qwen2", layers=3, seed=7)
    interrupted(other, tmp_path / "bundle", "head")
    text = tmp_path / "text.txt"
    text.write_text("one of many other texts")
    seen = export(other, tmp_path / "bundle", calibration=text)
    assert layers_of(seen) == ["layer 0", "layer 1", "layer 2"]


def test_a_cache_of_another_type_goes_on_from_the_same_layers(tmp_path, source):
    interrupted(source, tmp_path / "bundle", "comparing")
    assert layers_of(export(source, tmp_path / "bundle", cache_type="uint16")) == []


def test_damaged_work_is_named(tmp_path, source):
    work = interrupted(source, tmp_path / "bundle", "layer 2")
    (work / "layer_001.npz").write_bytes(b"half")
    with pytest.raises(ExportError, match=r"layer_001\.npz is damaged: remove .*\.bundle\.export"):
        export(source, tmp_path / "bundle")
