"""Requests that take turns: streams that move between threads, with scripted steps and a model."""

import asyncio
import gc
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from coordgen_rs import Model, Stats, Step
from coordgen_rs.errors import CallOrderError, OptionError, SessionClosedError
from coordgen_rs.model.answer import Stream, whole
from coordgen_rs.model.making import Making
from coordgen_rs.model.options import AskedOptions
from coordgen_rs.model.turns import Turns
from coordgen_rs.text.stop import StopStrings
from coordgen_rs.threads.bell import Bell

PROMPTS = [f"Hello {number}" for number in range(8)]
LIMIT = 24


class Scripted:
    """Streams of one `Turns` whose steps say the letters of a text.

    Attributes:
        made: Which text made a step in which thread, in order.
        running: Texts whose steps are being made.
    """

    def __init__(self):
        self.released = False
        self.turns = Turns(None, None, "default", self._release)
        self.made, self.running, self.ended = [], [], []
        self.before_step = lambda text, number: None

    def _release(self):
        self.released = True

    def steps(self, text, stats):
        assert not self.running, "another request has the session"
        self.running.append(text)
        try:
            for number, letter in enumerate(text):
                self.before_step(text, number)
                self.made.append((text, threading.get_ident()))
                yield Step([ord(letter)], 0, sources=("target",))
            stats.finish_reason = "length"
        finally:
            self.running.remove(text)
            self.ended.append(text)

    def stream(self, text, stop=()):
        stats = Stats()
        turn = self.turns.turn(Said(self, text, stats))
        return Stream(turn.steps, stats, chr, StopStrings(stop), turn.made)


@dataclass
class Said:
    """A request whose answer is a text."""

    scripted: Scripted
    text: str
    stats: Stats
    namespace: str = "default"
    asked: AskedOptions = field(default_factory=AskedOptions)

    def steps(self, session):
        return self.scripted.steps(self.text, self.stats)


@pytest.fixture
def scripted():
    return Scripted()


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded", "fp32"), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def texts(model):
    return [model.generate(prompt, max_new_tokens=LIMIT).text for prompt in PROMPTS]


@pytest.mark.parametrize("num_threads", [1, 2, 6, 12])
def test_coroutines_read_their_streams_in_a_pool_with_fewer_threads_too(model, texts, num_threads):
    async def read(prompt):
        stream, text = model.stream(prompt, max_new_tokens=LIMIT), ""
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            text += piece
        return text

    async def read_all():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(num_threads))
        return await asyncio.gather(*map(read, PROMPTS))

    assert asyncio.run(read_all()) == texts


