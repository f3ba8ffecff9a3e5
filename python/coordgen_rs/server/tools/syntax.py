"""What calls are written with: pieces of grammar, ways to write arguments, and what schemas say.

In: texts, the tokens that were added to a tokenizer's vocabulary, and a function's JSON schema.
Out: rules and literals in Lark; readers of arguments, of which JSON's is here; a schema's
properties, ready to stand alone. llguidance takes an added token for no text, so a mark such as
`<tool_call>` has to be asked for by its id where it is one. Properties that stand elsewhere than in
`properties`, as in `allOf`, are not seen: they may be given, but nothing holds them.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.server.tools.calls import TextBuffer
from coordgen_rs.text.grammar.json_schema import llguidance_schema

Schema = dict[str, Any]
Tell = Callable[[str], None]
"""Takes the next part of the arguments, as JSON."""

Rules = dict[str, str]
"""The bodies of rules, by their names."""

TEXT = r"/(.|\n)+/"
"""The terminal of any text."""

WHITE = r"/[ \t\r\n]{1,8}/"
"""The terminal of what models write between calls and behind them; more would go on for long."""

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What some models write by Python's names, and its JSON."""

_CHOICES = ("anyOf", "oneOf")
_ELSEWHERE = {"allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"}
"""Where a schema may have properties beside those that it names."""
_MOST_STEPS = 20
"""Most references followed to a schema."""


class Lexicon:
    """What the grammar of one answer is written with.

    Args:
        added: The tokens added to the vocabulary, with their ids.
        ends: Those that end an answer.
    """

    def __init__(self, added: Mapping[str, int] | None = None, ends: Collection[int] = ()) -> None:
        self._added, self._ends = dict(added or {}), frozenset(ends)
        texts = sorted(map(re.escape, self._added), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(texts)})" if texts else r"(?!)")

    def is_token(self, text: str) -> bool:
        """Whether a text is a token of its own, which does not end the answer."""
        return text in self._added and self._added[text] not in self._ends

    def literal(self, text: str) -> str:
        """A text as a sequence of Lark; "" for none. A token that ends the answer is left out."""
        return sequence(*map(self._part, self._split.split(text)))

    def others(self, *but: str) -> str:
        """One of the added tokens, but for some texts and those that end the answer; "" for none.

        Args:
            but: The texts that are left out.
        """
        left = {self._added[text] for text in but if text in self._added} | self._ends
        ids = sorted(set(self._added.values()) - left)
        return f"<[{','.join(map(str, ids))}]>" if ids else ""

    def json(self, schema: dict[str, Any]) -> str:
        """JSON that a schema accepts.

        Raises:
            UnsupportedGrammarError: The schema cannot be followed.
        """
        return f"%json {llguidance_schema(schema)}"

    def _part(self, text: str) -> str:
        if text not in self._added:
            return as_json(text) if text else ""
        return f"<[{self._added[text]}]>" if self.is_token(text) else ""


def as_json(value: object) -> str:
    """A value as JSON, with all letters as they are."""
    return json.dumps(value, ensure_ascii=False)


def regex(text: str) -> str:
    """A text as part of a regular expression between slashes."""
    escaped = re.escape(text).replace("\\\n", r"\n").replace("\\ ", " ")
    return escaped.replace("/", r"\/")


def sequence(*parts: str) -> str:
    """Parts of a rule, one behind the other; those that are empty are left out."""
    return " ".join(filter(None, parts))


def grammar_of(start: str, rules: Rules) -> str:
    """A grammar in Lark.

    Args:
        start: What the answer is.
        rules: The rules that this refers to.
    """
    return "\n".join(f"{name}: {body}" for name, body in {"start": start, **rules}.items())


