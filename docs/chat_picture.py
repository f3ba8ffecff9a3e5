"""A picture of `coordgen chat` in a terminal: `python docs/chat_picture.py OUT.svg BUNDLE`.

In: a bundle, which answers. Out: an SVG file with the terminal's screen as it stood then.
"""

import argparse
import re
import sys
from itertools import groupby
from pathlib import Path

from pyte.screens import Char
from rich.style import Style
from rich.text import Text

sys.path += [str(Path(__file__).parents[1] / "tests" / "support")]

from screen import Screen
from terminal_picture import COLUMNS, picture_of

MESSAGE = (Path(__file__).parent / "council.txt").read_text().strip()

_HEX = re.compile("[0-9a-f]{6}")
_NAMES = {"brown": "yellow", "brightblack": "bright_black", "brightbrown": "bright_yellow"}


def main() -> int:
    """Chat, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, metavar="OUT.svg")
    parser.add_argument("bundle", type=Path)
    options = parser.parse_args()
    arguments = ("chat", options.bundle, "--no-input-history", "--temperature", "0")
    with Screen(*arguments, size=(COLUMNS, 40)) as screen:
        screen.until_asked(0)
        screen.paste(MESSAGE)
        for number, keys in enumerate(("\r", "/stats\r"), start=1):
            screen.type(keys)
            screen.until_asked(number)
        command = Text(f"$ coordgen chat {options.bundle}", style="bold")
        options.picture.write_text(picture_of(command, *lines(screen)))
    return 0


def lines(screen: Screen) -> list[Text]:
    """The rows of a screen in their colours, but for empty ones at the end."""
    rows = []
    for cells in screen.cells:
        runs = ((style, list(run)) for style, run in groupby(cells, key=style_of))
        row = Text.assemble(*(("".join(cell.data for cell in run), style) for style, run in runs))
        row.rstrip()
        rows.append(row)
    while rows and not rows[-1].plain:
        rows.pop()
    return rows


def style_of(cell: Char) -> Style:
    """How a cell looks, for rich."""
    return Style(
        color=colour(cell.fg), bgcolor=colour(cell.bg), bold=cell.bold, reverse=cell.reverse
    )


def colour(name: str) -> str | None:
    """A colour of pyte, for rich; None is the terminal's own."""
    if name == "default":
        return None
    return f"#{name}" if _HEX.fullmatch(name) else _NAMES.get(name, name)


if __name__ == "__main__":
    sys.exit(main())
