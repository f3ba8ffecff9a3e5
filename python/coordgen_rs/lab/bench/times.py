"""Sections on when an answer comes: `latency` (Figure 10), and `breakdown` of its time (Figure 13).

In: a `Workbench`. Out: a row for each task and method of the papers' figures.
"""

from collections import defaultdict
from itertools import pairwise

from coordgen_rs._core import Drafter
from coordgen_rs.lab.bench.clocks import ClockedDrafter, ClockedHead
from coordgen_rs.lab.bench.workbench import PAPER_METHODS, TimedAnswer, Workbench
from coordgen_rs.lab.tables import Chart, Column, Section, percentile, summarize

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
        (
            Column("task"),
            Column("method"),
            Column("first_token", "ms"),
            Column("per_token", "ms", 3),
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
            return ClockedDrafter(drafter, head) if isinstance(drafter, Drafter) else None

        for given in bench.answers(PAPER_METHODS, clocked):
            for part, seconds in parts(given.answered, given.drafter).items():
                sums[given.task, given.method][given.repeat][part] += seconds
    shown = (*PARTS, "total")
    return Section(
        "breakdown",
        "parts of the time of an answer",
        bench.how,
        (Column("task"), Column("method"), *(Column(part, "ms", 1) for part in shown)),
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
