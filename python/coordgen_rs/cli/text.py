"""Text in and out of the command: files, stdin, arguments, and streams that the shell closed.

In: bytes and streams as they come. Out: text without a byte order mark, or an error that names the
file and the first byte that is not UTF-8; streams that can be written to whatever the terminal's
encoding is. It knows nothing about prompts.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from coordgen_rs import arguments
from coordgen_rs.errors import OptionError
from coordgen_rs.text.printable import printable

STDOUT = "stdout"
"""The file name in errors of writing there."""

_BYTE_ORDER_MARK = "\ufeff"


def read_file(path: Path) -> str:
    """The text of a file in UTF-8, without a byte order mark, lines ended by a line feed.

    Raises:
        OptionError: It is not UTF-8; the message names it.
        OSError: It cannot be read.
    """
    return decoded(path.read_bytes(), str(path))


def read_stdin() -> str:
    """The text of stdin; as in `read_file`.

    Raises:
        OptionError: It is not UTF-8, or closed.
        OSError: It cannot be read.
    """
    return decoded(stdin_bytes().read(), "stdin")


def stdin_bytes() -> BinaryIO:
    """Stdin as bytes.

    Raises:
        OptionError: It is closed.
    """
    if sys.stdin is None:
        raise OptionError("stdin is closed: there is nothing to read from it")
    return sys.stdin.buffer


def decoded(content: bytes, name: str) -> str:
    """Bytes from outside as text, without a byte order mark, lines ended by a line feed.

    Raises:
        OptionError: They are not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise OptionError(
            f"{name} is not UTF-8: byte 0x{byte:02x} at offset {error.start}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def from_argument(name: str, value: str) -> str:
    """Text from the command line, without a byte order mark.

    Args:
        name: The option, for messages.
        value: As Python passes it on: a byte that is no text stands there as a surrogate.

    Raises:
        OptionError: It is not valid text.
    """
    for index, character in enumerate(value):
        if "\udc80" <= character <= "\udcff":
            byte = ord(character) - 0xDC00
            raise OptionError(f"{name} is not UTF-8: byte 0x{byte:02x} after {index} characters")
    return arguments.text(name, value).removeprefix(_BYTE_ORDER_MARK)


def on_one_line(message: str) -> str:
    """A message on one line, without what no terminal shows: control characters, surrogates."""
    return printable(" ".join(message.split()))


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
