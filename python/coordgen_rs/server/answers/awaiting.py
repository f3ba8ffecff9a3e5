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


async def steps(stream: Stream, sign: Sign | None) -> AsyncGenerator[Gain]:
    """The steps of an answer, each once it is made; `sign` as in `heard`.

    The stream is closed at the end, or when the reader is cancelled.
    """
    news = asyncio.Event()
    wake(stream, news)
    with stream:
        while True:
            await asyncio.sleep(0)  # others go on, too, where the answer is ahead
            while not stream.is_step_ready:
                await heard(news, sign)
                news.clear()
            gain = stream.step()
            if gain is None:
                return
            yield gain
