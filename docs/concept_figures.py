"""Figures of ideas, most of them the papers': `python docs/concept_figures.py` writes SVG files.

`tree-verification.svg`: a draft tree, and what each of its rows sees, as the core fills it in.
`hidden-loads.svg`: CoordGen's Figure 8, four strategies as the core plans them.
`calibration.svg`: CoordGen's Figure 9, what the model expected in a prompt, as a tree.
`tree-of-states.svg`: the same draft tree in a recurrent layer, and what is kept of it.

The files are the same on every machine. They ask for no font, and are drawn on white, so that they
can be read on dark pages as well.
"""

import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordgen_rs._core import BlockCost, Plan, StepInputs, plan

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" \
font-size="14" role="img" aria-labelledby="title">
  <title id="title">{title}</title>
  <style>
    .core {{ fill: #fde8d7; stroke: #b4521a }}
    .face {{ fill: #dcebf7; stroke: #2a6496 }}
    .kept {{ fill: #ececec; stroke: #666666 }}
    .way {{ fill: none; stroke: #333333; stroke-width: 1.5; marker-end: url(#head) }}
    .taken {{ fill: none; stroke: #b4521a; stroke-width: 3; marker-end: url(#head) }}
    .word {{ text-anchor: middle; fill: #222222 }}
    .left {{ fill: #222222 }}
    .small {{ font-size: 12px; fill: #444444 }}
  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
markerUnits="userSpaceOnUse" orient="auto">
      <path d="M 0 0 L 10 5 L 0 10 z" fill="#333333"/>
    </marker>
  </defs>
  <rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>
"""


class Canvas:
    """An SVG file in the making; lengths are in pixels, from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._lines = [_HEAD.format(width=width, height=height, title=escape(title)).rstrip()]

    def box(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """A box of one of the kinds of the style sheet."""
        self._add(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            f' rx="{min(6, width / 4):g}"/>'
        )

    def text(self, kind: str, x: float, y: float, words: str) -> None:
        """A line of text on the base line `y`."""
        self._add(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def way(self, kind: str, path: str) -> None:
        """An arrow along a path."""
        self._add(f'<path class="{kind}" d="{path}"/>')

    def word(self, kind: str, x: float, y: float, words: str, width: float = 86) -> None:
        """A box of a word, centred on `x` and `y`."""
        self.box(kind, x - width / 2, y - 15, width, 30)
        self.text("word", x, y + 5, words)

    def svg(self) -> str:
        """The file."""
        return "\n".join([*self._lines, "</svg>", ""])

    def _add(self, element: str) -> None:
        self._lines.append(f"  {element}")


class Node(NamedTuple):
    """A token of a draft tree: its parent's number, and what stands there."""

    parent: int
    word: str


TREE = (
    Node(0, "bus"),
    Node(0, "stops"),
    Node(0, "runs"),
    Node(1, "at"),
    Node(2, "every"),
    Node(3, "the"),
    Node(4, "ten"),
    Node(5, "central"),
    Node(5, "station"),
)
SAYS = ("stops", "at", "the", "station", ".")
"""What the model says after each token of the accepted path."""


def tree_verification() -> str:
    """A draft tree, what each of its rows sees, and what is accepted."""
    canvas = Canvas(900, 400, "A draft tree, what each row sees, and the path that is accepted")
    depths = [0]
    for node in TREE[1:]:
        depths.append(depths[node.parent] + 1)
    accepted = _accepted()
    lanes = (0.5, 0, 1, 0, 1, 0, 1, -0.4, 0.4)  # branches apart from each other
    places = [
        (70 + 105 * depth, 115 + 80 * lane) for depth, lane in zip(depths, lanes, strict=True)
    ]
    canvas.text("left", 24, 34, "A draft tree: row 0 is the last token of the text")
    for row, node in enumerate(TREE):
        x, y = places[row]
        if row:
            from_x, from_y = places[node.parent]
            kind = "taken" if row in accepted else "way"
            canvas.way(kind, f"M {from_x + 43:g} {from_y:g} L {x - 45:g} {y:g}")
    for row, node in enumerate(TREE):
        kind = "core" if row in accepted or row == 0 else "kept"
        canvas.word(kind, *places[row], f"{row}  {node.word}")
    _path_told(canvas, accepted)
    _mask_drawn(canvas, _mask(), accepted)
    return canvas.svg()


def _accepted() -> list[int]:
    """The rows on the path that agrees with what the model says, the root left out."""
    path, at = [], 0
    for said in SAYS:
        found = [row for row, node in enumerate(TREE) if row and node == Node(at, said)]
        if not found:
            return path
        path.append(at := found[0])
    return path


def _path_told(canvas: Canvas, accepted: Sequence[int]) -> None:
    words = [TREE[row].word for row in accepted]
    lines = (
        "One run of the model gives the next token of every row.",
        f"Row 0 gives “{SAYS[0]}”, which is row {accepted[0]}; that gives “{SAYS[1]}”; and so on.",
        f"Accepted: “{' '.join(words)}”. Nothing follows row {accepted[-1]}, so the model's",
        f"own “{SAYS[len(words)]}” is the last token of this step: {len(words)} + 1 in one run.",
    )
    for number, line in enumerate(lines):
        canvas.text("left", 24, 270 + 26 * number, line)


def _mask() -> np.ndarray:
    """Which rows each row sees, as the core fills it in: `(rows, rows) bool`."""
    rows = len(TREE)
    inputs = StepInputs(
        np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros((1, rows, rows), np.float32)
    )
    parents = np.array([node.parent for node in TREE], np.uint32)
    inputs.fill(np.arange(rows, dtype=np.uint32), parents, 0)
    return inputs.mask[0] == 0


def _mask_drawn(canvas: Canvas, mask: np.ndarray, accepted: Sequence[int]) -> None:
    left, top, size = 640, 88, 24
    canvas.text("left", left - 40, 34, "What a row sees: the text")
    canvas.text("left", left - 40, 54, "so far, its ancestors, and itself")
    for row, sees in enumerate(mask):
        canvas.text("word", left - 16, top + size * row + 17, str(row))
        canvas.text("word", left + size * row + 12, top - 8, str(row))
        for other, is_seen in enumerate(sees):
            on_path = {row, other} <= {0, *accepted}
            kind = ("core" if on_path else "face") if is_seen else "kept"
            if is_seen:
                canvas.box(kind, left + size * other + 2, top + size * row + 2, 20, 20)
    canvas.text("small", left - 40, top + size * len(mask) + 30, "orange: the accepted path")


NUM_BLOCKS = 6
_UNIT_US = 1000
_LOADS = 2  # as long as two blocks compute
_DRAWN = {
    "sync": "loads when the prompt is read",
    "async": "loads in the last chunk",
    "greedy": "CoordGen's rule",
    "just_in_time": "ours",
}


def hidden_loads() -> str:
    """Four strategies for a prompt of two chunks, as bars of compute and of loads."""
    canvas = Canvas(900, 470, "Loads of the decode graphs, hidden behind the chunks of a prompt")
    plans = {name: _planned(name) for name in _DRAWN}
    scale = 640 / max(of.makespan_us for of in plans.values())
    canvas.text(
        "left", 24, 32, "Six blocks read a prompt of two chunks; a load takes as long as two"
    )
    for row, (name, of) in enumerate(plans.items()):
        top = 58 + 88 * row
        canvas.text("left", 24, top + 20, name)
        canvas.text("small", 24, top + 40, _DRAWN[name])
        canvas.text("small", 24, top + 60, f"takes {of.makespan_us / _UNIT_US:g} computations")
        for block, graph, start, end, lane in _bars(of):
            kind = "face" if graph == "prefill" else "core"
            x, width = 230 + scale * start, scale * (end - start)
            canvas.box(kind, x, top + 34 * lane, width, 28)
            kind = "word small" if width < 30 else "word"
            canvas.text(kind, x + width / 2, top + 34 * lane + 19, str(block + 1))
        canvas.way("way", f"M {230 + scale * of.makespan_us:g} {top - 8} v 84")
    for x, kind, words in (
        (230, "face", "prefill graph computes"),
        (420, "core", "upper row: decode graph computes; lower row: it is loaded"),
    ):
        canvas.box(kind, x, 430, 18, 18)
        canvas.text("small", x + 26, 444, words)
    return canvas.svg()


def _planned(strategy: str) -> Plan:
    cost = BlockCost(
        prefill_load_us=_LOADS * _UNIT_US,
        prefill_compute_us=_UNIT_US,
        prefill_bytes=1,
        decode_load_us=_LOADS * _UNIT_US,
        decode_compute_us=_UNIT_US // 8,  # of an eighth of the rows
        decode_bytes=1,
    )
    return plan([cost] * NUM_BLOCKS, 256, 32, 512, strategy=strategy, memory_budget=NUM_BLOCKS)


def _bars(of: Plan) -> Iterator[tuple[int, str, int, int, int]]:
    """Block, graph, start, end and lane: 0 computes, 1 loads. Runs without a gap are one bar."""
    joined: list[list] = []
    for run in of.runs:
        last = joined[-1] if joined else None
        if last and last[:2] == [run.block, run.graph] and last[3] == run.start_us:
            last[3] = run.end_us
        else:
            joined.append([run.block, run.graph, run.start_us, run.end_us])
    for block, graph, start, end in joined:
        yield block, graph, start, end, 0
    for action in of.actions:
        if action.kind == "load":
            yield action.block, action.graph, action.start_us, action.end_us, 1


PROMPT = ("Clinton", "'s", "security", "detail", "has", "arrived", "at", "Des", "Moines")
EXPECTED = {
    "Clinton": ("has", "arrived", "'s"),
    "'s": ("campaign", "security"),
    "has": ("been", "arrived"),
    "arrived": ("at", "in"),
    "at": ("Des", "the"),
    "Des": ("Moines",),
}
"""The likeliest tokens after each token of the prompt."""

ANSWER = ("Clinton", "arrived", "at", "Des", "Moines")
"""What the model says; a path of the calibrated tree."""


def calibration() -> str:
    """What the model expected after each word of a prompt, and the draft that comes of it."""
    canvas = Canvas(900, 400, "In-context calibration: what the model expected, as a draft tree")
    canvas.text("left", 24, 32, "The prompt, and what the model expected next while it read it")
    places = {word: 70 + 95 * number for number, word in enumerate(PROMPT)}
    for word, x in places.items():
        canvas.word("face", x, 70, word, 82)
        for line, expected in enumerate(EXPECTED.get(word, ())):
            kind = "core" if expected in PROMPT else "kept"
            canvas.box(kind, x - 37, 94 + 27 * line, 74, 24)
            canvas.text("word small", x, 94 + 27 * line + 17, expected)
    canvas.text("left", 24, 220, "Copying the prompt drafts:")
    _chain(canvas, 242, 205, ("Clinton", "'s", "security", "detail"), "kept")
    canvas.text("left", 24, 280, "Following what was expected:")
    _chain(canvas, 242, 265, ANSWER, "core")
    lines = (
        "Sample: the likeliest tokens after “Clinton” are its children. Search: “arrived” occurs",
        "in the prompt, so its children are what was expected there; and so on. The model, asked",
        f"to sum up, says “{' '.join(ANSWER)}”: the prompt's facts in its own words.",
    )
    for number, line in enumerate(lines):
        canvas.text("left", 24, 330 + 24 * number, line)
    return canvas.svg()


def _chain(canvas: Canvas, x: float, y: float, words: Sequence[str], kind: str) -> None:
    for number, word in enumerate(words):
        at = x + 41 + 110 * number
        canvas.word(kind, at, y + 10, word, 82)
        if number:
            canvas.way("way", f"M {at - 69:g} {y + 10:g} h 26")


def tree_of_states() -> str:
    """A draft tree in a recurrent layer: what each row starts from, and what is kept of it."""
    canvas = Canvas(900, 500, "A draft tree in a recurrent layer, and what is kept of it")
    depths = [0]
    for node in TREE[1:]:
        depths.append(depths[node.parent] + 1)
    accepted = _accepted()
    lanes = (0.5, 0, 1, 0, 1, 0, 1, -0.4, 0.4)  # branches apart from each other
    places = [
        (190 + 120 * depth, 130 + 80 * lane) for depth, lane in zip(depths, lanes, strict=True)
    ]
    canvas.text("left", 24, 34, "A step: each row starts from the state behind its parent")
    canvas.box("face", 12, 130, 102, 80)
    canvas.text("word", 63, 166, "state of the")
    canvas.text("word", 63, 184, "committed")
    canvas.way("way", "M 114 170 H 145")
    for row, node in enumerate(TREE):
        x, y = places[row]
        if row:
            from_x, from_y = places[node.parent]
            kind = "taken" if row in accepted else "way"
            canvas.way(kind, f"M {from_x + 43:g} {from_y:g} L {x - 45:g} {y:g}")
    for row, node in enumerate(TREE):
        kind = "core" if row in accepted or row == 0 else "kept"
        canvas.word(kind, *places[row], f"{row}  {node.word}")
    canvas.text("left", 24, 268, "Kept of it: an update for each row, a small part of a state")
    for row in range(len(TREE)):
        kind = "core" if row in accepted or row == 0 else "kept"
        canvas.word(kind, 190 + 76 * row, 300, str(row), 44)
    canvas.text("small", 24, 305, "the last step's updates")
    next_step = "The next step: the updates of what was committed are applied first"
    canvas.text("left", 24, 366, next_step)
    canvas.box("face", 20, 390, 90, 60)
    canvas.text("word", 65, 425, "state")
    for place, row in enumerate((0, *accepted)):
        x = 190 + 96 * place
        canvas.way("taken", f"M {x - 80 if place == 0 else x - 68:g} 420 H {x - 30:g}")
        canvas.word("core", x, 420, f"{row}", 56)
    x = 190 + 96 * len(accepted)
    canvas.way("taken", f"M {x + 28:g} 420 H {x + 66:g}")
    canvas.box("face", x + 68, 390, 90, 60)
    canvas.text("word", x + 113, 425, "new state")
    canvas.text(
        "small", 24, 482, "A tree costs no copy of a state; going back is not applying an update."
    )
    return canvas.svg()


FIGURES = {
    "tree-verification.svg": tree_verification,
    "hidden-loads.svg": hidden_loads,
    "calibration.svg": calibration,
    "tree-of-states.svg": tree_of_states,
}


def main() -> int:
    """Write the figures."""
    for name, draw in FIGURES.items():
        (Path(__file__).parent / name).write_text(draw(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
