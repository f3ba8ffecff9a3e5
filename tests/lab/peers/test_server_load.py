"""The bench of many clients at a server: it passes where all is well, and says what is not."""

from collections import Counter

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import server_load
from server_load import Held, Load, problems


@pytest.fixture
def load():
    load = Load(None, 0)
    load.ended = Counter({"answered": 6, "cut": 1, "gone away": 1, "refused, asked again": 9})
    return load


ROUNDS = [Held(100.0, 9, 30), Held(101.0, 9, 30)]
BEFORE, AFTER = Held(90.0, 8, 12), Held(100.0, 9, 12)


def test_what_is_well_is_no_problem(load):
    assert problems(load, 8, ROUNDS, BEFORE, AFTER) == []


@pytest.mark.parametrize(
    ("rounds", "after", "told"),
    [
        ([ROUNDS[0], Held(103.5, 9, 30)], AFTER, "memory grew by 3.5 %"),
        (ROUNDS, Held(100.0, 15, 12), "15 threads, 8 before"),
        (ROUNDS, Held(100.0, 9, 13), "13 files, 12 before"),
    ],
)
def test_what_grows_is_told(load, rounds, after, told):
    assert problems(load, 8, rounds, BEFORE, after) == [told]


def test_answers_that_are_missing_wrong_or_refused_otherwise_are_told(load):
    load.wrong.append(("rag.txt", 8))
    load.ended["failed: 500"] += 1
    assert problems(load, 9, ROUNDS, BEFORE, AFTER) == [
        "an answer to rag.txt with 8 tokens",
        "failed: 500",
        "8 of 9 requests have ended as they should",
    ]


def test_a_server_answers_all_clients(bundle_of, monkeypatch, capsys):
    monkeypatch.setattr(server_load, "GROWTH", 2)  # so few requests begin what grows once
    monkeypatch.setattr(server_load, "_MOST_WAIT_S", 0.01)
    asked = ["--clients", "6", "--requests", "8", "--max-queue", "0", "--parallel", "3"]
    assert server_load.main([str(bundle_of("embedded", "fp32")), *asked]) == 0
    told = capsys.readouterr().out
    assert "refused, asked again" in told
    assert "0 answers are not their plain ones" in told
