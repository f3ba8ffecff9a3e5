"""Repeated measurements: whose turn it is, and how the values are summarised.

In: names, or values of repeats. Out: an order in which a machine that slows down hurts all of them
alike; a median with its spread; percentiles. It measures nothing.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

_T = TypeVar("_T")


class Summary(NamedTuple):
    """A summary of repeats. The spread is the whole range, which makes sense for few values, too.

    Attributes:
        median: The middle value, or the mean of the middle two.
        low: The smallest.
        high: The largest.
    """

    median: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary | None:
    """Median and range; None where there is no value."""
    if not values:
        return None
    return Summary(float(median(values)), float(min(values)), float(max(values)))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` percent of the values lie, linear between neighbours.

    None where there is no value.
    """
    return float(np.percentile(values, share)) if values else None


def ratio(of: float, to: float) -> float | None:
    """`of / to`; None where `to` is 0, which happens where nothing was measured."""
    return of / to if to else None


def rotated(items: Sequence[_T], turn: int) -> list[_T]:
    """All items, from item `turn` on, going round."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]


def in_turns(items: Sequence[_T], num_rounds: int) -> Iterator[_T]:
    """Every item once per round; each round starts one item further than the last."""
    for turn in range(num_rounds):
        yield from rotated(items, turn)
