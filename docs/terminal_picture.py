"""A picture of a command in a terminal: `python docs/terminal_picture.py OUT.svg COMMAND ..`.

In: a command, which is run. Out: an SVG file with the command and what it printed, in colours.
Nothing in it is drawn by hand, and it asks for no font from elsewhere.
"""

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 96

_ERASED_LINE = "\x1b[2K"
_CURSOR = re.compile(r"\x1b?\[(?:\?25[hl]|\d*[AK])")
_FONTS_BY_ADDRESS = re.compile(r"@font-face {{.*?}}\s*", re.DOTALL)
_FORMAT = _FONTS_BY_ADDRESS.sub("", CONSOLE_SVG_FORMAT).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)


def main() -> int:
    """Run the command and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, metavar="OUT.svg")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ..")
    options = parser.parse_args()
    done = subprocess.run(
        options.command,
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        return done.returncode
    printed = done.stdout + without_progress(done.stderr)
    options.picture.write_text(drawn(shlex.join(options.command), printed))
    return 0


def without_progress(said: str) -> str:
    """What stays on a terminal when the bars of progress are gone."""
    return _CURSOR.sub("", said[said.rfind(_ERASED_LINE) + 1 :])


def drawn(command: str, printed: str) -> str:
    """The picture, as SVG.

    Args:
        command: What was typed.
        printed: What it printed, with the escape sequences of its colours.
    """
    typed = Text(f"$ {command}", style="bold")
    return picture_of(typed, Text.from_ansi(printed.rstrip("\n")))


def picture_of(*lines: Text) -> str:
    """Texts below each other, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line)
    return console.export_svg(title="", theme=MONOKAI, code_format=_FORMAT, unique_id="answer")


if __name__ == "__main__":
    sys.exit(main())
