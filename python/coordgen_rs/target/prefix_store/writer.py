"""A thread that writes between requests: what an answer leaves waits for no disk.

In: pieces of work, and when requests run. Out: the work is done, in order, one piece at a time,
where that takes no request's time. What fails is told as of any thread, and the next is done.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_MOST_WAIT_S = 10.0
"""What waits holds memory, and is lost with its process."""


class Room:
    """How much memory what waits to be written may take.

    Args:
        most_bytes: Most bytes; more only for what is alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._taken = most_bytes, 0
        self._right = threading.Lock()

    def take(self, num_bytes: int) -> bool:
        """Take so many bytes, if there is room."""
        with self._right:
            has_room = self._taken == 0 or self._taken + num_bytes <= self._most_bytes
            self._taken += num_bytes if has_room else 0
            return has_room

    def give_back(self, num_bytes: int) -> None:
        """Give back what was taken."""
        with self._right:
            self._taken -= num_bytes


class Writer:
    """Runs work in a thread of its own, which begins with the first and ends when it is closed.

    Work waits until no request runs, as it would take its time; but not for long.

    Args:
        most_wait_s: Seconds that a piece of work waits for requests, at most.
        clock: Gives seconds.
    """

    def __init__(
        self, most_wait_s: float = _MOST_WAIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_wait_s, self._clock = most_wait_s, clock
        self._jobs = deque[_Job]()
        self._changed = threading.Condition()
        self._num_requests = self._num_flushing = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], None]) -> None:
        """Have work done.

        Raises:
            RuntimeError: The system gives no thread for it.
        """
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="prefixes", daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(_Job(job, self._clock() + self._most_wait_s))
            self._changed.notify_all()

    @contextmanager
    def beside_request(self) -> Iterator[None]:
        """While a request runs, work waits."""
        with self._changed:
            self._num_requests += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_requests -= 1
                self._changed.notify_all()

    def wait_for_quiet(self) -> None:
        """Wait until no request runs, within work that has parts: between these."""
        with self._changed:
            while self._waits() and (rest_s := self._jobs[0].until_s - self._clock()) > 0:
                self._changed.wait(rest_s)

    def _waits(self) -> bool:
        return bool(self._num_requests) and not self._num_flushing and not self._is_closed

    def flush(self) -> None:
        """Wait until all is done."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._jobs)
            self._num_flushing -= 1

    def close(self) -> None:
        """Wait until all is done, and end the thread."""
        with self._changed:
            self._is_closed, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    return
                job = self._jobs[0]
            try:
                self.wait_for_quiet()
                job.run()
            except Exception:  # such as a warning that counts as an error
                told = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                threading.excepthook(told)
            finally:
                del job  # what it holds is not held while nothing is to do
                with self._changed:
                    self._jobs.popleft()
                    self._changed.notify_all()


class _Job(NamedTuple):
    """A piece of work, and until when it waits for requests."""

    run: Callable[[], None]
    until_s: float
