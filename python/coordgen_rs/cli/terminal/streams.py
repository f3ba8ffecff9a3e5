"""The three standard streams, usable however the shell left them, and a progress bar on one.

In: the streams as Python opened them: closed, full, in ASCII. Out: streams that can be written to,
and whose errors have a name. It loads nothing large: it is needed before anything is opened.
"""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from coordgen_rs.cli.terminal.text import printable

STDOUT = "stdout"
"""The file name in errors of writing there."""


def make_streams_usable() -> None:
    r"""Prepare the three standard streams, first of all that the process does.

    A closed descriptor is taken by something that cannot be read or written, or else the next file
    that is opened would get its number, and with it what is printed. Writing to a closed stdout
    fails as it does for other programs; what stderr does not take is lost. Characters that an
    encoding lacks are written as `\xe9` or `\u65e5`.
    """
    closed = [number for number in (0, 1, 2) if _is_closed(number)]
    for number in closed:
        _take(number)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Stderr(
            sys.stderr.detach(),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
    if sys.stdout is None:
        sys.stdout = _ClosedStdout()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _Stdout(
            sys.stdout.detach(),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
            line_buffering=os.isatty(1),
        )


def let_go_of_stdout() -> None:
    """Drop what could not be written, so that Python does not try again when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def _take(number: int) -> None:
    # The wrong way round, so that using it is an error, as it is for a closed one.
    opened = os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)


class _Stdout(io.TextIOWrapper):
    """Stdout, whose errors have a name."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            _raise_named(error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            _raise_named(error)


def _raise_named(error: OSError) -> NoReturn:
    error.filename = error.filename or STDOUT
    raise error


class _ClosedStdout(io.TextIOBase):
    """Stdout where the shell has closed it: an error as soon as what is written should be out."""

    _has_text = False

    def write(self, text: str, /) -> int:
        self._has_text = self._has_text or bool(text)
        return len(text)

    def flush(self) -> None:
        if self._has_text:
            self._has_text = False
            raise OSError(errno.EBADF, "it is closed", STDOUT)


class _Stderr(io.TextIOWrapper):
    """Stderr, which loses what it cannot write: there is no other place to tell."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr, if that is a terminal and rich is installed.

    Where nothing takes time, rich is not loaded.

    Yields:
        A function to call with what is being done, how much of it is done, and how much there is.
    """
    with ExitStack() as stack:
        shown: list[Callable[[str, int, int], None]] = []

        def show(what: str, done: int, total: int) -> None:
            if not shown:
                shown.append(stack.enter_context(_bar()))
            shown[0](what, done, total)

        yield show


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress
    except ModuleNotFoundError:
        console = None
    else:
        console = Console(stderr=True)
    if console is None or not console.is_terminal:  # some versions end a disabled bar with a line
        yield lambda what, done, total: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=escape(printable(what)), completed=done, total=total
        )
