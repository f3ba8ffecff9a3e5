"""`benches/qwen_shape.py`: what it cannot write is said in one line."""

import importlib.util

import pytest

from checkpoints import ROOT


@pytest.fixture(scope="module")
def bench():
    """The script, with a shape of its own that is small."""
    path = ROOT / "benches" / "qwen_shape.py"
    spec = importlib.util.spec_from_file_location("qwen_shape", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SHAPES["small"] = {"family": "qwen2"}
    return module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--soc", "foo"], "soc is 'foo'"),
        (["--blocks", "0"], "blocks is 0"),
        (["--tokenizer", "absent.json"], "absent.json"),
        (["--soc", "8-elite", "--context", "128", "--calibration", "absent.txt"], "absent.txt"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(bench, tmp_path, capsys, options, message):
    assert bench.main([str(tmp_path / "out"), "--shape", "small", "--blocks", "1", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("qwen_shape.py: ")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_bundle_is_written(bench, tmp_path):
    arguments = ["--shape", "small", "--blocks", "1", "--context", "128"]
    assert bench.main([str(tmp_path / "out"), *arguments]) == 0
    assert (tmp_path / "out" / "manifest.json").is_file()
