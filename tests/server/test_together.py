"""Requests that a server answers at the same time: what one of them does changes no other."""

import asyncio
import threading
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.errors import DeviceLostError, NonFiniteLogitsError
from coordgen_rs.model.answer import Answer
from coordgen_rs.runtime.batch.sharing import RunCounts
from coordgen_rs.server.api_error import APIError, UnavailableError
from coordgen_rs.server.clients import Client
from coordgen_rs.server.metrics import Metrics, exposition
from coordgen_rs.server.serving import how_many_together
from fake_model import STEPS, FakeModel
from fake_served import fake_models, is_loading
from with_worker import Job, ended, in_thread, response_to, with_worker

TEXT = "".join(text for text, _ in STEPS)


async def running(model, worker, *jobs):
    """Submit jobs, and wait until all of them are at their first step."""
    for one in jobs:
        await one.submit(worker)
        await in_thread(model.at_step.acquire)


def test_as_many_as_there_are_places_run_at_the_same_time():
    model = FakeModel(is_gated=True, parallel=2)

    async def test(worker):
        first, second, third = Job("a"), Job("b"), Job("c")
        await running(model, worker, first, second)
        await third.submit(worker)
        assert (worker.num_running, worker.num_waiting, worker.num_places) == (2, 1, 2)
        model.may_step.release(1000)
        for one in (first, second, third):
            assert (await one.end()).text == TEXT
        assert worker.metrics.outcomes["finished"] == 3

    with_worker(test, model)


def test_one_that_fails_ends_alone():
    model = FakeModel(is_gated=True, parallel=2)
    model.fails_at = {"bad": NonFiniteLogitsError("NaN")}

    async def test(worker):
        bad, good = Job("bad"), Job("good")
        await running(model, worker, bad, good)
        model.may_step.release(1000)
        assert isinstance(await bad.end(), NonFiniteLogitsError)
        assert (await good.end()).text == TEXT
        assert (worker.state, worker.metrics.outcomes["failed"]) == ("ready", 1)

    with_worker(test, model)


def test_one_that_is_cut_gives_its_place_to_the_next():
    model = FakeModel(is_gated=True, parallel=2)

    async def test(worker):
        cut, other, waiting = Job("cut"), Job("other"), Job("waiting")
        await running(model, worker, cut, other)
        await waiting.submit(worker)
        await cut.withdraw()
        model.may_step.release(1000)
        assert (await waiting.end()).text == TEXT
        assert (await other.end()).text == TEXT
        worker.close()
        await ended(worker)
        assert worker.metrics.outcomes["given_up"] == 1

    with_worker(test, model)


def test_a_client_that_reads_slowly_keeps_nobody_waiting():
    model = FakeModel()

    async def test(worker):
        may_read, sent = asyncio.Event(), []

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)
            await may_read.wait()

        response = asyncio.create_task(response_to(worker, "slow", stream=True)({}, receive, send))
        while not sent:
            await asyncio.sleep(0)
        for number in range(6):
            other = Job(f"other {number}")
            await other.submit(worker)
            assert (await other.end()).text == TEXT
        assert len(sent) == 1
        may_read.set()
        await asyncio.wait_for(response, 600)
        assert sent[-2]["body"] == b"data: [DONE]\n\n"

    with_worker(test, model)


def test_a_lost_device_ends_the_worker_also_where_nobody_else_is_answered():
    model = FakeModel(is_gated=True, parallel=3)
    model.fails_at = {"b": DeviceLostError("gone")}

    async def test(worker):
        jobs = {name: Job(name) for name in ("a", "b", "c")}
        await running(model, worker, *jobs.values())
        await jobs["a"].withdraw()
        await jobs["c"].withdraw()
        model.may_step.release(1000)
        assert isinstance(await jobs["b"].end(), DeviceLostError)
        await ended(worker)
        assert worker.state == "failed"
        assert isinstance(worker.failure, DeviceLostError)
        later = Job("later")
        await later.submit(worker)
        with pytest.raises(UnavailableError, match="failed"):
            raise await later.end()

    with_worker(test, model)


