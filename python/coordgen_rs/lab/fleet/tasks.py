"""Calls of functions in other processes: side by side here, on Ray, or one whose memory is freed.

In: the option `--ray`; a function of a module, and what to call it with, all of which can be
pickled. Out: what each call returns, as it ends, or the error that it raises. The results are the
same wherever calls run; what a call writes must be whole or absent, because Ray calls again where a
worker was killed.
"""

import argparse
import logging
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import Any, Protocol, TypeAlias, TypeVar

from coordgen_rs.cli import option
from coordgen_rs.errors import CoordgenError, OptionError
from coordgen_rs.errors.extras import how_to_install

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Ended: TypeAlias = Iterator[tuple[int, _Out]]

RETRIES = 3
"""How often Ray calls again where a worker was lost."""

_LOCAL = "local"
_WORKER_LACKS = re.compile(r"failed to import|cannot import name|No module named")
"""What Ray says of a call that a worker could not even read."""


class TaskLostError(CoordgenError):
    """A process that ran a call was killed; or Ray cannot be reached, or gave a task up."""


class Tasks(Protocol):
    """Where calls run."""

    def run(self, call: Callable[[_In], _Out], arguments: Sequence[_In]) -> _Ended[_Out]:
        """What each call returns, with the index of its argument, in the order in which they end.

        An exception of a call ends all.
        """


class Sequential:
    """Calls run in this process, one after the other."""

    def run(self, call: Callable[[_In], _Out], arguments: Sequence[_In]) -> _Ended[_Out]:
        """Same as in `Tasks`, in order."""
        for index, argument in enumerate(arguments):
            yield index, call(argument)


class Processes:
    """Calls run in processes of this machine, some at once; what they need is imported anew.

    Args:
        num_at_once: How many, at least 1.
    """

    def __init__(self, num_at_once: int) -> None:
        self._num_at_once = num_at_once

    def run(self, call: Callable[[_In], _Out], arguments: Sequence[_In]) -> _Ended[_Out]:
        """Same as in `Tasks`.

        Raises:
            TaskLostError: A process was killed.
        """
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self._num_at_once, context, initializer=_end_with_parent)
        before = set(multiprocessing.active_children())
        try:
            with _without_interrupts():  # nor do they hear one, who are begun now
                calls = {pool.submit(call, one): index for index, one in enumerate(arguments)}
            for ended in as_completed(calls):
                yield calls[ended], ended.result()
        except BrokenProcessPool as error:
            raise TaskLostError("a process was killed, or ran out of memory") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C is left to the caller, who may only wait a moment for it."""
    before = signal(SIGINT, SIG_IGN)
    try:
        yield
    finally:
        signal(SIGINT, before)


def _end_with_parent() -> None:
    """Called in a new process: it ends when its parent does, however that ends."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


