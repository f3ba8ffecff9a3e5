"""Work in threads of their own, so that no Ctrl-C leaves anything behind: tasks, and who waits.

In: work, by any thread. Out: it is done, by one thread at a time, which ends when there is none
left; who brought it may be interrupted between any two instructions. A fork of the process has the
memory, but none of the threads, and locks that they held stay locked for good: it is refused, and
so is copying what is open.
"""

import atexit
import os
import sys
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, NoReturn, Self, SupportsIndex, TypeVar, cast

from coordgen_rs.errors import CallOrderError, ForkedError, OptionError

_Found = TypeVar("_Found")

LONGEST_SLEEP_S = 1.0
"""Then who waits asks again: Ctrl-C may have come in the midst of a notification, and not every
system interrupts a thread that sleeps."""

_MOST_WAIT_S = 10.0
"""What waits holds memory, and is lost with its process."""

_NO_THREAD = "can't start new thread", "can't create new thread"
"""What Python says then; a handler of a signal may raise RuntimeError, too."""


class NotCopied:
    """What holds threads, files or a cache of its process, which a copy would close for both."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Refuse `copy.copy`, `copy.deepcopy` and `pickle`.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"a {type(self).__name__} can be neither copied nor pickled: use it in both places, or "
            "open another one"
        )


class Closeable(NotCopied):
    """What is closed at the end of a `with` block."""

    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenedHere:
    """Remembers the process that made it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a fork of that process."""
        return os.getpid() != self._process

    def check(self, what: str) -> None:
        """Refuse to go on in a fork.

        Args:
            what: What was opened, for the message.

        Raises:
            ForkedError: This is a fork of the process.
        """
        if self.is_forked:
            raise ForkedError(
                f"this process is a fork of the one that opened the {what}, and lacks its threads: "
                'open it in a process started anew, such as with multiprocessing\'s "spawn"'
            )


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
                # A notification before the line above was not heard.
                if (found := answer()) is not None:
                    return found
                asleep.acquire(timeout=LONGEST_SLEEP_S)
            finally:
                with suppress(ValueError):
                    self._asleep.remove(asleep)
        return found


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
    """Tasks of a thread of their own, which is there while there are any; they are done in order.

    `threading.Thread` is begun and waited for in Python, and an interrupt there leaves one of which
    nobody knows, or takes one for ended that is not. So the system's own call begins it: it has
    begun or not. Should two begin, whichever is there first works, and the other ends at once. No
    lock is held, which an interrupt would leave behind: each change is one call.

    Where requests are told of, tasks wait until none runs, as they would take its time; but not for
    long. What fails is told as of any thread, and the next is done.

    Args:
        most_wait_s: Seconds that a task waits for requests, at most.
        clock: Gives seconds.
    """

    def __init__(
        self, most_wait_s: float = _MOST_WAIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_wait_s, self._clock = most_wait_s, clock
        self._tasks, self._changed = deque[_Queued](), Condition()
        self._requests = deque[Lease]()  # those that run; who is over is none of them
        self._hurries = list[object]()  # those that wait for the tasks
        self._at_work = dict[int, int]()  # under 0, if a thread is
        self._alive = list[int]()
        self._opened = OpenedHere()  # a fork has the tasks, but not the thread

    def add(self, task: Callable[[], object]) -> None:
        """Have something be done; in this thread, where the system gives no other for it."""
        self._tasks.append(self._queued(task))
        try:
            self._start()
        except NoThreadError:
            self._run()
        self._changed.notify_all()

    def try_add(self, task: Callable[[], object]) -> None:
        """Have something be done by a thread of its own.

        Raises:
            NoThreadError: The system gives none.
        """
        added = self._queued(task)
        self._tasks.append(added)
        try:
            self._start()
        except NoThreadError:
            with suppress(ValueError):  # a thread that was about to end has done it
                self._tasks.remove(added)
                raise
        self._changed.notify_all()

    def wait_beside(self, request: Lease) -> None:
        """Have tasks wait until a request is over."""
        for one in self._requests.copy():
            if one.is_over:
                with suppress(ValueError):  # another thread was first
                    self._requests.remove(one)
        self._requests.append(request)

    def look_again(self) -> None:
        """Go on, if no request runs any more."""
        self._changed.notify_all()

    def wait_for_quiet(self) -> None:
        """Wait until no request runs, within a task that has parts: between these."""
        self._changed.wait_for(lambda: None if self._waits() else True)

    def flush(self) -> None:
        """Wait until all is done; in a fork, for nothing."""
        self._wait_until(lambda: not self._tasks)

    def join(self) -> None:
        """Wait until all is done, and for the thread's end; in a fork, for nothing.

        Raises:
            CallOrderError: This thread does the work.
            NoThreadError: The system gives no thread for it.
        """
        if self._at_work.get(0) == threading.get_ident() and not self._opened.is_forked:
            raise CallOrderError("what a thread does cannot wait for the thread's end")
        self._wait_until(lambda: not self._tasks and not self._alive)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        mine = object()
        try:
            self._hurries.append(mine)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_ready(is_so) or None)
        finally:
            with suppress(ValueError):  # interrupted before
                self._hurries.remove(mine)

    def _is_ready(self, is_so: Callable[[], bool]) -> bool:
        """Whether something is so that the tasks bring about; or never will, in a fork."""
        self._start()  # who brought them may have been interrupted before
        return self._opened.is_forked or is_so()

    def _queued(self, task: Callable[[], object]) -> "_Queued":
        return _Queued(task, self._clock() + self._most_wait_s)

    def _start(self) -> None:
        """Have what there is to do be done.

        Raises:
            NoThreadError: The system gives no thread for it.
            RuntimeError: A handler of a signal has raised it.
        """
        if self._tasks and not self._at_work and not self._opened.is_forked:
            try:
                start_new_thread(self._run, ())
            except RuntimeError as error:
                if str(error).startswith(_NO_THREAD):
                    raise NoThreadError(*error.args) from error
                raise

    def _run(self) -> None:
        """Do the tasks in this thread, unless another is at it, which does them then."""
        mine = threading.get_ident()
        self._alive.append(mine)
        try:
            # Asked again once nobody is at work: who brought tasks meanwhile has begun no other.
            while self._tasks and self._at_work.setdefault(0, mine) == mine:
                try:
                    # A thread that came back from the core later would abort the process.
                    atexit.register(self.join)
                    while (task := self._first()) is not None:
                        self._do(task)
                        del task  # what it holds is not held while nothing is to do
                finally:
                    atexit.unregister(self.join)
                    self._at_work.clear()
        finally:
            self._alive.remove(mine)
            self._changed.notify_all()

    def _first(self) -> "_Queued | None":
        try:
            return self._tasks[0]
        except IndexError:  # another thread has taken back what it had added
            return None

    def _do(self, task: "_Queued") -> None:
        try:
            self.wait_for_quiet()
            task.run()
        except BaseException:  # such as a warning that counts as an error
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))
        finally:
            with suppress(ValueError):  # where the system gave no thread
                self._tasks.remove(task)
            self._changed.notify_all()

    def _waits(self) -> bool:
        """Whether the task that is next is to wait; asked by the thread."""
        first = self._first()
        has_time = first is not None and first.until_s > self._clock()
        is_beside = any(not it.is_over for it in self._requests.copy())
        return has_time and is_beside and not self._hurries


class _Queued(NamedTuple):
    """A task, and until when it waits for requests."""

    run: Callable[[], object]
    until_s: float
