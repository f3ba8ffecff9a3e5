"""Sections on when an answer comes: `latency` (Figure 10), and `breakdown` of its time (Figure 13).

In: a `Workbench`. Out: a row for each task and method of the papers' figures. The seconds of the
parts are told by clocks around a head and a drafter, which change nothing of what is computed.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs
from coordgen_rs.generation.drafting.draft_model import ModelDrafter
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.lab.bench.workbench import PAPER_METHODS, TimedAnswer, Workbench
from coordgen_rs.lab.tables import Chart, Column, Section, columns_of, percentile, summarize
from coordgen_rs.runtime.device import Buffers, Device


class ClockedHead:
    """The head of a device, which knows how long it has run while this is entered.

    Args:
        device: Does the work.

    Attributes:
        seconds: Seconds of all runs; what the reader of a chunk's logits does does not count.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._logits, self.seconds = device, device.logits, 0.0

    def __enter__(self) -> Self:
        vars(self._device)["logits"] = self.logits
        return self

    def __exit__(self, *_: object) -> None:
        del vars(self._device)["logits"]

    def logits(self, buffers: Buffers, first: int, end: int) -> NDArray[np.float32]:
        """Same as in `Device`."""
        start = time.perf_counter()
        logits = self._logits(buffers, first, end)
        self.seconds += time.perf_counter() - start
        return logits


