"""The table of drafting methods: what it counts, what it keeps, what it says of what is absent."""

import json
import sys

import numpy as np
import pytest

import table
from coordgen_rs.cli.main import main as coordgen
from coordgen_rs.lab.replay.records import TokenizedRecord
from coordgen_rs.lab.replay.run import replay
from recorded import arctic, llama_cpp, report, sets, vllm_ngram
from recorded.arctic import DEFAULTS, FILLED, Arctic
from recorded.llama_cpp import LlamaCpp
from recorded.methods import CHAIN, METHODS, Theirs
from recorded.rule import replay_rule
from recorded.transformers_lookup import TransformersLookup
from recorded.vllm_ngram import VllmNgram
from word_records import SETS, write_records, write_tokenizer

WORDS = ["a", "b", "c", "d", "e", "f", "[UNK]"]


@pytest.fixture
def data(tmp_path):
    """A folder of records, with a tokenizer and a file of sets, of which one is absent."""
    numbers = np.random.default_rng(5)
    write_tokenizer(tmp_path / "tokenizers" / "words", WORDS)
    lines = []
    for number in range(12):
        prompt = numbers.integers(0, 6, 40)
        answer = np.concatenate([prompt[at : at + 9] for at in numbers.integers(0, 30, 3)])
        said = [" ".join(WORDS[token] for token in tokens) for tokens in (prompt, answer)]
        task = "copy" if number % 4 < 2 else "again"
        lines.append({"id": str(number), "task": task, "prompt": said[0], "output": said[1]})
    write_records(tmp_path / "one.jsonl", lines)
    (tmp_path / "sets.toml").write_text(SETS)
    return tmp_path


@pytest.fixture
def no_engines(monkeypatch, tmp_path):
    for module in (arctic, llama_cpp, vllm_ngram):
        monkeypatch.setattr(module, "BUILT", tmp_path / "absent")
    for package in ("arctic_inference.suffix_decoding", "torch"):
        monkeypatch.setitem(sys.modules, package, None)


def asked(data, *more):
    given = ["--data", str(data), "--sets", str(data / "sets.toml"), "--processes", "2"]
    return [*given, "--table", str(data / "kept" / "table.json"), *more]


def rows_of(printed, title):
    """The cells of a table, by method."""
    lines = printed.partition(f"{title}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_figures_are_those_of_replay_and_are_measured_once(data, no_engines, capsys):
    assert table.main(asked(data, "--budgets", "4", "16", "--picture", str(data / "t.svg"))) == 0
    said = capsys.readouterr()
    assert "skipped two: there is no" in said.err
    for absent in ("ArcticInference", "transformers", "vLLM", "llama.cpp"):
        assert f"skipped {absent}" in said.err
    measured = rows_of(said.out, "tokens per step with 16 draft tokens")
    replayed = [str(data / "one.jsonl"), "--tokenizer", str(data / "tokenizers" / "words")]
    for name, drafter in (("coordgen auto", "auto"), ("SAM-Decoding", "sam")):
        options = ["--template", "none", "--half", "1", "--drafter", drafter, "--json"]
        assert coordgen(["replay", *replayed, *options]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert measured[name][1] == f"{figures['tokens_per_step']:.2f}"
        rows = rows_of(said.out, "rows per token by draft tokens")
        assert rows[name][2] == f"{figures['rows_per_token']:.2f}"
    assert (data / "t.svg").read_text().startswith("<?xml")
    kept = (data / "kept" / "table.json").read_bytes()
    assert table.main(asked(data, "--budgets", "4", "16")) == 0
    assert capsys.readouterr().out == said.out
    assert (data / "kept" / "table.json").read_bytes() == kept


def test_a_cell_that_fails_is_named_and_the_others_go_on(data, monkeypatch, capsys):
    broken = Theirs("broken", CHAIN, llama_cpp.__name__, object)
    monkeypatch.setattr(table, "METHODS", (broken, *METHODS[:2]))
    assert table.main(asked(data, "--budgets", "4")) == 1
    said = capsys.readouterr()
    assert "drafter broken" in said.err
    assert "AttributeError: 'object' object has no attribute 'begin'" in said.err
    measured = rows_of(said.out, "tokens per step with 4 draft tokens")
    assert list(measured) == [method.name for method in METHODS[:2]]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (b'{"id": "1"}\n', "line 1: no 'prompt'"),
        (b'{"id": "\xff"}\n', "UTF-8"),
        (b"", "no records"),
        (b'{"id": "1", "task": "t", "prompt": "a", "output": "b"}\n', "no record in half 1 of 1"),
    ],
)
def test_records_that_cannot_be_read_are_named_once_before_anything_is_measured(
    records, why, data, capsys
):
    (data / "one.jsonl").write_bytes(records)
    assert table.main(asked(data, "--half", "1")) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "skipped" not in line]
    assert len(said) == 1
    assert said[0].startswith("table.py: one: ")
    assert why in said[0]
    assert not (data / "kept").exists()


