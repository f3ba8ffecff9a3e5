"""An evaluation: cells that a table lacks are measured, here or on Ray, and stored one by one.

In: cells, each a file of records or a model with its settings, and the option `--table`. Out: one
JSON or Parquet file, whole at any moment, with the rows of all; and why any failed. What a cell
measures is its own matter (`command.py` here, and in `bench/`).
"""

import argparse
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol

from coordgen_rs.cli import option
from coordgen_rs.cli.terminal import outputs, text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.errors.extras import pyarrow_for
from coordgen_rs.errors.json_text import JsonTextError, read_json
from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.lab.fleet.tasks import Tasks, chosen
from coordgen_rs.store.files import locked, write_file

KINDS: Final = (".json", ".parquet")
CELL: Final = "cell"
"""The column that names the cell."""

_MOST_BYTES = 1 << 30

TABLE = option.path("--table FILE").help(
    "fill a table, .json or .parquet, with all combinations; cells that it holds already "
    "are not measured again"
)

Row = dict[str, Any]
"""Column to word, number or None."""


class TableError(CoordgenError):
    """A file is no table of an evaluation, or cannot be read; the message names it."""


class TableFile:
    """A table on disk; `open_table` is for those who fill it.

    Args:
        path: Its name ends in `.json` or `.parquet`; the file need not be there yet.

    Attributes:
        rows: The rows, in the order in which they were added.

    Raises:
        OptionError: It has another ending, or the package pyarrow is missing.
        TableError: What is there is no such table.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in KINDS:
            raise OptionError(f"--table {path}: its name must end in {' or '.join(KINDS)}")
        self.path = path
        if path.suffix == ".parquet":
            pyarrow_for(path)
        self.rows: list[Row] = self._read() if path.exists() else []

    @property
    def cells(self) -> set[str]:
        """The cells that are there."""
        return {row[CELL] for row in self.rows}

    def add(self, rows: Iterable[Row]) -> None:
        """Append the rows of a cell, and replace the file."""
        self.rows += rows
        if self.path.suffix == ".json":
            write_file(self.path, json.dumps(self.rows, indent=1).encode() + b"\n")
            return
        from pyarrow import parquet

        names = list(dict.fromkeys(name for row in self.rows for name in row))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        sink = io.BytesIO()
        parquet.write_table(pyarrow_for(self.path).table(columns), sink)
        write_file(self.path, sink.getvalue())

    def _read(self) -> list[Row]:
        rows: Any
        try:
            if self.path.suffix == ".json":
                rows = read_json(self.path, most_bytes=_MOST_BYTES)
            else:
                from pyarrow import parquet

                rows = parquet.read_table(self.path).to_pylist()
        except (JsonTextError, ValueError, OSError) as error:  # pyarrow's errors are of these kinds
            raise TableError(f"{self.path} is no table of an evaluation: {error}") from error
        is_table = isinstance(rows, list) and all(
            isinstance(row, dict) and isinstance(row.get(CELL), str) for row in rows
        )
        if not is_table:
            raise TableError(f"{self.path} is no table of an evaluation: rows have no {CELL!r}")
        found: list[Row] = rows
        return found


@contextmanager
def open_table(path: Path) -> Iterator[TableFile]:
    """A table that no other process fills until the block ends.

    Raises:
        OptionError: Same as in `TableFile`.
        TableError: Same as there; or another process fills it now.
        OSError: Its directory cannot be written to.
    """
    with locked(path) as is_mine:
        if not is_mine:
            raise TableError(
                f"another command is filling {path}: wait for it, or give this one another --table"
            )
        yield TableFile(path)


class Cell(Protocol):
    """One measurement; it can be pickled."""

    def settings(self) -> Row:
        """All that its figures depend on, contents of files by their SHA-256."""

    def measure(self) -> list[Row]:
        """Its figures, a row for each task of the records."""


@dataclass(frozen=True)
class EvaluationResult:
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
) -> EvaluationResult:
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
            shown = (
                f"{name} {value}"
                for name, value in settings.items()
                if value is not None and not name.endswith("sha256")
            )
            failed.append(f"{', '.join(shown)}: {error}")
        on_progress("measuring", num_done, len(missing))
    return EvaluationResult(len(missing) - len(failed), len(named) - len(missing), failed)


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


def fill(options: argparse.Namespace, cells: Sequence[Cell], *, cores: int = 1) -> int:
    """Measure what the table of `--table` lacks, and tell which cells failed; then the code is 1.

    Args:
        options: The parsed options, with `table` and `ray`.
        cells: What to measure.
        cores: Cores of each cell, where it runs on Ray.
    """
    outputs.check_file("--table", options.table)
    with (
        open_table(options.table) as table,
        chosen(options, cores=cores) as tasks,
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
