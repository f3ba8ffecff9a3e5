"""Requests that run together while a disk is slow, or another program holds the history."""

import asyncio
import sqlite3
import threading
import warnings
from contextlib import closing, contextmanager

import pytest

from coordgen_rs import Model
from coordgen_rs.errors import HistoryWarning
from coordgen_rs.store.history import store
from coordgen_rs.store.history.store import DATABASE_NAME, HistoryStore
from coordgen_rs.store.prefixes.store import PrefixStore

LONG = {"max_new_tokens": 300, "ignore_eos": True}
SHORT = {"max_new_tokens": 2, "ignore_eos": True}
PROMPTS = [f"Hello {number}, the report" for number in range(3)]
BEGINNING = "A beginning that is long enough to be kept, and to be read again: " * 4


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@contextmanager
def written_by_another(path):
    """Another program's change of a history, which is not done before the block ends."""
    connection = sqlite3.connect(
        path / DATABASE_NAME, isolation_level=None, check_same_thread=False
    )
    with closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def num_answered(path):
    """How many tokens the answers of a history have, in order of their length."""
    with closing(HistoryStore(path)) as stored:
        return sorted(len(it.token_ids) - it.prompt_len for it in stored.read())


def go_on(streams, num_pieces=20):
    """Whether so many pieces of each stream come."""
    done = threading.Event()

    def read():
        for _ in range(num_pieces):
            for stream in streams:
                next(stream)
        done.set()

    threading.Thread(target=read, daemon=True).start()
    return done.wait(120)


def test_streams_go_on_and_begin_while_another_program_writes_to_the_history(
    bundle, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "_BUSY_S", 600.0)
    with Model.open(bundle, parallel=4, history=tmp_path) as model:
        streams = [model.stream(prompt, **LONG) for prompt in PROMPTS]
        for stream in streams:
            next(stream)
        short = model.stream("It ends", **SHORT)
        with written_by_another(tmp_path):
            reader = threading.Thread(target=lambda: [*short], daemon=True)
            reader.start()
            went_on = go_on(streams) and go_on([model.stream("It begins", **LONG)])
            is_waiting = reader.is_alive()
        reader.join(600)
        assert went_on
        assert is_waiting
        assert num_answered(tmp_path) == [2]  # its reader was told of the end
        for stream in streams:
            assert len([*stream]) > 0
        assert num_answered(tmp_path) == [2, 300, 300, 300]


def test_tasks_go_on_while_another_program_writes_to_the_history(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_BUSY_S", 600.0)

    async def ask(model):
        streams = [model.astream(prompt, **LONG) for prompt in PROMPTS]
        for stream in streams:
            await anext(stream)
        with written_by_another(tmp_path):
            short = asyncio.create_task(model.agenerate("It ends", **SHORT))
            async with asyncio.timeout(120):
                for stream in streams:
                    for _ in range(20):
                        await anext(stream)
                await anext(model.astream("It begins", **LONG))
            assert not short.done()
        answer = await short
        assert num_answered(tmp_path) == [2]
        for stream in streams:
            await stream.aclose()
        return answer

    with Model.open(bundle, parallel=4, history=tmp_path) as model:
        assert len(asyncio.run(ask(model)).token_ids) == 2


def test_streams_go_on_while_a_prefix_is_read_from_disk(bundle, tmp_path, monkeypatch):
    with Model.open(bundle, prefix_store=tmp_path) as model:
        expected = model.generate(BEGINNING, max_new_tokens=8).text
    begun, may_end, find = threading.Event(), threading.Event(), PrefixStore.find

    def slow(self, *arguments):
        begun.set()
        may_end.wait(600)
        return find(self, *arguments)

    with Model.open(bundle, prefix_store=tmp_path, parallel=4) as model:
        streams = [model.stream(prompt, **LONG) for prompt in PROMPTS]
        for stream in streams:
            next(stream)
        monkeypatch.setattr(PrefixStore, "find", slow)
        found = []
        reader = threading.Thread(
            target=lambda: found.append(model.generate(BEGINNING, max_new_tokens=8)), daemon=True
        )
        reader.start()
        assert begun.wait(600)
        went_on = go_on(streams)
        may_end.set()
        reader.join(600)
        assert went_on
        assert found[0].text == expected
        assert found[0].stats.reused_tokens > 0
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("parallel", [1, 3])
def test_what_cannot_be_stored_is_told_by_the_call_that_asked(
    bundle, tmp_path, monkeypatch, parallel
):
    monkeypatch.setattr(store, "_BUSY_S", 0.0)
    with Model.open(bundle, parallel=parallel, history=tmp_path / "a") as model:
        with written_by_another(tmp_path / "a"), pytest.warns(HistoryWarning, match="locked"):
            model.generate("Hello", **SHORT)
        assert num_answered(tmp_path / "a") == []
        model.generate("Hello", **SHORT)
    assert num_answered(tmp_path / "a") == [2]
    with (
        Model.open(bundle, parallel=parallel, history=tmp_path / "b") as model,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        with written_by_another(tmp_path / "b"), pytest.raises(HistoryWarning, match="locked"):
            model.generate("Hello", **SHORT)
        model.generate("Hello", **SHORT)
    assert num_answered(tmp_path / "b") == [2]
