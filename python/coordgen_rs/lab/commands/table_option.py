"""The option `--table`, of commands that measure many cells into one file, and how it is filled."""

import argparse
from collections.abc import Sequence

from coordgen_rs.cli.options import option
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.cli.terminal.progress import progress
from coordgen_rs.lab.commands import ray_option
from coordgen_rs.lab.replay.cells import Cell, evaluate
from coordgen_rs.lab.replay.table_file import open_table

TABLE = option.path("--table FILE").help(
    "fill a table, .json or .parquet, with all combinations; cells that it holds already "
    "are not measured again"
)


def fill(options: argparse.Namespace, cells: Sequence[Cell], *, cores: int = 1) -> int:
    """Measure what the table lacks, and tell which cells failed; then the exit code is 1.

    Args:
        options: The parsed options, with `table` and `ray`.
        cells: What to measure.
        cores: Cores of each cell, where it runs on Ray.
    """
    outputs.check_file("--table", options.table)
    with (
        open_table(options.table) as table,
        ray_option.chosen(options, cores=cores) as tasks,
        progress() as on_progress,
    ):
        done = evaluate(cells, table, tasks, on_progress)
    for failed in done.failed:
        text.tell(f"coordgen: error: {failed}")
    text.tell(
        f"{options.table}: {done.num_run} cells measured, {done.num_kept} were there, "
        f"{len(done.failed)} failed"
    )
    return 1 if done.failed else 0
