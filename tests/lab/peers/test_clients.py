"""The bench of many clients: what is asked, counted and told, without a GGUF file."""

import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra server is not installed")

import clients
import fake_llama_server
from contest import ContestantFailedError
from coordgen_rs.loading.directory import open_bundle
from live.llama_build import ProgramError
from over_http.latency import Latency, latency_of
from over_http.load import Load, answered, figures_of, loaded, num_different
from over_http.report import draw, load_rows, num_unlike
from over_http.servers import LlamaServer, OurServer, Row
from over_http.stream import Reply

PROMPTS = [np.full(4, number, np.uint32) for number in range(5)]


def reply(tokens, first_s, whole_s, steps=2):
    arrivals = [(10 + first_s, 1), (10 + whole_s, len(tokens) - 1)]
    return Reply(tokens, arrivals, 10.0, len(tokens), steps, 4)


class Scripted:
    """A server that says a prompt's first token again and again, and notes what it is asked.

    Attributes:
        asked: First tokens, keys, and whether what was read may be reused.
        most: Most requests that it had at a time.
    """

    def __init__(self, engine="coordgen", fails_at=None):
        self.asked: list[tuple[int, object, bool]] = []
        self.most, self._running, self._lock = 0, 0, threading.Lock()
        self._fails_at, self._begun = fails_at, 0
        self.row = Row(f"{engine} plain", engine, False, self._ask, self._begin)

    def _begin(self):
        self._begun += 1
        return self._begun

    def _ask(self, prompt, max_new_tokens, key, is_cached, until):
        token, begun = int(prompt[0]), time.perf_counter()
        with self._lock:
            self.asked.append((token, key, is_cached))
            self._running += 1
            self.most = max(self.most, self._running)
        if token == self._fails_at:
            raise ContestantFailedError("it is broken")
        said = Reply([], [], begun, max_new_tokens, max_new_tokens, len(prompt))
        for _ in range(max_new_tokens):
            time.sleep(0.005)  # a stream of many tokens lasts ten seconds, if nobody ends it
            said.tokens.append(token)
            said.arrivals.append((time.perf_counter(), 1))
            if until is not None and until(said):
                break
        with self._lock:
            self._running -= 1
        return said


def test_figures_count_tokens_of_all_clients_by_the_time_of_all():
    whole = [reply([1, 2, 3, 4], 1.0, 2.0), reply([5, 6, 7, 8], 3.0, 4.0)]
    alone = [reply([1, 2, 3, 4], 0.1, 0.5), reply([5, 6, 7, 8], 0.1, 0.5)]
    figures = figures_of(Load(4.0, whole, 0.5, alone))
    assert figures.whole_tokens_per_s == 2
    assert figures.decode_tokens_per_s == 16
    assert figures.tokens_per_step == 2
    assert figures.first_p50_s == pytest.approx(2)
    assert figures.first_p95_s == pytest.approx(2.9)
    assert figures.answer_p50_s == pytest.approx(3)


def test_answers_that_differ_are_counted_whole_and_alone():
    one, other = reply([1, 2], 1, 2), reply([1, 3], 1, 2)
    expected = [[1, 2], [1, 2]]
    assert num_different([Load(1, [one, one], 1, [one, one])], expected) == 0
    assert num_different([Load(1, [one, other], 1, [other, other])] * 2, expected) == 6


def test_each_prompt_is_asked_once_whole_and_once_when_it_was_read():
    server = Scripted()
    load = loaded(server.row, PROMPTS, 2, 3)
    assert [said.tokens for said in load.whole] == [[number] * 3 for number in range(5)]
    assert [said.tokens for said in load.alone] == [[number] * 3 for number in range(5)]
    assert 1 <= server.most <= 2
    whole, alone = server.asked[:5], server.asked[5:]
    assert {(key, is_cached) for _, key, is_cached in whole} == {(1, False)}
    assert {(key, is_cached) for _, key, is_cached in alone} == {(2, True)}
    assert [token for token, *_ in alone[:2]] == [0, 1]  # read before either is timed
    assert sorted(token for token, *_ in alone) == sorted([*range(5)] * 2)


def test_the_first_failure_is_that_of_all():
    with pytest.raises(ContestantFailedError, match="it is broken"):
        answered(Scripted(fails_at=2).row, PROMPTS, 3, 2, 0)


def test_answers_of_ours_are_compared_with_those_without_drafts():
    plain, drafted = Scripted().row, Scripted().row
    drafted.name, drafted.drafts = "coordgen auto", True
    one, other = reply([1, 2], 1, 2), reply([1, 3], 1, 2)
    loads = {
        plain.name: {1: [Load(1, [one], 1, [one])]},
        drafted.name: {1: [Load(1, [other], 1, [one])]},
    }
    rows = load_rows([drafted, plain], loads)
    assert [row["clients"][0]["num_different"] for row in rows] == [1, 0]
    assert num_unlike({"loads": rows}) == 1


def test_a_long_prompt_is_asked_beside_a_short_one_and_beside_streams():
    server, long = Scripted(), np.full(512, 9, np.uint32)
    latency = latency_of(server.row, long, PROMPTS[1:4], rounds=2)
    assert latency.piece_s == pytest.approx(latency.long_alone_s / 2)
    assert latency.alone_tokens_per_s > 0
    assert [token for token, *_ in server.asked].count(9) == 6
    keys = {token: {key for of, key, _ in server.asked if of == token} for token in (1, 2, 9)}
    assert len(keys[9] & keys[1]) == len(keys[9] & keys[2]) == 2


def test_ratios_leave_one_piece_out():
    latency = Latency(0.1, 4.0, 0.25, 0.45, 4.5, 100.0, 60.0)
    assert latency.first_ratio == pytest.approx(2)
    assert latency.speed_ratio == pytest.approx(0.6)


