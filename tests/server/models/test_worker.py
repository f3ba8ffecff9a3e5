"""The turns that requests take, alone or several at a time: what one of them does changes no other.

Over a fake model that steps when a test lets it.
"""

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from coordgen_rs.errors import BundleError, DeviceLostError, NonFiniteLogitsError
from coordgen_rs.model.answer import Answer
from coordgen_rs.runtime.batch import BatchStats
from coordgen_rs.server.api_error import APIError, UnavailableError
from coordgen_rs.server.app import make_app
from coordgen_rs.server.clients import Client, FairQueue, Waiter
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.openai import OPENAI, parse_completion
from coordgen_rs.server.dialects.reader import AnswerReader
from coordgen_rs.server.guard import Access
from coordgen_rs.server.metrics import Metrics, exposition
from coordgen_rs.server.models import answering
from coordgen_rs.server.models.answering import AnswerResponse, PreparedRequest
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from coordgen_rs.server.models.worker import Admission, Worker
from coordgen_rs.server.serving import how_many_together
from fake_model import STEPS, FakeModel
from fake_served import ask, fake_models, is_loading

MANY = [("x", ("target",))] * 50


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


async def is_refused(worker, words):
    """Check that another request is told so."""
    later = Job("later")
    await later.submit(worker)
    await is_told(later, words)


async def is_told(job, words):
    with pytest.raises(UnavailableError, match=words):
        raise await job.end()


class Panic(BaseException):
    """What a panic of the core is in Python."""


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


async def begun(model, worker, *jobs):
    """Submit jobs, and wait until all of them are at their first step."""
    for one in jobs:
        await one.submit(worker)
        await in_thread(model.at_step.acquire)


async def never():
    await asyncio.Event().wait()


async def nothing(message):
    pass


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


def over(fails_at=None, **options):
    """Make an async test one that runs with a worker that is ready, and its fake model."""

    def made(test):
        def run():
            model = FakeModel(**options)
            model.fails_at = fails_at or {}
            with_worker(partial(test, model=model), model)

        return run

    return made


@over(is_gated=True)
async def test_clients_take_turns(worker, model):
    first = Job("a0", "a")
    await begun(model, worker, first)
    jobs = [Job(name, name[0]) for name in ("a1", "a2", "a3", "b1", "c1", "b2")]
    for one in jobs:
        await one.submit(worker)
    assert (worker.num_running, worker.num_waiting) == (1, 6)
    model.may_step.release(1000)
    for one in (first, *jobs):
        assert isinstance(await one.end(), Answer)
    assert model.ended == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]
    assert all(one.news[-1][1] > 0 for one in jobs)


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


@pytest.mark.parametrize("options", [{"is_gated": True, "steps": MANY}, {"chunks": 50}])
def test_a_request_that_is_given_up_ends_within_a_step_or_a_chunk_of_its_prompt(options):
    model = FakeModel(**options)

    async def test(worker):
        running, follower = Job("running"), Job("next")
        await begun(model, worker, running)
        await running.withdraw()
        model.may_step.release()
        await begun(model, worker, follower)
        assert model.ended == ["running"]
        outcomes = worker.metrics.outcomes
        assert (outcomes["given_up"], outcomes["failed"]) == (1, 0)
        model.may_step.release(1000)
        assert isinstance(await follower.end(), Answer)
        assert len(follower.news) == len(model.steps) + 1

    with_worker(test, model)


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize(("is_streamed", "num"), [(False, 1), (True, 1), (True, 3)])
def test_a_client_that_goes_away_ends_its_answers(is_streamed, num, is_running):
    model = FakeModel(is_gated=True, steps=MANY)

    async def test(worker):
        if not is_running:
            await begun(model, worker, Job("before"))
        gone, sent = asyncio.Event(), []

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        drawn = {"temperature": 1, "seed": 7} if num > 1 else {}
        answered = response_to(worker, "mine", num=num, stream=is_streamed, **drawn)
        response = asyncio.create_task(answered({}, receive, send))
        if is_running:
            await in_thread(model.at_step.acquire)
        gone.set()
        await asyncio.wait_for(response, 600)
        assert (worker.num_running, worker.num_waiting) == (not is_running, 0)
        model.may_step.release(1000)
        behind = Job("behind")
        await behind.submit(worker)
        await behind.end()
        assert sent == []
        assert not is_running or worker.metrics.outcomes["given_up"] == num

    with_worker(test, model)
    assert model.ended == ["mine" if is_running else "before", "behind"]


