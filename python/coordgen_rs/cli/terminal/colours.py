"""Colours on a terminal: each source has its own, explained in a legend.

In: the pieces of an answer. Out: their text as the terminal may see it, in the colour of their
source. Text of the target itself is not coloured.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import IO

from coordgen_rs.cli.terminal.text import answer_text
from coordgen_rs.model.answer import TextDelta

_COLOURS = (32, 36, 33, 35, 34, 31, 92, 96, 93, 95, 94, 91)
"""Foreground codes: green, cyan, yellow, magenta, blue, red, and their bright forms."""


def wants_colours(stream: IO[str]) -> bool:
    """Whether to colour output: never with NO_COLOR, always with FORCE_COLOR, else on terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class SourceColours:
    """Colours of sources, assigned in the order in which they first appear.

    Args:
        stream: Where answers are shown.

    Attributes:
        is_on: Whether they are coloured there.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self.is_on = stream, wants_colours(stream)
        self._codes: dict[str, int | None] = {"target": None}

    def shown(self, piece: TextDelta) -> str:
        """The piece's text for the stream."""
        text = answer_text(piece.text, self._stream)
        return self._painted(text, piece.source) if self.is_on else text

    def _painted(self, text: str, source: str) -> str:
        number = len(self._codes) - 1
        code = self._codes.setdefault(source, _COLOURS[number % len(_COLOURS)])
        return text if code is None else f"\x1b[{code}m{text}\x1b[0m"

    def legend(self, sources: Sequence[str], *, painted: bool) -> str:
        """The sources of an answer's tokens, with the share of each, in its colour if `painted`."""
        return ", ".join(
            f"{self._painted(name, name) if painted else name} {count / len(sources):.0%}"
            for name, count in Counter(sources).most_common()
        )
