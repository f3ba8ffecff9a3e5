"""Answers: their text with what each part of it came from, whole or while it is being given.

In: the steps of one request. Out: pieces of whole characters as they become certain, and the
answer that they join to. It chooses nothing, and knows of no target.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from coordgen_rs.generate import Step
from coordgen_rs.stats import Stats
from coordgen_rs.text.stop import StopStrings


class Piece(NamedTuple):
    """Some characters of an answer; `str(piece)` is their text.

    Attributes:
        text: One character or more, all of them whole.
        source: Where they came from: "target", or the name of the source that drafted them.
    """

    text: str
    source: str

    def __str__(self) -> str:
        return self.text


class Span(NamedTuple):
    """A part of an answer's text that came from one source.

    Attributes:
        start: Its first character, counted from 0.
        end: The character after its last.
        source: As in `Piece`. A character of several tokens belongs to the one that completes it.
    """

    start: int
    end: int
    source: str


@dataclass(frozen=True)
class Answer:
    """What a model said, and how it came about.

    Attributes:
        text: Whole characters: without the stop string and what follows it, and without a last
            character that a limit cut in two.
        token_ids: The tokens given out, the end token included. Where a stop string ended the
            answer, those up to and including the one that completed it: more than `text` shows.
        sources: Of each token "target", or the name of the source that drafted it.
        finish_reason: "stop" (end token or stop string), "length" (token limit) or "capacity"
            (cache full); None while the answer is being given, and where it was given up.
        stats: Counts and times. They count whole steps, so `new_tokens` may include a few tokens
            that a step gave behind the stop string.
        spans: Where `text` came from, part by part, without gaps; neighbours differ in source.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    finish_reason: str | None
    stats: Stats
    spans: tuple[Span, ...]


class Stream(Iterator[Piece]):
    """The pieces of an answer, made as they are asked for; `Model.stream` makes it.

    Close it, or leave its `with` block, to give the answer up half-way.

    Args:
        steps: Of one request; begun with the first piece, and closed with the stream.
        stats: Filled by the steps.
        decode: Takes one token after another, returns the text that became certain.
        stop: Where the text is to end.
    """

    def __init__(
        self,
        steps: Generator[Step],
        stats: Stats,
        decode: Callable[[int], str],
        stop: StopStrings,
    ) -> None:
        # The generator must not refer to the stream: one that is dropped is then closed at once.
        self._told = _Told(stats)
        self._pieces = _pieces(steps, self._told, decode, stop)

    @property
    def answer(self) -> Answer:
        """The answer as far as it has been given."""
        told = self._told
        return Answer(
            "".join(told.text),
            tuple(told.token_ids),
            tuple(told.sources),
            told.stats.finish_reason,
            told.stats,
            tuple(told.spans),
        )

    def close(self) -> None:
        """End the request where it stands; the model is free for the next."""
        self._pieces.close()

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Told:
    """What has been given out of an answer, and the characters that wait for being certain."""

    stats: Stats
    token_ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    waiting: deque[Piece] = field(default_factory=deque)

    def give(self, certain: str) -> Iterator[Piece]:
        """Give out so much of what waits, each part under its source."""
        num_left = len(certain)
        while num_left:
            text, source = self.waiting.popleft()
            if len(text) > num_left:
                self.waiting.appendleft(Piece(text[num_left:], source))
                text = text[:num_left]
            num_left -= len(text)
            self._add(text, source)
            yield Piece(text, source)

    def _add(self, text: str, source: str) -> None:
        self.text.append(text)
        start = end = self.spans[-1].end if self.spans else 0
        if self.spans and self.spans[-1].source == source:
            start = self.spans.pop().start
        self.spans.append(Span(start, end + len(text), source))


def _pieces(
    steps: Generator[Step], told: _Told, decode: Callable[[int], str], stop: StopStrings
) -> Generator[Piece]:
    with closing(steps):
        for step in steps:
            for token, source in zip(step.token_ids, step.sources, strict=True):
                told.token_ids.append(token)
                told.sources.append(source)
                text = decode(token)
                if text:
                    told.waiting.append(Piece(text, source))
                certain = stop.push(text)
                if stop.cut_at is not None:
                    told.stats.finish_reason = "stop"  # so that it counts as finished when closed
                    steps.close()
                yield from told.give(certain)
                if stop.cut_at is not None:
                    return
    certain = stop.finish()
    if stop.cut_at is not None:
        told.stats.finish_reason = "stop"
    yield from told.give(certain)
