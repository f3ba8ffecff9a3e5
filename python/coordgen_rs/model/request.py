"""A request to a model: what it asks for, what it holds to its end, and the events for its reader.

In: a session that is this request's until it ends. Out: its steps; and, from the engine's thread to
whoever reads them, what each step makes certain, and why there is no more, in order. An event stays
until it is dropped, so that an interrupt of the reader loses none, and what waits for one is woken
once for each: an interrupt that comes behind the waking finds the event all the same. When a
request's turn comes is not known here (`engine.py`).
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordgen_rs._core import Sampling
from coordgen_rs.generation.drafting.drafter import Drafters, DraftState
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.stats import Stats
from coordgen_rs.generation.step import Step
from coordgen_rs.model.answer import Detokenized
from coordgen_rs.model.options import RequestOptions
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import LONGEST_SLEEP_S, Lease, Task
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.prefix import KeepsPrefixes

if TYPE_CHECKING:
    from coordgen_rs.text.grammar.matcher import Matcher

MOST_AHEAD = 256
"""Events that wait to be read, where nobody else waits for the request's slot."""


class Progress(NamedTuple):
    """A chunk of the prompt was read.

    Attributes:
        num_read: How many of its tokens were computed.
    """

    num_read: int


Event = Detokenized | Progress


class Events:
    """A queue of events; one thread puts, and any may read, one after the other.

    Args:
        submit: Has the request answered; called when the first event is asked for.
        tell: Has the engine look for what is new, whatever it is told. It is a function of C's, so
            no interrupt keeps a finalizer from it, and waits for nothing.
        check: Cancels them where what is left is not to be read any more.

    Attributes:
        wake: Called, by the engine, with each event, and at the end. It waits for nothing.
        is_whole: Whether the reader wants to be woken at the end only, and for progress.
        is_awaited: Whether an event loop reads them: the loop itself may wait for the model's end.
        is_taken: Whether the engine has the request.
        is_cancelled: Whether the reader wants no more.
        is_over: Whether no event is put any more.
        reader: The thread that was the last to ask.
    """

    def __init__(
        self,
        submit: Callable[["Events"], None],
        tell: Callable[[object], None],
        check: Callable[["Events"], None] = lambda _: None,
    ) -> None:
        self._submit: Callable[[Events], None] | None = submit
        self._tell, self._check = tell, check
        self._stream: ref[object] | None = None
        self._queue = deque[Event]()
        self._woken = SimpleQueue[None]()
        self.wake: Callable[[], object] = partial(self._woken.put, None)
        self._is_held = False
        self.is_whole = self.is_awaited = self.is_taken = self.is_cancelled = self.is_over = False
        self._error: BaseException | None = None
        self._raised: TracebackType | None = None
        self.reader: int | None = None

    def put(self, event: Event) -> None:
        """Add an event."""
        self._queue.append(event)
        if not self.is_whole or isinstance(event, Progress):
            self._wake()

    def end(self, error: BaseException | None) -> None:
        """Put nothing any more; who reads on is told the error, if there is one."""
        if self._error is None and error is not None:
            self._error, self._raised = error, error.__traceback__
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        with suppress(Exception):  # of an event loop, whose tasks end with it
            self.wake()

    def is_far_ahead(self) -> bool:
        """Whether the reader is to take some first: then it has the engine look again."""
        if len(self._queue) < MOST_AHEAD or self.is_whole:
            self._is_held = False
            return False
        self._is_held = True  # before it is asked again: who takes some now sees it
        self._is_held = len(self._queue) >= MOST_AHEAD
        return self._is_held

    def belong_to(self, stream: object) -> None:
        """Be cancelled once a stream is dropped."""
        self._stream = ref(stream, self._tell)

    @property
    def is_wanted(self) -> bool:
        """Whether there is a reader, who wants more."""
        return not (self.is_cancelled or (self._stream is not None and self._stream() is None))

    def ask(self) -> None:
        """Begin, or say that this thread reads on.

        Raises:
            SessionClosedError, ForkedError: Same as in `Engine.submit`.
        """
        self._check(self)
        self.reader = get_ident()
        submit = self._submit  # a signal's handler may read the same answer meanwhile
        if submit is not None and not self.is_cancelled:
            submit(self)
            self._submit = None  # which refers to the request, as that does to these

    @property
    def is_ready(self) -> bool:
        """Whether `peek` returns or raises at once."""
        return bool(self._queue) or self.is_over or self.is_cancelled

    def peek(self) -> Event:
        """The next event, which stays until `drop`; waits until there is one.

        Raises:
            StopIteration: There are no more.
            Others are what went wrong, again with each call.
        """
        while True:
            is_over = self.is_over or self.is_cancelled  # read first: events are put before
            with suppress(IndexError):
                return self._queue[0]
            if is_over:
                self._wake()  # who waits beside, such as what an interrupt has left half-way
                if self._error is not None:  # told again, without the traceback of the last time
                    raise self._error.with_traceback(self._raised)
                raise StopIteration
            self._let_go_on()
            with suppress(Empty):
                self._woken.get(timeout=LONGEST_SLEEP_S)

    def drop(self) -> None:
        """Have the next event be the one behind it."""
        with suppress(IndexError):  # it was cancelled meanwhile
            self._queue.popleft()
        self._let_go_on()

    def _let_go_on(self) -> None:
        """Have the engine go on where it waits for this reader."""
        if self._is_held and len(self._queue) <= MOST_AHEAD // 2:
            self._tell(None)

    def cancel(self, error: Exception | None = None) -> None:
        """Want no more; the request ends within a step. Waits for nothing, also in a finalizer.

        Args:
            error: What who reads on is told; None for the end of the events.
        """
        self._error = self._error or error
        self.is_cancelled = True
        self._queue.clear()
        self._wake()
        self._tell(None)


