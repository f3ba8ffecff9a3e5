"""The queue and the thread behind it, over a fake model that steps when a test lets it."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.errors import BundleError, DeviceLostError
from coordgen_rs.model.answer import Answer
from coordgen_rs.server.answers import answering
from coordgen_rs.server.answers.answering import Answering
from coordgen_rs.server.answers.forms import Form
from coordgen_rs.server.job import Job
from coordgen_rs.server.network.client import Client
from coordgen_rs.server.refusal import UnavailableError
from coordgen_rs.server.turns import Rota
from coordgen_rs.server.worker import Worker
from fake_model import STEPS, FakeModel
from with_worker import all_news, asked, in_thread, job, with_worker


def test_clients_take_turns():
    model = FakeModel(is_gated=True)

    async def test(worker):
        first = job("a0", "a")
        worker.submit(first)
        await in_thread(model.at_step.acquire)
        jobs = [job(name, name[0]) for name in ("a1", "a2", "a3", "b1", "c1", "b2")]
        for one in jobs:
            worker.submit(one)
        assert (worker.num_running, worker.num_waiting) == (1, 6)
        model.may_step.release(1000)
        for one in (first, *jobs):
            assert isinstance((await all_news(one))[-1], Answer)
        assert model.ended == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]
        assert all(one.queued_s > 0 for one in jobs)

    with_worker(test, model)


def test_keys_take_turns_and_the_addresses_of_a_key_among_themselves():
    turns = Rota()
    asked_for = ("a1", "a1", "a1", "a2", "a2", "b1", "b1", "b1")

    async def test():
        for key, network in asked_for:
            turns.add(Job(asked("?"), Client(key, network)))
        assert len(turns) == len(asked_for)
        took = ["".join(turns.take().client) for _ in asked_for]
        assert took == ["a1", "b1", "a2", "b1", "a1", "b1", "a2", "a1"]
        assert len(turns) == 0

    asyncio.run(test())


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("ab-"), st.sampled_from("xy"), st.integers(0, 3))))
def test_turns_hold_who_was_added_and_neither_taken_nor_removed(events):
    async def test():
        turns, waiting = Rota(), []
        for key, network, number in events:
            if key == "-":
                if number < len(waiting):
                    assert turns.remove(waiting[number])
                    assert not turns.remove(waiting.pop(number))
                elif waiting:
                    waiting.remove(turns.take())
            else:
                waiting.append(Job(asked("?"), Client(key, network)))
                turns.add(waiting[-1])
            assert set(turns) == set(waiting)
        assert set(turns.clear()) == set(waiting)
        assert len(turns) == 0

    asyncio.run(test())


async def given_up_while_running(model, worker):
    """Give a running request up within a step; the request behind it, which runs by then."""
    running, follower = job("running"), job("next")
    worker.submit(running)
    await in_thread(model.at_step.acquire)
    worker.withdraw(running)
    model.may_step.release()
    worker.submit(follower)
    await in_thread(model.at_step.acquire)
    assert model.ended == ["running"]
    assert worker.figures.given_up == 1
    return follower


def test_a_request_that_is_given_up_stops_within_one_step():
    model = FakeModel(is_gated=True, steps=[("x", ("target",))] * 50)

    async def test(worker):
        follower = await given_up_while_running(model, worker)
        model.may_step.release(1000)
        assert len(await all_news(follower)) == 51

    with_worker(test, model)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_client_that_goes_away_ends_its_request(is_streamed, is_running):
    model = FakeModel(is_gated=True, steps=[("x", ("target",))] * 50)

    async def test(worker):
        if not is_running:
            worker.submit(job("before"))
            await in_thread(model.at_step.acquire)
        mine = job("mine", stream=is_streamed)
        worker.submit(mine)
        gone, sent = asyncio.Event(), []

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        answered = Answering(mine, worker, Form(mine.asked, "fake", chr))
        response = asyncio.create_task(answered({}, receive, send))
        if is_running:
            await in_thread(model.at_step.acquire)
        gone.set()
        await asyncio.wait_for(response, 600)
        assert mine.is_ended
        assert worker.num_waiting == 0
        assert sent == []

    with_worker(test, model)
    assert "before" not in model.ended or "mine" not in model.ended


def test_a_request_that_is_given_up_reads_no_further_chunk_of_its_prompt():
    model = FakeModel(chunks=50)

    async def test(worker):
        follower = await given_up_while_running(model, worker)
        assert worker.figures.failed == 0
        model.may_step.release(1000)
        assert isinstance((await all_news(follower))[-1], Answer)

    with_worker(test, model)


def test_a_stream_on_which_nothing_comes_gets_comments(monkeypatch):
    monkeypatch.setattr(answering, "PING_S", 0.001)
    model = FakeModel(is_gated=True)

    async def test(worker):
        mine = job("mine")
        worker.submit(mine)
        sent, pinged = [], asyncio.Event()

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)
            if sum(m.get("body") == b": waiting\n\n" for m in sent) > 2:
                pinged.set()

        form = Form(mine.asked, "fake", chr)
        response = asyncio.create_task(Answering(mine, worker, form)({}, receive, send))
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
        running, waiting = job("running"), job("waiting")
        worker.submit(running)
        worker.submit(waiting)
        model.may_step.release(2)
        assert isinstance((await all_news(running))[-1], DeviceLostError)
        assert isinstance((await all_news(waiting))[-1], UnavailableError)
        await in_thread(worker.join)
        assert isinstance(worker.failure, DeviceLostError)
        with pytest.raises(UnavailableError, match="failed"):
            worker.submit(job("later"))

    with_worker(test, model)


def test_a_panic_in_a_step_ends_the_worker_and_tells_the_request():
    class Panic(BaseException):
        """What a panic of the core is in Python."""

    model = FakeModel()
    model.fails_at = {"running": Panic()}

    async def test(worker):
        running = job("running")
        worker.submit(running)
        news = await asyncio.wait_for(all_news(running), 600)
        assert isinstance(news[-1], UnavailableError)
        await in_thread(worker.join)
        assert isinstance(worker.failure, Panic)

    with_worker(test, model)


def test_going_down_answers_those_who_wait_until_the_deadline():
    model = FakeModel(is_gated=True)

    async def test(worker):
        running, waiting, late = job("running"), job("waiting"), job("late")
        worker.submit(running)
        await in_thread(model.at_step.acquire)
        worker.submit(waiting)
        worker.submit(late)
        worker.close()
        with pytest.raises(UnavailableError, match="going down"):
            worker.submit(job("too late"))
        model.may_step.release(len(STEPS))
        assert isinstance((await all_news(running))[-1], Answer)
        worker.stop_all(UnavailableError("the server is going down"))
        model.may_step.release(1)
        assert isinstance((await all_news(waiting))[-1], UnavailableError)
        assert isinstance((await all_news(late))[-1], UnavailableError)

    with_worker(test, model)


def test_a_model_that_cannot_be_opened_is_the_failure_of_the_worker():
    def fail():
        raise BundleError("no bundle")

    changes = []
    worker = Worker(fail, lambda: changes.append(worker.state))
    with pytest.raises(UnavailableError, match="being loaded"):
        _ = worker.model
    worker.start()
    worker.join()
    assert changes == ["failed"]
    assert isinstance(worker.failure, BundleError)
