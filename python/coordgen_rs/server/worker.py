"""The threads that have the model, and the queue of those who wait for it.

In: jobs. Out: their news. Clients take turns. How many requests each may have in the server has a
bound; beyond it they are refused at once, with the time after which it pays to come again.
"""

import math
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic
from typing import Literal

from coordgen_rs.errors import DeviceLostError, SessionClosedError
from coordgen_rs.model import Model
from coordgen_rs.server.figures import Figures
from coordgen_rs.server.job import GivenUpError, Job
from coordgen_rs.server.network.places import Places
from coordgen_rs.server.refusal import UnavailableError, log_unexpected
from coordgen_rs.server.turns import Rota
from coordgen_rs.target.batch.counts import RunCounts
from coordgen_rs.target.prefix_store.counts import StoreCounts

State = Literal["loading", "ready", "closing", "failed"]

_LONGEST_WAIT_S = 60
"""The largest value of `Retry-After`."""


class Worker:
    """Opens a model in a thread of its own, and answers there, and in as many as it has places.

    Args:
        open_model: Opens it; called in the thread, and what it returns is closed there.
        max_queue: Most requests of a client that wait while others of it are answered.
        on_change: Called in the thread when the model is ready, and when the worker has failed.

    Attributes:
        state: "loading", "ready", "closing" or "failed".
        failure: Why the model could not be opened, or cannot be used any more.
        figures: Counts of what was answered.
        places: The places that requests for answers take.
    """

    def __init__(
        self,
        open_model: Callable[[], Model],
        max_queue: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._open, self._on_change = open_model, on_change
        self.state: State = "loading"
        self.failure: BaseException | None = None
        self.figures = Figures()
        self._max_queue = max_queue
        self.places = Places(max_queue + 1, self._refused)
        self._model: Model | None = None
        self._changed = Condition()
        self._waiting = Rota()
        self._running = list[Job]()
        self._mean_s = 1.0  # of a job
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
        why = {"loading": "the model is being loaded", "closing": "the server is going down"}
        raise UnavailableError(why.get(self.state, "the model has failed"))

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        with self._changed:
            return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return len(self._running)

    @property
    def num_places(self) -> int:
        """How many requests are answered at a time; 0 until the model is open."""
        return 0 if self._model is None else self._model.parallel

    @property
    def runs(self) -> RunCounts | None:
        """What the runs that requests shared were made of; None where there are none."""
        return None if self._model is None else self._model.runs

    @property
    def store(self) -> StoreCounts | None:
        """What was done with prefixes on disk; None where none are kept."""
        store = None if self._model is None else self._model.prefix_store
        return None if store is None else store.counts

    def submit(self, job: Job) -> None:
        """Put a job into the queue.

        Raises:
            UnavailableError: The model cannot be used now.
        """
        with self._changed:
            _ = self.model
            self._waiting.add(job)
            self._changed.notify()

    def _refused(self, num: int) -> int:
        """Note that a client with `num` requests got no place; when it pays to come again."""
        self.figures.ended("refused")
        after_s = self._mean_s * max(num, self.num_waiting + 1) / max(self.num_places, 1)
        return math.ceil(min(after_s, _LONGEST_WAIT_S))

    def withdraw(self, job: Job) -> None:
        """End a job that nobody waits for: at once if it is queued, else within a step."""
        job.stop()
        with self._changed:
            if self._waiting.remove(job):
                self.figures.ended("given_up")

    def stop_all(self, why: Exception) -> None:
        """End what runs, within a step, and what waits."""
        with self._changed:
            jobs = [*self._waiting.clear(), *self._running]
        for job in jobs:
            job.stop(why)

    def close(self) -> None:
        """Take no more jobs; those that wait are still answered."""
        with self._changed:
            if self.state in ("loading", "ready"):
                self.state = "closing"
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the model is closed."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._open() as model:
                self._model = model
                self.places.most = self._max_queue + model.parallel
                with self._changed:
                    if self.state == "loading":
                        self.state = "ready"
                self._on_change()
                self._answer_together(model)
        except BaseException as error:
            self._fail(error)

    def _answer_together(self, model: Model) -> None:
        """Answer in as many threads as the model has places; the model is this one's."""
        others = list[Thread]()
        try:
            for number in range(1, model.parallel):
                name = f"coordgen-worker-{number}"
                other = Thread(target=self._answer_all, args=[model], name=name)
                other.start()
                others.append(other)
        except RuntimeError as error:  # the system gives no more threads
            self._fail(error)
        self._answer_all(model)
        for other in others:
            other.join()

    def _answer_all(self, model: Model) -> None:
        """Answer until there is no more; what makes the model unusable ends the others, too."""
        try:
            while (job := self._next()) is not None:
                self._answer(model, job)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.state, self.failure = "failed", self.failure or error
            self._changed.notify_all()
        self.stop_all(UnavailableError("the model has failed"))
        self._on_change()

    def _next(self) -> Job | None:
        """The job whose turn it is; None when there will be none."""
        with self._changed:
            while not self._waiting:
                if self.state != "ready":
                    return None
                self._changed.wait()
            job = self._waiting.take()
            self._running.append(job)
            return job

    def _answer(self, model: Model, job: Job) -> None:
        """Answer a job.

        Raises:
            DeviceLostError: The model cannot be used any more.
            SessionClosedError: The same.
        """
        begun = monotonic()
        try:
            with job.begin(model) as stream:
                while not job.is_ended and (gain := stream.step()) is not None:
                    if job.asked.wants_steps:  # else waking the event loop is for nothing
                        job.tell(gain)
            answer = stream.answer
            self.figures.add(answer, job.queued_s, is_given_up=job.is_ended)
            job.tell(answer)
        except GivenUpError:
            self.figures.ended("given_up")
        except (DeviceLostError, SessionClosedError) as error:
            job.tell(error)
            raise
        except Exception as error:
            self.figures.ended("failed")
            log_unexpected(error)
            job.tell(error)
        except BaseException:  # such as a panic of the core: the worker ends, and says so itself
            job.stop(UnavailableError("the model has failed"))
            raise
        finally:
            with self._changed:
                self._running.remove(job)
                self._mean_s += 0.2 * (monotonic() - begun - self._mean_s)