@pytest.mark.parametrize("num_threads", [1, 3, 40])
def test_starlette_streams_answers_side_by_side(model, texts, num_threads):
    anyio = pytest.importorskip("anyio")
    httpx = pytest.importorskip("httpx")
    applications = pytest.importorskip("starlette.applications")
    responses = pytest.importorskip("starlette.responses")
    routing = pytest.importorskip("starlette.routing")

    def answer(request):  # no coroutine: Starlette calls it in its pool, too
        stream = model.stream(PROMPTS[request.path_params["number"]], max_new_tokens=LIMIT)
        return responses.StreamingResponse(stream)

    async def ask_all():
        anyio.to_thread.current_default_thread_limiter().total_tokens = num_threads
        app = applications.Starlette(routes=[routing.Route("/{number:int}", answer)])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            asked = [client.get(f"/{number}") for number in range(len(PROMPTS))]
            return [response.text for response in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == texts


def test_many_threads_and_streams_give_every_stream_its_own_text(scripted):
    words = [f"{number}: {'abc' * number}" for number in range(30)]
    streams = [scripted.stream(word) for word in words]
    read = dict.fromkeys(words, "")
    with ThreadPoolExecutor(3) as pool:
        unread = dict(zip(words, streams, strict=True))
        while unread:
            pieces = {word: pool.submit(next, stream, None) for word, stream in unread.items()}
            for word, piece in pieces.items():
                if piece.result(600) is None:
                    del unread[word]
                else:
                    read[word] += piece.result()
    assert read == {word: word for word in words}
    assert sorted(scripted.ended) == sorted(words)


def test_who_waits_behind_a_stream_that_is_not_read_makes_its_steps(scripted):
    stream = scripted.stream("first")
    with ThreadPoolExecutor(1) as pool:
        assert next(stream) == "f"
        assert pool.submit(whole, scripted.stream("second")).result(600).text == "second"
    helper = scripted.made[-1][1]
    main = threading.get_ident()
    assert scripted.made[:5] == [("first", main)] + [("first", helper)] * 4
    assert stream.answer.text == "f"
    assert (stream.answer.token_ids, stream.answer.finish_reason) == ((ord("f"),), None)
    assert "".join(stream) == "irst"
    assert (stream.answer.text, stream.answer.finish_reason) == ("first", "length")


def test_steps_that_are_made_ahead_end_at_a_stop_string(scripted):
    stream = scripted.stream("one. two", stop=". ")
    with ThreadPoolExecutor(1) as pool:
        assert next(stream) == "o"
        pool.submit(whole, scripted.stream("x")).result(600)
    assert sum(text == "one. two" for text, _ in scripted.made) == len("one. ")
    assert "".join(stream) == "ne"
    assert (stream.answer.text, stream.answer.finish_reason) == ("one", "stop")
    assert len(stream.answer.token_ids) == stream.answer.stats.cut_at == len("one. ")


def test_what_goes_wrong_ahead_is_told_to_the_reader_alone(scripted):
    def before_step(text, number):
        if (text, number) == ("wrong", 2):
            raise OptionError("a step of it failed")

    scripted.before_step = before_step
    stream = scripted.stream("wrong")
    with ThreadPoolExecutor(1) as pool:
        assert next(stream) == "w"
        assert pool.submit(whole, scripted.stream("right")).result(600).text == "right"
    assert next(stream) == "r"
    for _ in range(2):
        with pytest.raises(OptionError, match="a step of it failed"):
            next(stream)
    assert (stream.answer.text, stream.answer.finish_reason) == ("wr", None)


def test_an_interrupt_ends_the_call_that_it_hits_and_what_that_was_making(scripted):
    def before_step(text, number):
        if (text, number) == ("other", 1):
            raise KeyboardInterrupt

    scripted.before_step = before_step
    other = scripted.stream("other")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, other).result(600) == "o"
    with pytest.raises(KeyboardInterrupt):
        whole(scripted.stream("mine"))
    with pytest.raises(CallOrderError, match="broken off"):
        next(other)
    assert whole(scripted.stream("later")).text == "later"


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_a_stream_that_is_given_up_while_others_wait_lets_them_begin(scripted, how):
    at_step, may_step = threading.Event(), threading.Event()

    def before_step(text, number):
        if (text, number) == ("first", 1):
            at_step.set()
            may_step.wait()

    scripted.before_step = before_step
    stream = scripted.stream("first")
    assert next(stream) == "f"
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(whole, scripted.stream("second"))
        at_step.wait()  # the other thread is making a step
        if how == "closed":
            closing = threading.Thread(target=stream.close)
            closing.start()
            while not stream._making.is_given_up:
                pass
            may_step.set()
            closing.join()
        else:
            del stream
            gc.collect()
            may_step.set()
        assert second.result(600).text == "second"
    assert [text for text, _ in scripted.made].count("first") == 2
    assert scripted.ended == ["first", "second"]


def test_a_stream_that_waits_for_its_turn_can_be_closed(scripted):
    at_step, may_step = threading.Event(), threading.Event()

    def before_step(text, number):
        at_step.set()
        may_step.wait()

    scripted.before_step = before_step
    running, waiting = scripted.stream("running"), scripted.stream("waiting")
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(next, running)
        at_step.wait()
        unread = pool.submit(next, waiting, None)
        waiting.close()
        assert unread.result(600) is None
        may_step.set()
        assert read.result(600) == "r"
    assert "".join(running) == "unning"
    assert scripted.ended == ["running"]