class ClockedDrafter(WrappedDrafter):
    """A drafter that knows how long each part of a request took.

    Args:
        drafter: Does the work.
        head: The session's; what it does before the first draft, it does for calibration.

    Attributes:
        begin_s, propose_s, accept_s: Seconds of this request in these calls.
        verify_s: Seconds between `propose` and `accept`.
        calibration_s: Seconds of the head over the prompt, and of reading what it says.
        draft_lens: How often a tree of so many nodes was proposed, in all requests.
    """

    def __init__(self, drafter: Drafter | ModelDrafter, head: ClockedHead) -> None:
        super().__init__(drafter)  # type: ignore[arg-type]
        self._head, self._proposed_at = head, 0.0
        self.begin_s = self.propose_s = self.accept_s = self.verify_s = self.calibration_s = 0.0
        self.draft_lens: Counter[int] = Counter()

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        """Same as in `Drafter`; all clocks start anew."""
        self.begin_s = self.propose_s = self.accept_s = self.verify_s = self.calibration_s = 0.0
        self._head.seconds, self._is_prompt_read = 0.0, False
        with self._clock("begin_s"):
            self.drafter.begin(prompt_ids, *limits, **options)

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        with self._clock("calibration_s"):
            self.drafter.prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        if not self._is_prompt_read:
            self._is_prompt_read = True
            self.calibration_s += self._head.seconds
        with self._clock("propose_s"):
            inputs = self.drafter.propose(past_len)
        self.draft_lens[inputs.num_nodes - 1] += 1
        self._proposed_at = time.perf_counter()
        return inputs

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        self.verify_s += time.perf_counter() - self._proposed_at
        with self._clock("accept_s"):
            return self.drafter.accept(logits)

    @property
    def draft_s(self) -> float:
        """Seconds of this request in all that drafts."""
        return self.begin_s + self.propose_s + self.accept_s

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the attribute `name`."""
        start = time.perf_counter()
        yield
        setattr(self, name, getattr(self, name) + time.perf_counter() - start)


PERCENTILES = (50, 90, 99)
PARTS = ("prefill", "decode", "calibration", "draft", "switch", "other")

_Key = tuple[str, str]


def measure_latency(bench: Workbench) -> Section:
    """Answer every prompt by the shown methods, in turns, and look at when tokens come."""
    first: dict[_Key, list[float]] = defaultdict(list)
    waits: dict[_Key, list[float]] = defaultdict(list)
    rates: dict[_Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for given in bench.answers(PAPER_METHODS, bench.drafter):
        key, answered = (given.task, given.method), given.answered
        first[key].append(1e3 * answered.arrivals[0][0])
        waits[key] += gaps_ms(answered.arrivals)
        rates[key][given.repeat].append(1e3 * answered.total_s / len(answered.tokens))
    return Section(
        "latency",
        "what a user waits for",
        bench.how,
        columns_of(
            *("task", "method", Column("first_token", "ms"), Column("per_token", "ms", 3)),
            *(Column(f"gap_p{share}", "ms", 3) for share in PERCENTILES),
        ),
        [
            (
                *key,
                summarize(first[key]),
                summarize([sum(of_one) / len(of_one) for of_one in rates[key].values()]),
                *(percentile(waits[key], share) for share in PERCENTILES),
            )
            for key in _keys(bench)
        ],
        Chart("bars", "task", ("per_token", "gap_p99"), "method"),
        [
            "first_token: median (least to most) of all answers; per_token: whole answers, prefill "
            f"included, the same of {bench.settings.repeats} repeats",
            "gap: time between one token and the next, all answers together; tokens of one step "
            "come at once, so drafting makes many gaps 0 and some as long as a wider step",
        ],
    )


def _keys(bench: Workbench) -> list[_Key]:
    return [(task, name) for task in bench.prompts for name in PAPER_METHODS]


def gaps_ms(arrivals: list[tuple[float, int]]) -> list[float]:
    """Milliseconds between one token and the next, those of one step at once.

    Args:
        arrivals: The seconds and the number of tokens of each step.
    """
    gaps = [0.0] * (arrivals[0][1] - 1) if arrivals else []
    for (before, _), (after, num_tokens) in pairwise(arrivals):
        gaps += [1e3 * (after - before)] + [0.0] * (num_tokens - 1)
    return gaps


def measure_breakdown(bench: Workbench) -> Section:
    """Answer every prompt by the shown methods, in turns, with clocks around the parts."""
    sums: dict[_Key, dict[int, dict[str, float]]]
    sums = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    with ClockedHead(bench.session.device) as head:

        def clocked(name: str) -> ClockedDrafter | None:
            drafter = bench.drafter(name)
            return None if drafter is None else ClockedDrafter(drafter, head)

        for given in bench.answers(PAPER_METHODS, clocked):
            for part, seconds in parts(given.answered, given.drafter).items():
                sums[given.task, given.method][given.repeat][part] += seconds
    shown = (*PARTS, "total")
    return Section(
        "breakdown",
        "parts of the time of an answer",
        bench.how,
        columns_of("task", "method", *(Column(part, "ms", 1) for part in shown)),
        [
            (
                *key,
                *(
                    summarize([1e3 / len(bench.prompts[key[0]]) * of[part] for of in by.values()])
                    for part in shown
                ),
            )
            for key, by in ((key, sums[key]) for key in _keys(bench))
        ],
        Chart("stacked", "task", PARTS, panels="method"),
        [
            f"mean of a task's prompts, median (least to most) of {bench.settings.repeats} repeats",
            "decode: runs of the decode graphs, which verify; calibration: the head over the "
            "prompt, and the tree of what it says; draft: reading the prompt, propose, accept",
            "switch: what compute waited for loads in the prefill; 0 where both graphs of a block "
            "are in memory",
        ],
    )


def parts(answered: TimedAnswer, drafter: ClockedDrafter | None) -> dict[str, float]:
    """The seconds of an answer by part; "other" is what is left of the total."""
    stats, switch_s = answered.stats, answered.exposed_us / 1e6
    found = {
        "calibration": 0.0 if drafter is None else drafter.calibration_s,
        "draft": 0.0 if drafter is None else drafter.draft_s,
        "decode": stats.decode_s if drafter is None else drafter.verify_s,
        "switch": switch_s,
    }
    found["prefill"] = stats.prefill_s - switch_s - found["calibration"]
    found["other"] = answered.total_s - sum(found.values())
    return found | {"total": answered.total_s}
