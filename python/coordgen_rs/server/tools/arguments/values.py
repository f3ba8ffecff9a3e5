"""Values of Python and of Gemma in text: where each ends, and the same as JSON.

In: text that begins with a value, or with pairs of names and values. Out: JSON, or that more text
is needed.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

from coordgen_rs.server.tools.arguments.syntax import Schema, Tell
from coordgen_rs.server.tools.text_buffer import TextBuffer

_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_QUOTED = {
    quote: re.compile(rf"{quote}([^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+){quote}", re.DOTALL)
    for quote in "'\""
}
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_NAME = re.compile(r"[^\s,:=()\[\]{}'\"<]+")
_WORD = re.compile(r"[^\s,:()\[\]{}'\"<]+")


def written_name(name: str) -> str:
    """A name as `Values.key` reads it: in quotes where it would not end where it ends."""
    return name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


class UnfinishedError(Exception):
    """The value goes on behind the text."""


class Values:
    """Reads values from a text.

    Args:
        text: The text.
        quote: What stands around strings beside the quotes of Python and JSON; "" for nothing else.

    Attributes:
        at: Where the next one begins.
    """

    def __init__(self, text: str, quote: str = "") -> None:
        self._text, self.at, self._quote = text, 0, quote

    def next(self) -> Any:
        """Read a value.

        Raises:
            UnfinishedError: It goes on behind the text.
            ValueError: There is none.
        """
        start = self.peek()
        if self._quote and self._quote.startswith(self._text[self.at : self.at + len(self._quote)]):
            return self._between(self._quote)
        if start in "'\"":
            return self._quoted(start)
        if start == "[":
            return list(self._items("]", self.next))
        return dict(self._items("}", self._pair)) if start == "{" else self._word()

    def peek(self) -> str:
        """The next character, white space aside.

        Raises:
            UnfinishedError: There is none.
        """
        while self.at < len(self._text) and self._text[self.at].isspace():
            self.at += 1
        if self.at >= len(self._text):
            raise UnfinishedError
        return self._text[self.at]

    def key(self) -> str:
        """Read a name, with or without quotes.

        Raises:
            UnfinishedError: It may go on behind the text.
            ValueError: There is none.
        """
        return str(self.next()) if self.peek() in "'\"<" else self._match(_NAME)

    def take(self, character: str) -> None:
        """Pass a character.

        Raises:
            UnfinishedError: There is none yet.
            ValueError: There is another one.
        """
        if self.peek() != character:
            raise ValueError(f"no {character}")
        self.at += 1

    def _between(self, quote: str) -> str:
        start = self.at + len(quote)
        end = self._text.find(quote, start)
        if end < 0:
            raise UnfinishedError
        self.at = end + len(quote)
        return self._text[start:end]

    def _quoted(self, quote: str) -> str:
        match = _QUOTED[quote].match(self._text, self.at)
        if match is None:
            raise UnfinishedError
        self.at = match.end()
        return _ESCAPED.sub(
            lambda one: chr(int(one[1], 16)) if one[1] else _ESCAPES.get(one[2], one[2]), match[1]
        )

    def _items(self, end: str, read: Callable[[], Any]) -> Iterator[Any]:
        """What stands between two brackets."""
        self.at += 1
        while self.peek() != end:
            yield read()
            if self.peek() != end:
                self.take(",")
        self.at += 1

    def _pair(self) -> tuple[str, Any]:
        name = self.key()
        self.take(":")
        return name, self.next()

    def _word(self) -> Any:
        word = self._match(_WORD)
        return _WORDS[word] if word in _WORDS else json.loads(word)

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        if match is None:
            raise ValueError("no name and no value")
        if match.end() == len(self._text):
            raise UnfinishedError
        self.at = match.end()
        return match[0]


def read_pairs(
    buffer: TextBuffer, schema: Schema, tell: Tell, *, between: str, end: str, quote: str = ""
) -> Generator[None]:
    """Read arguments that are names and values, and tell each when it is whole.

    Args:
        buffer: The text.
        schema: The schema of the arguments.
        tell: Takes them.
        between: What stands between name and value.
        end: The character behind the last; it is not read.
        quote: Same as in `Values`.

    Raises:
        ValueError: They are written in another way.
    """
    before = "{"
    while True:
        values = Values(buffer.ahead, quote)
        try:
            if values.peek() == end:
                buffer.take(values.at)
                tell("{}" if before == "{" else "}")
                return
            if before == ", ":
                values.take(",")
            name = json.dumps(values.key(), ensure_ascii=False)
            values.take(between)
            value = json.dumps(values.next(), ensure_ascii=False)
        except UnfinishedError:
            yield
            continue
        except RecursionError as error:
            raise ValueError("values go too deep") from error
        buffer.take(values.at)
        tell(f"{before}{name}: {value}")
        before = ", "
