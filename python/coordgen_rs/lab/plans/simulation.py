"""Simulations without a model: all strategies over a grid of profiles, and decoding by widths.

`plan_grid` holds each strategy against the lower bound, over synthetic profiles: blocks are alike,
and memory holds one graph a block, as in CoordGen; `resident` alone has no limit. `simulate_decode`
says what a token would cost with graphs of some widths, before they are compiled, from the time of
a step by its rows and from how well drafts are accepted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from coordgen_rs._core import BlockCost, plan, strategies
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.tables import Cell, Column, show_table

NUM_BLOCKS = (6, 12, 28)
NUM_CHUNKS = (1, 2, 4, 8, 16)
LOADS = (0.5, 1.5, 3.0, 6.0)
"""Time of a load, in chunks of its block."""
DECODE_FACTORS = (1.0, 1.3, 2.0)
"""Time of a chunk under the decode graph, in that under the prefill graph."""

_PREFILL_ROWS, _PIECES = 256, 8
_COMPUTE_US = 10_000


def plan_grid(on_progress: Callable[[str, int, int], None]) -> list[dict[str, Any]]:
    """One entry per point: its coordinates and `ratios {strategy: makespan / lower bound}`."""
    points = list(product(NUM_BLOCKS, NUM_CHUNKS, LOADS, DECODE_FACTORS))
    grid = []
    for done, (num_blocks, num_chunks, load, factor) in enumerate(points):
        on_progress("planning", done, len(points))
        decode_us = round(_COMPUTE_US * factor / _PIECES)
        load_us = round(_COMPUTE_US * load)
        block = BlockCost(
            prefill_load_us=load_us,
            prefill_compute_us=_COMPUTE_US,
            prefill_bytes=1,
            decode_load_us=load_us,
            decode_compute_us=decode_us,
            decode_bytes=1,
        )
        ratios = {}
        for strategy in strategies():
            planned = plan(
                [block] * num_blocks,
                _PREFILL_ROWS,
                _PREFILL_ROWS // _PIECES,
                num_chunks * _PREFILL_ROWS,
                strategy=strategy,
                memory_budget=None if strategy == "resident" else num_blocks,
            )
            ratios[strategy] = planned.makespan_us / planned.lower_bound_us
        grid.append(
            {
                "num_blocks": num_blocks,
                "num_chunks": num_chunks,
                "load": load,
                "decode_factor": factor,
                "ratios": ratios,
            }
        )
    return grid


def show_grid(grid: list[dict[str, Any]]) -> None:
    """Print a summary by number of chunks, and every point."""
    ratios = [Column(name, digits=3) for name in strategies()]
    kinds: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "worst": max}
    for title, summed_up in kinds.items():
        rows: list[list[Cell]] = []
        for num_chunks in (*NUM_CHUNKS, None):
            part = [point for point in grid if num_chunks in (None, point["num_chunks"])]
            of_all = [[point["ratios"][name] for point in part] for name in strategies()]
            rows.append([str(num_chunks or "all"), *map(summed_up, of_all)])
        show_table(f"makespan / lower bound, {title}", ["chunks", *ratios], rows)
    show_table(
        "makespan / lower bound, every point",
        ["blocks", "chunks", "load, chunks", "decode / prefill", *ratios],
        [
            [f"{value:g}" for name, value in point.items() if name != "ratios"]
            + [point["ratios"][name] for name in strategies()]
            for point in grid
        ],
    )


@dataclass(frozen=True)
class WidthFigures:
    """One width: its step in milliseconds, and what it brings."""

    rows: int
    step_ms: float
    tokens_per_step: float

    @property
    def ms_per_token(self) -> float:
        """Expected milliseconds per token."""
        return self.step_ms / self.tokens_per_step

    def to_json(self) -> dict[str, float]:
        """The figures under the names that `coordgen plan --json` prints."""
        return {
            "step_ms": self.step_ms,
            "tokens_per_step": self.tokens_per_step,
            "ms_per_token": self.ms_per_token,
        }


def tokens_per_step(rows: int, acceptance_rate: float) -> float:
    """Expected tokens of a step over a chain of `rows - 1` draft tokens.

    Each draft token is right with the same chance, whatever came before it (Leviathan et al. 2023,
    Eq. 1): `(1 - rate ** rows) / (1 - rate)`.
    """
    return sum(acceptance_rate**depth for depth in range(rows))


def step_us(step_us_by_width: Mapping[int, float], rows: int) -> float:
    """Microseconds of a step of `rows` rows: as in the profile, or on the line between two of it.

    Raises:
        OptionError: The profile has no such width between its own.
    """
    below = max((width for width in step_us_by_width if width <= rows), default=None)
    above = min((width for width in step_us_by_width if width >= rows), default=None)
    if below is None or above is None:
        known = ", ".join(map(str, sorted(step_us_by_width))) or "none"
        raise OptionError(f"the profile has steps of {known} rows, which do not enclose {rows}")
    if below == above:
        return step_us_by_width[rows]
    part = (rows - below) / (above - below)
    return (1 - part) * step_us_by_width[below] + part * step_us_by_width[above]


def simulate_decode(
    step_us_by_width: Mapping[int, float],
    widths: Sequence[int],
    *,
    acceptance_rate: float | None = None,
    known_tokens_per_step: Mapping[int, float] | None = None,
    drafting_us: float = 0.0,
) -> list[WidthFigures]:
    """Figures of each width, in the order of `widths`.

    Args:
        step_us_by_width: Measured steps; widths between them are interpolated.
        widths: Rows of the graphs to judge; a width of 1 drafts nothing.
        acceptance_rate: Chance that a draft token is right.
        known_tokens_per_step: Measured values to use instead, by width; 1 needs no entry.
        drafting_us: Microseconds of drafting, a step that drafts.

    Raises:
        OptionError: Not exactly one kind of acceptance is given, measured values lack a width or
            are out of range, or a width is not within the profile's.
    """
    if (acceptance_rate is None) == (known_tokens_per_step is None):
        raise OptionError("give either an acceptance rate or tokens a step by width")
    figures = []
    for rows in widths:
        time = step_us(step_us_by_width, rows) + (drafting_us if rows > 1 else 0.0)
        if acceptance_rate is not None:
            tokens = tokens_per_step(rows, acceptance_rate)
        else:
            tokens = _known(known_tokens_per_step or {}, rows)
        figures.append(WidthFigures(rows, time / 1e3, tokens))
    return figures


def _known(known_tokens_per_step: Mapping[int, float], rows: int) -> float:
    tokens = known_tokens_per_step.get(rows, 1.0 if rows == 1 else None)
    if tokens is None:
        raise OptionError(f"tokens a step of {rows} rows are not given")
    if not 1 <= tokens <= rows:
        raise OptionError(f"tokens a step of {rows} rows are {tokens}, but must be 1 to {rows}")
    return tokens
