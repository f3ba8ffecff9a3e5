"""Reads an answer in which calls stand between marks.

In: text, piece by piece; a `Frame`. Out: content, and calls. Where the answer is held to the frame,
a call that has begun can only be one, so it is given as it is made: its name, then its arguments.
Elsewhere it is given when it is complete, and checked; what is no call stays content.
"""

import json
from typing import TYPE_CHECKING, Any

from coordgen_rs.files.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.calls import Call, Content, Parameters, Said
from coordgen_rs.server.tools.forms.frame import BARE_KEYS, bare_pattern
from coordgen_rs.server.tools.forms.section import Section
from coordgen_rs.server.tools.spelling.marks import begun_len
from coordgen_rs.server.tools.spelling.plain_json import is_object

if TYPE_CHECKING:
    from coordgen_rs.server.tools.forms.frame import Frame


class FrameReader:
    """Reads one answer.

    Args:
        frame: How calls are written.
        parameters: The functions that may be called.
        is_held: Whether the answer is held to that.
    """

    def __init__(self, frame: "Frame", parameters: Parameters, *, is_held: bool) -> None:
        self._frame, self._parameters, self._is_held = frame, parameters, is_held
        self._bare = bare_pattern(parameters)
        self._heads = tuple(
            f'{{"name":"{name}","{key}":{{' for name in parameters for key in BARE_KEYS
        )
        self._held = ""  # text that is not told yet
        self._section: Section | None = None  # the one that is being read
        self._is_begun = False  # whether something other than white space was said
        self._is_behind_call = False  # and nothing but white space since
        self._num_calls = 0
        self._is_broken = False  # whether a call was told of whose arguments never end

    @property
    def is_open(self) -> bool:
        """Whether a call has been told of which arguments are missing."""
        if self._section is None:
            return self._is_broken
        return not self._section.is_complete and self._num_calls > 0

    def read(self, text: str) -> list[Said]:
        """What is certain with this piece of text."""
        self._held += text
        found: list[Said] = []
        while self._held and self._advance(found):
            pass
        return found

    def end(self, *, is_cut: bool) -> list[Said]:
        """What is left at the end of the answer; of a held call that is cut, nothing more."""
        found: list[Said] = []
        if self._section is None:
            if is_cut and self._is_held:
                self._held = self._held[: self._begun_at()]
            start = self._held.find(self._frame.opening) if self._frame.opening else -1
            if calls := self._calls(self._held if start < 0 or not self._is_whole(start) else ""):
                return [*calls]
            if start >= 0 and (calls := self._calls(self._inside(self._held[start:]))):
                self._give(found, start, before_call=True)
                return [*found, *calls]
            self._give(found, len(self._held))
        return found

    def _begun_at(self) -> int:
        """Where a held call may have begun that has not got to its function."""
        opening, end = self._frame.opening, len(self._held)
        if not self._is_begun and self._held.strip() and self._may_be_bare():
            return 0
        start = self._held.find(opening) if opening else -1
        if start >= 0:
            return start
        is_apart = self._is_behind_call or not self._is_begun  # else it may well be text
        return end - begun_len(self._held, opening) if opening and is_apart else end

    def _is_whole(self, start: int) -> bool:
        """Whether nothing stands before an opening mark."""
        return not self._is_begun and self._held[:start].isspace()

    def _advance(self, found: list[Said]) -> bool:
        """Tell the next part; whether there was one."""
        if self._section is not None:
            return self._go_on(found)
        if self._may_be_bare():
            return self._begin_bare()
        opening = self._frame.opening
        start = self._held.find(opening) if opening else -1
        if start < 0:
            kept = begun_len(self._held, opening) if opening else 0
            self._give(found, len(self._held) - kept)
            return False
        if self._is_held:
            return self._begin(found, start)
        return self._found(found, start)

    # Calls that the answer is held to.

    def _may_be_bare(self) -> bool:
        """Whether the answer may be nothing but a call without marks."""
        if self._is_begun:
            return False
        text = self._held.lstrip()
        if not self._is_held:
            return text[:1] in ("", "{", "[")
        if not self._frame.is_bare:
            return False
        tight = "".join(text.split())
        return any(head.startswith(tight) or tight.startswith(head) for head in self._heads)

    def _begin_bare(self) -> bool:
        """Begin a call without marks; False where more text tells."""
        match = self._bare.match(self._held) if self._is_held else None
        if match is None:
            if not self._is_held:
                return False  # only the end tells
            self._is_begun = "".join(self._held.split()).startswith(self._heads)
            return self._is_begun  # it looked like one, but for its white space
        self._held = self._held[match.end() :]
        self._section = Section(self._frame, self._parameters, bare_name=match[1])
        return True

    def _begin(self, found: list[Said], start: int) -> bool:
        """Begin a section of calls, or tell a mark as content that is only mentioned."""
        begin = self._frame.begin
        behind = self._held[start + len(self._frame.opening) :]
        said = behind.lstrip() if begin else behind
        if said.startswith(begin):
            self._give(found, start, before_call=True)
            self._held = said
            self._section = Section(self._frame, self._parameters)
            return True
        if begin.startswith(said):
            if self._is_begun or not self._held[:start].isspace():
                self._give(found, start)
            return False
        self._give(found, start + len(self._frame.opening))
        return True

    def _go_on(self, found: list[Said]) -> bool:
        """Tell what the section goes on with."""
        section = self._section
        if section is None:
            return False
        try:
            calls, self._held = section.read(self._held), ""
        except ValueError:  # the grammar allows no such text; what was told stands
            self._is_broken = self.is_open
            self._section, self._held = None, section.ahead
            self._give(found, len(self._held))
            return False
        for name, arguments in calls:
            self._num_calls += name is not None
            found.append(Call(self._num_calls - 1, name, arguments))
        if section.is_closed:
            self._section, self._held = None, section.ahead
        self._is_begun = self._is_behind_call = True
        return section.is_closed

    # Calls that it is not held to.

    def _found(self, found: list[Said], start: int) -> bool:
        """Tell a section that is closed, as calls or as content; False while it is not."""
        frame = self._frame
        behind = start + len(frame.opening)
        end = self._held.find(frame.closing, behind) if frame.closing else -1
        if end < 0:
            if self._is_begun or not self._held[:start].isspace():
                self._give(found, start)
            return False
        end += len(frame.closing)
        if calls := self._calls(self._inside(self._held[start:end])):
            self._give(found, start, before_call=True)
            found += calls
            self._is_begun = self._is_behind_call = True
            self._held = self._held[end - start :]
        else:
            self._give(found, behind)
        return True

    def _inside(self, section: str) -> str:
        text = section.removeprefix(self._frame.opening)
        if self._frame.closing:
            text = text.removesuffix(self._frame.closing)
        return text.strip()

    def _give(self, found: list[Said], num_chars: int, *, before_call: bool = False) -> None:
        """Content; white space before and behind a call is not meant for anybody."""
        text, self._held = self._held[:num_chars], self._held[num_chars:]
        if self._is_behind_call or (before_call and not self._is_begun and text.isspace()):
            text = text.lstrip()
        if text:
            self._is_begun, self._is_behind_call = True, False
            found.append(Content(text))

    def _calls(self, text: str) -> list[Call]:
        """The calls that a text is, with or without marks; none if it is anything else."""
        if self._is_held or not text.strip():
            return []
        named = self._listed(text) or self._spelt(text)
        calls = [Call(self._num_calls + number, *one) for number, one in enumerate(named)]
        self._num_calls += len(calls)
        return calls

    def _listed(self, text: str) -> list[tuple[str, str]]:
        """Functions and arguments of calls in JSON, in whatever order and spacing."""
        try:
            parsed = parse_json(text.strip(), "a call")
        except JsonTextError:
            return []
        listed = parsed if isinstance(parsed, list) else [parsed]
        named = [self._named(item) for item in listed]
        return [one for one in named if one] if all(named) else []

    def _named(self, call: Any) -> tuple[str, str] | None:
        """Function and arguments of a call; None where it is none of a known function."""
        if not isinstance(call, dict):
            return None
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters", {}))
        is_known = isinstance(name, str) and name in self._parameters
        if not isinstance(name, str) or not is_known or not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, ensure_ascii=False)

    def _spelt(self, text: str) -> list[tuple[str, str]]:
        """Functions and arguments of calls as the frame has them."""
        section = Section(self._frame, self._parameters)
        told: list[tuple[str, str]] = []
        try:
            calls = section.read(text + self._frame.closing)
        except ValueError:
            return []
        for name, arguments in calls:
            told.append((name, arguments) if name else (told[-1][0], told.pop()[1] + arguments))
        if not section.is_complete or section.ahead.strip():
            return []
        return told if all(is_object(arguments) for _, arguments in told) else []
