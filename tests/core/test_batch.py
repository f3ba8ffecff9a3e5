"""Requests that share steps, through the binding: each says what it would say alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs._core import (
    Batcher,
    CallOrderError,
    InvalidDraftError,
    OptionError,
    ShapeError,
)
from ruled_target import (
    VOCAB_SIZE,
    WIDTHS,
    commits,
    make_drafter,
    plain,
    prompts,
    run_target,
    uint32,
)

COSTS = [(1.0, 0.001), (1.3, 0.002), (1.8, 0.003)]
SOURCES = ["automaton", "earlier-requests"]


def worths(*values):
    return np.array(values, np.float32)


def serve_together(drafters, requests, batcher):
    """All answers, by steps that the requests share; a request is a prompt, a seed and a length."""
    for drafter, (prompt, _, length) in zip(drafters, requests, strict=True):
        drafter.begin(uint32(prompt), length)
    texts = [list(prompt) for prompt, _, _ in requests]
    unread = [len(prompt) - 1 for prompt, _, _ in requests]
    while any(drafter.finish_reason is None for drafter in drafters):
        running = [each for each, it in enumerate(drafters) if it.finish_reason is None]
        decode = [each for each in running if not unread[each]]
        read = [each for each in running if unread[each]]
        offers = [
            (*drafters[each].offer(len(texts[each]) - 1), len(texts[each])) for each in decode
        ]
        reading = [(unread[each], len(texts[each]) - 1 - unread[each]) for each in read]
        nodes, tokens, costs = batcher.share(offers, reading)
        assert sum(nodes) + sum(tokens) <= 16
        gained = 0
        for each, taken, cost in zip(decode, nodes, costs, strict=True):
            drafter, text = drafters[each], texts[each]
            inputs = drafter.take(taken, cost)
            assert inputs.num_nodes == taken <= inputs.rows
            logits = run_target(text, drafter.draft, taken, requests[each][1])
            said = drafter.accept(logits).token_ids.tolist()
            text.extend(said)
            gained += len(said)
        if decode:
            batcher.took(gained, sum(costs))
        for each, taken in zip(read, tokens, strict=True):
            unread[each] -= taken
    return [text[len(prompt) :] for text, (prompt, _, _) in zip(texts, requests, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(prompts, st.integers(0, 9), st.integers(1, 40)), min_size=1, max_size=4
    ),
    has_costs=st.booleans(),
    share=st.booleans(),
    commit=commits,
)
def test_each_answer_is_that_of_plain_decoding(requests, has_costs, share, commit):
    costs = COSTS if has_costs else None
    drafters = []
    for _ in requests:
        beside = drafters[0] if drafters and share else None
        options = {"sources": SOURCES, "costs": costs, "commit": commit, "beside": beside}
        drafters.append(make_drafter(**options))
    batcher = Batcher(WIDTHS, costs, 16)
    expected = [plain(prompt, seed, length) for prompt, seed, length in requests]
    for _ in range(2):
        assert serve_together(drafters, requests, batcher) == expected


def test_an_offer_tells_what_nodes_are_worth_and_takes_as_many_as_are_asked_for():
    drafter = make_drafter()
    with pytest.raises(CallOrderError, match="begin"):
        drafter.offer(0)
    drafter.begin(uint32([0, 1, 2, 3, 0, 1]), 20)
    with pytest.raises(CallOrderError, match="offer"):
        drafter.take(1)
    values, least = drafter.offer(5)
    assert (values.dtype, values[0], least) == (np.float32, 1.0, 1)
    assert 1 < len(values) <= WIDTHS[-1]
    assert (np.diff(values) <= 0).all()
    for num_nodes in (0, len(values) + 1):
        with pytest.raises(OptionError, match="cannot be taken"):
            drafter.take(num_nodes)
    with pytest.raises(OptionError, match="cost"):
        drafter.take(1, float("nan"))
    inputs = drafter.take(3, 0.5)
    assert (inputs.rows, inputs.num_nodes) == (4, 3)
    with pytest.raises(ShapeError):
        drafter.accept(np.zeros((4, VOCAB_SIZE), np.float32))
    assert drafter.accept(run_target([0, 1, 2, 3, 0, 1], drafter.draft, 3, 0)).token_ids.size


def test_a_method_with_trees_of_its_own_offers_them_whole():
    drafter = make_drafter(sources=["token-recycling"], tree="static")
    drafter.begin(uint32([0, 1]), 20)
    values, least = drafter.offer(1)
    assert least == len(values)
    assert (values == 1.0).all()


def test_shares_are_of_numbers_alone():
    batcher = Batcher([1, 9], [1.0, (1.8, 0.0)], 64)
    sure, unsure = worths(1.0, 0.9, 0.8, 0.05), worths(1.0, 0.2, 0.02)
    for read in (
        [0, 0],
        [0, 0],
        [0, 0],
        [3, 36],
        [0, 0],
    ):  # what 39 tokens cost has been saved by four steps
        nodes, tokens, costs = batcher.share([(sure, 1, 0), (unsure, 1, 0)], [(3, 0), (100, 0)])
        assert (nodes, tokens) == ([3, 2], read)
        assert sum(costs) == pytest.approx(1.4)
    assert Batcher([1], None, 4).share([(sure, 1, 0)], []) == ([4], [], [0.0])


@pytest.mark.parametrize(
    ("rows", "costs", "most_rows", "error"),
    [
        ([1, 4], [1.0], 8, ShapeError),
        ([4, 1], [1.0, 1.0], 8, OptionError),
        ([], [], 8, OptionError),
        ([1], [0.0], 8, OptionError),
        ([1], [1.0], 0, OptionError),
    ],
)
def test_unusable_options_are_refused(rows, costs, most_rows, error):
    with pytest.raises(error):
        Batcher(rows, costs, most_rows)


def test_unusable_requests_are_refused():
    batcher = Batcher([1], None, 4)
    for bad in (worths(1.0).astype(np.float64), worths(1.0).reshape(1, 1), [1.0]):
        with pytest.raises(ShapeError, match="worths"):
            batcher.share([(bad, 1, 0)], [])
    for least in (0, 3):
        with pytest.raises(OptionError, match="least"):
            batcher.share([(worths(1.0, 0.5), least, 0)], [])
    with pytest.raises(InvalidDraftError):
        batcher.share([(worths(1.0, 0.5, 0.4), 3, 0)] * 2, [])
    with pytest.raises(OptionError, match="cost"):
        batcher.took(1, float("inf"))


def test_drafters_beside_each_other_draft_from_each_others_requests():
    def num_steps(drafter):
        prompt = [0, 1, 2, 3, 0, 1]
        [answer] = serve_together([drafter], [(prompt, 3, 60)], Batcher(WIDTHS, COSTS, 16))
        assert answer == plain(prompt, 3, 60)
        return sum(drafter.accept_histogram)

    one = make_drafter(sources=SOURCES, costs=COSTS)
    beside = make_drafter(sources=SOURCES, costs=COSTS, beside=one)
    alone = make_drafter(sources=SOURCES, costs=COSTS)
    first = num_steps(one)
    assert num_steps(beside) < first == num_steps(alone)


def test_a_drafter_beside_that_is_another_kind_is_refused():
    one = make_drafter(sources=SOURCES)
    with pytest.raises(OptionError, match=r"beside.*automaton.*same sources"):
        make_drafter(sources=["automaton"], beside=one)
    with pytest.raises(OptionError, match="beside"):
        make_drafter(sources=["earlier-requests", "automaton"], beside=one)
