"""The items of one request that is answered in rounds: its generator, and what waits to be read.

In: the generator. Out: items, as far as each round makes them. Rounds hold it until it is over, so
that no finalizer of a stream runs the generator: that would be in whichever thread, beside a round.
"""

from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Generic, TypeVar

from coordgen_rs.errors import CallOrderError
from coordgen_rs.model.answer import NOTHING_YET
from coordgen_rs.model.request import Beside

_Item = TypeVar("_Item")


class Items(Generic[_Item]):
    """What one request adds up to.

    Args:
        generator: Makes the items; `NOTHING_YET` is none, but where it waits for the next run.
        beside: What its request writes beside the rounds: it is over when that is done.

    Attributes:
        made: Those that nobody has read.
        error: What went wrong.
        is_given_up: Whether nobody reads it any more.
        is_over: Whether nothing is made any more.
        reader: The thread that was the last to read.
    """

    def __init__(self, generator: Generator[_Item], beside: Beside) -> None:
        self._generator, self._beside = generator, beside
        self.made = deque[_Item]()
        self.error: Exception | None = None
        self.is_given_up = self.is_over = False
        self.reader: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is an item, or none will come any more."""
        return bool(self.made) or self.is_over

    def give_up(self) -> None:
        """Have the next round end it; waits for nothing."""
        self.is_given_up = True
        self.made.clear()

    def resume(self) -> bool:
        """Go on until the request waits for a run, or ends. Whether anything was made.

        To be called by who makes the round.
        """
        if self.is_given_up:
            return self.finish()
        num_made = len(self.made)
        try:
            while (item := next(self._generator)) is not NOTHING_YET:
                self.made.append(item)
        except StopIteration:
            storing = self._beside.storing
            is_over = storing is None or storing.is_done  # asked first: its error comes before
            self.error = None if storing is None else storing.error
            self.is_over = is_over
        except Exception as error:
            self.error, self.is_over = error, True
        except BaseException:  # Ctrl-C in a thread that may not be the reader's
            self.error = CallOrderError("the answer was broken off: ask for it again")
            self.is_over = True
            with suppress(Exception):  # an interrupt behind `next` leaves it open, with its place
                self._generator.close()
            raise
        return self.is_over or len(self.made) > num_made

    def finish(self) -> bool:
        """Close the generator; to be called by who makes the round. True."""
        try:
            self._generator.close()
        finally:
            self.made.clear()
            self.is_over = True
        return True
