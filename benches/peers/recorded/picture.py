"""The picture of the table: tokens a step by draft tokens, a panel a set of records.

In: figures. Out: an SVG file. Needs matplotlib.
"""

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.plots import check_matplotlib
from recorded.methods import CHAIN

_COLUMNS = 3
_PANEL = 3.4, 2.9
_OTHERS = "#9a9a9a"


def check(path):
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        OptionError: It is no SVG file in a folder that is there, or matplotlib is not installed.
    """
    check_matplotlib()
    if path.suffix != ".svg" or not path.absolute().parent.is_dir():
        raise OptionError(f"--picture {path}: must be an .svg file in a folder that is there")


def draw(figures, path):
    """Draw the best of every engine, ours in colour.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import pyplot, rc_context

    drawn = best_of_each_engine(figures)
    num_rows = -(-len(figures.sets) // _COLUMNS)
    size = _PANEL[0] * _COLUMNS, _PANEL[1] * num_rows + 0.8
    with rc_context({"svg.hashsalt": "coordgen", "svg.fonttype": "none", "font.size": 9}):
        figure, grid = pyplot.subplots(num_rows, _COLUMNS, figsize=size, squeeze=False)
        try:
            panels = list(grid.flat)
            for panel, one_set in zip(panels, figures.sets, strict=False):
                _panel(panel, figures, one_set, drawn)
            for panel in panels[len(figures.sets) :]:
                panel.set_axis_off()
            figure.supylabel("tokens per step")
            figure.supxlabel("draft tokens per step")
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="upper center", ncols=3, frameon=False)
            figure.tight_layout(rect=(0, 0, 1, 1 - 0.9 / size[1]))
            figure.savefig(path, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


def best_of_each_engine(figures):
    """Of every engine, and of ours, the method with the most tokens a step; in their order."""
    best = {}
    for method in figures.methods:
        reached = figures.over(sum, "tokens_per_step", figures.middle, "none", method)
        engine = getattr(method, "package", method.name.partition(" ")[0])
        if reached is not None and reached > best.get(engine, (0.0, None))[0]:
            best[engine] = reached, method
    chosen = {method.name for _, method in best.values()}
    return [method for method in figures.methods if method.name in chosen]


def _panel(panel, figures, one_set, methods):
    for number, method in enumerate(methods):
        steps = [
            figures.on(one_set, "tokens_per_step", budget, "none", method)
            for budget in figures.budgets
        ]
        is_ours = method.name.startswith("coordgen")
        panel.plot(
            figures.budgets,
            steps,
            label=method.name,
            color=None if is_ours else _OTHERS,
            linestyle="--" if method.shape == CHAIN else "-",
            marker="os^vDPX*hd"[number % 10],
            markersize=4,
            linewidth=2 if is_ours else 1,
        )
    panel.set_title(one_set)
    panel.set_ylim(bottom=1)  # plain decoding
    panel.set_xscale("log", base=2)
    panel.set_xticks(figures.budgets, [str(budget) for budget in figures.budgets])
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
