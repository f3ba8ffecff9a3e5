"""A thread of its own for work that outlives the call which brings it.

In: work, by any thread. Out: it is done, by one thread at a time, which ends when there is none
left. Who begins it may be interrupted between any two instructions.
"""

import atexit
from _thread import start_new_thread
from collections.abc import Callable
from threading import get_ident

from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import OpenedHere
from coordgen_rs.store.threads.bell import Bell

_NO_THREAD = "can't start new thread", "can't create new thread"
"""What Python says then; a handler of a signal may raise RuntimeError, too."""


class NoThreadError(RuntimeError):
    """The system gives no thread; no handler of a signal raises this."""


class OneThread:
    """Works in a thread while there is work.

    `threading.Thread` is begun and waited for in Python, and an interrupt there leaves one of which
    nobody knows, or takes one for ended that is not. So the system's own call begins it: it has
    begun or not. Should two begin, whichever is there first works, and the other ends at once.

    Args:
        work: Does all that there is to do.
        has_work: Whether there is anything to do.
        bell: Rung when a thread has ended.
        at_exit: Called when Python ends while the thread is there: one that came back from the core
            later would abort the process. None for `join`.
    """

    def __init__(
        self,
        work: Callable[[], None],
        has_work: Callable[[], bool],
        bell: Bell,
        at_exit: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._has_work, self._bell = work, has_work, bell
        self._at_exit = self.join if at_exit is None else at_exit
        self._at_work = dict[int, int]()  # under 0, if one is
        self._alive = list[int]()
        self._opened = OpenedHere()  # a fork has the work, but not the thread

    @property
    def is_alive(self) -> bool:
        """Whether there is a thread."""
        return bool(self._alive)

    def begin(self) -> None:
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
            NoThreadError: Same as in `begin`.
        """
        if self._at_work.get(0) == get_ident() and not self._opened.is_forked:
            raise CallOrderError("what a thread does cannot wait for the thread's end")
        self._bell.wait_for(self._has_ended)

    def wait_for(self, answer: Callable[[], object]) -> None:
        """Wait until something is so that the work brings about; in a fork, for nothing."""
        self._bell.wait_for(lambda: answer() or self._opened.is_forked or None)

    def _has_ended(self) -> bool | None:
        """True once there is nothing to do; None while a thread works."""
        if self._opened.is_forked:
            return True
        self.begin()  # who brought the work may have been interrupted before
        return None if self._has_work() or self._alive else True

    def run(self) -> None:
        """Do the work in this thread, unless another is at it, which does it then."""
        mine = get_ident()
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
            self._bell.ring()
