"""Reads one section of calls, as it comes.

In: text behind an opening mark, piece by piece. Out: names and arguments as soon as they are
certain. It is one walk from call to call, which waits wherever it needs more text.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

from coordgen_rs.server.tools.calls import Parameters

if TYPE_CHECKING:
    from coordgen_rs.server.tools.forms.frame import Frame

Part = tuple[str | None, str]
"""A function's name and "" where a call begins; None and JSON where its arguments go on."""


class Section:
    """Reads one section.

    Args:
        frame: How calls are written.
        parameters: The functions that may be called.
        bare_name: The function of a call without marks, whose arguments come next; None for calls
            between marks, of which the next begins.

    Attributes:
        ahead: Text that is not used yet.
        is_closed: Whether the section has ended.
        is_complete: Whether it may end where it stands: the last call is whole.
    """

    def __init__(
        self, frame: "Frame", parameters: Parameters, *, bare_name: str | None = None
    ) -> None:
        self._frame, self._parameters = frame, parameters
        self.ahead, self.is_closed, self.is_complete = "", False, False
        self._told: list[Part] = []
        self._walk = self._bare(bare_name) if bare_name is not None else self._marked()

    def read(self, text: str) -> list[Part]:
        """What is certain with this piece of text.

        Raises:
            ValueError: It is not written in this way.
        """
        self.ahead += text
        if not self.is_closed:
            self.is_closed = next(self._walk, True)
        told, self._told = self._told, []
        return told

    def _marked(self) -> Generator[bool]:
        frame = self._frame
        yield from self._pass(frame.first)
        yield from self._pass(frame.before)
        while True:
            yield from self._white()
            yield from self._call((yield from self._name()))
            yield from self._pass(frame.end)
            self.is_complete = True
            following = [frame.last + frame.closing]
            if frame.between is not None:
                following.append(frame.between + frame.before)
            if (yield from self._which(following)) != 1:
                return
            self.is_complete = False

    def _bare(self, name: str) -> Generator[bool]:
        frame = self._frame
        while True:
            yield from self._call(name)
            yield from self._pass("}")
            self.is_complete = True
            if not frame.prefers_bare or frame.between is None:
                return
            if (yield from self._which([frame.between + frame.before])) < 0:
                return
            name, self.is_complete = (yield from self._name()), False

    def _call(self, name: str) -> Generator[bool]:
        """Read a call's arguments."""
        self._told.append((name, ""))
        reader = self._frame.spelling.reader(self._parameters[name])
        yield from self._white()
        while True:
            got = reader.read(self.ahead)
            self.ahead = self.ahead[got.num_read :]
            if got.json:
                self._told.append((None, got.json))
            if got.is_whole:
                return
            yield False

    def _name(self) -> Generator[bool, None, str]:
        """Read a name up to what stands behind it.

        Raises:
            ValueError: It is that of no function.
        """
        behind = self._frame.after.rstrip()
        longest = max(map(len, self._parameters))
        while (end := self.ahead.find(behind)) < 0:
            if len(self.ahead) > longest + len(behind):
                raise ValueError("no function")
            yield False
        name, self.ahead = self.ahead[:end], self.ahead[end + len(behind) :]
        if name not in self._parameters:
            raise ValueError("no function")
        return name

    def _white(self) -> Generator[bool]:
        """Pass white space: there is something else ahead then."""
        while not (rest := self.ahead.lstrip()):
            yield False
        self.ahead = rest

    def _pass(self, mark: str) -> Generator[bool]:
        """Pass a mark, white space around it aside.

        Raises:
            ValueError: Something else comes.
        """
        if mark.strip() and (yield from self._which([mark])) != 0:
            raise ValueError(f"no {mark}")

    def _which(self, marks: list[str]) -> Generator[bool, None, int]:
        """Pass one of several marks; its index, or -1 where something else comes."""
        bare = [mark.strip() for mark in marks]
        if not any(bare):
            return -1  # nothing stands there
        while True:
            rest = self.ahead.lstrip()
            for index, mark in enumerate(bare):
                if mark and rest.startswith(mark):
                    self.ahead = rest[len(mark) :]
                    return index
            if rest and not any(mark.startswith(rest) for mark in bare if mark):
                return -1
            yield False
