"""Work of one thread at a time: two threads, work within work, and interrupts at every call."""

import threading

import pytest

from coordgen_rs.errors import OptionError
from coordgen_rs.model.one_at_a_time import OneAtATime
from coordgen_rs.threads.bell import Bell


class Interrupted(dict):
    """A dict one of whose methods does its work, and then Ctrl-C comes, once."""

    def __init__(self, method):
        self.method = method

    def _after(self, method, found):
        if self.method == method:
            self.method = None
            raise KeyboardInterrupt
        return found

    def setdefault(self, key, value):
        return self._after("setdefault", super().setdefault(key, value))

    def clear(self):
        return self._after("clear", super().clear())


@pytest.fixture
def alone():
    return OneAtATime(Bell())


def test_work_is_done_and_what_it_finds_is_told(alone):
    assert alone.do(lambda: alone.thread) == threading.get_ident()
    assert alone.thread is None


def test_what_goes_wrong_keeps_nobody_from_work(alone):
    def fails():
        raise OptionError("it cannot be done")

    with pytest.raises(OptionError):
        alone.do(fails)
    assert alone.do(lambda: 1) == 1


def test_another_thread_and_work_within_work_do_nothing(alone):
    begun, may_end, found = threading.Event(), threading.Event(), []

    def long_work():
        begun.set()
        found.append(alone.do(lambda: 1))
        return may_end.wait(600)

    thread = threading.Thread(target=lambda: found.append(alone.do(long_work)))
    thread.start()
    assert begun.wait(600)
    assert alone.do(lambda: 1) is None
    assert alone.thread == thread.ident
    may_end.set()
    thread.join()
    assert found == [None, True]
    assert alone.do(lambda: 1) == 1


@pytest.mark.parametrize("method", ["setdefault", "clear"])
def test_an_interrupt_keeps_nobody_from_work(alone, method):
    alone._at_work = Interrupted(method)
    with pytest.raises(KeyboardInterrupt):
        alone.do(lambda: 1)
    assert alone.thread is None
    assert alone.do(lambda: 2) == 2


def test_an_interrupt_of_one_who_is_refused_ends_the_work_of_nobody_else(alone):
    begun, may_end, found = threading.Event(), threading.Event(), []
    thread = threading.Thread(
        target=lambda: found.append(alone.do(lambda: begun.set() or may_end.wait(600)))
    )
    alone._at_work = Interrupted(None)
    thread.start()
    assert begun.wait(600)
    alone._at_work.method = "setdefault"
    with pytest.raises(KeyboardInterrupt):
        alone.do(lambda: 1)
    assert alone.thread == thread.ident
    may_end.set()
    thread.join()
    assert found == [True]


def test_who_waits_is_woken_by_the_end_of_the_work():
    bell = Bell()
    alone, begun, may_end = OneAtATime(bell), threading.Event(), threading.Event()
    thread = threading.Thread(target=alone.do, args=(lambda: begun.set() or may_end.wait(600),))
    thread.start()
    assert begun.wait(600)
    threading.Timer(0.05, may_end.set).start()
    assert bell.wait_for(lambda: alone.do(lambda: 3)) == 3
    thread.join()


def test_an_interrupt_while_others_are_woken_leaves_them_to_the_next_ring():
    bell, answers, asked = Bell(), [], threading.Event()

    def answer():
        asked.set()
        return answers[0] if answers else None

    found = []
    thread = threading.Thread(target=lambda: found.append(bell.wait_for(answer)))
    thread.start()
    assert asked.wait(600)
    while not bell._asleep:
        pass

    class Refuses:
        def release(self):
            raise KeyboardInterrupt

    bell._asleep.appendleft(refuses := Refuses())
    answers.append("well")
    with pytest.raises(KeyboardInterrupt):
        bell.ring()
    bell._asleep.remove(refuses)
    bell.ring()
    thread.join()
    assert found == ["well"]
    assert not bell._asleep
