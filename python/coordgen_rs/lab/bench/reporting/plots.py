"""Pictures of the bench's sections, each with its condition at the foot; PNG and SVG.

In: sections that say how they are drawn (`Chart`). Out: two files a section. Needs matplotlib.
"""

from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.lab.bench.measuring.repeats import Summary
from coordgen_rs.lab.bench.reporting.section import Cell, Section

FORMATS = ("png", "svg")

_WIDTH, _WIDTH_OF_SEVERAL, _HEIGHT, _FOOT_CHARACTERS = 7.0, 4.5, 4.0, 110


def check_matplotlib() -> None:
    """Load matplotlib for drawing into files.

    Raises:
        OptionError: It is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise OptionError(f"plots need matplotlib: {how_to_install('plots')}") from error
    matplotlib.use("agg")


def plot_section(section: Section, caption: str, directory: Path) -> list[Path]:
    """Draw a section; nothing where it has no rows.

    Args:
        section: What is drawn.
        caption: Its condition, for the foot.
        directory: Where the files go; made if it is not there.

    Returns:
        The files.

    Raises:
        OptionError: matplotlib is not installed.
        OSError: A file cannot be written.
    """
    check_matplotlib()
    from matplotlib import pyplot

    if not section.rows:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    figure = _figure(section)
    try:
        figure.suptitle(f"{section.name}: {section.title} ({section.how})")
        foot = "\n".join(wrap(caption, _FOOT_CHARACTERS))
        figure.text(0.01, 0.01, foot, fontsize=6, va="bottom")
        figure.tight_layout(rect=(0, 0.07, 1, 1))
        files = [directory / f"{section.name}.{ending}" for ending in FORMATS]
        for file in files:
            figure.savefig(file, dpi=130)
    finally:
        pyplot.close(figure)
    return files


def _figure(section: Section) -> Any:
    """All pictures of a section side by side, on one scale where they show the same columns."""
    from matplotlib import pyplot

    chart = section.chart
    panels = rows_by_word(section, chart.panels, range(len(section.rows)))
    width = _WIDTH_OF_SEVERAL if len(panels) > 1 else _WIDTH
    columns = [chart.y] if chart.kind == "stacked" else [(name,) for name in chart.y]
    figure, grid = pyplot.subplots(
        len(columns),
        len(panels),
        figsize=(width * len(panels), _HEIGHT * len(columns)),
        sharey="row",
        squeeze=False,
    )
    draw = _draw_stacked if chart.kind == "stacked" else _draw
    for line, names in zip(grid, columns, strict=True):
        for axes, (panel, rows) in zip(line, panels.items(), strict=True):
            draw(axes, section, rows, names)
            axes.set_title(panel)
        line[0].set_ylim(bottom=0)  # of the whole line, when all is drawn
        line[0].set_ylabel(_label(section, names))
        if len(line[-1].get_legend_handles_labels()[1]) > 1:
            line[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def rows_by_word(section: Section, column: str | None, rows: Iterable[int]) -> dict[str, list[int]]:
    """Numbers of rows by their word in a column; all under "" without a column."""
    words = [""] * len(section.rows) if column is None else map(str, section.column(column))
    by_word: dict[str, list[int]] = {}
    numbered = list(words)
    for row in rows:
        by_word.setdefault(numbered[row], []).append(row)
    return by_word


def middle(cell: Cell) -> float:
    """The value drawn for a cell: its figure or median; NaN where nothing was measured."""
    if isinstance(cell, Summary):
        return cell.median
    return float("nan") if cell is None else float(cell)


def _spread(cell: Cell) -> tuple[float, float]:
    """How far the least is below and the most above the median."""
    if isinstance(cell, Summary):
        return cell.median - cell.low, cell.high - cell.median
    return 0.0, 0.0


def _draw(axes: Any, section: Section, rows: list[int], names: tuple[str, ...]) -> None:
    """One column: bars beside each other, or lines."""
    chart, cells, places_of = (
        section.chart,
        section.column(names[0]),
        section.column(section.chart.x),
    )
    places = list(dict.fromkeys(places_of[row] for row in rows))
    groups = rows_by_word(section, chart.series, rows)
    width = 0.8 / len(groups)
    for number, (word, of_word) in enumerate(groups.items()):
        values = [middle(cells[row]) for row in of_word]
        spreads = list(zip(*(_spread(cells[row]) for row in of_word), strict=True))
        style = {"label": word, "yerr": spreads if np.any(spreads) else None, "capsize": 2}
        if chart.kind == "lines":
            at = [middle(places_of[row]) for row in of_word]
            axes.errorbar(at, values, marker="o", **style)
        else:
            offset = width * (number - (len(groups) - 1) / 2)
            axes.bar(
                [places.index(places_of[row]) + offset for row in of_word], values, width, **style
            )
    if chart.kind == "lines":
        ticks = [middle(place) for place in places]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(chart.x)
    else:
        _name_places(axes, places)


def _draw_stacked(axes: Any, section: Section, rows: list[int], names: tuple[str, ...]) -> None:
    """Columns on each other; what is below zero is noise, and is not drawn."""
    below = [0.0] * len(rows)
    for name in names:
        cells = section.column(name)
        heights = [max(0.0, middle(cells[row])) for row in rows]
        axes.bar(range(len(rows)), heights, 0.6, bottom=below, label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    _name_places(axes, [section.column(section.chart.x)[row] for row in rows])


def _name_places(axes: Any, places: list[Cell]) -> None:
    longest = max(len(str(place)) for place in places)
    slanted = {"rotation": 20, "ha": "right"} if longest * len(places) > 60 else {}
    axes.set_xticks(range(len(places)), [str(place) for place in places], **slanted)


def _label(section: Section, names: tuple[str, ...]) -> str:
    """What the vertical axis shows: a column with its unit, or the unit that several have."""
    unit = next(column.unit for column in section.columns if column.name == names[0])
    return unit if len(names) > 1 else ", ".join(filter(None, (names[0], unit)))
