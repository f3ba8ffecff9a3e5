"""The loop over a host: whatever is drafted, the tokens are the host's own."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs._core import SharedHistory
from coordgen_rs.adapters.host import Follower, StepCosts, generate, make_drafter, measured_costs
from coordgen_rs.errors import (
    EmptyPromptError,
    OptionError,
    PromptTooLongError,
    TokenOutOfRangeError,
)

VOCAB_SIZE = 50
PROMPT = [3, 4, 5, 6, 7, 8, 9, 3, 4]


def says(text: Sequence[int]) -> int:
    """Goes on as at the last occurrence of the token, with a slip now and then."""
    if len(text) % 7 == 0:
        return (text[-1] + len(text)) % VOCAB_SIZE
    earlier = [place for place in range(len(text) - 1) if text[place] == text[-1]]
    return text[earlier[-1] + 1] if earlier else (text[-1] + 1) % VOCAB_SIZE


class FakeHost:
    """Follows `says`; it checks that it is used as a cache must be."""

    vocab_size = VOCAB_SIZE

    def __init__(self, takes_trees: bool, commit: str, capacity: int = 200) -> None:
        self.takes_trees, self.commit, self.capacity = takes_trees, commit, capacity
        self.text: list[int] = []
        self.run_lens: list[int] = []
        self.paths: list[list[int]] = []

    def clear(self) -> None:
        self.text = []

    def read(self, token_ids: np.ndarray) -> None:
        self.text += token_ids.tolist()
        self.paths = [[]]

    def run(self, token_ids: np.ndarray, parents: np.ndarray) -> None:
        assert len(self.text) + len(token_ids) <= self.capacity
        is_chain = parents.tolist() == [0, *range(len(parents) - 1)]
        assert self.takes_trees or is_chain
        self.paths = []
        for node, token in enumerate(token_ids.tolist()):
            above = self.paths[parents[node]] if node else []
            self.paths.append([*above, token])
        self.run_lens.append(len(token_ids))

    def choose(self, row: int) -> int:
        return says(self.text + self.paths[row])

    def keep(self, rows: Sequence[int]) -> None:
        if self.commit == "canonical":
            assert list(rows) == list(range(len(rows)))
        self.text += self.paths[rows[-1]] if rows else []


def plain(prompt: Sequence[int], num_tokens: int) -> list[int]:
    text = [*prompt]
    while len(text) < len(prompt) + num_tokens:
        text.append(says(text))
    return text[len(prompt) :]


HOSTS = [(True, "compact"), (True, "canonical"), (False, "canonical")]


@pytest.mark.parametrize(("takes_trees", "commit"), HOSTS)
@pytest.mark.parametrize("costs", [None, [1.0, 1.1, 1.3, 1.7, 2.5]])
def test_the_tokens_are_those_of_the_host_alone(takes_trees, commit, costs):
    host = FakeHost(takes_trees, commit)
    drafter = make_drafter(host, costs=costs)
    steps = list(generate(host, PROMPT, drafter=drafter, max_new_tokens=60))
    said = tokens_of(steps)
    assert said == plain(PROMPT, 60)
    assert len(steps) < 40
    assert host.text == (PROMPT + said)[:-1]
    assert len(drafter.token_ids) == 0


@pytest.mark.parametrize(("takes_trees", "commit"), HOSTS)
def test_an_end_token_ends_the_answer_also_within_a_draft(takes_trees, commit):
    host = FakeHost(takes_trees, commit)
    expected = plain(PROMPT, 60)
    end = expected[20]
    expected = expected[: expected.index(end) + 1]
    drafter = make_drafter(host, end_token_ids=[end])
    steps = generate(host, PROMPT, drafter=drafter, max_new_tokens=60, end_token_ids=[end])
    assert tokens_of(steps) == expected


def test_a_full_cache_ends_the_answer():
    host = FakeHost(True, "compact", capacity=20)
    said = tokens_of(generate(host, PROMPT, drafter=make_drafter(host), max_new_tokens=60))
    assert said == plain(PROMPT, 20 - len(PROMPT) + 1)


def test_who_stops_early_leaves_the_committed_tokens_and_the_next_request_is_clean():
    host = FakeHost(True, "compact")
    drafter = make_drafter(host)
    steps = generate(host, PROMPT, drafter=drafter, max_new_tokens=60)
    first = next(steps).token_ids
    steps.close()
    assert host.text == (PROMPT + first)[:-1]
    assert len(drafter.token_ids) == 0
    again = generate(host, [1, 2, 1], drafter=drafter, max_new_tokens=9)
    assert tokens_of(again) == plain([1, 2, 1], 9)


@pytest.mark.parametrize("name", ["clear", "read", "run", "choose", "keep"])
def test_an_engine_that_fails_once_leaves_the_next_request_right(name):
    host, history = FakeHost(True, "compact"), SharedHistory(VOCAB_SIZE)
    drafter = make_drafter(host, history=history)
    works, calls = getattr(host, name), []

    def fails_at_last(*given):
        calls.append(given)
        if len(calls) == (1 if name in {"clear", "read"} else 3):
            raise BrokenPipeError
        return works(*given)

    setattr(host, name, fails_at_last)
    with pytest.raises(BrokenPipeError):
        list(generate(host, PROMPT, drafter=drafter, max_new_tokens=60, history=history))
    assert history.num_recent_tokens == len(drafter.token_ids) == 0
    setattr(host, name, works)
    asked = {"drafter": drafter, "max_new_tokens": 60, "history": history}
    assert tokens_of(generate(host, PROMPT, **asked)) == plain(PROMPT, 60)
    assert history.num_recent_tokens == len(PROMPT) + 60


def test_no_draft_reaches_further_than_it_may():
    host = FakeHost(True, "compact")
    asked = {"max_new_tokens": 60, "draft_until": len(PROMPT) + 30}
    steps = list(generate(host, PROMPT, drafter=make_drafter(host), **asked))
    assert tokens_of(steps) == plain(PROMPT, 60)
    length = len(PROMPT)
    for step, rows in zip(steps, host.run_lens, strict=False):
        assert rows == 1 or length + rows <= len(PROMPT) + 30
        length += len(step.token_ids)
    assert max(host.run_lens) > 1
    assert host.run_lens[-20:] == [1] * 20


def test_a_finished_request_is_drafted_from_by_the_next():
    host, history = FakeHost(False, "canonical"), SharedHistory(VOCAB_SIZE)
    num_steps = []
    for _ in range(2):
        drafter = make_drafter(host, history=history)
        asked = {"drafter": drafter, "max_new_tokens": 60, "history": history}
        num_steps.append(len(list(generate(host, PROMPT, **asked))))
    assert history.num_recent_tokens == 2 * (len(PROMPT) + 60)
    assert num_steps[1] < num_steps[0]


def test_costs_are_measured_for_each_width_and_leave_nothing_behind():
    host = FakeHost(True, "compact")
    costs = measured_costs(host, (1, 2, 4))
    assert len(costs) == 3
    assert costs == sorted(costs)
    assert costs[0] > 0
    assert {1, 2, 4} == {*host.run_lens}
    assert host.text == []
    with pytest.raises(OptionError, match="too few to measure steps of 16 rows"):
        measured_costs(FakeHost(True, "compact", capacity=16))


def test_a_moment_in_which_the_machine_was_busy_counts_until_the_next_round(monkeypatch):
    now = [0.0]

    class Clocked(FakeHost):
        us_of_row = 90.0

        def run(self, token_ids, parents):
            super().run(token_ids, parents)
            now[0] += 1e-6 * (100 + (len(token_ids) - 1) * self.us_of_row)

    monkeypatch.setattr(
        "coordgen_rs.adapters.host.time", SimpleNamespace(perf_counter=lambda: now[0])
    )
    host, costs = Clocked(True, "compact"), StepCosts((1, 2, 4))
    costs.begin(host)
    assert costs.us == pytest.approx([100, 190, 370])
    host.us_of_row = 5.0
    host.read(np.array(PROMPT, np.uint32))
    costs.measure(host, np.array([7], np.uint32), lambda row: None)
    assert costs.us == pytest.approx([100, 105, 115])
    assert host.text == PROMPT


def test_measuring_goes_on_for_good_and_ever_more_rarely():
    costs = StepCosts((1, 2))
    due = [number for number in range(1, 1024) if costs.count_step()]
    assert due[:4] == [32, 96, 224, 480]
    assert {after - before for before, after in pairwise(due[3:])} == {256}


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], EmptyPromptError),
        ([VOCAB_SIZE], TokenOutOfRangeError),
        ([0.5], OptionError),
        ([1] * 201, PromptTooLongError),
    ],
)
def test_a_wrong_prompt_is_refused_before_the_host_is_touched(prompt, error):
    host = FakeHost(True, "compact")
    host.text = [1, 2]
    with pytest.raises(error):
        next(generate(host, prompt, drafter=make_drafter(host), max_new_tokens=4))
    assert host.text == [1, 2]


def test_a_follower_remembers_what_ended_when_the_next_begins():
    history = SharedHistory(VOCAB_SIZE)
    follower = Follower(make_drafter(FakeHost(False, "canonical"), history=history), history)
    first = np.array([1, 2, 3, 4, 1, 2], np.uint32)
    assert follower.chain(first, 4)[:2].tolist() == [3, 4]
    follower.chain(np.append(first, np.array([3, 4], np.uint32)), 4)
    assert history.num_recent_tokens == 0
    follower.chain(np.array([9, 3], np.uint32), 4)
    assert history.num_recent_tokens == 8
