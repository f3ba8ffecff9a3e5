"""Pictures of figures: panels side by side, a line for each row, ours in colour.

In: for each panel its title and what its lines reach. Out: an SVG file. Needs matplotlib.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.plots import check_matplotlib

_OTHERS = "#9a9a9a"


class Line(NamedTuple):
    """A row of a picture, which has a label of its own."""

    label: str
    is_ours: bool
    is_dashed: bool


def check(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        OptionError: It is no SVG file in a folder that is there, or matplotlib is not installed.
    """
    check_matplotlib()
    if path.suffix != ".svg" or not path.absolute().parent.is_dir():
        raise OptionError(f"--picture {path}: must be an .svg file in a folder that is there")


def draw(
    path: Path,
    panels: Mapping[str, Callable[[Line], Sequence[float | None]]],
    lines: Sequence[Line],
    at: Sequence[int],
    *,
    columns: int,
    size: tuple[float, float],
    bottom: float,
    label: tuple[str, str],
) -> None:
    """Draw panels by their titles: what a line reaches at each of some numbers.

    Args:
        path: An SVG file.
        panels: What a line reaches, by the panel's title.
        lines: In their order.
        at: The numbers, on a logarithmic axis.
        columns: Panels side by side.
        size: Of a panel, in inches.
        bottom: Where the axis of what is reached begins.
        label: Of the numbers, and of what is reached.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import pyplot, rc_context

    num_rows = -(-len(panels) // columns)
    width, height = size[0] * columns, size[1] * num_rows + 0.8
    with rc_context({"svg.hashsalt": "coordgen", "svg.fonttype": "none", "font.size": 9}):
        figure, grid = pyplot.subplots(num_rows, columns, figsize=(width, height), squeeze=False)
        try:
            every = list(grid.flat)
            for panel, (title, reached) in zip(every, panels.items(), strict=False):
                _panel(panel, title, reached, lines, at, bottom)
            for panel in every[len(panels) :]:
                panel.set_axis_off()
            figure.supxlabel(label[0])
            figure.supylabel(label[1])
            handles, labels = every[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="upper center", ncols=3, frameon=False)
            figure.tight_layout(rect=(0, 0, 1, 1 - 0.9 / height))
            figure.savefig(path, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


def _panel(
    panel: Any,
    title: str,
    reached: Callable[[Line], Sequence[float | None]],
    lines: Sequence[Line],
    at: Sequence[int],
    bottom: float,
) -> None:
    for number, line in enumerate(lines):
        panel.plot(
            at,
            reached(line),
            label=line.label,
            color=None if line.is_ours else _OTHERS,
            linestyle="--" if line.is_dashed else "-",
            marker="os^vDPX*hd"[number % 10],
            markersize=4,
            linewidth=2 if line.is_ours else 1,
        )
    panel.set_title(title)
    panel.set_ylim(bottom=bottom)
    panel.set_xscale("log", base=2)
    panel.set_xticks(at, [str(tick) for tick in at])
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
