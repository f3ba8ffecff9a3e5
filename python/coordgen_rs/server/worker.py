"""The threads that have a model, and the queue of those who wait for it.

In: jobs, also while the model is being opened. Out: their news. Clients take turns. How many
requests each may have in the server is bounded above (`models/models.py`).
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from time import monotonic
from typing import Literal

from coordgen_rs.errors import DeviceLostError, GrammarError, SessionClosedError
from coordgen_rs.model import Model
from coordgen_rs.server.figures import Figures
from coordgen_rs.server.job import GivenUpError, Job
from coordgen_rs.server.refusal import (
    RefusalError,
    UnavailableError,
    UnfollowedError,
    log_unexpected,
)
from coordgen_rs.server.turns import Rota
from coordgen_rs.target.batch.counts import RunCounts
from coordgen_rs.target.prefix_store.counts import StoreCounts

State = Literal["loading", "ready", "closing", "failed"]


class Worker:
    """Opens a model in a thread of its own, and answers there, and in as many as it has places.

    Args:
        open_model: Opens it; called in the thread, and what it returns is closed there.
        on_change: Called in the thread when the model is ready, and when the worker has failed.
        figures: Counts what is answered; None for counts of its own.
        on_end: Called in the thread when the model is closed, or could not be opened.

    Attributes:
        state: "loading", "ready", "closing" or "failed".
        failure: Why the model could not be opened, or cannot be used any more.
        figures: Counts of what was answered.
        opening: The model once it is open, or why it is not.
        mean_s: Seconds that an answer took lately.
    """

    def __init__(
        self,
        open_model: Callable[[], Model],
        on_change: Callable[[], None] = lambda: None,
        figures: Figures | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._open, self._on_change, self._on_end = open_model, on_change, on_end
        self.state: State = "loading"
        self.failure: BaseException | None = None
        self.figures = Figures() if figures is None else figures
        self.opening = Future[Model]()
        self._model: Model | None = None
        self._changed = Condition()
        self._waiting = Rota()
        self._running = list[Job]()
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
            return _told(self.failure)
        return UnavailableError("the server is going down")

    def text_of(self, token: int) -> str:
        """The text of a token of an answer; the model is open, or was."""
        if self._model is None:
            return ""
        tokenizer = self._model.tokenizer
        return tokenizer.decode([token]) or tokenizer.token(token) or ""

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
        """Put a job into the queue, also while the model is being opened.

        Raises:
            UnavailableError: The model cannot be used any more.
        """
        with self._changed:
            if self.state not in ("loading", "ready"):
                raise self._why_not()
            self._waiting.add(job)
            self._changed.notify()

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
                with self._changed:
                    if self.state == "loading":
                        self.state = "ready"
                self.opening.set_result(model)
                self._on_change()
                self._answer_together(model)
        except BaseException as error:
            self._fail(error)
        finally:
            self._on_end()

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
        why = _told(self.failure)
        if not self.opening.done():
            self.opening.set_exception(why)
        self.stop_all(why)
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
        except RefusalError as error:  # of a prompt that came before the model was open
            job.tell(error)
        except GrammarError as error:
            self.figures.ended("failed")
            job.tell(UnfollowedError(error, job.asked.grammar_field))
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
                self.mean_s += 0.2 * (monotonic() - begun - self.mean_s)


def _told(failure: BaseException | None) -> UnavailableError:
    """What requests are told of a failure; each gets an error of its own to raise."""
    if isinstance(failure, UnavailableError):
        return UnavailableError(str(failure), code=failure.code)
    return UnavailableError("the model has failed")
