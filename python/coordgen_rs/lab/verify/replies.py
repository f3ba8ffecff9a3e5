"""What a server said: the parts of an answer, whole or put together from a stream, and compared.

In: the bytes of a body as they come. Out: a `Reply`, or an `AnswerError` that says what is wrong
with them; the first `Difference` of two. Identifiers and times that differ from answer to answer
are left out of what is compared.
"""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from coordgen_rs.errors import CoordgenError, arguments
from coordgen_rs.errors.json_text import JsonTextError, parse_json

_AROUND = 40
"""Characters shown before and behind a difference."""
_FEWEST_TIMED = 8
"""Tokens of an answer below which its rate says nothing."""
_MOST_COUNTED = 1 << 53
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_FIELDS = (b":", b"event", b"id", b"retry")
"""How lines of a stream begin that hold no data."""
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class AnswerError(CoordgenError):
    """A server gave no answer that can be read."""


@dataclass(frozen=True)
class Answer:
    """What is compared of an answer.

    Attributes:
        content: The text; "" where there is none.
        reasoning: The text that some servers tell apart as thinking.
        calls: Name and arguments of each tool call.
        finish_reason: As the server gives it.
    """

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    finish_reason: str | None

    def parts(self) -> dict[str, str]:
        """Each part by its name, in the order in which differences are told."""
        found = {"reasoning": self.reasoning, "content": self.content}
        found["number of tool calls"] = str(len(self.calls))
        for number, (name, given) in enumerate(self.calls, 1):
            found[f"name of tool call {number}"] = name
            found[f"arguments of tool call {number}"] = given
        return found | {"finish reason": str(self.finish_reason)}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compare but how it ends."""
        return not (self.content or self.reasoning or self.calls)

    def fault(self) -> str | None:
        """What is wrong with it whatever other answers say: a tool call whose JSON is cut."""
        if self.finish_reason == "length":
            return None
        for number, (name, given) in enumerate(self.calls, 1):
            try:
                is_object = isinstance(parse_json(given, "x"), dict)
            except JsonTextError:
                is_object = False
            if not is_object:
                return f"the arguments of tool call {number} ({name}) are no JSON object"
        return None


@dataclass(frozen=True)
class Reply:
    """An answer, and its figures.

    Attributes:
        said: What is compared.
        first_s: Seconds until the first text or call of a stream; None for a whole answer.
        total_s: Seconds until its end.
        num_tokens: Tokens of the answer, if the server says so.
        num_drafted: Draft tokens, if the server says so.
        num_accepted: Those of them that were accepted.
        version: What the server calls its build, if it does.
    """

    said: Answer
    first_s: float | None
    total_s: float
    num_tokens: int | None
    num_drafted: int | None
    num_accepted: int | None
    version: str | None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second behind the first text; None for a whole answer, or a very short one."""
        if self.first_s is None or not self.num_tokens or self.num_tokens < _FEWEST_TIMED:
            return None
        seconds = self.total_s - self.first_s
        return (self.num_tokens - 1) / seconds if seconds > 0 else None


def whole(pieces: Iterable[bytes], begun: float) -> Reply:
    """Read an answer that comes as one object.

    Raises:
        AnswerError: It is no such answer.
    """
    told = object_of(b"".join(pieces), "the answer")
    choice = _choice(told, "the answer")
    message = choice if "text" in choice else _object(choice.get("message"), "the message")
    partial = _PartialAnswer()
    partial.add(message, choice)
    return partial.reply(told, None, time.monotonic() - begun)


def streamed(pieces: Iterable[bytes], begun: float) -> Reply:
    """Read an answer that comes as events.

    Raises:
        AnswerError: It is no such answer, or does not end as it should.
    """
    partial, figures, first_s, is_done = _PartialAnswer(), dict[str, Any](), None, False
    for data in _events(pieces):
        if is_done:
            raise AnswerError("the stream goes on behind [DONE]")
        if data.strip() == b"[DONE]":
            is_done = True
            continue
        chunk = object_of(data, "an event")
        if chunk.get("error") is not None:
            raise AnswerError(f"the stream tells an error: {arguments.shown(chunk['error'])}")
        figures |= {name: value for name, value in chunk.items() if value is not None}
        if not chunk.get("choices"):
            continue
        choice = _choice(chunk, "an event")
        part = choice if "text" in choice else _object(choice.get("delta") or {}, "a delta")
        if partial.add(part, choice) and first_s is None:
            first_s = time.monotonic() - begun
    if partial.finish_reason is None:
        raise AnswerError("the stream ends without a finish_reason")
    if not is_done:
        raise AnswerError("the stream ends without [DONE]")
    return partial.reply(figures, first_s, time.monotonic() - begun)


