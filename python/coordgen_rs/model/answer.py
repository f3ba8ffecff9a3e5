"""Answers: text and where each part of it came from, as a whole or as a stream.

In: the steps of one request. Out: pieces of whole characters as they become certain, and the
answer that they add up to. It chooses nothing, and does not know the target.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from threading import RLock
from typing import NamedTuple, Self

from coordgen_rs.errors.process import NotCopied, OpenedHere
from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import WAITS, Step
from coordgen_rs.model.making import Made, Making
from coordgen_rs.text.stop import StopStrings
from coordgen_rs.threads.bell import Bell

_SHOWN = 60
"""Most characters of an answer in its `repr`."""


class Piece(str):
    """Some characters of an answer, all of them whole: a `str` that knows where it came from.

    Args:
        text: The characters.
        source: The `source` attribute.

    Attributes:
        source: "target", or the name of the source that drafted them.
    """

    __slots__ = ("source",)
    source: str

    def __new__(cls, text: str, source: str) -> Self:
        """A piece of this text."""
        piece = super().__new__(cls, text)
        piece.source = source
        return piece

    @property
    def text(self) -> str:
        """The characters alone."""
        return str(self)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.source

    def __repr__(self) -> str:
        return f"Piece({str(self)!r}, {self.source!r})"


class Span(NamedTuple):
    """A part of an answer's text that came from one source.

    Attributes:
        start: Its first character, counted from 0.
        end: The character after its last.
        source: Where it came from, as in `Piece`. A character of several tokens belongs to the one
            that completes it.
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
        logprobs: How likely the model held each token, where that was asked for.
    """

    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    step: Step | None
    logprobs: tuple[TokenLogprob, ...] = ()


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
        logprobs: How likely the model held each of `token_ids`, and others in its place; None where
            that was not asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    finish_reason: str | None
    stats: Stats
    spans: tuple[Span, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def seed(self) -> int | None:
        """What sampling began from, to ask for the same answer again; None without sampling."""
        return self.stats.seed

    def __str__(self) -> str:
        """The text alone."""
        return self.text

    def __repr__(self) -> str:
        """How it begins, and how long it is; the attributes have the rest."""
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[: _SHOWN - 3]}..."
        told = f"{text!r}, {len(self.token_ids):,} tokens, finish_reason={self.finish_reason!r}"
        return f"<Answer {told}>"


class Read(NamedTuple):
    """What a step has made certain, before anybody has taken it.

    Attributes:
        gain: The step's pieces and tokens.
        ends: For each piece, how many of the step's tokens had been read when it became certain.
    """

    gain: Gain
    ends: tuple[int, ...]


NOTHING_YET = Read(Gain((), (), (), WAITS), ())
"""In place of a read where the request waits for the next run of its batch."""


class Stream(NotCopied, Iterator[Piece]):
    """The pieces of an answer, made as they are asked for; `Model.stream` makes it.

    Any thread may ask for the next piece, one after the other. Close the stream, or leave its
    `with` block, to abandon the answer half-way. After an error, each later call raises it again.
    In a fork of its process, ForkedError is raised, and closing does nothing.

    Args:
        steps: Those of one request; begun with the first piece, closed with the stream.
        stats: Filled by the steps.
        decode: Takes one token at a time, returns the text that is now certain.
        stop: Where the text is to end.
        made: How what the steps add up to is made; by whoever reads the stream by default.
        tells_logprobs: Whether the steps tell how likely their tokens were.
    """

    def __init__(
        self,
        steps: Generator[Step],
        stats: Stats,
        decode: Callable[[int], str],
        stop: StopStrings,
        made: Callable[[Generator[Read]], Made[Read]] | None = None,
        *,
        tells_logprobs: bool = False,
    ) -> None:
        read = _read(steps, stats, decode, stop)
        # Neither refers to the stream: one that is dropped is closed at once.
        self._making: Made[Read] = Making(read, Bell()) if made is None else made(read)
        self._reading, self._opened = RLock(), OpenedHere()
        self._stats, self._is_whole = stats, False
        self._pieces: list[tuple[Piece, int]] = []  # and how many tokens belong to it
        self._tokens: list[tuple[int, str]] = []
        self._logprobs: list[TokenLogprob] | None = [] if tells_logprobs else None
        # How many of the pieces and tokens are here, and were given. Ctrl-C comes between no two of
        # what one line assigns, so a reader who goes on after it misses nothing and gets no item
        # twice.
        self._num_pieces = self._num_tokens = self._num_pieces_given = self._num_given = 0
        self._stored: Read | None = None
        self._step: Step | None = None  # the last that was taken

    @property
    def answer(self) -> Answer:
        """The answer as far as it has been given."""
        tokens = self._tokens[: self._num_given]
        pieces = [piece for piece, _ in self._pieces[: self._num_pieces_given]]
        return Answer(
            "".join(pieces),
            tuple(token for token, _ in tokens),
            tuple(source for _, source in tokens),
            self._stats.finish_reason if self._is_whole else None,
            self._stats,
            tuple(_spans(pieces)),
            None if self._logprobs is None else tuple(self._logprobs[: self._num_given]),
        )

    def close(self) -> None:
        """End the request where it stands; the model is free for the next."""
        if not self._opened.is_forked:
            self._making.close()

    @property
    def is_ready(self) -> bool:
        """Whether `step` would return at once."""
        return self._has_pieces or self._making.is_ready

    def join(self) -> None:
        """Take part in steps that are made for others, where there are such."""
        self._making.is_asked()

    def drive(self) -> None:
        """Make a step, or wait for one that another thread makes, and leave what it adds to `step`.

        What goes wrong is raised by `step`.

        Raises:
            ForkedError: This process is a fork of the one that made the stream.
        """
        self._opened.check("stream")
        self._making.drive()

    def give_up(self) -> None:
        """Close it with the next step, whoever makes that; waits for nothing."""
        self._making.give_up()

    def step(self) -> Gain | None:
        """What the next step adds; None at the end.

        For readers that act once a step, such as a server; what else they read of the stream is
        what is left of a step. Errors are those of `next`.
        """
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self._making.is_asked()
            begun, first = self._num_given, self._num_pieces_given
            while self._making.is_given_up or not (self._has_pieces or begun < self._num_tokens):
                try:
                    self._take()
                except StopIteration:
                    return None
            end, last = self._num_tokens, self._num_pieces
            tokens = self._tokens[begun:end]
            gain = Gain(
                tuple(piece for piece, _ in self._pieces[first:last]),
                tuple(token for token, _ in tokens),
                tuple(source for _, source in tokens),
                self._step,
                tuple(self._logprobs[begun:end]) if self._logprobs else (),
            )
            self._num_pieces_given, self._num_given = last, end
            self._making.is_read()
            return gain

    def __next__(self) -> Piece:
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self._making.is_asked()
            while not self._has_pieces or self._making.is_given_up:
                self._take()
            number = self._num_pieces_given
            piece, num_tokens = self._pieces[number]
            self._num_pieces_given, self._num_given = number + 1, num_tokens
            self._making.is_read()
            return piece

    @property
    def _has_pieces(self) -> bool:
        """Whether there are pieces that were not given."""
        return self._num_pieces_given < self._num_pieces

    def _take(self) -> None:
        """Take what the next step adds.

        Raises:
            StopIteration: There is none.
        """
        if not self._making.is_given_up:
            self._num_given = self._num_tokens
        try:
            read = self._making.peek()
        except StopIteration:
            self._is_whole = self._is_whole or not self._making.is_given_up
            raise
        if read is not self._stored:
            self._store(read)
        self._making.drop()

    def _store(self, read: Read) -> None:
        """Append what a step adds; what an interrupted call has appended is overwritten."""
        gain, ends = read
        begun, first = self._num_tokens, self._num_pieces
        self._tokens[begun:] = zip(gain.token_ids, gain.sources, strict=True)
        if self._logprobs is not None:
            self._logprobs[begun:] = gain.logprobs
        self._pieces[first:] = zip(gain.pieces, (begun + end for end in ends), strict=True)
        end, last = len(self._tokens), len(self._pieces)
        self._step, self._num_tokens, self._num_pieces, self._stored = gain.step, end, last, read

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


def _read(
    steps: Generator[Step], stats: Stats, decode: Callable[[int], str], stop: StopStrings
) -> Generator[Read]:
    """What each step makes certain; behind the last, what had been held back until then."""
    waiting, num_read = deque[Piece](), 0
    with closing(steps):
        for step in steps:
            if step is WAITS:
                yield NOTHING_YET
                continue
            read = _read_step(step, waiting, decode, stop)
            num_read += len(read.gain.token_ids)
            if stop.cut_at is not None:
                # So that closed steps count as finished, and a history keeps no more than that.
                _tell_stop(stats, stop, num_read)
                steps.close()
                yield read
                return
            yield read
        pieces = tuple(_taken(waiting, len(stop.finish())))
    if stop.cut_at is not None:  # by one behind the beginning of another, which the end left open
        _tell_stop(stats, stop, num_read)
    if pieces:
        yield Read(Gain(pieces, (), (), None), (0,) * len(pieces))


def _tell_stop(stats: Stats, stop: StopStrings, num_tokens: int) -> None:
    stats.finish_reason, stats.cut_at, stats.stop_string = "stop", num_tokens, stop.found


def _read_step(
    step: Step, waiting: deque[Piece], decode: Callable[[int], str], stop: StopStrings
) -> Read:
    """What a step makes certain; `waiting` holds what is not yet."""
    pieces, ends, num_read = list[Piece](), list[int](), 0
    for token, source in zip(step.token_ids, step.sources, strict=True):
        num_read += 1
        waiting.append(Piece(decode(token), source))
        certain = _taken(waiting, len(stop.push(waiting[-1])))
        pieces += certain
        ends += [num_read] * (len(pieces) - len(ends))
        if stop.cut_at is not None:
            break
    ids, sources = step.token_ids[:num_read], step.sources[:num_read]
    told = tuple(step.logprobs[:num_read])
    return Read(Gain(tuple(pieces), tuple(ids), tuple(sources), step, told), tuple(ends))


def _taken(waiting: deque[Piece], num_chars: int) -> Iterator[Piece]:
    """Remove that many characters, split by source."""
    while num_chars:
        piece = waiting.popleft()
        if len(piece) > num_chars:
            waiting.appendleft(Piece(piece[num_chars:], piece.source))
            piece = Piece(piece[:num_chars], piece.source)
        num_chars -= len(piece)
        if piece:
            yield piece


def _spans(pieces: Iterable[Piece]) -> Iterator[Span]:
    end = 0
    for source, parts in groupby(pieces, lambda piece: piece.source):
        start, end = end, end + sum(map(len, parts))
        yield Span(start, end, source)
