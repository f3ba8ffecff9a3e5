"""Pictures: sections of the bench with their condition at the foot, and plans of loads in time.

In: sections that say how they are drawn (`Chart`), or plans. Out: files. Needs matplotlib.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from coordgen_rs._core import Plan
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.lab.tables import Cell, Section, Summary

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
    if not section.rows:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{section.name}.{ending}" for ending in FORMATS]
    chart = section.chart
    panels = rows_by_word(section, chart.panels, range(len(section.rows)))
    columns = [chart.y] if chart.kind == "stacked" else [(name,) for name in chart.y]
    width = len(panels) * (_WIDTH_OF_SEVERAL if len(panels) > 1 else _WIDTH)
    size = (width, _HEIGHT * len(columns))
    with _drawn(files, len(columns), len(panels), figsize=size, sharey="row") as (figure, grid):
        # All pictures side by side, on one scale where they show the same columns.
        draw = _draw_stacked if chart.kind == "stacked" else _draw
        for line, names in zip(grid, columns, strict=True):
            for axes, (panel, rows) in zip(line, panels.items(), strict=True):
                draw(axes, section, rows, names)
                axes.set_title(panel)
            line[0].set_ylim(bottom=0)  # of the whole line, when all is drawn
            line[0].set_ylabel(_label(section, names))
            if len(line[-1].get_legend_handles_labels()[1]) > 1:
                line[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
        figure.suptitle(f"{section.name}: {section.title} ({section.how})")
        foot = "\n".join(wrap(caption, _FOOT_CHARACTERS))
        figure.text(0.01, 0.01, foot, fontsize=6, va="bottom")
        figure.tight_layout(rect=(0, 0.07, 1, 1))
    return files


@contextmanager
def _drawn(
    files: Sequence[Path], lines: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure and its grid of axes, which is written when the block has drawn."""
    check_matplotlib()
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "coordgen"  # names within the file are the same each time
    figure, grid = pyplot.subplots(lines, columns, squeeze=False, **options)
    try:
        yield figure, grid
        for file in files:
            is_svg = file.suffix == ".svg"
            figure.savefig(file, dpi=130, metadata={"Date": None} if is_svg else None)
    finally:
        pyplot.close(figure)


