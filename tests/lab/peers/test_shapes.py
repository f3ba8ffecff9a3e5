"""`benches/peers/shapes.py`: files of random weights, and what is said of times."""

import json

import pytest

import quantize
import shape_file
import shapes
from contest import ContestantFailedError
from shape_file import TYPES, matrices, write_shape
from support.tables import cell

SMALL = {
    "family": "qwen2",
    "hidden": 256,
    "ffn": 768,
    "layers": 9,
    "heads": 4,
    "kv_heads": 2,
    "vocab": 512,
    "max_positions": 1024,
}
HYBRIDS = {
    "qwen35": SMALL | {"family": "qwen35", "layers": 8, "head_dim": 64},
    "lfm2": SMALL | {"family": "lfm2", "layers": 16, "head_dim": 64},
}
NARROW = SMALL | {"hidden": 96}
"""Its rows have no blocks of 256 weights, but those of its second half of the FFN."""


def types_of(path):
    import gguf

    found = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    return {name: of for name, of in found.items() if of != "F32"}


@pytest.mark.parametrize("file_type", TYPES)
@pytest.mark.parametrize("shape", [SMALL, NARROW], ids=["small", "narrow"])
def test_matrices_have_the_types_that_llama_cpp_gives_them(shape, file_type, tmp_path):
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    from cyllama.llama import llama_cpp

    for name in ("Q8_0", file_type):
        write_shape(tmp_path / name, shape, name)
    quantize.quantize(tmp_path / "Q8_0", tmp_path / "theirs", file_type)
    assert types_of(tmp_path / file_type) == types_of(tmp_path / "theirs")
    model = llama_cpp.LlamaModel(str(tmp_path / file_type), llama_cpp.LlamaModelParams())
    assert model.get_vocab().n_vocab == shape["vocab"]
    assert sum(of.num_bytes for of in matrices(shape, file_type)) < (
        (tmp_path / file_type).stat().st_size
    )


@pytest.mark.parametrize("family", HYBRIDS)
def test_files_with_recurrent_layers_are_opened_by_both(family, tmp_path):
    pytest.importorskip("cyllama", reason="cyllama is not installed")
    from cyllama.llama import llama_cpp

    from coordgen_rs.convert.families.checkpoint import open_checkpoint

    path, shape = tmp_path / "hybrid.gguf", HYBRIDS[family]
    write_shape(path, shape, "Q4_0")
    model = llama_cpp.LlamaModel(str(path), llama_cpp.LlamaModelParams())
    assert model.get_vocab().n_vocab == shape["vocab"]
    config = open_checkpoint(path).config
    assert len(config.recurrent_layers) == {"qwen35": 6, "lfm2": 10}[family]


def test_a_file_is_written_by_a_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gguf", reason="gguf is not installed")
    from coordgen_rs.convert.families.checkpoint import open_checkpoint

    mixture = SMALL | {"family": "qwen3moe", "head_dim": 64}
    mixture |= {"experts": 4, "chosen": 2, "expert_ffn": 128}
    monkeypatch.setitem(shape_file.SHAPES, "small", mixture)
    path = tmp_path / "mixture.gguf"
    assert shape_file.main(["small", str(path), "--layers", "2"]) == 0
    assert open_checkpoint(path).config.num_layers == 2
    assert shape_file.main(["small", str(tmp_path / "absent" / "m.gguf"), "--layers", "2"]) == 2
    assert "absent" in capsys.readouterr().err


@pytest.fixture
def alone(monkeypatch):
    """Without cargo and without llama.cpp's build."""
    limits = {"read_gb_s": 10.0, "integers": "vpdpbusd", "integers_gmac_s": 200.0}
    monkeypatch.setattr(
        shapes,
        "peaks",
        lambda threads: [{"threads": n, **limits, "fma_gmac_s": 50.0} for n in threads],
    )
    theirs = {"prompt_tokens_s": 100.0, "answer_tokens_s": 10.0, "about": "llama.cpp, made up"}
    monkeypatch.setattr(shapes, "program", lambda programs, name: programs / name)
    monkeypatch.setattr(shapes, "llama_bench", lambda gguf, threads, programs: theirs)
    monkeypatch.setitem(shapes.SHAPES, "qwen2.5-0.5b", SMALL | {"layers": 2})


