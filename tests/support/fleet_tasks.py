"""Calls for tests of tasks: one that kills its worker the first time, and cells that are cheap."""

import importlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgen_rs.errors import HistoryError
from coordgen_rs.lab.fleet.tasks import Tasks


class KilledOnce:
    """A call that does its work and then dies before it can say so, the first time.

    Args:
        call: What to do.
        folder: Where it is noted that a worker died.
    """

    def __init__(self, call: Callable[[Any], Any], folder: Path) -> None:
        self.call, self.folder = call, folder

    def __call__(self, argument: Any) -> Any:
        result = self.call(argument)
        note = self.folder / self.call.__name__
        if not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class Killing:
    """Tasks of each kind, one of which loses its worker."""

    def __init__(self, tasks: Tasks, folder: Path) -> None:
        self.tasks, self.folder = tasks, folder

    def run(
        self, call: Callable[[Any], Any], arguments: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        return self.tasks.run(KilledOnce(call, self.folder), arguments)


def die(argument: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return argument


def wait_for_ever(directory: str) -> int:
    """Say who waits, by the name of a file."""
    Path(directory, f"{os.getpid()}.pid").touch()
    while True:
        signal.pause()


def refuse(argument: int) -> int:
    raise HistoryError(f"number {argument} is wrong")


class Unreadable:
    """A call that workers cannot read, as where they have another version of this package."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("coordgen_rs.of_another_version",)

    def __call__(self, argument: int) -> int:
        return argument


def square(argument: int) -> int:
    return argument * argument


@dataclass(frozen=True)
class FakeCell:
    """A cell of an evaluation that squares a number, or is interrupted."""

    number: int
    interrupts: bool = False

    def settings(self) -> dict[str, Any]:
        return {"number": self.number}

    def measure(self) -> list[dict[str, Any]]:
        if self.interrupts:
            raise KeyboardInterrupt
        return [{"square": self.number**2}]
