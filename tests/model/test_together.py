"""Requests of one model that are answered together: threads, streams in one thread, and asyncio."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordgen_rs import Model, Regex
from coordgen_rs.errors import (
    CallOrderError,
    EmptyPromptError,
    NonFiniteLogitsError,
    OptionError,
    PromptTooLongError,
    SessionClosedError,
)
from coordgen_rs.generation.drafting import drafter
from coordgen_rs.model.request import Events, Progress
from coordgen_rs.model.slots import Slots
from coordgen_rs.runtime import batch as batch_module
from coordgen_rs.runtime.batch import Batch, Sequence

LIMIT = 24
OPTIONS = {"max_new_tokens": LIMIT, "ignore_eos": True}
UNENDING = {"max_new_tokens": 400, "ignore_eos": True, "drafts": False}
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


@pytest.fixture
def reading(monkeypatch):
    """Set, the engine goes on behind a chunk of a prompt, of requests with `on_read`."""
    go_on, put = threading.Event(), Events.put
    go_on.num_chunks = 0

    def held(self, event):
        put(self, event)
        if isinstance(event, Progress):
            go_on.num_chunks += 1
            assert go_on.wait(600)

    monkeypatch.setattr(Events, "put", held)
    return go_on


def _said(answer):
    return answer.text, answer.token_ids, answer.finish_reason


def _num_taken(model):
    return sum(not slot.is_free for slot in model._engine._slots._all)


def test_threads_run_together(model, answers, shared):
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda it: model.generate(it, **OPTIONS), PROMPTS))
    assert [_said(answer) for answer in got] == list(answers.values())
    assert max(shared) == 3
    runs = model.runs
    assert (runs.runs, runs.requests) == (len(shared), sum(shared))
    assert runs.rows > runs.decode_rows > 0
    assert runs.prompt_tokens_beside > 0


def test_requests_of_one_grammar_follow_it_each_for_itself(model, bundle):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    options = {"grammar": Regex("([a-f]{3} [0-9]{2};){2,6}"), "max_new_tokens": 40}

    def ask(model, seed):
        return _said(model.generate(PROMPTS[0], temperature=1.0, seed=seed, **options))

    with Model.open(bundle) as alone:
        expected = [ask(alone, seed) for seed in range(6)]
    assert len({text for text, *_ in expected}) > 1
    for _ in range(2):  # the second time with what the first has left
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda seed: ask(model, seed), range(6))) == expected


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
        for prompt in (*asked, asked[0]):
            answer = model.generate(prompt, max_new_tokens=4, ignore_eos=True)
        assert answer.stats.reused_tokens >= len(model.tokenizer.encode(asked[0])) - 2


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


@pytest.mark.parametrize("parallel", [1, 3])
def test_closing_in_a_callback_ends_its_own_request(bundle, parallel, reading):
    with Model.open(bundle, parallel=parallel) as model:

        def on_read(_):
            reading.set()
            model.close()

        answer = model.generate(PROMPTS[0], on_read=on_read, **OPTIONS)
        assert (answer.text, answer.finish_reason) == ("", None)
        assert "closed" in repr(model)
    with Model.open(bundle, parallel=parallel) as model, pytest.raises(SessionClosedError):
        asyncio.run(model.agenerate(PROMPTS[0], on_read=on_read, **OPTIONS))


@pytest.mark.parametrize("parallel", [1, 3])
def test_closing_reads_no_more_of_ones_own_prompt(bundle, parallel, reading):
    with Model.open(bundle, parallel=parallel) as model:
        stream = model.stream(LONG * 3, on_read=lambda _: None)
        stream.events.ask()
        while not reading.num_chunks:
            time.sleep(0)

        def closed():
            stream.events.ask()
            model.close()

        closing = threading.Thread(target=closed)
        closing.start()
        while not model._engine.is_closing:
            time.sleep(0)
        reading.set()
        closing.join()
    assert reading.num_chunks == 1


def test_many_prompts_in_order(model, answers, shared):
    told = []
    got = model.generate_many(PROMPTS, **OPTIONS, on_progress=lambda *numbers: told.append(numbers))
    assert [_said(answer) for answer in got] == list(answers.values())
    assert told == [(number + 1, len(PROMPTS)) for number in range(len(PROMPTS))]
    assert max(shared) == 3
    assert model.generate_many([]) == []


def test_errors_of_many_are_raised_or_kept(model, answers):
    prompts = [PROMPTS[0], "word " * 3000, PROMPTS[2], ""]
    with pytest.raises(PromptTooLongError) as raised:  # it is kept, and what it was raised in
        model.generate_many(prompts, max_new_tokens=900, ignore_eos=True)
    assert raised.value.__notes__ == ["by prompt 2 of 4"]
    model.generate(PROMPTS[3], max_new_tokens=1)
    assert _num_taken(model) == 0  # it has ended the others
    got = model.generate_many(prompts, **OPTIONS, keep_errors=True)
    assert _said(got[0]) == answers[PROMPTS[0]]
    assert isinstance(got[1], PromptTooLongError)
    assert _said(got[2]) == answers[PROMPTS[2]]
    assert isinstance(got[3], EmptyPromptError) or got[3].text
    for _ in range(2):
        with pytest.raises(EmptyPromptError):
            list(model.stream_tokens([]))
        assert model.generate(PROMPTS[0], **OPTIONS).text
    for wrong in ("one text", b"bytes", {"a": 1}, 5, None):
        with pytest.raises(OptionError, match="texts must be a list"):
            model.generate_many(wrong)
    with pytest.raises(OptionError, match=r"texts\[1\] must be a string"):
        model.generate_many(["a", None], keep_errors=True)
    with pytest.raises(OptionError, match="max_new_tokens"):
        model.generate_many(["a"], max_new_tokens=-1, keep_errors=True)
    with pytest.raises(PromptTooLongError):
        asyncio.run(model.agenerate("word " * 3000))
    with pytest.raises(OptionError, match="no option"):
        asyncio.run(model.agenerate("Hello", wrong=1))


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


def test_a_model_that_cannot_says_why(bundle, monkeypatch):
    with Model.open(bundle, parallel=4, switch="just_in_time") as model:
        assert (model.parallel, model.runs) == (1, None)
        assert "one by one" in model.why_alone
        assert model.generate("Hello", max_new_tokens=2).text
    with Model.open(bundle, parallel=None) as model:
        assert 1 <= model.parallel <= 4
    for wrong in (0, -1, "4", True, 65, 10**30):
        with pytest.raises(OptionError, match="parallel"):
            Model.open(bundle, parallel=wrong)
    monkeypatch.setattr(batch_module, "memory_bytes", lambda: 1000)
    with pytest.raises(OptionError, match=r"parallel is 3, but the caches .* take fewer"):
        Model.open(bundle, parallel=3)


def test_what_cannot_begin_leaves_its_place(model, answers, monkeypatch):
    of, left = type(model._drafters).drafter_of, [1] * 4

    def failing(self, *arguments):
        if left:
            left.pop()
            raise OptionError("no drafter")
        return of(self, *arguments)

    monkeypatch.setattr(type(model._drafters), "drafter_of", failing)
    for _ in range(4):
        with pytest.raises(OptionError, match="no drafter"):
            model.generate(PROMPTS[0], **OPTIONS)
    assert _said(model.generate(PROMPTS[0], **OPTIONS)) == answers[PROMPTS[0]]


def test_what_was_decoded_alone_is_no_gain_of_shared_steps(model, monkeypatch):
    told, batch = [], model._engine._slots.run.__self__

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


def test_a_stream_that_is_dropped_before_its_rows_are_filled(model, answers, monkeypatch):
    streams = [model.stream(prompt, **OPTIONS) for prompt in (PROMPTS[0], PROMPTS[3])]
    pieces = [[next(stream)] for stream in streams]
    held, of = [model.stream(LONG, **OPTIONS, namespace="other")], Batch._of
    held[0].events.ask()

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
    began, begins = [], Slots.begins

    def noted(self, request):
        began.append(request.stats)
        begins(self, request)

    monkeypatch.setattr(Slots, "begins", noted)
    first, second = (model.stream(f"{LONG * 3}{name}", **OPTIONS) for name in ("one", "two"))
    other = model.stream("Hello there", max_new_tokens=1, ignore_eos=True, namespace="other")
    for stream in (first, second, other):
        stream.events.ask()
    for stream in (second, first, other):
        assert "".join(stream)
    assert began == [stream.answer.stats for stream in (first, other, second)]
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


@pytest.mark.parametrize("by", ["the collector", "another thread"])
def test_a_stream_that_the_collector_drops_within_a_round_ends_with_the_next(
    model, answers, monkeypatch, by
):
    cycle = [model.stream(PROMPTS[0], **UNENDING)]
    next(cycle[0])
    if by == "the collector":
        cycle.append(cycle)
    held, seen, compute = [cycle], [], Batch._compute
    del cycle

    def dropped(self, parts):
        if held and _num_taken(model) == 2:
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
            gc.collect()
            seen.append(_num_taken(model))
        compute(self, parts)

    monkeypatch.setattr(Batch, "_compute", dropped)
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]
    assert seen == [2]
    assert _num_taken(model) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_task_that_is_cancelled_while_its_prompt_is_read(bundle, answers, parallel, reading):
    async def cancel():
        read, began = [], asyncio.Event()

        def on_read(num_tokens):
            read.append(num_tokens)
            began.set()

        task = asyncio.create_task(model.agenerate(LONG * 3, max_new_tokens=2, on_read=on_read))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reading.set()
        answer = await model.agenerate(PROMPTS[0], **OPTIONS)
        return read, answer

    with Model.open(bundle, parallel=parallel) as model:
        num_tokens = model.tokenizer.encode(LONG * 3).size
        read, answer = asyncio.run(cancel())
        assert _said(answer) == answers[PROMPTS[0]]
        assert len(read) == 1
        assert read[0] < num_tokens - 1


def test_a_short_question_is_answered_while_a_long_prompt_is_read(model, shared, reading):
    async def ask():
        options = {"max_new_tokens": 2, "ignore_eos": True}
        long = asyncio.create_task(model.agenerate(LONG * 3, on_read=lambda _: None, **options))
        await asyncio.sleep(0)
        short = asyncio.create_task(model.agenerate("Hello", namespace="other", **options))
        await asyncio.sleep(0)
        reading.set()
        done, _ = await asyncio.wait([long, short], return_when=asyncio.FIRST_COMPLETED)
        await long
        return short in done

    assert asyncio.run(ask())


def test_nobody_awaits_what_a_closed_loop_has_begun(model, answers):
    async def begin():
        stream = model.astream(PROMPTS[0], max_new_tokens=500, ignore_eos=True)
        await stream.__anext__()
        return stream

    streams = [asyncio.run(begin()) for _ in range(model.parallel)]
    assert _said(model.generate(PROMPTS[3], **OPTIONS)) == answers[PROMPTS[3]]
    assert all(len(stream.answer.token_ids) < 500 for stream in streams)


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
    monkeypatch.setattr(drafter, "MOST_NAMESPACES", 2)
    with Model.open(bundle, parallel=2, history=tmp_path / "history") as model:
        stream = model.stream(PROMPTS[0], **OPTIONS, namespace="long")
        next(stream)
        for number in range(6):
            model.generate("Hello", max_new_tokens=1, namespace=f"other {number}")
        assert "".join(stream)
        kept = model._drafters.acquire("long").history
        assert kept._store.count_tokens("long") >= LIMIT


def test_one_task_at_a_time_reads_a_stream_and_none_that_was_given_up(model):
    async def read(stream):
        return [piece async for piece in stream]

    async def ask():
        stream = model.astream(PROMPTS[0], **OPTIONS)
        pieces, refused = await asyncio.gather(read(stream), read(stream), return_exceptions=True)
        assert "".join(pieces)
        assert isinstance(refused, CallOrderError)
        stream = model.astream(LONG * 3, **OPTIONS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.__anext__(), 1e-6)
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
