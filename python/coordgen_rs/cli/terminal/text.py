"""Text that comes into the command: files, stdin, arguments; and messages that go out of it.

In: bytes and arguments as they come. Out: text without a byte order mark, or an error that names
the file and the first byte that is not UTF-8. It knows nothing about prompts; the streams
themselves are made usable in `streams.py`.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from coordgen_rs.cli.terminal.formatting import printable
from coordgen_rs.errors import (
    HistoryWarning,
    LeftoverWarning,
    OptionError,
    PrefixStoreWarning,
)

MOST_BYTES = 1 << 28
"""Largest text: far more than any model reads, and still held in memory."""

_PIECE_BYTES = 1 << 20
_BYTE_ORDER_MARK = "\ufeff"


def read_file(path: Path) -> str:
    """The text of a file in UTF-8, without a byte order mark, lines ended by a line feed.

    Raises:
        OptionError: It is not UTF-8, or longer than `MOST_BYTES`; the message names it.
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        return decoded(_read(stream, str(path)), str(path))


def read_stdin() -> str:
    """The text of stdin, read as in `read_file`.

    Raises:
        OptionError: It is not UTF-8, longer than `MOST_BYTES`, or closed.
        OSError: It cannot be read.
    """
    return decoded(_read(stdin_bytes(), "stdin"), "stdin")


def _read(stream: BinaryIO, name: str) -> bytes:
    """All of a stream, a piece at a time: asked for the most at once, it would be allocated.

    Raises:
        OptionError: It is too long; it may have no end.
    """
    content = bytearray()
    while piece := stream.read(_PIECE_BYTES):
        content += piece
        if len(content) > MOST_BYTES:
            raise OptionError(f"{name} is longer than {MOST_BYTES:,} bytes")
    return bytes(content)


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
        offset = len(content) - len(error.object) + error.start  # the mark before it counts too
        raise OptionError(
            f"{name} is not UTF-8: byte 0x{content[offset]:02x} at offset {offset}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def from_argument(name: str, value: str) -> str:
    """Text from the command line, without a byte order mark.

    Args:
        name: The option, for messages.
        value: The text as Python passes it on: a byte that is no text stands there as a surrogate.

    Raises:
        OptionError: It is not valid text.
    """
    for index, character in enumerate(value):
        if "\udc80" <= character <= "\udcff":
            byte = ord(character) - 0xDC00
            raise OptionError(f"{name} is not UTF-8: byte 0x{byte:02x} after {index} characters")
    from coordgen_rs.errors import arguments

    return arguments.text(name, value).removeprefix(_BYTE_ORDER_MARK)


def tell(message: str) -> None:
    """Print a message on stderr, on one line: it may hold names that other people chose."""
    print(on_one_line(message), file=sys.stderr)


def on_one_line(message: str) -> str:
    """A message on one line, without what no terminal shows: control characters, surrogates."""
    return printable(" ".join(message.split()))


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print each warning as one line; those of what is kept on disk every time."""
    with warnings.catch_warnings():
        for category in (HistoryWarning, LeftoverWarning, PrefixStoreWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"coordgen: warning: {message}")
