"""A request on its way: it waits, is answered step by step, and ends, or its client goes away.

In: what was asked, from the event loop; what each step gives, from the worker's thread. Out: the
same in order, to whoever awaits it. It neither queues nor answers.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer, Gain
from coordgen_rs.model.stream import Stream
from coordgen_rs.server.network.client import Client
from coordgen_rs.server.requests.record import Request

News = Gain | Answer | Exception | None
"""A step of a stream, the whole answer at its end, why there is none, or None: nobody listens any
more."""


class GivenUpError(Exception):
    """Nobody listens any more: what is left of the prompt need not be read."""


class Job:
    """One request. Made in the event loop that will await its news.

    Args:
        asked: What it asks for.
        client: The client whose turn it takes.
        namespace: Same as in `RequestOptions`.
        put: Takes its news, in the event loop; None keeps them for `news`.

    Attributes:
        asked: The `asked` argument.
        client: The `client` argument.
        is_ended: Whether it is to stop: read by the worker between steps.
        queued_s: Seconds that it waited for its turn.
    """

    def __init__(
        self,
        asked: Request,
        client: Client,
        namespace: str | None = None,
        put: Callable[[News], None] | None = None,
    ) -> None:
        self.asked, self.client = asked, client
        self._namespace = namespace
        self.is_ended = False
        self.queued_s = 0.0
        self._since = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Queue[News]()
        self._put = self._news.put_nowait if put is None else put

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.asked.prompt_ids)

    def begin(self, model: Model) -> Stream:
        """Begin the answer: its turn has come."""
        self.queued_s = time.monotonic() - self._since
        return self.asked.begin(model, namespace=self._namespace, on_read=self._check)

    def _check(self, num_read: int) -> None:
        """Check between two chunks of the prompt whether to go on.

        Raises:
            GivenUpError: The job has ended.
        """
        if self.is_ended:
            raise GivenUpError(f"given up after {num_read} tokens of the prompt")

    def tell(self, news: News) -> None:
        """Hand on news, from any thread; what follows the last is dropped."""
        with suppress(RuntimeError):  # the event loop is closed: nobody awaits it
            self._loop.call_soon_threadsafe(self._put, news)

    def stop(self, why: Exception | None = None) -> None:
        """End the job; the news is None if nobody listens any more."""
        self.is_ended = True
        self.tell(why)

    async def news(self, within_s: float | None = None) -> News:
        """The next news.

        Args:
            within_s: How long to wait for it; None for as long as it takes.

        Raises:
            TimeoutError: There was none.
        """
        async with asyncio.timeout(within_s):
            return await self._news.get()
