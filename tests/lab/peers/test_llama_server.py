"""llama.cpp's server as a peer, with a fake one: what is asked, read and told, and how it ends."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fake_llama_server
from contest import Answer, ContestantFailedError
from live import llama_bench, llama_server
from live.llama_build import ModelFileError, NotBuiltError, ProgramError, parse_facts
from live.process import EngineProcess

PROMPT = np.arange(7, dtype=np.uint32)


@pytest.fixture
def programs(tmp_path):
    """A folder with a fake llama-server."""
    return fake_llama_server.installed(tmp_path / "bin")


@pytest.fixture
def options(programs, tmp_path):
    """Those of a server whose model file holds a script."""

    def of(kind="plain", **script):
        model = tmp_path / "model.gguf"
        model.write_text(json.dumps(script))
        return {
            **{"gguf": model, "kind": kind, "threads": 1, "context": 64, "stop_at_end": False},
            **{"programs": programs, "log": tmp_path / "server.log"},
        }

    return of


def process_of(log):
    return int(re.findall(r"process (\d+)", log.read_text())[-1])


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"  # it has ended, even if nobody has asked how


@pytest.fixture
def opened(options):
    """Opens an engine by what `options` takes and more; its servers are closed afterwards."""
    engines = []

    def open_(more=None, **script):
        engines.append(llama_server.open_engine(**options(**script), **more or {}))
        return engines[-1]

    yield open_
    for engine in engines:
        for contestant in engine.contestants.values():
            contestant.server.close()


def test_times_and_tokens_are_those_of_the_server(opened):
    opened = opened(timings={"draft_n": 4, "draft_n_accepted": 2})
    server = opened.contestants["plain"]
    server.begin()
    assert server.answer(PROMPT, 5) == Answer([0, 1, 2, 3, 4], 4, 2, 0.5, 2.0)
    assert opened.facts["version"] == "0.5.0-dev (build 1, commit 0c1e570)"
    assert opened.facts["system_info"] == fake_llama_server.SYSTEM_INFO
    assert opened.facts["about"].startswith("llama.cpp 0.5.0-dev (build 1, commit 0c1e570), system")


def test_a_prompt_of_another_server_counts_as_one_step_more(opened, tmp_path):
    other = {"slots": tmp_path, "name": "server, plain"}
    opened = opened(other, timings={"prompt_n": 1, "prompt_ms": 100.0})
    answer = opened.contestants["server, plain"].answer(PROMPT, 3)
    assert answer == Answer([0, 1, 2], 3, 3, 0.0, pytest.approx(2.1))


@pytest.mark.parametrize("kind", ["plain", "ngram-mod"])
def test_a_round_begins_with_a_new_server_where_earlier_requests_are_kept(kind, options, tmp_path):
    server = llama_server.open_engine(**options(kind)).contestants[kind]
    first = process_of(tmp_path / "server.log")
    server.begin()
    second = process_of(tmp_path / "server.log")
    server.server.close()
    assert (first != second) is (kind in llama_server.REMEMBERING)
    assert not is_running(first)
    assert not is_running(second)


@pytest.mark.parametrize(
    ("tokens", "timings", "told"),
    [
        ([1, 2, 3], {"prompt_n": 6}, "read 6 tokens of the prompt, not 7"),
        ([1, 2, 3], {"predicted_n": 2}, "gave 3 tokens and timed 2, not 3"),
        ([1, 2], {"predicted_n": 2}, "gave 2 tokens and timed 2, not 3"),
    ],
)
def test_other_numbers_of_tokens_are_no_figures(tokens, timings, told):
    said = {"tokens": tokens, "timings": {"prompt_n": 7, "predicted_n": 3} | timings}
    with pytest.raises(ProgramError, match=told):
        llama_server.read_answer(said, 7, 3)


def test_what_is_not_built_is_named_with_its_remedy(options, tmp_path):
    for open_engine, more in (
        (llama_server.open_engine, options()),
        (llama_bench.open_engine, {"gguf": tmp_path / "model.gguf", "threads": 1}),
    ):
        with pytest.raises(NotBuiltError, match=r"no .*/nowhere/llama-.*: `make peers` builds it"):
            open_engine(**more | {"programs": tmp_path / "nowhere"})


def test_an_absent_model_is_named(options, tmp_path):
    with pytest.raises(ModelFileError, match=r"no model file .*/absent\.gguf"):
        llama_server.open_engine(**options() | {"gguf": tmp_path / "absent.gguf"})


@pytest.mark.parametrize("ends", ["at start", "at an answer"])
def test_a_server_that_ends_is_told_with_its_last_lines(ends, options, tmp_path):
    why = {
        "at start": r"llama-server ended with 1: .*error loading model; .*exiting due to model",
        "at an answer": r"llama-server ended with 5: .*; out of memory \(all of it: .*server\.log",
    }[ends]
    with pytest.raises(ContestantFailedError, match=why):
        EngineProcess(llama_server.open_engine, options(ends=ends), tmp_path / "log").contestant(
            "plain", "plain"
        ).answer(PROMPT, 2)


def test_what_a_server_refuses_is_told(opened):
    server = opened(refuses="too long").contestants["plain"]
    with pytest.raises(ProgramError, match=r"refuses /completion: .*too long"):
        server.answer(PROMPT, 2)


@pytest.mark.parametrize("end", ["close", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_who_started_it(end, options, tmp_path):
    engine = EngineProcess(llama_server.open_engine, options(), tmp_path / "log")
    server = process_of(tmp_path / "server.log")
    assert is_running(server)
    if isinstance(end, int):
        os.kill(engine._process.pid, end)
    engine.close()
    while is_running(server):
        time.sleep(0.01)


def test_a_version_and_system_info_are_needed():
    with pytest.raises(ProgramError, match="does not tell its version"):
        parse_facts("llama", fake_llama_server.SYSTEM_INFO)
    with pytest.raises(ProgramError, match="does not tell its system_info"):
        parse_facts(fake_llama_server.VERSION, "listening")


def test_llama_bench_reads_as_many_tokens_as_ours(tmp_path):
    program = tmp_path / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nat = sys.argv.index('--n-prompt') + 1\n"
        "sys.exit('no memory') if sys.argv[at] == '8' else None\n"
        "print('[{\"avg_ns\": %d}]' % (int(sys.argv[at]) * 1000000000))\n"
    )
    program.chmod(0o755)
    (tmp_path / "m.gguf").write_bytes(b"weights")
    opened = llama_bench.open_engine(tmp_path / "m.gguf", 1, tmp_path)
    bench = opened.contestants["bench"]
    bench.begin()
    assert bench.answer(PROMPT, 1) == Answer([], 0, 0, 6.0, 0.0)
    with pytest.raises(ProgramError, match="llama-bench ended with 1: no memory"):
        bench.answer(np.arange(9, dtype=np.uint32), 1)
