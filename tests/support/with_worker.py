"""A server's worker over a fake model, without HTTP: requests, their news, a worker that runs."""

import asyncio
from dataclasses import replace

from coordgen_rs.server.clients import Client
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.openai import OPENAI, parse_completion
from coordgen_rs.server.models.answering import AnswerResponse, PreparedRequest
from coordgen_rs.server.models.worker import Admission, Worker


def asked(prompt, model, **fields):
    return parse_completion(Fields({"prompt": prompt, **fields}), model)


class Job:
    """A request, read by a task of its own.

    Attributes:
        news: Its steps, and last the answer and the seconds that it waited, or why there is none.
    """

    def __init__(self, prompt, client="one", **fields):
        self._prompt, self._client = prompt, Client("", client)
        self._fields = {"stream": True} | fields
        self.news = []

    async def submit(self, worker):
        """Begin it; it has its turn, or waits for it, then."""
        self._task = asyncio.create_task(self._read(worker))
        await asyncio.sleep(0)

    async def _read(self, worker):
        try:
            with worker.admitted() as admission:
                model = await worker.opened(admission)
                request = asked(self._prompt, model, **self._fields)
                stream = request.begin(model)
                await worker.answer(request, stream, self._client, admission, self.news.append)
        except Exception as error:
            self.news.append(error)

    async def withdraw(self):
        """End it, as its client has left."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def end(self):
        """Its last news: the answer, or why there is none."""
        await asyncio.wait_for(self._task, 600)
        last = self.news[-1]
        return last if isinstance(last, Exception) else last[0]


def response_to(worker, prompt, *, num=1, **fields):
    """What sends the answer to a request, or so many; the client is "one"."""

    async def prepare():
        request = replace(asked(prompt, worker.model, n=num, **fields), model="fake")
        each = [request.choice(number) for number in range(num)]
        streams = [one.begin(worker.model) for one in each]
        return PreparedRequest(worker, Admission(), Client("", "one"), each, streams)

    return AnswerResponse(OPENAI, "fake", prepare, is_streamed=fields["stream"])


async def in_thread(function, *arguments):
    return await asyncio.wait_for(asyncio.to_thread(function, *arguments), 600)


async def ended(worker):
    """Wait until a worker that is closed has answered all, and its model is closed."""
    await in_thread(worker._thread.join)


def with_worker(test, model):
    """Run an async test with a worker that is ready."""

    async def run():
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        worker = Worker(lambda _: model, lambda _: loop.call_soon_threadsafe(ready.set))
        worker.start()
        await ready.wait()
        try:
            await test(worker)
        finally:
            model.may_step.release(1000)
            worker.close()
            await in_thread(worker.join)
        assert model.is_closed

    asyncio.run(run())
