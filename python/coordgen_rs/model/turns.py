"""Requests of one session that take turns.

In: requests, from any thread. Out: their steps, of one request at a time; the others wait. Who
waits behind a stream that nobody is reading right now makes its next steps meanwhile: its reader
may be waiting for this very thread, as where a pool has fewer threads than streams. What a request
asks for (`options.py`), and how it is answered (`generation/loop.py`), is not known here.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from threading import get_ident
from typing import Any, TypeVar
from weakref import ref

from coordgen_rs.errors import CallOrderError, SessionClosedError
from coordgen_rs.errors.process import OpenedHere
from coordgen_rs.generation.step import Step
from coordgen_rs.model.making import Making
from coordgen_rs.model.request import ModelRequest
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.prefixes import PrefixPool
from coordgen_rs.threads.bell import Bell

_Item = TypeVar("_Item")


class Turn:
    """One request.

    Args:
        turns: Tells whose turn it is.
        request: Same as in `Turns.turn`.

    Attributes:
        steps: Its steps; they begin when the first is asked for.
    """

    def __init__(self, turns: "Turns", request: ModelRequest) -> None:
        self._bell = turns.bell
        self._making: list[ref[Making[Any]]] = []
        self.steps = turns.steps(request, self._making)

    def made(self, read: Generator[_Item]) -> Making[_Item]:
        """What is read of the steps, to be made by this thread or by one that waits behind it."""
        making = Making(read, self._bell)
        self._making.append(ref(making))
        return making


class Turns:
    """The requests of a session.

    Args:
        session: The target; nothing else may use it.
        prefixes: What is kept of requests of earlier namespaces; None keeps nothing.
        namespace: The namespace whose tokens the session holds.
        release: Called by each `close`, when no request runs any more and none may begin.

    Attributes:
        bell: Rung when a step was made, and when a request has ended.
        is_closed: Whether no request may begin any more.
    """

    def __init__(
        self,
        session: OrtSession,
        prefixes: PrefixPool | None,
        namespace: str,
        release: Callable[[], None],
    ) -> None:
        self._session, self._prefixes, self._release = session, prefixes, release
        self._held_by = namespace
        self.bell = Bell()
        # Who has the session, from a request's first step to its end, and behind it who waits. To
        # be the first is to have it, and one call leaves it: Ctrl-C comes between no two of them.
        self._queue = deque[object]()
        self._open: list[ref[Making[Any]]] = []  # what makes the answer of the request that has it
        self.is_closed = False
        self._opened = OpenedHere()

    def has_news(self) -> None:
        """Have those who wait look again."""
        self.bell.ring()

    def turn(self, request: ModelRequest) -> Turn:
        """A request, which waits for its turn when its first step is asked for.

        That raises CallOrderError where the request could never begin, SessionClosedError when all
        are closed, ForkedError in a fork of the process, and what `generate` raises.
        """
        return Turn(self, request)

    def check_outside(self) -> None:
        """Check that this thread is making no step, as in a callback.

        Raises:
            CallOrderError: It is.
        """
        making = None if self._opened.is_forked else self._now_open()
        if making is not None and making.maker == get_ident():
            raise CallOrderError("the model cannot be closed within a step of its own")

    def close(self) -> None:
        """Release all, when the open request has ended.

        One that this thread was the last to read ends at once; any other is answered. In a fork of
        the process, nothing happens.

        Raises:
            CallOrderError: This thread is making a step.
        """
        if self._opened.is_forked:
            return
        self.check_outside()
        making = self._now_open()
        if making is not None and making.is_this_threads:
            making.close()
        place = object()
        try:
            self._wait(place, [])
            self.is_closed = True
            self._release()
        finally:
            if place in self._queue:
                self._queue.remove(place)
            self.bell.ring()

    def steps(self, request: ModelRequest, making: list[ref[Making[Any]]]) -> Generator[Step]:
        """The steps of a request, while no other runs; `making` is to hold what reads them.

        Raises:
            CallOrderError: This thread is making a step; or it is the main thread, and has a stream
                open.
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        self._opened.check("model")
        self._check_order()
        place = object()
        try:
            self._wait(place, making)
            if making and _is_given_up(making):
                return
            if self.is_closed:
                raise SessionClosedError("the model is closed")
            self._hand_over(request.namespace)
            steps = _checked(request, making).steps(self._session)
            try:
                self._open = making
                yield from steps
            finally:
                self._open = []
                steps.close()
        finally:
            if place in self._queue:
                self._queue.remove(place)
            self.bell.ring()

    def _check_order(self) -> None:
        """Refuse what would wait for a stream that was forgotten half-way.

        Raises:
            CallOrderError: The main thread has a stream open.
        """
        making = self._now_open()
        if making is not None and making.is_read_around_here:
            raise CallOrderError(
                "this thread has a stream of the model open: exhaust it or close it first"
            )

    def _wait(self, place: object, making: list[ref[Making[Any]]]) -> None:
        """Wait until all who have waited longer are done, or `making` is given up.

        Whoever does must take the place out of the queue again, also where this raises.

        Raises:
            CallOrderError: This thread is making a step.
        """
        self._queue.append(place)
        self.bell.wait_for(lambda: self._granted(place, making))

    def _granted(self, place: object, making: list[ref[Making[Any]]]) -> bool | None:
        """True once the session is this thread's, or is not wanted; None while it has to wait.

        Raises:
            CallOrderError: This thread is making a step.
        """
        is_changed = True
        while is_changed:
            if self._queue[0] is place or (making and _is_given_up(making)):
                return True
            is_changed = self._helped()
        return None

    def _helped(self) -> bool:
        """Make a step of the open request; whether there was one to make.

        Raises:
            CallOrderError: This thread is making one.
        """
        making = self._now_open()  # not held for longer: a stream that is dropped is to end
        if making is None:
            return False
        if making.maker == get_ident():
            raise CallOrderError("a request cannot begin within a step of another one")
        return making.make()

    def _now_open(self) -> Making[Any] | None:
        """What makes the answer of the request that has the session, if one has it."""
        for making in self._open:
            return making()
        return None

    def _hand_over(self, namespace: str) -> None:
        """See that the session holds nothing of another namespace."""
        if namespace == self._held_by:
            return
        if self._prefixes is not None:
            self._prefixes.hand_over(self._session, namespace)
        self._session.rewind(0)
        self._held_by = namespace


class _GivenUpError(Exception):
    """Nobody reads the answer any more: what is left of the prompt need not be read."""


def _checked(request: ModelRequest, making: list[ref[Making[Any]]]) -> ModelRequest:
    """The request, which ends behind a chunk of its prompt when it is given up."""
    asked = request.asked

    def on_read(num_read: int) -> None:
        if making and _is_given_up(making):
            raise _GivenUpError(f"given up after {num_read} tokens of the prompt")
        if asked.on_read is not None:
            asked.on_read(num_read)

    return replace(request, asked=replace(asked, on_read=on_read))


def _is_given_up(making: list[ref[Making[Any]]]) -> bool:
    found = making[0]()
    return found is None or found.is_given_up