def test_the_main_thread_is_told_of_the_stream_that_it_has_open(scripted):
    stream = scripted.stream("first")
    assert next(stream) == "f"
    with pytest.raises(CallOrderError, match="exhaust it or close it"):
        next(scripted.stream("second"))
    assert "".join(stream) == "irst"
    assert whole(scripted.stream("third")).text == "third"


def test_tasks_of_the_main_thread_do_not_stop_each_other(scripted):
    async def read(text):
        found = ""
        for piece in scripted.stream(text):
            found += piece
            await asyncio.sleep(0)
        return found

    async def read_all():
        return await asyncio.gather(*map(read, ("one", "two", "three")))

    assert asyncio.run(read_all()) == ["one", "two", "three"]


def test_a_stream_that_the_main_thread_handed_on_does_not_stop_it(scripted):
    stream = scripted.stream("first")
    assert next(stream) == "f"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, stream).result(600) == "i"
        assert whole(scripted.stream("second")).text == "second"
        assert pool.submit("".join, stream).result(600) == "rst"


@pytest.mark.parametrize("where", ["main", "pool"])
@pytest.mark.parametrize("what", ["the stream itself", "another stream", "close"])
def test_a_step_cannot_wait_for_itself(scripted, where, what):
    def before_step(text, number):
        if (text, number) == ("first", 1):
            if what == "close":
                scripted.turns.close()
            else:
                next(stream if what == "the stream itself" else scripted.stream("second"))

    scripted.before_step = before_step
    stream = scripted.stream("first")
    with ThreadPoolExecutor(1) as pool:
        read = (lambda: list(stream)) if where == "main" else pool.submit(list, stream).result
        with pytest.raises(CallOrderError, match=r"within a step|its own next step|has a stream"):
            read()
    assert scripted.ended == ["first"]
    assert not scripted.released


def test_closing_ends_the_own_stream_and_makes_that_of_another_thread_to_its_end(scripted):
    with ThreadPoolExecutor(1) as pool:
        others = scripted.stream("others")
        assert pool.submit(next, others).result(600) == "o"
        scripted.turns.close()
        assert scripted.released
        assert pool.submit("".join, others).result(600) == "thers"
    with pytest.raises(SessionClosedError):
        next(scripted.stream("late"))


def test_requests_that_wait_begin_in_the_order_in_which_they_came(scripted):
    at_step, may_step = threading.Event(), threading.Event()

    def before_step(text, number):
        if text == "first" and not number:
            at_step.set()
            may_step.wait()

    scripted.before_step = before_step
    words = ["first", *(f"word {number}" for number in range(9))]
    with ThreadPoolExecutor(len(words)) as pool:
        asked = []
        for number, word in enumerate(words):
            asked.append(pool.submit(whole, scripted.stream(word)))
            while len(scripted.turns._queue) <= number or not at_step.wait(600):
                pass
        may_step.set()
        assert [one.result(600).text for one in asked] == words
    assert scripted.ended == words


def taken(making):
    item = making.peek()
    making.drop()
    return item


class Overtaken(deque):
    """Items of a `Making` that a helper finishes just when its reader has found none."""

    def __init__(self, making):
        self._making = making

    def __getitem__(self, number):
        try:
            return super().__getitem__(number)
        except IndexError:
            while self._making.make():
                pass
            raise


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_reader_that_finds_nothing_gets_what_a_helper_makes_at_that_moment(ends_well):
    def items():
        yield from "ab"
        if not ends_well:
            raise OptionError("the last step failed")

    making = Making(items(), Bell())
    making._made = Overtaken(making)
    assert [taken(making), taken(making)] == ["a", "b"]
    for _ in range(2):
        with pytest.raises(StopIteration if ends_well else OptionError):
            making.peek()


def test_an_end_that_goes_wrong_is_told_to_the_reader_and_keeps_nobody_waiting():
    def items():
        try:
            yield "a"
            making.close()
            yield "b"
        finally:
            raise OptionError("the request cannot be kept")

    making = Making(items(), Bell())
    assert taken(making) == "a"
    assert making.make()
    assert making.maker is None
    with pytest.raises(OptionError, match="cannot be kept"):
        making.peek()
    making.close()
