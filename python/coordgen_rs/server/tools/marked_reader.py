"""Reads an answer in which calls stand between marks.

In: text, piece by piece; a `MarkedFormat`. Out: content, and calls. Where the answer is constrained
to the format, a call that has begun can only be one, so it is given as it is made: its name, then
its arguments. Elsewhere it is given when it is complete, and checked; what is no call stays
content.
"""

import json
import re
from collections.abc import Generator
from typing import Any

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.arguments.syntax import is_object
from coordgen_rs.server.tools.calls import Call, CallReader, Content, Parameters
from coordgen_rs.server.tools.marked_format import BARE_KEYS, MarkedFormat
from coordgen_rs.server.tools.text_buffer import begun_len


class MarkedReader(CallReader):
    """Reads one answer.

    Args:
        marked: How calls are written.
        parameters: The functions that may be called.
        is_constrained: Whether the answer is constrained to that.
    """

    def __init__(
        self, marked: MarkedFormat, parameters: Parameters, *, is_constrained: bool
    ) -> None:
        super().__init__()
        self._marked, self._parameters = marked, parameters
        self._is_constrained = is_constrained
        names, keys = "|".join(map(re.escape, parameters)), "|".join(BARE_KEYS)
        self._bare_head = re.compile(
            rf'\s*\{{\s*"name"\s*:\s*"({names})"\s*,\s*"(?:{keys})"\s*:\s*(?=\{{)'
        )
        self._bare_heads = [
            f'{{"name":"{name}","{key}":{{' for name in parameters for key in BARE_KEYS
        ]
        self._is_begun = False  # whether something other than white space was said
        self._is_behind_call = False  # and nothing but white space since

    def _answer(self) -> Generator[None]:
        opening = self._marked.opening
        while not self._is_over:
            start = self.ahead.find(opening)
            if self._may_be_bare():
                yield from self._read_bare()
            elif start < 0:
                yield from self._wait_at(len(self.ahead) - begun_len(self.ahead, opening))
            elif self._is_constrained:
                yield from self._read_section(start)
            else:
                yield from self._read_whole_section(start)
        self._finish()

    def _finish(self) -> None:
        """Tell what is left at the end of the answer."""
        marked = self._marked
        start = self.ahead.find(marked.opening)
        inside = self.ahead[start + len(marked.opening) :].removesuffix(marked.closing)
        if self._is_constrained:
            self._give(self._begun_at() if self._is_cut else len(self.ahead))
        elif calls := self._calls_in(self.ahead):
            self._tell_calls(calls)
        elif start >= 0 and (calls := self._calls_in(inside)):
            self._give(start, before_call=True)
            self._tell_calls(calls)
        else:
            self._give(len(self.ahead))

    def _give(self, num_chars: int, *, before_call: bool = False) -> None:
        """Content; white space before and behind a call is not meant for anybody."""
        text = self.take(num_chars)
        if self._is_behind_call or (before_call and not self._is_begun and text.isspace()):
            text = text.lstrip()
        if text:
            self._is_begun, self._is_behind_call = True, False
            self._tell(Content, text)

    def _wait_at(self, start: int) -> Generator[None]:
        """Tell what stands before a mark, and wait: white space alone may come to nothing."""
        if self._is_begun or not self.ahead[:start].isspace():
            self._give(start)
        yield

    # Calls without marks, and what may be the beginning of one.

    def _may_be_bare(self) -> bool:
        """Whether the answer may be nothing but a call without marks."""
        if self._is_begun:
            return False
        if not self._is_constrained:
            return self.ahead.lstrip()[:1] in ("", "{", "[")
        tight = "".join(self.ahead.split())
        return self._marked.is_bare and (
            any(head.startswith(tight) for head in self._bare_heads)
            or self._bare_head.match(self.ahead) is not None
        )

    def _read_bare(self) -> Generator[None]:
        match = self._bare_head.match(self.ahead) if self._is_constrained else None
        if match is None:
            yield  # more text tells, or only the end
        else:
            self.take(match.end())
            yield from self._read_calls(self._calls(match[1], ""))

    def _begun_at(self) -> int:
        """Where a call may have begun that has not got to its function."""
        if self.ahead.strip() and self._may_be_bare():
            return 0
        start = self.ahead.find(self._marked.opening)
        if start < 0 and (self._is_behind_call or not self._is_begun):  # else it may well be text
            start = len(self.ahead) - begun_len(self.ahead, self._marked.opening)
        return start if start >= 0 else len(self.ahead)

    # Calls that the answer is constrained to.

    def _read_section(self, start: int) -> Generator[None]:
        """Read calls behind an opening mark, or tell a mark as content that is only mentioned."""
        begin, behind = self._marked.begin, start + len(self._marked.opening)
        said = self.ahead[behind:].lstrip() if begin else self.ahead[behind:]
        if said.startswith(begin):
            self._give(start, before_call=True)
            self.ahead = said
            yield from self._read_calls(self._section())
        elif begin.startswith(said):
            yield from self._wait_at(start)
        else:
            self._give(behind)

    def _read_calls(self, calls: Generator[None]) -> Generator[None]:
        self._is_begun = self._is_behind_call = True
        try:
            yield from calls
        except ValueError:  # the grammar allows no such text; what was told stands
            self._give(len(self.ahead))

    def _section(self) -> Generator[None]:
        """Read the calls of a section."""
        marked = self._marked
        self.is_open = self.num_calls > 0
        yield from self.skip(marked.first)
        yield from self.skip(marked.before)
        yield from self._calls((yield from self._name()), marked.last + marked.closing)

    def _calls(self, name: str, closing: str) -> Generator[None]:
        """Read calls and what closes them, from the name of the first on."""
        marked = self._marked
        again = "" if marked.between is None else (marked.between + marked.before).strip()
        while True:
            self._tell_call(name)
            self.is_open = True
            yield from marked.syntax.read(self, self._parameters[name], self._tell_arguments)
            yield from self.skip(marked.end)
            self.is_open = False
            mark = yield from self.which(closing, again)
            self.take(len(mark))
            if not mark or mark != again:
                return
            self.is_open = True
            name = yield from self._name()

    def _name(self) -> Generator[None, None, str]:
        """Read a name up to what stands behind it.

        Raises:
            ValueError: It is that of no function.
        """
        after = self._marked.after.rstrip()
        longest = max(map(len, self._parameters)) + len(after)
        self.ahead = self.ahead.lstrip()
        while (end := self.ahead.find(after)) < 0 and len(self.ahead) <= longest:
            yield
            self.ahead = self.ahead.lstrip()
        name = self.ahead[: max(end, 0)]
        if name not in self._parameters:
            raise ValueError("no function")
        self.take(end + len(after))
        return name

    # Calls that it is not constrained to.

    def _read_whole_section(self, start: int) -> Generator[None]:
        """Tell a section that is closed, as calls or as content."""
        closing, behind = self._marked.closing, start + len(self._marked.opening)
        end = self.ahead.find(closing, behind) if closing else -1
        if end < 0:
            yield from self._wait_at(start)
        elif calls := self._calls_in(self.ahead[behind:end]):
            self._give(start, before_call=True)
            self._tell_calls(calls)
            self.take(end - start + len(closing))
        else:
            self._give(behind)

    def _tell_calls(self, calls: list[tuple[str, str]]) -> None:
        for name, arguments in calls:
            self._tell_call(name, arguments)
        self._is_begun = self._is_behind_call = True

    def _calls_in(self, text: str) -> list[tuple[str, str]]:
        """Functions and arguments of the calls that a text is; none if it is anything else."""
        return self._listed(text.strip()) or self._written(text.strip())

    def _listed(self, text: str) -> list[tuple[str, str]]:
        """The same of calls in JSON, in whatever order and spacing."""
        try:
            parsed = parse_json(text, "a call")
        except JsonTextError:
            return []
        calls = [self._named(one) for one in (parsed if isinstance(parsed, list) else [parsed])]
        return [one for one in calls if one] if all(calls) else []

    def _named(self, call: Any) -> tuple[str, str] | None:
        """Function and arguments of a call; None where it is none of a known function."""
        match call:
            case {"name": str(name)} if name in self._parameters:
                arguments = call.get("arguments", call.get("parameters", {}))
                if isinstance(arguments, dict):
                    return name, json.dumps(arguments, ensure_ascii=False)
        return None

    def _written(self, text: str) -> list[tuple[str, str]]:
        """The same of calls as the format has them."""
        reader = MarkedReader(self._marked, self._parameters, is_constrained=True)
        reader.ahead = text + self._marked.closing
        try:
            next(reader._section(), None)
        except ValueError:
            return []
        if reader.is_open or reader.ahead.strip():
            return []
        told = [one for one in reader._told if isinstance(one, Call)]  # each name, then arguments
        calls = [
            (one.name or "", whole.arguments)
            for one, whole in zip(told[::2], told[1::2], strict=True)
        ]
        return calls if all(is_object(arguments) for _, arguments in calls) else []