@dataclass(eq=False)
class ModelRequest:
    """One request; fields that `generate` has, too, are the same there.

    It is the history of its own loop: what is drafted from is read before it begins, and what it
    has said is stored while others take steps.

    Attributes:
        options: What it asks for.
        namespace: Whose request it is.
        drafters: None decodes plainly.
        detokenize: What makes text of its steps.
        prefixes: What is kept of earlier requests; None for nothing, and until it has read.
        drafts: What drafts for it; None until it has read.
        own: What keeps it: that of its own namespace.
        owner: Whose is what it uses until it is over. What others hold of a request is this alone:
            the request refers to its events, and so to who reads them.
        running: What is made of its steps; None until it has a slot.
        storing: The storing of the finished request; None where there is none.
        events: Where the reads go.
        on_read: Called behind each chunk of the prompt with how many tokens were computed.
        on_stored: Called, by the thread that writes, when the request is stored.
    """

    options: RequestOptions
    prompt_ids: NDArray[np.uint32]
    namespace: str
    drafters: Drafters | None
    sampling: Sampling | None
    grammar: "Matcher | None"
    prediction: NDArray[np.uint32] | None
    reuse_prefix: bool
    stats: Stats
    detokenize: Callable[[Generator[Step]], Generator[Detokenized]]
    prefixes: PrefixPool | None = None
    drafts: DraftState | None = None
    own: DraftState | None = None
    owner: Lease = field(default_factory=Lease)
    running: Generator[Detokenized] | None = None
    storing: Task[None] | None = None
    events: Events = field(init=False)
    on_read: Callable[[int], object] = field(init=False)
    on_stored: Callable[[], object] = field(init=False)

    def read_files(self, prefixes: PrefixPool | None, session: Session, held: int) -> None:
        """Read what it needs from disk.

        Args:
            prefixes: What is kept of earlier requests of its namespace; None for nothing.
            session: It may end meanwhile, and another may have its session: that is not touched.
            held: Same as in `PrefixPool.looked_up`.

        Raises:
            HistoryError, HistoryMismatchError, LookupTableError: Same as in `Drafters.acquire`.
        """
        if self.drafters is not None:
            self.drafts = self.own = self.drafters.acquire(self.namespace, self.owner)
            if self.options["namespace"] is None:
                self.drafts = self.drafters.nearest(self.own, self.prompt_ids, self.owner)
            if self.drafts.history is not None:
                self.drafts.history.refresh()
        if prefixes is not None and self.reuse_prefix:
            prefixes = prefixes.looked_up(session, self.prompt_ids, held)
        self.prefixes = prefixes

    def steps(self, session: Session) -> Generator[Step]:
        """The steps of the answer; errors are those of `generate` and of `Drafters.drafter_of`."""
        prefixes, num_read = self.prefixes, 0
        if prefixes is not None and not self.reuse_prefix:
            if isinstance(session, KeepsPrefixes):  # it overwrites what others go on with
                prefixes.hand_over(session, self.namespace)
            prefixes = None

        def keep(*, ends: bool = True) -> None:
            """Keep what was read and said since it was last kept, or was there already."""
            if prefixes is not None:
                prefixes.store_up(session, self.stats.reused_tokens + num_read, ends=ends)

        def has_read(count: int) -> None:
            nonlocal num_read
            keep(ends=False)
            num_read = count
            self.on_read(count)

        try:
            if prefixes is not None:
                prefixes.wait_beside(self.owner)
            with ExitStack() as used:
                used.callback(keep)
                grammar = None if self.grammar is None else used.enter_context(self.grammar.lent())
                yield from self._loop(session)(
                    session,
                    self.prompt_ids,
                    max_new_tokens=self.options["max_new_tokens"],
                    sampling=self.sampling,
                    ignore_eos=self.options["ignore_eos"],
                    reuse_prefix=self.reuse_prefix,
                    prefixes=self.prefixes,
                    grammar=grammar,
                    logprobs=self.options["logprobs"],
                    on_read=has_read,
                    stats=self.stats,
                )
        finally:  # it is over before anything is called: an interrupt comes between no two of these
            self.owner.is_over = True
            if self.prefixes is not None:
                self.prefixes.look_again()

    def _loop(self, session: Session) -> Callable[..., Generator[Step]]:
        """What makes the steps: `generate`, or `plain` without drafters."""
        if self.drafters is None or self.drafts is None:
            return plain
        return partial(
            generate,
            drafter=self.drafters.drafter_of(self.drafts, session),
            history=None if self.drafts.history is None else self,  # type: ignore[arg-type]
            prediction=self.prediction,
            trees=self.options["trees"],
        )

    def refresh(self) -> None:
        """It was done by `read_files`."""

    def add(self, prompt_ids: ArrayLike, answer_ids: ArrayLike) -> None:
        """Store the finished request; errors are those of `History.add_later`."""
        if self.own is not None and self.own.history is not None:
            history = self.own.history
            self.storing = history.add_later(prompt_ids, answer_ids, self.on_stored)
