"""The models behind one port: opened when they are first asked for, put away by use.

In: requests, by the name of their model. Out: the worker that answers them (`worker.py`),
which is kept open as long as one of them holds it. Models are opened one after the other. Where
there is too little memory for the next, the one that was used longest ago is put away, those that
answer nothing first; one that is busy answers what it was asked for before it goes. The limit is on
what models are reckoned to take; the process itself comes on top.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import Condition
from typing import Literal

from coordgen_rs.errors import MemoryBudgetError, arguments
from coordgen_rs.model import Model
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.server.api_error import APIError, UnavailableError
from coordgen_rs.server.clients import ClientSlots
from coordgen_rs.server.metrics import Counts, Family, Metrics, added, exposition
from coordgen_rs.server.models.catalog import LATEST, ModelEntry, ModelStatus
from coordgen_rs.server.models.worker import State, Worker

_LONGEST_WAIT_S = 60
"""The largest value of `Retry-After`."""

_RETRY_S = 10.0
"""How long a model that could not be opened is not tried again."""


class _Model:
    """A model that is offered, open or not."""

    def __init__(self, entry: ModelEntry) -> None:
        self.entry, self.metrics = entry, Metrics()
        self.worker: Worker | None = None  # what has it, or is about to
        self.measured = 0  # bytes; 0 until it was open
        self.counts: Counts = {}  # of when it was open before


class ModelPool:
    """The workers of all models that a server offers.

    Args:
        entries: At least one; the first is taken where a request names none.
        open_model: Opens one; called in a thread of its worker.
        max_queue: Most requests of a client that wait while others of it are answered.
        memory_limit: Bytes that open models may take together; None for no limit.
        cache_bytes: What a model may take beside its files, such as for earlier prompts.
        on_change: Called with a model's name and state when it is ready, has failed or is closed.

    Attributes:
        entries: The `entries` argument.
        slots: The slots that requests for answers take.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        open_model: Callable[[ModelEntry], Model],
        max_queue: int,
        *,
        memory_limit: int | None = None,
        cache_bytes: int = 0,
        on_change: Callable[[str, State | Literal["closed"]], None] = lambda name, state: None,
    ) -> None:
        self.entries = tuple(entries)
        self._open, self._on_change = open_model, on_change
        self._max_queue, self._cache_bytes = max_queue, cache_bytes
        self.slots = ClientSlots(max_queue + 1, self._refused)
        self._limit = memory_limit
        self._was_up = False  # whether the first model could be asked, or failed
        self._changed = Condition()  # what is open, held and reckoned; it may be entered again
        self._uses = count(1)
        self._models = {one.name: _Model(one) for one in self.entries}
        self._open_ones = dict[Worker, _Model]()
        self._queue = list[Worker]()  # those that are to be opened, in order
        self._is_closing = self._is_stopped = False

    @property
    def _first(self) -> _Model:
        """The model of requests that name none."""
        return self._models[self.entries[0].name]

    def start(self) -> None:
        """Begin to open the first model."""
        with self._changed:
            self._worker_of(self._first)

    @contextmanager
    def hold(self, name: str | None = None) -> Iterator[Worker]:
        """Keep a model open for a request; it is opened if it is not.

        Args:
            name: None for the first.

        Yields:
            Its worker, which may still be opening it.

        Raises:
            APIError: There is no model of that name.
            UnavailableError: The server ends.
        """
        model = self._models[self.find(name).name]
        with self._changed:
            worker = self._worker_of(model)
            worker.num_held += 1
            worker.last_used = next(self._uses)
        try:
            yield worker
        finally:
            with self._changed:
                worker.num_held -= 1
                if worker.is_leaving and not worker.num_held:
                    worker.close()
                self._changed.notify_all()  # it may go now

    def find(self, name: str | None) -> ModelEntry:
        """The model of a name; also of its file's whole name, or with Ollama's tag.

        Raises:
            APIError: There is none.
        """
        if name is None:
            return self.entries[0]
        if name in self._models:
            return self._models[name].entry
        for one in self.entries:
            if name.removesuffix(LATEST) in (one.name, one.path.name):
                return one
        raise APIError(
            f"the model {arguments.shown(name)} is not here: this server has "
            f"{', '.join(self._models)}",
            status=404,
            kind="not_found_error",
            param="model",
            code="model_not_found",
        )

    def status(self, name: str | None) -> ModelStatus:
        """How it stands with a model; its name is as in `find`.

        Raises:
            APIError: There is none.
        """
        found = self._models[self.find(name).name]
        if (worker := found.worker) is None:
            return ModelStatus(found.entry, "unloaded", None, 0)
        try:
            model = worker.model
        except UnavailableError:
            model = None
        return ModelStatus(found.entry, worker.state, model, worker.num_bytes)

    def statuses(self) -> list[ModelStatus]:
        """How it stands with each."""
        return [self.status(name) for name in self._models]

    def check_health(self) -> None:
        """Check that requests can be answered: by the only model, or once the first was opened.

        Raises:
            UnavailableError: They cannot.
        """
        if self._is_closing:
            raise UnavailableError("the server is going down")
        worker = self._first.worker
        if worker is not None and (len(self.entries) == 1 or not self._was_up):
            _ = worker.model

    def failure(self, name: str) -> BaseException | None:
        """Why a model cannot be used; None where it can."""
        worker = self._models[name].worker
        found = None if worker is None else worker.failure
        return found and (found.__cause__ or found)

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
        with self._changed:
            return exposition({name: self._metrics_of(one) for name, one in self._models.items()})

    def _metrics_of(self, model: _Model) -> list[Family]:
        """Those of a model, of when it was open before among them."""
        workers = [worker for worker, one in self._open_ones.items() if one is model]
        counts = model.counts
        for worker in workers:
            counts = added(counts, worker.counts)
        return model.metrics.families(
            num_running=sum(worker.num_running for worker in workers),
            num_waiting=sum(worker.num_waiting for worker in workers),
            num_slots=0 if model.worker is None else model.worker.num_slots,
            counts=counts,
        )

    def stop_all(self, why: UnavailableError) -> None:
        """End what runs, within a step, and what waits."""
        self._send_away()
        for worker in self._workers():
            worker.stop_all(why)

    def close(self) -> None:
        """Take no more requests; those that wait are still answered."""
        with self._changed:
            self._is_closing = True
            for worker in self._open_ones:
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
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _workers(self) -> list[Worker]:
        with self._changed:
            return [*self._open_ones]

    def _worker_of(self, model: _Model) -> Worker:
        """What has a model now; it begins to open it where nothing has.

        Raises:
            UnavailableError: The server ends.
        """
        found = model.worker
        failed_s = None if found is None else found.failed_s
        if found is not None and (failed_s is None or time.monotonic() - failed_s < _RETRY_S):
            return found
        if self._is_closing:
            raise UnavailableError("the server is going down")
        made = model.worker = Worker(
            partial(self._opened, model),
            partial(self._note_change, model),
            partial(self._note_end, model),
            model.metrics,
        )
        self._open_ones[made] = model
        made.start()
        return made

    def _opened(self, model: _Model, worker: Worker) -> Model:
        """Open a model once there is room.

        Raises:
            UnavailableError: It cannot be opened.
        """
        entry = model.entry
        try:
            reckoned = model.measured or entry.num_bytes + self._cache_bytes
            with self._room(entry, worker, reckoned):
                before = resident_bytes()
                opened = self._open(entry)
                grown = resident_bytes() - before
                model.measured = self._measured(entry, opened, grown)
                try:
                    self._check_limit(entry, model.measured)
                except BaseException:
                    opened.close()
                    raise
                with self._changed:  # others go where it takes more than there is room for
                    worker.num_bytes = model.measured
                    self._has_room(0, beside=worker)
        except UnavailableError:
            raise
        except Exception as error:
            raise UnavailableError(
                f"the model {entry.name} cannot be opened ({type(error).__name__}): the "
                "server's terminal tells why",
                code="model_failed",
            ) from error
        return opened

    def _measured(self, entry: ModelEntry, model: Model, grown: int) -> int:
        """What an open model takes: its files, keys and values, or what the process grew by.

        Others that answer meanwhile grow, too: by that alone it takes no more than there may be.
        """
        files = entry.num_bytes + model.cache_bytes + self._cache_bytes
        grown += self._cache_bytes
        return max(files, grown if self._limit is None else min(grown, self._limit))

    @contextmanager
    def _room(self, entry: ModelEntry, worker: Worker, num_bytes: int) -> Iterator[None]:
        """Wait for memory; what is opened within the block is opened alone.

        Raises:
            UnavailableError: It needs more than the limit, or the server ends.
        """
        self._check_limit(entry, num_bytes)
        with self._changed:
            self._queue.append(worker)
        try:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._is_stopped or (self._queue[0] is worker and self._has_room(num_bytes))
                    )
                )
                if self._is_stopped:
                    raise UnavailableError("the server is going down")
                worker.num_bytes = num_bytes
            yield
        finally:
            with self._changed:
                self._queue.remove(worker)
                self._changed.notify_all()

    def _check_limit(self, entry: ModelEntry, num_bytes: int) -> None:
        """Check that a model alone is not too large.

        Raises:
            UnavailableError: It is.
        """
        if self._limit is not None and num_bytes > self._limit:
            message = (
                f"the model {entry.name} takes about {num_bytes:,} bytes, which is "
                f"more than --memory-limit {self._limit:,}"
            )
            raise UnavailableError(message, code="model_failed") from MemoryBudgetError(message)

    def _has_room(self, num_bytes: int, beside: Worker | None = None) -> bool:
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
                self._put_away(one)
        return False

    def _put_away(self, worker: Worker) -> None:
        """Let a worker take no more requests, and be closed when those that it has have ended."""
        worker.is_leaving = True
        if (model := self._open_ones[worker]).worker is worker:
            model.worker = None
        if not worker.num_held:
            worker.close()

    def _note_change(self, model: _Model, worker: Worker) -> None:
        self._was_up = self._was_up or model is self._first
        if worker.state == "failed":
            worker.failed_s = time.monotonic()
        else:
            self.slots.most = max(self.slots.most, self._max_queue + worker.num_slots)
        self._on_change(model.entry.name, worker.state)

    def _note_end(self, model: _Model, worker: Worker) -> None:
        with self._changed:
            worker.num_bytes = 0
            self._open_ones.pop(worker, None)
            model.counts = added(model.counts, worker.counts)
            self._changed.notify_all()
        if worker.state != "failed":
            self._on_change(model.entry.name, "closed")

    def _refused(self, num: int) -> int:
        """Note that a client with `num` requests got no slot; when it pays to come again."""
        self._first.metrics.count("refused")
        workers = self._workers()
        mean_s = max((worker.mean_s for worker in workers), default=1.0)
        num_slots = sum(worker.num_slots for worker in workers)
        after_s = mean_s * max(num, self.num_waiting + 1) / max(num_slots, 1)
        return math.ceil(min(after_s, _LONGEST_WAIT_S))
