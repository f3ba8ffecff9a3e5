"""What is made on demand by a generator, for readers and helpers in any thread.

In: a generator. Out: its items in order, to whoever takes them. A thread that cannot begin its own
work before the generator has ended may make items ahead: they wait here until they are read.
"""

from collections import deque
from collections.abc import Generator
from contextlib import suppress
from contextvars import ContextVar
from threading import get_ident, main_thread
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from coordgen_rs.errors import CallOrderError
from coordgen_rs.model.one_at_a_time import OneAtATime
from coordgen_rs.threads.bell import Bell

_Item = TypeVar("_Item")
_Made = TypeVar("_Made", covariant=True)

_READ_HERE: ContextVar["ref[Making[Any]] | None"] = ContextVar("read_here", default=None)
"""What the program, or the task that runs, last read in the main thread."""


class Made(Protocol[_Made]):
    """Items of a generator, in order, for the thread that asks for them."""

    @property
    def is_given_up(self) -> bool:
        """Whether it was closed before its end."""

    @property
    def is_ready(self) -> bool:
        """Whether there is an item, or none will come any more."""

    def drive(self) -> None:
        """Make an item ahead, or wait until another thread has."""

    def give_up(self) -> None:
        """End the generator with its next item; waits for nothing."""

    def is_asked(self) -> None:
        """Say that this thread reads on, also if what it reads was taken before."""

    def is_read(self) -> None:
        """Say that it got what it had asked for."""

    def peek(self) -> _Made:
        """The next item, which stays until `drop`; raises StopIteration where there is none."""

    def drop(self) -> None:
        """Have the next item be the one behind it."""

    def close(self) -> None:
        """End the generator where it stands."""


class Making(Generic[_Item]):
    """The items of a generator, which one thread at a time makes.

    The generator must not refer to this object: then one that is dropped is closed at once.

    Args:
        items: The generator.
        bell: Rung whenever an item was made, and when there will be no more.

    Attributes:
        is_given_up: Whether it was closed before its end.
    """

    def __init__(self, items: Generator[_Item], bell: Bell) -> None:
        self._items, self._bell = items, bell
        self._made = deque[_Item]()
        self._error: Exception | None = None
        self._is_over = self.is_given_up = False
        self._alone = OneAtATime(bell)  # makes an item, or closes the generator
        self._reader: int | None = None

    @property
    def maker(self) -> int | None:
        """The thread that is making an item; None while none is."""
        return self._alone.thread

    def is_asked(self) -> None:
        """Say that this thread reads on, also if what it reads was taken before."""
        self._reader = get_ident()

    def is_read(self) -> None:
        """Say that it got what it had asked for."""
        if get_ident() == main_thread().ident:
            _READ_HERE.set(ref(self))

    @property
    def is_ready(self) -> bool:
        """Whether there is an item, or none will come any more."""
        return bool(self._made) or self._error is not None or self._is_over

    def drive(self) -> None:
        """Make an item ahead, or wait until another thread has."""
        self._bell.wait_for(self._driven)

    def give_up(self) -> None:
        """End the generator with its next item; waits for nothing."""
        self.is_given_up = True
        self._bell.ring()

    @property
    def is_this_threads(self) -> bool:
        """Whether this thread was the last to read."""
        return self._reader == get_ident()

    @property
    def is_read_around_here(self) -> bool:
        """Whether what this thread does is done while it reads, as in the body of a loop.

        Only the main thread can tell, and there each task for itself. In a thread of a pool, one
        beside the other, there are pieces of streams that have nothing to do with each other.
        """
        read = _READ_HERE.get()
        is_main = get_ident() == main_thread().ident
        return is_main and self.is_this_threads and read is not None and read() is self

    def peek(self) -> _Item:
        """The next item, made now unless that was done ahead; it stays until `drop`.

        Raises:
            StopIteration: There is none.
            CallOrderError: The thread is making an item, or one that made it was interrupted.
        """
        item: _Item = self._bell.wait_for(self._found)[0]
        return item

    def drop(self) -> None:
        """Have the next item be the one behind it."""
        with suppress(IndexError):  # it was closed meanwhile
            self._made.popleft()

    def make(self) -> bool:
        """Make an item ahead, unless another thread is at it, or all are made.

        What goes wrong is for the reader. An interrupt of the calling thread is raised, too.

        Returns:
            Whether anything was done.
        """
        if self._is_over or self._error is not None:
            return False
        return self._alone.do(self._make) or False

    def close(self) -> None:
        """End the generator where it stands; what was made ahead is dropped.

        A thread that is making an item ends it first. If that is this one, as in a callback, the
        generator is closed behind that item.
        """
        self.is_given_up = True
        self._bell.ring()
        if self.maker != get_ident():
            self._bell.wait_for(self._closed)

    def _driven(self) -> bool | None:
        """True once there is nothing to wait for; None while another thread makes an item."""
        return True if self.is_ready or self.make() or self.is_given_up else None

    def _found(self) -> tuple[_Item] | None:
        """An item; None while another thread makes one.

        Raises:
            StopIteration: There is none.
            CallOrderError: Same as in `peek`.
        """
        while True:
            error, is_over = self._error, self._is_over  # read first: items are made before these
            with suppress(IndexError):
                return (self._made[0],)
            if error is not None:  # what is not complete does not just end
                raise error
            if is_over:
                raise StopIteration
            if self.maker == get_ident():
                raise CallOrderError("a stream cannot be read while it makes its own next step")
            if not self.make() and not (self._made or self._error or self._is_over):
                return None

    def _closed(self) -> bool | None:
        """True once the generator is closed; None while another thread makes an item."""
        return self._alone.do(self._finish)

    def _make(self) -> bool:
        """Make an item; True."""
        try:
            self._made.append(next(self._items))
        except StopIteration:
            self._is_over = True
        except Exception as error:
            self._error = error
        except BaseException:  # Ctrl-C in a thread that may not be the reader's
            self._error = CallOrderError("the answer was broken off: ask for it again")
            with suppress(Exception):  # an interrupt behind `next` leaves it open
                self._items.close()
            raise
        finally:
            try:
                if self.is_given_up:
                    self._finish()
            except Exception as error:  # whoever makes the item may be a helper
                self._error = error
        return True

    def _finish(self) -> bool:
        """Close the generator; True."""
        try:
            self._items.close()
        finally:
            self._made.clear()
            self._is_over = True
        return True
