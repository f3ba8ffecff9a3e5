"""Statistics of the bench: on inputs whose answers are known, and their laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.lab.tables import (
    Summary,
    in_turns,
    percentile,
    ratio,
    rotated,
    summarize,
)

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def test_the_median_is_the_middle_or_the_mean_of_the_middle_two():
    assert summarize([3.0, 1.0, 2.0]) == Summary(2.0, 1.0, 3.0)
    assert summarize([4.0, 1.0, 2.0, 9.0]) == Summary(3.0, 1.0, 9.0)
    assert summarize([5.0]) == Summary(5.0, 5.0, 5.0)


def test_nothing_measured_gives_no_figure():
    assert summarize([]) is None
    assert percentile([], 50) is None
    assert ratio(1.0, 0.0) is None


def test_percentiles_lie_linearly_between_neighbours():
    values = [40.0, 10.0, 30.0, 20.0]
    assert percentile(values, 0) == 10
    assert percentile(values, 50) == 25
    assert percentile(values, 90) == pytest.approx(37)
    assert percentile(values, 100) == 40


@given(figures)
def test_half_of_the_values_are_on_each_side_of_the_median(values):
    summary = summarize(values)
    assert summary.low == min(values)
    assert summary.high == max(values)
    assert sum(value <= summary.median for value in values) * 2 >= len(values)
    assert sum(value >= summary.median for value in values) * 2 >= len(values)


@given(figures, st.randoms(use_true_random=False))
def test_the_order_of_repeats_does_not_matter(values, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    assert summarize(shuffled) == summarize(values)
    assert percentile(shuffled, 90) == percentile(values, 90)


@given(figures)
def test_the_median_is_the_fiftieth_percentile(values):
    assert percentile(values, 50) == pytest.approx(summarize(values).median, rel=1e-9, abs=1e-6)


@given(st.integers(1, 6), st.integers(0, 20))
def test_every_item_has_a_turn_in_every_round_and_every_place_in_as_many_rounds(num_items, rounds):
    items = list(range(num_items))
    order = list(in_turns(items, rounds))
    parts = [order[start : start + num_items] for start in range(0, len(order), num_items)]
    assert len(parts) == rounds
    assert all(sorted(part) == items for part in parts)
    for item in items:
        places = [part.index(item) for part in parts[: rounds // num_items * num_items]]
        assert all(places.count(place) == rounds // num_items for place in items)


def test_a_rotation_keeps_the_neighbours():
    assert rotated("abc", 0) == ["a", "b", "c"]
    assert rotated("abc", 4) == ["b", "c", "a"]
    assert rotated([], 3) == []
