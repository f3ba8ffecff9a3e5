"""The engine: streams that move between threads, over scripted steps and over a model."""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import ref

import pytest

from coordgen_rs import Model, Stats, Step
from coordgen_rs.errors import CallOrderError, OptionError, SessionClosedError
from coordgen_rs.model.answer import detokenized
from coordgen_rs.model.engine import Engine
from coordgen_rs.model.options import RequestOptions, request_options
from coordgen_rs.model.request import MOST_AHEAD, Events, ModelRequest
from coordgen_rs.model.stream import Stream, collect
from coordgen_rs.text.stop import StopStrings

PROMPTS = [f"Hello {number}" for number in range(8)]
LIMIT = 24


class Scripted:
    """Streams of one engine whose steps say the letters of a text.

    It is also the slots where they are answered: one.

    Attributes:
        made: Which text made a step in which thread, in order.
        running: Texts whose steps are being made.
        before_step: Called before each step with its text and number.
    """

    def __init__(self):
        self.released = False
        self.engine = Engine(self, None, self._release)
        self.engine.begin(self)
        self.made, self.running, self.ended = [], [], []
        self.before_step = lambda text, number: None
        self._request = None

    def _release(self):
        self.released = True

    @property
    def is_full(self):
        return self._request is not None

    def is_being_read(self, request):
        return False

    def taken(self, request):
        self._request = request
        return self

    def begins(self, request):
        assert request is self._request

    def leave(self, request):
        if request is self._request:
            self._request = None

    def run(self):
        return False

    def steps(self, text, stats, on_read):
        assert not self.running, "another request has the session"
        self.running.append(text)
        try:
            on_read(1)
            for number, letter in enumerate(text):
                self.before_step(text, number)
                self.made.append((text, threading.current_thread().name))
                yield Step([ord(letter)], 0, sources=("target",))
            stats.finish_reason = "length"
        finally:
            self.running.remove(text)
            self.ended.append(text)

    def stream(self, text, stop=(), on_read=None):
        stats = Stats()
        request = Said(
            options=request_options("stream", RequestOptions, {"on_read": on_read}),
            prompt_ids=text,
            namespace="default",
            drafters=None,
            sampling=None,
            grammar=None,
            prediction=None,
            reuse_prefix=True,
            stats=stats,
            detokenize=partial(detokenized, stats=stats, decode=chr, stop=StopStrings(stop)),
        )
        submit = partial(self.engine.submit, request)
        events = Events(submit, self.engine.tell, self.engine.check)
        return Stream(events, stats, on_read=on_read)


class Said(ModelRequest):
    """A request whose answer is its prompt, a text."""

    def steps(self, session):
        return session.steps(self.prompt_ids, self.stats, self.on_read)


class Gate:
    """Holds a step of a text until it is opened.

    Attributes:
        is_reached: Set when the step is about to be made.
    """

    def __init__(self, scripted, text, number):
        self.is_reached, self._is_open = threading.Event(), threading.Event()

        def before_step(*step):
            if step == (text, number):
                self.is_reached.set()
                assert self._is_open.wait(600)

        scripted.before_step = before_step

    def open(self):
        self._is_open.set()


@pytest.fixture
def scripted():
    scripted = Scripted()
    yield scripted
    scripted.engine.close()
    assert scripted.released


@pytest.fixture(scope="module")
def model(bundle_of):
    with Model.open(bundle_of("embedded", "fp32")) as model:
        yield model


@pytest.fixture(scope="module")
def texts(model):
    return [model.generate(prompt, max_new_tokens=LIMIT).text for prompt in PROMPTS]


@pytest.mark.parametrize("num_threads", [1, 6])
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


@pytest.mark.parametrize("num_threads", [1, 40])
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


