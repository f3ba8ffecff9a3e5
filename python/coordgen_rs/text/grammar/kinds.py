"""Grammars as a caller gives them: `JsonSchema`, `Regex`, `Lark`, and `Gbnf`, read as Lark.

In: a schema, a pattern, a text. Out: a value that can be compared, kept and compiled; of GBNF,
which is llama.cpp's form, a grammar in Lark that accepts the same texts, or an error that says
where it is malformed. llguidance's own converter reads GBNF, but is not used to write it: it makes
one lexeme of a literal or a rule of characters, and a lexeme takes as much text as it can, where
GBNF may stop earlier (`[a-z]+ "x"`). Here each lexeme is one character. Whether a grammar can be
followed is found out where it meets a vocabulary (`vocabulary.py`).
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordgen_rs.errors import OptionError, UnsupportedGrammarError, arguments
from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.text.thinking import Thinking

MOST_GBNF_CHARS = 1 << 16
"""A longer grammar in GBNF is refused: it is read character by character."""

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATES = range(0xD800, 0xE000)
_AS_THEY_ARE = '"\\[]'
"""Characters that GBNF writes behind a backslash; others it does not know so."""


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


def lark_of_gbnf(text: str) -> str:
    """A GBNF grammar in Lark.

    Args:
        text: The grammar, with a rule `root`.

    Raises:
        UnsupportedGrammarError: It is malformed, or too long.
    """
    from llguidance import gbnf_to_lark as gbnf

    if len(text) > MOST_GBNF_CHARS:
        raise UnsupportedGrammarError(
            f"the GBNF grammar has {len(text):,} characters, but may have {MOST_GBNF_CHARS:,}"
        )
    try:
        rules = gbnf.GrammarParser().parse(_ESCAPE.sub(_one_form, text))
        return _Writer(gbnf, rules).text()
    except (gbnf.GbnfToLarkError, IndexError, RecursionError) as error:
        said = str(error) if isinstance(error, gbnf.GbnfToLarkError) else "it is cut short"
        if isinstance(error, RecursionError):
            said = "it is nested too deep"
        raise UnsupportedGrammarError(f"the GBNF grammar cannot be read: {said}") from error


class _Writer:
    """Writes rules in Lark.

    Args:
        gbnf: The module that read them.
        rules: The rules by name.

    Raises:
        UnsupportedGrammarError: There is no rule `root`.
    """

    def __init__(self, gbnf: Any, rules: dict[str, Any]) -> None:
        if "root" not in rules:
            raise UnsupportedGrammarError("the GBNF grammar has no rule root")
        self._gbnf, self._rules = gbnf, rules
        self._names = {name: f"r{number}" for number, name in enumerate(rules)} | {"root": "start"}

    def text(self) -> str:
        """All rules; raises UnsupportedGrammarError where one is missing."""
        return "".join(
            f"{self._names[name]}: {self._node(rule.alternatives)}\n"
            for name, rule in self._rules.items()
        )

    def _node(self, node: Any) -> str:
        gbnf = self._gbnf
        if isinstance(node, gbnf.AlternativeNode):
            return "(" + " | ".join(map(self._node, node.alternatives)) + ")"
        if isinstance(node, gbnf.SequenceNode):
            return " ".join(map(self._node, node.nodes)) or '""'
        if isinstance(node, gbnf.RepetitionNode):
            most = "" if node.max_times is None else node.max_times
            return f"({self._node(node.node)}){{{node.min_times},{most}}}"
        if isinstance(node, gbnf.RuleRefNode):
            if node.name not in self._names:
                raise UnsupportedGrammarError(
                    f"the GBNF grammar has no rule {node.name:.80}, which another one names"
                )
            return self._names[node.name]
        if isinstance(node, gbnf.LiteralNode):
            plain = _ESCAPE.sub(lambda found: _character(found[1]), node.value)
            return " ".join(json.dumps(one, ensure_ascii=False) for one in plain) or '""'
        # A class of characters, or a dot: any character, in GBNF line feeds, too.
        pattern = "(?s:.)" if node.rx == "." else re.sub("[&~]", r"\\\g<0>", node.rx)
        return f"/{pattern}/"


def _one_form(found: re.Match[str]) -> str:
    """An escape as the reader knows it: numbers become characters, where those mean themselves."""
    character = _character(found[1])
    if len(found[1]) == 1:
        return found[0]
    if character in _AS_THEY_ARE:
        return "\\" + character
    return found[0] if character in "-^" else _WRITTEN.get(character, character)


def _character(escape: str) -> str:
    """The character that an escape stands for, given without its backslash.

    Raises:
        UnsupportedGrammarError: It stands for none.
    """
    if len(escape) == 1:
        return _PLAIN.get(escape, escape)
    number = int(escape[1:], 16)
    if number > sys.maxunicode or number in _SURROGATES:
        raise UnsupportedGrammarError(
            f"the GBNF grammar cannot be read: \\{escape} is no character"
        )
    return chr(number)
