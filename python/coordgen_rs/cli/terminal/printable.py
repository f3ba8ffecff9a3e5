"""What others wrote on a terminal: what is printed must not steer it.

In: names from files, and answers. Out: text without control characters, for people to read.
"""

from typing import IO

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
