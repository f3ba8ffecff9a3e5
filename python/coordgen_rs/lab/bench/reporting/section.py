"""A section of the bench: a table whose columns have units, and the notes needed to read it.

In: rows of figures. Out: the same as JSON types, and as text for a terminal. It knows neither what
is measured nor under which condition (`condition.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from coordgen_rs.lab.bench.measuring.repeats import Summary
from coordgen_rs.lab.tables import show_table

Cell = str | int | float | Summary | None
"""A word, a count, a figure, a figure with its spread, or None where nothing was measured."""

How = Literal["measured", "replayed", "simulated"]
"""Where times come from: this machine, recorded answers, or a model of a machine (an emulator)."""

_SIGNIFICANT = 6


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
    """A table.

    Attributes:
        name: The name in `coordgen bench --sections`.
        title: What it shows.
        how: Where its times come from.
        columns: Those of words first.
        rows: One cell per column.
        notes: What a reader must know to read it right.
        chart: How it is drawn.
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
        heads = [f"{name}, {unit}" if unit else name for name, unit, _ in self.columns]
        cells = [
            [_text(cell, column) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]
        num_words = sum(isinstance(cell, str) for cell in self.rows[0]) if self.rows else 1
        title = f"{self.name}: {self.title} ({self.how})"
        if self.across is None or not self.rows:
            show_table(title, heads, cells, num_words=num_words)
        else:
            print(f"{title}\n")
            names = [column.name for column in self.columns]
            by = names.index(self.across.by)
            figures = [names.index(name) for name in self.across.figures]
            for table in _wide(heads, cells, by, figures, num_words):
                show_table(*table, num_words=num_words - 1)
        for line in (*self.notes, caption):
            print(line)
        print()


Table = tuple[str, list[str], list[list[str]]]
"""Title, heads and rows."""


def _wide(
    heads: list[str], cells: list[list[str]], by: int, figures: list[int], num_words: int
) -> Iterator[Table]:
    """A long table as wide ones, a figure in each; then what else is known of the last word.

    Args:
        heads: The headings of the long table.
        cells: The cells of the long table.
        by: The column whose words become columns.
        figures: The columns that have a table each.
        num_words: Columns of words, that of `by` included.
    """
    kept = [place for place in range(num_words) if place != by]
    words = list(dict.fromkeys(row[by] for row in cells))
    for figure in figures:
        lines: dict[tuple[str, ...], list[str]] = {}
        for row in cells:
            lines.setdefault(tuple(row[place] for place in kept), []).append(row[figure])
        rows = [[*names, *line] for names, line in lines.items()]
        yield heads[figure], [*(heads[place] for place in kept), *words], rows
    rest = [place for place in range(num_words, len(heads)) if place not in figures]
    if rest:
        places = kept + rest
        rows = [[row[place] for place in places] for row in cells if row[by] == words[-1]]
        yield f"{heads[by]}: {words[-1]}", [heads[place] for place in places], rows


def _json_cell(cell: Cell) -> Any:
    if isinstance(cell, Summary):
        return {name: _rounded(value) for name, value in cell._asdict().items()}
    return _rounded(cell) if isinstance(cell, float) else cell


def _rounded(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT}g}")


def _text(cell: Cell, column: Column) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Summary):
        median, low, high = (f"{value:,.{column.digits}f}" for value in cell)
        return median if cell.low == cell.high else f"{median} ({low}..{high})"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.{column.digits}f}"
