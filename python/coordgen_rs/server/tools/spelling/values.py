"""Values of Python and of Gemma in text: where each ends, and the same as JSON.

In: text that begins with a value. Out: the value and its length, or that more text is needed.
"""

import json
import re
from typing import Any

from coordgen_rs.server.tools.spelling.spelling import Got

_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_CODE = re.compile("[0-9a-fA-F]{4}")
_NAME = re.compile(r"[^\s,:=()\[\]{}'\"<]+")
_WORD = re.compile(r"[^\s,:()\[\]{}'\"<]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def spelt_name(name: str) -> str:
    """A name as `Values.key` reads it: in quotes where it would not end where it ends."""
    return name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


class UnfinishedError(Exception):
    """The value goes on behind the text."""


class Values:
    """Reads values from a text.

    Args:
        text: The text.
        at: Where the next value begins.
        quote: What stands around strings beside the quotes of Python and JSON; "" for nothing else.

    Attributes:
        at: Where the next one begins.
    """

    def __init__(self, text: str, at: int = 0, quote: str = "") -> None:
        self._text, self.at, self._quote = text, at, quote

    def next(self) -> Any:
        """Read a value.

        Raises:
            UnfinishedError: It goes on behind the text.
            ValueError: There is none.
        """
        start = self.peek()
        if self._quote and (start == self._quote[0] and self._is_at(self._quote)):
            return self._between(self._quote)
        if start in "'\"":
            return self._quoted(start)
        if start == "[":
            return self._list()
        return self._object() if start == "{" else self._word()

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
        if self.peek() in "'\"<":
            return str(self.next())
        match = _NAME.match(self._text, self.at)
        if match is None:
            raise ValueError("no name")
        if match.end() == len(self._text):
            raise UnfinishedError
        self.at = match.end()
        return match[0]

    def take(self, character: str) -> None:
        """Pass a character.

        Raises:
            UnfinishedError: There is none yet.
            ValueError: There is another one.
        """
        if self.peek() != character:
            raise ValueError(f"no {character}")
        self.at += 1

    def _is_at(self, mark: str) -> bool:
        rest = self._text[self.at : self.at + len(mark)]
        if len(rest) < len(mark) and mark.startswith(rest):
            raise UnfinishedError
        return rest == mark

    def _between(self, quote: str) -> str:
        start = self.at + len(quote)
        end = self._text.find(quote, start)
        if end < 0:
            raise UnfinishedError
        self.at = end + len(quote)
        return self._text[start:end]

    def _quoted(self, quote: str) -> str:
        at, found = self.at + 1, list[str]()
        plain = _PLAIN[quote]
        while match := plain.match(self._text, at):
            found.append(match[0])
            at = match.end()
            if at >= len(self._text):
                break
            if self._text[at] == quote:
                self.at = at + 1
                return "".join(found)
            text, at = self._escaped(at + 1)
            found.append(text)
        raise UnfinishedError

    def _escaped(self, at: int) -> tuple[str, int]:
        """The character that stands behind a backslash, and where the next one is.

        Raises:
            UnfinishedError: There is none yet.
        """
        if at >= len(self._text):
            raise UnfinishedError
        character = self._text[at]
        if character == "u" and (match := _CODE.match(self._text, at + 1)):
            return chr(int(match[0], 16)), match.end()
        return _ESCAPES.get(character, character), at + 1

    def _list(self) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while self.peek() != "]":
            found.append(self.next())
            if self.peek() != "]":
                self.take(",")
        self.at += 1
        return found

    def _object(self) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while self.peek() != "}":
            name = self.key()
            self.take(":")
            found[name] = self.next()
            if self.peek() != "}":
                self.take(",")
        self.at += 1
        return found

    def _word(self) -> Any:
        match = _WORD.match(self._text, self.at)
        if match is None:
            raise ValueError("no value")
        if match.end() == len(self._text):
            raise UnfinishedError
        self.at = match.end()
        return _WORDS[match[0]] if match[0] in _WORDS else json.loads(match[0])


class PairsReader:
    """Reads arguments that are names and values, each given when it is whole.

    Args:
        between: What stands between name and value.
        end: The character behind the last; it is not read.
        quote: Same as in `Values`.
    """

    def __init__(self, between: str, end: str, quote: str = "") -> None:
        self._between, self._end, self._quote = between, end, quote
        self._num_read = 0

    def read(self, text: str) -> Got:
        """See `ArgumentsReader`.

        Raises:
            ValueError: It is not spelt in this way.
        """
        told, at = list[str](), 0
        try:
            while True:
                values = Values(text, at, self._quote)
                if self._num_read and values.peek() == ",":
                    values.at += 1
                elif values.peek() == self._end:
                    told.append("}" if self._num_read else "{}")
                    return Got("".join(told), values.at, is_whole=True)
                elif self._num_read:
                    raise ValueError("no comma")
                name = json.dumps(values.key(), ensure_ascii=False)
                values.take(self._between)
                value = json.dumps(values.next(), ensure_ascii=False)
                told.append(f"{', ' if self._num_read else '{'}{name}: {value}")
                self._num_read += 1
                at = values.at
        except UnfinishedError:
            return Got("".join(told), at, is_whole=False)
