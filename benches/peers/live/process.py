"""An engine in a process of its own, which sleeps on a pipe while another engine measures.

In: a function that opens an engine, and its options, all of which can be pickled. Out: contestants
for `contest.py`. What the engine prints goes to a log. A process that ends, or does not answer in
time, fails its contestants and nothing else.
"""

import contextlib
import multiprocessing
import os
import time
from typing import NamedTuple

from contest import ContestantFailedError

_CLOSING_S = 10


class Opened(NamedTuple):
    """An engine that is ready.

    Attributes:
        contestants: As of `contest.py`, by name; they share the model.
        facts: What the engine is and how it is set, as JSON types.
    """

    contestants: dict
    facts: dict


class EngineProcess:
    """The process of one engine.

    Args:
        open_engine: A function of a module: options to `Opened`.
        options: Its options.
        log: A file for all that the process prints.
        limit_s: Seconds for an answer, and for the start; then the process is ended.
        is_cpu_time: Whether it measures by the clock of its cores, where other programs run.
    """

    def __init__(self, open_engine, options, log, limit_s=3600.0, *, is_cpu_time=False):
        """Raises ContestantFailedError where the engine cannot be opened."""
        context = multiprocessing.get_context("spawn")  # no threads of ours are inherited
        self._log, self.limit_s = log, limit_s
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, open_engine, options, log, is_cpu_time), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self.facts = self._received()
        except ContestantFailedError:
            self.close()
            raise

    def contestant(self, kind, name):
        """The engine's contestant `kind`, under a name that no other engine uses."""
        return Remote(self, kind, name)

    def call(self, kind, method, *arguments):
        """What a contestant's method returns; raises ContestantFailedError."""
        try:
            self._pipe.send((kind, method, arguments))
        except OSError as error:
            raise ContestantFailedError(self._last_words()) from error
        return self._received()

    def close(self):
        """End the process."""
        with contextlib.suppress(OSError):  # it has ended already
            self._pipe.send(None)
        self._process.join(_CLOSING_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _received(self):
        try:
            if not self._pipe.poll(self.limit_s):
                self._process.kill()
                raise ContestantFailedError(f"no answer within {self.limit_s:g} s")
            result, why = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ContestantFailedError(self._last_words()) from error
        if why is not None:
            raise ContestantFailedError(why)
        return result

    def _last_words(self):
        self._process.join(_CLOSING_S)
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        said = next((line for line in reversed(lines) if line.strip()), "no word")
        return f"its process ended with {self._process.exitcode}: {said} (all of it: {self._log})"


class Remote:
    """A contestant in another process."""

    def __init__(self, process, kind, name):
        self.name = name
        self._process, self._kind = process, kind

    def begin(self):
        """As of `Contestant`."""
        self._process.call(self._kind, "begin")

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        return self._process.call(self._kind, "answer", prompt, max_new_tokens)

    def explain(self, prompt, position, max_new_tokens):
        """As of `hosted.Hosted`."""
        return self._process.call(self._kind, "explain", prompt, position, max_new_tokens)


def _serve(pipe, open_engine, options, log, is_cpu_time):
    """Open the engine, then do one call at a time until told to end."""
    if is_cpu_time:
        time.perf_counter = time.process_time
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    opened, why = _outcome(open_engine, **options)
    pipe.send((None if opened is None else opened.facts, why))
    while opened is not None:
        try:
            request = pipe.recv()
        except EOFError:
            return  # who asked was killed
        if request is None:
            return
        kind, method, arguments = request
        pipe.send(_outcome(getattr(opened.contestants[kind], method), *arguments))


def _outcome(function, *arguments, **options):
    """The result and None, or None and the error in words."""
    try:
        return function(*arguments, **options), None
    except ModuleNotFoundError as error:
        return None, f"no module named {error.name}: pip install --group peers"
    except ContestantFailedError as error:
        return None, str(error)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
