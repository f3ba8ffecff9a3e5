"""Tasks that a thread of their own does, in order, while who brought them goes on.

In: calls. Out: what they return or raise, once they are done.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, cast

from coordgen_rs.store.threads.bell import Bell
from coordgen_rs.store.threads.one_thread import NoThreadError, OneThread

_Found = TypeVar("_Found")


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


class Tasks:
    """Tasks of one thread, which is there while there are any."""

    def __init__(self) -> None:
        self._waiting = waiting = deque[Callable[[], object]]()
        # It does not refer to who brings tasks: what is dropped is freed at once.
        self._thread = OneThread(partial(_do, waiting), partial(bool, waiting), Bell())

    def add(self, task: Callable[[], object]) -> None:
        """Have something be done; in this thread, where the system gives no other for it."""
        self._waiting.append(task)
        try:
            self._thread.begin()
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
