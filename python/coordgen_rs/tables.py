"""Tables on stdout: with rich where it is installed, else in plain columns."""

import sys
from collections.abc import Sequence

_PIPED_WIDTH = 200


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are figures."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        _show_plain(title, columns, rows)
        return
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # A pipe has no width of its own: the table is printed whole.
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _show_plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    print(title)
    for row in [columns, *rows]:
        first, *figures = [
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join([first, *figures]).rstrip())
