"""The stream of an answer, made by the engine and read by anybody, also in an event loop.

In: the events of a request. Out: pieces of text as they become certain, and the answer that they
add up to. Callbacks are called here, by who reads: what they raise ends their request alone. A
stream for asyncio is awaited piece by piece: the engine wakes the event loop that asks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import RLock
from typing import Self

from coordgen_rs.errors import CallOrderError, CoordgenError
from coordgen_rs.generation.stats import Stats
from coordgen_rs.model.answer import Answer, Detokenized, StepDelta, TextDelta, spans
from coordgen_rs.model.request import Events, Progress
from coordgen_rs.store.background import LONGEST_SLEEP_S, Closeable, NotCopied, OpenedHere


class Stream(Closeable, Iterator[TextDelta]):
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
        self._tells_logprobs, self._is_whole = tells_logprobs, False
        self._steps: list[Detokenized] = []
        # How many of them were given, and how many pieces of the one behind. Ctrl-C comes between
        # no two of them, so a reader who goes on after it misses nothing in `answer`, and gets no
        # item twice.
        self._given = 0, 0
        self.events = events
        events.belong_to(self)

    @property
    def answer(self) -> Answer:
        """The answer as far as it has been given."""
        num_steps, num_pieces = self._given
        begun = [it.split(num_pieces)[0] for it in self._steps[num_steps : num_steps + 1]]
        deltas = [*(it.delta for it in self._steps[:num_steps]), *begun]
        pieces = [piece for delta in deltas for piece in delta.pieces]
        logprobs = tuple(one for delta in deltas for one in delta.logprobs)
        return Answer(
            "".join(pieces),
            tuple(token for delta in deltas for token in delta.token_ids),
            tuple(source for delta in deltas for source in delta.sources),
            self._stats.finish_reason if self._is_whole else None,
            self._stats,
            tuple(spans(pieces)),
            logprobs if self._tells_logprobs else None,
        )

    def close(self) -> None:
        """End the request within a step; the model is free for the next. Waits for nothing."""
        if not self._opened.is_forked:
            self.events.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether the next piece is here, or none will come: `next` waits for nothing."""
        return self._is_here(self._has_pieces)

    @property
    def is_step_ready(self) -> bool:
        """Whether the next step is here, or none will come: `step` waits for nothing."""
        return self._is_here(self._has_step)

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

    def _has_pieces(self) -> bool:
        """Whether there are pieces that were not given."""
        num_steps, num_pieces = self._given
        left = self._steps[num_steps:]
        return bool(left) and (
            num_pieces < len(left[0].delta.pieces) or any(it.delta.pieces for it in left[1:])
        )

    def _has_step(self) -> bool:
        """Whether there are pieces or tokens that were not given."""
        num_steps, num_pieces = self._given
        left = self._steps[num_steps:]
        return bool(left) and (
            len(left) > 1 or bool(left[0].split(num_pieces)[1].token_ids) or self._has_pieces()
        )

    def step(self) -> StepDelta | None:
        """What the next step adds; None at the end.

        For readers that act once a step, such as a server; what else they read of the stream is
        what is left of a step. Errors are those of `next`.
        """
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self.events.ask()
            while True:
                num_steps, num_pieces = self._given
                if num_steps == len(self._steps) or self.events.is_cancelled:
                    try:
                        self._take()
                    except StopIteration:
                        return None
                    continue
                _, delta = self._steps[num_steps].split(num_pieces)
                self._given = num_steps + 1, 0
                if delta.pieces or delta.token_ids:
                    return delta

    def __next__(self) -> TextDelta:
        self._opened.check("stream")  # a thread that was reading is not in the fork
        with self._reading:
            self.events.ask()
            while True:
                num_steps, num_pieces = self._given
                if num_steps == len(self._steps) or self.events.is_cancelled:
                    self._take()
                elif num_pieces < len(pieces := self._steps[num_steps].delta.pieces):
                    self._given = num_steps, num_pieces + 1
                    return pieces[num_pieces]
                else:
                    self._given = num_steps + 1, 0

    def _take(self) -> None:
        """Take what the next step adds.

        Raises:
            StopIteration: There is none.
        """
        try:
            event = self.events.peek()
        except StopIteration:
            self._is_whole = self._is_whole or not self.events.is_cancelled
            raise
        if isinstance(event, Progress):
            self.events.drop()
            self._tell_read(event.num_read)
            return
        if not self._steps or event is not self._steps[-1]:  # as after an interrupted call
            self._steps.append(event)
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


def collect(stream: Stream) -> Answer:
    """The answer of a stream, which is read to its end and closed; raises what the stream does."""
    stream.events.is_whole = True
    with stream:
        for _ in stream:
            pass
        return stream.answer


def answers(
    begin: Iterable[Callable[[], Stream]],
    num_slots: int,
    *,
    keep_errors: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Answer | CoordgenError]:
    """The answers of streams, in order; one more than the model has slots for is open at a time.

    Args:
        begin: Make the streams, one each.
        num_slots: How many are answered at a time.
        keep_errors: Put the error of a stream in its answer's place, rather than raise it.
        on_progress: Called with how many answers there are, and will be, whenever there is one
            more.

    Raises:
        CoordgenError: Errors of a stream; all others are closed then.
    """
    waiting, is_open = deque(enumerate(begin)), dict[int, Stream]()
    done, num_all = dict[int, Answer | CoordgenError](), len(waiting)
    news = SimpleQueue[None]()
    try:
        while len(done) < num_all:
            ends = dict[int, Answer | CoordgenError]()
            while waiting and len(is_open) + len(ends) <= num_slots:
                number, make = waiting.popleft()
                try:
                    stream = is_open[number] = make()
                except CoordgenError as error:
                    ends[number] = error
                else:
                    stream.events.wake, stream.events.is_whole = partial(news.put, None), True
            for number, stream in is_open.items():
                try:
                    while stream.is_ready and number not in ends:
                        if stream.step() is None:
                            ends[number] = stream.answer
                except CoordgenError as error:
                    ends[number] = error
            for number, end in ends.items():
                if isinstance(end, CoordgenError) and not keep_errors:
                    end.add_note(f"by prompt {number + 1} of {num_all}")
                    raise end
                is_open.pop(number, None)
                done[number] = end
                if on_progress is not None:
                    on_progress(len(done), num_all)
            if not ends:
                with suppress(Empty):
                    news.get(timeout=LONGEST_SLEEP_S)
    finally:
        for stream in is_open.values():
            stream.close()
    return [done[number] for number in range(num_all)]


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


async def acollect(stream: AsyncStream) -> Answer:
    """The answer of a stream, which is read to its end; raises what the stream does."""
    stream.wants_whole()
    async with stream:
        async for _ in stream:
            pass
        return stream.answer
