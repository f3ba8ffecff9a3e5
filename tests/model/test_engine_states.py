"""Requests of one model in any order of events, each against plain decoding alone."""

import asyncio
import gc
import os
import threading
import warnings
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from coordgen_rs import Model, Regex
from coordgen_rs.errors import ForkedError, SessionClosedError
from interrupts import Tracer

LONG = "Passage 2: report on the Treerus Bridge by Treerus Lorinalia, on 9 March. " * 8
ASKED = (
    ("Hello, the report", {"max_new_tokens": 30}),
    (f"{LONG}Hello", {"max_new_tokens": 20}),
    (f"{LONG}The bridge", {"max_new_tokens": 24, "temperature": 0.9, "seed": 5}),
    ("The report", {"max_new_tokens": 40, "stop": "on"}),
    ("One", {"max_new_tokens": 20, "grammar": Regex("([a-f]{3} [0-9]{2};){2,6}")}),
    ("Hello, the", {"max_new_tokens": 120, "repetition_penalty": 1.3, "ignore_eos": True}),
    ("Once", {"max_new_tokens": 16, "namespace": "other", "drafts": False}),
)
MOST_OPEN = 8

numbers = st.integers(0, len(ASKED) - 1)
several = st.lists(numbers, min_size=1, max_size=5)


class NthPoint(Tracer):
    """Raises KeyboardInterrupt at the n-th point where Python looks for signals."""

    def __init__(self, number):
        super().__init__()
        self._left = number

    def _meets(self, *point):
        self._left -= 1
        if self._left == 0:
            self.is_done = True
            raise KeyboardInterrupt


def said(answer):
    return answer.text, answer.token_ids, answer.finish_reason


