"""Calls of functions in what a model says: told apart from other text, as they are made.

In: an answer's text, piece by piece. Out: content, and calls. Text that turns out to be no call is
content: nothing that the model says is lost. How calls are written, and whether the answer is
constrained to that, so that a call that has begun can be streamed, is known to `formats.py`.
Readers are generators over one buffer: plain walks over the text, which wait by `yield` wherever
the next piece decides.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Parameters = Mapping[str, dict[str, Any]]
"""The JSON schema of each function's arguments, by the function's name."""


class Content(NamedTuple):
    """Text of the answer, for the client."""

    text: str


class Thought(NamedTuple):
    """Thinking, which is no part of the answer."""

    text: str


class Call(NamedTuple):
    """A call, or the next part of one.

    Attributes:
        number: Its number in the answer, from 0.
        name: The function; None where only its arguments go on.
        arguments: JSON, or a part of it.
    """

    number: int
    name: str | None
    arguments: str


@dataclass(frozen=True)
class CallConstraint:
    """What the answer may be, besides or instead of text.

    Attributes:
        parameters: The functions that may be called.
        is_required: Whether one has to be called: then nothing else is said.
        is_parallel: Whether more than one may be called.
        answer: The JSON schema that the answer follows where nothing is called; None for text.
    """

    parameters: Parameters
    is_required: bool = False
    is_parallel: bool = True
    answer: dict[str, Any] | None = None


AnswerEvent = Content | Thought | Call


def joined(found: Iterable[AnswerEvent]) -> list[AnswerEvent]:
    """What was said, with the parts of each call put together."""
    told = list[AnswerEvent]()
    for one in found:
        before = told[-1] if told else None
        if isinstance(one, Call) and one.name is None and isinstance(before, Call):
            told[-1] = before._replace(arguments=before.arguments + one.arguments)
        else:
            told.append(one)
    return told


def calls_of(found: Iterable[AnswerEvent]) -> list[Call]:
    """The calls in what was said, each whole."""
    return [one for one in joined(found) if isinstance(one, Call)]


def text_of(found: Iterable[AnswerEvent], kind: type[Content] | type[Thought]) -> str:
    """The text of one kind in what was said."""
    return "".join(one.text for one in found if isinstance(one, kind))


class TextBuffer:
    """The text that is not read yet.

    Attributes:
        ahead: The text.
    """

    def __init__(self) -> None:
        self.ahead = ""

    def take(self, num_chars: int) -> str:
        """Read the next characters."""
        text, self.ahead = self.ahead[:num_chars], self.ahead[num_chars:]
        return text

    def which(self, *marks: str) -> Generator[None, None, str]:
        """Wait for one of some marks; "" where something else comes.

        White space around marks is passed over, but the mark stays ahead.

        Args:
            marks: The marks; those that are empty or white space are none.
        """
        marks = tuple(filter(None, map(str.strip, marks)))
        while marks:
            rest = self.ahead.lstrip()
            if found := next(filter(rest.startswith, marks), ""):
                self.ahead = rest
                return found
            if rest and not any(mark.startswith(rest) for mark in marks):
                break
            yield
        return ""

    def skip(self, *marks: str) -> Generator[None]:
        """Pass marks, white space around them aside; where something else comes they stay ahead.

        Raises:
            ValueError: Something else comes.
        """
        passed = ""
        for mark in marks:
            found = yield from self.which(mark)
            if found != mark.strip():
                self.ahead = passed + self.ahead
                raise ValueError(f"no {mark}")
            passed += self.take(len(found))


def begun_len(text: str, mark: str) -> int:
    """How many of a text's last characters may be the beginning of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


class CallReader(TextBuffer):
    """Reads one answer: this class where nothing may be called, so that all is content.

    Attributes:
        num_calls: Calls told so far.
        is_open: Whether a call has been told of which arguments are missing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_calls, self.is_open = 0, False
        self._told: list[AnswerEvent] = []
        self._is_over = self._is_cut = False
        self._walk = self._answer()

    def read(self, text: str) -> list[AnswerEvent]:
        """What is certain with this piece of text."""
        self.ahead += text
        next(self._walk, None)
        told, self._told = self._told, []
        return told

    def end(self, *, is_cut: bool = False) -> list[AnswerEvent]:
        """What is left at the end of the answer.

        Args:
            is_cut: Whether a limit or a stop string ended it: a mark that has begun is no text.
        """
        self._is_over, self._is_cut = True, is_cut
        return self.read("")

    def _answer(self) -> Generator[None]:
        """The walk over the answer; once the answer is over it waits for nothing more."""
        while True:
            self._tell(Content, self.take(len(self.ahead)))
            yield

    def _tell(self, kind: type[Content] | type[Thought], text: str) -> None:
        if text:
            self._told.append(kind(text))

    def _tell_call(self, name: str | None, arguments: str = "") -> None:
        self._told.append(Call(self.num_calls, name, arguments))
        self.num_calls += 1

    def _tell_arguments(self, part: str) -> None:
        """The next part of the last call's arguments; one for each piece of the answer's text."""
        if self._told and isinstance(last := self._told[-1], Call) and last.name is None:
            part = last.arguments + part
            self._told.pop()
        if part:
            self._told.append(Call(self.num_calls - 1, None, part))
