"""The stream of an answer, made by the engine and read by anybody, also in an event loop.

In: the events of a request. Out: pieces of text as they become certain, and the answer that they
add up to. Callbacks are called here, by who reads: what they raise ends their request alone. A
stream for asyncio is awaited piece by piece: the engine wakes the event loop that asks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from threading import RLock
from typing import Self

from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import NotCopied, OpenedHere
from coordgen_rs.generation.logprobs import TokenLogprob
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.answer import Answer, Read, StepDelta, TextDelta, spans
from coordgen_rs.model.events import Events, Progress


class Stream(NotCopied, Iterator[TextDelta]):
    """The pieces of an answer; `Model.stream` makes it.

    Any thread may ask for the next piece, one after the other. Close the stream, leave its `with`
    block, or drop it, to abandon the answer half-way. After an error, each later call raises it
    again. In a fork of its process, ForkedError is raised, and closing does nothing.

    Args:
        events: Those of one request, which begins with the first that is asked for.
        stats: Filled by its steps.
        on_read: Called with how many tokens of the prompt were read, chunk by chunk.
        tells_logprobs: Whether the steps tell how likely their tokens were.
        model: What answers; it stays open as long as it is not closed and this is read.

    Attributes:
        events: The `events` argument.
    """

    def __init__(
        self,
        events: Events,
        stats: Stats,
        *,
        on_read: Callable[[int], object] | None = None,
        tells_logprobs: bool = False,
        model: object = None,
    ) -> None:
        self._reading, self._opened = RLock(), OpenedHere()
        self._stats, self._on_read, self._model = stats, on_read, model
        self._is_whole = False
        self._pieces: list[tuple[TextDelta, int]] = []  # and how many tokens belong to it
        self._tokens: list[tuple[int, str]] = []
        self._logprobs: list[TokenLogprob] | None = [] if tells_logprobs else None
        # How many of the pieces and tokens are here, and were given. Ctrl-C comes between no two of
        # what one line assigns, so a reader who goes on after it misses nothing in `answer`, and
        # gets no item twice.
        self._num_pieces = self._num_tokens = self._num_pieces_given = self._num_given = 0
        self._stored: Read | None = None
        self._step: Step | None = None  # the last that was taken
        self.events = events
        events.belong_to(self)

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
            tuple(spans(pieces)),
            None if self._logprobs is None else tuple(self._logprobs[: self._num_given]),
        )

    def close(self) -> None:
        """End the request within a step; the model is free for the next. Waits for nothing."""
        if not self._opened.is_forked:
            self.events.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether the next piece is here, or none will come: `next` waits for nothing."""
        return self._is_here(lambda: self._has_pieces)

    @property
    def is_step_ready(self) -> bool:
        """Whether the next step is here, or none will come: `step` waits for nothing."""
        return self._is_here(lambda: self._has_step)

    def _is_here(self, has: Callable[[], bool]) -> bool:
        """Whether there is something now, or will be no more."""
        self._opened.check("stream")
        with self._reading:
            self.events.ask()
            while not has() and self.events.is_ready:
                try:
                    self._take()
                except StopIteration:
                    return True
            return has()

    def step(self) -> StepDelta | None:
        """What the next step adds; None at the end.

        For readers that act once a step, such as a server; what else they read of the stream is
        what is left of a step. Errors are those of `next`.
        """
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self.events.ask()
            while self.events.is_cancelled or not self._has_step:
                try:
                    self._take()
                except StopIteration:
                    return None
            begun, first = self._num_given, self._num_pieces_given
            end, last = self._num_tokens, self._num_pieces
            tokens = self._tokens[begun:end]
            gain = StepDelta(
                tuple(piece for piece, _ in self._pieces[first:last]),
                tuple(token for token, _ in tokens),
                tuple(source for _, source in tokens),
                self._step,
                tuple(self._logprobs[begun:end]) if self._logprobs else (),
            )
            self._num_pieces_given, self._num_given = last, end
            return gain

    def __next__(self) -> TextDelta:
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self.events.ask()
            while not self._has_pieces or self.events.is_cancelled:
                self._take()
            number = self._num_pieces_given
            piece, num_tokens = self._pieces[number]
            self._num_pieces_given, self._num_given = number + 1, num_tokens
            return piece

    @property
    def _has_pieces(self) -> bool:
        """Whether there are pieces that were not given."""
        return self._num_pieces_given < self._num_pieces

    @property
    def _has_step(self) -> bool:
        """Whether there are pieces or tokens that were not given."""
        return self._has_pieces or self._num_given < self._num_tokens

    def _take(self) -> None:
        """Take what the next step adds.

        Raises:
            StopIteration: There is none.
        """
        if not self.events.is_cancelled:
            self._num_given = self._num_tokens
        try:
            event = self.events.peek()
        except StopIteration:
            self._is_whole = self._is_whole or not self.events.is_cancelled
            raise
        if isinstance(event, Progress):
            self.events.drop()
            self._tell_read(event.num_read)
            return
        if event is not self._stored:
            self._store(event)
        self.events.drop()

    def _tell_read(self, num_read: int) -> None:
        """Tell how much of the prompt was read; what is raised ends the request."""
        try:
            if self._on_read is not None:
                self._on_read(num_read)
        except StopIteration as error:  # else it would be taken for the answer's end
            failure = RuntimeError("on_read raised StopIteration")
            self.events.cancel(failure)
            raise failure from error
        except Exception as error:
            self.events.cancel(error)
            raise
        except BaseException:  # Ctrl-C, for which the next call is not to be told
            self.events.cancel(CallOrderError("the answer was broken off: ask for it again"))
            raise

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
    stream.events.is_whole = True
    with stream:
        for _ in stream:
            pass
        return stream.answer


