"""Awaiting with signs of life: where nothing comes for long, the client is told that it waits.

In: what is awaited in the event loop, and what sends a sign. Out: the same, once it is there.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from coordgen_rs.model.answer import Gain
from coordgen_rs.model.stream import Stream, wake

PING_S = 15.0
"""A stream on which nothing comes for so long gets a sign, which clients leave out."""

LONG_ANSWER = 200
"""Tokens from which on an answer is put together in a thread: with trees, a megabyte or more."""

_MOST_AT_ONCE = 64
"""Steps that are read before others go on, where an answer is ahead of its reader."""

Sign = Callable[[], Awaitable[None]]
"""Sends one."""

_T = TypeVar("_T")


async def heard(event: asyncio.Event, sign: Sign | None) -> None:
    """Wait for an event; `sign` is sent from time to time, None for none."""
    while not event.is_set():
        try:
            async with asyncio.timeout(None if sign is None else PING_S):
                await event.wait()
        except TimeoutError:
            if sign is not None:
                await sign()


async def done(awaitable: Awaitable[_T], sign: Sign | None) -> _T:
    """What something returns, or raises; `sign` as in `heard`."""
    task, event = asyncio.ensure_future(awaitable), asyncio.Event()
    task.add_done_callback(lambda _: event.set())
    try:
        await heard(event, sign)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what it holds, it holds until then


async def steps(stream: Stream) -> AsyncGenerator[Gain]:
    """The steps of an answer, each once it is made.

    The stream is closed at the end, or when the reader is cancelled.
    """
    news, num_steps = asyncio.Event(), 0
    wake(stream, news)
    with stream:
        while True:
            if num_steps % _MOST_AT_ONCE == 0:
                await asyncio.sleep(0)
            while not stream.is_step_ready:
                await news.wait()
                news.clear()
            gain = stream.step()
            if gain is None:
                return
            num_steps += 1
            yield gain
