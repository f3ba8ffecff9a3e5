"""Text that comes into the command: files, stdin, arguments; and what goes out of it for people.

In: bytes and arguments as they come; messages, numbers, answers, and other people's text. Out: text
without a byte order mark, or an error that names the file and the first byte that is not UTF-8;
lines without control characters, sizes as people write them, and answers in the colours of their
sources, which a legend explains. It knows nothing about prompts; the streams themselves are made
usable in `streams.py`.
"""

import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from coordgen_rs.errors import HistoryWarning, LeftoverWarning, OptionError, PrefixStoreWarning

if TYPE_CHECKING:
    from coordgen_rs.model.answer import TextDelta

MOST_BYTES = 1 << 28
"""Largest text: far more than any model reads, and still held in memory."""

_PIECE_BYTES = 1 << 20
_BYTE_ORDER_MARK = "\ufeff"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmg]i?)?b?", re.IGNORECASE | re.ASCII)
_SYMBOLS = (
    {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)
_COLOURS = (32, 36, 33, 35, 34, 31, 92, 96, 93, 95, 94, 91)
"""Foreground codes: green, cyan, yellow, magenta, blue, red, and their bright forms."""


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
    print(printable(" ".join(message.split())), file=sys.stderr)


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


def printable(text: str) -> str:
    r"""`text` with everything unprintable escaped as in Python, such as `\x1b` and `\u202e`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def counted(number: int, noun: str) -> str:
    """`number` and `noun`, which takes an s unless there is one of it."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` means: 800000000, 800M, 2G, 1.5GiB.

    Raises:
        OptionError: It is not a number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{text!r} is not a number of bytes: write 800000000, 800M, 2G or 1.5GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def show_time(seconds: float) -> str:
    """The minute, here, of a time in seconds since 1970."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # of a clock that was wrong, or a damaged file
        return "unknown"


def show_bytes(num_bytes: int) -> str:
    """`num_bytes` for people, in megabytes."""
    return f"{num_bytes / 1e6:,.1f} MB"


def wants_colours(stream: IO[str]) -> bool:
    """Whether to colour output: never with NO_COLOR, always with FORCE_COLOR, else on terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class SourceColours:
    """Colours of sources, assigned in the order in which they first appear.

    Args:
        stream: Where answers are shown.

    Attributes:
        is_on: Whether they are coloured there.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self.is_on = stream, wants_colours(stream)
        self._codes: dict[str, int | None] = {"target": None}

    def shown(self, piece: "TextDelta") -> str:
        """The piece's text for the stream: on a terminal, control characters are symbols."""
        text = piece.text.translate(_SYMBOLS) if self._stream.isatty() else piece.text
        return self._painted(text, piece.source) if self.is_on else text

    def _painted(self, text: str, source: str) -> str:
        number = len(self._codes) - 1
        code = self._codes.setdefault(source, _COLOURS[number % len(_COLOURS)])
        return text if code is None else f"\x1b[{code}m{text}\x1b[0m"

    def legend(self, sources: Sequence[str], *, painted: bool) -> str:
        """The sources of an answer's tokens, with the share of each, in its colour if `painted`."""
        return ", ".join(
            f"{self._painted(name, name) if painted else name} {count / len(sources):.0%}"
            for name, count in Counter(sources).most_common()
        )
