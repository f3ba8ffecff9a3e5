"""Work that one thread at a time does, whatever interrupts it.

In: work. Out: what it finds, or that another thread is at work. A `threading.Lock` would not do:
Python raises Ctrl-C behind whichever call ends first, and so between `acquire` and the `try` behind
it. Then nobody could work any more.
"""

from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from coordgen_rs.threads.bell import Bell

_Found = TypeVar("_Found")


class _Worker:
    """Somebody at work; each time another object.

    Args:
        thread: Its thread.
    """

    __slots__ = ("thread",)

    def __init__(self, thread: int) -> None:
        self.thread = thread


class OneAtATime:
    """Lets one thread at a time work.

    Args:
        bell: Rung whenever somebody has worked.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._at_work = dict[int, _Worker]()  # under 0, if anybody is

    @property
    def thread(self) -> int | None:
        """The thread that is at work; None while none is."""
        worker = self._at_work.get(0)
        return None if worker is None else worker.thread

    def do(self, work: Callable[[], _Found]) -> _Found | None:
        """What `work` returns; None while another thread is at work, or this one is already."""
        at_work, mine = self._at_work, _Worker(get_ident())
        # One call begins, and one ends. What stands between them and the `try` calls nothing.
        try:
            if at_work.setdefault(0, mine) is not mine:
                return None
            return work()
        finally:
            if 0 in at_work and at_work[0] is mine:
                try:
                    at_work.clear()
                finally:
                    self._bell.ring()
