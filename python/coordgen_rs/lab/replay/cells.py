"""Cells of an evaluation: those that a table lacks are run, here or on Ray, and stored one by one.

In: cells, each a file of records or a model with its settings. Out: a table with the rows of all,
and why any failed. What a cell measures is its own matter (`replayed.py`, `measured.py`).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from coordgen_rs.errors import CoordgenError
from coordgen_rs.lab.bench.reporting.condition import commit_of
from coordgen_rs.lab.fleet.tasks import Tasks
from coordgen_rs.lab.replay.table_file import CELL, Row, TableFile


class Cell(Protocol):
    """One measurement; it can be pickled."""

    def settings(self) -> Row:
        """All that its figures depend on, contents of files by their SHA-256."""

    def measure(self) -> list[Row]:
        """Its figures, a row for each task of the records."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation did.

    Attributes:
        num_run: Cells that were measured.
        num_kept: Cells that the table held already.
        failed: The cells that failed, and why.
    """

    num_run: int
    num_kept: int
    failed: list[str]


def evaluate(
    cells: Sequence[Cell],
    table: TableFile,
    tasks: Tasks,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Evaluated:
    """Measure the cells that `table` lacks, and store each as it ends.

    A cell is there if one with the same settings, files and version of this package is. One that
    fails does not end the others, and is tried again by the next evaluation.

    Args:
        cells: What to measure.
        table: Where figures are kept.
        tasks: Where cells run.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Raises:
        TaskLostError: A cell's process was killed, or Ray gave a task up; what ended is stored.
        OSError: The table cannot be written, or a file of a cell not be read.
    """
    known = table.cells
    named = {key_of(cell): (cell.settings(), cell) for cell in cells}
    missing = [key for key in named if key not in known]
    failed: list[str] = []
    on_progress("measuring", 0, len(missing))
    results = tasks.run(_measured, [named[key][1] for key in missing])
    for num_done, (index, (rows, error)) in enumerate(results, 1):
        key = missing[index]
        settings = named[key][0]
        if error is None:
            table.add({CELL: key} | settings | row for row in rows)
        else:
            failed.append(f"{_described(settings)}: {error}")
        on_progress("measuring", num_done, len(missing))
    return Evaluated(len(missing) - len(failed), len(named) - len(missing), failed)


def _measured(cell: Cell) -> tuple[list[Row], str | None]:
    try:
        return cell.measure(), None
    except (CoordgenError, OSError) as error:
        return [], str(error)


def key_of(cell: Cell) -> str:
    """What the rows of a cell, measured by this version, have in the column `CELL`."""
    text = json.dumps({"settings": cell.settings(), "software": _software()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _software() -> dict[str, str | None]:
    return {"version": version("coordgen-rs"), "commit": commit_of(Path(__file__))}


def _described(settings: Row) -> str:
    shown = {name: value for name, value in settings.items() if not name.endswith("sha256")}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, of which each is read once for all cells."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, num_bytes: int, changed_ns: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flattened(figures: dict[str, Any]) -> Row:
    """Figures with parts as columns of their own: `step_us: {"p50": 3}` as `step_us_p50`."""
    row: Row = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            row |= {f"{name}_{part}": inner for part, inner in value.items()}
        else:
            row[name] = value
    return row