def object_of(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        AnswerError: It is none, or not UTF-8.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise AnswerError(f"{what} is not UTF-8: byte 0x{byte:02x} at {error.start}") from error
    try:
        return _object(parse_json(text, what, long_integers=True), what)
    except JsonTextError as error:
        raise AnswerError(str(error)) from error


def _events(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event; comments and names of events are left out.

    Raises:
        AnswerError: It is a page, or one object.
    """
    data: list[bytes] = []
    for number, line in enumerate(_lines(pieces)):
        if number == 0:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []
        elif line and not line.startswith(_OTHER_FIELDS):
            raise AnswerError(f"not a stream of events: {arguments.shown(line[:60])}")
    if data:
        yield b"\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that end with LF, CR or both, whatever stands at the end of a piece."""
    held = b""
    for piece in pieces:
        *lines, held = _LINE_END.split(held + piece)
        yield from lines
    *lines, last = re.split(b"\r", held)  # none other is left
    yield from lines
    if last:
        yield last


@dataclass
class _PartialAnswer:
    """What has been said so far."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, part: dict[str, Any], choice: dict[str, Any]) -> bool:
        """Add a message, a delta or a choice with text, and how its choice ends.

        Returns:
            Whether it says anything.

        Raises:
            AnswerError: A field has the wrong type, or comes behind the end.
        """
        content = _text(part, "content") + _text(part, "text")
        # Some servers say it twice.
        reasoning = _text(part, "reasoning_content") or _text(part, "reasoning")
        listed = part.get("tool_calls") or []
        if not isinstance(listed, list):
            raise AnswerError("tool_calls is no list")
        for place, item in enumerate(listed):
            call = _object(item, "a tool call")
            function = _object(call.get("function") or {}, "a tool call's function")
            number = call.get("index", place)
            if not isinstance(number, int):
                raise AnswerError("a tool call's index is no integer")
            kept = self.calls.setdefault(number, ["", ""])
            for index, name in enumerate(("name", "arguments")):
                kept[index] += _text(function, name, "a tool call's ")
        is_said = bool(content or reasoning or listed)
        if is_said and self.finish_reason is not None:
            raise AnswerError("the stream says more behind its finish_reason")
        self.content.append(content)
        self.reasoning.append(reasoning)
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason
        return is_said

    def reply(self, told: dict[str, Any], first_s: float | None, total_s: float) -> Reply:
        calls = tuple((name, given) for _, (name, given) in sorted(self.calls.items()))
        said = Answer("".join(self.content), "".join(self.reasoning), calls, self.finish_reason)
        drafted, accepted = _drafts(told)
        version = told.get("system_fingerprint")
        return Reply(
            said,
            first_s,
            total_s,
            _count(told, "usage", "completion_tokens"),
            drafted,
            accepted,
            version if isinstance(version, str) else None,
        )


_DRAFTS = (
    (("timings", "draft_n"), ("timings", "draft_n_accepted")),
    (
        ("metrics", "speculative_decoding", "num_draft_tokens"),
        ("metrics", "speculative_decoding", "num_accepted_draft_tokens"),
    ),
    (("stats", "total_draft_tokens_count"), ("stats", "accepted_draft_tokens_count")),
)
"""Where servers say how many tokens were drafted, and how many of them accepted: llama.cpp and
`coordgen serve`, vLLM, LM Studio."""

_PREDICTED = ("usage", "completion_tokens_details")
"""Where OpenAI's interface counts accepted and rejected tokens, also where there are no drafts."""


def _drafts(told: dict[str, Any]) -> tuple[int | None, int | None]:
    for drafted, accepted in _DRAFTS:
        if (num := _count(told, *drafted)) is not None:
            return num, _count(told, *accepted)
    num_accepted = _count(told, *_PREDICTED, "accepted_prediction_tokens") or 0
    num = num_accepted + (_count(told, *_PREDICTED, "rejected_prediction_tokens") or 0)
    return (num, num_accepted) if num else (None, None)


def _count(told: Any, *names: str) -> int | None:
    for name in names:
        told = told.get(name) if isinstance(told, dict) else None
    is_count = isinstance(told, int) and not isinstance(told, bool) and 0 <= told < _MOST_COUNTED
    return told if is_count else None


def _choice(told: dict[str, Any], what: str) -> dict[str, Any]:
    if told.get("error") is not None:
        raise AnswerError(f"{what} is an error: {arguments.shown(told['error'])}")
    choices = told.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise AnswerError(f"{what} has not one choice")
    return _object(choices[0], "a choice")


def _text(told: dict[str, Any], name: str, of: str = "") -> str:
    value = told.get(name)
    if value is not None and not isinstance(value, str):
        raise AnswerError(f"{of}{name} is no string")
    return value or ""


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AnswerError(f"{what} is no JSON object, but {arguments.shown(value)}")
    return value


@dataclass(frozen=True)
class Difference:
    """The first place where an answer is not the expected one.

    Attributes:
        part: Such as "content" or "finish reason".
        at: Where it begins, in characters of that part, from 0.
        before: What both have before it.
        expected: What should stand there.
        found: What does.
    """

    part: str
    at: int
    before: str
    expected: str
    found: str

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON types."""
        return vars(self).copy()


def difference(expected: Answer, found: Answer) -> Difference | None:
    """The first difference; None between equal answers."""
    theirs = found.parts()
    for part, text in expected.parts().items():
        other = theirs.get(part, "")
        if text != other:
            shorter = min(len(text), len(other))
            at = next((i for i in range(shorter) if text[i] != other[i]), shorter)
            near = slice(at, at + _AROUND)
            return Difference(part, at, text[max(0, at - _AROUND) : at], text[near], other[near])
    return None