@dataclass(frozen=True)
class ArgumentSyntax:
    """A way to write the arguments of a call.

    Attributes:
        lark: Takes a schema and its place in the grammar (a prefix for rules of its own): gives a
            piece of Lark for the arguments, and the rules that it refers to.
        read: Reads the arguments of one call, which are next in a buffer, by their schema. Raises
            `ValueError` where they are written in another way.
    """

    lark: Callable[[Schema, str, Lexicon], tuple[str, Rules]]
    read: Callable[[TextBuffer, Schema, Tell], Generator[None]]


def read_json(buffer: TextBuffer, schema: Schema, tell: Tell) -> Generator[None]:
    """Read a JSON object or array up to its end.

    Raises:
        ValueError: Something else comes.
    """
    depth, in_string, is_escaped = 0, False, False
    while True:
        if not depth:
            buffer.ahead = buffer.ahead.lstrip()
        for num_read, character in enumerate(buffer.ahead, 1):
            if is_escaped:
                is_escaped = False
            elif in_string:
                in_string, is_escaped = character != '"', character == "\\"
            elif character in "{[":
                depth += 1
            elif not depth:
                raise ValueError("not an object")
            elif character in "}]":
                depth -= 1
            else:
                in_string = character == '"'
            if not depth:
                tell(buffer.take(num_read))
                return
        tell(buffer.take(len(buffer.ahead)))
        yield


def is_object(text: str) -> bool:
    """Whether a text is a whole object in JSON."""
    try:
        return isinstance(parse_json(text, "arguments"), dict)
    except JsonTextError:
        return False


JSON = ArgumentSyntax(lambda schema, place, lexicon: (lexicon.json(schema), {}), read_json)


def properties_of(schema: Schema) -> dict[str, Schema]:
    """Each property's schema, ready to stand alone.

    Args:
        schema: The schema of the arguments.
    """
    named = resolved(schema, schema).get("properties")
    named = named if isinstance(named, dict) else {}
    return {
        name: with_definitions(one if isinstance(one, dict) else {}, schema)
        for name, one in (dict.fromkeys([*named, *required_of(schema)]) | named).items()
    }


def with_definitions(schema: Schema, root: Schema) -> Schema:
    """A part of a schema with what it may refer to in its root.

    Args:
        schema: The part.
        root: The whole.
    """
    return {name: root[name] for name in ("$defs", "definitions") if name in root} | schema


def is_open(schema: Schema) -> bool:
    """Whether a schema names no properties, and may have any: they may stand in its parts."""
    whole = resolved(schema, schema)
    is_told = not _ELSEWHERE & whole.keys()
    if whole.get("properties") or (is_told and whole.get("required")):
        return False
    return whole.get("additionalProperties", not (is_told and "properties" in whole)) is not False


def required_of(schema: Schema) -> list[str]:
    """The properties that have to be given."""
    given = resolved(schema, schema).get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def resolved(schema: Any, root: Schema) -> Schema:
    """A schema, or what it refers to in its root; empty where that cannot be found."""
    for _ in range(_MOST_STEPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            break
        found: Any = root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        schema = found
    return schema if isinstance(schema, dict) else {}


def choices_of(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of which a value has to meet one, each of one type where types are listed."""
    found, waiting = list[Schema](), [schema]  # the next one last
    seen = dict[int, Any]()
    while waiting:
        whole = resolved(waiting.pop(), root)
        if id(whole) in seen:  # a cycle allows no more than its other choices
            continue
        seen[id(whole)] = whole
        listed = next((whole[name] for name in _CHOICES if isinstance(whole.get(name), list)), None)
        if listed is not None:
            waiting += reversed(listed)
        elif isinstance(types := whole.get("type"), list):
            found += [whole | {"type": one} for one in types]
        else:
            found.append(whole)
    return found or [{}]


def values_of(schema: Schema) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def kind_of(schema: Schema) -> str | None:
    """The one type of a value; None for any."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    values = values_of(schema)
    if values and all(isinstance(value, str) for value in values):
        return "string"
    return "object" if isinstance(schema.get("properties"), dict) else None
