"""Requests of one session that take turns.

In: requests, from any thread. Out: their steps, of one request at a time; another thread's waits.
What a request is (`model.py`), and how it is answered (`generate.py`), is not known here.
"""

from collections.abc import Callable, Generator
from threading import Lock, Thread, current_thread
from typing import Any, NamedTuple
from weakref import ref

from coordgen_rs.drafters import Drafters
from coordgen_rs.errors import CallOrderError, SessionClosedError
from coordgen_rs.generate import Step, generate, plain
from coordgen_rs.process import OpenedHere
from coordgen_rs.target.ort_session import OrtSession
from coordgen_rs.target.prefixes import PrefixPool


class Turn(NamedTuple):
    """One request.

    Attributes:
        steps: Its steps; they begin when the first is asked for.
        asked: To be called by the thread that asks for the next piece of the answer: the request
            is that thread's from then on.
    """

    steps: Generator[Step]
    asked: Callable[[], None]


class Turns:
    """The requests of a session.

    Args:
        session: The target; nothing else may use it.
        prefixes: What is kept of requests of earlier namespaces; None keeps nothing.
        namespace: Whose tokens the session holds.
        release: Called by each `close`, when no request runs any more and none may begin.
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
        self._lock = Lock()
        self._owner: Thread | None = None  # who asked the request that holds the lock for a step
        self._running: list[ref[Generator[Step]]] = []  # that request
        self._is_closed = False
        self._opened = OpenedHere()

    def turn(self, request: dict[str, Any], drafters: Drafters | None, namespace: str) -> Turn:
        """A request, which waits for its turn when its first step is asked for.

        That raises CallOrderError if the thread has another request open, SessionClosedError when
        all are closed, ForkedError in a fork of the process, and what `generate` raises.

        Args:
            request: Arguments of `generate`.
            drafters: None decodes plainly.
            namespace: Whose request it is.
        """
        running: list[ref[Generator[Step]]] = []
        steps = self._steps(request, drafters, namespace, running)
        running.append(ref(steps))

        def asked() -> None:
            if self._running is running and self._owner is not None:
                self._owner = current_thread()

        return Turn(steps, asked)

    def close(self) -> None:
        """End this thread's request, wait for another thread's, and release what they used.

        In a fork of the process, nothing happens.
        """
        if self._opened.is_forked:
            return
        if self._owner is current_thread():
            running = self._running[0]()
            if running is not None:
                running.close()
        with self._lock:
            self._is_closed = True
            self._release()

    def _steps(
        self,
        request: dict[str, Any],
        drafters: Drafters | None,
        namespace: str,
        running: list[ref[Generator[Step]]],
    ) -> Generator[Step]:
        """The steps of a request, while no other runs; `running` is to hold the generator itself.

        Raises:
            CallOrderError: This thread has a request open.
            SessionClosedError: The model is closed.
            ForkedError: This process is a fork of the one that opened the model.
        """
        self._opened.check("model")
        if self._owner is current_thread():
            raise CallOrderError(
                "this thread has a stream of the model open: exhaust it or close it first"
            )
        with self._lock:
            if self._is_closed:
                raise SessionClosedError("the model is closed")
            self._hand_over(namespace)
            if drafters is None:
                steps = plain(self._session, **request)
            else:
                drafter, history = drafters.of(namespace)
                steps = generate(self._session, drafter=drafter, history=history, **request)
            try:
                self._running = running
                while True:
                    self._owner = current_thread()
                    step = next(steps, None)
                    if step is None:
                        return
                    yield step
            finally:
                self._owner = None
                steps.close()

    def _hand_over(self, namespace: str) -> None:
        """See that the session holds nothing of another namespace."""
        if namespace == self._held_by:
            return
        if self._prefixes is not None:
            self._prefixes.hand_over(self._session, namespace)
        self._session.rewind(0)
        self._held_by = namespace
