"""Tables of figures: a column is a head and how its cell is written.

In: rows as dicts. Out: what `show_table` prints. A cell is a format string over its row, such as
`x{speedup:.2f}`, or a function of it; it is `-` where a figure that it names is None.
"""

from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any

from coordgen_rs.lab.tables import show_table

Row = Mapping[str, Any]
ABSENT = "-"


class _Cells(Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        found = super().get_field(field_name, args, kwargs)
        if found[0] is None:
            raise LookupError(field_name)
        return found


def cell(written: str | Callable[[Any], str], row: Row) -> str:
    """One cell of a row."""
    if callable(written):
        return written(row)
    try:
        return _Cells().vformat(written, (), row)
    except LookupError:
        return ABSENT


def show_rows(
    title: str,
    rows: Iterable[Row],
    columns: Mapping[str, str | Callable[[Any], str]],
    *,
    num_words: int = 1,
) -> None:
    """Print a table; columns are heads with how a cell is written, as `cell` takes it."""
    cells = [[cell(written, row) for written in columns.values()] for row in rows]
    show_table(title, list(columns), cells, num_words=num_words)
