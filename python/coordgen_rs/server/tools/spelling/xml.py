"""Arguments as Qwen3-Coder and Qwen3.5 write them: `<parameter=NAME>`, the value, `</parameter>`.

In: text behind `<function=NAME>`. Out: an object in JSON. A text stands as it is, without quotes,
and is given piece by piece; any other value is JSON, also where it stands beside texts that are
listed. Nothing holds the pattern or the length of a text: what is between the marks is the text.
"""

import json
from collections.abc import Generator
from typing import Any

from coordgen_rs.server.tools.lexicon import Lexicon, regex
from coordgen_rs.server.tools.spelling.marks import begun_len
from coordgen_rs.server.tools.spelling.schemas import (
    choices_of,
    is_open,
    kind_of,
    properties_of,
    required_of,
    values_of,
)
from coordgen_rs.server.tools.spelling.spelling import Got, Spelling

_OPEN, _CLOSE, _END = "<parameter=", "</parameter>", "</function>"

_OTHER_KINDS = ["object", "array", "number", "boolean", "null"]


class XmlReader:
    """Reads the arguments of one call.

    Args:
        schema: The function's.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schemas = properties_of(schema)
        self._text, self._read_len = "", 0
        self._told: list[str] = []
        self._walk = self._arguments()

    def read(self, text: str) -> Got:
        """See `ArgumentsReader`.

        Raises:
            ValueError: It is not spelt in this way.
        """
        self._text, self._read_len = text, 0
        is_whole = next(self._walk)
        told, self._told = "".join(self._told), []
        return Got(told, self._read_len, is_whole)

    @property
    def _ahead(self) -> str:
        return self._text[self._read_len :]

    def _pass(self, num_chars: int) -> None:
        self._read_len += num_chars

    def _arguments(self) -> Generator[bool]:
        separator = "{"
        while (yield from self._is_next(_OPEN, _END)):
            name = yield from self._name()
            self._told.append(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
            separator = ", "
            schema = self._schemas.get(name, {})
            yield from self._value(schema) if _may_be_json(schema) else self._string()
        self._told.append("{}" if separator == "{" else "}")
        while True:
            yield True

    def _name(self) -> Generator[bool, None, str]:
        """Read a name with its mark, which ends at the first `>` unless it is known to have one."""
        while (end := self._ahead.find(">")) < 0:
            yield False
        for known in sorted((name for name in self._schemas if ">" in name), key=len, reverse=True):
            mark = f"{_OPEN}{known}>"
            while len(self._ahead) < len(mark) and mark.startswith(self._ahead):
                yield False
            if self._ahead.startswith(mark):
                end = len(mark) - 1
                break
        name = self._ahead[len(_OPEN) : end]
        self._pass(end + 1)
        return name

    def _is_next(self, mark: str, other: str) -> Generator[bool, None, bool]:
        """Whether a mark comes next, white space aside, and not the other one.

        Raises:
            ValueError: Neither does.
        """
        while True:
            rest = self._ahead.lstrip()
            for one in (mark, other):
                if rest.startswith(one):
                    self._pass(len(self._ahead) - len(rest))
                    return one == mark
            if rest and not (mark.startswith(rest) or other.startswith(rest)):
                raise ValueError("no parameter")
            yield False

    def _string(self) -> Generator[bool]:
        """Read text up to the closing mark; a line feed on each side of it belongs to the marks."""
        while not self._ahead:
            yield False
        self._pass(self._ahead.startswith("\n"))
        self._told.append('"')
        while (end := self._ahead.find(_CLOSE)) < 0:
            kept = max(begun_len(self._ahead, "\n" + _CLOSE), begun_len(self._ahead, _CLOSE))
            self._tell(self._ahead[: len(self._ahead) - kept])
            self._pass(len(self._ahead) - kept)
            yield False
        self._tell(self._ahead[:end].removesuffix("\n"))
        self._told.append('"')
        self._pass(end + len(_CLOSE))

    def _value(self, schema: dict[str, Any]) -> Generator[bool]:
        while (end := self._ahead.find(_CLOSE)) < 0:
            yield False
        said = self._ahead[:end]
        self._pass(end + len(_CLOSE))
        text = said.strip()
        try:
            if (one := said.removeprefix("\n").removesuffix("\n")) in (_texts_of(schema) or ()):
                text = json.dumps(one, ensure_ascii=False)
            json.loads(text)
        except ValueError:
            python = {"True": "true", "False": "false", "None": "null"}
            text = python.get(text, json.dumps(text, ensure_ascii=False))
        self._told.append(text)

    def _tell(self, text: str) -> None:
        self._told.append(json.dumps(text, ensure_ascii=False)[1:-1])


def _texts_of(schema: dict[str, Any]) -> list[str] | None:
    """The texts that a schema lists, which stand without quotes; None where any may stand."""
    found = list[str]()
    for one in choices_of(schema, schema):
        if kind_of(one) == "string":
            if (values := values_of(one)) is None:
                return None
            found += [value for value in values if isinstance(value, str)]
    return found


def _may_be_json(schema: dict[str, Any]) -> bool:
    """Whether an argument may be written as JSON: it could not be told from any text."""
    is_other = any(kind_of(one) != "string" for one in choices_of(schema, schema))
    return is_other and _texts_of(schema) is not None


def _lark(schema: dict[str, Any], place: str, lexicon: Lexicon) -> tuple[str, list[str]]:
    rules, parts = list[str](), list[str]()
    if is_open(schema):
        text, mark = f"{place}x", regex(_OPEN)
        rules.append(rf"{text}[lazy]: /{mark}[^>\n]+>\n(.|\n)*{regex(chr(10) + _CLOSE)}/")
        return f"{_line()} ({text} {_line()})*", rules
    required = required_of(schema)
    for number, (name, one) in enumerate(properties_of(schema).items()):
        rule = f"{place}-{number}"
        value, more = _value(one, rule, lexicon)
        rules += more
        rules.append(f"{rule}: {lexicon.literal(f'{_OPEN}{name}>')} {value} {_line()}")
        parts.append(rule if name in required else f"{rule}?")
    return " ".join([_line(), *parts]), rules


def _line() -> str:
    return r'"\n"'


def _value(schema: dict[str, Any], rule: str, lexicon: Lexicon) -> tuple[str, list[str]]:
    """A value with its closing mark."""
    closing = lexicon.literal("\n" + _CLOSE)
    texts = _texts_of(schema)
    if texts is None:
        text = f"{rule}x"
        return f"{_line()} {text}", [rf"{text}[lazy]: /(.|\n)*{regex(chr(10) + _CLOSE)}/"]
    if not _may_be_json(schema):
        listed = " | ".join(lexicon.literal(f"\n{value}") for value in texts)
        return f"({listed}) {closing}", []
    if texts:
        kinds = schema.get("type", _OTHER_KINDS)
        kinds = [kind for kind in kinds if kind != "string"] if isinstance(kinds, list) else kinds
        schema = schema | {"type": kinds}
    values = " | ".join([*map(lexicon.literal, texts), lexicon.json(schema)])
    return f"{_line()} ({values}) {closing}", []


XML = Spelling(_lark, XmlReader)
