"""A thread that works while there is work: begun by many, interrupted, and without room for it."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from coordgen_rs.errors import CallOrderError
from coordgen_rs.store import background
from coordgen_rs.store.background import Lease, NoThreadError, Task, TaskQueue
from interrupts import Tracer


def test_of_many_who_bring_tasks_one_thread_works_at_a_time():
    at_work, most, left, tasks = [], [], [*range(400)], TaskQueue()

    def task():
        at_work.append(1)
        most.append(len(at_work))
        left.pop()
        at_work.pop()

    def bring():
        for _ in range(20):
            tasks.add(task)

    with ThreadPoolExecutor(20) as threads:
        [threads.submit(bring) for _ in range(20)]
    tasks.join()
    assert left == []
    assert {*most} == {1}
    assert not tasks._alive


def test_what_is_brought_as_the_thread_ends_is_done():
    done, tasks = [], TaskQueue()

    def first():
        done.append("first")
        tasks.add(lambda: done.append("second"))  # no other begins: this thread is still at work

    tasks.add(first)
    tasks.join()
    assert done == ["first", "second"]


def test_where_the_system_gives_no_thread_tasks_are_done_at_once(monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refused)
    tasks, done = TaskQueue(), []
    with pytest.raises(NoThreadError):
        tasks.try_add(lambda: done.append("never"))
    tasks.add(lambda: done.append(threading.get_ident()))
    tasks.join()
    assert done == [threading.get_ident()]


def test_an_interrupt_anywhere_in_bringing_a_task_loses_none_and_leaves_no_thread():
    def bring(tasks, done):
        tasks.add(lambda: done.append(1))
        tasks.join()

    with Tracer() as tracer:
        bring(TaskQueue(), [])
    assert len(tracer.points) > 5
    for point in tracer.points:
        tasks, done, tracer = TaskQueue(), [], Tracer(point)
        with suppress(KeyboardInterrupt), tracer:  # not every point is met again
            bring(tasks, done)
        bring(tasks, again := [])
        assert again == [1]
        assert done in ([], [1])
        assert not tasks._alive


def test_a_panic_of_a_task_is_told_and_the_next_are_done(monkeypatch):
    class Panic(BaseException):
        pass

    def panics():
        raise Panic

    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    tasks, task, done = TaskQueue(), Task(panics, lambda: None), []
    tasks.add(task.run)
    tasks.add(panics)
    tasks.add(lambda: done.append(True))
    tasks.join()
    assert done == [True]
    with pytest.raises(RuntimeError, match="broken off: Panic"):
        task.result()
    assert [it.exc_type for it in told] == [Panic]


def test_a_task_cannot_wait_for_the_thread_that_does_it_and_who_asks_is_told():
    tasks = TaskQueue()
    task = Task(tasks.join, lambda: None)
    tasks.add(task.run)
    tasks.join()
    with pytest.raises(CallOrderError):
        task.result()


def test_a_task_that_an_ending_thread_takes_is_done_once(monkeypatch):
    done, tasks = [], TaskQueue()

    def refused(run, _):
        run()  # the thread that was there has looked again
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refused)
    tasks.add(lambda: done.append("one"))
    tasks.add(lambda: done.append("other"))
    tasks.join()
    assert done == ["one", "other"]


def test_a_task_that_an_ending_thread_is_at_is_done_once(monkeypatch):
    done, tasks, goes_on, threads = [], TaskQueue(), threading.Event(), []

    def task():
        done.append(threading.get_ident())
        goes_on.wait(600)

    def refused(run, _):
        threads.append(threading.Thread(target=run))  # the one that was there has looked again
        threads[0].start()
        while not done:
            time.sleep(0.001)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refused)
    tasks.add(task)
    goes_on.set()
    threads[0].join()
    assert done == [threads[0].ident]
    assert not tasks._tasks


@contextmanager
def request(tasks):
    """While the block runs, a request does."""
    lease = Lease()
    tasks.wait_beside(lease)
    yield
    lease.is_over = True
    tasks.look_again()


def test_work_waits_until_no_request_runs():
    tasks, done = TaskQueue(most_wait_s=1e9), threading.Event()
    with request(tasks):
        with request(tasks):
            tasks.try_add(done.set)
        assert not done.is_set()
    assert done.wait(600)
    tasks.join()


def test_work_that_has_waited_long_is_done_beside_a_request():
    now_s, done = [0.0], threading.Event()
    tasks = TaskQueue(most_wait_s=10, clock=lambda: now_s[0])
    with request(tasks):
        tasks.try_add(done.set)
        assert not done.is_set()
        now_s[0] = 10.0
        tasks.look_again()  # whatever changes has the time looked at again
        assert done.wait(600)
    tasks.join()


def test_flush_and_join_do_not_wait_for_requests():
    done = []
    tasks = TaskQueue(most_wait_s=1e9)
    with request(tasks):
        tasks.try_add(lambda: done.append("flushed"))
        tasks.flush()
        assert done == ["flushed"]
        tasks.try_add(lambda: done.append("joined"))
        tasks.join()
    assert done == ["flushed", "joined"]


def test_work_with_parts_stops_between_them_for_a_request():
    tasks, parts = TaskQueue(most_wait_s=1e9), []
    first, request_runs = threading.Event(), threading.Event()

    def work():
        parts.append(1)
        first.set()
        request_runs.wait(600)
        tasks.wait_for_quiet()
        parts.append(2)

    tasks.try_add(work)
    assert first.wait(600)
    with request(tasks):
        request_runs.set()
        assert parts == [1]
    tasks.flush()
    assert parts == [1, 2]
    tasks.join()


FORKS = """
import os, sys, threading
from coordgen_rs.store.background import Lease, NoThreadError, Task, TaskQueue
begun, may_end, tasks = threading.Event(), threading.Event(), TaskQueue()
tasks.add(lambda: (begun.set(), may_end.wait()))
begun.wait()
child = os.fork()
if not child:
    tasks.add(print)
    tasks.join()
    sys.exit(7)  # by way of all that is to be done at the end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
may_end.set()
tasks.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_ends_while_a_thread_that_it_lacks_is_at_work():
    ended = subprocess.run([sys.executable, "-c", FORKS], timeout=600, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