def test_a_stream_that_is_not_read_keeps_nobody_waiting(scripted):
    stream = scripted.stream("first" * MOST_AHEAD)
    assert next(stream) == "f"
    assert collect(scripted.stream("second")).text == "second"
    assert {name for _, name in scripted.made} == {"coordgen-engine"}
    assert stream.answer.text == "f"
    assert (stream.answer.token_ids, stream.answer.finish_reason) == ((ord("f"),), None)
    assert "".join(stream) == ("first" * MOST_AHEAD)[1:]
    assert (len(stream.answer.text), stream.answer.finish_reason) == (5 * MOST_AHEAD, "length")


def test_a_request_is_no_further_ahead_of_its_reader_than_told(scripted):
    text = "ab" * 2 * MOST_AHEAD
    stream = scripted.stream(text)
    read = next(stream)
    while len(scripted.made) < MOST_AHEAD:
        time.sleep(0)
    for piece in stream:
        read += piece
        assert len(scripted.made) <= len(read) + MOST_AHEAD + 1
    assert read == text


def test_steps_that_are_made_ahead_end_at_a_stop_string(scripted):
    stream = scripted.stream("one. two", stop=". ")
    assert next(stream) == "o"
    collect(scripted.stream("x"))
    assert sum(text == "one. two" for text, _ in scripted.made) == len("one. ")
    assert "".join(stream) == "ne"
    assert (stream.answer.text, stream.answer.finish_reason) == ("one", "stop")
    assert len(stream.answer.token_ids) == stream.answer.stats.cut_at == len("one. ")


@pytest.mark.parametrize("error", [OptionError("a step of it failed"), SystemExit(3)])
def test_what_goes_wrong_ahead_is_told_to_the_reader_alone(scripted, error):
    def before_step(text, number):
        if (text, number) == ("wrong", 2):
            raise error

    scripted.before_step = before_step
    stream = scripted.stream("wrong")
    assert next(stream) == "w"
    assert collect(scripted.stream("right")).text == "right"
    assert next(stream) == "r"
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            next(stream)
    assert (stream.answer.text, stream.answer.finish_reason) == ("wr", None)


@pytest.mark.parametrize("error", [OptionError("not now"), KeyboardInterrupt()])
def test_a_callback_that_fails_ends_its_own_request(scripted, error):
    def on_read(num_read):
        assert num_read == 1
        raise error

    stream, gate = scripted.stream("mine", on_read=on_read), Gate(scripted, "mine", 0)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(collect, scripted.stream("other"))
        with pytest.raises(type(error)):
            next(stream)
        gate.open()
        assert other.result(600).text == "other"
    with pytest.raises(OptionError if isinstance(error, OptionError) else CallOrderError):
        next(stream)
    assert [text for text, _ in scripted.made].count("mine") <= 1


def test_a_callback_that_finds_nothing_is_no_end(scripted):
    stream = scripted.stream("mine", on_read=lambda _: next(iter(())))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(stream)


def test_a_callback_may_ask_the_model(scripted):
    said = []
    stream = scripted.stream("outer", on_read=lambda _: said.append(collect(inner).text))
    inner = scripted.stream("inner")
    assert "".join(stream) == "outer"
    assert said == ["inner"]


@pytest.mark.parametrize("how", ["closed", "dropped", "cycle"])
def test_a_stream_that_is_given_up_lets_others_begin(scripted, how):
    gate = Gate(scripted, "first", 1)
    stream = scripted.stream("first")
    assert next(stream) == "f"
    assert gate.is_reached.wait(600)  # the engine is making a step
    if how == "closed":
        stream.close()
    elif how == "cycle":
        stream.itself = stream
    del stream
    gc.collect()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(collect, scripted.stream("second"))
        gate.open()
        assert second.result(600).text == "second"
    assert [text for text, _ in scripted.made].count("first") == 2
    assert scripted.ended == ["first", "second"]


def test_a_stream_that_waits_for_its_turn_can_be_closed(scripted):
    gate = Gate(scripted, "running", 0)
    running, waiting = scripted.stream("running"), scripted.stream("waiting")
    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(next, running)
        assert gate.is_reached.wait(600)
        unread = pool.submit(next, waiting, None)
        waiting.close()
        assert unread.result(600) is None
        gate.open()
        assert begun.result(600) == "r"
    assert "".join(running) == "unning"
    assert scripted.ended == ["running"]


