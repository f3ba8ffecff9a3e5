"""The picture of servers under load: tokens a second and the first token's time, by clients.

In: rows of figures. Out: an SVG file. Needs matplotlib.
"""

_PANELS = {
    "decode_tokens_per_s": ("answers alone, tokens/s of all clients", 1.0),
    "first_p50_s": ("first token, ms, median", 1e3),
}
_SIZE = 7.6, 3.4
_OTHERS = "#9a9a9a"


def draw(rows, path):
    """Draw all rows, ours in colour; those without drafts are dashed.

    Args:
        rows: As `report.load_rows` gives them.
        path: An SVG file.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import pyplot, rc_context

    with rc_context({"svg.hashsalt": "coordgen", "svg.fonttype": "none", "font.size": 9}):
        figure, panels = pyplot.subplots(1, len(_PANELS), figsize=_SIZE)
        try:
            for panel, (name, (title, scale)) in zip(panels, _PANELS.items(), strict=True):
                _panel(panel, rows, name, title, scale)
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="upper center", ncols=3, frameon=False)
            figure.tight_layout(rect=(0, 0, 1, 0.86))
            figure.savefig(path, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


def _panel(panel, rows, name, title, scale):
    for number, row in enumerate(rows):
        is_ours = row["engine"] == "coordgen"
        panel.plot(
            [of["clients"] for of in row["clients"]],
            [scale * of["figures"][name][0] for of in row["clients"]],
            label=row["name"],
            color=f"C{number}" if is_ours else _OTHERS,
            linestyle="-" if row["drafts"] else "--",
            marker="os^vDPX*hd"[number % 10],
            markersize=4,
            linewidth=2 if is_ours else 1,
        )
    ticks = [of["clients"] for of in rows[0]["clients"]]
    panel.set_title(title)
    panel.set_ylim(bottom=0)
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.set_xlabel("clients")
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
