"""Section `latency`: how long a user waits, for the first token and between tokens (Figure 10)."""

from collections import defaultdict
from itertools import pairwise

from coordgen_rs.lab.bench.measuring.repeats import percentile, summarize
from coordgen_rs.lab.bench.measuring.workbench import SHOWN, Workbench
from coordgen_rs.lab.bench.reporting.section import Cell, Chart, Column, Section

PERCENTILES = (50, 90, 99)

COLUMNS = (
    Column("task"),
    Column("method"),
    Column("first_token", "ms"),
    Column("per_token", "ms", 3),
    *(Column(f"gap_p{share}", "ms", 3) for share in PERCENTILES),
)


def measure_latency(bench: Workbench) -> Section:
    """Answer every prompt by the shown methods, in turns, and look at when tokens come."""
    first: dict[tuple[str, str], list[float]] = defaultdict(list)
    waits: dict[tuple[str, str], list[float]] = defaultdict(list)
    rates: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for given in bench.answers(SHOWN, bench.drafter):
        key, answered = (given.task, given.method), given.answered
        first[key].append(1e3 * answered.arrivals[0][0])
        waits[key] += gaps_ms(answered.arrivals)
        rates[key][given.repeat].append(1e3 * answered.total_s / len(answered.tokens))
    rows: list[tuple[Cell, ...]] = [
        (
            *key,
            summarize(first[key]),
            summarize([sum(of_one) / len(of_one) for of_one in rates[key].values()]),
            *(percentile(waits[key], share) for share in PERCENTILES),
        )
        for key in ((task, name) for task in bench.prompts for name in SHOWN)
    ]
    return Section(
        "latency",
        "what a user waits for",
        bench.how,
        COLUMNS,
        rows,
        Chart("bars", "task", ("per_token", "gap_p99"), "method"),
        [
            "first_token: median (least to most) of all answers; per_token: whole answers, prefill "
            f"included, the same of {bench.settings.repeats} repeats",
            "gap: time between one token and the next, all answers together; tokens of one step "
            "come at once, so drafting makes many gaps 0 and some as long as a wider step",
        ],
    )


def gaps_ms(arrivals: list[tuple[float, int]]) -> list[float]:
    """Milliseconds between one token and the next, those of one step at once.

    Args:
        arrivals: The seconds and the number of tokens of each step.
    """
    gaps = [0.0] * (arrivals[0][1] - 1) if arrivals else []
    for (before, _), (after, num_tokens) in pairwise(arrivals):
        gaps += [1e3 * (after - before)] + [0.0] * (num_tokens - 1)
    return gaps