@pytest.fixture
def programs(tmp_path):
    """A folder with a fake llama-server."""
    return fake_llama_server.installed(tmp_path / "bin")


def test_llama_cpp_is_asked_for_a_stream(tmp_path, programs):
    model = tmp_path / "m.gguf"
    model.write_text(json.dumps({"timings": {"draft_n_accepted": 2}}))
    server = LlamaServer(model, "plain", 1, 3, 64, programs, tmp_path, 60)
    try:
        (row,) = server.rows
        said = row.ask(PROMPTS[0], 5, row.begin())
        assert (said.tokens, said.num_decoded, said.steps, said.num_read) == ([*range(5)], 4, 2, 4)
        assert len(said.arrivals) == 5
        assert 0 < said.first_s <= said.whole_s
        asked = row.ask(PROMPTS[0], 5, None, until=lambda said: len(said.tokens) > 1)
        assert asked.tokens == [0, 1]
    finally:
        server.close()
    with pytest.raises(ProgramError, match="broke off"):
        row.ask(PROMPTS[0], 5, None)


def test_a_server_of_ours_that_cannot_start_is_named(tmp_path):
    with pytest.raises(ProgramError, match=r"coordgen serve ended: .*absent"):
        OurServer(tmp_path / "absent", 1, 2, tmp_path, 60)


@pytest.fixture
def arguments(bundle_of, programs, tmp_path, monkeypatch):
    """Those of a quick run: a bundle is in place of the GGUF file, and a script of llama.cpp."""
    bundle, model = bundle_of("embedded", "fp32"), tmp_path / "m.gguf"
    model.write_text("{}")
    monkeypatch.setattr(clients, "open_bundle", lambda path, **_: open_bundle(bundle))
    monkeypatch.setattr(clients, "chat_template", lambda gguf: lambda said: said[0]["content"])
    monkeypatch.setattr(clients, "OurServer", lambda model, *rest: OurServer(bundle, *rest))
    line = {"id": "1", "task": "ui", "messages": [{"role": "user", "content": "The report " * 30}]}
    (tmp_path / "ui.jsonl").write_text(json.dumps(line | {"id": "2"}) + "\n" + json.dumps(line))
    return [
        *(str(model), "--prompts", str(tmp_path), "--work", str(tmp_path / "work")),
        *("--llama-cpp", str(programs), "--threads", "1", "--parallel", "3", "--rounds", "1"),
        *("--max-new-tokens", "12", "--clients", "1", "2", "--long", "40", "--settings", "plain"),
    ]


def test_all_is_measured_told_written_and_shown_again(arguments, tmp_path, capsys):
    kept = tmp_path / "figures.json"
    assert clients.main([*arguments, "--json", str(kept)]) == 0
    document = json.loads(kept.read_text())
    names = ["coordgen auto", "coordgen plain", "llama.cpp plain"]
    assert [row["name"] for row in document["loads"]] == names
    assert [row["name"] for row in document["latencies"]] == names
    for row in document["loads"][:2]:
        assert [of["num_different"] for of in row["clients"]] == [0, 0]
        assert [of["read_tokens_alone"] for of in row["clients"]] == [2, 2]  # the root of each
    told = capsys.readouterr().out
    assert "answers alone, tokens/s of all clients, 1 thread, 3 answered at a time" in told
    assert "| 1 client | 2 clients |" in told.replace("  ", " ")
    assert f"Peer: llama.cpp {fake_llama_server.VERSION.split(': ')[1].splitlines()[0]}" in told
    assert clients.main(["--show", str(kept)]) == 0
    assert capsys.readouterr().out == told
    assert clients.main([]) == 2
    assert clients.main(["--show", str(tmp_path / "m.gguf")]) == 2  # it lacks what is shown
    assert capsys.readouterr().err.count("clients.py: ") == 2


def test_what_is_absent_is_named_and_the_others_are_reported(arguments, tmp_path, capsys):
    asked = [*arguments, "--llama-cpp", str(tmp_path), "--no-drafts", "--long", "0"]
    assert clients.main([*asked, "--clients", "2"]) == 1
    told = capsys.readouterr().out
    assert "| coordgen plain |" in told
    assert "failed: llama.cpp plain: there is no" in told


def test_what_cannot_be_measured_at_all_is_one_line(arguments, capsys):
    assert clients.main([*arguments, "--max-prompt-tokens", "3"]) == 2
    assert "no prompt is left" in capsys.readouterr().err
    assert clients.main([*arguments, "--long", "100000"]) == 2
    assert "give shorter --long" in capsys.readouterr().err
    assert clients.main([*arguments, "--parallel", "2"]) == 2
    assert "--long is answered beside others" in capsys.readouterr().err


def test_the_picture_has_every_row(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    server = Scripted()
    loads = {server.row.name: {n: [loaded(server.row, PROMPTS, n, 2)] for n in (1, 2)}}
    draw(load_rows([server.row], loads), tmp_path / "clients.svg")
    assert "coordgen plain" in (tmp_path / "clients.svg").read_text()


def test_a_long_prompt_that_fails_leaves_the_other_figures(arguments, monkeypatch, capsys):
    def fails(row, *_):
        if row.engine == "llama.cpp":
            raise ProgramError("out of memory")
        return Latency(*[1.0] * 7)

    monkeypatch.setattr(clients, "latency_of", fails)
    assert clients.main([*arguments, "--no-drafts", "--clients", "1"]) == 1
    told = capsys.readouterr().out
    loads, _, latencies = told.partition("a long prompt beside others")
    assert "llama.cpp plain" in loads
    assert "| llama.cpp plain" not in latencies
    assert "failed: llama.cpp plain, a long prompt: out of memory" in latencies
