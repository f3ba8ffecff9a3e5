"""`--compare`: how often both sides answer, in which order, and what is made of it."""

import pytest

from coordgen_rs.cli.commands.generate import LEAST_S, MOST_S, compare, is_steady
from coordgen_rs.generation.stats import Stats
from coordgen_rs.model.answer import Answer


class Answering:
    """Answers of known length on a clock of its own.

    Args:
        drafted_s: Decoding times with drafts; the last one stays.
        plain_s: The same without drafts.
        sources: Of the drafter.
        tokens: Of answers with drafts, of answers without.
    """

    def __init__(self, drafted_s, plain_s, sources=("automaton",), tokens=((1, 2), (1, 2))):
        self.now, self.sides = 0.0, []
        self.times = {True: list(drafted_s), False: list(plain_s)}
        self.sources, self.tokens = sources, dict(zip((True, False), tokens, strict=True))

    def __call__(self, drafts):
        self.sides.append(drafts)
        times = self.times[drafts]
        seconds = times.pop(0) if len(times) > 1 else times[0]
        self.now += seconds
        sources = {name: {"proposed": 1, "accepted": 1} for name in self.sources}
        stats = Stats(new_tokens=10, decode_s=seconds, per_source=sources)
        return Answer("", self.tokens[drafts], (), "length", stats, ())

    def compared(self, *, is_stored=False):
        return compare(self(True), self, is_stored=is_stored, clock=lambda: self.now)


def test_short_answers_are_repeated_for_a_second_at_least():
    answering = Answering([0.01], [0.02])
    found = answering.compared()
    assert LEAST_S <= answering.now < 1.1 * LEAST_S
    assert found.rounds == len(answering.sides) / 2 > 30
    assert (found.tokens_per_s, found.plain_tokens_per_s) == pytest.approx((1000, 500))
    assert found.identical


def test_sides_take_turns_in_beginning():
    answering = Answering([0.01], [0.02])
    answering.compared()
    assert answering.sides[:8] == [True, False, False, True, True, False, False, True]


@pytest.mark.parametrize(("drafted_s", "plain_s"), [([0.5, 0.01], [0.02]), ([0.01], [2.9, 0.02])])
def test_one_disturbed_answer_changes_no_figure(drafted_s, plain_s):
    found = Answering(drafted_s, plain_s).compared()
    assert found.tokens_per_s == pytest.approx(1000)
    assert found.plain_tokens_per_s == pytest.approx(500)


def test_unsteady_answers_are_repeated_until_the_time_is_up():
    answering = Answering([0.01 + 0.01 * (7 * i % 10) for i in range(999)], [0.02])
    answering.compared()
    assert MOST_S <= answering.now < MOST_S + 0.3


@pytest.mark.parametrize("plain_s", [MOST_S, 60])
def test_slow_answers_are_given_once(plain_s):
    found = Answering([plain_s / 2], [plain_s]).compared()
    assert found.rounds == 1
    assert found.plain_tokens_per_s == pytest.approx(10 / plain_s)


@pytest.mark.parametrize("source", ["earlier-requests", "lookup-table", "token-recycling"])
def test_an_answer_that_would_be_drafted_from_itself_is_given_once(source):
    assert Answering([0.01], [0.02], sources=("automaton", source)).compared().rounds == 1


def test_an_answer_that_is_kept_is_given_once():
    answering = Answering([0.01], [0.02])
    assert answering.compared(is_stored=True).rounds == 1
    assert answering.sides == [True, False]


def test_answers_that_differ_end_the_comparison():
    found = Answering([0.01], [0.02], tokens=((1, 2), (1, 3))).compared()
    assert not found.identical
    assert found.rounds == 1


def test_a_median_is_steady_once_its_interval_is_narrow():
    assert not is_steady([1.5] * 5)
    assert is_steady([1.5] * 6)
    assert not is_steady([1.0, 2.0] * 10)
    assert is_steady([1.5] * 30 + [0.5, 9.0] * 3)


def test_figures_are_rounded_for_json():
    told = Answering([0.03], [0.07]).compared().to_json()
    assert told["tokens_per_s"] == 333.33
    assert told["plain_tokens_per_s"] == 142.86
    assert told["identical"] is True
