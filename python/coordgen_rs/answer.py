"""Answers: text and where each part of it came from, as a whole or as a stream.

In: the steps of one request. Out: pieces of whole characters as they become certain, and the
answer that they add up to. It chooses nothing, and does not know the target.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
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


class Gain(NamedTuple):
    """What one step added to an answer.

    Attributes:
        pieces: Text that became certain, maybe none.
        token_ids: The step's tokens; of the last step, those that belong to the answer. Empty where
            only text was left that had been held back.
        sources: For each token "target", or the name of the source that drafted it.
        step: The step itself; None where only text was left.
    """

    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    step: Step | None


@dataclass(frozen=True)
class Answer:
    """A model's answer, where it came from, and what it took.

    Attributes:
        text: Whole characters: without the stop string and what follows it, and without a last
            character that a limit cut in two.
        token_ids: All tokens, including the end token. If a stop string ended the answer, those up
            to and including the one that completed it: more than `text` shows.
        sources: For each token "target", or the name of the source that drafted it.
        finish_reason: "stop" (end token or stop string), "grammar" (the grammar is complete),
            "length" (token limit) or "capacity" (cache full); None while the answer is incomplete,
            also if it was abandoned.
        stats: Counts and times. They count whole steps, so `new_tokens` may include a few tokens
            that a step yielded after the stop string.
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

    Close it, or leave its `with` block, to abandon the answer half-way. After an error, each later
    call raises it again.

    Args:
        steps: Those of one request; begun with the first piece, closed with the stream.
        stats: Filled by the steps.
        decode: Takes one token at a time, returns the text that is now certain.
        stop: Where the text is to end.
        on_asked: Called whenever the next piece is asked for, also if its step has been made.
    """

    def __init__(
        self,
        steps: Generator[Step],
        stats: Stats,
        decode: Callable[[int], str],
        stop: StopStrings,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_asked = on_asked
        self._stats, self._given = stats, list[Piece]()
        self._is_whole = self._is_given_up = self._is_over = False
        self._error: Exception | None = None
        self._tokens: list[tuple[int, str]] = []
        self._begun: list[Step] = []  # the one that is being read
        # The generator does not refer to the stream: one that is dropped is closed at once.
        self._pieces = _pieces(steps, stats, decode, stop, self._tokens, self._begun)

    @property
    def answer(self) -> Answer:
        """The answer as far as it has been given."""
        return Answer(
            "".join(piece.text for piece in self._given),
            tuple(token for token, _ in self._tokens),
            tuple(source for _, source in self._tokens),
            self._stats.finish_reason if self._is_whole else None,
            self._stats,
            tuple(_spans(self._given)),
        )

    def close(self) -> None:
        """End the request where it stands; the model is free for the next."""
        self._is_given_up = True
        self._pieces.close()

    def step(self) -> Gain | None:
        """What the next step adds; None at the end.

        For readers that act once a step, such as a server; what else they read of the stream is
        what is left of a step. Errors are those of `next`.
        """
        self._begun.clear()
        begun, pieces = len(self._tokens), list[Piece]()
        with suppress(StopIteration):
            while (piece := self._advance()) is not None:
                pieces.append(piece)
        gained = self._tokens[begun:]
        if self._is_over and not gained and not pieces:
            return None
        return Gain(
            tuple(pieces),
            tuple(token for token, _ in gained),
            tuple(source for _, source in gained),
            self._begun[-1] if self._begun else None,
        )

    def __next__(self) -> Piece:
        while True:
            piece = self._advance()
            if piece is not None:
                return piece

    def _advance(self) -> Piece | None:
        """The next piece; None where a step ends.

        Raises:
            StopIteration: There is none.
        """
        if self._error is not None:  # the answer is not complete, so it does not just end
            raise self._error
        self._on_asked()
        try:
            piece = next(self._pieces)
        except StopIteration:
            self._is_over = True
            self._is_whole = self._is_whole or not self._is_given_up
            raise
        except Exception as error:
            self._error = error
            raise
        if piece is not None:
            self._given.append(piece)
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole(stream: Stream) -> Answer:
    """The answer of a stream, which is read to its end and closed; raises what the stream does."""
    with stream:
        for _ in stream:
            pass
        return stream.answer


def _pieces(
    steps: Generator[Step],
    stats: Stats,
    decode: Callable[[int], str],
    stop: StopStrings,
    tokens: list[tuple[int, str]],
    begun: list[Step],
) -> Generator[Piece | None]:
    """The text of the steps as it becomes certain; appends tokens and sources to `tokens`.

    `begun` holds the step that is being read.

    Yields:
        Pieces, and None behind those of each step.
    """
    waiting = deque[Piece]()
    with closing(steps):
        for token, source in _flat(steps, begun):
            if token is None:
                yield None
                continue
            tokens.append((token, source))
            waiting.append(Piece(decode(token), source))
            certain = stop.push(waiting[-1].text)
            if stop.cut_at is not None:
                break
            yield from _taken(waiting, len(certain))
        else:
            certain = stop.finish()
        if stop.cut_at is not None:
            # So that closed steps count as finished, and a history keeps no more than the answer.
            stats.finish_reason, stats.cut_at = "stop", len(tokens)
    yield from _taken(waiting, len(certain))


def _flat(steps: Iterator[Step], begun: list[Step]) -> Iterator[tuple[int | None, str]]:
    """Tokens and their sources, and None behind those of each step."""
    for step in steps:
        begun[:] = [step]
        yield from zip(step.token_ids, step.sources, strict=True)
        yield None, ""


def _taken(waiting: deque[Piece], num_chars: int) -> Iterator[Piece]:
    """Remove that many characters, split by source."""
    while num_chars:
        text, source = waiting.popleft()
        if len(text) > num_chars:
            waiting.appendleft(Piece(text[num_chars:], source))
            text = text[:num_chars]
        num_chars -= len(text)
        if text:
            yield Piece(text, source)


def _spans(pieces: Iterable[Piece]) -> Iterator[Span]:
    end = 0
    for source, parts in groupby(pieces, lambda piece: piece.source):
        start, end = end, end + sum(len(part.text) for part in parts)
        yield Span(start, end, source)
