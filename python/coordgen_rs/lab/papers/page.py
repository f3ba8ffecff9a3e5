"""The page of the papers: a table each in Markdown, between markers, and pictures of their figures.

In: rows, and remarks on the papers' own numbers; a page that has markers, or none. Out: the page
with these, and below each table what it was measured at; SVG files beside it, where matplotlib is
installed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from coordgen_rs.errors import OptionError
from coordgen_rs.lab.papers.critique import Remark
from coordgen_rs.lab.papers.items import PAPERS, Row, items
from coordgen_rs.lab.plots import plot_pairs
from coordgen_rs.lab.tables import markdown
from coordgen_rs.store.files import write_file

_HEADS = ("item", "section", "name", "paper", "ours", "how", "why, and remarks")
CRITIQUE = "What the papers' own numbers say"
_PART = "<!-- figures: papers-{}{} -->\n"
_END = "<!-- /figures -->"


def tables_of(paper: str, rows: Sequence[Row]) -> str:
    """A paper's table, and a wide one for each of its own, as the paper has it.

    Figures that are read off a rule or a picture have a star. Lines of the first table say why
    figures of a wide one are not there.
    """
    lines: list[tuple[str, ...]] = []
    wide: dict[str, dict[str, Row]] = {}
    for row in rows:
        item = items()[row.item]
        place = (row.item, item.place)
        if item.grid[0] and row.name in item.published:
            wide.setdefault(row.item, {})[row.name] = row
            name = "figures without ours"
            line = (*place, name, "-", "-", row.how, row.why)
            if row.ours is None and line not in lines:
                lines.append(line)
            continue
        star = "*" if row.name in item.derived else ""
        figures = (_text(row.published, 6) + star, _text(row.ours))
        lines.append((*place, row.name, *figures, row.how, row.why))
    tables = [f"{paper}\n\n{markdown(_HEADS, lines, num_words=3)}"]
    return "\n\n".join([*tables, *(_wide(name, own) for name, own in wide.items())])


def critique_of(remarks: Sequence[Remark]) -> str:
    """The table of what the papers' own numbers say of each other."""
    heads = ("paper", "where", "what", "comes out", "the paper has")
    lines = [
        (one.paper, one.places, one.name, _text(one.figure), _text(one.published))
        for one in remarks
    ]
    return f"{CRITIQUE}\n\n{markdown(heads, lines, num_words=3)}"


def _wide(name: str, rows: Mapping[str, Row]) -> str:
    """A table of the paper: its figure, and behind a stroke ours."""
    down, across = items()[name].grid
    cells = [[_pair(rows[f"{one}, {other}"]) for other in across] for one in down]
    hows = " and ".join(dict.fromkeys(row.how for row in rows.values() if row.ours is not None))
    title = f"{name}: the paper's / ours{', ' if hows else ''}{hows}"
    lines = [[one, *own] for one, own in zip(down, cells, strict=True)]
    return f"{title}\n\n{markdown(['', *across], lines)}"


def _pair(row: Row) -> str:
    return _text(row.published, 6) + ("" if row.ours is None else f" / {_text(row.ours)}")


def _text(figure: float | None, digits: int = 4) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if abs(figure) >= 1e4 else f"{figure:,.{digits}g}"


def picture_name(paper: str) -> str:
    """The file of a paper's picture, beside the page."""
    return f"papers-{paper.lower()}.svg"


def check_page(path: Path, papers: Iterable[str], *, is_whole: bool) -> None:
    """Check before anything is measured that a page has places for tables, if it is there.

    Args:
        path: The page.
        papers: Those that are written into it.
        is_whole: Whether these have all of their items: the tables are replaced as they are.

    Raises:
        OptionError: A paper has no place in it, or some of its rows would be lost.
        OSError: It cannot be read.
    """
    if not path.exists():
        return
    if not is_whole:
        raise OptionError(f"--page {path} is there: name a new file, or whole papers in --only")
    text = path.read_bytes().decode("utf-8", "replace")
    for paper in papers:
        begin = _PART.format(paper.lower(), "[^>]*")
        place = re.search(f"{begin}(?:(?!<!-- figures:).)*?{_END}", text, re.DOTALL)
        if place is None or "\ufffd" in text:
            wanted = f"lines {_PART.format(paper.lower(), '').strip()!r} and {_END!r}"
            raise OptionError(f"--page {path} has no place for tables of {paper}: {wanted}")


def write_page(
    path: Path,
    rows: Sequence[Row],
    measured: str,
    command: str,
    remarks: Sequence[Remark] = (),
) -> None:
    """Write the rows into a page; a new one if it is not there.

    Args:
        path: The page.
        rows: Those of the papers that are to be written.
        measured: What they were measured at.
        command: What printed them, for a new page.
        remarks: On the papers' own numbers; none to leave those that are there.

    Raises:
        OSError: It cannot be written.
    """
    text = path.read_text("utf-8") if path.exists() else _new(command)
    for paper in PAPERS:
        own = [row for row in rows if row.paper == paper]
        if own:
            tables = tables_of(paper, own)
            text = _filled(text, paper, f"\n{tables}\n\nMeasured at {measured}.\n\n")
    if remarks:
        table = critique_of(remarks)
        text = _filled(text, "critique", f"\n{table}\n\nMeasured at {measured}.\n\n")
    write_file(path, text.encode())


def _new(command: str) -> str:
    titles = {paper.lower(): paper for paper in PAPERS} | {"critique": CRITIQUE}
    parts = (f"## {title}\n\n{_PART.format(of, '')}{_END}\n" for of, title in titles.items())
    return "\n".join(["# The papers' figures and ours\n", f"```sh\n{command}\n```\n", *parts])


def _filled(text: str, paper: str, table: str) -> str:
    """A page with one paper's part replaced; as it is where it has none."""
    begin = re.search(_PART.format(paper.lower(), "[^>]*"), text)
    if begin is None:
        return text
    return text[: begin.end()] + table + text[text.index(_END, begin.end()) :]


def draw(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw each paper's figures that have figures of ours, beside a page.

    Returns:
        The files.

    Raises:
        OptionError: matplotlib is not installed.
        OSError: A file cannot be written.
    """
    drawn = []
    for paper in PAPERS:
        panels: dict[str, list[tuple[str, float | None, float]]] = {}
        for row in rows:
            if row.paper == paper and "Figure" in row.item and row.ours is not None:
                panels.setdefault(row.item, []).append((row.name, row.published, row.ours))
        if panels:
            drawn.append(path.with_name(picture_name(paper)))
            plot_pairs(panels, drawn[-1])
    return drawn
