"""The turns that requests take, over a fake model that steps when a test lets it."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.testclient import TestClient

from coordgen_rs.errors import BundleError, DeviceLostError
from coordgen_rs.model.answer import Answer
from coordgen_rs.server.api_error import UnavailableError
from coordgen_rs.server.app import make_app
from coordgen_rs.server.clients import Client, FairQueue, Waiter
from coordgen_rs.server.dialects.reader import AnswerReader
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models import answering
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from coordgen_rs.server.models.worker import Worker
from fake_model import STEPS, FakeModel
from with_worker import Job, ended, in_thread, response_to, with_worker


def test_clients_take_turns():
    model = FakeModel(is_gated=True)

    async def test(worker):
        first = Job("a0", "a")
        await first.submit(worker)
        await in_thread(model.at_step.acquire)
        jobs = [Job(name, name[0]) for name in ("a1", "a2", "a3", "b1", "c1", "b2")]
        for one in jobs:
            await one.submit(worker)
        assert (worker.num_running, worker.num_waiting) == (1, 6)
        model.may_step.release(1000)
        for one in (first, *jobs):
            assert isinstance(await one.end(), Answer)
        assert model.ended == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]
        assert all(one.news[-1][1] > 0 for one in jobs)

    with_worker(test, model)


def test_keys_take_turns_and_the_addresses_of_a_key_among_themselves():
    turns = FairQueue()
    asked_for = ("a1", "a1", "a1", "a2", "a2", "b1", "b1", "b1")

    async def test():
        for key, network in asked_for:
            turns.add(Waiter(Client(key, network)))
        assert len(turns) == len(asked_for)
        took = ["".join(turns.take().client) for _ in asked_for]
        assert took == ["a1", "b1", "a2", "b1", "a1", "b1", "a2", "a1"]
        assert len(turns) == 0

    asyncio.run(test())


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("ab-"), st.sampled_from("xy"), st.integers(0, 3))))
def test_turns_hold_who_was_added_and_neither_taken_nor_removed(events):
    async def test():
        turns, waiting = FairQueue(), []
        for key, network, number in events:
            if key == "-":
                if number < len(waiting):
                    assert turns.remove(waiting[number])
                    assert not turns.remove(waiting.pop(number))
                elif waiting:
                    waiting.remove(turns.take())
            else:
                waiting.append(Waiter(Client(key, network)))
                turns.add(waiting[-1])
            assert set(turns) == set(waiting)
        assert set(turns.clear()) == set(waiting)
        assert len(turns) == 0

    asyncio.run(test())


async def given_up_while_running(model, worker):
    """Give a running request up within a step; the request behind it, which runs by then."""
    running, follower = Job("running"), Job("next")
    await running.submit(worker)
    await in_thread(model.at_step.acquire)
    await running.withdraw()
    model.may_step.release()
    await follower.submit(worker)
    await in_thread(model.at_step.acquire)
    assert model.ended == ["running"]
    assert worker.metrics.outcomes["given_up"] == 1
    return follower


def test_a_request_that_is_given_up_stops_within_one_step():
    model = FakeModel(is_gated=True, steps=[("x", ("target",))] * 50)

    async def test(worker):
        follower = await given_up_while_running(model, worker)
        model.may_step.release(1000)
        await follower.end()
        assert len(follower.news) == 51

    with_worker(test, model)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_client_that_goes_away_ends_its_request(is_streamed, is_running):
    model = FakeModel(is_gated=True, steps=[("x", ("target",))] * 50)

    async def test(worker):
        if not is_running:
            await Job("before").submit(worker)
            await in_thread(model.at_step.acquire)
        gone, sent = asyncio.Event(), []

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        answered = response_to(worker, "mine", stream=is_streamed)
        response = asyncio.create_task(answered({}, receive, send))
        if is_running:
            await in_thread(model.at_step.acquire)
        gone.set()
        await asyncio.wait_for(response, 600)
        assert worker.num_waiting == 0
        assert worker.num_running == (not is_running)
        assert sent == []

    with_worker(test, model)
    assert "before" not in model.ended or "mine" not in model.ended


def test_a_request_that_is_given_up_reads_no_further_chunk_of_its_prompt():
    model = FakeModel(chunks=50)

    async def test(worker):
        follower = await given_up_while_running(model, worker)
        assert worker.metrics.outcomes["failed"] == 0
        model.may_step.release(1000)
        assert isinstance(await follower.end(), Answer)

    with_worker(test, model)


def test_a_stream_on_which_nothing_comes_gets_comments(monkeypatch):
    monkeypatch.setattr(answering, "PING_S", 0.001)
    model = FakeModel(is_gated=True)

    async def test(worker):
        sent, pinged = [], asyncio.Event()

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)
            if sum(m.get("body") == b": waiting\n\n" for m in sent) > 2:
                pinged.set()

        response = asyncio.create_task(response_to(worker, "mine", stream=True)({}, receive, send))
        await asyncio.wait_for(pinged.wait(), 600)
        model.may_step.release(1000)
        await asyncio.wait_for(response, 600)
        assert sent[0]["status"] == 200
        bodies = [m["body"] for m in sent[1:] if m["body"] != b": waiting\n\n"]
        assert bodies[-2:] == [b"data: [DONE]\n\n", b""]
        assert len(bodies) == len(STEPS) + 3

    with_worker(test, model)


def test_a_lost_device_ends_the_worker_and_tells_everyone():
    model = FakeModel(is_gated=True)
    model.fails_at = {"running": DeviceLostError("gone")}

    async def test(worker):
        running, waiting = Job("running"), Job("waiting")
        await running.submit(worker)
        await waiting.submit(worker)
        model.may_step.release(2)
        assert isinstance(await running.end(), DeviceLostError)
        assert isinstance(await waiting.end(), UnavailableError)
        await ended(worker)
        assert isinstance(worker.failure, DeviceLostError)
        later = Job("later")
        await later.submit(worker)
        with pytest.raises(UnavailableError, match="failed"):
            raise await later.end()

    with_worker(test, model)


def test_a_panic_in_a_step_ends_the_worker_and_tells_the_request():
    class Panic(BaseException):
        """What a panic of the core is in Python."""

    model = FakeModel()
    model.fails_at = {"running": Panic()}

    async def test(worker):
        running = Job("running")
        await running.submit(worker)
        assert isinstance(await running.end(), UnavailableError)
        await ended(worker)
        assert isinstance(worker.failure, Panic)

    with_worker(test, model)


def test_going_down_answers_those_who_wait_until_the_deadline():
    model = FakeModel(is_gated=True)

    async def test(worker):
        running, waiting, late = Job("running"), Job("waiting"), Job("late")
        await running.submit(worker)
        await in_thread(model.at_step.acquire)
        await waiting.submit(worker)
        await late.submit(worker)
        worker.close()
        too_late = Job("too late")
        await too_late.submit(worker)
        with pytest.raises(UnavailableError, match="going down"):
            raise await too_late.end()
        model.may_step.release(len(STEPS))
        assert isinstance(await running.end(), Answer)
        worker.stop_all(UnavailableError("the server is going down"))
        model.may_step.release(1)
        assert isinstance(await waiting.end(), UnavailableError)
        assert isinstance(await late.end(), UnavailableError)

    with_worker(test, model)


def test_a_turn_that_comes_as_the_server_ends_is_none():
    model = FakeModel(is_gated=True)

    async def test(worker):
        running, waiting = Job("running"), Job("waiting")
        await running.submit(worker)
        await in_thread(model.at_step.acquire)
        await waiting.submit(worker)
        leave = worker._leave

        def leave_and_stop():
            leave()  # which gives the turn to the one that waits, and it has not seen that yet
            worker.stop_all(UnavailableError("the server is going down"))

        worker._leave = leave_and_stop
        await running.withdraw()
        worker._leave = leave
        model.may_step.release(1000)
        with pytest.raises(UnavailableError, match="going down"):
            raise await waiting.end()
        assert worker.num_running == 0

    with_worker(test, model)
    assert "waiting" not in model.ended


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_error_in_what_writes_an_answer_is_logged_and_told(monkeypatch, caplog, is_streamed):
    prompt = "secret"

    def fail(*_):
        raise KeyError(prompt)

    monkeypatch.setattr(AnswerReader, "end", fail)

    async def test(worker):
        sent = []

        async def send(message):
            sent.append(message)

        response = response_to(worker, "mine", stream=is_streamed)
        scope = {"type": "http", "path": "/v1/completions", "headers": []}
        await response(scope, asyncio.Event().wait, send)
        told = b"".join(message.get("body", b"") for message in sent)
        assert b"internal error: KeyError" in told
        assert prompt.encode() not in told

    with_worker(test, FakeModel())
    assert "internal error: KeyError" in caplog.text
    assert prompt not in caplog.text


def test_a_client_that_leaves_while_the_model_opens_is_counted():
    may_open = threading.Event()

    def opened():
        may_open.wait()
        return FakeModel()

    models = ModelPool([ModelEntry("fake", Path("fake"))], lambda one: opened(), 8)
    models.start()
    app, gone = make_app(models, Access()), asyncio.Event()
    body = [{"type": "http.request", "body": b'{"prompt": "?"}', "more_body": False}]

    async def receive():
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError(message)

    async def test():
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost")], "client": ("10.0.0.1", 1), "root_path": ""}
        asking = asyncio.create_task(app(scope, receive, send))
        while not models.num_waiting:
            await asyncio.sleep(0)
        gone.set()
        await asking

    asyncio.run(test())
    may_open.set()
    models.close()
    models.join()
    assert 'requests_total{outcome="given_up"} 1' in models.metrics()


def test_what_is_wrong_with_an_early_request_is_told_once_the_model_is_open():
    may_open, told = threading.Event(), []

    def opened(one):
        may_open.wait()
        return FakeModel()

    models = ModelPool([ModelEntry("fake", Path("fake"))], opened, 8)
    models.start()
    with TestClient(make_app(models, Access()), base_url="http://localhost") as client:

        def ask():
            told.append(client.post("/v1/completions", json={"prompt": "?", "bogus": 1}))

        asking = threading.Thread(target=ask)
        asking.start()
        while not models.num_waiting:
            pass
        assert told == []
        may_open.set()
        asking.join()
    models.close()
    models.join()
    assert told[0].status_code == 400
    assert told[0].json()["error"]["message"] == "unknown field: bogus"


def test_requests_that_wait_for_the_model_are_answered_though_it_is_closed():
    model, may_open = FakeModel(), threading.Event()

    def opened(_):
        may_open.wait()
        return model

    async def test():
        worker, job = Worker(opened), Job("early")
        worker.start()
        await job.submit(worker)
        assert (worker.num_running, worker.num_waiting) == (0, 1)
        worker.close()
        may_open.set()
        assert isinstance(await job.end(), Answer)
        await ended(worker)

    asyncio.run(test())
    assert model.is_closed


def test_requests_that_wait_for_the_model_are_told_that_the_server_ends():
    may_open = threading.Event()

    def opened(_):
        may_open.wait()
        return FakeModel()

    async def test():
        worker, job = Worker(opened), Job("early")
        worker.start()
        await job.submit(worker)
        worker.stop_all(UnavailableError("the server is going down"))
        with pytest.raises(UnavailableError, match="going down"):
            raise await job.end()
        may_open.set()
        worker.close()
        await ended(worker)

    asyncio.run(test())


def test_a_model_that_cannot_be_opened_is_the_failure_of_the_worker():
    def fail(_):
        raise BundleError("no bundle")

    changes = []
    worker = Worker(fail, lambda worker: changes.append(worker.state))
    with pytest.raises(UnavailableError, match="being loaded"):
        _ = worker.model
    worker.start()
    worker.join()
    assert changes == ["failed"]
    assert isinstance(worker.failure, BundleError)
