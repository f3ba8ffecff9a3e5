"""Replay: recorded answers through the drafters, against drafting written down plainly."""

import json

import numpy as np
import pytest

from checkpoints import SHARED
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.replay.records import (
    TEMPLATES,
    Record,
    RecordsError,
    Template,
    TokenizedRecord,
    open_tokenizer,
    read_records,
    tokenize,
)
from coordgen_rs.lab.replay.run import DRAFTERS, HISTORIES, replay
from recorded.rule import replay_rule
from word_records import write_records, write_tokenizer

WORDS = ["a", "b", "c", "d", "e", "f", "the", "user", "says", "again", "[UNK]"]
FIELDS = {
    *("drafter", "budget", "records", "tokens", "steps", "tokens_per_step", "rows_per_token"),
    "known_rows",
    *("per_task", "propose_us", "accept_us", "step_us", "begin_us", "memory_bytes"),
}


def naive_lookup_steps(prompt, answer, budget):
    """Steps of prompt lookup: n-gram 3 to 1, first match, 10 tokens, as transformers draft."""
    text, steps = np.concatenate([prompt, answer]).astype(np.int64), 0
    length = len(prompt)
    while length < len(text):
        draft = naive_candidates(text[:length])[:budget]
        rest = text[length : length + len(draft)]
        agree = draft[: len(rest)] == rest
        length += (len(agree) if agree.all() else int(agree.argmin())) + 1
        steps += 1
    return steps


def naive_candidates(text):
    for size in (3, 2, 1):
        if len(text) <= size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(text, size)
        found = np.flatnonzero((windows == text[-size:]).all(1))
        if found[0] + size < len(text):
            return text[found[0] + size : found[0] + size + 10]
    return text[:0]


def make_records(count=6):
    """Answers that copy pieces of their prompts, and records that resemble one another."""
    numbers = np.random.default_rng(3)
    records = []
    for index in range(count):
        prompt = numbers.integers(0, 9, 40)
        starts = numbers.integers(0, 30, 6)
        answer = np.concatenate([prompt[start : start + 8] for start in starts])
        task = "even" if index % 2 == 0 else "odd"
        records.append(TokenizedRecord(task, prompt.astype(np.uint32), answer.astype(np.uint32)))
    return records


@pytest.fixture
def data(tmp_path):
    """A file of two records, and a directory with a tokenizer."""
    lines = [
        {"id": "1", "task": "copy", "prompt": "the user says a b c d", "output": "a b c d e"},
        {
            "id": "2",
            "task": "fill",
            "prompt": "says <PASSAGE> again",
            "context": "e f",
            "output": "f e",
            "model": "one",
            "outputs": {"other": "e f e f"},
        },
    ]
    write_tokenizer(tmp_path, WORDS)
    return write_records(tmp_path / "records.jsonl", lines)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("commit", ["compact", "canonical"])
@pytest.mark.parametrize("budget", [1, 8])
def test_every_drafter_says_every_record(drafter, history, commit, budget):
    records = make_records()
    result = replay(
        records, drafter=drafter, history=history, commit=commit, budget=budget, vocab_size=9
    )
    assert result.tokens == sum(len(record.answer) for record in records)
    assert result.records == len(records)
    assert result.tokens / (budget + 1) <= result.steps <= result.tokens
    assert set(result.per_task) == {"even", "odd"}
    assert sum(steps for _, steps in result.per_task.values()) == result.steps
    assert len(result.propose_us) == len(result.accept_us) == result.steps


@pytest.mark.parametrize("drafter", ["auto", "sam", "prompt-lookup"])
def test_no_drafter_knows_where_the_answer_ends(drafter):
    (record,) = make_records(1)
    end = len(record.answer) // 2
    cut = record._replace(answer=record.answer[:end])
    trees = {}
    for one in (record, cut):
        trees[len(one.answer)] = drafted = []
        replay(
            [one],
            drafter=drafter,
            vocab_size=9,
            on_step=lambda _, tree, __, to=drafted: to.append([part.tolist() for part in tree]),
        )
    assert trees[end] == trees[len(record.answer)][: len(trees[end])]
    assert any(len(tokens) > 2 for tokens, _ in trees[end][-2:]), "nothing is drafted at its end"


