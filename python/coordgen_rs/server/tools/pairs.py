"""Arguments as pairs of names and values: as LFM2 writes them, in Python, and as Gemma does.

In: text behind `name(`, such as `city="Ulm", days=3`, or behind `call:name{`, where names have no
quotes, texts stand between marks, and nothing is spaced. Out: an object in JSON, an argument at a
time.

Constrained are names, order and types. In Python lists and objects are JSON, and so are texts in
double quotes; a text in single quotes is one, and one of those that are listed, but follows no
pattern or length. In Gemma's syntax types are constrained at every depth, and so are listed values
and bounds of numbers, but no patterns and lengths.
"""

import json
import re
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.server.tools import syntax
from coordgen_rs.server.tools.calls import TextBuffer
from coordgen_rs.server.tools.syntax import (
    PYTHON_WORDS,
    ArgumentSyntax,
    Lexicon,
    Rules,
    Schema,
    Tell,
    as_json,
    regex,
)
from coordgen_rs.text.grammar.limits import MOST_LEVELS

_PYTHON_QUOTED = r"/'([^'\\\n]|\\['\\nt])*'/"
_PYTHON_NAME = r"/[A-Za-z_][A-Za-z0-9_]*/"
_TEXT_KEYS = {"type", "title", "description", "default", "examples", "$defs", "definitions"}
_DEEPEST = 8
"""Levels of a schema that Gemma is constrained to; below them any value is allowed."""
_GEMMA_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/"
_GEMMA_NAME = r"/[^\s,:=()\[\]{}'\"<]+/"
_DEEPEST_VALUE = 300
"""Levels of lists and objects in a value; one of more is none."""
_NAME = r"[^\s,:=()\[\]{}'\"<]++"
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def _pairs(
    schema: Schema, place: str, comma: str, pair: Callable[[str, Schema], str], rules: Rules
) -> str:
    """A piece of Lark for arguments in their order, with commas between those that are given.

    Args:
        schema: The schema of the arguments.
        place: The prefix of the rules; an argument's own is the prefix and its number.
        comma: What stands between two, in Lark.
        pair: Writes an argument, given its name and schema.
        rules: Gets the rules that are made.
    """
    named, required = syntax.properties_of(schema), syntax.required_of(schema)
    for number, (name, one) in enumerate(named.items()):
        own, rest = f"{place}-{number}", f" {place}-{number + 1}"
        rules[own] = pair(name, one)
        is_last = number + 1 == len(named)
        behind, first = ("", "") if is_last else (f"{rest}n", f"{rest}f")
        is_optional = name not in required
        rules[f"{own}n"] = f"{comma} {own}{behind}" + is_optional * f" |{behind}"
        rules[f"{own}f"] = f"{own}{behind}" + is_optional * f" |{first}"
    return f"{place}-0f" if named else '""'


def _python_lark(schema: Schema, place: str, lexicon: Lexicon) -> tuple[str, Rules]:
    if syntax.is_open(schema):
        value = f'{lexicon.json({})} | {_PYTHON_QUOTED} | "True" | "False" | "None"'
        return f'({place}p (", " {place}p)*)?', {f"{place}p": f'{_PYTHON_NAME} "=" ({value})'}

    def pair(name: str, one: Schema) -> str:
        values = " | ".join(
            _python_value(choice, one, lexicon) for choice in syntax.choices_of(one, one)
        )
        return f"{lexicon.literal(f'{_written_name(name)}=')} ({values})"

    rules: Rules = {}
    return _pairs(schema, place, '", "', pair, rules), rules


def _python_value(schema: Schema, root: Schema, lexicon: Lexicon) -> str:
    if (values := syntax.values_of(schema)) is not None:
        return "(" + " | ".join(_python_listed(value, lexicon) for value in values) + ")"
    kind = syntax.kind_of(schema)
    if kind == "boolean":
        return '("True" | "False")'
    if kind == "null":
        return '"None"'
    as_json = lexicon.json(syntax.with_definitions(schema, root))
    is_any_text = kind == "string" and schema.keys() <= _TEXT_KEYS
    return f"({as_json} | {_PYTHON_QUOTED})" if is_any_text else as_json


def _python_listed(value: Any, lexicon: Lexicon) -> str:
    if value is None or isinstance(value, bool):
        return lexicon.literal(str(value))
    written = [as_json(value)]
    if isinstance(value, str) and not set("'\\\n") & set(value):
        written.append(f"'{value}'")
    return " | ".join(map(lexicon.literal, written))


