"""Answers: text, and where each part of it came from.

In: the steps of one request. Out: pieces of whole characters as they become certain, and the
answer that they add up to. It chooses nothing, and does not know the target.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import WAITS, Step
from coordgen_rs.generation.step import TokenLogprob as TokenLogprob
from coordgen_rs.text.stop import StopStrings

_SHOWN = 60
"""Most characters of an answer in its `repr`."""


class TextDelta(str):
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
        return f"TextDelta({str(self)!r}, {self.source!r})"


class Span(NamedTuple):
    """A part of an answer's text that came from one source.

    Attributes:
        start: Its first character, counted from 0.
        end: The character after its last.
        source: Where it came from, as in `TextDelta`. A character of several tokens belongs to the
            one that completes it.
    """

    start: int
    end: int
    source: str


class StepDelta(NamedTuple):
    """What one step added to an answer.

    Attributes:
        pieces: Text that became certain, maybe none.
        token_ids: The step's tokens; of the last step, those that belong to the answer. Empty where
            only text was left that had been held back.
        sources: For each token "target", or the name of the source that drafted it.
        step: The step itself; None where only text was left.
        logprobs: How likely the model held each token, where that was asked for.
    """

    pieces: tuple[TextDelta, ...]
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
            that a step yielded after the stop string, and all that were made ahead of a reader.
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


class Detokenized(NamedTuple):
    """What a step has made certain, before anybody has taken it.

    Attributes:
        delta: The step's pieces and tokens.
        ends: For each piece, how many of the step's tokens had been read when it became certain.
    """

    delta: StepDelta
    ends: tuple[int, ...]

    def split(self, num_pieces: int) -> tuple[StepDelta, StepDelta]:
        """Its first pieces with the tokens that had been read by then, and what is left."""
        if num_pieces == 0:
            return _NOTHING, self.delta
        (pieces, ids, sources, step, told), end = self.delta, self.ends[num_pieces - 1]
        return (
            StepDelta(pieces[:num_pieces], ids[:end], sources[:end], step, told[:end]),
            StepDelta(pieces[num_pieces:], ids[end:], sources[end:], step, told[end:]),
        )


_NOTHING = StepDelta((), (), (), None)

NOTHING_YET = Detokenized(StepDelta((), (), (), WAITS), ())
"""In place of a read where the request waits for the next run of its batch."""


def detokenized(
    steps: Generator[Step], stats: Stats, decode: Callable[[int], str], stop: StopStrings
) -> Generator[Detokenized]:
    """What each step makes certain; behind the last, what had been held back until then.

    Args:
        steps: Those of one request; closed with what is returned.
        stats: Filled by the steps.
        decode: Takes one token at a time, returns the text that is now certain.
        stop: Where the text is to end.
    """
    waiting, num_read = deque[TextDelta](), 0
    with closing(steps):
        for step in steps:
            if step is WAITS:
                yield NOTHING_YET
                continue
            made = _detokenize(step, waiting, decode, stop)
            num_read += len(made.delta.token_ids)
            if stop.cut_at is not None:
                # So that closed steps count as finished, and a history keeps no more than that.
                _tell_stop(stats, stop, num_read)
                steps.close()
                yield made
                return
            yield made
        pieces = tuple(_taken(waiting, len(stop.finish())))
    if stop.cut_at is not None:  # by one behind the beginning of another, which the end left open
        _tell_stop(stats, stop, num_read)
    if pieces:
        yield Detokenized(StepDelta(pieces, (), (), None), (0,) * len(pieces))


def _tell_stop(stats: Stats, stop: StopStrings, num_tokens: int) -> None:
    stats.finish_reason, stats.cut_at, stats.stop_string = "stop", num_tokens, stop.found


def _detokenize(
    step: Step, waiting: deque[TextDelta], decode: Callable[[int], str], stop: StopStrings
) -> Detokenized:
    """What a step makes certain; `waiting` holds what is not yet."""
    pieces, ends, num_read = list[TextDelta](), list[int](), 0
    for token, source in zip(step.token_ids, step.sources, strict=True):
        num_read += 1
        waiting.append(TextDelta(decode(token), source))
        certain = _taken(waiting, len(stop.push(waiting[-1])))
        pieces += certain
        ends += [num_read] * (len(pieces) - len(ends))
        if stop.cut_at is not None:
            break
    ids, sources = step.token_ids[:num_read], step.sources[:num_read]
    told = tuple(step.logprobs[:num_read])
    return Detokenized(
        StepDelta(tuple(pieces), tuple(ids), tuple(sources), step, told), tuple(ends)
    )


def _taken(waiting: deque[TextDelta], num_chars: int) -> Iterator[TextDelta]:
    """Remove that many characters, split by source."""
    while num_chars:
        piece = waiting.popleft()
        if len(piece) > num_chars:
            waiting.appendleft(TextDelta(piece[num_chars:], piece.source))
            piece = TextDelta(piece[:num_chars], piece.source)
        num_chars -= len(piece)
        if piece:
            yield piece


def spans(pieces: Iterable[TextDelta]) -> Iterator[Span]:
    """Where the text of pieces came from, part by part."""
    end = 0
    for source, parts in groupby(pieces, lambda piece: piece.source):
        start, end = end, end + sum(map(len, parts))
        yield Span(start, end, source)
