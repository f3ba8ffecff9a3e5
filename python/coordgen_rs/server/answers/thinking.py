"""Thinking in what a model says, told apart from its answer, in front of what reads calls.

In: an answer's text, piece by piece. Out: `Thought`, and what a `CallReader` makes of the rest.
Marks are left out, and so is white space around them. Models with tags think before they answer;
gpt-oss says each thing in a channel of its own, which `harmony.py` reads.
"""

from collections.abc import Generator

from coordgen_rs.server.tools.calls import AnswerEvent, CallReader, Content, Thought, begun_len
from coordgen_rs.server.tools.harmony import HarmonyReader
from coordgen_rs.text.thinking import CHANNELS, Thinking


class ThinkingReader:
    """Reads one answer.

    Args:
        thinking: How it may think; None for an answer that does not.
        calls: Reads the rest.
    """

    def __init__(self, thinking: Thinking | None, calls: CallReader) -> None:
        self._calls, self._thinks = calls, thinking is not None
        self._thoughts = CallReader()  # for which all is content
        if thinking is not None and thinking.marks is not CHANNELS:
            self._thoughts = _Tags(thinking)
        elif thinking is not None and not isinstance(calls, HarmonyReader):
            self._thoughts = HarmonyReader({})

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._calls.num_calls

    @property
    def num_held(self) -> int:
        """How many of the last characters are neither told nor left out yet."""
        return len(self._calls.ahead) + len(self._thoughts.ahead)

    @property
    def is_open(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._calls.is_open

    def read(self, text: str) -> list[AnswerEvent]:
        """What is certain with this piece of text."""
        return self._behind(self._thoughts.read(text))

    def end(self, *, is_cut: bool = False) -> list[AnswerEvent]:
        """What is left at the end of the answer; `is_cut` as in `CallReader`."""
        left = self._behind(self._thoughts.end())
        return left + self._told(self._calls.end(is_cut=is_cut))

    def _behind(self, parts: list[AnswerEvent]) -> list[AnswerEvent]:
        """Thoughts, and what the calls' reader makes of the rest."""
        found: list[AnswerEvent] = []
        for one in parts:
            found += self._told(self._calls.read(one.text)) if isinstance(one, Content) else [one]
        return found

    def _told(self, found: list[AnswerEvent]) -> list[AnswerEvent]:
        """What the calls' reader tells; thoughts that it finds are text where none are wanted."""
        if self._thinks:
            return found
        return [Content(one.text) if isinstance(one, Thought) else one for one in found]


class _Tags(CallReader):
    """Reads thinking between two marks, at the beginning of an answer, or also within it."""

    def __init__(self, thinking: Thinking) -> None:
        super().__init__()
        self._marks, self._is_thinking = thinking.marks, thinking.is_open

    def _answer(self) -> Generator[None]:
        begin = self._marks.begin
        while not self._is_thinking:
            said = self.ahead.lstrip()
            self._is_thinking = said.startswith(begin)
            if self._is_thinking:
                self.ahead = said[len(begin) :]
            elif self._is_over or not begin.startswith(said):
                break
            else:
                yield
        while True:
            if self._is_thinking:
                yield from self._thought()
            yield from self._text()

    def _thought(self) -> Generator[None]:
        """Read thinking and its end mark, with the white space around it."""
        end, has_thought = self._marks.end, False
        while True:
            said, mark, behind = self.ahead.partition(end)
            kept = 0 if mark or self._is_over else begun_len(said, end)
            certain = said[: len(said) - kept].rstrip()
            shown = certain if has_thought else certain.lstrip()
            self._tell(Thought, shown)
            has_thought = has_thought or bool(shown)
            self.ahead = behind if mark else self.ahead[len(certain) :]
            if mark:
                break
            yield
        while not (said := self.ahead.lstrip()):
            self.ahead = said
            yield
        self.ahead, self._is_thinking = said, False

    def _text(self) -> Generator[None]:
        """Read text up to the next thinking, if there may be more."""
        begin = self._marks.begin if self._marks.is_repeated else ""
        while not self._is_thinking:
            place = self.ahead.find(begin) if begin else -1
            kept = 0 if self._is_over else begun_len(self.ahead, begin)
            self._tell(Content, self.take(place if place >= 0 else len(self.ahead) - kept))
            self._is_thinking = place >= 0
            if self._is_thinking:
                self.take(len(begin))
            else:
                yield