class _GemmaGrammar:
    """The grammar of one function's arguments."""

    def __init__(self, quote: str, root: Schema, place: str, lexicon: Lexicon) -> None:
        self._quote, self._root, self._place, self._lexicon = quote, root, place, lexicon
        self.rules: Rules = {}
        self._num_objects = self._num_values = 0

    def object(self, schema: Schema, depth: int) -> str:
        """What stands between the braces of an object."""
        self._num_objects += 1
        place, whole = f"{self._place}g{self._num_objects}", syntax.resolved(schema, self._root)
        if syntax.is_open(whole):
            pair = f'{_GEMMA_NAME} ":" {self._anything()}'
            return f'({pair} ("," {pair})*)?'

        def pair_of(name: str, one: Schema) -> str:
            return (
                f"{self._lexicon.literal(f'{_written_name(name)}:')} {self.value(one, depth + 1)}"
            )

        return _pairs(whole, place, '","', pair_of, self.rules)

    def value(self, schema: Schema, depth: int) -> str:
        """A value.

        Raises:
            UnsupportedGrammarError: There are too many of them.
        """
        if depth > _DEEPEST:
            return self._anything()
        self._num_values += 1
        if self._num_values > MOST_LEVELS:  # each may hold others that hold it
            raise UnsupportedGrammarError(
                f"the parameters cannot be followed: they have more than {MOST_LEVELS:,} parts"
            )
        choices = syntax.choices_of(schema, self._root)
        return "(" + " | ".join(self._one(choice, depth) for choice in choices) + ")"

    def _one(self, schema: Schema, depth: int) -> str:
        if (values := syntax.values_of(schema)) is not None:
            return " | ".join(map(self._listed, values))
        match syntax.kind_of(schema):
            case "object":
                return f'"{{" {self.object(schema, depth)} "}}"'
            case "array":
                items = schema.get("items")
                item = self.value(items, depth + 1) if isinstance(items, dict) else self._anything()
                return f'"[" ({item} ("," {item})*)? "]"'
            case "integer" | "number":
                return self._lexicon.json(syntax.with_definitions(schema, self._root))
            case "string":
                return self._string()
            case "boolean":
                return '"true" | "false"'
            case "null":
                return '"null"'
        return self._anything()

    def _listed(self, value: Any) -> str:
        if isinstance(value, str):
            return self._lexicon.literal(f"{self._quote}{value}{self._quote}")
        if isinstance(value, list | dict):
            return self._anything()
        return self._lexicon.literal(json.dumps(value))

    def _string(self) -> str:
        if self._lexicon.is_token(self._quote):
            quote = self._lexicon.literal(self._quote)
            return rf"{quote} /(.|\n)+/? {quote}"
        name, quote = f"{self._place}s", regex(self._quote)
        self.rules[f"{name}[lazy]"] = rf"/{quote}(.|\n)*{quote}/"
        return name

    def _anything(self) -> str:
        name = f"{self._place}v"
        pair = f'{_GEMMA_NAME} ":" {name}'
        self.rules[name] = (
            f'{self._string()} | {_GEMMA_NUMBER} | "true" | "false" | "null"'
            f' | "[" ({name} ("," {name})*)? "]" | "{{" ({pair} ("," {pair})*)? "}}"'
        )
        return name


def _gemma_lark(quote: str, schema: Schema, place: str, lexicon: Lexicon) -> tuple[str, Rules]:
    grammar = _GemmaGrammar(quote, schema, place, lexicon)
    return grammar.object(schema, 0), grammar.rules


def _written_name(name: str) -> str:
    """A name as it is read: in quotes where it would not end where it ends."""
    return name if re.fullmatch(_NAME, name) else as_json(name)


def _unescaped(text: str) -> str:
    """A text without escapes; U+FFFD for half of a pair of surrogates."""
    found = _ESCAPED.sub(
        lambda one: chr(int(one[1], 16)) if one[1] else _ESCAPES.get(one[2], one[2]), text
    )
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _inside(quote: str) -> re.Pattern[str]:
    """Of a text in quotes the next that is certain to be no beginning of the quote behind it."""
    first, rest = re.escape(quote[0]), re.escape(quote[1:])
    if rest:
        return re.compile(
            rf"(?:[^{first}]++|{first}(?=.{{{len(quote) - 1}}})(?!{rest}))++", re.DOTALL
        )
    return re.compile(rf"(?:[^{first}\\]++|\\.)++", re.DOTALL)


