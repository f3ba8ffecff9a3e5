"""A bell for threads that wait until something has changed.

In: a question that each waiting thread asks again whenever the bell rings. Out: its answer. What
the question is about is not known here.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeVar

_Found = TypeVar("_Found")

_LONGEST_SLEEP_S = 1.0
"""Then who waits asks again: Ctrl-C may have come in the midst of ringing."""


class Bell:
    """Wakes the threads that wait for it.

    Ringing waits for nothing, so the finalizer of a dropped stream may do it, in whichever thread
    and between whichever two instructions Python runs it. A `threading.Condition` would not do:
    there, a finalizer in the midst of `wait` either waits for its own thread, or is not heard.
    """

    def __init__(self) -> None:
        self._asleep = deque[Lock]()

    def ring(self) -> None:
        """Wake all who wait now."""
        for asleep in self._asleep.copy():
            with suppress(RuntimeError):  # somebody else has just woken it
                asleep.release()

    def wait_for(self, answer: Callable[[], _Found | None]) -> _Found:
        """The first answer that is not None.

        Args:
            answer: Called now, at each ring, and once a second.
        """
        while (found := answer()) is None:
            asleep = Lock()
            asleep.acquire()
            try:
                self._asleep.append(asleep)
                if (found := answer()) is not None:  # a ring before the line above was not heard
                    return found
                asleep.acquire(timeout=_LONGEST_SLEEP_S)
            finally:
                with suppress(ValueError):
                    self._asleep.remove(asleep)
        return found