def test_nothing_is_drafted_behind_an_end_token():
    (record,) = make_records(1)
    end = int(record.answer[-1])
    answer = np.append(record.answer[record.answer != end], np.uint32(end))
    record = record._replace(prompt=record.prompt[record.prompt != end], answer=answer)
    record = record._replace(prompt=np.concatenate([record.prompt, answer, record.prompt]))
    ended = record._replace(end_token_ids=(end,))
    drafted = []
    for one in (record, ended):
        trees = []
        result = replay(
            [one],
            drafter="automaton",
            vocab_size=9,
            on_step=lambda _, tree, __, to=trees: to.append(tree),
        )
        assert result.tokens == len(answer)
        behind = [tokens[parents[1:]] == end for tokens, parents in trees]
        drafted.append(sum(int(places.sum()) for places in behind))
    assert drafted[0] > drafted[1] == 0


def test_an_answer_ends_with_its_first_end_token(data):
    tokenizer = open_tokenizer(data.parent, TEMPLATES["none"])
    template = Template(start="", user="{text}", end=" e")
    record = Record("1", "t", "a b", "c d e f")
    tokenized = tokenize(record, template, tokenizer)
    expected = tokenizer.encode("c d e", special_tokens=False)
    assert tokenized.answer.tolist() == expected.tolist()
    assert tokenized.end_token_ids == (int(expected[-1]),)


class NaiveLookup:
    """Prompt lookup as a rule of another engine."""

    def begin(self, prompt):
        pass

    def propose(self, text, budget):
        drafted = naive_candidates(text.astype(np.int64))[:budget].tolist()
        return drafted, range(-1, len(drafted) - 1)

    def accept(self, new_tokens):
        pass

    def end(self):
        pass

    def memory_bytes(self):
        return 0


@pytest.mark.parametrize("budget", [4, 10, 16])
def test_prompt_lookup_takes_the_steps_of_its_naive_twin_and_a_rule_is_counted_as_it_is(budget):
    records = make_records()
    ours = replay(records, drafter="prompt-lookup", budget=budget, vocab_size=9)
    assert ours.steps == sum(naive_lookup_steps(r.prompt, r.answer, budget) for r in records)
    rule = replay_rule("naive", records, budget, NaiveLookup())
    assert (ours.tokens, ours.steps, ours.rows) == (rule.tokens, rule.steps, rule.rows)
    assert ours.per_task == rule.per_task


def test_a_session_drafts_from_earlier_records():
    records = make_records(2) * 3
    for drafter in ("coordgen-ours", "sam"):
        alone = replay(records, drafter=drafter, vocab_size=9)
        together = replay(records, drafter=drafter, history="earlier-requests", vocab_size=9)
        assert together.steps < alone.steps
        assert together.memory_bytes > alone.memory_bytes


def test_the_nearest_database_is_that_of_the_task_where_tasks_differ():
    even, odd = make_records(2)
    odd = odd._replace(prompt=odd.prompt + np.uint32(10), answer=odd.answer + np.uint32(10))
    records = [even, odd] * 3
    found = {name: replay(records, history=name, vocab_size=20).steps for name in HISTORIES}
    assert found["nearest"] == found["by-task"] < found["none"]
    renamed = [record._replace(task="all") for record in records]
    assert replay(renamed, history="nearest", vocab_size=20).steps < found["none"]


