"""Grammars as a caller gives them: `JsonSchema`, `Regex`, `Lark`, `Gbnf`.

In: a schema, a pattern, a text. Out: a value that can be compared, kept and compiled. Whether the
grammar can be followed is found out where it meets a vocabulary (`vocabulary.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordgen_rs.errors import OptionError, arguments
from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.text.thinking import Thinking


@dataclass(frozen=True, init=False)
class JsonSchema:
    """The answer is a JSON document that a schema accepts.

    Properties come in the order of the schema. The text is one line with a space after each comma
    and colon, as `json.dumps` writes it: so most of what is not content has one spelling, and is
    drafted with certainty. An object that names properties has no others, unless it says so
    (`"additionalProperties": True`): a model that may add some seldom ends an object.

    Args:
        schema: A JSON schema (draft 2020-12 and before): a mapping, or its text.
        any_whitespace: Let the model choose spaces and line breaks between the parts.

    Attributes:
        text: The schema as JSON.
        any_whitespace: The `any_whitespace` argument.

    Raises:
        OptionError: It is no mapping, or not JSON.
    """

    text: str
    any_whitespace: bool

    def __init__(self, schema: Mapping[str, Any] | str, *, any_whitespace: bool = False) -> None:
        object.__setattr__(self, "text", _schema_text(schema))
        object.__setattr__(self, "any_whitespace", bool(any_whitespace))


@dataclass(frozen=True)
class Regex:
    r"""The answer is a text that a regular expression matches from its first character to its last.

    Args:
        pattern: A pattern in the syntax of Rust's crate `regex`, without look-around and
            back-references; `\d`, `\w` and `\s` are those of Unicode, and a dot is no line feed.

    Raises:
        OptionError: It is no string, or not valid Unicode.
    """

    pattern: str

    def __post_init__(self) -> None:
        arguments.text("the pattern", self.pattern)


@dataclass(frozen=True)
class Lark:
    """The answer is a text of a context-free grammar.

    Args:
        text: A grammar in llguidance's dialect of Lark, with a rule `start`.

    Raises:
        OptionError: It is no string, or not valid Unicode.
    """

    text: str

    def __post_init__(self) -> None:
        arguments.text("the grammar", self.text)


@dataclass(frozen=True)
class LarkOfSchemas(Lark):
    """A Lark grammar that was written of schemas, so that its limits are those of a schema.

    Args:
        text: Same as in `Lark`.
        are_cheap: Whether the schemas are known to cost little to compile.
    """

    are_cheap: bool = False


@dataclass(frozen=True)
class Gbnf:
    """The answer is a text of a context-free grammar in llama.cpp's form.

    Args:
        text: A grammar in GBNF, with a rule `root`.

    Raises:
        OptionError: It is no string, or not valid Unicode.
    """

    text: str

    def __post_init__(self) -> None:
        arguments.text("the grammar", self.text)


@dataclass(frozen=True)
class AfterThinking:
    """The answer follows a grammar behind the model's thinking, which is free.

    Args:
        grammar: What the answer follows.
        thinking: How the model marks its thinking, and whether the prompt has begun it.
    """

    grammar: "Grammar"
    thinking: Thinking


Grammar = JsonSchema | Regex | Lark | Gbnf | AfterThinking
"""What an answer may be restricted to."""


def _schema_text(schema: object) -> str:
    """A schema as JSON.

    Raises:
        OptionError: It is no schema, or not JSON.
    """
    text = schema
    if not isinstance(schema, str):
        if not isinstance(schema, Mapping):
            raise OptionError(
                f"the JSON schema must be a mapping, but is {arguments.shown(schema)}"
            )
        try:
            text = json.dumps(schema, default=_as_dict, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"the JSON schema cannot be written as JSON: {error}") from error
    text = arguments.text("the JSON schema", text).removeprefix("\ufeff")
    try:
        parsed = parse_json(text, "the JSON schema", long_integers=True)
    except JsonTextError as error:
        raise OptionError(str(error)) from error
    if not isinstance(parsed, dict):
        raise OptionError(f"the JSON schema must be an object, but is {arguments.shown(parsed)}")
    return text


def _as_dict(value: object) -> dict[str, Any]:
    """A mapping that is no dict, for `json.dumps`.

    Raises:
        TypeError: It is no mapping either.
    """
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{arguments.shown(value)} is no JSON value")
