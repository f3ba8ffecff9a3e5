"""Requests of one model that are answered together.

In: requests, from any thread. Out: their steps. There are as many places as sequences; who finds
none free waits for one, in order. There is no thread here: whoever asks for an item makes a round,
unless another thread is at it, and then every request that has a place gains something. So a reader
who is slow keeps nobody waiting, and where nobody reads, nothing runs.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from threading import get_ident
from time import monotonic
from typing import Any, Generic, TypeVar

from coordgen_rs.errors import CallOrderError, SessionClosedError
from coordgen_rs.errors.process import OpenedHere
from coordgen_rs.generation.step import WAITS, Step
from coordgen_rs.model.items import Items
from coordgen_rs.model.one_at_a_time import OneAtATime
from coordgen_rs.model.places import Place, Places
from coordgen_rs.model.request import Beside, ModelRequest
from coordgen_rs.target.batch.batch import Batch
from coordgen_rs.target.prefixes import PrefixPool
from coordgen_rs.threads.bell import Bell
from coordgen_rs.threads.owner import Owner
from coordgen_rs.threads.tasks import Task, Tasks

_Item = TypeVar("_Item")

_LOOKS_AGAIN_S = 0.5
"""After so long it is looked again whether there is something to do, as an interrupt loses news."""


class Member(Generic[_Item]):
    """The items of one request, for those who read them; used like a `Making`.

    One that is dropped gives its request up.

    Args:
        items: What rounds make.
        rounds: Make them.
    """

    def __init__(self, items: Items[_Item], rounds: "Rounds") -> None:
        self._items, self._rounds = items, rounds
        self._seen: object = None

    def __del__(self) -> None:
        """Have the request ended: now, or by the next round where one is made."""
        if "_rounds" in self.__dict__:  # an interrupt may have come before
            self._rounds.drop(self._items)

    @property
    def is_given_up(self) -> bool:
        """Whether it was closed before its end."""
        return self._items.is_given_up

    @property
    def is_ready(self) -> bool:
        """Whether there is an item, or none will come any more."""
        return self._items.is_ready

    def give_up(self) -> None:
        """End the generator with the next round; waits for nothing."""
        self._items.give_up()
        self._rounds.has_news()

    def drive(self) -> None:
        """Make a round, or wait until another thread has made one, or there is something new."""
        self._seen = self._seen or self._rounds.seen
        self._rounds.bell.wait_for(self._driven)
        self._seen = None

    def is_asked(self) -> None:
        """Say that this thread reads on, also if what it reads was taken before."""
        self._seen = self._rounds.seen
        self._items.reader = get_ident()
        self._rounds.join(self._items)

    def is_read(self) -> None:
        """Say that it got what it had asked for."""

    def peek(self) -> _Item:
        """The next item, which stays until `drop`.

        Raises:
            StopIteration: There is none.
            CallOrderError: The thread is making a round, or one that made it was interrupted.
        """
        item: _Item = self._rounds.bell.wait_for(self._found)[0]
        return item

    def drop(self) -> None:
        """Have the next item be the one behind it."""
        with suppress(IndexError):  # it was closed meanwhile
            self._items.made.popleft()

    def close(self) -> None:
        """End the generator where it stands; what was made is dropped.

        A thread that is making a round ends it first, and closes the generator in the next. If that
        is this one, as in a callback, nothing waits for it.
        """
        self._rounds.end(self._items)

    def _driven(self) -> bool | None:
        """True once a round was made; None while another thread makes one, or all wait."""
        rounds = self._rounds
        is_made = rounds.seen is not self._seen or self._items.is_ready
        return True if is_made or rounds.make(self._items) else None

    def _found(self) -> tuple[_Item] | None:
        """An item; None while another thread makes a round, or all wait for a disk.

        Raises:
            StopIteration: There is none.
            CallOrderError: Same as in `peek`.
        """
        items = self._items
        while True:
            is_over, error = items.is_over, items.error  # read first: items are made before these
            with suppress(IndexError):
                return (items.made[0],)
            if error is not None:  # what is not complete does not just end
                raise error
            if is_over:
                raise StopIteration
            if not self._rounds.make(items) and not items.is_ready:
                return None


@dataclass(eq=False)
class _Ticket(Owner):
    """Who waits for a place, and then has it.

    Attributes:
        steps_aside: Whether others may go first.
    """

    steps_aside: bool = False


class Round:
    """One request.

    Args:
        rounds: Make its steps.
        request: Same as in `Rounds.turn`.

    Attributes:
        steps: Its steps; they begin when the first is asked for.
    """

    def __init__(self, rounds: "Rounds", request: ModelRequest) -> None:
        self._rounds, self._beside = rounds, Beside(rounds.has_news)
        self.steps = rounds.steps(request, self._beside)

    def made(self, read: Generator[_Item]) -> Member[_Item]:
        """What is read of the steps, to be made in rounds."""
        return Member(Items(read, self._beside), self._rounds)


class Rounds:
    """The requests of a batch.

    Args:
        batch: Runs them; nothing else may use it.
        prefixes: What is kept of earlier requests; None keeps what the places hold.
        namespace: The namespace whose tokens the places hold at first.
        release: Called by each `close`, when no request runs any more and none may begin.

    Attributes:
        bell: Rung when a round was made, and when a request has ended.
        alone: Who makes a round, or closes a request.
        is_closed: Whether no request may begin any more.
        seen: Another object whenever a round was made, or there is something new.
    """

    def __init__(
        self,
        batch: Batch,
        prefixes: PrefixPool | None,
        namespace: str,
        release: Callable[[], None],
    ) -> None:
        self._batch, self._prefixes, self._release = batch, prefixes, release
        self._places = Places(batch.sequences, prefixes, namespace)
        self.bell = Bell()
        self.alone = OneAtATime(self.bell)
        self.is_closed = False
        self.seen = object()
        self._idle_until_s = 0.0  # nothing is to do until then, unless there is something new
        self._disk = Tasks()
        self._waiting = deque[_Ticket]()  # for a place, longest first
        self._members = dict[Items[Any], None]()  # in order; one call adds, and one removes
        self._opened = OpenedHere()

    def turn(self, request: ModelRequest) -> Round:
        """A request, which waits for a place when its first step is asked for.

        That raises SessionClosedError when all are closed, ForkedError in a fork of the process,
        and what `generate` raises.
        """
        return Round(self, request)

    def has_news(self) -> None:
        """Have those who wait look again."""
        self._idle_until_s, self.seen = 0.0, object()
        self.bell.ring()

    def steps(self, request: ModelRequest, beside: Beside) -> Generator[Step]:
        """The steps of a request, and `WAITS` where it waits for a place, a disk or a run.

        Args:
            request: Same as in `turn`.
            beside: What it reads and writes on disk.

        Raises:
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        self._opened.check("model")
        if self.is_closed:
            raise SessionClosedError("the model is closed")
        ticket = _Ticket()
        try:
            place = yield from self._place_of(request, ticket)
            prefixes = None if self._prefixes is None else self._prefixes.of(request.namespace)
            read = partial(beside.read, replace(request, prefixes=prefixes), place.session)
            ready = (yield from self._done(read)) if self._reads_files(request) else read()
            place.is_beginning = False
            with closing(ready.steps(place.session)) as steps:
                yield from steps
        finally:
            try:
                self._places.leave(ticket)
            finally:
                ticket.is_over = beside.owner.is_over = True
                self.has_news()

    def _reads_files(self, request: ModelRequest) -> bool:
        """Whether a request reads from disk before it begins."""
        keeps = request.reuse_prefix and self._prefixes is not None and self._prefixes.store
        return bool(keeps) or (request.drafters is not None and request.drafters.reads_files)

    def _done(self, call: Callable[[], _Item]) -> Generator[Step, None, _Item]:
        """What a call returns, which another thread makes: no step waits for a disk."""
        task = Task(call, self.has_news)
        self._disk.add(task.run)
        while not task.is_done:
            yield WAITS
        return task.result()

    def _place_of(self, request: ModelRequest, ticket: "_Ticket") -> Generator[Step, None, Place]:
        """A place, once there is one for a request, and all who have waited longer have theirs.

        Who waits for another request to read the same prompt lets others go first.
        """
        try:
            self._waiting.append(ticket)
            while True:
                before = takewhile(lambda it: it is not ticket, self._waiting.copy())
                ticket.steps_aside = self._places.is_being_read(request)
                if not ticket.steps_aside and all(it.steps_aside for it in before):
                    place = self._places.taken(request, ticket)
                    if place is not None:
                        return place
                yield WAITS
        finally:
            if ticket in self._waiting:
                self._waiting.remove(ticket)

    def join(self, items: Items[Any]) -> None:
        """Let a request take part in rounds."""
        if items not in self._members:
            self._members.setdefault(items)
            self._idle_until_s = 0.0

    def end(self, items: Items[Any]) -> None:
        """Close what makes the items, when no round is made; not waiting for one of this thread."""
        items.give_up()
        self.join(items)  # whoever makes the next round closes it, also if it was never read
        if self.alone.thread != get_ident():
            self.bell.wait_for(lambda: True if items.is_over else self.alone.do(items.finish))
        self.has_news()

    def drop(self, items: Items[Any]) -> None:
        """Close what makes the items, or have the next round do so; waits for nothing."""
        if items.is_over or self._opened.is_forked:
            return
        items.give_up()
        self.alone.do(items.finish)
        self.has_news()

    def make(self, items: Items[Any]) -> bool:
        """Make a round, unless another thread does: every request gains something, or ends.

        Args:
            items: Of who asks.

        Returns:
            Whether anything was done.

        Raises:
            CallOrderError: This thread is making one.
        """
        self.join(items)
        if self.alone.thread == get_ident():
            raise CallOrderError("a stream cannot be read while it makes its own next step")
        return self._idle_until_s <= monotonic() and (self.alone.do(self._make) or False)

    def check_outside(self) -> None:
        """Check that this thread is making no step, as in a callback.

        Raises:
            CallOrderError: It is.
        """
        if not self._opened.is_forked and self.alone.thread == get_ident():
            raise CallOrderError("the model cannot be closed within a step of its own")

    def close(self) -> None:
        """Release all, when the open requests have ended; no other begins any more.

        Those that this thread was the last to read end at once; any other is answered. In a fork of
        the process, nothing happens.

        Raises:
            CallOrderError: This thread is making a step.
        """
        if self._opened.is_forked:
            return
        self.check_outside()
        self.is_closed = True
        for items in self._open():
            if items.reader == get_ident():
                self.end(items)
        self.bell.wait_for(self._released)

    def _released(self) -> bool | None:
        """True once all is released; None while another thread makes a round, or all wait."""
        while (is_released := self.alone.do(self._release_or_make)) is False:
            pass
        return is_released

    def _release_or_make(self) -> bool | None:
        """Release all, or make a round where requests are open; whether all is released.

        None while all requests wait for a disk.
        """
        if not self._open():
            self._disk.join()
            self._release()
            return True
        return False if self._make() else None

    def _make(self) -> bool:
        """Make a round; whether there was anything to do, but to wait for a disk."""
        # Before it is known: what is new meanwhile has it made again.
        self._idle_until_s, is_made = monotonic() + _LOOKS_AGAIN_S, True
        try:
            is_made = self._resume_all() or self._batch.run()
        finally:
            if is_made:
                self._idle_until_s, self.seen = 0.0, object()
        return is_made

    def _open(self) -> list[Items[Any]]:
        """The requests that have begun and not ended."""
        return [it for it in [*self._members] if not it.is_over]

    def _resume_all(self) -> bool:
        """Let every request go on to its next run; whether anything was made."""
        for items in [*self._members]:
            if items.is_over:
                self._members.pop(items, None)
        made = [items.resume() for items in self._open()]
        return any(made)
