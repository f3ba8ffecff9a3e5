"""Stop strings: an answer's text ends where the first of them begins.

In: the text in pieces, cut anywhere. Out: the text before the earliest occurrence of any stop
string, each part of it as soon as no stop string can begin there. How the text is cut does not
matter. It does not know about tokens.
"""

from collections.abc import Sequence

from coordgen_rs.errors import OptionError, arguments


class StopStrings:
    """The stop strings of one answer, and the text that is held back because of them.

    Args:
        stop: One string or several; none of them empty.

    Attributes:
        cut_at: Where the text was cut, in characters; None while no stop string was found. After
            that, nothing more may be pushed.
        found: The stop string that cut it; of several that begin there, the first that was given.

    Raises:
        OptionError: A stop string is empty, or no valid string.
    """

    def __init__(self, stop: str | Sequence[str] = ()) -> None:
        strings = (stop,) if isinstance(stop, str) else stop
        if isinstance(strings, bytes) or not isinstance(strings, Sequence):
            raise OptionError(
                f"stop must be a string or a list of them, but is {arguments.shown(stop)}"
            )
        self._strings = tuple(
            arguments.text("a stop string", s, may_be_empty=False) for s in strings
        )
        self._longest = max(map(len, self._strings), default=1)
        self._held, self._num_given = "", 0
        self.cut_at: int | None = None
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; return what is now certain to be in the answer."""
        self._held += text
        # A string that began before the one that was found may still be the one that cuts.
        return self._give(self._begun())

    def finish(self) -> str:
        """Return what was held back, now that nothing follows."""
        return self._give(len(self._held))

    def _give(self, certain: int) -> str:
        """Give out what is held up to `certain`, or to a stop string that begins no later."""
        found = self._first()
        if found is not None and found <= certain:
            self.cut_at, certain = self._num_given + found, found
            self.found = next(s for s in self._strings if self._held.startswith(s, found))
        text, self._held = self._held[:certain], self._held[certain:]
        self._num_given += certain
        return text

    def _first(self) -> int | None:
        """Where the first whole stop string begins."""
        found = (self._held.find(string) for string in self._strings)
        return min((place for place in found if place >= 0), default=None)

    def _begun(self) -> int:
        """Where a stop string may have begun that is not yet complete; else the end."""
        end = len(self._held)
        places = range(max(end - self._longest + 1, 0), end)
        begun = (p for p in places if any(s.startswith(self._held[p:]) for s in self._strings))
        return next(begun, end)