class AsyncStream(NotCopied, AsyncIterator[TextDelta]):
    """The pieces of an answer for `async for`; `Model.astream` makes it.

    Cancelling the task that awaits a piece abandons the answer, and so does `aclose`, leaving its
    `async with` block, or dropping it. The model is free for others within a step.

    Args:
        stream: The answer.
    """

    def __init__(self, stream: Stream) -> None:
        stream.events.is_awaited = True
        self._stream, self._news = stream, asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_awaited = False

    @property
    def answer(self) -> Answer:
        """The answer as far as it has been given: whole once all pieces were awaited."""
        return self._stream.answer

    def wants_whole(self) -> None:
        """Be woken at the answer's end only."""
        self._stream.events.is_whole = True

    async def aclose(self) -> None:
        """End the request within a step."""
        self._stream.close()

    async def __anext__(self) -> TextDelta:
        loop = asyncio.get_running_loop()
        if self._is_awaited or (self._loop or loop) is not loop:
            raise CallOrderError("the stream is read by another task, or in another event loop")
        if self._loop is None:
            self._loop = loop
            wake(self._stream, self._news)
        self._is_awaited = True
        try:
            self._news.clear()
            if self._stream.is_ready:
                await asyncio.sleep(0)  # other tasks go on, too, where the answer is ahead
            while not self._stream.is_ready:
                await self._news.wait()
                self._news.clear()
        except asyncio.CancelledError:
            self._stream.events.cancel(
                CallOrderError(
                    "the answer was given up, as its reader was cancelled: ask for it again"
                )
            )
            raise
        finally:
            self._is_awaited = False
        try:
            return next(self._stream)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def wake(stream: Stream, news: asyncio.Event) -> None:
    """Have a stream set an event with each of its own; called in the loop that awaits it."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody awaits it
            loop.call_soon_threadsafe(news.set)

    stream.events.is_awaited, stream.events.wake = True, tell


async def awaited(stream: AsyncStream) -> Answer:
    """The answer of a stream, which is read to its end; raises what the stream does."""
    stream.wants_whole()
    async with stream:
        async for _ in stream:
            pass
        return stream.answer