def test_a_file_is_measured_and_removed(alone, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nowhere"))  # is set, and set back
    work, figures = tmp_path / "work", tmp_path / "figures.json"
    asked = ["qwen2.5-0.5b", "--types", "Q4_K_M", "--threads", "1"]
    asked += ["--seconds", "0.1", "--rounds", "2"]
    assert shapes.main([*asked, "--work", str(work), "--json", str(figures)]) == 0
    assert list(work.iterdir()) == []
    assert not (tmp_path / "nowhere").exists()
    (of_file,) = json.loads(figures.read_text())["files"]
    (run,) = of_file["runs"]
    assert len(run["rounds"]) == 2
    for of_round in run["rounds"]:
        assert {"1 row", "16 rows", "prompt of 512"} <= {*of_round["ours_ms"]}
        assert all(ms > 0 for ms in of_round["ours_ms"].values())
    said = capsys.readouterr().out
    assert "| qwen2.5-0.5b Q4_K_M | 1       | 16 rows" in said
    assert "Peer: llama.cpp, made up" in said


def cells(columns: dict[str, str], row: dict[str, object]) -> list[str]:
    return [cell(written, row) for written in columns.values()]


def test_what_is_reached_stands_beside_the_limits() -> None:
    figures = {"name": "m", "num_bytes": 5 * 10**6, "num_weights": 10**7, "head_weights": 10**6}
    theirs = {"prompt_tokens_s": 1000.0, "answer_tokens_s": 500.0}
    times = ((1.0, 256.0), (1.25, 256.0), (0.8, 512.0))
    rounds = [
        {"ours_ms": {"1 row": row, "16 rows": 2.0, "prompt of 512": p}, "llama.cpp": theirs}
        for row, p in times
    ]
    run = {"threads": 1, "rounds": rounds}
    peak = {"read_gb_s": 10.0, "integers_gmac_s": 200.0}
    lines = [cells(shapes.STEPS, line) for line in shapes.lines(figures, run, peak)]
    assert lines == [
        ["m", "1", "1 row", "1.0", "x1.00", "5.0", "50 %", "10", "5 %"],
        ["m", "1", "16 rows", "2.0", "x2.00", "2.5", "25 %", "80", "40 %"],
        ["m", "1", "prompt of 512", "256.0", "-", "-", "-", "18", "9 %"],
    ]
    assert cells(shapes.BESIDE, shapes.beside(figures, run)) == [
        *("m", "1", "1000.0", "500.0", "x2.00", "x1.60..x2.50"),
        *("2000", "1000", "x2.00", "x1.00..x2.00"),
    ]


def test_llama_bench_is_asked_once_for_both(tmp_path):
    common = {"build_commit": "0c1e570", "cpu_info": "made up"}
    tests = [
        {"n_prompt": 512, "n_gen": 0, "avg_ts": 800.5, **common},
        {"n_prompt": 0, "n_gen": 64, "avg_ts": 90.5, **common},
    ]
    bench, gguf = tmp_path / "llama-bench", tmp_path / "m.gguf"
    bench.write_text(f"#!/bin/sh\necho $@ > {tmp_path}/asked\necho '{json.dumps(tests)}'\n")
    bench.chmod(0o755)
    gguf.write_bytes(b"weights")
    assert shapes.llama_bench(gguf, 2, tmp_path) == {
        "prompt_tokens_s": 800.5,
        "answer_tokens_s": 90.5,
        "about": "llama.cpp commit 0c1e570, llama-bench on made up",
    }
    asked = (tmp_path / "asked").read_text()
    assert f"--model {gguf} --threads 2 --n-prompt 512 --n-gen 64" in asked
    bench.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    with pytest.raises(ContestantFailedError, match="ended with 3: no such model"):
        shapes.llama_bench(gguf, 2, tmp_path)


def test_what_is_not_built_is_one_line(tmp_path, capsys):
    assert shapes.main(["qwen2.5-3b", "--llama-cpp", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`make peers` builds it" in line
