"""The table that an evaluation fills: one JSON or Parquet file, whole at any moment.

In: rows, each of which names the cell that it belongs to. Out: the same rows, and which cells are
there. What a cell is, is `cells.py`'s matter.
"""

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coordgen_rs.bundle.json_text import JsonTextError, read_json
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.errors.extras import pyarrow_for
from coordgen_rs.store.files import locked, write_file

KINDS: Final = (".json", ".parquet")
CELL: Final = "cell"
"""The column that names the cell."""

_MOST_BYTES = 1 << 30

Row = dict[str, Any]
"""Column to word, number or None."""


class TableError(CoordgenError):
    """A file is no table of an evaluation, or cannot be read; the message names it."""


@contextmanager
def open_table(path: Path) -> Iterator["TableFile"]:
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
        write_file(self.path, self._bytes())

    def _bytes(self) -> bytes:
        if self.path.suffix == ".json":
            return json.dumps(self.rows, indent=1).encode() + b"\n"
        pyarrow = pyarrow_for(self.path)
        from pyarrow import parquet

        names = list(dict.fromkeys(name for row in self.rows for name in row))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        sink = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), sink)
        return sink.getvalue()

    def _read(self) -> list[Row]:
        try:
            rows = self._read_rows()
        except (JsonTextError, ValueError, OSError) as error:  # pyarrow's errors are of these kinds
            raise TableError(f"{self.path} is no table of an evaluation: {error}") from error
        is_table = isinstance(rows, list) and all(
            isinstance(row, dict) and isinstance(row.get(CELL), str) for row in rows
        )
        if not is_table:
            raise TableError(f"{self.path} is no table of an evaluation: rows have no {CELL!r}")
        return rows

    def _read_rows(self) -> list[Row]:
        if self.path.suffix == ".json":
            rows: list[Row] = read_json(self.path, most_bytes=_MOST_BYTES)
            return rows
        pyarrow_for(self.path)
        from pyarrow import parquet

        return list(parquet.read_table(self.path).to_pylist())
