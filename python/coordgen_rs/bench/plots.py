"""Pictures of the bench's sections, each with its condition at the foot; PNG and SVG.

In: sections that say how they are drawn (`Chart`). Out: two files a section. Needs matplotlib.
"""

from pathlib import Path
from textwrap import wrap
from typing import Any

from coordgen_rs.bench.repeats import Summary
from coordgen_rs.bench.section import Cell, Section
from coordgen_rs.errors import OptionError

FORMATS = ("png", "svg")

_WIDTH, _HEIGHT, _FOOT_CHARACTERS = 8.0, 4.2, 150


def check_matplotlib() -> None:
    """Raises OptionError where matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise OptionError("plots need matplotlib: pip install 'coordgen-rs[plots]'") from error
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
    chart = section.chart
    groups = series_of(section)
    pictures = list(groups) if chart.kind == "stacked" else list(chart.y)
    figure, grid = pyplot.subplots(
        1, len(pictures), figsize=(_WIDTH * len(pictures), _HEIGHT), squeeze=False
    )
    try:
        for axes, picture in zip(grid[0], pictures, strict=True):
            if chart.kind == "stacked":
                _draw_stacked(axes, section, groups[picture])
                axes.set_title(picture)
            else:
                _draw(axes, section, groups, picture)
        if chart.kind == "stacked":
            top = max(axes.get_ylim()[1] for axes in grid[0])
            for axes in grid[0]:
                axes.set_ylim(0, top)
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


def series_of(section: Section) -> dict[str, list[int]]:
    """Numbers of rows by the word that tells series apart; one series without a name else."""
    name = section.chart.series
    if name is None:
        return {"": list(range(len(section.rows)))}
    groups: dict[str, list[int]] = {}
    for index, word in enumerate(section.column(name)):
        groups.setdefault(str(word), []).append(index)
    return groups


def middle(cell: Cell) -> float:
    """What is drawn of a cell: its figure or median; NaN where nothing was measured."""
    if isinstance(cell, Summary):
        return cell.median
    return float("nan") if cell is None else float(cell)


def _spread(cell: Cell) -> tuple[float, float]:
    """How far the least is below and the most above the median."""
    if isinstance(cell, Summary):
        return cell.median - cell.low, cell.high - cell.median
    return 0.0, 0.0


def _draw(axes: Any, section: Section, groups: dict[str, list[int]], picture: str) -> None:
    """One column: bars beside each other, or lines."""
    chart, cells = section.chart, section.column(picture)
    places = list(dict.fromkeys(section.column(chart.x)))
    for number, (name, indices) in enumerate(groups.items()):
        xs = [places.index(section.column(chart.x)[index]) for index in indices]
        ys = [middle(cells[index]) for index in indices]
        errors = list(zip(*(_spread(cells[index]) for index in indices), strict=True))
        if chart.kind == "lines":
            places_at = [middle(places[x]) for x in xs]
            axes.errorbar(places_at, ys, yerr=errors, marker="o", capsize=3, label=name)
        else:
            width = 0.8 / len(groups)
            at = [x + width * (number - (len(groups) - 1) / 2) for x in xs]
            axes.bar(at, ys, width, yerr=errors, capsize=2, label=name)
    if chart.kind == "lines":
        axes.set_xscale("log", base=2)
        ticks = [middle(place) for place in places]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(chart.x)
    else:
        _name_places(axes, places)
    axes.set_ylabel(_label(section, picture))
    axes.set_ylim(bottom=0)
    if len(groups) > 1:
        axes.legend(fontsize=7)


def _draw_stacked(axes: Any, section: Section, indices: list[int]) -> None:
    """All columns of one series on each other; what is below zero is noise and is not drawn."""
    chart = section.chart
    places = [section.column(chart.x)[index] for index in indices]
    below = [0.0] * len(indices)
    for name in chart.y:
        heights = [max(0.0, middle(section.column(name)[index])) for index in indices]
        axes.bar(range(len(indices)), heights, 0.6, bottom=below, label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    _name_places(axes, places)
    axes.set_ylabel(_label(section, chart.y[0]).partition(", ")[2])
    axes.legend(fontsize=7)


def _name_places(axes: Any, places: list[Cell]) -> None:
    longest = max(len(str(place)) for place in places)
    slanted = {"rotation": 20, "ha": "right"} if longest * len(places) > 60 else {}
    axes.set_xticks(range(len(places)), [str(place) for place in places], **slanted)


def _label(section: Section, name: str) -> str:
    unit = next(column.unit for column in section.columns if column.name == name)
    return f"{name}, {unit}" if unit else name
