"""A thread that works while there is work: begun by many, interrupted, and without room for it."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from coordgen_rs.errors import CallOrderError
from coordgen_rs.store import background
from coordgen_rs.store.background import BackgroundThread, Condition, NoThreadError, Task, TaskQueue
from interrupts import Tracer


def test_of_many_who_begin_it_one_thread_works_at_a_time():
    at_work, most, jobs = [], [], [*range(400)]

    def work():
        at_work.append(1)
        most.append(len(at_work))
        while jobs:
            jobs.pop()
        at_work.pop()

    thread = BackgroundThread(work, lambda: bool(jobs), Condition())
    begin = [threading.Thread(target=thread.start) for _ in range(20)]
    for it in begin:
        it.start()
    for it in begin:
        it.join()
    thread.join()
    assert jobs == []
    assert {*most} == {1}
    assert not thread.is_alive


def test_what_is_brought_as_the_thread_ends_is_done():
    done, left = [], ["first", "second"]
    waiting = [left.pop(0)]

    def work():
        done.append(waiting.pop())
        waiting.extend(left[:1])  # seen by nobody who begins: this thread is still at work
        del left[:1]

    thread = BackgroundThread(work, lambda: bool(waiting), Condition())
    thread.start()
    thread.join()
    assert done == ["first", "second"]


def test_where_the_system_gives_no_thread_tasks_are_done_at_once(monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refused)
    with pytest.raises(NoThreadError):
        BackgroundThread(lambda: None, lambda: True, Condition()).start()
    tasks, done = TaskQueue(), []
    tasks.add(lambda: done.append(threading.get_ident()))
    tasks.join()
    assert done == [threading.get_ident()]


def test_what_a_task_raises_is_raised_by_who_asks_for_its_result():
    told, task = threading.Event(), Task(lambda: 1 // 0, lambda: None)
    tasks = TaskQueue()
    tasks.add(task.run)
    tasks.add(told.set)
    tasks.join()
    assert told.is_set()
    with pytest.raises(ZeroDivisionError):
        task.result()


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
        assert not tasks._thread.is_alive


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


def test_a_task_cannot_wait_for_the_thread_that_does_it():
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


FORKS = """
import os, sys, threading
from coordgen_rs.store.background import TaskQueue
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
