"""Section `ablation`: what calibration and reuse add to other drafters (CoordGen, Table 4).

It measures drafting, not time: every step is as wide as the session allows, as on a processor where
rows cost nothing.
"""

from typing import NamedTuple

from coordgen_rs.drafting.drafter import make_drafter
from coordgen_rs.lab.bench.measuring.answers import check_same
from coordgen_rs.lab.bench.measuring.workbench import Workbench
from coordgen_rs.lab.bench.reporting.section import Across, Cell, Chart, Column, Section
from coordgen_rs.lab.bench.sections.methods import ALL

COLUMNS = (
    Column("task"),
    Column("base"),
    Column("adds"),
    Column("tokens_per_step"),
    Column("gain"),
)

BASES: dict[str, tuple[str, ...]] = {
    "prompt-lookup (PLD)": ("prompt-lookup",),
    "sam-earlier-requests (SAM)": ("sam-earlier-requests",),
    "automaton + earlier-requests": ("automaton", "earlier-requests"),
}
"""What drafts by itself, by its name in the table: the paper's two, then ours."""

OURS = ("calibration", "reuse")


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        base: A key of `BASES`.
        ours: The names of `OURS` that are on.
    """

    base: str
    ours: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """All that drafts, by the names that `Drafter` knows."""
        return BASES[self.base] + self.ours


ROWS = [Row(base, ours) for base in BASES for ours in ((), OURS[:1], OURS[1:], OURS)]


Counts = dict[str, tuple[int, int]]
"""Tokens and steps by task, and of all tasks."""


def measure_ablation(bench: Workbench) -> Section:
    """Answer every prompt with every combination of sources, once: counts do not vary."""
    counts = {row: dict.fromkeys((*bench.prompts, ALL), (0, 0)) for row in ROWS}
    total = sum(bench.num_prompts.values())
    for task, prompts in bench.prompts.items():
        drafters = {row: make_drafter(bench.session, row.sources, free_rows=True) for row in ROWS}
        for number, prompt in enumerate(prompts):
            bench.on_progress(f"ablation, {task}", number, total)
            expected = bench.answer(prompt, None).tokens
            for row, drafter in drafters.items():
                answered = bench.answer(prompt, drafter)
                check_same(answered.tokens, expected, " + ".join(row.sources), task, number)
                for counted in (task, ALL):
                    tokens, steps = counts[row][counted]
                    stats = answered.stats
                    counts[row][counted] = tokens + stats.new_tokens, steps + stats.steps
    return Section(
        "ablation",
        f"calibration and reuse added, {bench.session.step_inputs[-1].rows} rows a step",
        "measured",
        COLUMNS,
        [_cells(counts, row, task) for task in (*bench.prompts, ALL) for row in ROWS],
        Chart("bars", "base", ("tokens_per_step",), "adds", "task"),
        [
            "gain: tokens_per_step over those of the base alone",
            "counts, not times: steps are as wide as they can be, whatever a row costs here",
            "earlier requests: those of the same task",
        ],
        Across("task", ("tokens_per_step", "gain")),
    )


def _cells(counts: dict[Row, Counts], row: Row, task: str) -> tuple[Cell, ...]:
    def rate(row: Row) -> float:
        tokens, steps = counts[row][task]
        return tokens / max(steps, 1)

    adds = " + ".join(row.ours) or "nothing"
    return task, row.base, adds, rate(row), rate(row) / rate(Row(row.base, ()))