def plot_pairs(panels: Mapping[str, Sequence[tuple[str, float | None, float]]], path: Path) -> None:
    """Draw published figures and ours beside each other, the same file for the same figures.

    Args:
        panels: By title, below each other: a name, the published figure if there is one, and ours.
        path: The picture.

    Raises:
        OptionError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    heights = [1 + 0.3 * len(rows) for rows in panels.values()]
    shape: dict[str, Any] = {"figsize": (9, sum(heights)), "layout": "constrained"}
    shape["gridspec_kw"] = {"height_ratios": heights}
    with _drawn([path], len(panels), **shape) as (_, grid):
        for (title, rows), (axes,) in zip(panels.items(), grid, strict=True):
            places = np.arange(len(rows))
            published = [np.nan if row[1] is None else row[1] for row in rows]
            axes.barh(places - 0.2, published, 0.38, label="paper", color="#b0b0b0")
            axes.barh(places + 0.2, [row[2] for row in rows], 0.38, label="ours", color="#4878a8")
            axes.set_yticks(places, [row[0] for row in rows], fontsize=7)
            axes.invert_yaxis()
            axes.set_title(title, loc="left", fontsize=9)
        grid[0][0].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def rows_by_word(section: Section, column: str | None, rows: Iterable[int]) -> dict[str, list[int]]:
    """Numbers of rows by their word in a column; all under "" without a column."""
    words = [""] * len(section.rows) if column is None else [*map(str, section.column(column))]
    by_word: dict[str, list[int]] = {}
    for row in rows:
        by_word.setdefault(words[row], []).append(row)
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


_COLOURS = {"prefill": "#4878a8", "decode": "#e08a3c"}
_NAMES = {"prefill": "G1, prefill graph", "decode": "G2, decode graph"}
_GAP: dict[str, Any] = {
    "facecolor": "#d9d9d9",
    "hatch": "////",
    "edgecolor": "white",
    "linewidth": 0,
}
_LANE_HEIGHT = 0.42
_Bar = tuple[int, str, int, int]
"""Block, graph, start and end in microseconds."""
_FONT_SIZES = (7.0, 5.5)
_CHARACTER_SHARE = 0.001  # width of a digit, as a share of the axis, a point of its font size


def plot_plans(plans: Mapping[str, Plan], path: Path, *, title: str = "") -> None:
    """Draw plans one below the other on one time axis: what computes, and what loads.

    Args:
        plans: By the names of their strategies.
        path: The picture, of the kind that its ending says.
        title: What stands above.

    Raises:
        OptionError: matplotlib is not installed, or cannot write such a file.
        OSError: The file cannot be written.
    """
    size = (13, 1.5 + 0.95 * len(plans))
    try:
        with _drawn([path], figsize=size, layout="constrained") as (_, grid):
            _Plans(grid[0][0], plans).draw(title)
    except ValueError as error:
        raise OptionError(f"{path} cannot be drawn: {error}") from error


class _Plans:
    """Two lanes a plan: compute above, loads below."""

    def __init__(self, axes: Any, plans: Mapping[str, Plan]) -> None:
        self._axes, self._plans = axes, plans
        end_us = max(plan.makespan_us for plan in plans.values()) or 1
        self._unit, self._scale = ("s", 1e6) if end_us >= 5e6 else ("ms", 1e3)
        self._end = end_us / self._scale

    def draw(self, title: str) -> None:
        for row, (name, plan) in enumerate(self._plans.items()):
            compute, load = row - _LANE_HEIGHT / 2, row + _LANE_HEIGHT / 2
            runs: list[_Bar] = [
                (run.block, run.graph, run.start_us, run.end_us) for run in plan.runs
            ]
            starts = [*(start for *_, start, _ in runs), plan.makespan_us]
            ends = [0, *(end for *_, end in runs)]
            gaps = [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]
            self._lane(gaps, compute, **_GAP)
            self._bars(runs, compute)
            loads = (action for action in plan.actions if action.kind == "load")
            self._bars([(one.block, one.graph, one.start_us, one.end_us) for one in loads], load)
            for block, _, start, _ in runs[plan.num_blocks :]:
                if block == 0:
                    self._line(start, compute - _LANE_HEIGHT / 2, compute + _LANE_HEIGHT / 2, 0.8)
            self._line(plan.makespan_us, row - 0.46, row + 0.46, 2.0)
            self._label(row, name, plan)
        self._finish(title)

    def _bars(self, bars: list[_Bar], lane: float) -> None:
        for graph, colour in _COLOURS.items():
            times = [(start, end) for _, other, start, end in bars if other == graph]
            self._lane(times, lane, facecolor=colour, edgecolor="white", linewidth=0.6)
        for block, _, start, end in bars:
            text = str(block + 1)
            share = (end - start) / self._scale / self._end / len(text)
            size = next((size for size in _FONT_SIZES if share > _CHARACTER_SHARE * size), None)
            if size is not None:
                middle = (start + end) / 2 / self._scale
                place = {"ha": "center", "va": "center_baseline"}
                self._axes.text(middle, lane, text, fontsize=size, color="white", **place)

    def _lane(self, times_us: list[tuple[int, int]], lane: float, **style: Any) -> None:
        spans = [(start / self._scale, (end - start) / self._scale) for start, end in times_us]
        self._axes.broken_barh(spans, (lane - _LANE_HEIGHT / 2, _LANE_HEIGHT), **style)

    def _line(self, time_us: int, top: float, bottom: float, width: float) -> None:
        time = time_us / self._scale
        self._axes.plot([time, time], [top, bottom], color="black", linewidth=width)

    def _label(self, row: int, name: str, plan: Plan) -> None:
        time = plan.makespan_us / self._scale
        self._axes.text(time + 0.006 * self._end, row, f"{time:,.5g} {self._unit}", va="center")
        shown = name if name == plan.strategy else f"{name}\n({plan.strategy})"
        beside = self._axes.get_yaxis_transform()
        style = {"ha": "right", "va": "center", "fontsize": 10, "fontweight": "bold"}
        self._axes.text(-0.055, row, shown, transform=beside, **style)

    def _finish(self, title: str) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        axes, num_plans = self._axes, len(self._plans)
        lanes = [(row - _LANE_HEIGHT / 2, row + _LANE_HEIGHT / 2) for row in range(num_plans)]
        axes.set_yticks([lane for pair in lanes for lane in pair], ["compute", "load"] * num_plans)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.set_ylim(num_plans - 0.4, -0.6)
        axes.set_xlim(0, self._end * 1.08)
        axes.set_xlabel(f"time, {self._unit}; numbers are blocks; thin lines part the chunks")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        handles: list[Any] = [
            Patch(color=_COLOURS[graph], label=_NAMES[graph]) for graph in _COLOURS
        ]
        handles.append(Patch(**_GAP, label="nothing computes"))
        handles.append(Line2D([], [], color="black", linewidth=2, label="all blocks on G2"))
        axes.legend(
            handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), frameon=False
        )
        axes.set_title(title, loc="left", fontsize=11, pad=28)
