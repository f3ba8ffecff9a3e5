"""The process that something was opened in.

In: the process that asks. Out: nothing, or the refusal where that is a fork: it has the memory, but
none of the threads, and locks that they held stay locked for good.
"""

import os

from coordgen_rs.errors import ForkedError


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
