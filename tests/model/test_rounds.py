"""Requests of one model that are answered together: threads, streams in one thread, and asyncio."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordgen_rs import Model, Regex
from coordgen_rs.drafting import namespaces
from coordgen_rs.errors import (
    CallOrderError,
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    PromptTooLongError,
    SessionClosedError,
)
from coordgen_rs.model.answer import Stream
from coordgen_rs.model.async_stream import AsyncStream
from coordgen_rs.model.places import Places
from coordgen_rs.model.rounds import Member, Rounds
from coordgen_rs.target.batch import batch as batch_module
from coordgen_rs.target.batch.batch import Batch
from coordgen_rs.target.batch.sequence import Sequence

LIMIT = 24
OPTIONS = {"max_new_tokens": LIMIT, "ignore_eos": True}
LONG = "Passage 2: report on the Treerus Bridge by Treerus Lorinalia, on 9 March. " * 10
PROMPTS = [f"{LONG if number % 3 else ''}Hello {number}, the report" for number in range(9)]


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture(scope="module")
def answers(bundle):
    """What each prompt is answered alone."""
    with Model.open(bundle) as model:
        return {prompt: _said(model.generate(prompt, **OPTIONS)) for prompt in PROMPTS}


@pytest.fixture
def model(bundle):
    with Model.open(bundle, parallel=3) as model:
        assert model.parallel == 3
        assert model.why_alone is None
        yield model


@pytest.fixture
def shared(monkeypatch):
    """How many requests took part in each run, in order."""
    taking_part, compute = [], Batch._compute

    def counted(self, parts):
        taking_part.append(len(parts))
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", counted)
    return taking_part


def _said(answer):
    return answer.text, answer.token_ids, answer.finish_reason


def test_threads_run_together(model, answers, shared):
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda it: model.generate(it, **OPTIONS), PROMPTS))
    assert [_said(answer) for answer in got] == list(answers.values())
    assert max(shared) == 3
    runs = model.runs
    assert (runs.runs, runs.requests) == (len(shared), sum(shared))
    assert runs.rows > runs.decode_rows > 0
    assert runs.prompt_tokens_beside > 0


def test_streams_of_one_thread_take_turns_with_pieces(model, answers, shared):
    streams = [model.stream(prompt, **OPTIONS) for prompt in PROMPTS[:3]]
    is_open = [*streams]
    while is_open:
        is_open = [stream for stream in is_open if stream.step() is not None]
    assert [_said(it.answer) for it in streams] == [answers[prompt] for prompt in PROMPTS[:3]]
    assert max(shared) == 3
    assert len(shared) < sum(len(it.answer.token_ids) for it in streams)


def test_more_streams_than_places_are_all_answered(model, answers):
    streams = [model.stream(prompt, **OPTIONS) for prompt in PROMPTS]
    first = [next(stream) for stream in streams]  # the last of them have waited for the first
    texts = ["".join([piece, *stream]) for piece, stream in zip(first, streams, strict=True)]
    assert texts == [answers[prompt][0] for prompt in PROMPTS]


def test_nobody_waits_for_a_stream_that_nobody_reads(model, answers):
    slow = model.stream(PROMPTS[0], **OPTIONS)
    begun = next(slow)
    for prompt in PROMPTS[1:]:
        assert _said(model.generate(prompt, **OPTIONS)) == answers[prompt]
    assert "".join([begun, *slow]) == answers[PROMPTS[0]][0]


def test_dropped_and_closed_streams_leave_their_places(model, answers):
    for _ in range(5):
        dropped = model.stream(PROMPTS[1], **OPTIONS)
        next(dropped)
        del dropped
        gc.collect()
        with model.stream(PROMPTS[2], **OPTIONS) as closed:
            next(closed)
    assert _said(model.generate(PROMPTS[4], **OPTIONS)) == answers[PROMPTS[4]]
    assert all(place.owner is None for place in model._turns._places._all)


def test_sampled_and_plain_requests_beside_each_other(model, bundle):
    asked = [
        {"temperature": 0.9, "top_p": 0.9, "seed": 4},
        {"drafts": False},
        {"repetition_penalty": 1.2, "stop": "."},
        {"temperature": 1.2, "seed": 9, "min_p": 0.05},
    ] * 3
    with Model.open(bundle) as alone:
        expected = [
            _said(
                alone.generate(PROMPTS[number % 5], max_new_tokens=40, ignore_eos=True, **options)
            )
            for number, options in enumerate(asked)
        ]
    with ThreadPoolExecutor(len(asked)) as pool:
        waiting = [
            pool.submit(
                model.generate, PROMPTS[number % 5], max_new_tokens=40, ignore_eos=True, **options
            )
            for number, options in enumerate(asked)
        ]
        assert [_said(it.result()) for it in waiting] == expected


def test_equal_prompts_are_read_once(model, shared):
    prompts = [f"{LONG}And {number}" for number in range(3)]
    streams = [model.stream(prompt, max_new_tokens=4, ignore_eos=True) for prompt in prompts]
    for stream in streams:
        next(stream)
    stats = [stream.answer.stats for stream in streams]
    common = len(model.tokenizer.encode(LONG)) - 2
    assert stats[0].reused_tokens == 0
    assert all(it.reused_tokens >= common for it in stats[1:])


def test_nothing_is_reused_across_namespaces(model, answers):
    for number in range(6):
        options = {"namespace": f"user {number}", **OPTIONS}
        answer = model.generate(PROMPTS[1], **options)
        assert _said(answer) == answers[PROMPTS[1]]
        assert answer.stats.reused_tokens == 0
    again = model.generate(PROMPTS[1], namespace="user 5", **OPTIONS)
    assert again.stats.reused_tokens > 0


def test_a_dialogue_goes_on_where_it_was(model):
    text = LONG
    for number in range(4):
        answer = model.generate(text, **OPTIONS)
        if number:
            assert answer.stats.reused_tokens >= len(model.tokenizer.encode(text)) - LIMIT - 8
        text += answer.text + " And then"
        model.generate(f"another {number} " * 20, max_new_tokens=4, ignore_eos=True)


def test_what_was_overwritten_is_put_back(bundle):
    with Model.open(bundle, parallel=2, prefix_memory=1 << 26) as model:
        asked = [f"{name} {LONG}" for name in ("one", "two", "three", "four")]
        for prompt in asked:
            model.generate(prompt, max_new_tokens=4, ignore_eos=True)
        again = model.generate(asked[0], max_new_tokens=4, ignore_eos=True)
        assert again.stats.reused_tokens >= len(model.tokenizer.encode(asked[0])) - 2


def test_a_request_that_fails_ends_alone(model, answers, monkeypatch):
    verified, bad = Sequence.has_verified, model.tokenizer.encode(PROMPTS[1])

    def spoiled(self, inputs, logits):
        if self._token_ids[: len(bad) - 1].tolist() == bad[:-1].tolist():
            logits[:] = float("nan")
        verified(self, inputs, logits)

    monkeypatch.setattr(Sequence, "has_verified", spoiled)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(model.generate, it, **OPTIONS) for it in PROMPTS[:3]]
        with pytest.raises(NonFiniteLogitsError):
            waiting[1].result()
        for number in (0, 2):
            assert _said(waiting[number].result()) == answers[PROMPTS[number]]


def test_an_interrupt_loses_nothing(model, answers, monkeypatch):
    streams = [model.stream(prompt, **OPTIONS) for prompt in PROMPTS[:3]]
    first = [next(stream) for stream in streams]
    compute, left = Batch._compute, [1]

    def interrupted(self, parts):
        if left:
            left.pop()
            raise KeyboardInterrupt
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", interrupted)
    pieces = [[piece] for piece in first]
    with pytest.raises(KeyboardInterrupt):
        pieces[0] += streams[0]
    for got, stream in zip(pieces, streams, strict=True):
        got += stream
    assert not left
    texts = ["".join(stream.answer.text) for stream in streams]
    assert texts == [answers[prompt][0] for prompt in PROMPTS[:3]]


def test_reading_within_a_step_is_refused(model):
    other = model.stream(PROMPTS[0], max_new_tokens=4, ignore_eos=True)
    seen = []

    def on_read(_):
        try:
            next(other)
        except CallOrderError as error:
            seen.append(error)

    model.generate(LONG, max_new_tokens=2, on_read=on_read)
    assert seen
    assert "".join(other)


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_closing_within_a_step_is_refused_and_ends_nothing(bundle, answers, parallel, is_async):
    refused = []

    def on_read(_):
        try:
            model.close()
        except CallOrderError as error:
            refused.append(error)

    with Model.open(bundle, parallel=parallel) as model:
        for _ in range(2):
            if is_async:
                answer = asyncio.run(model.agenerate(PROMPTS[0], on_read=on_read, **OPTIONS))
            else:
                answer = model.generate(PROMPTS[0], on_read=on_read, **OPTIONS)
            assert _said(answer) == answers[PROMPTS[0]]
    assert refused


def test_a_reader_whose_making_is_interrupted_is_dropped_in_silence(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    for kind in (Member, AsyncStream):
        del_later = kind.__new__(kind)  # Ctrl-C came before the first line of `__init__`
        del del_later
    assert told == []


def test_closing_ends_ones_own_streams_and_answers_those_of_others(bundle, answers):
    model = Model.open(bundle, parallel=3)
    own = model.stream(PROMPTS[0], **OPTIONS)
    next(own)
    begun, got = threading.Event(), []

    def read():
        stream = model.stream(PROMPTS[1], **OPTIONS)
        pieces = [next(stream)]
        begun.set()
        got.append("".join([*pieces, *stream]))

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(600)
    model.close()
    thread.join()
    assert got == [answers[PROMPTS[1]][0]]
    with pytest.raises(SessionClosedError):
        model.generate(PROMPTS[2])


def test_many_prompts_in_order(model, answers, shared):
    told = []
    got = model.generate_many(PROMPTS, **OPTIONS, on_progress=lambda *numbers: told.append(numbers))
    assert [_said(answer) for answer in got] == list(answers.values())
    assert told == [(number + 1, len(PROMPTS)) for number in range(len(PROMPTS))]
    assert max(shared) == 3
    assert model.generate_many([]) == []


def test_errors_of_many_are_raised_or_kept(model, answers):
    prompts = [PROMPTS[0], "word " * 3000, PROMPTS[2], ""]
    with pytest.raises(PromptTooLongError) as raised:
        model.generate_many(prompts, **OPTIONS)
    assert raised.value.__notes__ == ["by prompt 2 of 4"]
    got = model.generate_many(prompts, **OPTIONS, keep_errors=True)
    assert _said(got[0]) == answers[PROMPTS[0]]
    assert isinstance(got[1], PromptTooLongError)
    assert _said(got[2]) == answers[PROMPTS[2]]
    assert isinstance(got[3], EmptyPromptError) or got[3].text
    for wrong in ("one text", b"bytes", {"a": 1}, 5, None):
        with pytest.raises(OptionError, match="texts must be a list"):
            model.generate_many(wrong)
    with pytest.raises(OptionError, match=r"texts\[1\] must be a string"):
        model.generate_many(["a", None], keep_errors=True)
    with pytest.raises(OptionError, match="max_new_tokens"):
        model.generate_many(["a"], max_new_tokens=-1, keep_errors=True)


@pytest.mark.parametrize("parallel", [1, 3])
def test_tasks_await_answers(bundle, answers, parallel):
    async def ask():
        before = threading.active_count()
        tasks = [asyncio.create_task(model.agenerate(it, **OPTIONS)) for it in PROMPTS]
        await asyncio.sleep(0.01)
        assert threading.active_count() <= before + 2  # one may be ending while the next begins
        return await asyncio.gather(*tasks)

    with Model.open(bundle, parallel=parallel) as model:
        for _ in range(2):
            got = asyncio.run(ask())
            assert [_said(answer) for answer in got] == list(answers.values())


def test_pieces_are_awaited(model, answers):
    async def read(prompt):
        pieces = []
        async with model.astream(prompt, **OPTIONS) as stream:
            async for piece in stream:
                pieces.append(piece)
        assert _said(stream.answer) == answers[prompt]
        return "".join(pieces)

    async def read_all():
        return await asyncio.gather(*map(read, PROMPTS[:5]))

    assert asyncio.run(read_all()) == [answers[prompt][0] for prompt in PROMPTS[:5]]


def test_a_cancelled_task_leaves_its_place(model, answers):
    begun, cancelled = threading.Event(), threading.Event()

    def read(_):
        begun.set()
        cancelled.wait(600)

    async def cancel_one():
        task = asyncio.create_task(
            model.agenerate(PROMPTS[1], on_read=read, max_new_tokens=100_000, ignore_eos=True)
        )
        others = [asyncio.create_task(model.agenerate(it, **OPTIONS)) for it in PROMPTS]
        await asyncio.to_thread(begun.wait, 600)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.gather(*others)

    got = asyncio.run(cancel_one())
    assert [_said(answer) for answer in got] == list(answers.values())
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]


def test_errors_are_awaited(model):
    async def ask():
        return await model.agenerate("word " * 3000)

    with pytest.raises(PromptTooLongError):
        asyncio.run(ask())
    with pytest.raises(OptionError, match="no option"):
        asyncio.run(model.agenerate("Hello", wrong=1))


def test_a_model_that_cannot_says_why(bundle, bundle_of):
    with Model.open(bundle, parallel=4, switch="just_in_time") as model:
        assert (model.parallel, model.runs) == (1, None)
        assert "one by one" in model.why_alone
        assert model.generate("Hello", max_new_tokens=2).text
    with Model.open(bundle, parallel=None) as model:
        assert 1 <= model.parallel <= 4
    for wrong in (0, -1, "4", True, 65, 10**30):
        with pytest.raises(OptionError, match="parallel"):
            Model.open(bundle, parallel=wrong)


def test_requests_of_one_grammar_follow_it_each_for_itself(model, bundle):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    options = {"grammar": Regex("([a-f]{3} [0-9]{2};){2,6}"), "max_new_tokens": 40}
    asked = [options | {"temperature": 1.0, "seed": number} for number in range(6)]
    with Model.open(bundle) as alone:
        expected = [_said(alone.generate(PROMPTS[0], **one)) for one in asked]
    for _ in range(2):  # the second time with matchers that have followed answers
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(model.generate, PROMPTS[0], **one) for one in asked]
            assert [_said(it.result()) for it in waiting] == expected
    assert len({text for text, *_ in expected}) > 1


def test_what_cannot_begin_leaves_its_place(model, answers, monkeypatch):
    of, left = type(model._drafters).memory_of, [1] * 4

    def failing(self, *arguments):
        if left:
            left.pop()
            raise OptionError("no drafter")
        return of(self, *arguments)

    monkeypatch.setattr(type(model._drafters), "memory_of", failing)
    for _ in range(4):
        with pytest.raises(OptionError, match="no drafter"):
            model.generate(PROMPTS[0], **OPTIONS)
    assert _said(model.generate(PROMPTS[0], **OPTIONS)) == answers[PROMPTS[0]]


def test_what_was_decoded_alone_is_no_gain_of_shared_steps(model, monkeypatch):
    told, batch = [], model._turns._batch

    class Told:
        def __init__(self, batcher):
            self._batcher = batcher

        def took(self, tokens, cost):
            told.append(tokens)
            self._batcher.took(tokens, cost)

        def share(self, decoding, reading):
            return self._batcher.share(decoding, reading)

    monkeypatch.setattr(batch, "_batcher", Told(batch._batcher))
    with model.stream(PROMPTS[0], max_new_tokens=200, ignore_eos=True) as stream:
        next(stream)
        model.generate(PROMPTS[3], **OPTIONS, namespace="other")
        for _ in range(30):
            stream.step()
        model.generate(PROMPTS[6], **OPTIONS, namespace="other")
    most = sum(inputs.rows for inputs in (it.step_inputs[-1] for it in batch.sequences))
    assert told
    assert max(told) <= most


def test_an_interrupt_between_two_results_loses_nothing(model, answers, monkeypatch):
    streams = [model.stream(prompt, **OPTIONS) for prompt in (PROMPTS[0], PROMPTS[3], PROMPTS[6])]
    pieces = [[next(stream)] for stream in streams]
    verified, left = Sequence.has_verified, [1, 1]

    def interrupted(self, inputs, logits):
        verified(self, inputs, logits)
        if left and left.pop() and not left:
            raise KeyboardInterrupt

    monkeypatch.setattr(Sequence, "has_verified", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pieces[1] += streams[1]
    for got, stream in zip(pieces, streams, strict=True):
        got += stream
    texts = [stream.answer.text for stream in streams]
    assert texts == [answers[prompt][0] for prompt in (PROMPTS[0], PROMPTS[3], PROMPTS[6])]


def test_a_stream_that_is_dropped_before_its_rows_are_filled(model, answers, monkeypatch):
    streams = [model.stream(prompt, **OPTIONS) for prompt in (PROMPTS[0], PROMPTS[3])]
    pieces = [[next(stream)] for stream in streams]
    held, of = [model.stream(LONG, **OPTIONS, namespace="other")], Batch._of
    held[0].join()

    def dropping(self, num_rows):
        if held and any(sequence.rest for sequence in self.sequences):
            held.clear()
        return of(self, num_rows)

    monkeypatch.setattr(Batch, "_of", dropping)
    for got, stream in zip(pieces, streams, strict=True):
        got += stream
    assert not held
    assert [it.answer.text for it in streams] == [answers[it][0] for it in (PROMPTS[0], PROMPTS[3])]


def test_nobody_waits_behind_one_who_waits_for_a_prompt(model, monkeypatch):
    first, second = (model.stream(f"{LONG * 3}{name}", **OPTIONS) for name in ("one", "two"))
    other = model.stream("Hello there", max_new_tokens=1, ignore_eos=True, namespace="other")
    for stream in (first, second, other):
        stream.join()
    next(other)
    assert second.answer.stats.prompt_tokens == 0  # it has not begun
    assert "".join(second)
    assert second.answer.stats.reused_tokens > 0


def test_a_model_that_is_always_asked_can_be_closed(bundle):
    model, answered = Model.open(bundle, parallel=3), []

    def ask(number):
        while True:
            answered.append(model.generate(f"Hello {number}", **OPTIONS))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, number) for number in range(3)]
        while len(answered) < 3:
            pass
        model.close()
        for it in asking:
            with pytest.raises(SessionClosedError):
                it.result(600)


def test_interrupted_batches_leave_all_places(model, monkeypatch):
    compute, left = Batch._compute, [1] * 6

    def interrupted(self, parts):
        left.pop()
        if not left:
            raise KeyboardInterrupt
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        model.generate_many(PROMPTS[:3], max_new_tokens=200, ignore_eos=True)
    assert kept.value.__traceback__ is not None
    assert all(place.owner is None for place in model._turns._places._all)


def _num_taken(model):
    return sum(place.owner is not None for place in model._turns._places._all)


def test_a_stream_that_the_collector_drops_within_a_round_ends_with_the_next(
    model, answers, monkeypatch
):
    stream = model.stream(PROMPTS[0], **OPTIONS)
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    held, seen, compute = [cycle], [], Batch._compute
    del stream, cycle

    def collected(self, parts):
        if held:
            held.clear()
            gc.collect()
            seen.append(_num_taken(model))
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", collected)
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]
    assert seen == [2]
    assert _num_taken(model) == 0


def test_a_stream_of_another_thread_that_is_dropped_within_a_round_ends_with_the_next(
    model, answers, monkeypatch
):
    held, seen, compute = [model.stream(PROMPTS[0], **OPTIONS)], [], Batch._compute
    next(held[0])

    def dropped(self, parts):
        if held:
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
            seen.append(_num_taken(model))
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", dropped)
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]
    assert seen == [2]
    assert _num_taken(model) == 0


class Interrupted(deque):
    """Items behind the first of which Ctrl-C comes, before it is here."""

    def append(self, item):
        raise KeyboardInterrupt


def test_an_interrupt_before_an_item_is_here_leaves_the_place_free(model, answers):
    stream = model.stream(PROMPTS[0], **OPTIONS)
    next(stream)
    stream._making._items.made = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert _num_taken(model) == 0
    with pytest.raises(CallOrderError, match="broken off"):
        next(stream)
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]


def test_who_drives_goes_on_behind_a_round_that_another_thread_has_made(model, monkeypatch):
    begun, is_back, waited = threading.Event(), threading.Event(), []
    compute, driven = Batch._compute, Member._driven
    stream = model.stream(LONG * 3, **OPTIONS)
    stream.join()

    def in_turn(self, parts):
        compute(self, parts)
        if threading.current_thread() is thread and len(waited) < 2:
            waited.append((is_back if waited else begun).wait(600))

    def begins(self):
        found = driven(self)
        begun.set()
        return found

    monkeypatch.setattr(Batch, "_compute", in_turn)
    thread = threading.Thread(target=model.generate, args=(LONG * 3 + "Hello",), kwargs=OPTIONS)
    thread.start()
    while model._turns.alone.thread != thread.ident:
        pass
    monkeypatch.setattr(Member, "_driven", begins)
    stream.drive()
    is_back.set()
    thread.join()
    assert waited == [True, True]


def test_an_end_that_goes_wrong_leaves_others_their_reader(model, answers, monkeypatch):
    close, left = Stream.close, [1]

    def failing(self):
        close(self)
        if left:
            left.pop()
            raise OSError("the history cannot be written")

    begun, cancelled = threading.Event(), threading.Event()

    def read(_):
        begun.set()
        cancelled.wait(600)

    async def cancel_one():
        task = asyncio.create_task(
            model.agenerate(PROMPTS[1], on_read=read, max_new_tokens=100_000, ignore_eos=True)
        )
        await asyncio.to_thread(begun.wait, 600)
        monkeypatch.setattr(Stream, "close", failing)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await model.agenerate(PROMPTS[3], **OPTIONS)

    assert _said(asyncio.run(cancel_one())) == answers[PROMPTS[3]]
    assert not left


@pytest.mark.parametrize("is_last", [False, True])
def test_an_interrupt_behind_what_was_read_has_nobody_read_it_again(
    bundle, model, monkeypatch, is_last
):
    prompts = [f"{number} {LONG * 3}" for number in range(3)]
    with Model.open(bundle) as alone:
        expected = [alone.generate(prompt, **OPTIONS).text for prompt in prompts]
    commit, left = Sequence._commit, [1]

    def interrupted(self, rows):
        commit(self, rows)
        if left and self.asked is not None and (self.rest == 0) == is_last:
            left.pop()
            raise KeyboardInterrupt

    monkeypatch.setattr(Sequence, "_commit", interrupted)
    streams = [model.stream(prompt, **OPTIONS) for prompt in prompts]
    with pytest.raises(KeyboardInterrupt):
        next(streams[0])
    assert not left
    assert ["".join(stream) for stream in streams] == expected


@pytest.mark.parametrize("where", ["taken", "left"])
def test_an_interrupt_at_the_door_of_a_place_leaves_it_free(bundle, answers, monkeypatch, where):
    taken, leave, left = Places.taken, Places.leave, [1]

    def interrupted_behind(self, request, owner):
        place = taken(self, request, owner)
        if left and place is not None:
            left.pop()
            raise KeyboardInterrupt
        return place

    def interrupted_before(self, owner):
        if left:
            left.pop()
            raise KeyboardInterrupt
        leave(self, owner)

    if where == "taken":
        monkeypatch.setattr(Places, "taken", interrupted_behind)
    else:
        monkeypatch.setattr(Places, "leave", interrupted_before)
    with Model.open(bundle, parallel=2) as model:
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPTS[0], **OPTIONS)
        assert not left
        assert all(place.owner is None for place in model._turns._places._all)
        both = model.generate_many(PROMPTS[:2], **OPTIONS)
        assert [_said(answer) for answer in both] == [answers[prompt] for prompt in PROMPTS[:2]]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_task_that_is_cancelled_while_its_prompt_is_read(bundle, answers, parallel, monkeypatch):
    async def cancel():
        read, began, cancelled = [], asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def on_read(num_tokens):
            read.append(num_tokens)
            loop.call_soon_threadsafe(began.set)
            cancelled.wait(600)

        task = asyncio.create_task(model.agenerate(LONG * 3, max_new_tokens=2, on_read=on_read))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        answer = await model.agenerate(PROMPTS[0], **OPTIONS)
        return read, answer

    with Model.open(bundle, parallel=parallel) as model:
        assert model.tokenizer.encode(LONG * 3).size > 512
        read, answer = asyncio.run(cancel())
        assert _said(answer) == answers[PROMPTS[0]]
        assert len(read) == 1


def test_a_short_question_is_answered_while_a_long_prompt_is_read(model, shared):
    async def ask():
        asked, options = threading.Event(), {"max_new_tokens": 2, "ignore_eos": True}
        long = asyncio.create_task(
            model.agenerate(LONG * 3, on_read=lambda _: asked.wait(600), **options)
        )
        await asyncio.sleep(0)
        short = asyncio.create_task(model.agenerate("Hello", namespace="other", **options))
        await asyncio.sleep(0)
        asked.set()
        done, _ = await asyncio.wait([long, short], return_when=asyncio.FIRST_COMPLETED)
        await long
        return short in done

    assert asyncio.run(ask())


def test_a_callback_that_exits_ends_its_own_task_alone(model, answers):
    def leave(_):
        raise SystemExit(3)

    async def ask():
        other = asyncio.create_task(model.agenerate(PROMPTS[0], **OPTIONS))
        with pytest.raises(CallOrderError, match="broken off"):
            await model.agenerate(PROMPTS[3], on_read=leave)
        return [await other, await model.agenerate(PROMPTS[6], **OPTIONS)]

    got = asyncio.run(ask())
    assert [_said(answer) for answer in got] == [answers[it] for it in (PROMPTS[0], PROMPTS[6])]


def test_nobody_awaits_what_a_closed_loop_has_begun(model, answers):
    async def begin():
        stream = model.astream(PROMPTS[0], max_new_tokens=500, ignore_eos=True)
        await stream.__anext__()
        return stream

    stream = asyncio.run(begin())
    while model._reader._thread.is_alive:
        pass
    assert len(stream.answer.token_ids) < 500
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]


@pytest.mark.parametrize("ends", ["sys.exit(0)", "task.cancel()", "raise ValueError"])
def test_python_may_end_while_tasks_run(bundle, ends):
    script = f"""