def test_streams_are_read_within_each_other(scripted):
    read = ""
    for outer in scripted.stream("ab"):
        for middle in scripted.stream("cd"):
            read += outer + middle + collect(scripted.stream("e")).text
    assert read == "aceadebcebde"


@pytest.mark.parametrize("what", ["close", "ask"])
def test_a_step_cannot_wait_for_its_own_engine(scripted, what):
    def before_step(text, number):
        if text == "first":
            scripted.engine.close() if what == "close" else next(scripted.stream("inner"))

    scripted.before_step = before_step
    with pytest.raises(CallOrderError, match="within a step"):
        list(scripted.stream("first"))
    assert not scripted.released
    assert collect(scripted.stream("second")).text == "second"


def test_closing_ends_the_own_stream_and_makes_that_of_another_thread_to_its_end(scripted):
    gate = Gate(scripted, "others", 1)
    with ThreadPoolExecutor(1) as pool:
        others, mine = scripted.stream("others"), scripted.stream("mine")
        assert pool.submit(next, others).result(600) == "o"

        def closed():
            mine.events.ask()
            scripted.engine.close()

        closing = threading.Thread(target=closed)
        closing.start()
        while not scripted.engine.is_closing:
            time.sleep(0)
        with pytest.raises(SessionClosedError):
            next(scripted.stream("late"))
        gate.open()
        closing.join()
        assert scripted.released
        assert pool.submit("".join, others).result(600) == "thers"
    assert list(mine) == []
    assert scripted.ended == ["others"]


def test_closing_ends_the_own_stream_also_where_all_of_it_was_made(scripted):
    stream = scripted.stream("first")
    assert next(stream) == "f"
    while len(scripted.made) < len("first"):
        time.sleep(0)
    scripted.engine.close()
    assert list(stream) == []
    assert stream.answer.finish_reason is None


def test_any_thread_may_close_it_again(scripted):
    scripted.engine.close()
    with ThreadPoolExecutor(1) as pool:  # whose thread may get the number of the engine's
        pool.submit(scripted.engine.close).result(600)
    assert scripted.released


def test_what_is_released_badly_is_told_by_closing(scripted):
    def release():
        scripted.released = True
        raise OSError("the history cannot be written")

    scripted.engine._release = release
    with pytest.raises(OSError, match="cannot be written"):
        scripted.engine.close()
    scripted.engine.close()


def test_an_engine_that_fails_tells_all_its_readers(scripted):
    def run():
        raise MemoryError

    scripted.run = run
    stream = scripted.stream("a" * 2 * MOST_AHEAD)  # it waits for its reader half-way
    assert next(stream) == "a"
    while not scripted.released:
        time.sleep(0)
    with pytest.raises(MemoryError):
        list(stream)
    with pytest.raises(SessionClosedError, match="has failed: MemoryError"):
        next(scripted.stream("late"))
    with pytest.raises(MemoryError):
        scripted.engine.close()


def test_requests_that_wait_begin_in_the_order_in_which_they_came(scripted):
    gate = Gate(scripted, "first", 0)
    words = ["first", *(f"word {number}" for number in range(9))]
    streams = [scripted.stream(word) for word in words]
    for stream in streams:
        stream.events.ask()
    assert gate.is_reached.wait(600)
    gate.open()
    assert [collect(stream).text for stream in streams] == words
    assert scripted.ended == words


def test_a_model_that_is_dropped_is_freed_at_once(bundle_of):
    gc.collect()
    gc.disable()
    try:
        model = Model.open(bundle_of("embedded", "fp32"))
        assert model.generate("Hello", max_new_tokens=2).token_ids
        session, thread = ref(model._session), model._engine._thread
        model.close()
        del model
        thread.join(600)  # it holds the session until it has returned
        assert session() is None
    finally:
        gc.enable()