def test_known_answer_of_prompt_lookup_on_spec_bench():
    """Spec-Bench publishes 1.73 and 1.75 on all of its turns; the file holds 323 of the 560."""
    path = SHARED / "data" / "specbench_vicuna7b_v13.jsonl"
    if not path.exists():
        pytest.skip("no Spec-Bench answers here")
    template = TEMPLATES["vicuna"]
    tokenizer = open_tokenizer(SHARED / "tokenizers" / "llama2", template)
    records = [tokenize(record, template, tokenizer) for record in read_records(path)]
    size = tokenizer.vocab_size
    result = replay(records, drafter="prompt-lookup", budget=10, vocab_size=size)
    assert result.steps == sum(naive_lookup_steps(r.prompt, r.answer, 10) for r in records)
    assert 1.70 < result.tokens_per_step < 1.76
    blended = replay(records, drafter="coordgen-ours", vocab_size=size)
    assert blended.tokens_per_step > 1.1 * result.tokens_per_step


def test_records_are_read_with_their_context_also_behind_a_byte_order_mark(data):
    data.write_bytes(b"\xef\xbb\xbf" + data.read_bytes())
    first, second = read_records(data)
    assert first == Record("1", "copy", "the user says a b c d", "a b c d e")
    assert second.prompt == "says e f again"
    assert read_records(data, limit=1) == [first]


def test_outputs_of_another_model_are_read_by_name(data):
    with pytest.raises(RecordsError, match="line 1: no output of 'other'"):
        read_records(data, output_of="other")
    data.write_text(data.read_text().splitlines()[1])
    assert read_records(data, output_of="other")[0].answer == "e f e f"
    assert read_records(data, output_of="one")[0].answer == "f e"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "not json",
        "[]",
        '{"id": "1"}',
        '{"id": 1, "task": "t", "prompt": "p", "output": "o"}',
        '{"id": "1", "task": "t", "prompt": "p", "output": "o", "context": ["p"]}',
        '{"id": "1", "task": "t", "prompt": "\\udfff", "output": "o"}',
        "[" * 200_000,
    ],
    ids=range(8),
)
def test_unusable_records_are_refused(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(RecordsError, match=r"records\.jsonl"):
        read_records(path)


def test_earlier_turns_stand_in_the_template():
    record = Record("1", "chat", "And now?", "Yes.", [("Hi", "Hello")])
    texts = []

    class Echo:
        def encode(self, text, *, special_tokens):
            assert not special_tokens
            texts.append(text)
            return np.zeros(1, np.uint32)

    tokenize(record, TEMPLATES["vicuna"], Echo())
    assert texts[0].endswith("USER: Hi ASSISTANT: Hello</s>USER: And now? ASSISTANT:")
    assert texts[1] == "Yes.</s>"
    tokenize(record, TEMPLATES["qwen2.5"], Echo())
    assert texts[3].endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("options", [{"history": "all"}, {"budget": 0}])
def test_unusable_settings_are_refused(options):
    with pytest.raises(OptionError):
        replay(make_records(), vocab_size=9, **options)


def test_the_command_prints_the_figures(data, coordgen):
    arguments = ["replay", data, "--tokenizer", data.parent, "--template", "none"]
    chosen = ("--drafter", "prompt-lookup", "--budget", 4, "--json")
    figures = json.loads(coordgen(*arguments, *chosen).out)
    assert set(figures) == FIELDS
    assert (figures["records"], figures["tokens"], figures["budget"]) == (2, 7, 4)
    assert set(figures["per_task"]) == {"copy", "fill"}
    assert "tokens_per_step" in coordgen(*arguments).out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("data", "absent.jsonl"),
        ("--tokenizer", "absent"),
        ("--template", "vicuna"),
        ("--budget", 0),
        ("--output-of", "nobody"),
        ("--drafter", "oracle"),
        ("--history", "all"),
        ("--commit", "maybe"),
    ],
)
def test_bad_input_ends_with_one_line(data, refused, option, value):
    given = {"data": data, "--tokenizer": data.parent, "--template": "none"} | {option: value}
    refused("replay", given.pop("data"), *(part for pair in given.items() for part in pair))
