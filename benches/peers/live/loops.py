"""Answers that loop: a small model that says the same few words again until it is stopped.

In: the tokens of an answer. Out: whether it loops. Drafting is at its best on such answers, and
nobody wants them, so figures are given with and without them.
"""

from collections.abc import Sequence

REPEATS = 2
SHARE = 0.9
SHORTEST = 8


def loops(tokens: Sequence[int]) -> bool:
    """Whether the second half of an answer is one n-gram, said again and again.

    That is: for some n, at least `SHARE` of the tokens in the half equal the token n places before
    them, and the n-gram fits `REPEATS` times into the half. A half of fewer than `SHORTEST` tokens
    tells nothing.
    """
    tail = tokens[len(tokens) // 2 :]
    return len(tail) >= SHORTEST and any(
        _share_repeated(tail, period) >= SHARE for period in range(1, len(tail) // REPEATS + 1)
    )


def _share_repeated(tail, period):
    same = sum(token == before for token, before in zip(tail[period:], tail, strict=False))
    return same / (len(tail) - period)
