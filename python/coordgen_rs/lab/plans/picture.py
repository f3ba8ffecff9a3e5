"""A picture of plans: for each strategy what computes and what loads, side by side in time.

In: plans. Out: a PNG, or whatever the file's ending says. Needs matplotlib.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordgen_rs._core import Plan
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.bench.reporting.plots import check_matplotlib

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
    """Draw the plans, one below the other on one time axis.

    Raises:
        OptionError: matplotlib is not installed, or cannot write such a file.
        OSError: The file cannot be written.
    """
    check_matplotlib()
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(13, 1.5 + 0.95 * len(plans)), layout="constrained")
    try:
        _Picture(axes, plans).draw(title)
        figure.savefig(path, dpi=130)
    except ValueError as error:
        raise OptionError(f"{path} cannot be drawn: {error}") from error
    finally:
        pyplot.close(figure)


class _Picture:
    """Two lanes a plan: compute above, loads below."""

    def __init__(self, axes: Any, plans: Mapping[str, Plan]) -> None:
        self._axes = axes
        self._plans = plans
        end_us = max(plan.makespan_us for plan in plans.values()) or 1
        self._unit, self._scale = ("s", 1e6) if end_us >= 5e6 else ("ms", 1e3)
        self._end = end_us / self._scale

    def draw(self, title: str) -> None:
        for row, (name, plan) in enumerate(self._plans.items()):
            compute, load = row - _LANE_HEIGHT / 2, row + _LANE_HEIGHT / 2
            runs: list[_Bar] = [
                (run.block, run.graph, run.start_us, run.end_us) for run in plan.runs
            ]
            self._draw_gaps(runs, plan.makespan_us, compute)
            self._draw_bars(runs, compute)
            loads: list[_Bar] = [
                (action.block, action.graph, action.start_us, action.end_us)
                for action in plan.actions
                if action.kind == "load"
            ]
            self._draw_bars(loads, load)
            for block, _, start, _ in runs[plan.num_blocks :]:
                if block == 0:
                    self._line(start, compute - _LANE_HEIGHT / 2, compute + _LANE_HEIGHT / 2, 0.8)
            self._line(plan.makespan_us, row - 0.46, row + 0.46, 2.0)
            self._label(row, name, plan)
        self._finish(title)

    def _draw_gaps(self, runs: list[_Bar], makespan_us: int, lane: float) -> None:
        """The times when nothing computes: before and between runs, and after the last."""
        starts = [*(start for *_, start, _ in runs), makespan_us]
        ends = [0, *(end for *_, end in runs)]
        gaps = [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]
        self._axes.broken_barh(self._spans(gaps), self._height(lane), **_GAP)

    def _draw_bars(self, bars: list[_Bar], lane: float) -> None:
        for graph, colour in _COLOURS.items():
            spans = self._spans([(start, end) for _, other, start, end in bars if other == graph])
            style = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.6}
            self._axes.broken_barh(spans, self._height(lane), **style)
        for block, _, start, end in bars:
            text = str(block + 1)
            share = (end - start) / self._scale / self._end / len(text)
            size = next((size for size in _FONT_SIZES if share > _CHARACTER_SHARE * size), None)
            if size is not None:
                middle = (start + end) / 2 / self._scale
                place = {"ha": "center", "va": "center_baseline"}
                self._axes.text(middle, lane, text, fontsize=size, color="white", **place)

    def _spans(self, times_us: list[tuple[int, int]]) -> list[tuple[float, float]]:
        """Start and length of each bar, on the axis."""
        return [(start / self._scale, (end - start) / self._scale) for start, end in times_us]

    @staticmethod
    def _height(lane: float) -> tuple[float, float]:
        return lane - _LANE_HEIGHT / 2, _LANE_HEIGHT

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
