"""The prompts that the benchmarks ship: their form and lengths, and that each is its own text."""

import json
import re
from collections import Counter

import pytest
from tokenizers import Tokenizer

from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs.lab.bench.prompts import Prompt, read_prompts

TASKS = ("summary", "rag", "ui", "reply")
FOLDER = ROOT / "benches" / "prompts"
SHORT, LONG = range(450, 1_301), range(4_300, 5_801)
"""Tokens of the embedded model, which makes 1.3 to 2.1 of one of SmolLM2's."""


def records(task):
    text = (FOLDER / f"{task}.jsonl").read_bytes().decode("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def content(record):
    return "\n".join(message["content"] for message in record["messages"])


def word_runs(record, length):
    """Every run of `length` words, as often as it occurs."""
    words = re.findall(r"\w+", content(record).lower())
    return Counter(tuple(words[i : i + length]) for i in range(len(words) - length + 1))


def test_no_file_but_the_four_tasks_is_there():
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_twelve_prompts_of_its_own_name(task):
    ids = [record["id"] for record in records(task)]
    assert len(set(ids)) == len(ids) == 12
    assert all(re.fullmatch(rf"{task}(-[a-z0-9]+)+", name) for name in ids)
    assert {record["task"] for record in records(task)} == {task}


@pytest.mark.parametrize("task", TASKS)
def test_lines_are_written_as_json_writes_them(task):
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records(task)]
    assert (FOLDER / f"{task}.jsonl").read_bytes() == "".join(lines).encode("utf-8")


@pytest.mark.parametrize("task", TASKS)
def test_the_bench_reads_them(task):
    wanted = [Prompt(task, record["messages"]) for record in records(task)]
    assert read_prompts(FOLDER / f"{task}.jsonl") == wanted


@pytest.mark.parametrize("task", TASKS)
def test_turns_alternate_and_the_user_has_the_last_word(task):
    for record in records(task):
        assert list(record) == ["id", "task", "messages"]
        assert all(list(message) == ["role", "content"] for message in record["messages"])
        roles = " ".join(message["role"] for message in record["messages"])
        assert re.fullmatch("(system )?(user assistant )*user", roles), record["id"]


@pytest.mark.parametrize("task", TASKS)
def test_texts_hold_no_stray_space(task):
    for record in records(task):
        for message in record["messages"]:
            text = message["content"]
            assert text == text.strip() != ""
            assert not re.search(r"[^\S\n]$|[^\S \n]|\n{3}", text, re.MULTILINE), record["id"]


@pytest.mark.parametrize("task", TASKS)
def test_eleven_prompts_are_short_and_one_is_long(task):
    tokenizer = Tokenizer.from_file(str(CHECKPOINTS["embedded"] / "tokenizer.json"))
    lengths = [len(tokenizer.encode(content(record)).ids) for record in records(task)]
    assert sum(length in SHORT for length in lengths) == 11
    assert sum(length in LONG for length in lengths) == 1


def test_no_two_prompts_share_twelve_words_in_a_row():
    runs = Counter(
        run for task in TASKS for record in records(task) for run in word_runs(record, 12)
    )
    assert [" ".join(run) for run, prompts in runs.items() if prompts > 1] == []


def test_no_prompt_reaches_its_length_by_repeating_itself():
    for task in TASKS:
        for record in records(task):
            assert max(word_runs(record, 20).values()) == 1, record["id"]
