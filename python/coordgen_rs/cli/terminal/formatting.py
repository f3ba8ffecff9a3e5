"""Numbers and other people's text as a terminal shows them; sizes as people write them.

In: numbers, names from files, answers. Out: text without control characters, for people to read.
"""

import re
from typing import IO

from coordgen_rs.errors import OptionError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmg]i?)?b?", re.IGNORECASE | re.ASCII)
_SYMBOLS = (
    {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)


def printable(text: str) -> str:
    r"""`text` with everything unprintable escaped as in Python, such as `\x1b` and `\u202e`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def answer_text(text: str, stream: IO[str]) -> str:
    """A part of an answer for a stream: on a terminal, control characters are symbols."""
    return text.translate(_SYMBOLS) if stream.isatty() else text


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


def show_bytes(num_bytes: int) -> str:
    """`num_bytes` for people, in megabytes."""
    return f"{num_bytes / 1e6:,.1f} MB"
