"""One answer, and what can be seen from outside: its tokens, when they came, the total time.

In: a session, a prompt, and a drafter or none. Out: an `Answered`. What is measured inside a step
is `clocks.py`'s.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordgen_rs.drafting.proposer import DraftProposer
from coordgen_rs.errors import CoordgenError
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.runtime.session import Session


class NotLosslessError(CoordgenError):
    """Methods gave different tokens: a bug, and no figure is worth anything."""


@dataclass(frozen=True)
class Answered:
    """One answer.

    Attributes:
        tokens: Its tokens.
        stats: Counts and times, as `generate` fills them.
        arrivals: For each step, the seconds since the request and the number of tokens given out.
        total_s: Seconds from the request to the last token.
    """

    tokens: list[int]
    stats: Stats
    arrivals: list[tuple[float, int]]
    total_s: float


def answer(
    session: Session,
    prompt: NDArray[np.uint32],
    drafter: DraftProposer | None,
    *,
    max_new_tokens: int,
    ignore_eos: bool = False,
) -> Answered:
    """Answer a prompt, by plain decoding if there is no drafter; see `generate`."""
    stats = Stats()
    start = time.perf_counter()
    if drafter is None:
        steps = plain(
            session, prompt, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, stats=stats
        )
    else:
        steps = generate(
            session,
            prompt,
            max_new_tokens=max_new_tokens,
            ignore_eos=ignore_eos,
            drafter=drafter,
            stats=stats,
        )
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    for step in steps:
        arrivals.append((time.perf_counter() - start, len(step.token_ids)))
        tokens += step.token_ids
    return Answered(tokens, stats, arrivals, time.perf_counter() - start)


def check_same(got: list[int], expected: list[int], name: str, task: str, number: int) -> None:
    """Compare an answer with another method's to the same prompt.

    Raises:
        NotLosslessError: They differ.
    """
    if got != expected:
        raise NotLosslessError(
            f"{name} gave other tokens than the method before it, for prompt {number} of {task}"
        )
