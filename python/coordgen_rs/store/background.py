"""Work in threads of their own, so that no Ctrl-C leaves anything behind: tasks, and who waits.

In: work, by any thread. Out: it is done, by one thread at a time, which ends when there is none
left; who brought it may be interrupted between any two instructions.
"""

import atexit
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import OpenedHere

_Found = TypeVar("_Found")

_LONGEST_SLEEP_S = 1.0
"""Then who waits asks again: Ctrl-C may have come in the midst of a notification."""

_NO_THREAD = "can't start new thread", "can't create new thread"
"""What Python says then; a handler of a signal may raise RuntimeError, too."""


class NoThreadError(RuntimeError):
    """The system gives no thread; no handler of a signal raises this."""


@dataclass(eq=False)
class Lease:
    """For how long something is used, such as a slot by a request.

    Attributes:
        is_over: Whether it is used no more, though an interrupt may have kept its user from giving
            it back.
    """

    is_over: bool = False


class Condition:
    """Wakes the threads that wait for it.

    Notifying waits for nothing, so the finalizer of a dropped stream may do it, in whichever thread
    and between whichever two instructions Python runs it. A `threading.Condition` would not do:
    there, a finalizer in the midst of `wait` either waits for its own thread, or is not heard.
    """

    def __init__(self) -> None:
        self._asleep = deque[threading.Lock]()

    def notify_all(self) -> None:
        """Wake all who wait now."""
        for asleep in self._asleep.copy():
            with suppress(RuntimeError):  # somebody else has just woken it
                asleep.release()

    def wait_for(self, answer: Callable[[], _Found | None]) -> _Found:
        """The first answer that is not None.

        Args:
            answer: Called now, at each notification, and once a second.
        """
        while (found := answer()) is None:
            asleep = threading.Lock()
            asleep.acquire()
            try:
                self._asleep.append(asleep)
                if (
                    found := answer()
                ) is not None:  # a notification before the line above was not heard
                    return found
                asleep.acquire(timeout=_LONGEST_SLEEP_S)
            finally:
                with suppress(ValueError):
                    self._asleep.remove(asleep)
        return found


class BackgroundThread:
    """Works in a thread while there is work.

    `threading.Thread` is begun and waited for in Python, and an interrupt there leaves one of which
    nobody knows, or takes one for ended that is not. So the system's own call begins it: it has
    begun or not. Should two begin, whichever is there first works, and the other ends at once.

    Args:
        work: Does all that there is to do.
        has_work: Whether there is anything to do.
        changed: Notified when a thread has ended.
        at_exit: Called when Python ends while the thread is there: one that came back from the core
            later would abort the process. None for `join`.
    """

    def __init__(
        self,
        work: Callable[[], None],
        has_work: Callable[[], bool],
        changed: Condition,
        at_exit: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._has_work, self._changed = work, has_work, changed
        self._at_exit = self.join if at_exit is None else at_exit
        self._at_work = dict[int, int]()  # under 0, if one is
        self._alive = list[int]()
        self._opened = OpenedHere()  # a fork has the work, but not the thread

    @property
    def is_alive(self) -> bool:
        """Whether there is a thread."""
        return bool(self._alive)

    def start(self) -> None:
        """Have what there is to do be done.

        Raises:
            NoThreadError: The system gives no thread for it.
            RuntimeError: A handler of a signal has raised it.
        """
        if self._has_work() and not self._at_work and not self._opened.is_forked:
            try:
                start_new_thread(self.run, ())
            except RuntimeError as error:
                if str(error).startswith(_NO_THREAD):
                    raise NoThreadError(*error.args) from error
                raise

    def join(self) -> None:
        """Wait until all is done, and for the thread's end; in a fork, for nothing.

        Raises:
            CallOrderError: This thread does the work.
            NoThreadError: Same as in `start`.
        """
        if self._at_work.get(0) == threading.get_ident() and not self._opened.is_forked:
            raise CallOrderError("what a thread does cannot wait for the thread's end")
        self._changed.wait_for(self._has_ended)

    def wait_for(self, answer: Callable[[], object]) -> None:
        """Wait until something is so that the work brings about; in a fork, for nothing."""
        self._changed.wait_for(lambda: answer() or self._opened.is_forked or None)

    def _has_ended(self) -> bool | None:
        """True once there is nothing to do; None while a thread works."""
        if self._opened.is_forked:
            return True
        self.start()  # who brought the work may have been interrupted before
        return None if self._has_work() or self._alive else True

    def run(self) -> None:
        """Do the work in this thread, unless another is at it, which does it then."""
        mine = threading.get_ident()
        self._alive.append(mine)
        try:
            # Asked again once nobody is at work: who brought work meanwhile has begun no other.
            while self._has_work() and self._at_work.setdefault(0, mine) == mine:
                try:
                    atexit.register(self._at_exit)
                    self._work()
                finally:
                    atexit.unregister(self._at_exit)
                    self._at_work.clear()
        finally:
            self._alive.remove(mine)
            self._changed.notify_all()


class Task(Generic[_Found]):
    """A call, and what comes of it.

    Args:
        call: Called once.
        on_done: Called behind it.

    Attributes:
        is_done: Whether it was called.
        error: What it has raised.
    """

    def __init__(self, call: Callable[[], _Found], on_done: Callable[[], object]) -> None:
        self._call, self._on_done = call, on_done
        self.is_done = False
        self._found: _Found | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Call it."""
        try:
            self._found = self._call()
        except Exception as error:
            self.error = error
        except BaseException as error:  # a panic of the core: who waits is to hear of it
            self.error = RuntimeError(f"it was broken off: {error!r}")
        finally:
            self.is_done = True
            self._on_done()

    def result(self) -> _Found:
        """What it has returned; raises what it has raised."""
        if self.error is not None:
            raise self.error
        return cast("_Found", self._found)


class TaskQueue:
    """Tasks of one thread, which is there while there are any."""

    def __init__(self) -> None:
        self._waiting = waiting = deque[Callable[[], object]]()
        # It does not refer to who brings tasks: what is dropped is freed at once.
        self._thread = BackgroundThread(partial(_do, waiting), partial(bool, waiting), Condition())

    def add(self, task: Callable[[], object]) -> None:
        """Have something be done; in this thread, where the system gives no other for it."""
        self._waiting.append(task)
        try:
            self._thread.start()
        except NoThreadError:
            self._thread.run()

    def join(self) -> None:
        """Wait until all is done, and for the thread's end."""
        self._thread.join()


def _do(waiting: deque[Callable[[], object]]) -> None:
    """Do tasks until there is none; what fails is told as of any thread."""
    while waiting:
        try:
            waiting[0]()
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
        finally:
            waiting.popleft()
