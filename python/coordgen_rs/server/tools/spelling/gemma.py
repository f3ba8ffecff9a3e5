"""Arguments as Gemma writes them: names without quotes, texts between marks, nothing spaced.

In: text behind `call:NAME{`. Out: an object in JSON, an argument at a time. Held are names, order
and types at every depth, listed values, and bounds of numbers; not patterns and lengths.
"""

from functools import partial
from typing import Any

from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.grammar.own_stack import MOST_LEVELS
from coordgen_rs.server.tools.lexicon import Lexicon, regex
from coordgen_rs.server.tools.spelling.pythonic import pairs
from coordgen_rs.server.tools.spelling.schemas import (
    choices_of,
    is_open,
    kind_of,
    properties_of,
    required_of,
    resolved,
    values_of,
)
from coordgen_rs.server.tools.spelling.spelling import Spelling
from coordgen_rs.server.tools.spelling.values import PairsReader, spelt_name

_DEEPEST = 8
"""Levels of a schema that are held; below them any value is allowed."""
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/"
_KEY = r"/[^\s,:=()\[\]{}'\"<]+/"


class _Writing:
    """The writing of one function's arguments."""

    def __init__(self, quote: str, root: dict[str, Any], place: str, lexicon: Lexicon) -> None:
        self._quote, self._root, self._place, self._lexicon = quote, root, place, lexicon
        self.rules: list[str] = []
        self._num, self._num_values = 0, 0
        self._any = ""

    def object(self, schema: dict[str, Any], depth: int) -> str:
        """What stands between the braces of an object."""
        own = self._name()
        whole = resolved(schema, self._root)
        if is_open(whole):
            return f'({self._pair()} ("," {self._pair()})*)?'
        named, required = properties_of(whole), required_of(whole)
        for number, (name, one) in enumerate(named.items()):
            value = self.value(one, depth + 1)
            self.rules.append(
                f"{own}-{number}: {self._lexicon.literal(f'{spelt_name(name)}:')} {value}"
            )
        return pairs(own, [name in required for name in named], '","', self.rules)

    def value(self, schema: dict[str, Any], depth: int) -> str:
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
        choices = choices_of(schema, self._root)
        return "(" + " | ".join(self._one(choice, depth) for choice in choices) + ")"

    def _one(self, schema: dict[str, Any], depth: int) -> str:
        if (values := values_of(schema)) is not None:
            return " | ".join(map(self._listed, values))
        kind = kind_of(schema)
        if kind == "object":
            return f'"{{" {self.object(schema, depth)} "}}"'
        if kind == "array":
            items = schema.get("items")
            item = self.value(items, depth + 1) if isinstance(items, dict) else self._anything()
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind in ("integer", "number"):
            shared = {
                name: self._root[name] for name in ("$defs", "definitions") if name in self._root
            }
            return self._lexicon.json(shared | schema)
        if kind == "string":
            return self._string()
        words = {"boolean": '"true" | "false"', "null": '"null"'}
        return words.get(kind or "") or self._anything()

    def _listed(self, value: Any) -> str:
        literal = self._lexicon.literal
        if isinstance(value, str):
            return literal(f"{self._quote}{value}{self._quote}")
        if value is None or isinstance(value, bool):
            return literal({None: "null", True: "true", False: "false"}[value])
        return literal(str(value)) if isinstance(value, int | float) else self._anything()

    def _string(self) -> str:
        if self._lexicon.is_token(self._quote):
            quote = self._lexicon.literal(self._quote)
            return rf"{quote} /(.|\n)+/? {quote}"
        name = f"{self._place}s"
        if not any(rule.startswith(f"{name}[") for rule in self.rules):
            mark = regex(self._quote)
            self.rules.append(rf"{name}[lazy]: /{mark}(.|\n)*{mark}/")
        return name

    def _pair(self) -> str:
        return f'{_KEY} ":" {self._anything()}'

    def _anything(self) -> str:
        if not self._any:
            self._any = name = f"{self._place}v"
            pair = f'{_KEY} ":" {name}'
            self.rules.append(
                f'{name}: {self._string()} | {_NUMBER} | "true" | "false" | "null"'
                f' | "[" ({name} ("," {name})*)? "]" | "{{" ({pair} ("," {pair})*)? "}}"'
            )
        return self._any

    def _name(self) -> str:
        self._num += 1
        return f"{self._place}g{self._num}"


def _lark(
    quote: str, schema: dict[str, Any], place: str, lexicon: Lexicon
) -> tuple[str, list[str]]:
    writing = _Writing(quote, schema, place, lexicon)
    return writing.object(schema, 0), writing.rules


def spelt_by_gemma(quote: str) -> Spelling:
    """The spelling with a mark around texts."""
    return Spelling(partial(_lark, quote), lambda schema: PairsReader(":", "}", quote))
