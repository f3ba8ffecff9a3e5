"""Benchmarks that have no folder of their own: what they count, write, refuse and print."""

import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import experts
import quantize
from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs.runtime.session import StepCost
from support.oracles import Recorded
from support.script import run_script
from width_lists import compare, cost_at, lists_of

COSTS = {1: StepCost(10.0, 0.0), 2: StepCost(11.0, 0.5), 6: StepCost(19.0, 2.5)}


def test_what_lies_between_measured_widths_is_on_a_line_between_them():
    assert [cost_at(width, COSTS) for width in COSTS] == list(COSTS.values())
    assert cost_at(3, COSTS) == StepCost(13.0, 1.0)


def test_the_lists_begin_with_the_bundles_and_reach_as_far():
    lists = lists_of([1, 2, 3, 5, 8])
    assert list(lists.values()) == [
        [1, 2, 3, 5, 8],
        [1, 2, 8],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [1, 2, 4, 8],
    ]


def test_finer_lists_are_faster_where_rows_beyond_a_copy_are_dear():
    random = np.random.default_rng(0)
    records = []
    for _ in range(30):  # copies of four tokens: a step of four would be best, or one of five
        pieces = random.permutation(400).astype(np.uint32).reshape(-1, 4)
        order = random.permutation(len(pieces))[:12]
        records.append(Recorded(pieces.ravel(), pieces[order].ravel()))
    costs = {width: StepCost(10.0 + 2 * width, 0.0) for width in (1, 2, 8)}
    rows = {row["list"]: row for row in compare(costs, {"copies": records}, 400, 900)}
    assert rows["the bundle's"]["over_own"] == 1
    finer = rows["every width to 8"]
    assert finer["over_own"] > 1.02
    assert finer["over_plain"] == pytest.approx(
        finer["over_own"] * rows["the bundle's"]["over_plain"]
    )


def test_the_command_prints_every_list(bundle_of, data):
    command = [sys.executable, "benches/width_lists.py", bundle_of("embedded", "int8"), "--json"]
    command += ["--data", data, "--limit", 1, "--max-new-tokens", 4]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True)
    rows = json.loads(done.stdout)
    assert len(rows) == 4
    assert rows[0]["over_own"] == 1


def test_each_width_and_a_prompt_of_each_bundle_have_a_line(bundle_of):
    bundles = [bundle_of("embedded", weights) for weights in ("fp32", "int8")]
    options = ["--threads", "1", "--prompt", "64", "--seconds", "0.1", "--json"]
    command = [sys.executable, ROOT / "benches" / "widths.py", *bundles, *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    for name in (bundle.name for bundle in bundles):
        of_bundle = [row for row in rows if row["bundle"] == name]
        assert {"1 row", "16 rows", "prompt of 64"} <= {row["what"] for row in of_bundle}
        assert all(0 < row["best_ms"] <= row["median_ms"] for row in of_bundle)
    assert all(row["median_ratio"] == 1 for row in rows if row["bundle"] == bundles[0].name)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A small model, in F16."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf_files import write_gguf

    path = tmp_path_factory.mktemp("file") / "m.F16.gguf"
    return write_gguf(path, CHECKPOINTS["embedded-draft"], "F16")


@pytest.mark.parametrize("file_type", ["Q4_0", "Q8_0"])
def test_a_file_is_written_in_the_type_that_is_asked_for(file, file_type, tmp_path):
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    import gguf

    out = tmp_path / "out.gguf"
    assert quantize.main([str(file), str(out), "--type", file_type]) == 0
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors}
    assert types["blk.0.ffn_up.weight"] == file_type
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_what_cannot_be_quantised_is_one_line_and_leaves_nothing(tmp_path, capsys):
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    file = tmp_path / "m.gguf"
    for said in ("there is no file", "cannot be quantised"):
        assert quantize.main([str(file), str(tmp_path / "out.gguf")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        file.write_bytes(b"weights")
    assert list(tmp_path.iterdir()) == [file]


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


SCRIPTS = [
    path
    for path in sorted((ROOT / "benches").rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_benchmark_is_run_so_that_it_can_be_interrupted(path):
    assert re.search(r'if __name__ == "__main__":\n    run_script\(main\)\n', path.read_text())


def test_an_interrupted_benchmark_says_so_in_one_line(capsys):
    def main():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == 130
    assert re.fullmatch(r".*: interrupted\n", capsys.readouterr().err)


@pytest.mark.parametrize("code", [None, 0, 3])
def test_a_benchmark_ends_with_what_its_main_returns(code):
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: code)
    assert ended.value.code == code


def test_reads_ahead_that_were_not_used_do_not_count_for_the_disk():
    told = {"read_bytes": 5 * 10**9, "wasted_bytes": 3 * 10**9}
    run = {"new_tokens": 64, "decoding": told}
    assert experts.allowed_tokens_s(run, 10**9) == pytest.approx(32)