import asyncio, sys
from coordgen_rs import Model
model = Model.open({str(bundle)!r}, threads=1, parallel=2)
async def main():
    tasks = [
        asyncio.create_task(model.agenerate(f"Hello {{n}}", max_new_tokens=900, ignore_eos=True))
        for n in range(3)
    ]
    await asyncio.sleep(0.05)
    for task in tasks:
        {ends}
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == ("ValueError" in ends), done.stderr
    assert "terminate called" not in done.stderr


def test_a_history_stays_open_while_a_request_runs(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(namespaces, "MOST_NAMESPACES", 2)
    with Model.open(bundle, parallel=2, history=tmp_path / "history") as model:
        stream = model.stream(PROMPTS[0], **OPTIONS, namespace="long")
        next(stream)
        for number in range(6):
            model.generate("Hello", max_new_tokens=1, namespace=f"other {number}")
        assert "".join(stream)
        kept = model._drafters.of("long").history
        assert kept._store.count_tokens("long") >= LIMIT


def test_an_empty_prompt_behind_another_one(model):
    for _ in range(2):
        with pytest.raises(EmptyPromptError):
            list(model.stream_tokens([]))
        assert model.generate(PROMPTS[0], **OPTIONS).text


def test_more_caches_than_memory_are_refused(bundle, monkeypatch):
    monkeypatch.setattr(batch_module, "memory_bytes", lambda: 1000)
    with pytest.raises(OptionError, match=r"parallel is 3, but the caches .* take fewer"):
        Model.open(bundle, parallel=3)


def test_one_task_at_a_time_reads_a_stream(model):
    async def read(stream):
        return [piece async for piece in stream]

    async def ask():
        stream = model.astream(PROMPTS[0], **OPTIONS)
        return await asyncio.gather(read(stream), read(stream), return_exceptions=True)

    pieces, refused = asyncio.run(ask())
    assert "".join(pieces)
    assert isinstance(refused, CallOrderError)


def test_a_reader_that_was_cancelled_gets_no_empty_answer(model):
    given_up = threading.Event()

    async def ask():
        stream = model.astream(LONG * 3, on_read=lambda _: given_up.wait(600), **OPTIONS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.__anext__(), 1e-6)
        given_up.set()
        with pytest.raises(CallOrderError, match="given up"):
            await stream.__anext__()

    asyncio.run(ask())


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_model_that_is_closed_in_a_loop_answers_nobody_there(bundle, parallel):
    async def ask():
        with Model.open(bundle, parallel=parallel) as model:
            tasks = [
                asyncio.create_task(model.agenerate(it, max_new_tokens=700, ignore_eos=True))
                for it in PROMPTS[:6]
            ]
            await asyncio.sleep(0)  # all are asked; no answer comes before the next turn
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = asyncio.run(ask())
    assert all(isinstance(it, SessionClosedError) for it in ended)


class Busy:
    """A thread that makes one round after the other: no other ever finds none being made."""

    def __init__(self, model, monkeypatch):
        self.is_in_round, self.may_end = threading.Event(), threading.Event()
        compute, do = Batch._compute, model._turns.alone.do

        def computed(batch, parts):
            self.is_in_round.set()
            compute(batch, parts)

        def refused(work):
            return do(work) if threading.get_ident() == self.thread.ident else None

        monkeypatch.setattr(Batch, "_compute", computed)
        self.thread = threading.Thread(target=self._ask, args=(model,), daemon=True)
        self.thread.start()
        assert self.is_in_round.wait(600)
        monkeypatch.setattr(model._turns.alone, "do", refused)

    def _ask(self, model):
        while not self.may_end.is_set():
            model.generate(PROMPTS[0], **OPTIONS)

    def end(self):
        self.may_end.set()
        self.thread.join()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_stream_is_closed_by_the_next_round_of_a_thread_that_is_always_at_it(
    model, answers, monkeypatch, is_read
):
    stream, closed = model.stream(PROMPTS[3], **OPTIONS), threading.Event()
    if is_read:
        next(stream)
    busy = Busy(model, monkeypatch)
    closing = threading.Thread(target=lambda: (stream.close(), closed.set()), daemon=True)
    closing.start()
    is_closed = closed.wait(30)
    busy.end()
    monkeypatch.undo()
    assert is_closed
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]


def test_who_joins_while_a_round_begins_takes_part_in_the_next(model, monkeypatch):
    first, second = (model.stream(PROMPTS[it], **OPTIONS) for it in (0, 3))
    next(first)
    opened, joined = Rounds._open, []

    def joining(self):
        found = opened(self)
        if not joined:
            joined.append(second.join())
        return found

    monkeypatch.setattr(Rounds, "_open", joining)
    for _ in range(3):
        first.drive()
    assert joined
    assert second.answer.stats.prompt_tokens > 0  # it has begun
