"""The models behind one port: opened when they are first asked for, put away by use.

In: requests, by the name of their model. Out: the worker that answers them (`server/worker.py`),
which is kept open as long as one of them holds it. Models are opened one after the other. Where
there is too little memory for the next, the one that was used longest ago is put away, those that
answer nothing first; one that is busy answers what it was asked for before it goes. The limit is on
what models are reckoned to take; the process itself comes on top.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Condition
from typing import Literal

from coordgen_rs.errors import MemoryBudgetError, arguments
from coordgen_rs.model import Model
from coordgen_rs.runtime.batch import BatchStats
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.server.clients import Places
from coordgen_rs.server.figures import Figures, merged, summed
from coordgen_rs.server.models import LATEST, Offered
from coordgen_rs.server.refusal import RefusalError, UnavailableError
from coordgen_rs.server.worker import State, Worker
from coordgen_rs.store.prefixes.store import StoreCounts

_LONGEST_WAIT_S = 60
"""The largest value of `Retry-After`."""

_RETRY_S = 10.0
"""How long a model that could not be opened is not tried again."""


class Models:
    """The workers of all models that a server offers.

    Args:
        offered: At least one; the first is taken where a request names none.
        open_model: Opens one; called in a thread of its worker.
        max_queue: Most requests of a client that wait while others of it are answered.
        memory_limit: Bytes that open models may take together; None for no limit.
        cache_bytes: What a model may take beside its files, such as for earlier prompts.
        on_change: Called with a model's name and state when it is ready, has failed or is closed.

    Attributes:
        offered: The `offered` argument.
        places: The places that requests for answers take.
    """

    def __init__(
        self,
        offered: Sequence[Offered],
        open_model: Callable[[Offered], Model],
        max_queue: int,
        *,
        memory_limit: int | None = None,
        cache_bytes: int = 0,
        on_change: Callable[[str, State | Literal["closed"]], None] = lambda name, state: None,
    ) -> None:
        self.offered = tuple(offered)
        self._open, self._on_change = open_model, on_change
        self._max_queue, self._cache_bytes = max_queue, cache_bytes
        self.places = Places(max_queue + 1, self._refused)
        self._limit = memory_limit
        self._was_up = False  # whether the first model could be asked, or failed
        self._right = Condition()  # what is open, held and reckoned; it may be entered again
        self._uses = count(1)
        self._slots = {one.name: _Slot(one) for one in self.offered}
        self._open_ones = set[_Opening]()
        self._queue = list[_Opening]()  # those that are to be opened, in order
        self._is_closing = self._is_stopped = False

    @property
    def default(self) -> Offered:
        """The model of requests that name none."""
        return self.offered[0]

    def start(self) -> None:
        """Begin to open the first model."""
        with self._right:
            self._opening(self._slots[self.default.name])

    @contextmanager
    def hold(self, name: str | None = None) -> Iterator[Worker]:
        """Keep a model open for a request; it is opened if it is not.

        Args:
            name: None for the first.

        Yields:
            Its worker, which may still be opening it.

        Raises:
            RefusalError: There is no model of that name.
            UnavailableError: The server ends.
        """
        slot = self._slots[self.found(name).name]
        with self._right:
            opening = self._opening(slot)
            opening.num_held += 1
            opening.last_used = next(self._uses)
        try:
            yield opening
        finally:
            with self._right:
                opening.num_held -= 1
                if opening.is_leaving and not opening.num_held:
                    opening.close()
                self._right.notify_all()  # it may go now

    def found(self, name: str | None) -> Offered:
        """The model of a name; also of its file's whole name, or with Ollama's tag.

        Raises:
            RefusalError: There is none.
        """
        if name is None:
            return self.default
        if name in self._slots:
            return self._slots[name].offered
        for one in self.offered:
            if name.removesuffix(LATEST) in (one.name, one.path.name):
                return one
        raise RefusalError(
            f"the model {arguments.shown(name)} is not here: this server has "
            f"{', '.join(self._slots)}",
            status=404,
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )

    def worker(self, name: str) -> Worker | None:
        """The worker that has a model, or is about to; None where it is not open."""
        return self._slots[name].opening

    def open_one(self, name: str) -> Model | None:
        """A model, if it can be asked now."""
        worker = self.worker(name)
        try:
            return None if worker is None else worker.model
        except UnavailableError:
            return None

    def open_ones(self) -> list[Model]:
        """The models that can be asked now."""
        return [model for name in self._slots if (model := self.open_one(name)) is not None]

    def check_health(self) -> None:
        """Check that requests can be answered: by the only model, or once the first was opened.

        Raises:
            UnavailableError: They cannot.
        """
        if self._is_closing:
            raise UnavailableError("the server is going down")
        worker = self.worker(self.default.name)
        if worker is not None and (len(self.offered) == 1 or not self._was_up):
            _ = worker.model

    def state(self, name: str) -> State | Literal["unloaded"]:
        """How it stands with a model."""
        worker = self.worker(name)
        return "unloaded" if worker is None else worker.state

    def taken(self, name: str) -> int:
        """What an open model is reckoned to take, in bytes; 0 for others."""
        opening = self._slots[name].opening
        return 0 if opening is None else opening.num_bytes

    @property
    def failure(self) -> BaseException | None:
        """Why the only model cannot be used; None where there are others, or it can."""
        worker = self.worker(self.default.name)
        if len(self.offered) > 1 or worker is None or worker.failure is None:
            return None
        return worker.failure.__cause__ or worker.failure

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return sum(worker.num_running for worker in self._workers())

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        return sum(worker.num_waiting for worker in self._workers())

    def metrics(self) -> str:
        """All counts, in the format of Prometheus; with several models, by their names."""
        with self._right:
            texts = {name: self._metrics_of(slot) for name, slot in self._slots.items()}
        return merged(texts) if len(texts) > 1 else texts[self.default.name]

    def _metrics_of(self, slot: "_Slot") -> str:
        """The counts of a model, those of when it was open before among them."""
        workers = [one for one in self._open_ones if one.slot is slot]
        now = self.worker(slot.offered.name)
        return slot.figures.text(
            num_running=sum(worker.num_running for worker in workers),
            num_waiting=sum(worker.num_waiting for worker in workers),
            num_places=0 if now is None else now.num_places,
            runs=summed([slot.runs, *(worker.runs for worker in workers)]),
            store=summed([slot.store, *(worker.store for worker in workers)]),
        )

    def stop_all(self, why: UnavailableError) -> None:
        """End what runs, within a step, and what waits."""
        self._send_away()
        for worker in self._workers():
            worker.stop_all(why)

    def close(self) -> None:
        """Take no more requests; those that wait are still answered."""
        with self._right:
            self._is_closing = True
            for worker in self._workers():
                worker.close()

    def join(self, *, with_opening: bool = True) -> bool:
        """Wait until all models are closed.

        Args:
            with_opening: Whether to wait for those that are being opened, too, which nothing ends.

        Returns:
            Whether all are closed.
        """
        self._send_away()
        workers = self._workers()
        closing = [worker for worker in workers if with_opening or not worker.is_opening]
        for worker in closing:
            worker.join()
        return len(closing) == len(workers)

    def _send_away(self) -> None:
        """Let no model wait for memory any more."""
        with self._right:
            self._is_stopped = True
            self._right.notify_all()

    def _workers(self) -> list[Worker]:
        with self._right:
            return [*self._open_ones]

    def _opening(self, slot: "_Slot") -> "_Opening":
        """What has a model now; it begins to open it where nothing has.

        Raises:
            UnavailableError: The server ends.
        """
        found = slot.opening
        failed_s = None if found is None else found.failed_s
        if found is not None and (failed_s is None or time.monotonic() - failed_s < _RETRY_S):
            return found
        if self._is_closing:
            raise UnavailableError("the server is going down")
        made = slot.opening = _Opening(slot, self._opened, self._changed, self._ended)
        self._open_ones.add(made)
        made.start()
        return made

    def _opened(self, opening: "_Opening") -> Model:
        """Open a model once there is room.

        Raises:
            UnavailableError: It cannot be opened.
        """
        slot = opening.slot
        try:
            reckoned = slot.measured or slot.offered.num_bytes + self._cache_bytes
            with self._room(opening, reckoned):
                before = resident_bytes()
                model = self._open(slot.offered)
                grown = resident_bytes() - before
                slot.measured = self._measured(slot.offered, model, grown)
                try:
                    self._correct(opening, slot.measured)
                except BaseException:
                    model.close()
                    raise
        except UnavailableError:
            raise
        except Exception as error:
            raise UnavailableError(
                f"the model {slot.offered.name} cannot be opened ({type(error).__name__}): the "
                "server's terminal tells why",
                code="model_failed",
            ) from error
        return model

    def _measured(self, offered: Offered, model: Model, grown: int) -> int:
        """What an open model takes: its files, keys and values, or what the process grew by.

        Others that answer meanwhile grow, too: by that alone it takes no more than there may be.
        """
        files = offered.num_bytes + model.cache_bytes + self._cache_bytes
        grown += self._cache_bytes
        return max(files, grown if self._limit is None else min(grown, self._limit))

    @contextmanager
    def _room(self, opening: "_Opening", num_bytes: int) -> Iterator[None]:
        """Wait for memory; what is opened within the block is opened alone.

        Raises:
            UnavailableError: It needs more than the limit, or the server ends.
        """
        self._check_limit(opening, num_bytes)
        with self._right:
            self._queue.append(opening)
        try:
            with self._right:
                while not self._is_stopped and (
                    self._queue[0] is not opening or not self._has_room(num_bytes)
                ):
                    self._right.wait()
                if self._is_stopped:
                    raise UnavailableError("the server is going down")
                opening.num_bytes = num_bytes
            yield
        finally:
            with self._right:
                self._queue.remove(opening)
                self._right.notify_all()

    def _check_limit(self, opening: "_Opening", num_bytes: int) -> None:
        if self._limit is not None and num_bytes > self._limit:
            message = (
                f"the model {opening.slot.offered.name} takes about {num_bytes:,} bytes, which is "
                f"more than --memory-limit {self._limit:,}"
            )
            raise UnavailableError(message, code="model_failed") from MemoryBudgetError(message)

    def _correct(self, opening: "_Opening", num_bytes: int) -> None:
        """Note what a model really takes; others go where that is more than there is room for.

        Raises:
            UnavailableError: It is more than the limit.
        """
        self._check_limit(opening, num_bytes)
        with self._right:
            opening.num_bytes = num_bytes
            self._has_room(0, beside=opening)

    def _has_room(self, num_bytes: int, beside: "_Opening | None" = None) -> bool:
        """Whether there is room now; if not, as many are put away as it takes.

        Args:
            num_bytes: What is to be opened.
            beside: Stays.
        """
        if self._limit is None:
            return True
        over = sum(one.num_bytes for one in self._open_ones) + num_bytes - self._limit
        if over <= 0:
            return True
        over -= sum(one.num_bytes for one in self._open_ones if one.is_leaving)
        for one in sorted(self._open_ones, key=lambda one: (one.num_held > 0, one.last_used)):
            if over <= 0:
                break
            if one.num_bytes and not one.is_leaving and one is not beside:
                over -= one.num_bytes
                one.put_away()
        return False

    def _changed(self, opening: "_Opening") -> None:
        self._was_up = self._was_up or opening.slot.offered is self.default
        if opening.state == "failed":
            opening.failed_s = time.monotonic()
        else:
            self.places.most = max(self.places.most, self._max_queue + opening.num_places)
        self._on_change(opening.slot.offered.name, opening.state)

    def _ended(self, opening: "_Opening") -> None:
        slot = opening.slot
        with self._right:
            opening.num_bytes = 0
            self._open_ones.discard(opening)
            slot.runs = summed([slot.runs, opening.runs])
            slot.store = summed([slot.store, opening.store])
            self._right.notify_all()
        if opening.state != "failed":
            self._on_change(slot.offered.name, "closed")

    def _refused(self, num: int) -> int:
        """Note that a client with `num` requests got no place; when it pays to come again."""
        self._slots[self.default.name].figures.ended("refused")
        workers = self._workers()
        mean_s = max((worker.mean_s for worker in workers), default=1.0)
        num_places = sum(worker.num_places for worker in workers)
        after_s = mean_s * max(num, self.num_waiting + 1) / max(num_places, 1)
        return math.ceil(min(after_s, _LONGEST_WAIT_S))


class _Slot:
    """A model that is offered, open or not."""

    def __init__(self, offered: Offered) -> None:
        self.offered, self.figures = offered, Figures()
        self.opening: _Opening | None = None
        self.measured = 0  # bytes; 0 until it was open
        self.runs: BatchStats | None = None  # of when it was open before, and so is the next
        self.store: StoreCounts | None = None


class _Opening(Worker):
    """A model from when it begins to be opened to when it is closed, and what it is held for.

    Args:
        slot: Whose model it is.
        open_model: Opens it.
        changed: Called when the model is ready, and when it has failed.
        ended: Called when it is closed, or could not be opened.
    """

    def __init__(
        self,
        slot: _Slot,
        open_model: Callable[["_Opening"], Model],
        changed: Callable[["_Opening"], None],
        ended: Callable[["_Opening"], None],
    ) -> None:
        super().__init__(
            lambda: open_model(self), lambda: changed(self), slot.figures, lambda: ended(self)
        )
        self.slot = slot
        self.num_held, self.last_used = 0, 0
        self.num_bytes = 0  # that it is reckoned to take
        self.is_leaving = False
        self.failed_s: float | None = None

    def put_away(self) -> None:
        """Take no more requests, and be closed when those that run have ended."""
        self.is_leaving = True
        if self.slot.opening is self:
            self.slot.opening = None
        if not self.num_held:
            self.close()
