"""A thread that writes between requests: what an answer leaves waits for no disk.

In: pieces of work, and when requests run. Out: the work is done, in order, one piece at a time,
where that takes no request's time. What fails is told as of any thread, and the next is done.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from coordgen_rs.store.background import BackgroundThread, Condition, Lease, NoThreadError

_MOST_WAIT_S = 10.0
"""What waits holds memory, and is lost with its process."""


class Writer:
    """Runs work in a thread of its own, which is there while there is any.

    Work waits until no request runs, as it would take its time; but not for long. No lock is held,
    which an interrupt would leave behind: each change is one call.

    Args:
        most_wait_s: Seconds that a piece of work waits for requests, at most.
        clock: Gives seconds.
    """

    def __init__(
        self, most_wait_s: float = _MOST_WAIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_wait_s, self._clock = most_wait_s, clock
        self._jobs = deque[_Job]()
        self._changed = Condition()
        self._requests = deque[Lease]()  # those that run; who is over is none of them
        self._hurries = deque[Lease]()  # those that wait for the work
        self._thread = BackgroundThread(
            self._work, lambda: bool(self._jobs), self._changed, self.flush
        )

    def add(self, job: Callable[[], None]) -> None:
        """Have work done.

        Raises:
            NoThreadError: The system gives no thread for it.
        """
        added = _Job(job, self._clock() + self._most_wait_s)
        self._jobs.append(added)
        try:
            self._thread.start()
        except NoThreadError:
            with suppress(ValueError):  # a thread that was about to end has done it
                self._jobs.remove(added)
                raise
        self._changed.notify_all()

    def wait_beside(self, request: Lease) -> None:
        """Have work wait until a request is over."""
        _forget(self._requests)
        self._requests.append(request)

    def look_again(self) -> None:
        """Go on, if no request runs any more."""
        self._changed.notify_all()

    def wait_for_quiet(self) -> None:
        """Wait until no request runs, within work that has parts: between these."""
        self._changed.wait_for(lambda: None if self._waits() else True)

    def _waits(self) -> bool:
        """Whether the work that is next is to wait; asked by the thread."""
        has_time = self._jobs[0].until_s > self._clock()
        return has_time and _are_there(self._requests) and not _are_there(self._hurries)

    def flush(self) -> None:
        """Wait until all is done."""
        mine = Lease()
        try:
            self._hurries.append(mine)
            self._thread.start()  # who added it may have been interrupted
            self._changed.notify_all()
            self._thread.wait_for(lambda: not self._jobs)
        finally:
            mine.is_over = True
            _forget(self._hurries)

    def close(self) -> None:
        """Wait until all is done, and for the thread's end."""
        self.flush()  # it hurries
        self._thread.join()

    def _work(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            try:
                self.wait_for_quiet()
                job.run()
            except BaseException:  # such as a warning that counts as an error
                told = threading.ExceptHookArgs((*sys.exc_info(), None))
                threading.excepthook(told)
            finally:
                with suppress(ValueError):  # where the system gave no thread
                    self._jobs.remove(job)
                del job  # what it holds is not held while nothing is to do
                self._changed.notify_all()


def _are_there(leases: deque[Lease]) -> bool:
    """Whether one of them is not over."""
    return any(not it.is_over for it in leases.copy())


def _forget(leases: deque[Lease]) -> None:
    """Forget those that are over."""
    for lease in leases.copy():
        if lease.is_over:
            with suppress(ValueError):  # another thread was first
                leases.remove(lease)


class _Job(NamedTuple):
    """A piece of work, and until when it waits for requests."""

    run: Callable[[], None]
    until_s: float
