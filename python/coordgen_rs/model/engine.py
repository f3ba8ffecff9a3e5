"""The engine of a model: one thread, which alone makes the steps of all its requests.

In: requests, from any thread, by one queue. Out: the events of each, by a queue of its own. Nothing
here knows what a request asks for (`options.py`), nor how it is answered (`generation/loop.py`).

A signal's handler runs in the main thread, so nothing that is done here can be interrupted between
two instructions. A request runs ahead of its reader by some events; where others wait for its
slot, it goes on to its end, and what it says waits to be read. So a stream that is held and not
read keeps nobody waiting for longer than its answer takes.
"""

import atexit
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread, get_ident
from weakref import ref

from coordgen_rs.errors import CallOrderError, SessionClosedError
from coordgen_rs.generation.step import WAITS, Step
from coordgen_rs.model.answer import NOTHING_YET
from coordgen_rs.model.request import Events, ModelRequest, Progress
from coordgen_rs.model.slots import OneSlot, Slots
from coordgen_rs.runtime import onnx_runtime
from coordgen_rs.runtime.session import Session
from coordgen_rs.store.background import Condition, OpenedHere, Task, TaskQueue
from coordgen_rs.store.prefixes.pool import PrefixPool


class _CancelledError(Exception):
    """Nobody reads the answer any more: what is left of the prompt need not be read."""


