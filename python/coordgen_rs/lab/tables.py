"""Figures of repeated measurements: taken in turns, summarised, and told as tables or as JSON.

In: values of repeats; rows of cells under columns that have units. Out: medians with their ranges;
a table on stdout, drawn by rich on a terminal and else in Markdown, ready to paste into documents;
the same as JSON types. Nothing is measured here, and `plots.py` draws.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

_T = TypeVar("_T")
_SIGNIFICANT = 6
_WIDEST = 2000


class Summary(NamedTuple):
    """A summary of repeats. The spread is the whole range, which makes sense for few values, too.

    Attributes:
        median: The middle value, or the mean of the middle two.
        low: The smallest.
        high: The largest.
    """

    median: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary | None:
    """Median and range; None where there is no value."""
    if not values:
        return None
    return Summary(float(median(values)), float(min(values)), float(max(values)))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` percent of the values lie, linear between neighbours.

    None where there is no value.
    """
    return float(np.percentile(values, share)) if values else None


def ratio(of: float, to: float) -> float | None:
    """`of / to`; None where `to` is 0, which happens where nothing was measured."""
    return of / to if to else None


def rotated(items: Sequence[_T], turn: int) -> list[_T]:
    """All items, from item `turn` on, going round."""
    first = turn % len(items) if items else 0
    return [*items[first:], *items[:first]]


def in_turns(items: Sequence[_T], num_rounds: int) -> Iterator[_T]:
    """Every item once per round; each round starts one item further than the last.

    So a machine that slows down hurts all of them alike.
    """
    for turn in range(num_rounds):
        yield from rotated(items, turn)


ALL = "all"
"""The task of what is summed over all tasks."""

Cell = str | int | float | Summary | None
"""A word, a count, a figure, a figure with its spread, or None where nothing was measured."""

How = Literal["measured", "replayed", "simulated", "not possible here"]
"""How figures came about: on this machine, from recorded answers, or a model of a machine."""
NOT_POSSIBLE: Final = "not possible here"


class Column(NamedTuple):
    """A column.

    Attributes:
        name: Its key in JSON, and its heading.
        unit: The unit of its figures; "" for words, counts and ratios.
        digits: Digits after the decimal point, when printed.
    """

    name: str
    unit: str = ""
    digits: int = 2

    @property
    def head(self) -> str:
        """The heading with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, cell: Cell) -> str:
        """A cell of the column, as it is printed."""
        if cell is None or isinstance(cell, str):
            return "-" if cell is None else cell
        if isinstance(cell, Summary):
            middle, low, high = (f"{value:,.{self.digits}f}" for value in cell)
            return middle if cell.low == cell.high else f"{middle} ({low}..{high})"
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.{self.digits}f}"


def columns_of(*given: str | Column) -> tuple[Column, ...]:
    """Columns; of one without a unit, whose figures have two digits, its name will do."""
    return tuple(Column(one) if isinstance(one, str) else one for one in given)


class Chart(NamedTuple):
    """How a section is drawn.

    Attributes:
        kind: "bars" beside each other, bars "stacked" on each other, or "lines".
        x: The column of the places on the horizontal axis.
        y: The columns drawn: each in a picture of its own, but for stacked ones.
        series: The column whose words tell bars or lines apart; None for one series.
        panels: The column whose words have a picture each; None for one picture.
    """

    kind: Literal["bars", "stacked", "lines"]
    x: str
    y: tuple[str, ...]
    series: str | None = None
    panels: str | None = None


class Across(NamedTuple):
    """How a long table is printed wide, as papers have it: one table per figure.

    Attributes:
        by: The column whose words become columns; the last of them stands for all.
        figures: Columns that are printed as a table each. The others of the last word share one.
    """

    by: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A section of the bench: a table, and the notes needed to read it.

    Attributes:
        name: The name in `coordgen bench --sections`.
        title: What it shows.
        how: Where its times come from.
        columns: Those of words first.
        rows: One cell per column.
        chart: How it is drawn.
        notes: What a reader must know to read it right.
        across: How it is printed when it is long; the JSON does not change.
    """

    name: str
    title: str
    how: How
    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    chart: Chart
    notes: list[str] = field(default_factory=list)
    across: Across | None = None

    def column(self, name: str) -> list[Cell]:
        """The cells of a column."""
        index = [column.name for column in self.columns].index(name)
        return [row[index] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The section as JSON types; rows are objects by the columns' names."""
        names = [column.name for column in self.columns]
        return {
            "title": self.title,
            "how": self.how,
            "units": {column.name: column.unit for column in self.columns},
            "rows": [dict(zip(names, map(_json_cell, row), strict=True)) for row in self.rows],
            "notes": self.notes,
        }

    def show(self, caption: str) -> None:
        """Print the table on stdout, with its condition and notes below."""
        num_words = sum(isinstance(cell, str) for cell in self.rows[0]) if self.rows else 1
        title = f"{self.name}: {self.title} ({self.how})"
        if self.across is None or not self.rows:
            show_table(title, self.columns, self.rows, num_words=num_words)
        else:
            print(f"{title}\n")
            for name, columns, rows in self._wide(self.across, num_words):
                show_table(name, columns, rows, num_words=num_words - 1)
        for line in (*self.notes, caption):
            print(line)
        print()

    def _wide(
        self, across: Across, num_words: int
    ) -> Iterator[tuple[str, list[Column], list[list[Cell]]]]:
        """A long table as wide ones, a figure in each; then what else is known of the last word."""
        names = [column.name for column in self.columns]
        by, figures = names.index(across.by), [names.index(name) for name in across.figures]
        kept = [place for place in range(num_words) if place != by]
        words = list(dict.fromkeys(str(row[by]) for row in self.rows))
        for figure in figures:
            lines: dict[tuple[Cell, ...], list[Cell]] = {}
            for row in self.rows:
                lines.setdefault(tuple(row[place] for place in kept), []).append(row[figure])
            shown = self.columns[figure]
            heads = [self.columns[place] for place in kept]
            heads += [Column(word, digits=shown.digits) for word in words]
            yield shown.head, heads, [[*first, *line] for first, line in lines.items()]
        rest = [place for place in range(num_words, len(names)) if place not in figures]
        if rest:
            places = kept + rest
            of_last = [row for row in self.rows if row[by] == words[-1]]
            rows = [[row[place] for place in places] for row in of_last]
            title = f"{self.columns[by].head}: {words[-1]}"
            yield title, [self.columns[place] for place in places], rows


def _json_cell(cell: Cell) -> Any:
    if isinstance(cell, Summary):
        return {name: _rounded(value) for name, value in cell._asdict().items()}
    return _rounded(cell) if isinstance(cell, float) else cell


def _rounded(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT}g}")


