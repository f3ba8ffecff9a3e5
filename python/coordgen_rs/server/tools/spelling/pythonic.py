"""Arguments as LFM2 writes them: those of a call in Python, `city="Ulm", days=3`.

In: text behind `name(`. Out: an object in JSON, an argument at a time. Held are names, order and
types; lists and objects are held as JSON, and texts in double quotes. A text in single quotes is
held to be one, and to the values that are listed, not to a pattern or a length.
"""

import json
from typing import Any

from coordgen_rs.server.tools.lexicon import Lexicon
from coordgen_rs.server.tools.spelling.schemas import (
    choices_of,
    is_open,
    kind_of,
    properties_of,
    required_of,
    values_of,
)
from coordgen_rs.server.tools.spelling.spelling import Spelling
from coordgen_rs.server.tools.spelling.values import PairsReader, spelt_name

_WORDS = {True: "True", False: "False", None: "None"}
_QUOTED = r"/'([^'\\\n]|\\['\\nt])*'/"
_NAME = r"/[A-Za-z_][A-Za-z0-9_]*/"
_TEXT_KEYS = {"type", "title", "description", "default", "examples", "$defs", "definitions"}


def _lark(schema: dict[str, Any], place: str, lexicon: Lexicon) -> tuple[str, list[str]]:
    named, required = properties_of(schema), required_of(schema)
    rules = list[str]()
    if is_open(schema):
        pair = f'{_NAME} "=" ({lexicon.json({})} | {_QUOTED} | "True" | "False" | "None")'
        rules.append(f"{place}p: {pair}")
        return f'({place}p (", " {place}p)*)?', rules
    for number, (name, one) in enumerate(named.items()):
        values = " | ".join(_value(choice, one, lexicon) for choice in choices_of(one, one))
        rules.append(f"{place}-{number}: {lexicon.literal(f'{spelt_name(name)}=')} ({values})")
    return pairs(place, [name in required for name in named], '", "', rules), rules


def pairs(place: str, are_required: list[bool], comma: str, rules: list[str]) -> str:
    """Rules for arguments in their order, with commas between those that are given.

    Args:
        place: The prefix of the rules; an argument's own is the prefix and its number.
        are_required: For each argument whether it has to be given.
        comma: What stands between two, in Lark.
        rules: Gets the rules that are made.
    """
    for number in reversed(range(len(are_required))):
        own, rest = f"{place}-{number}", f"{place}-{number + 1}"
        behind = f" {rest}n" if number + 1 < len(are_required) else ""
        first = f" {rest}f" if number + 1 < len(are_required) else ""
        skip_next = "" if are_required[number] else f" |{behind}" if behind else " | "
        skip_first = "" if are_required[number] else f" |{first}" if first else " | "
        rules.append(f"{own}n: {comma} {own}{behind}{skip_next}")
        rules.append(f"{own}f: {own}{behind}{skip_first}")
    return f"{place}-0f" if are_required else '""'


def _value(schema: dict[str, Any], root: dict[str, Any], lexicon: Lexicon) -> str:
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    values = values_of(schema)
    if values is not None:
        return "(" + " | ".join(_written(value, lexicon) for value in values) + ")"
    kind = kind_of(schema)
    if kind == "boolean":
        return '("True" | "False")'
    if kind == "null":
        return '"None"'
    as_json = lexicon.json(shared | schema)
    is_any_text = kind == "string" and schema.keys() <= _TEXT_KEYS
    return f"({as_json} | {_QUOTED})" if is_any_text else as_json


def _written(value: Any, lexicon: Lexicon) -> str:
    if isinstance(value, str):
        both = [json.dumps(value, ensure_ascii=False)]
        if not set("'\\\n") & set(value):
            both.append(f"'{value}'")
        return " | ".join(map(lexicon.literal, both))
    if value is None or isinstance(value, bool):
        return lexicon.literal(_WORDS[value])
    return lexicon.literal(json.dumps(value, ensure_ascii=False))


PYTHONIC = Spelling(_lark, lambda schema: PairsReader("=", ")"))
