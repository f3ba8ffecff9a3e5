"""The jobs of one request that asks for several answers.

In: what was asked, with `num_choices`. Out: a job for each answer that has to be made, and their
news in one row. Each job waits for a turn of its own, so that other clients come in between; where
nothing is sampled all answers are the same, and one job makes it.
"""

import asyncio
from functools import partial

from coordgen_rs.server.job import Job, News
from coordgen_rs.server.network.client import Client
from coordgen_rs.server.requests.record import Request


class Jobs:
    """The jobs of a request. Made in the event loop that will await their news.

    Args:
        asked: What it asks for.
        client: Same as in `Job`.
        namespace: Same as in `Job`.

    Attributes:
        all: The jobs, in the order of the choices that they answer.
        choices: For each job the numbers of the choices that its answer is.
    """

    def __init__(
        self,
        asked: Request,
        client: Client,
        namespace: str | None = None,
    ) -> None:
        numbers = range(asked.num_choices)
        self.choices = [[*numbers]] if asked.seed is None else [[number] for number in numbers]
        self._news = asyncio.Queue[tuple[int, News]]()
        self.all = [
            Job(asked.choice(number), client, namespace, partial(self._put, number))
            for number in range(len(self.choices))
        ]

    def _put(self, number: int, news: News) -> None:
        self._news.put_nowait((number, news))

    async def news(self, within_s: float | None = None) -> tuple[int, News]:
        """The next news of any job, and the job's number.

        Args:
            within_s: How long to wait for it; None for as long as it takes.

        Raises:
            TimeoutError: There was none.
        """
        async with asyncio.timeout(within_s):
            return await self._news.get()