def test_a_stream_on_which_nothing_comes_gets_comments(monkeypatch):
    monkeypatch.setattr(answering, "PING_S", 0.001)
    model = FakeModel(is_gated=True)

    async def test(worker):
        sent, pinged = [], asyncio.Event()

        async def send(message):
            sent.append(message)
            if sum(m.get("body") == b": waiting\n\n" for m in sent) > 2:
                pinged.set()

        response = asyncio.create_task(response_to(worker, "mine", stream=True)({}, never, send))
        await asyncio.wait_for(pinged.wait(), 600)
        model.may_step.release(1000)
        await asyncio.wait_for(response, 600)
        assert sent[0]["status"] == 200
        bodies = [m["body"] for m in sent[1:] if m["body"] != b": waiting\n\n"]
        assert bodies[-2:] == [b"data: [DONE]\n\n", b""]
        assert len(bodies) == len(STEPS) + 3

    with_worker(test, model)


@over(is_gated=True, fails_at={"running": DeviceLostError("gone")})
async def test_a_lost_device_ends_the_worker_and_tells_everyone(worker, model):
    running, waiting = Job("running"), Job("waiting")
    await running.submit(worker)
    await waiting.submit(worker)
    model.may_step.release(2)
    assert isinstance(await running.end(), DeviceLostError)
    assert isinstance(await waiting.end(), UnavailableError)
    await ended(worker)
    assert isinstance(worker.failure, DeviceLostError)
    await is_refused(worker, "failed")


@over(fails_at={"running": Panic()})
async def test_a_panic_in_a_step_ends_the_worker_and_tells_the_request(worker, model):
    running = Job("running")
    await running.submit(worker)
    assert isinstance(await running.end(), UnavailableError)
    await ended(worker)
    assert isinstance(worker.failure, Panic)


@over(is_gated=True)
async def test_going_down_answers_those_who_wait_until_the_deadline(worker, model):
    running, waiting, late = Job("running"), Job("waiting"), Job("late")
    await begun(model, worker, running)
    await waiting.submit(worker)
    await late.submit(worker)
    worker.close()
    await is_refused(worker, "going down")
    model.may_step.release(len(STEPS))
    assert isinstance(await running.end(), Answer)
    worker.stop_all(UnavailableError("the server is going down"))
    model.may_step.release(1)
    assert isinstance(await waiting.end(), UnavailableError)
    assert isinstance(await late.end(), UnavailableError)


@over(is_gated=True)
async def test_a_turn_that_comes_as_the_server_ends_is_none(worker, model):
    running, waiting = Job("running"), Job("waiting")
    await begun(model, worker, running)
    await waiting.submit(worker)
    leave = worker._leave

    def leave_and_stop():
        leave()  # which gives the turn to the one that waits, and it has not seen that yet
        worker.stop_all(UnavailableError("the server is going down"))

    worker._leave = leave_and_stop
    await running.withdraw()
    worker._leave = leave
    model.may_step.release(1000)
    await is_told(waiting, "going down")
    assert worker.num_running == 0
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
    models = ModelPool(
        [ModelEntry("fake", Path("fake"))], lambda _: may_open.wait() and FakeModel(), 8
    )
    models.start()
    body = [{"type": "http.request", "body": b'{"prompt": "?"}', "more_body": False}]

    async def test():
        gone = asyncio.Event()

        async def receive():
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        app = make_app(models, Access())
        asking = asyncio.create_task(ask(app, "/v1/completions", {"prompt": "?"}, receive=receive))
        while not models.num_waiting:
            await asyncio.sleep(0)
        gone.set()
        assert await asking is None

    asyncio.run(test())
    may_open.set()
    models.close()
    models.join()
    assert 'requests_total{outcome="given_up"} 1' in models.metrics()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_requests_that_wait_for_the_model_are_answered_or_told_that_the_server_ends(is_stopped):
    model, may_open = FakeModel(), threading.Event()

    def opened(_):
        may_open.wait()
        return model

    async def test():
        worker, job = Worker(opened), Job("early")
        worker.start()
        await job.submit(worker)
        assert (worker.num_running, worker.num_waiting) == (0, 1)
        if is_stopped:
            worker.stop_all(UnavailableError("the server is going down"))
            await is_told(job, "going down")
        worker.close()
        may_open.set()
        if not is_stopped:
            assert isinstance(await job.end(), Answer)
        await ended(worker)

    asyncio.run(test())
    assert model.is_closed


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


