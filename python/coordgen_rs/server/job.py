"""A request on its way: it waits, is answered step by step, and ends, or its client goes away.

In: what was asked, from the event loop; what each step gives, from the worker's thread. Out: the
same in order, to whoever awaits it. It neither queues nor answers.
"""

import asyncio
import time
from contextlib import suppress

from coordgen_rs.answer import Answer, Gain
from coordgen_rs.server.asked import Asked

News = Gain | Answer | Exception | None
"""A step of a stream, the whole answer at its end, why there is none, or None: nobody listens any
more."""


class Job:
    """One request. Made in the event loop that will await its news.

    Args:
        asked: What it asks for.
        client: Whose turn it takes.

    Attributes:
        asked: As given.
        client: As given.
        is_ended: Whether it is to stop: read by the worker between steps.
        queued_s: Seconds that it waited for its turn.
    """

    def __init__(self, asked: Asked, client: str) -> None:
        self.asked, self.client = asked, client
        self.is_ended = False
        self.queued_s = 0.0
        self._since = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Queue[News]()

    def begun(self) -> None:
        """Its turn has come."""
        self.queued_s = time.monotonic() - self._since

    def tell(self, news: News) -> None:
        """Hand on news, from any thread; what follows the last is dropped."""
        with suppress(RuntimeError):  # the event loop is closed: nobody awaits it
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    def stop(self, why: Exception | None = None) -> None:
        """End it: None if nobody listens any more."""
        self.is_ended = True
        self.tell(why)

    async def news(self) -> News:
        """The next news."""
        return await self._news.get()
