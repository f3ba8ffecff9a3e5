"""The table of replays: its oracle against one written down plainly, and a run of the command."""

import json
import sys

import numpy as np
import pytest

import replays
from coordgen_rs.lab.replay.records import TokenizedRecord
from coordgen_rs.lab.replay.run import replay
from recorded.ceiling import Losses, Seen, ceiling
from word_records import SETS, write_records, write_tokenizer


def uint32(tokens):
    return np.array(tokens, np.uint32)


def record(prompt, answer):
    return TokenizedRecord("made", uint32(prompt), uint32(answer))


def random_records(seed, count=5):
    numbers = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt = numbers.integers(0, 7, 30)
        parts = [prompt[start : start + 6] for start in numbers.integers(0, 24, 4)]
        made.append(record(prompt, np.concatenate(parts)))
    return made


def test_what_the_text_said_after_the_same_token_could_be_proposed():
    seen = Seen(most_frequent=0)
    seen.begin(uint32([1, 2, 3, 1, 4, 1]))
    assert seen.num_foretold(uint32([2, 3, 1, 4, 1]), 8) == 5
    assert seen.num_foretold(uint32([2, 3, 1, 4, 1]), 3) == 3
    assert seen.num_foretold(uint32([3, 1]), 8) == 0  # never after 1


def test_what_comes_after_most_tokens_could_come_after_any():
    seen = Seen(most_frequent=1)
    seen.begin(uint32([1, 2, 3, 2, 4, 2, 4, 5, 5]))
    assert seen.num_foretold(uint32([2, 2, 2]), 8) == 3  # said after 1, 3 and 4
    assert seen.num_foretold(uint32([1]), 8) == 0


def test_a_copy_that_broke_could_be_taken_up_again():
    seen = Seen(most_frequent=0)
    seen.begin(uint32([1, 2, 3, 4, 5, 6, 7, 8]))
    seen.extend(uint32([1, 2, 3, 4, 9]))
    assert seen.num_foretold(uint32([6, 7, 8]), 8) == 3  # 9 in place of 5
    assert seen.num_foretold(uint32([5, 6]), 8) == 2  # 9 before 5
    seen.extend(uint32([9] * 10))
    assert seen.num_foretold(uint32([6, 7, 8]), 8) == 0  # too long ago


@pytest.mark.parametrize("remembering", [False, True])
def test_earlier_requests_count_where_they_may(remembering):
    seen = Seen(remembering=remembering, most_frequent=0)
    seen.begin(uint32([1, 2, 3]))
    seen.begin(uint32([5, 1]))
    assert seen.num_foretold(uint32([2, 3]), 8) == (2 if remembering else 0)
    assert seen.num_foretold(uint32([5]), 8) == 0, "requests do not follow one another"


@pytest.mark.parametrize("drafter", ["automaton", "sam", "prompt-lookup"])
@pytest.mark.parametrize("budget", [1, 4, 16])
def test_no_drafter_of_text_is_above_the_ceiling(drafter, budget):
    for seed in range(6):
        records = random_records(seed)
        reached = replay(records, drafter=drafter, budget=budget, vocab_size=7).tokens_per_step
        assert reached <= ceiling(records, budget) + 1e-9


def test_every_step_ends_in_one_way():
    records, losses = random_records(3), Losses(4)
    result = replay(records, budget=4, vocab_size=7, on_step=losses.step)
    assert sum(losses.steps.values()) == result.steps
    assert losses.tokens["never seen"] == losses.tokens["full"] == 0


def test_the_command_prints_a_table_a_set_and_names_what_is_absent(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    write_tokenizer(tmp_path / "words", ["a", "b", "c", "d", "[UNK]"])
    line = {"id": "1", "task": "copy", "prompt": "a b c d a b", "output": "c d a b c d"}
    write_records(tmp_path / "one.jsonl", [line])
    (tmp_path / "sets.toml").write_text(SETS)
    options = ["--data", str(tmp_path), "--tokenizers", str(tmp_path), "--budgets", "2", "8"]
    sets = ["--half", "all", "--sets", str(tmp_path / "sets.toml")]
    assert replays.main([*options, *sets]) == 0
    said = capsys.readouterr()
    assert "one, 1 records" in said.out
    assert "skipped two" in said.err
    assert "skipped ArcticInference" in said.err
    assert replays.main([*options, *sets, "--json"]) == 0
    (two, eight) = json.loads(capsys.readouterr().out)["one"]
    assert (two["budget"], eight["budget"]) == (2, 8)
    assert two["ceiling"] == 3.0
    assert eight["arctic"] is None
    assert replays.main(options) == 2


@pytest.mark.parametrize("given", [("--budgets", "-1"), ("--limit", "0")])
def test_numbers_that_make_no_sense_are_refused_before_anything_is_read(given, tmp_path, capsys):
    assert replays.main(["--data", str(tmp_path), "--tokenizers", str(tmp_path), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"replays.py: {given[0]} is {given[1]}, but must be at least 1"