def tell(as_json: bool, document: Any, show: Callable[[], object]) -> None:
    """Print a document as one line of JSON, or what `show` prints instead."""
    if as_json:
        print(json.dumps(document))
    else:
        show()


def show_table(
    title: str,
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[Cell]],
    *,
    num_words: int = 1,
) -> None:
    """Print a table: first columns of words, then columns of figures.

    Args:
        title: Printed above the table.
        columns: Their heads; as a `Column` with how its cells are printed.
        rows: One cell per column.
        num_words: Columns of words. If rows share the first word, a line separates the groups.
    """
    made = columns_of(*columns)
    heads = [column.head for column in made]
    texts = [[one.text(cell) for one, cell in zip(made, row, strict=True)] for row in rows]
    if sys.stdout.isatty():
        try:
            _show_drawn(title, heads, texts, num_words)
            return
        except ModuleNotFoundError:  # rich comes with the extra `export`
            pass
    print(f"{title}\n\n{markdown(heads, texts, num_words=num_words)}\n")


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], *, num_words: int = 1) -> str:
    """The table in Markdown, aligned so that it also reads well as plain text.

    Args:
        heads: The columns' heads.
        rows: One text per column.
        num_words: Columns of words; the others are figures.
    """
    lines = [[cell.replace("|", r"\|") for cell in row] for row in (heads, *rows)]
    widths = [max(3, *map(len, cells)) for cells in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths[:num_words]]
    lines.insert(1, rule + [f"{'-' * (width - 1)}:" for width in widths[num_words:]])

    def padded(cells: Sequence[str]) -> list[str]:
        words = zip(cells[:num_words], widths, strict=False)
        figures = zip(cells[num_words:], widths[num_words:], strict=True)
        return [w.ljust(n) for w, n in words] + [f.rjust(n) for f, n in figures]

    return "\n".join(f"| {' | '.join(padded(line))} |" for line in lines)


def _show_drawn(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], num_words: int
) -> None:
    from rich.console import Console
    from rich.table import Table

    print(title)
    table = Table()
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index < num_words else "right", no_wrap=True)
    firsts = [row[0] for row in rows]
    are_groups = len(set(firsts)) < len(firsts)
    for row, following in zip(rows, [*firsts[1:], *firsts[-1:]], strict=True):
        table.add_row(*row, end_section=are_groups and following != row[0])
    # As wide as needed, even if the terminal is not: a figure that is cut is useless.
    needed = Console(width=_WIDEST).measure(table).maximum
    Console(width=needed).print(table)
