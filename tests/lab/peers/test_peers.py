"""The comparison with peers, where none is installed: its parts, and a tiny run."""

import json
import sys

import numpy as np
import pytest

import compare
from answers import tokens_of
from contest import Answer, hold
from coordgen_rs import Bundle, plain
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.replay.records import TokenizedRecord
from genai_folders import graphs_own_logits
from genai_model import export_genai
from recorded.rule import accepted_tokens, replay_rule


@pytest.fixture
def no_peers(monkeypatch):
    for package in (
        "onnxruntime_genai",
        "arctic_inference.suffix_decoding",
        "transformers",
        "torch",
    ):
        monkeypatch.setitem(sys.modules, package, None)


class Scripted:
    """A contestant that needs the given seconds, one a call, and notes who was asked what."""

    def __init__(self, name, tokens, seconds, asked=None):
        self.name, self.tokens, self.seconds = name, tokens, list(seconds)
        self.asked = [] if asked is None else asked
        self.begun = 0

    def begin(self):
        self.begun += 1

    def answer(self, prompt, max_new_tokens):
        self.asked.append((self.name, len(prompt)))
        return Answer(self.tokens, len(self.tokens), 2, 1.0, self.seconds.pop(0))


@pytest.fixture
def options(bundle_of, session_of, data):
    """Those of a quick run; all sessions of a process share its threads."""
    threads = session_of("embedded", "fp32").threads
    bundle = str(bundle_of("embedded", "fp32"))
    return [bundle, str(data), "--rounds", "1", "--threads", str(threads)]


def test_absent_peers_are_named_and_left_out(no_peers, options, capsys):
    assert compare.main([*options, "--limit", "2", "--max-new-tokens", "8"]) == 0
    said = capsys.readouterr()
    skipped = [line.split(":")[0] for line in said.err.splitlines() if line.startswith("skipped")]
    assert skipped == [
        f"skipped {p}" for p in ("onnxruntime-genai", "arctic-inference", "transformers")
    ]
    assert "auto" in said.out
    assert "identical to plain decoding: yes" in said.out


def test_report_has_every_row_and_task(no_peers, options, capsys):
    assert compare.main([*options, "--json", "--max-new-tokens", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["engines"]) == ["plain", "auto", "auto, earlier answers"]
    assert list(report["replayed"]) == ["auto"]
    assert report["versions"] == {}
    for figures in report["engines"].values():
        assert figures["per_task"].keys() == report["num_prompts"].keys()
        assert figures["all"]["tokens_per_step"] >= 1.0


def test_exported_model_says_what_plain_decoding_says(bundle_of, session_of, tmp_path):
    bundle = Bundle.open(bundle_of("embedded", "fp32"))
    export_genai(bundle, tmp_path, threads=1)
    prompt = np.arange(40, 60, dtype=np.uint32)
    answer = tokens_of(plain(session_of("embedded", "fp32"), prompt, max_new_tokens=12))
    logits = graphs_own_logits(tmp_path, np.concatenate([prompt, answer[:-1]]))
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == answer


def test_quantised_bundles_are_refused(bundle_of, tmp_path):
    with pytest.raises(OptionError, match="int8"):
        export_genai(Bundle.open(bundle_of("embedded", "int8")), tmp_path, threads=1)


def test_figures_are_medians_over_the_rounds():
    slow_once = Scripted("a", [1, 2], [1.0, 9.0, 1.0])
    other = Scripted("b", [1, 3], [0.5, 0.5, 0.5])
    contest = hold([slow_once, other], {"t": [np.zeros(3)]}, 3, 2, lambda *_: None)
    figures = contest.figures("a", ["t"])
    assert figures.tokens_per_s == pytest.approx(2.0)
    assert figures.whole_tokens_per_s == pytest.approx(1.0)
    assert figures.tokens_per_step == pytest.approx(1.0)
    assert (figures.slowest, figures.fastest) == pytest.approx((2 / 9, 2.0))
    assert figures.different == 0
    assert contest.figures("b", ["t"]).different == 1
    assert contest.recorded() == [("t", Answer([1, 2], 2, 2, 1.0, 1.0))]


def test_contestants_take_turns_and_forget_between_rounds():
    asked: list[tuple[str, int]] = []
    contestants = [Scripted(name, [1], [1.0] * 4, asked) for name in "ab"]
    hold(contestants, {"t": [np.zeros(1), np.zeros(2)]}, 2, 1, lambda *_: None)
    turns = "".join(f"{name}{length}" for name, length in asked)
    assert turns == "a1b1b2a2b1a1a2b2"
    assert [contestant.begun for contestant in contestants] == [2, 2]


@pytest.mark.parametrize(
    ("tokens", "parents", "rest", "expected"),
    [
        ([], [], [5, 6], 1),
        ([5, 6], [-1, 0], [5, 6, 7], 3),
        ([5, 6], [-1, 0], [5, 6], 2),  # the answer ends with the draft
        ([5, 9], [-1, 0], [5, 6, 7], 2),
        ([4, 5, 6, 7], [-1, -1, 1, 2], [5, 6, 7, 8], 4),  # a side branch
    ],
)
def test_verification_takes_the_longest_path_and_one(tokens, parents, rest, expected):
    assert accepted_tokens(tokens, parents, np.array(rest)) == expected


class Clairvoyant:
    """Drafts the whole record."""

    def __init__(self, whole):
        self.whole, self.heard = whole, []

    def begin(self, prompt):
        self.heard = prompt.tolist()

    def propose(self, text, budget):
        assert text.tolist() == self.heard
        drafted = self.whole[len(text) : len(text) + budget]
        return drafted, range(-1, len(drafted) - 1)

    def accept(self, new_tokens):
        self.heard += new_tokens.tolist()

    def memory_bytes(self):
        return 8 * len(self.heard)

    def end(self):
        assert self.heard == self.whole


def test_replayed_rule_hears_the_record_and_nothing_more():
    whole = np.arange(12, dtype=np.uint32)
    record = TokenizedRecord("t", whole[:4], whole[4:])
    result = replay_rule("all-knowing", [record], 3, Clairvoyant(whole.tolist()))
    assert (result.tokens, result.steps, result.per_task) == (8, 2, {"t": (8, 2)})
    assert (result.rows, result.memory_bytes) == (1 + 3 + 1 + 3, 8 * 12)