class _Scanner:
    """Reads names and values that are next in a buffer, and leaves them there.

    Args:
        buffer: The text.
        quote: What stands around texts beside the quotes of Python and JSON; "" for nothing else.

    Attributes:
        at: Where what is not read begins.
    """

    def __init__(self, buffer: TextBuffer, quote: str) -> None:
        self._buffer, self._quote, self.at = buffer, quote, 0
        quotes = [*filter(None, (quote, "'", '"'))]
        either = "|".join(map(re.escape, quotes))
        self._pattern = re.compile(
            rf"\s*+(?:(?P<quote>{either})|(?P<sign>[\[\]{{}}(),:=])"
            rf"|(?P<word>{_NAME})(?=.))",  # one at the end may go on
            re.DOTALL,
        )
        self._inside = {one: _inside(one) for one in quotes}

    def token(self) -> Generator[None, None, tuple[str, str]]:
        """Read a token: its kind, and its text.

        Raises:
            ValueError: There is none.
        """
        while (found := self._pattern.match(self._buffer.ahead, self.at)) is None:
            rest = self._buffer.ahead[self.at :].lstrip()
            if rest.startswith("<") and not (
                self._quote and self._quote.startswith(rest[: len(self._quote)])
            ):
                raise ValueError("no value")
            yield
        self.at, kind = found.end(), found.lastgroup or ""
        if kind != "quote":
            return kind, found[kind]
        text = yield from self._text(found["quote"])
        return "text", text if found["quote"] == self._quote else _unescaped(text)

    def _text(self, quote: str) -> Generator[None, None, str]:
        """Read a text and the quote behind it: each character once, in however many pieces."""
        start = self.at
        while not self._buffer.ahead.startswith(quote, self.at):
            if inside := self._inside[quote].match(self._buffer.ahead, self.at):
                self.at = inside.end()
            else:
                yield
        text = self._buffer.ahead[start : self.at]
        self.at += len(quote)
        return text

    def value(self) -> Generator[None, None, str]:
        """Read a value, and give it as JSON.

        Raises:
            ValueError: There is none.
        """
        written, depth, word = list[str](), 0, None
        while True:
            kind, text = yield from self.token()
            if kind == "sign":
                depth += (text in "[{") - (text in "]}")
                if not 0 <= depth <= _DEEPEST_VALUE or not (depth or written):
                    raise ValueError("no value")
                if text == ":" and word is not None:
                    written[-1] = as_json(word)
                elif text in "]}" and written[-1] == "," and written[-2] not in "[{":
                    written.pop()
                written.append(text)
            else:
                written.append(PYTHON_WORDS.get(text, text) if kind == "word" else as_json(text))
            word = text if kind == "word" else None
            if not depth:
                return as_json(json.loads(" ".join(written)))


def _read(
    buffer: TextBuffer, schema: Schema, tell: Tell, *, between: str, end: str, quote: str = ""
) -> Generator[None]:
    """Read arguments that are names and values, and tell each when it is whole.

    Args:
        buffer: The text.
        schema: The schema of the arguments.
        tell: Takes them.
        between: What stands between name and value.
        end: The character behind the last; it is not read.
        quote: Same as in `_Scanner`.

    Raises:
        ValueError: They are written in another way.
    """
    scanner, before = _Scanner(buffer, quote), "{"
    while (token := (yield from scanner.token())) != ("sign", end):
        if before == ", ":
            if token != ("sign", ","):
                raise ValueError("no comma")
            token = yield from scanner.token()
        kind, name = token
        if kind == "sign" or (yield from scanner.token()) != ("sign", between):
            raise ValueError(f"no {between}")
        value = yield from scanner.value()
        buffer.take(scanner.at)
        scanner.at = 0
        tell(f"{before}{as_json(name)}: {value}")
        before = ", "
    buffer.take(scanner.at - len(end))
    tell("{}" if before == "{" else "}")


PYTHON = ArgumentSyntax(_python_lark, partial(_read, between="=", end=")"))


def gemma_syntax(quote: str) -> ArgumentSyntax:
    """Gemma's syntax, with a mark around texts."""
    return ArgumentSyntax(
        partial(_gemma_lark, quote), partial(_read, between=":", end="}", quote=quote)
    )
