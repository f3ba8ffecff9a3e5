"""How long each stage of an export takes.

In: what an export says of its progress. Out: seconds by stage; layers count as one, as do blocks.
"""

import time

from coordgen_rs.convert.bundle import Progress

_NUMBER = " _0123456789"
"""What stands behind the name of a stage that has several parts."""


class Stages:
    """Passes progress on, and notes the time.

    Attributes:
        seconds: Seconds by stage, in the order in which they began; "start" is the time before.
    """

    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._stage, self._since_s = "start", time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note that a stage begins, and the one before has ended."""
        now_s = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = what.rstrip(_NUMBER), now_s
        self._on_progress(what, done, total)