def test_a_lost_device_is_told_to_whom_it_was_answering_and_to_who_waits():
    model = FakeModel(is_gated=True, parallel=2)
    model.fails_at = {"lost": DeviceLostError("gone")}

    async def test(worker):
        lost, other, waiting = Job("lost"), Job("other"), Job("waiting")
        await running(model, worker, lost, other)
        await waiting.submit(worker)
        model.may_step.release(1000)
        assert isinstance(await lost.end(), DeviceLostError)
        for one in (other, waiting):  # which may have ended before
            assert isinstance(await one.end(), UnavailableError | Answer)
        await ended(worker)

    with_worker(test, model)


def test_going_down_lets_all_that_run_and_wait_end():
    model = FakeModel(is_gated=True, parallel=2)

    async def test(worker):
        jobs = [Job(name) for name in "abcd"]
        await running(model, worker, *jobs[:2])
        for one in jobs[2:]:
            await one.submit(worker)
        worker.close()
        model.may_step.release(1000)
        for one in jobs:
            assert (await one.end()).text == TEXT
        await ended(worker)
        assert worker.failure is None

    with_worker(test, model)


def test_at_the_deadline_all_that_run_end_by_an_error():
    model = FakeModel(is_gated=True, parallel=2, steps=[("x", ("target",))] * 50)

    async def test(worker):
        jobs = [Job(name) for name in "abc"]
        await running(model, worker, *jobs[:2])
        await jobs[2].submit(worker)
        worker.close()
        worker.stop_all(UnavailableError("the server is going down"))
        model.may_step.release(1000)
        for one in jobs:
            assert isinstance(await one.end(), UnavailableError)
        await ended(worker)

    with_worker(test, model)


def test_closing_while_nothing_is_asked_ends_the_thread():
    with_worker(lambda worker: asyncio.sleep(0), FakeModel(parallel=4))
    names = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("coordgen-worker") for name in names)


def test_a_client_may_have_as_many_waiting_as_asked_for_beside_those_that_are_answered():
    models = fake_models(FakeModel(parallel=2), 1)
    models.start()
    while is_loading(models):
        pass
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(models.slots.hold(Client("", "one")))
        with pytest.raises(APIError), models.slots.hold(Client("", "one")):
            pass
    models.close()
    models.join()


def test_metrics_that_many_threads_count_lose_nothing():
    metrics, together = Metrics(), threading.Barrier(8)

    def count():
        together.wait()
        for _ in range(500):
            metrics.count("failed")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.outcomes["failed"] == 4000


def test_metrics_tell_of_the_runs_that_requests_shared():
    counts = RunCounts()
    counts.add([3, 1], [])
    counts.add([2], [10, 4])
    counts.add([], [64])
    now = {"num_running": 1, "num_waiting": 2, "num_places": 3}
    families = Metrics().families(**now, counts={"shared": vars(counts)})
    text = exposition({"one": families})
    told = dict(line.split(" ") for line in text.splitlines() if line[0] != "#")
    assert float(told["coordgen_places"]) == 3
    shared = {
        "runs": 3,
        "requests": 6,
        "rows": 84,
        "decode_rows": 6,
        "prompt_tokens_beside": 14,
    }
    for name, value in shared.items():
        assert float(told[f"coordgen_shared_{name}_total"]) == value
    alone = Metrics().families(**now, counts={})
    assert not any("shared" in one.name for one in alone)


def test_the_ready_line_tells_how_many_and_why_only_one():
    model = FakeModel(parallel=3)
    assert how_many_together(model) == "3 requests at a time"
    model = FakeModel()
    assert how_many_together(model) == "one request at a time"
    model.why_alone = "the draft model drafts for one"
    assert how_many_together(model) == "one request at a time: the draft model drafts for one"
