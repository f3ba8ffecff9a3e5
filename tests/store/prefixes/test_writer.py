"""When a store's thread writes: between requests, and beside them only what has waited long."""

import threading
from contextlib import contextmanager

import pytest

from coordgen_rs.store import background
from coordgen_rs.store.background import Lease
from coordgen_rs.store.prefixes.writer import Writer


@contextmanager
def request(writer):
    """While the block runs, a request does."""
    owner = Lease()
    writer.wait_beside(owner)
    yield
    owner.is_over = True
    writer.look_again()


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_work_waits_until_no_request_runs():
    writer, done = Writer(most_wait_s=1e9), threading.Event()
    with request(writer):
        with request(writer):
            writer.add(done.set)
        assert not done.is_set()
    assert done.wait(600)
    writer.close()


def test_work_that_has_waited_long_is_done_beside_a_request():
    clock, done = Clock(), threading.Event()
    writer = Writer(most_wait_s=10, clock=clock)
    with request(writer):
        writer.add(done.set)
        assert not done.is_set()
        clock.now_s = 10.0
        with request(writer):  # whatever changes has the time looked at again
            pass
        assert done.wait(600)
    writer.close()


def test_flush_and_close_do_not_wait_for_requests():
    done = []
    writer = Writer(most_wait_s=1e9)
    with request(writer):
        writer.add(lambda: done.append("flushed"))
        writer.flush()
        assert done == ["flushed"]
        writer.add(lambda: done.append("closed"))
        writer.close()
    assert done == ["flushed", "closed"]


def test_work_with_parts_stops_between_them_for_a_request():
    writer, parts = Writer(most_wait_s=1e9), []
    first, request_runs = threading.Event(), threading.Event()

    def work():
        parts.append(1)
        first.set()
        request_runs.wait(600)
        writer.wait_for_quiet()
        parts.append(2)

    writer.add(work)
    assert first.wait(600)
    with request(writer):
        request_runs.set()
        assert parts == [1]
    writer.flush()
    assert parts == [1, 2]
    writer.close()


def test_where_the_system_gives_no_thread_nothing_is_waited_for(monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    writer, done = Writer(), []
    with monkeypatch.context() as patched:
        patched.setattr(background, "start_new_thread", refused)
        with pytest.raises(RuntimeError):
            writer.add(lambda: done.append(1))
    writer.flush()
    writer.add(lambda: done.append(2))
    writer.close()
    assert done == [2]
