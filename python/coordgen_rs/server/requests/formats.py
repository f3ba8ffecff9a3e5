"""What a request holds its answer to, under the names that clients of other servers use.

In: fields of a body: `response_format` (OpenAI), `json_schema` and `grammar` (llama.cpp),
`structured_outputs` and `guided_*` (vLLM), `coordgen.regex` and `.lark`. Out: one grammar, or a
refusal that names the field; two of them exclude each other. Whether a grammar can be followed is
found out where it meets the model.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from coordgen_rs.errors import OptionError
from coordgen_rs.grammar.kinds import Gbnf, Grammar, JsonSchema, Lark, Regex
from coordgen_rs.server.requests.fields import Fields

MOST_CHOICES = 1024
"""Texts among which an answer may have to choose."""

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")
_FORMATS = ("text", "json_object", "json_schema")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Constraint(NamedTuple):
    """What an answer is held to.

    Attributes:
        field: The field that asks for it.
        grammar: The grammar.
    """

    field: str
    grammar: Grammar


def constraint_of(
    fields: Fields, own: Fields, given: Constraint | None = None
) -> Constraint | None:
    """What the answer is held to; None for anything.

    Args:
        fields: The fields of the body.
        own: Those of `coordgen`.
        given: What another field holds it to.

    Raises:
        RefusalError: It is malformed, or there are several.
    """
    found = [] if given is None else [given]
    found += [*_named(fields), *_of(own, "regex"), *_of(own, "lark")]
    for other in found[1:]:
        how = "exclude each other: an answer is held to one of them"
        raise fields.wrong(other.field, f"and {found[0].field} {how}")
    return found[0] if found else None


def _named(fields: Fields) -> Iterator[Constraint]:
    """Each grammar of the body."""
    if (asked := format_of(fields, "response_format")) is not None:
        yield asked
    yield from _of(fields, "json_schema", kind="json")
    yield from _of(fields, "grammar")
    for kind in ("json", "regex", "choice", "grammar"):
        yield from _of(fields, f"guided_{kind}", kind=kind)
    outputs = fields.nested("structured_outputs")
    if outputs.flag("json_object"):
        yield Constraint(outputs.name("json_object"), JsonSchema(_ANY_OBJECT))
    for kind in ("json", "regex", "choice", "grammar"):
        yield from _of(outputs, kind)
    outputs.end()


def _of(fields: Fields, name: str, kind: str | None = None) -> Iterator[Constraint]:
    """The grammar in a field; none where that is absent, or an empty `grammar`.

    Args:
        fields: The fields.
        name: The field's name.
        kind: What it holds, where its name does not say so.

    Raises:
        RefusalError: It is malformed.
    """
    kind = kind or name
    if not fields.has(name):
        return
    grammar: Grammar
    if kind == "json":
        grammar = schema_of(fields, name, may_be_text=True)
    elif kind == "choice":
        grammar = _choice(fields, name)
    elif (text := fields.text(name) or "") or kind != "grammar":
        is_gbnf = kind == "grammar" and "::=" in text  # which is how it writes rules
        grammar = Regex(text) if kind == "regex" else Gbnf(text) if is_gbnf else Lark(text)
    else:
        return
    yield Constraint(fields.name(name), grammar)


def _choice(fields: Fields, name: str) -> Regex:
    choices = fields.take(name)
    if (
        not isinstance(choices, list)
        or not 0 < len(choices) <= MOST_CHOICES
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise fields.wrong(name, f"must be a list of 1 to {MOST_CHOICES} texts, none of them empty")
    return Regex("|".join(_META.sub(r"\\\g<0>", choice) for choice in choices))


def schema_of(fields: Fields, name: str, *, may_be_text: bool = False) -> JsonSchema:
    """The JSON schema in a field.

    Raises:
        RefusalError: It is none.
    """
    schema = fields.take(name)
    if not isinstance(schema, dict | str if may_be_text else dict):
        raise fields.wrong(name, "must be a JSON schema, an object")
    try:
        return JsonSchema(schema)
    except OptionError as error:
        raise fields.wrong(name, f"cannot be used: {error}") from error


def format_of(
    fields: Fields, name: str, kinds: Sequence[str] = _FORMATS, *, is_flat: bool = False
) -> Constraint | None:
    """What a field such as `response_format` holds the answer to; None for text.

    Args:
        fields: Whose field it is.
        name: The field.
        kinds: What its type may be.
        is_flat: Whether the schema stands in it, and not in its `json_schema`.

    Raises:
        RefusalError: It is malformed.
    """
    asked = fields.nested(name)
    kind, schema = asked.text("type"), JsonSchema(_ANY_OBJECT)
    if kind not in kinds and (kind is not None or asked.has("schema")):
        *others, last = (f'"{one}"' for one in kinds)
        raise asked.wrong("type", f"must be {', '.join(others)}{' or ' if others else ''}{last}")
    if kind == "json_object" and asked.has("schema"):
        schema = schema_of(asked, "schema")
    elif kind == "json_schema":
        is_flat = is_flat or (asked.has("schema") and not asked.has("json_schema"))
        named = asked if is_flat else asked.nested("json_schema")
        named.ignore("name", "description", "strict")  # it is always held to
        named.end(but="schema")
        schema = schema_of(named, "schema")
    asked.end()
    return None if kind in (None, "text") else Constraint(fields.name(name), schema)
