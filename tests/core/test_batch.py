"""Requests that share steps, through the binding: offers, shares, and what is refused."""

import numpy as np
import pytest

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
    make_drafter,
    run_target,
    uint32,
)

SOURCES = ["automaton", "earlier-requests"]


def worths(*values):
    return np.array(values, np.float32)


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


def test_shares_are_of_numbers_alone():
    batcher = Batcher([1, 9], [1.0, (1.8, 0.0)], 64)
    sure, unsure = worths(1.0, 0.9, 0.8, 0.05), worths(1.0, 0.2, 0.02)
    for read in (*[[0, 0]] * 3, [3, 36], [0, 0]):  # four steps have saved what 39 tokens cost
        nodes, tokens, costs = batcher.share([(sure, 1, 0), (unsure, 1, 0)], [(3, 0), (100, 0)])
        assert (nodes, tokens) == ([3, 2], read)
        assert sum(costs) == pytest.approx(1.4)
    assert Batcher([1], None, 4).share([(sure, 1, 0)], []) == ([4], [], [0.0])


def shared(values, least=1, num=1):
    Batcher([1], None, 4).share([(values, least, 0)] * num, [])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Batcher([1, 4], [1.0], 8), ShapeError, "cost"),
        (lambda: Batcher([4, 1], [1.0, 1.0], 8), OptionError, ""),
        (lambda: Batcher([], [], 8), OptionError, ""),
        (lambda: Batcher([1], [0.0], 8), OptionError, "cost"),
        (lambda: Batcher([1], [1.0], 0), OptionError, ""),
        (lambda: Batcher([1], None, 4).took(1, float("inf")), OptionError, "cost"),
        (lambda: shared(worths(1.0).astype(np.float64)), ShapeError, "worths"),
        (lambda: shared(worths(1.0).reshape(1, 1)), ShapeError, "worths"),
        (lambda: shared([1.0]), ShapeError, "worths"),
        (lambda: shared(worths(1.0, 0.5), 0), OptionError, "least"),
        (lambda: shared(worths(1.0, 0.5), 3), OptionError, "least"),
        (lambda: shared(worths(1.0, 0.5, 0.4), 3, 2), InvalidDraftError, ""),
    ],
)
def test_what_cannot_be_used_is_refused(call, error, message):
    with pytest.raises(error, match=message or None):
        call()


def test_a_drafter_beside_that_is_another_kind_is_refused():
    one = make_drafter(sources=SOURCES)
    with pytest.raises(OptionError, match=r"beside.*automaton.*same sources"):
        make_drafter(sources=["automaton"], beside=one)
    with pytest.raises(OptionError, match="beside"):
        make_drafter(sources=["earlier-requests", "automaton"], beside=one)