class Requests(RuleBasedStateMachine):
    """Streams of a model, which this thread reads piece by piece, and requests beside them."""

    bundle, expected = None, ()

    @initialize(parallel=st.integers(1, 3))
    def begin(self, parallel):
        self.open_model(parallel)

    def open_model(self, parallel):
        self.model = Model.open(self.bundle, parallel=parallel)
        self.streams = []

    def check(self, number, stream, *, is_whole):
        answer, (text, token_ids, finish_reason) = stream.answer, self.expected[number]
        if is_whole:
            assert said(answer) == (text, token_ids, finish_reason)
        assert text.startswith(answer.text)
        assert token_ids[: len(answer.token_ids)] == answer.token_ids

    def is_open(self):
        return bool(self.streams)

    @precondition(lambda self: len(self.streams) < MOST_OPEN)
    @rule(number=numbers, is_begun=st.booleans())
    def stream(self, number, is_begun):
        text, options = ASKED[number]
        stream = self.model.stream(text, **options)
        self.streams.append((number, stream))
        if is_begun:
            stream.events.ask()

    @precondition(is_open)
    @rule(which=st.integers(0, MOST_OPEN), num_pieces=st.integers(1, 40), by_step=st.booleans())
    def read(self, which, num_pieces, by_step):
        number, stream = self.streams[which % len(self.streams)]
        for _ in range(num_pieces):
            got = stream.step() if by_step else next(stream, None)
            self.check(number, stream, is_whole=got is None)
            if got is None:
                self.streams.remove((number, stream))
                break

    @precondition(is_open)
    @rule(which=st.integers(0, MOST_OPEN))
    def read_in_a_thread(self, which):
        number, stream = self.streams.pop(which % len(self.streams))
        thread = threading.Thread(target=lambda: [*stream])
        thread.start()
        thread.join()
        self.check(number, stream, is_whole=True)

    @precondition(is_open)
    @rule(which=st.integers(0, MOST_OPEN), is_dropped=st.booleans())
    def give_up(self, which, is_dropped):
        number, stream = self.streams.pop(which % len(self.streams))
        if is_dropped:
            return
        stream.close()
        assert next(stream, None) is None
        self.check(number, stream, is_whole=False)
        assert stream.answer.finish_reason is None or not stream.answer.text

    @precondition(is_open)
    @rule(which=st.integers(0, MOST_OPEN), point=st.integers(1, 120))
    def interrupt(self, which, point):
        number, stream = self.streams[which % len(self.streams)]
        with suppress(KeyboardInterrupt, StopIteration), NthPoint(point):
            while True:
                next(stream)
        self.check(number, stream, is_whole=False)

    @rule(number=numbers, point=st.integers(1, 400))
    def interrupt_an_answer(self, number, point):
        text, options = ASKED[number]
        with suppress(KeyboardInterrupt), NthPoint(point):
            assert said(self.model.generate(text, **options)) == self.expected[number]

    @rule(number=numbers)
    def ask(self, number):
        text, options = ASKED[number]
        assert said(self.model.generate(text, **options)) == self.expected[number]

    @rule(number=numbers, inner=numbers)
    def ask_in_a_callback(self, number, inner):
        (text, options), got = ASKED[number], []

        def on_read(_):
            if not got:
                question, asked = ASKED[inner]
                got.append(said(self.model.generate(question, **asked)))

        answer = self.model.generate(text, on_read=on_read, **options)
        assert said(answer) == self.expected[number]
        assert got in ([], [self.expected[inner]])

    @rule(number=numbers)
    def fail_in_a_callback(self, number):
        (text, options), read = ASKED[number], []

        def on_read(num_read):
            read.append(num_read)
            raise ZeroDivisionError

        try:
            answer = self.model.generate(text, on_read=on_read, **options)
        except ZeroDivisionError:
            assert len(read) == 1
        else:  # all was known
            assert (said(answer), read) == (self.expected[number], [])

    @rule(asked=several)
    def ask_many(self, asked):
        prompts = [ASKED[number][0] for number in asked]
        got = self.model.generate_many(prompts, max_new_tokens=5)
        assert [it.token_ids for it in got] == [self.short[number] for number in asked]

    @rule(asked=several, cancelled=st.integers(0, 5), after_s=st.sampled_from([0, 1e-4, 5e-3]))
    def ask_in_tasks(self, asked, cancelled, after_s):
        async def ask(number):
            text, options = ASKED[number]
            return said(await self.model.agenerate(text, **options))

        async def ask_all():
            tasks = [asyncio.create_task(ask(number)) for number in asked]
            await asyncio.sleep(after_s)
            if cancelled < len(tasks):
                tasks[cancelled].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        for place, (number, got) in enumerate(zip(asked, asyncio.run(ask_all()), strict=True)):
            is_cancelled = place == cancelled and isinstance(got, asyncio.CancelledError)
            assert is_cancelled or got == self.expected[number]

    @rule(number=numbers)
    def fork(self, number):
        text, options = ASKED[number]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            status = 1
            try:
                self.model.generate(text, **options)
            except ForkedError:
                self.model.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0

    @rule(parallel=st.integers(1, 3), is_dropped=st.booleans())
    def close(self, parallel, is_dropped):
        streams = self.streams
        if is_dropped:
            self.model = None
            for number, stream in streams:  # they keep it
                next(stream, None)
                self.check(number, stream, is_whole=False)
        else:
            self.model.close()
            for number, stream in streams:
                with suppress(SessionClosedError):  # of one that had not begun
                    assert next(stream, None) is None
                self.check(number, stream, is_whole=False)
            with pytest.raises(SessionClosedError):
                self.model.generate("Hello")
        del streams
        self.open_model(parallel)

    def teardown(self):
        if hasattr(self, "model"):
            self.streams.clear()
            self.model.close()
            gc.collect()
            for thread in threading.enumerate():
                if thread.name == "coordgen-engine":  # also those of models that were dropped
                    thread.join(600)
                    assert not thread.is_alive()


@pytest.fixture
def requests(bundle_of):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    Requests.bundle = bundle_of("embedded", "fp32")
    with Model.open(Requests.bundle, draft="plain") as model:
        Requests.expected = [said(model.generate(text, **options)) for text, options in ASKED]
        Requests.short = [model.generate(text, max_new_tokens=5).token_ids for text, _ in ASKED]
    return Requests


def test_requests_say_what_each_would_say_alone(requests):
    state_machine = requests.TestCase
    state_machine.settings = settings(max_examples=8, stateful_step_count=40, deadline=None)
    state_machine().runTest()
