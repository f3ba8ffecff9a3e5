"""A server's worker over a fake model, without HTTP: jobs, their news, and a worker that runs."""

import asyncio

from coordgen_rs.model.answer import Gain
from coordgen_rs.server.job import Job
from coordgen_rs.server.network.client import Client
from coordgen_rs.server.requests.fields import Fields
from coordgen_rs.server.requests.openai import parse_completion
from coordgen_rs.server.worker import Worker
from fake_model import FakeModel


def asked(prompt, **fields):
    return parse_completion(Fields({"prompt": prompt, **fields}), FakeModel())


def job(prompt, client="one", **fields):
    return Job(asked(prompt, **({"stream": True} | fields)), Client("", client))


async def all_news(job):
    """All news of a job, its end last."""
    found = [await job.news()]
    while isinstance(found[-1], Gain):
        found.append(await job.news())
    return found


async def in_thread(function, *arguments):
    return await asyncio.wait_for(asyncio.to_thread(function, *arguments), 600)


def with_worker(test, model):
    """Run an async test with a worker that is ready."""

    async def run():
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        worker = Worker(lambda: model, lambda: loop.call_soon_threadsafe(ready.set))
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