class Engine:
    """Makes the steps of all requests of a model, in a thread of its own, until it is closed.

    The thread is a daemon, as Python waits for others before it calls what is registered for its
    end: that closes the engine, for a thread within the core when Python ends aborts the process.

    Args:
        slots: Where requests are answered; nothing else may use their sessions.
        prefixes: What is kept of earlier requests; None keeps what the slots hold.
        release: Called in the thread when it ends.

    Attributes:
        is_closing: Whether no request may begin any more.
        tell: Has the engine look for what is new, whatever it is told. It is a function of C's, so
            no interrupt keeps a finalizer from it, and waits for nothing.
    """

    def __init__(
        self, slots: OneSlot | Slots, prefixes: PrefixPool | None, release: Callable[[], None]
    ) -> None:
        self._slots, self._prefixes, self._release = slots, prefixes, release
        self._inbox = SimpleQueue[object]()  # what is no request says that something is new
        self.tell: Callable[[object], None] = self._inbox.put
        self._waiting = deque[ModelRequest]()  # for a slot, longest first
        self._active = list[ModelRequest]()  # have a slot, or are being stored
        self._disk = TaskQueue()
        self._ended = Condition()
        self._closers = list[int]()  # threads that close it
        self._ending = list[int]()  # the thread that ends Python, once it does
        self.is_closing = self._is_over = self._is_told = False
        self._failure: BaseException | None = None
        self._opened = OpenedHere()
        self._thread = Thread(target=self._run, name="coordgen-engine", daemon=True)

    def begin(self, model: object) -> None:
        """Begin the thread, which ends when it is closed, or the model is dropped.

        Raises:
            RuntimeError: The system gives no thread.
        """
        self._model = ref(model, self.tell)  # before: an interrupt may come within the next line
        self._thread.start()

    def submit(self, request: ModelRequest, events: Events) -> None:
        """Have a request answered, in its turn; waits for nothing.

        Args:
            request: What it asks for.
            events: Where what is read of its steps goes; its reader wakes the engine by `tell`.

        Raises:
            SessionClosedError: The model is closed.
            CallOrderError: This thread is the engine's.
            ForkedError: This process is a fork of the one that opened the model.
            SystemExit: Another thread ends Python, and this one with it.
        """
        self._opened.check("model")
        if self._ending and self._ending[0] != get_ident():
            raise SystemExit
        self.check_outside()
        if self.is_closing:
            raise self._closed()
        request.events, request.on_stored = events, self.look
        tells = request.options["on_read"] is not None
        request.on_read = partial(self._has_read, events, tells)  # not of the request: no circle
        self._inbox.put(request)
        if self._is_over:  # it ended meanwhile, and may not have seen it
            self._refuse_rest()

    def _has_read(self, events: Events, tells: bool, num_read: int) -> None:
        """Tell how much of a prompt was read.

        Raises:
            _CancelledError: What is left of it is not to be read.
        """
        self.check(events)
        if self._ending or not events.is_wanted:
            raise _CancelledError(f"given up after {num_read} tokens of the prompt")
        if tells:
            events.put(Progress(num_read))

    def look(self) -> None:
        """Have the engine look for what is new; waits for nothing."""
        self.tell(None)

    def check_outside(self) -> None:
        """Check that this thread is not the engine's.

        Raises:
            CallOrderError: It is.
        """
        is_there = not self._is_over and not self._opened.is_forked  # else another has its number
        if is_there and get_ident() == self._thread.ident:
            raise CallOrderError("the model cannot be used within a step of its own")

    def close(self) -> None:
        """Take no more requests, answer those that are there, release all, and end the thread.

        Those that this thread was the last to read, or an event loop reads, end within a step. May
        be called again, also where it was interrupted. In a fork of the process, nothing happens.

        Raises:
            CallOrderError: This thread is the engine's.
            Others are those of `release`.
        """
        if self._opened.is_forked:
            return
        self.check_outside()
        self._closers.append(get_ident())
        self.is_closing = True
        self.look()
        self._ended.wait_for(lambda: self._is_over or None)
        self._thread.join()  # all is released: what is left of it is its last line
        if self._failure is not None and not self._is_told:
            self._is_told = True
            raise self._failure

    def _stop(self) -> None:
        """End all requests, as Python ends, and wait for the thread."""
        if not self._opened.is_forked:
            self._ending.append(get_ident())
            self.look()
            try:
                self._ended.wait_for(lambda: self._is_over or None)
            finally:  # interrupted: it ends by itself when it is next to run something
                onnx_runtime.waited_for.discard(self._thread.ident or 0)

    def _run(self) -> None:
        atexit.register(self._stop)
        onnx_runtime.waited_for.add(get_ident())
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
        finally:
            for request in [*self._active, *self._waiting]:
                self._end(request, self._failure or self._closed())
            for end in (self._disk.join, self._release):
                try:
                    end()
                except BaseException as error:
                    self._failure = self._failure or error
            self.is_closing = self._is_over = True
            self._refuse_rest()
            onnx_runtime.waited_for.discard(get_ident())
            atexit.unregister(self._stop)
            self._ended.notify_all()

    def _serve(self) -> None:
        """Make steps until the engine is closed and all requests have ended."""
        is_idle = True
        while not self._is_done():
            self._take_in(waits=is_idle)
            self.is_closing = self.is_closing or bool(self._ending) or self._model() is None
            self._end_unwanted()
            self._admit()
            # Where each has said what it could, they wait for the next run of all.
            made = [self._resume(request) for request in [*self._active]]
            is_idle = not (any(made) or self._slots.run())

    def _is_done(self) -> bool:
        is_empty = not self._active and not self._waiting and self._inbox.empty()
        return self.is_closing and is_empty

    def _take_in(self, *, waits: bool) -> None:
        """Take requests from the queue, waiting for something new where there is nothing to do."""
        if not waits and self._inbox.empty():
            return
        with suppress(Empty):
            new = self._inbox.get(block=waits)
            while True:
                # An interrupt may have it submitted twice.
                if isinstance(new, ModelRequest) and not new.events.is_taken:
                    new.events.is_taken = True
                    self._waiting.append(new)
                new = self._inbox.get_nowait()

    def check(self, events: Events) -> None:
        """Cancel events that were read by who closes the engine, or by an event loop."""
        if self.is_closing and events.is_taken and not events.is_cancelled:
            if events.is_awaited:
                events.cancel(self._closed())
            elif events.reader in self._closers:
                events.cancel()

    def _end_unwanted(self) -> None:
        """End what nobody is to read any more: all, as Python ends."""
        for request in [*self._active, *self._waiting]:
            self.check(request.events)
            if self._ending or not request.events.is_wanted:
                self._end(request, None)

    def _admit(self) -> None:
        """Give free slots to those that wait, in order.

        Who waits for another request to read the same prompt lets others go first.
        """
        for request in [*self._waiting]:
            if self._slots.is_full:
                return
            try:
                if self._slots.is_being_read(request):
                    continue
                session = self._slots.taken(request)
            except Exception as error:
                self._end(request, error)
                continue
            self._waiting.remove(request)
            self._active.append(request)
            request.running = request.detokenize(self._steps(request, session))

    def _steps(self, request: ModelRequest, session: Session) -> Generator[Step]:
        """The steps of a request that has a slot; `WAITS` where it waits for a disk or a run."""
        try:
            prefixes = None if self._prefixes is None else self._prefixes.of(request.namespace)
            held = 0 if prefixes is None else prefixes.held(session, request.prompt_ids)
            keeps = request.reuse_prefix and prefixes is not None and prefixes.store is not None
            if keeps or (request.drafters is not None and request.drafters.reads_files):
                # In another thread: no step waits for a disk.
                task = Task(partial(request.read_files, prefixes, session, held), self.look)
                self._disk.add(task.run)
                while not task.is_done:
                    yield WAITS
                task.result()
            else:
                request.read_files(prefixes, session, held)
            self._slots.begins(request)
            with closing(request.steps(session)) as steps:
                yield from steps
        finally:
            request.owner.is_over = True
            self._slots.leave(request)

    def _resume(self, request: ModelRequest) -> bool:
        """Let a request make an event; whether it did, or ended."""
        running, events = request.running, request.events
        is_wanted = self._waiting or self.is_closing
        if running is None or (not is_wanted and events.is_far_ahead()):
            return False
        try:
            event = next(running)
        except StopIteration:
            storing = request.storing
            if storing is not None and not storing.is_done:
                return False
            self._end(request, None if storing is None else storing.error)
        except _CancelledError:
            self._end(request, None)
        except BaseException as error:  # also a panic of the core
            self._end(request, error)
        else:
            if event is NOTHING_YET:
                return False
            events.put(event)
        return True

    def _end(self, request: ModelRequest, error: BaseException | None) -> None:
        """End a request, and free its slot."""
        if request.running is not None:
            try:
                request.running.close()
            except BaseException as failure:
                error = error or failure
        request.owner.is_over = True
        for held in (self._waiting, self._active):
            with suppress(ValueError):
                held.remove(request)
        if not self._ending:
            request.events.end(error)
        elif request.events.reader in self._ending:  # other threads end where they wait
            request.events.end(error or self._closed())

    def _closed(self) -> SessionClosedError:
        """What requests are told that come too late."""
        failure = self._failure
        return SessionClosedError(
            "the model is closed" if failure is None else f"the model has failed: {failure!r}"
        )

    def _refuse_rest(self) -> None:
        """End what came too late."""
        with suppress(Empty):
            while True:
                late = self._inbox.get_nowait()
                if isinstance(late, ModelRequest):
                    late.events.end(self._closed())
