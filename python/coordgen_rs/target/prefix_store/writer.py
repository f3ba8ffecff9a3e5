"""A thread that writes beside requests: what an answer leaves waits for no disk.

In: pieces of work. Out: they are done, in order, one at a time. What fails is told as of any
thread, and the next is done.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable


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
    """Runs work in a thread of its own, which begins with the first and ends when it is closed."""

    def __init__(self) -> None:
        self._jobs = deque[Callable[[], None]]()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, job: Callable[[], None]) -> None:
        """Have work done."""
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="prefixes", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs)

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
                job()
            except Exception:  # such as a warning that counts as an error
                told = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                threading.excepthook(told)
            finally:
                del job  # what it holds is not held while nothing is to do
                with self._changed:
                    self._jobs.popleft()
                    self._changed.notify_all()
