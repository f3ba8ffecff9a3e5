"""A model of the server: opened in a thread, asked by requests that take turns, closed again.

In: requests, in the event loop. Out: their answers. How many requests each client may have in the
server is bounded above (`pool.py`); steps are made by the model's own engine.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import Literal

from coordgen_rs.errors import DeviceLostError, GrammarError, SessionClosedError
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer, StepDelta
from coordgen_rs.model.stream import Stream, wake
from coordgen_rs.server.api_error import ConstraintError, UnavailableError
from coordgen_rs.server.clients import Client, FairQueue, Waiter
from coordgen_rs.server.dialects.reader import LONG_ANSWER
from coordgen_rs.server.dialects.request import Request
from coordgen_rs.server.metrics import Counts, Metrics

State = Literal["loading", "ready", "closing", "failed"]

Update = StepDelta | tuple[Answer, float]
"""A step of an answer, or all of it and the seconds that it waited for its turn."""

_MOST_AT_ONCE = 64
"""Steps that are read before others go on, where an answer is ahead of its reader."""


class Admission:
    """What a request has that is to be answered.

    Attributes:
        waited_s: Seconds that it waited for the model.
    """

    waited_s = 0.0


class Worker:
    """Has a model, from when it begins to be opened until it is closed.

    Args:
        open_model: Opens it; called in a thread, and what it returns is closed there.
        on_change: Called when the model is ready, and when it has failed.
        on_end: Called in the thread when the model is closed, or could not be opened.
        metrics: Counts what is answered; None for counts of its own.

    Attributes:
        state: "loading", "ready", "closing" or "failed".
        failure: Why the model could not be opened, or cannot be used any more.
        metrics: Counts of what was answered.
        num_running: How many requests are being answered.
        mean_s: Seconds that an answer took lately.
        num_held: How many requests keep the model open; this and what follows is the pool's.
        last_used: When it was held last, as a number that grows.
        num_bytes: What the model is reckoned to take.
        is_leaving: Whether it is put away, as soon as nothing holds it.
        failed_s: When it failed; None where it has not.
    """

    def __init__(
        self,
        open_model: Callable[["Worker"], Model],
        on_change: Callable[["Worker"], None] = lambda worker: None,
        on_end: Callable[["Worker"], None] = lambda worker: None,
        metrics: Metrics | None = None,
    ) -> None:
        self._open, self._on_change, self._on_end = open_model, on_change, on_end
        self.state: State = "loading"
        self.failure: BaseException | None = None
        self.metrics = Metrics() if metrics is None else metrics
        self.num_held = self.last_used = self.num_bytes = 0
        self.is_leaving = False
        self.failed_s: float | None = None
        self._model: Model | None = None
        self._lock, self._may_end = Lock(), Event()
        self._early = set[Admission]()  # requests that have not asked for a turn yet
        self._opening = Future[None]()  # done once it is open, or nothing waits for that any more
        self._opening.set_running_or_notify_cancel()  # who leaves cancels it for nobody else
        self._waiting, self.num_running = FairQueue(), 0
        self._stopped: UnavailableError | None = None  # why nothing is answered any more
        self._streams = set[Stream]()  # those of the requests that run
        self.mean_s = 1.0
        self._thread = Thread(target=self._run, name="coordgen-worker")

    def start(self) -> None:
        """Begin to open the model."""
        self._thread.start()

    @property
    def model(self) -> Model:
        """The model, once it is ready.

        Raises:
            UnavailableError: It is not, or not any more.
        """
        if self.state == "ready" and self._model is not None:
            return self._model
        if self.state == "loading":
            raise UnavailableError("the model is being loaded")
        raise self._why_not()

    def _why_not(self) -> UnavailableError:
        """Why nothing is taken any more."""
        if self.state == "failed":
            return _as_unavailable(self.failure)
        return _as_unavailable(self._stopped or UnavailableError("the server is going down"))

    @property
    def is_opening(self) -> bool:
        """Whether the model is still being opened."""
        return self._model is None and self.state != "failed"

    @property
    def is_wanted(self) -> bool:
        """Whether requests that were admitted are still to be answered."""
        return self._stopped is None

    @property
    def num_waiting(self) -> int:
        """Requests that wait for the model, or for their turn."""
        with self._lock:
            return len(self._early) + len(self._waiting)

    @property
    def num_slots(self) -> int:
        """How many requests are answered at a time; 0 until the model is open."""
        return 0 if self._model is None else self._model.parallel

    @property
    def counts(self) -> Counts:
        """What the model counts: of runs that requests shared, of prefixes on disk."""
        found, model = dict[str, Mapping[str, float]](), self._model
        if model is not None and model.runs is not None:
            found["shared"] = vars(model.runs)
        if model is not None and model.prefix_store is not None:
            found["prefix_store"] = vars(model.prefix_store.counts)
        return found

    @contextmanager
    def admitted(self) -> Iterator[Admission]:
        """Admit a request for an answer, also while the model is being opened, or closed later.

        Yields:
            What `opened` and `answer` take.

        Raises:
            UnavailableError: The model cannot be used any more.
        """
        admission = Admission()
        with self._lock:
            if self.state not in ("loading", "ready"):
                raise self._why_not()
            self._early.add(admission)
        try:
            yield admission
        finally:
            with self._lock:
                self._early.discard(admission)
                self._call()

    async def opened(self, admission: Admission | None = None) -> Model:
        """The model, once it is open; also where it is about to be closed.

        Args:
            admission: Of a request that waits for its answer.

        Raises:
            UnavailableError: It cannot be opened, or nothing is answered any more.
        """
        since = monotonic()
        if self.is_opening and self.is_wanted:
            await asyncio.wrap_future(self._opening)
        if self._model is None or self._stopped is not None:
            raise self._why_not()
        if admission is not None:
            admission.waited_s = monotonic() - since
        return self._model

    async def answer(
        self,
        request: Request,
        stream: Stream,
        client: Client,
        admission: Admission,
        put: Callable[[Update], None],
    ) -> None:
        """Answer a request in its turn.

        Args:
            request: What it asks for.
            stream: The answer, which was not read yet; it is closed.
            client: Whose turn it takes.
            admission: What `admitted` has given.
            put: Takes its steps, where it wants them, and last the answer.

        Raises:
            UnavailableError: The model cannot be used, or not any more.
            CoordgenError: There is no answer.
        """
        since = monotonic()
        await self._turn(client, admission)
        queued_s, num_tokens, num_steps = admission.waited_s + monotonic() - since, 0, 0
        stream.events.is_whole = not request.wants_steps
        news = asyncio.Event()
        wake(stream, news)
        with self._running(request, stream, queued_s), stream:
            while True:
                if num_steps % _MOST_AT_ONCE == 0:
                    await asyncio.sleep(0)
                while not stream.is_step_ready:
                    await news.wait()
                    news.clear()
                if (gain := stream.step()) is None:
                    break
                num_steps += 1
                num_tokens += len(gain.token_ids)
                if request.wants_steps:
                    put(gain)
        is_long = num_tokens > LONG_ANSWER
        answer = await asyncio.to_thread(lambda: stream.answer) if is_long else stream.answer
        self.metrics.add(answer, queued_s, is_given_up=False)
        put((answer, queued_s))

    async def _turn(self, client: Client, admission: Admission) -> None:
        """Wait for a turn, which ends by `_leave`.

        Raises:
            UnavailableError: There will be none.
        """
        waiter = Waiter(client)
        with self._lock:
            if self._stopped is not None:
                raise self._why_not()
            self._waiting.add(waiter)
            self._early.discard(admission)
            self._call()
        try:
            await waiter.called.wait()
            if self._stopped is not None:
                raise self._why_not()
        except BaseException:
            with self._lock:
                was_waiting = self._waiting.remove(waiter)
            if was_waiting or waiter.has_turn:
                self.metrics.count("given_up")
            if waiter.has_turn:  # it came as its client left, or the server ended
                self._leave()
            raise

    def _call(self) -> None:
        """Call as many as there are free slots; and let the model go when nothing is left."""
        while self._waiting and self.num_running < self.num_slots:
            self.num_running += 1
            self._waiting.take().call(has_turn=True)
        is_idle = not (self._early or self._waiting or self.num_running)
        if self.state in ("closing", "failed") and is_idle:
            self._may_end.set()

    def _end_opening(self) -> None:
        if not self._opening.done():
            self._opening.set_result(None)

    def _leave(self) -> None:
        """End a turn."""
        with self._lock:
            self.num_running -= 1
            self._call()

    @contextmanager
    def _running(self, request: Request, stream: Stream, queued_s: float) -> Iterator[None]:
        """A turn, in which an answer is read; what goes wrong is counted."""
        begun = monotonic()
        self._streams.add(stream)
        try:
            yield
        except BaseException as error:
            told = self._failed(error, request, stream, queued_s)
            raise told from (None if told is error else error)
        finally:
            self._streams.discard(stream)
            self._leave()
            self.mean_s += 0.2 * (monotonic() - begun - self.mean_s)

    def _failed(
        self, error: BaseException, request: Request, stream: Stream, queued_s: float
    ) -> BaseException:
        """Count a request that ends by an error; what is told of it."""
        if isinstance(error, UnavailableError | asyncio.CancelledError | GeneratorExit):
            if (answer := stream.answer).token_ids:  # it was stopped, or its client has left
                self.metrics.add(answer, queued_s, is_given_up=True)
            else:
                self.metrics.count("given_up")
        elif isinstance(error, DeviceLostError | SessionClosedError):
            self._fail(error)
        elif isinstance(error, Exception):
            self.metrics.count("failed")
            if isinstance(error, GrammarError):
                return ConstraintError(error, request.constraint and request.constraint.field)
        else:  # such as a panic of the core
            self._fail(error)
            return UnavailableError("the model has failed")
        return error

    def stop_all(self, why: UnavailableError) -> None:
        """End what runs, within a step, and what waits."""
        with self._lock:
            self._stopped = self._stopped or why
            waiting = self._waiting.clear()
            self._end_opening()
            self._call()
        for waiter in waiting:
            waiter.call()
        for stream in [*self._streams]:
            stream.events.cancel(_as_unavailable(why))

    def close(self) -> None:
        """Take no more requests; those that wait are still answered."""
        with self._lock:
            if self.state in ("loading", "ready"):
                self.state = "closing"
            self._call()

    def join(self) -> None:
        """Wait until the model is closed; no event loop answers requests any more."""
        self._may_end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._open(self) as model:
                with self._lock:
                    self._model = model
                    if self.state == "loading":
                        self.state = "ready"
                    self._end_opening()
                    self._call()
                self._on_change(self)
                self._may_end.wait()
        except BaseException as error:
            self._fail(error)
        finally:
            self._on_end(self)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.state, self.failure = "failed", self.failure or error
        self.stop_all(_as_unavailable(self.failure))
        self._on_change(self)


def _as_unavailable(failure: BaseException | None) -> UnavailableError:
    """What a request is told of a failure; each gets an error of its own to raise."""
    if isinstance(failure, UnavailableError):
        return UnavailableError(str(failure), code=failure.code)
    return UnavailableError("the model has failed")