class RayTasks:
    """Calls run as Ray tasks.

    Workers need this package, and see files at the same paths as this process. A call that was lost
    with its worker runs again.

    Args:
        address: "local" for workers on this machine, one per core, "local:N" for N of them, or
            that of a cluster: "auto", "HOST:PORT" or "ray://HOST:PORT".
        cores: Cores that Ray sets aside for each call.

    Raises:
        OptionError: The address is none, the package ray is missing, or the largest machine of
            the cluster has fewer cores, so that calls would wait for ever.
        TaskLostError: No cluster answers there.
    """

    def __init__(self, address: str, *, cores: int = 1) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise OptionError(
                f"--ray needs the package ray, which is not installed: {how_to_install('ray')}"
            ) from error
        self._ray: Any = ray
        self._cores = cores
        where: dict[str, Any] = {"address": address}
        kind, _, num_workers = address.partition(":")
        if kind == _LOCAL:
            where = {"address": _LOCAL, "include_dashboard": False}
            if num_workers:
                where["num_cpus"] = _count(num_workers, address)
        try:
            ray.init(
                **where, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise TaskLostError(f"no Ray cluster answers at {address}: {error}") from error
        try:
            self._check_cores(address)
        except BaseException:
            self.close()
            raise

    def _check_cores(self, address: str) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        most = max((int(resources.get("CPU", 0)) for resources in nodes), default=0)
        if 0 < most < self._cores:  # where there are none yet, a cluster starts machines when asked
            raise OptionError(
                f"--ray {address}: each task takes {self._cores} cores, but no machine there has "
                f"more than {most}: use fewer threads, or larger machines"
            )

    def run(self, call: Callable[[_In], _Out], arguments: Sequence[_In]) -> _Ended[_Out]:
        """Same as in `Tasks`.

        Raises:
            TaskLostError: A task was lost more often than is retried, or this package is missing
                on a worker.
        """
        ray = self._ray
        remote = ray.remote(max_retries=RETRIES, num_cpus=self._cores)(_called)
        at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)) // self._cores)
        waiting = iter(enumerate(arguments))
        running: dict[Any, int] = {}
        try:
            while True:
                while len(running) < at_once and (found := next(waiting, None)) is not None:
                    running[remote.remote(call, found[1])] = found[0]
                if not running:
                    return
                (ended,), _ = ray.wait(list(running), num_returns=1)
                yield running.pop(ended), self._result(ended)
        finally:
            for task in running:
                ray.cancel(task)

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError) or _WORKER_LACKS.search(str(cause)):
                raise TaskLostError(
                    "a Ray worker cannot import this package as it is here: install the same "
                    f"version on every worker: {str(cause).splitlines()[0]}"
                ) from error
            raise cause if isinstance(cause, Exception) else error from None
        except errors.RayError as error:
            raise TaskLostError(f"Ray lost a task {RETRIES + 1} times: {error}") from error

    def close(self) -> None:
        """Leave the cluster; one that was started for this ends."""
        self._ray.shutdown()


def _called(call: Callable[[_In], _Out], argument: _In) -> _Out:
    """Run a call on a worker."""
    return call(argument)


def _count(typed: str, address: str) -> int:
    if not typed.isdecimal() or int(typed) < 1:
        raise OptionError(f"--ray {address}: the number of workers must be an integer from 1 on")
    return int(typed)


RAY = option.text("--ray ADDRESS", may_be_empty=False).help(
    "run on Ray: auto, HOST:PORT or ray://HOST:PORT for a cluster, whose workers must see "
    "the same files; local or local:N for N workers here; default: one after the other"
)


@contextmanager
def chosen(options: argparse.Namespace, *, cores: int = 1) -> Iterator[Tasks]:
    """Where calls run, for the block; on Ray each has `cores` cores."""
    if options.ray is None:
        yield Sequential()
        return
    tasks = RayTasks(options.ray, cores=cores)
    try:
        yield tasks
    finally:
        tasks.close()


class OwnProcessError(CoordgenError):
    """A process that measured something ended without a result; the message holds its last line."""


def in_own_process(function: Callable[..., _Out], *arguments: Any, **options: Any) -> _Out:
    """Call a function in another process of this Python.

    Raises:
        OwnProcessError: The process was killed, or ended otherwise without a result.
        Exception: Whatever the function raises.
    """
    main = f"from {__name__} import answer; answer()"
    task = pickle.dumps((function, arguments, options))
    command = [sys.executable, "-P", "-c", main]  # -P: no code of the working directory is run
    done = subprocess.run(command, input=task, capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OwnProcessError(
            f"the process of {function.__name__} ended with {done.returncode}: {said or 'no word'}"
        )
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    returned: _Out = result
    return returned


def answer() -> None:
    """Read a call from stdin, and write its result or its error on stdout."""
    outcome: tuple[Any, Exception | None]
    function, arguments, options = pickle.load(sys.stdin.buffer)
    try:
        outcome = function(*arguments, **options), None
    except Exception as error:
        outcome = None, error
    sys.stdout.buffer.write(pickle.dumps(outcome))
