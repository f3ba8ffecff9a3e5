"""Tables on stdout: drawn by rich on a terminal, else Markdown, ready to paste into documents."""

import sys
from collections.abc import Sequence

_WIDEST = 2000


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, num_words: int = 1
) -> None:
    """Print a table: first columns of words, then columns of figures.

    Args:
        title: Printed above the table.
        columns: Their heads.
        rows: One cell per column.
        num_words: Columns of words. If rows share the first word, a line separates the groups.
    """
    if sys.stdout.isatty():
        try:
            _show_drawn(title, columns, rows, num_words)
            return
        except ModuleNotFoundError:  # rich comes with the extra `export`
            pass
    print(f"{title}\n\n{markdown(columns, rows, num_words=num_words)}\n")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], *, num_words: int = 1) -> str:
    """The table in Markdown, aligned so that it also reads well as plain text.

    Args:
        columns: Their heads.
        rows: One cell per column.
        num_words: Columns of words; the others are figures.
    """
    lines = [[cell.replace("|", r"\|") for cell in row] for row in (columns, *rows)]
    widths = [max(3, *map(len, cells)) for cells in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths[:num_words]]
    lines.insert(1, rule + [f"{'-' * (width - 1)}:" for width in widths[num_words:]])
    return "\n".join(f"| {' | '.join(_padded(line, widths, num_words))} |" for line in lines)


def _padded(cells: Sequence[str], widths: Sequence[int], num_words: int) -> list[str]:
    return [
        cell.ljust(width) if index < num_words else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _show_drawn(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], num_words: int
) -> None:
    from rich.console import Console
    from rich.table import Table

    print(title)
    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_words else "right", no_wrap=True)
    firsts = [row[0] for row in rows]
    are_groups = len(set(firsts)) < len(firsts)
    for row, following in zip(rows, [*firsts[1:], *firsts[-1:]], strict=True):
        table.add_row(*row, end_section=are_groups and following != row[0])
    # As wide as needed, even if the terminal is not: a figure that is cut is useless.
    needed = Console(width=_WIDEST).measure(table).maximum
    Console(width=needed).print(table)
