"""`benches/peers/quantize.py`: llama.cpp's quantiser on a file of ours."""

from pathlib import Path

import pytest

import quantize
from checkpoints import CHECKPOINTS


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, in F16."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf_files import write_gguf

    path = tmp_path_factory.mktemp("file") / "m.F16.gguf"
    return write_gguf(path, CHECKPOINTS["embedded-draft"], "F16")


@pytest.mark.parametrize("file_type", ["Q4_0", "Q8_0"])
def test_a_file_is_written_in_the_type_that_is_asked_for(
    file: Path, file_type: str, tmp_path: Path
) -> None:
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    import gguf

    out = tmp_path / "out.gguf"
    assert quantize.main([str(file), str(out), "--type", file_type]) == 0
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}
    assert types["blk.0.ffn_up.weight"] == file_type
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_what_cannot_be_quantised_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    file = tmp_path / "m.gguf"
    for said in ("there is no file", "cannot be quantised"):
        assert quantize.main([str(file), str(tmp_path / "out.gguf")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        file.write_bytes(b"weights")
    assert list(tmp_path.iterdir()) == [file]
