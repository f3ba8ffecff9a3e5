"""Speed with drafts beside speed without, for `coordgen generate --compare`.

In: the answer that was shown, and a way to answer the same prompt again. Out: medians of both
sides, and whether all answers were the same. It prints nothing.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from coordgen_rs.model.answer import Answer

LEAST_S = 1.0
"""An answer may take 20 ms, in which another process can be in the way for most of the time."""

MOST_S = 3.0
"""No round starts later than this."""

STEADY_WITHIN = 1.05
"""How far apart the ends of the interval of the speedup may lie, as a ratio."""

_REMEMBERING = {
    "earlier-requests",
    "history",
    "lookup-table",
    "recent",
    "sam-earlier-requests",
    "token-recycling",
}
"""Sources that would draft a second answer from the first."""


@dataclass(frozen=True)
class PlainComparison:
    """What both sides took.

    Attributes:
        tokens_per_s: With drafts, decoding only; the median of all rounds.
        plain_tokens_per_s: The same without drafts.
        rounds: How often each side answered.
        identical: Whether every answer had the same tokens.
    """

    tokens_per_s: float
    plain_tokens_per_s: float
    rounds: int
    identical: bool

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return {
            "tokens_per_s": round(self.tokens_per_s, 2),
            "plain_tokens_per_s": round(self.plain_tokens_per_s, 2),
            "compare_rounds": self.rounds,
            "identical": self.identical,
        }


def compare(
    answer: Answer,
    again: Callable[[bool], Answer],
    *,
    is_stored: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> PlainComparison:
    """Answer in turns, with and without drafts, until the speedup is steady or time is up.

    Which side begins changes from round to round. `answer` is the first round's with drafts. There
    is no second round where a second answer would be drafted from the first, or would be kept as
    another request: its speed would not be that of a first answer. There is none either after two
    answers that differ.

    Args:
        answer: With drafts, as it was shown.
        again: Answers the same prompt; its argument says whether with drafts.
        is_stored: Whether answers with drafts are kept in a history.
        clock: Seconds that only grow.
    """
    start = clock()
    rounds = [(answer, again(False))]
    can_repeat = not is_stored and not _REMEMBERING & answer.stats.per_source.keys()
    while can_repeat and _all_same(rounds):
        elapsed_s = clock() - start
        is_done = elapsed_s >= LEAST_S and is_steady([_speedup(*pair) for pair in rounds])
        if is_done or elapsed_s >= MOST_S:
            break
        plain_first = len(rounds) % 2 == 1
        answers = {drafts: again(drafts) for drafts in (not plain_first, plain_first)}
        rounds.append((answers[True], answers[False]))
    drafted, plain = zip(*rounds, strict=True)
    return PlainComparison(
        tokens_per_s=median(given.stats.tokens_per_s for given in drafted),
        plain_tokens_per_s=median(given.stats.tokens_per_s for given in plain),
        rounds=len(rounds),
        identical=_all_same(rounds),
    )


def is_steady(speedups: list[float]) -> bool:
    """Whether the median is known to `STEADY_WITHIN`, at 95 % confidence.

    The interval is that of order statistics (the binomial distribution, in its normal
    approximation), which assumes nothing of how times are spread. Below six values there is none.
    """
    count = len(speedups)
    if count < 6:
        return False
    ordered = sorted(speedups)
    reach = 0.98 * math.sqrt(count)
    low = ordered[max(0, math.floor(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach) - 1)]
    return high <= STEADY_WITHIN * low


def _speedup(drafted: Answer, plain: Answer) -> float:
    return plain.stats.decode_s / drafted.stats.decode_s


def _all_same(rounds: list[tuple[Answer, Answer]]) -> bool:
    return len({given.token_ids for pair in rounds for given in pair}) == 1
