"""Streams for asyncio: awaited piece by piece, without a thread a request.

In: streams. Out: their pieces, in the event loop that asks, which the engine wakes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Self

from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import NotCopied
from coordgen_rs.model.answer import Answer, Piece
from coordgen_rs.model.stream import Stream


class AsyncStream(NotCopied, AsyncIterator[Piece]):
    """The pieces of an answer for `async for`; `Model.astream` makes it.

    Cancelling the task that awaits a piece abandons the answer, and so does `aclose`, leaving its
    `async with` block, or dropping it. The model is free for others within a step.

    Args:
        stream: The answer.
    """

    def __init__(self, stream: Stream) -> None:
        stream.events.is_awaited = True
        self._stream = stream
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
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

    async def __anext__(self) -> Piece:
        loop = asyncio.get_running_loop()
        if self._is_awaited or (self._loop or loop) is not loop:
            raise CallOrderError("the stream is read by another task, or in another event loop")
        if self._loop is None:
            self._loop = loop
            self._stream.events.wake = partial(_wake, loop, self._news)
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


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the event loop is closed: nobody awaits it
        loop.call_soon_threadsafe(news.set)


async def whole(stream: AsyncStream) -> Answer:
    """The answer of a stream, which is read to its end; raises what the stream does."""
    stream.wants_whole()
    async with stream:
        async for _ in stream:
            pass
        return stream.answer