TEXT = "".join(text for text, _ in STEPS)


@over(is_gated=True, parallel=2)
async def test_as_many_as_there_are_places_run_at_the_same_time(worker, model):
    first, second, third = Job("a"), Job("b"), Job("c")
    await begun(model, worker, first, second)
    await third.submit(worker)
    assert (worker.num_running, worker.num_waiting, worker.num_slots) == (2, 1, 2)
    model.may_step.release(1000)
    for one in (first, second, third):
        assert (await one.end()).text == TEXT
    assert worker.metrics.outcomes["finished"] == 3


@over(is_gated=True, parallel=2, fails_at={"bad": NonFiniteLogitsError("NaN")})
async def test_one_that_fails_ends_alone(worker, model):
    bad, good = Job("bad"), Job("good")
    await begun(model, worker, bad, good)
    model.may_step.release(1000)
    assert isinstance(await bad.end(), NonFiniteLogitsError)
    assert (await good.end()).text == TEXT
    assert (worker.state, worker.metrics.outcomes["failed"]) == ("ready", 1)


@over(is_gated=True, parallel=2)
async def test_one_that_is_cut_gives_its_place_to_the_next(worker, model):
    cut, other, waiting = Job("cut"), Job("other"), Job("waiting")
    await begun(model, worker, cut, other)
    await waiting.submit(worker)
    await cut.withdraw()
    model.may_step.release(1000)
    assert (await waiting.end()).text == TEXT
    assert (await other.end()).text == TEXT
    worker.close()
    await ended(worker)
    assert worker.metrics.outcomes["given_up"] == 1


@over()
async def test_a_client_that_reads_slowly_keeps_nobody_waiting(worker, model):
    may_read, sent = asyncio.Event(), []

    async def send(message):
        sent.append(message)
        await may_read.wait()

    response = asyncio.create_task(response_to(worker, "slow", stream=True)({}, never, send))
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


@over(is_gated=True, parallel=3, fails_at={"b": DeviceLostError("gone")})
async def test_a_lost_device_ends_the_worker_also_where_nobody_else_is_answered(worker, model):
    jobs = {name: Job(name) for name in ("a", "b", "c")}
    await begun(model, worker, *jobs.values())
    await jobs["a"].withdraw()
    await jobs["c"].withdraw()
    model.may_step.release(1000)
    assert isinstance(await jobs["b"].end(), DeviceLostError)
    await ended(worker)
    assert worker.state == "failed"
    assert isinstance(worker.failure, DeviceLostError)
    await is_refused(worker, "failed")


@over(is_gated=True, parallel=2, steps=MANY)
async def test_at_the_deadline_all_that_run_end_by_an_error_and_are_counted(worker, model):
    jobs = [Job(name) for name in "abc"]
    await begun(model, worker, *jobs[:2])
    await jobs[2].submit(worker)
    worker.close()
    model.may_step.release(2)
    while not any(one.news for one in jobs[:2]):
        await asyncio.sleep(0)
    worker.stop_all(UnavailableError("the server is going down"))
    model.may_step.release(1000)
    for one in jobs:
        assert isinstance(await one.end(), UnavailableError)
    await ended(worker)
    assert worker.metrics.outcomes["given_up"] == 2  # those that ran


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
    counts = BatchStats()
    counts.add([3, 1], [])
    counts.add([2], [10, 4])
    counts.add([], [64])
    now = {"num_running": 1, "num_waiting": 2, "num_slots": 3}
    families = Metrics().families(**now, counts={"shared": vars(counts)})
    text = exposition({"one": families})
    told = dict(line.split(" ") for line in text.splitlines() if line[0] != "#")
    assert float(told["coordgen_places"]) == 3
    shared = {"runs": 3, "requests": 6, "rows": 84, "decode_rows": 6, "prompt_tokens_beside": 14}
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


@over(is_gated=True)
async def test_other_clients_come_between_the_answers_of_one(worker, model):
    await begun(model, worker, Job("first", "a"))
    response = response_to(worker, "three", num=3, stream=True, temperature=1, seed=7)
    answering = asyncio.create_task(response({}, never, nothing))
    while worker.num_waiting < 3:
        await asyncio.sleep(0)
    await Job("other", "c").submit(worker)
    model.may_step.release(1000)
    worker.close()  # what waits is still answered
    await answering
    await ended(worker)
    assert model.ended == ["first", "three", "other", "three", "three"]
