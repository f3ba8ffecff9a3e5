"""The process that something was opened in.

In: the process that asks. Out: nothing, or the refusal where that is a fork: it has the memory, but
none of the threads, and locks that they held stay locked for good. What is open in a process is
refused to be copied for the same reason.
"""

import os
from typing import NoReturn, SupportsIndex

from coordgen_rs.errors import ForkedError, OptionError


class NotCopied:
    """What holds threads, files or a cache of its process, which a copy would close for both."""

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Refuse `copy.copy`, `copy.deepcopy` and `pickle`.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            f"a {type(self).__name__} can be neither copied nor pickled: use it in both places, or "
            "open another one"
        )


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
