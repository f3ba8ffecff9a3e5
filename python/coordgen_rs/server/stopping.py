"""How a server is told to end: a first signal lets running requests end, a second one does not.

In: signals, and what runs. Out: whether it is time to end, asked for from time to time. Signals are
only counted where they are heard; all else is done by who asks, so nothing is done twice at once.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Answerer(Protocol):
    """What answers requests."""

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""

    def close(self) -> None:
        """Take no more requests; those that wait are still answered."""


class Stopping:
    """The end of a server.

    Args:
        answerer: Takes no more requests from the first signal on.
        grace_s: Seconds that requests get from then on.
        tell: Takes a line for the user.
        leave: Ends the process; called from the second signal on once nothing needs to be told.
    """

    def __init__(
        self,
        answerer: Answerer,
        grace_s: float,
        tell: Callable[[str], None],
        leave: Callable[[], object],
    ) -> None:
        self._answerer, self._grace_s, self._tell, self._leave = answerer, grace_s, tell, leave
        self._num_signals = 0
        self._is_past_telling = False
        self._until_s: float | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether there was a second signal."""
        return self._num_signals > 1

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to end, once a signal was heard.

        Args:
            now_s: Seconds of a clock that is the same in each call.
        """
        if not self._num_signals:
            return False
        if self._until_s is None:
            self._until_s = now_s + self._grace_s
            self._answerer.close()
            self._tell(self._told())
        is_idle = not self._answerer.num_running + self._answerer.num_waiting
        return is_idle or self.is_urgent or now_s >= self._until_s

    def left_s(self, now_s: float) -> float:
        """How much of the grace is left; 0 where it was not begun."""
        return 0.0 if self._until_s is None else max(self._until_s - now_s, 0.0)

    def end(self) -> None:
        """Say that all requests have ended: from now on a second signal leaves at once."""
        self._is_past_telling = True
        if self.is_urgent:
            self._leave()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear SIGINT and SIGTERM within the block."""
        before = {
            number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        if self._is_past_telling and self.is_urgent:
            self._leave()

    def _told(self) -> str:
        running, waiting = self._answerer.num_running, self._answerer.num_waiting
        if not running + waiting:
            return "ending: no request is being answered; Ctrl-C again stops at once"
        also = f", {waiting} wait{'s' if waiting == 1 else ''}" if waiting else ""
        return (
            f"draining: {running} request{'s run' if running != 1 else ' runs'}{also}; they get "
            f"{self._grace_s:g} s (--grace), new ones status 503; Ctrl-C again stops at once"
        )
