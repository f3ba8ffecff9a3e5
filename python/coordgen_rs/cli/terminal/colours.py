"""Colours on a terminal: each source has its own, explained in a legend.

In: the pieces of an answer. Out: their text in the colour of their source. Text of the target
itself is not coloured.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import IO

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
    """Colours of sources, assigned in the order in which they first appear."""

    def __init__(self) -> None:
        self._codes: dict[str, int | None] = {"target": None}

    def painted(self, piece: TextDelta) -> str:
        """The piece's text in the colour of its source."""
        number = len(self._codes) - 1
        code = self._codes.setdefault(piece.source, _COLOURS[number % len(_COLOURS)])
        return piece.text if code is None else f"\x1b[{code}m{piece.text}\x1b[0m"

    def legend(self, sources: Sequence[str], *, painted: bool) -> str:
        """The sources of an answer's tokens, with the share of each, in its colour if `painted`."""
        counts = Counter(sources).most_common()
        names = (self.painted(TextDelta(name, name)) if painted else name for name, _ in counts)
        shares = (f"{count / len(sources):.0%}" for _, count in counts)
        return ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
