"""Thinking in what a model says, told apart from its answer, in front of what reads calls.

In: an answer's text, piece by piece. Out: `Thought`, and what a `CallReader` makes of the rest.
Marks are left out, and so is white space around them. Models with tags think before they answer;
gpt-oss says each thing in a channel of its own (`_Channels`).
"""

from collections.abc import Sequence

from coordgen_rs.server.tools.calls import AnswerEvent, CallReader, Content, Thought
from coordgen_rs.server.tools.text_buffer import begun_len
from coordgen_rs.text.thinking import CHANNELS, Thinking


class ThinkingReader:
    """Reads one answer.

    Args:
        thinking: How it may think; None for an answer that does not.
        calls: Reads the rest.
    """

    def __init__(self, thinking: Thinking | None, calls: CallReader) -> None:
        self._calls = calls
        self._split: _Tags | _Channels | None = None
        if thinking is not None:
            has_channels = thinking.marks is CHANNELS
            self._split = _Channels() if has_channels else _Tags(thinking)

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._calls.num_calls

    @property
    def num_held(self) -> int:
        """How many of the last characters are neither told nor left out yet."""
        return len(self._calls.ahead) + (0 if self._split is None else len(self._split.held))

    @property
    def is_open(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._calls.is_open

    def read(self, text: str) -> list[AnswerEvent]:
        """What is certain with this piece of text."""
        if self._split is None:
            return self._said(self._calls.read(text))
        return self._told(self._split.read(text))

    def end(self, *, is_cut: bool = False) -> list[AnswerEvent]:
        """What is left at the end of the answer; `is_cut` as in `CallReader`."""
        left = [] if self._split is None else self._told(self._split.end())
        return [*left, *self._said(self._calls.end(is_cut=is_cut))]

    def _told(self, parts: Sequence[Thought | str]) -> list[AnswerEvent]:
        found: list[AnswerEvent] = []
        for part in parts:
            found += [part] if isinstance(part, Thought) else self._calls.read(part)
        return found

    def _said(self, found: list[AnswerEvent]) -> list[AnswerEvent]:
        """What the calls' reader tells; thoughts that it finds are text where none are wanted."""
        if self._split is not None:
            return found
        return [Content(one.text) if isinstance(one, Thought) else one for one in found]


class _Tags:
    """Thinking between two marks, at the beginning of an answer, or also within it."""

    def __init__(self, thinking: Thinking) -> None:
        self._marks, self.held = thinking.marks, ""
        self._phase = "thinking" if thinking.is_open else "start"
        self._has_thought = False

    def read(self, text: str) -> list[Thought | str]:
        """What is certain with this piece of text."""
        self.held += text
        found: list[Thought | str] = []
        while self._goes_on(found):
            pass
        return found

    def end(self) -> list[Thought | str]:
        """What is left."""
        held, self.held = self.held, ""
        if self._phase == "thinking":
            held = held.rstrip()
            return self._thought(held if self._has_thought else held.lstrip())
        return [held] if held else []

    def _goes_on(self, found: list[Thought | str]) -> bool:
        """Take what is certain of the text held; whether the phase has changed."""
        if self._phase == "start":
            return self._started()
        if self._phase == "thinking":
            return self._thinks(found)
        if self._phase == "behind":
            self.held = self.held.lstrip()
            self._phase = "answer" if self.held else "behind"
            return bool(self.held)
        begin = self._marks.begin
        place = self.held.find(begin) if self._marks.is_repeated else -1
        num = place if place >= 0 else len(self.held)
        if place < 0 and self._marks.is_repeated:
            num -= begun_len(self.held, begin)
        if num:
            found.append(self.held[:num])
        self.held = self.held[num + len(begin) if place >= 0 else num :]
        self._phase = "thinking" if place >= 0 else "answer"
        return place >= 0

    def _started(self) -> bool:
        said, begin = self.held.lstrip(), self._marks.begin
        if said.startswith(begin):
            self._phase, self.held = "thinking", said[len(begin) :]
        elif begin.startswith(said):
            return False
        else:
            self._phase = "answer"
        return True

    def _thinks(self, found: list[Thought | str]) -> bool:
        end = self._marks.end
        place = self.held.find(end)
        text = self.held[: place if place >= 0 else -begun_len(self.held, end) or None]
        certain = text.rstrip()
        shown = certain if self._has_thought else certain.lstrip()
        if shown:
            found += self._thought(shown)
        if place >= 0:
            self._phase, self.held = "behind", self.held[place + len(end) :]
            self._has_thought = False
            return True
        self.held = self.held[len(certain) :]
        return False

    def _thought(self, text: str) -> list[Thought | str]:
        self._has_thought = self._has_thought or bool(text)
        return [Thought(text)] if text else []


class _Channels:
    """Messages with a header, `<|channel|>analysis<|message|>` and so on, each to its end mark.

    A message to a function is handed on as it is, header included.
    """

    _ENDS = ("<|end|>", "<|call|>", "<|return|>")
    _MESSAGE = "<|message|>"

    def __init__(self) -> None:
        self.held, self._phase = "", "header"  # or "thinking", "answer", "call"

    def read(self, text: str) -> list[Thought | str]:
        """What is certain with this piece of text."""
        self.held += text
        found: list[Thought | str] = []
        while self._headed(found) if self._phase == "header" else self._said(found):
            pass
        return found

    def end(self) -> list[Thought | str]:
        """What is left; a header alone says nothing."""
        held, self.held = self.held, ""
        if not held or (self._phase == "header" and held.lstrip().startswith(_HEADERS)):
            return []
        return [Thought(held) if self._phase == "thinking" else held]

    def _headed(self, found: list[Thought | str]) -> bool:
        if not _is_header(self.held):
            self._phase = "answer"
            return bool(self.held)
        place = self.held.find(self._MESSAGE)
        if place < 0:
            return False
        header, self.held = self.held[:place], self.held[place + len(self._MESSAGE) :]
        if " to=" in header:
            self._phase = "call"
            found.append(header + self._MESSAGE)
        else:
            self._phase = "thinking" if "<|channel|>analysis" in header else "answer"
        return True

    def _said(self, found: list[Thought | str]) -> bool:
        places = [(self.held.find(mark), mark) for mark in self._ENDS if mark in self.held]
        place, mark = min(places, default=(-1, ""))
        num = (
            place
            if mark
            else len(self.held) - max(begun_len(self.held, mark) for mark in self._ENDS)
        )
        text, self.held = self.held[:num], self.held[num + len(mark) :]
        if self._phase == "call":
            text += mark
        if text:
            found.append(Thought(text) if self._phase == "thinking" else text)
        if mark:
            self._phase = "header"
        return bool(mark)


_HEADERS = ("<|start|>", "<|channel|>", "to=functions.")
"""What a header begins with."""


def _is_header(text: str) -> bool:
    """Whether a message's text begins with its header, or may do so."""
    said = text.lstrip()
    return any(said.startswith(mark) or mark.startswith(said) for mark in _HEADERS)
