"""Exports that were interrupted: what is done is not done again, and nothing old gets in."""

import shutil
from contextlib import suppress
from importlib import metadata

import numpy as np
import pytest

from checkpoints import write_checkpoint
from coordgen_rs.convert.qnn.calibration import Ranges
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.qnn.resume import PreparedGraph, WorkFolder, work_folder
from coordgen_rs.errors import ExportError
from qnn_bundles import SMALL


class StoppedError(Exception):
    """What the tests stop an export by."""


def stop_at(what, seen):
    def on_progress(step, done, total):
        seen.append(step)
        if step == what:
            raise StoppedError

    return on_progress


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkpoint, and a short text: what is computed of it is not what is tested."""
    path = tmp_path_factory.mktemp("work") / "checkpoint"
    write_checkpoint(path, family="qwen2", layers=3)
    (path / "text.txt").write_text("the ferry runs again from wednesday")
    return path


def export(source, out, stop=None, **options):
    """Export, and tell what was done, in order."""
    seen, text = [], source / "text.txt"
    options = {"soc": "8-elite", "blocks": 2, "calibration": text, **SMALL, **options}
    export_qnn(source, out, on_progress=stop_at(stop, seen), **options)
    return seen


def interrupted(source, out, stop, **options):
    """Stop an export, and give what it leaves behind."""
    with pytest.raises(StoppedError):
        export(source, out, stop, **options)
    return out.with_name(f".{out.name}.export")


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """A bundle that was exported at once."""
    out = tmp_path_factory.mktemp("whole") / "bundle"
    assert layers_of(export(source, out)) == ["layer 0", "layer 1", "layer 2"]
    return out


def layers_of(seen):
    return [step for step in seen if step.startswith("layer")]


@pytest.mark.parametrize("stop", ["layer 2", "comparing"])
def test_an_interrupted_export_goes_on_and_gives_the_same_bundle(tmp_path, source, whole, stop):
    work = interrupted(source, tmp_path / "bundle", stop)
    assert work.is_dir()
    seen = layers_of(export(source, tmp_path / "bundle"))
    assert seen == (["layer 2"] if stop == "layer 2" else [])
    assert not work.exists()
    for file in whole.iterdir():
        assert (tmp_path / "bundle" / file.name).read_bytes() == file.read_bytes(), file.name
    assert [it.name for it in tmp_path.iterdir()] == ["bundle"]


ALL = ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize(
    ("stop", "options", "layers"),
    [
        ("layer 2", {"weights": "int4"}, ALL),
        ("layer 2", {"blocks": 1}, ALL),
        ("comparing", {"cache_type": "uint16"}, []),
        ("comparing", {"narrow_rows": 4}, []),
    ],
)
def test_another_option_starts_anew_but_another_type_of_cache_or_rows(
    tmp_path, source, stop, options, layers
):
    interrupted(source, tmp_path / "bundle", stop)
    assert layers_of(export(source, tmp_path / "bundle", **options)) == layers


def test_another_checkpoint_or_text_starts_anew(tmp_path, source):
    interrupted(source, tmp_path / "bundle", "layer 2")
    other = write_checkpoint(tmp_path / "other", family="qwen2", layers=3, seed=7)
    shutil.copy(source / "text.txt", other)
    interrupted(other, tmp_path / "bundle", "head")
    (other / "text.txt").write_text("one of many other texts")
    assert layers_of(export(other, tmp_path / "bundle")) == ALL


def test_other_code_starts_anew(tmp_path, source, monkeypatch):
    code = tmp_path / "code" / "qnn"
    code.mkdir(parents=True)
    (code / "rounding.py").write_text("STEPS = 255\n")
    monkeypatch.setattr("coordgen_rs.convert.qnn.resume._CODE", code.parent)
    interrupted(source, tmp_path / "bundle", "layer 2")
    (code / "rounding.py").write_text("STEPS = 127\n")
    assert layers_of(export(source, tmp_path / "bundle")) == ALL


def test_another_version_starts_anew_also_without_sources(tmp_path, source, monkeypatch):
    monkeypatch.setattr("coordgen_rs.convert.qnn.resume._CODE", tmp_path / "code")
    interrupted(source, tmp_path / "bundle", "layer 2")
    monkeypatch.setattr(metadata, "version", lambda _: "99")
    assert layers_of(export(source, tmp_path / "bundle")) == ALL


@pytest.mark.parametrize("place", range(0, 200, 3))
def test_damaged_work_is_read_or_named_whatever_byte_changes(tmp_path, place):
    work = WorkFolder(tmp_path / "bundle", "0f")
    graph = PreparedGraph(Ranges({"a": (0.0, 1.0)}), {}, {"c": np.ones(3, np.float32)}, [])
    work.save("layer_000", graph, np.ones((5, 4), np.float32))
    for name, read in (("npz", work.load), ("states.npy", work.states)):
        file = work.path / f"layer_000.{name}"
        content = file.read_bytes()
        for near_end in (False, True):
            index = -1 - place % 64 if near_end else place % len(content)
            changed = bytearray(content)
            changed[index] ^= 0x0C
            file.write_bytes(changed)
            with suppress(ExportError):
                read("layer_000")


def test_another_export_to_the_same_path_is_refused_while_one_goes_on(tmp_path, source):
    with work_folder(tmp_path / "bundle", "0f") as work:
        work.save("layer_000", PreparedGraph(Ranges({}), {}, {}, []))
        with pytest.raises(ExportError, match="bundle is being exported by another process: wait"):
            export(source, tmp_path / "bundle")
        assert sorted(it.name for it in work.path.iterdir()) == ["key", "layer_000.npz"]
        assert (work.path / "key").read_text() == "0f"


@pytest.mark.parametrize("name", ["layer_001.npz", "layer_001.states.npy"])
@pytest.mark.parametrize("content", [b"half", b""])
def test_damaged_work_is_named(tmp_path, source, name, content):
    work = interrupted(source, tmp_path / "bundle", "layer 2")
    (work / name).write_bytes(content)
    with pytest.raises(ExportError, match=rf"{name} is damaged: remove .*\.bundle\.export"):
        export(source, tmp_path / "bundle")


def test_a_damaged_key_starts_anew(tmp_path):
    work = tmp_path / ".bundle.export"
    work.mkdir()
    (work / "key").write_bytes(b"\xff\x00")
    (work / "layer_000.npz").write_bytes(b"half")
    assert WorkFolder(tmp_path / "bundle", "0f").num_found == 0
    assert (work / "key").read_text() == "0f"


@pytest.mark.parametrize("name", ["notes.txt", "layer_000.npz/inside"])
def test_what_no_export_wrote_is_kept(tmp_path, name):
    mine = tmp_path / ".bundle.export" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(ExportError, match=r"holds .*, which no export wrote: move it elsewhere"):
        WorkFolder(tmp_path / "bundle", "0f")
    assert mine.read_text() == "mine"


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def written_in_part(stream, states):
        raise OSError("1024 requested and 512 written")

    monkeypatch.setattr("coordgen_rs.convert.qnn.resume.np.save", written_in_part)
    work = WorkFolder(tmp_path / "bundle", "0f")
    graph = PreparedGraph(Ranges({}), {}, {}, [])
    with pytest.raises(ExportError, match=r"\.bundle\.export cannot be written: no space is left"):
        work.save("layer_000", graph, np.zeros((1, 1), np.float32))