@pytest.mark.parametrize("picture", ["p.png", "absent/p.svg"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    picture, data, capsys
):
    assert table.main(asked(data, "--picture", str(data / picture))) == 2
    assert "--picture" in capsys.readouterr().err
    assert not (data / "kept").exists()


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "lists no sets"),
        ("[sets]\n", "lists no sets"),
        ("sets = 3\n", "lists no sets"),
        ("[sets\n", "is not TOML"),
        ("[sets]\none = 3\n", "one must be a table of words"),
        ("[sets]\none = { file = 3 }\n", "one must be a table of words"),
        ('[sets]\none = { file = "one.jsonl" }\n', "one has no 'tokenizer'"),
        ('[sets]\none = { file = "o", folder = "w" }\n', "one has an unknown key 'folder'"),
        ('[sets]\none = { file = "o", tokenizer = "w", template = "x" }\n', "the template 'x'"),
        ('[sets]\none = { file = "o", tokenizer = "w", template = "none" }\n', "nothing to replay"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_of_sets_that_cannot_be_used_is_named(written, why, data, capsys):
    (data / "sets.toml").unlink()
    if written is not None:
        (data / "sets.toml").write_text(written)
    assert table.main(asked(data)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("table.py: ")
    assert why in last


def test_known_sets_are_read_and_each_is_a_line():
    names = [one.name for one in sets.read_sets()]
    lines = sets.KNOWN.read_text().splitlines()
    assert [line.partition(" = ")[0] for line in lines if line.startswith(tuple(names))] == names


def test_tables_without_a_figure_are_left_out(capsys):
    report.show(report.Figures(["one"], list(table.METHODS[:2]), [4]))
    assert capsys.readouterr().out == ""


def random_text(seed, length=60):
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint32)


def lookup(text, sizes, most):
    """What followed the first occurrence of the longest n-gram, written down plainly."""
    for size in sizes:
        for at in range(len(text) - size):
            if text[at : at + size] == text[-size:]:
                return text[at + size : at + size + most]
    return []


def opened(make, *arguments):
    try:
        return make(*arguments)
    except ModuleNotFoundError as error:
        pytest.skip(f"no build of llama.cpp, vLLM or ArcticInference here: {error}")


@pytest.mark.parametrize("seed", range(20))
def test_transformers_matches_the_first_occurrence(seed):
    pytest.importorskip("torch", reason="needs torch (make setup-train)")
    pytest.importorskip("transformers", reason="needs transformers (make setup-train)")
    text = random_text(seed)
    rule = TransformersLookup()
    rule.begin(text[:30])
    rule.propose(text[:30], 5)
    rule.accept(text[30:])
    drafted, parents = rule.propose(text, 5)
    assert drafted == lookup(text.tolist(), range(2, 0, -1), 5)
    assert list(parents) == list(range(-1, len(drafted) - 1))


@pytest.mark.parametrize("seed", range(20))
def test_vllm_matches_the_first_occurrence_of_the_longest_n_gram(seed):
    text = random_text(seed)
    drafted, _ = opened(VllmNgram, 2, 4).propose(text, 5)
    assert drafted == lookup(text.tolist(), range(4, 1, -1), 5)


@pytest.mark.parametrize("seed", range(20))
def test_llama_cpp_matches_the_last_occurrence_if_enough_follows(seed):
    rule = opened(LlamaCpp, "ngram-simple", 2, 5)
    text = random_text(seed)
    rule.begin(text[:30])
    for end in range(30, 60):
        drafted, _ = rule.propose(text[:end], 4)
        known = text[:end].tolist()
        # It wants as many tokens behind the match as it matches, and never matches at 0.
        places = [at for at in range(1, end - 3) if known[at : at + 2] == known[-2:]]
        follow = known[places[-1] + 2 : end - 1] if places else []
        assert drafted == (follow[:4] if len(follow) >= 2 else [])
        rule.accept(text[end : end + 1])
    rule.end()


@pytest.mark.parametrize("name", llama_cpp.TYPES)
def test_llama_cpp_drafts_a_text_that_repeats_itself(name):
    rule = opened(LlamaCpp, name, 4, 8)
    whole = np.tile(np.random.default_rng(1).permutation(60).astype(np.uint32), 6)
    record = TokenizedRecord("t", whole[:150], whole[150:])
    result = replay_rule(name, [record, record], 8, rule)
    assert result.tokens == 2 * (len(whole) - 150)
    assert result.tokens_per_step > 4
    assert result.rows_per_token < 2
    assert result.memory_bytes > 0


@pytest.mark.parametrize("how", [DEFAULTS, FILLED], ids=["defaults", "filled"])
def test_arctic_drafts_no_more_than_the_budget_and_forgets_what_it_should(how):
    pattern = np.arange(20, dtype=np.uint32)
    record = TokenizedRecord("t", pattern[:2], pattern[2:])
    forgets = replay_rule("forgets", [record, record], 6, opened(Arctic, False, how))
    assert forgets.tokens_per_step == 1.0
    remembers = replay_rule("remembers", [record, record], 6, opened(Arctic, True, how))
    assert remembers.steps < forgets.steps
    assert remembers.rows <= 7 * remembers.steps


def test_rows_are_the_root_and_all_drafts_of_every_step():
    text = random_text(3, 80)
    record = TokenizedRecord("t", text[:40], text[40:])
    trees = []
    result = replay(
        [record], budget=5, vocab_size=4, on_step=lambda _, tree, __: trees.append(len(tree[0]))
    )
    assert result.rows == sum(trees)
    assert len(trees) == result.steps
    assert result.rows_per_token == sum(trees) / 40
