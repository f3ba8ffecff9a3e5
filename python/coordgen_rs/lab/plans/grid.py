"""All strategies against the lower bound, over a grid of synthetic profiles.

Blocks are alike, and memory holds one graph a block, as in CoordGen; `resident` alone has no limit.
In: nothing. Out: for each point of the grid each strategy's makespan as a multiple of the bound.
"""

from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

from coordgen_rs._core import BlockCost, plan, strategies
from coordgen_rs.lab.tables import show_table

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
    for title, summed_up in (("mean", fmean), ("worst", max)):
        rows = []
        for num_chunks in (*NUM_CHUNKS, None):
            part = [point for point in grid if num_chunks in (None, point["num_chunks"])]
            ratios = [[point["ratios"][name] for point in part] for name in strategies()]
            cells = [f"{summed_up(of_strategy):.3f}" for of_strategy in ratios]
            rows.append(["all" if num_chunks is None else f"{num_chunks}", *cells])
        show_table(f"makespan / lower bound, {title}", ["chunks", *strategies()], rows)
    show_table(
        "makespan / lower bound, every point",
        ["blocks", "chunks", "load, chunks", "decode / prefill", *strategies()],
        [
            [
                f"{point['num_blocks']}",
                f"{point['num_chunks']}",
                f"{point['load']:g}",
                f"{point['decode_factor']:g}",
                *(f"{point['ratios'][name]:.3f}" for name in strategies()),
            ]
            for point in grid
        ],
    )
