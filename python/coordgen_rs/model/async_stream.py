"""Streams for asyncio: awaited piece by piece, without a thread a request.

In: streams, which block who reads them. Out: their pieces, in the event loop that asks. One thread
reads all streams of a model, as many at a time as it has places, and ends when there are none.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Self
from weakref import ref

from coordgen_rs.errors import CallOrderError, SessionClosedError
from coordgen_rs.errors.process import NotCopied, OpenedHere
from coordgen_rs.model.answer import Answer, Piece, Stream
from coordgen_rs.threads.bell import Bell
from coordgen_rs.threads.one_thread import NoThreadError, OneThread

_News = tuple[Piece, ...] | Exception | None
"""What a step has made certain; why there is no more; None at the end."""


class AsyncStream(NotCopied, AsyncIterator[Piece]):
    """The pieces of an answer for `async for`; `Model.astream` makes it.

    Cancelling the task that awaits a piece abandons the answer, and so does `aclose`, leaving its
    `async with` block, or dropping it. The model is free for others within a step.

    Args:
        stream: The answer.
        reader: Reads it.
    """

    def __init__(self, stream: Stream, reader: "Reader") -> None:
        self._stream, self._reader = stream, reader
        self._pieces = deque[Piece]()
        self._news: asyncio.Queue[_News] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._is_over = self._is_awaited = False

    @property
    def answer(self) -> Answer:
        """The answer as far as the model has given it: whole once all pieces were awaited."""
        return self._stream.answer

    async def aclose(self) -> None:
        """End the request where it stands."""
        self._give_up()

    async def __anext__(self) -> Piece:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            try:
                await self._take()
            except asyncio.CancelledError:
                self._error = CallOrderError(
                    "the answer was given up, as its reader was cancelled: ask for it again"
                )
                await self.aclose()
                raise
        return self._pieces.popleft()

    async def _take(self) -> None:
        """Await what the next step adds.

        Raises:
            CallOrderError: Another task awaits it, or this one is of another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._is_awaited or (self._loop or loop) is not loop:
            raise CallOrderError("the stream is read by another task, or in another event loop")
        if self._news is None:
            self._loop, self._news = loop, asyncio.Queue()
            self._reader.add(self._stream, self._news)
        self._is_awaited = True
        try:
            news = await self._news.get()
        finally:
            self._is_awaited = False
        if news is None:
            self._is_over = True
        elif isinstance(news, Exception):
            self._error = news
        else:
            self._pieces += news

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if "_is_over" in self.__dict__:  # an interrupt may have come before
            self._give_up()

    def _give_up(self) -> None:
        if self._news is not None and not self._is_over:
            self._reader.give_up(self._stream)
        self._is_over = True


async def whole(stream: AsyncStream) -> Answer:
    """The answer of a stream, which is read to its end; raises what the stream does."""
    async with stream:
        async for _ in stream:
            pass
        return stream.answer


class _Read:
    """A stream that is read, and who awaits it."""

    def __init__(self, stream: Stream, news: "asyncio.Queue[_News]") -> None:
        self.stream, self._news = stream, ref(news)
        self._loop = asyncio.get_running_loop()

    def tell(self, news: _News) -> bool:
        """Hand on what was read; whether there is still somebody who could await it."""
        queue = self._news()
        if queue is None:
            return False
        try:
            self._loop.call_soon_threadsafe(queue.put_nowait, news)
        except RuntimeError:  # the event loop is closed
            return False
        return True


class Reader:
    """Reads streams in a thread of its own, which lives as long as there are any.

    Args:
        num_places: How many are answered at a time. Where it is one, the others wait, in order;
            else all take part in the model's rounds.
        wake: Wakes who waits within the model.
    """

    def __init__(self, num_places: int, wake: Callable[[], None]) -> None:
        self._num_places, self._wake = num_places, wake
        self._streams = deque[_Read]()
        self._given_up = deque[Stream]()
        self._opened = OpenedHere()
        # A thread that is within the model when Python ends would abort the process.
        self._thread = OneThread(
            self._run, lambda: bool(self._streams or self._given_up), Bell(), self._stop
        )

    def add(self, stream: Stream, news: "asyncio.Queue[_News]") -> None:
        """Read a stream from now on, for the event loop that runs.

        Raises:
            ForkedError: This process is a fork of the one that opened the model.
            NoThreadError: The system gives no thread.
        """
        self._opened.check("model")
        read = _Read(stream, news)
        self._streams.append(read)
        try:
            self._thread.begin()
        except NoThreadError:
            with suppress(ValueError):  # a thread that was about to end reads it
                self._streams.remove(read)
                raise
        self._wake()

    def close(self) -> None:
        """Give all streams up; who awaits one is told that the model is closed. Waits for nothing.

        An event loop that waits for the model to be closed could not take what they say. In a fork
        of the process, nothing happens.
        """
        if self._opened.is_forked:
            return
        for read in [*self._streams]:
            read.tell(SessionClosedError("the model is closed"))
            self.give_up(read.stream)

    def join(self) -> None:
        """Wait for the thread's end, once all streams are given up."""
        if not self._opened.is_forked:
            self._thread.join()

    def give_up(self, stream: Stream) -> None:
        """Read a stream no more; it is closed within a step. Waits for nothing."""
        self._given_up.append(stream)
        stream.give_up()

    def _stop(self) -> None:
        """Give all streams up, and wait for the thread."""
        for read in [*self._streams]:
            self.give_up(read.stream)
        self.join()

    def _run(self) -> None:
        while some := self._next():
            for read in some:
                read.stream.join()
            if self._num_places > 1 and len(self._streams) > len(some):
                continue  # who came before that has rung already
            if not any(read.stream.is_ready for read in some):
                self._drive(some[0])
            for read in some:
                if read in self._streams and read.stream.is_ready:
                    self._step(read)

    def _next(self) -> list[_Read]:
        """Those whose turn it is; where there are none, the thread ends."""
        while self._given_up:
            stream = self._given_up.popleft()
            found = next((it for it in [*self._streams] if it.stream is stream), None)
            if found is not None:
                self._end(found, None)
                with suppress(Exception):  # it was told that the answer is over
                    stream.close()
        streams = [*self._streams]
        return streams if self._num_places > 1 else streams[:1]

    def _drive(self, read: _Read) -> None:
        """Let the model go on; what goes wrong is told by the next step."""
        with suppress(BaseException):
            read.stream.drive()

    def _step(self, read: _Read) -> None:
        try:
            gain = read.stream.step()
        except Exception as error:
            self._end(read, error)
            return
        except BaseException as error:  # of a callback, or a panic of the core
            self._end(read, RuntimeError(f"the answer was broken off: {error!r}"))
            return
        if gain is None:
            self._end(read, None)
        elif gain.pieces and not read.tell(gain.pieces):
            self.give_up(read.stream)

    def _end(self, read: _Read, news: Exception | None) -> None:
        with suppress(ValueError):
            self._streams.remove(read)
        read.tell(news)
