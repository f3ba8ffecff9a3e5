"""Streams over steps that are made as they are asked for, by who reads: without an engine.

In: a generator of steps. Out: a `Stream` over them.
"""

from coordgen_rs.model.answer import read
from coordgen_rs.model.stream import Stream
from coordgen_rs.text.stop import StopStrings


class Pulled:
    """What `Stream` asks of `Events`; dropped, it closes the steps.

    Args:
        reads: What the steps make certain.
    """

    is_ready, is_whole = True, False

    def __init__(self, reads):
        self._reads, self._first, self._error = reads, None, None
        self.is_cancelled = False

    def belong_to(self, stream):
        """The stream holds this: with it, the steps are dropped."""

    def ask(self):
        """Nothing has to begin."""

    def peek(self):
        if self._error is not None:
            raise self._error
        try:
            self._first = next(self._reads) if self._first is None else self._first
        except Exception as error:
            self._error = error
            raise
        return self._first

    def drop(self):
        self._first = None

    def cancel(self, error=None):
        self.is_cancelled, self._first, self._error = True, None, self._error or error
        self._reads.close()


def stream_of_steps(steps, stats, decode=chr, stop=(), **options):
    """A stream; the arguments are those of `read`, `options` those of `Stream`."""
    return Stream(Pulled(read(steps, stats, decode, StopStrings(stop))), stats, **options)
