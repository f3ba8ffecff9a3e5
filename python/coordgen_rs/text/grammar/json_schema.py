"""JSON schemas rewritten for llguidance: what it follows otherwise is said in a way that it can.

In: a parsed schema, as Pydantic and others write it. Out: one without `uniqueItems`,
`propertyNames`, formats of texts that say little of their form, and the look-aheads of Pydantic's
decimals; checked, its objects closed, with a key `x-guidance` that says how the text is spaced and
escaped. It can be a grammar, or stand in one of Lark behind `%json`. Patterns are written without
characters that no answer has; those of names become the names, where these are few. What is left
out and not held by other means is listed in docs/grammar.md; whatever is not known here stays, and
is refused by name.
"""

import json
import math
import re
import sys
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from coordgen_rs.errors.json_text import parse_json
from coordgen_rs.text.grammar.additional_properties import with_closed_objects
from coordgen_rs.text.grammar.schema_checks import (
    NAMED,
    VALUES,
    as_read,
    check_schema,
    check_values,
    kinds_of,
)

try:  # Python's own, of which it promises nothing
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
except ImportError:
    _parser = None

LOOSE_FORMATS = frozenset(
    [
        *("binary", "byte", "color", "directory-path", "file-path", "ipv4interface"),
        *("ipv4network", "ipv6interface", "ipv6network", "json-string", "multi-host-uri"),
        *("name-email", "password", "path", "phone", "regex"),
    ]
)
"""Formats of texts that are not held to: Pydantic's own and OpenAPI's."""

_UUID = re.compile("uuid[1-8]")
_HEX = "[0-9a-fA-F]"
_PATTERNS = {
    "base64": r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "base64url": r"^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}(==)?|[A-Za-z0-9_-]{3}=?)?$",
}
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = (
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)"  # none is 0000
)
_DAY = (
    f"^({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
"""A day of the calendar that Python has, too: llguidance takes the 29th of February in any year."""
_SECOND = "[0-9]{2}:[0-9]{2}:[0-5]"
"""A minute of 60 seconds: llguidance takes the 61st, a leap second, at any time of any day."""
_BESIDE = {"date": _DAY, "date-time": f"{_DAY}.{_SECOND}", "time": f"^{_SECOND}"}
_NAME_PATTERNS = {
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "date": f"{_DAY}$",
}
_NOT_ONLY = re.compile(r"\^\(\?!\^\[([^\[\]\\^]*)\]\*\$\)")
"""That a text is not made of some characters alone: so it has another one."""
_DIGITS_AHEAD = re.compile(r"\(\?=\[\\d\.\]\{1,\d+\}0\*\$\)")
_BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
_EXACT = 1 << 53
"""Whole numbers up to it are all float64, which bounds are for llguidance."""
_MOST = (1 << 63) - 1
_ABOUT = {"title", "description", "type", "default", "examples", "deprecated"}
_ESCAPES = 'nrbtf\\"'
"""Letters allowed behind a backslash. With `u`, a key could be given twice in two spellings."""
_SCHEMA = re.compile(r"%json\s*(?=\{)")

_PLAIN_CLASS = re.compile(r"\[[ -Z_-~]*\]")
_HEX_DIGITS = r"(\{[^}]{0,99}\}|(?<=x)[0-9a-fA-F]{2}|(?<=u)[0-9a-fA-F]{4}|(?<=U)[0-9a-fA-F]{8})"
_ONE_CHARACTER = re.compile(
    rf"\\[pP](\{{[^}}]{{0,99}}\}}|.)|\\[xuU]{_HEX_DIGITS}|\\[av]|[\x00-\x08\x0b\x0e-\x1f\x7f]"
)
"""Of a pattern, beside classes: what stands for one character, and may be a control character."""
_WITHOUT_CONTROL = r"[^\x00-\x07\x0b\x0e-\x1f\x7f]"
_IS_SPACED = re.compile(r"\(\?[a-zA-Z-]*x")
_MOST_NAMES = 100
_LONGEST = 200
_START, _END = "\2", "\3"
"""What stands for the anchors while names are put together."""
_SETS = re.compile(r"\[\[|--|&&|~~|\|\|")
"""What Rust reads as operators of classes."""


def llguidance_lark(lark: str) -> str:
    """A grammar in Lark whose schemas, behind `%json`, are said as llguidance can follow them.

    Args:
        lark: The grammar.

    Raises:
        UnsupportedGrammarError: A value would be written otherwise.
    """
    parts, at, decoder = list[str](), 0, json.JSONDecoder()
    while match := _SCHEMA.search(lark, at):
        parts.append(lark[at : match.end()])
        at = match.end()
        try:
            _, end = decoder.raw_decode(lark, at)
            schema = parse_json(lark[at:end], "the schema", long_integers=True)
        except (ValueError, RecursionError):  # llguidance says so, where it is one
            continue
        check_values(schema)
        parts.append(json.dumps(rewritten(schema)))
        at = end
    return "".join([*parts, lark[at:]])


def llguidance_schema(schema: dict[str, Any], *, any_whitespace: bool = False) -> str:
    """The schema as text for llguidance.

    Args:
        schema: A parsed JSON schema; it is not changed.
        any_whitespace: Same as in `JsonSchema`.

    Raises:
        UnsupportedGrammarError: It would be followed wrongly, or has too many parts.
    """
    plain = rewritten(schema)
    check_schema(plain)
    options = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": _ESCAPES}
    if not any_whitespace:
        options |= {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    closed = with_closed_objects(plain)
    return json.dumps(closed | {"x-guidance": options}, ensure_ascii=False)


def rewritten(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with such keywords said otherwise; any answer that it allowed is allowed still.

    Args:
        schema: A parsed JSON schema; it is not changed.
    """
    made: dict[str, Any] = _made(schema, schema)
    return made


def _made(schema: Any, root: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_made(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    part = {key: _keyword(key, value, root) for key, value in schema.items()}
    _say_bounds(part)
    _say_format(part)
    _say_pattern(part)
    _say_unique(part, root)
    _say_names(part, root)
    _say_named(part)
    return part


def _keyword(key: str, value: Any, root: dict[str, Any]) -> Any:
    if key in VALUES:
        return value
    if key in NAMED and isinstance(value, dict):
        named = _written if key == "patternProperties" else str
        return {named(name): _made(one, root) for name, one in value.items()}
    return _made(value, root)


def _say_bounds(part: dict[str, Any]) -> None:
    """Bounds that would be rounded to a float64: the nearest within that can be held to."""
    kinds = kinds_of(part)
    is_whole = "integer" in kinds and "number" not in kinds
    for name, sign in _BOUNDS.items():
        bound, is_exclusive = part.get(name), name.startswith("exclusive")
        if not isinstance(bound, int | float) or abs(bound) >= sys.float_info.max:
            continue  # beyond all float64 llguidance refuses it
        if abs(bound) <= _EXACT:
            while sign * as_read(part[name]) > sign * bound:
                part[name] = math.nextafter(part[name], -sign * math.inf)
            continue
        if is_whole and sign > 0 and bound >= _MOST + is_exclusive:
            continue  # llguidance takes the largest of 64 bits for it
        part[name] = sign * _below(sign * bound, is_exclusive=is_exclusive)


def _below(bound: float, *, is_exclusive: bool) -> int:
    """The largest float64 up to a bound, also by the digits that are written of it."""
    found = min(float(bound), math.nextafter(_MOST, 0))
    while (most := max(Decimal(found), Decimal(repr(found)))) > bound or (
        is_exclusive and most == bound
    ):
        found = math.nextafter(found, -math.inf)
    return int(found)


def _say_format(part: dict[str, Any]) -> None:
    given = part.get("format")
    if not isinstance(given, str):
        return
    if _UUID.fullmatch(given):
        part["format"] = "uuid"
    elif given in _BESIDE:
        beside = part.get("allOf", [])
        if isinstance(beside, list):
            part["allOf"] = [*beside, {"pattern": _BESIDE[given]}]
    elif given in LOOSE_FORMATS:
        del part["format"]
    elif given in _PATTERNS and "pattern" not in part:
        del part["format"]
        part["pattern"] = _PATTERNS[given]


def _say_pattern(part: dict[str, Any]) -> None:
    given = part.get("pattern")
    if not isinstance(given, str):
        return
    pattern = _DIGITS_AHEAD.sub("", given)
    match = _NOT_ONLY.match(pattern)
    if match is not None and "allOf" not in part:
        part["allOf"] = [{"type": "string", "pattern": _written(f"[^{match[1]}]")}]
        pattern = "^" + pattern[match.end() :]
    part["pattern"] = _written(pattern)


def _say_unique(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Items that differ are at most as many as there are values; that they differ is not held."""
    if not isinstance(part.get("uniqueItems"), bool):
        return
    is_unique = part.pop("uniqueItems")
    values = _values(part.get("items"), root)
    if is_unique and values is not None:
        most = part.get("maxItems")
        part["maxItems"] = min(len(values), most) if isinstance(most, int) else len(values)


def _say_names(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Names of properties as the properties themselves, or as a pattern of them."""
    if {"properties", "patternProperties"} & part.keys():
        return
    names = part.get("propertyNames")
    if not isinstance(names, dict):
        return
    value = part.get("additionalProperties", True)
    listed = _values(names, root)
    if listed is not None and all(isinstance(name, str) for name in listed):
        part["properties"] = dict.fromkeys(listed, value)
    elif names.keys() <= _ABOUT:
        del part["propertyNames"]
        return
    elif (pattern := _pattern_of_names(names)) is not None:
        part["patternProperties"] = {pattern: value}
    else:
        return
    part["additionalProperties"] = False
    del part["propertyNames"]


def _say_named(part: dict[str, Any]) -> None:
    """Patterns of names that stand in a closed object anyway, as properties.

    llguidance offers a comma for a pattern also where all its names are used, and then nothing.
    """
    patterns, own = part.get("patternProperties"), part.get("properties", {})
    required = part.get("required", [])
    if part.get("additionalProperties") is not False or not isinstance(patterns, dict):
        return
    if not (isinstance(own, dict) and isinstance(required, list)):
        return
    known = dict.fromkeys([*own, *(name for name in required if isinstance(name, str))])
    order = {name: number for number, name in enumerate(known)}
    properties, others = dict(own), dict[str, Any]()
    for pattern, schema in patterns.items():
        names = _names_of(pattern)
        if names is None or not names <= order.keys():
            others[pattern] = schema
            continue
        for name in sorted(names, key=order.__getitem__):
            both = [one for one in (properties.get(name, True), schema) if one is not True]
            properties[name] = {"allOf": both} if len(both) > 1 else [*both, True][0]
    if len(others) < len(patterns):
        part |= {"properties": properties, "patternProperties": others}


def _pattern_of_names(names: dict[str, Any]) -> str | None:
    """The pattern of names; None where they are described in another way."""
    told = {key: value for key, value in names.items() if key not in _ABOUT}
    if told.get("format") == "date" and told.get("allOf") == [{"pattern": _DAY}]:
        del told["allOf"]  # as `_say_format` has said it
    if told.keys() == {"pattern"} and isinstance(told["pattern"], str):
        return told["pattern"]
    if told.keys() == {"format"}:
        return _NAME_PATTERNS.get(str(told["format"]))
    least, most = told.get("minLength", 0), told.get("maxLength", "")
    if told and told.keys() <= {"minLength", "maxLength"}:
        return rf"^.{{{least},{most}}}$"
    return None


def _values(schema: Any, root: dict[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        definitions = root.get("$defs")
        name = reference.removeprefix("#/$defs/")
        schema = definitions.get(name) if isinstance(definitions, dict) else None
        if not isinstance(schema, dict) or "$ref" in schema:
            return None
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "boolean":
        return [False, True]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _written(pattern: str) -> str:
    """A pattern without the control characters that no answer has.

    With all of them in a class, llguidance 1.9.1 takes quotes and backslashes to be in it, too;
    where one stands alone, it leaves it out of the text.
    """
    if _IS_SPACED.search(pattern):  # brackets may stand in remarks
        return pattern
    parts, at = list[str](), 0
    while at < len(pattern):
        one = _ONE_CHARACTER.match(pattern, at)
        end = one and one.end()
        if pattern[at] == "[" and not (end := _class_end(pattern, at)):
            return pattern  # no pattern: llguidance says so
        if end and not _PLAIN_CLASS.fullmatch(pattern, at, end):
            parts.append(f"[{pattern[at:end]}&&{_WITHOUT_CONTROL}]")
        else:
            end = end or at + 1 + (pattern[at] == "\\")
            parts.append(pattern[at:end])
        at = end
    return "".join(parts)


def _class_end(pattern: str, at: int) -> int:
    """Where a class in brackets ends, with those in it; 0 where it does not."""
    depth = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1 + (character == "\\")
        if character == "[":
            depth += 1
            at += pattern.startswith("^", at)
            at += pattern.startswith("]", at)  # the first one is a character
        elif character == "]":
            depth -= 1
            if not depth:
                return at
    return 0


def _names_of(pattern: str) -> set[str] | None:
    """All names that a pattern matches; None where they are not few."""
    if _parser is None or len(pattern) > _MOST_NAMES * _LONGEST or _SETS.search(pattern):
        return None
    try:
        parsed = _parser.parse(pattern)
        found = _texts(parsed) if parsed.state.flags == re.UNICODE.value else None
    except (re.error, ValueError, RecursionError, OverflowError):
        return None
    if found is None or not all(one[:1] == _START and one[-1:] == _END for one in found):
        return None
    names = {one[1:-1] for one in found}
    return None if any(_START in name or _END in name for name in names) else names


def _texts(parsed: Iterable[Any]) -> set[str]:
    """What a parsed expression matches.

    Raises:
        ValueError: It is too much.
    """
    found = {""}
    for kind, value in parsed:
        found = _joined(found, _one(kind, value))
    return found


def _joined(before: set[str], behind: set[str]) -> set[str]:
    """Each text with each that may stand behind it.

    Raises:
        ValueError: They are too many, or too long.
    """
    found = {text + more for text in before for more in behind}
    if len(found) > _MOST_NAMES or any(len(text) > _LONGEST for text in found):
        raise ValueError("too many names")
    return found


def _one(kind: Any, value: Any) -> set[str]:
    """What a part of an expression matches.

    Raises:
        ValueError: It is too much, or not known.
    """
    match kind:
        case codes.LITERAL:
            return {chr(value)}
        case codes.AT if value in (codes.AT_BEGINNING, codes.AT_END):
            return {_START if value == codes.AT_BEGINNING else _END}
        case codes.IN if all(inside in (codes.LITERAL, codes.RANGE) for inside, _ in value):
            spans = [one if inside == codes.RANGE else (one, one) for inside, one in value]
            if sum(last - first + 1 for first, last in spans) <= _MOST_NAMES:
                return {chr(code) for first, last in spans for code in range(first, last + 1)}
        case codes.BRANCH:
            return set[str]().union(*map(_texts, value[1]))
        case codes.SUBPATTERN if not (value[1] or value[2]):
            return _texts(value[3])
        case codes.MAX_REPEAT | codes.MIN_REPEAT if value[1] <= _MOST_NAMES:
            least, most, repeated = value
            times, inner = {""}, _texts(repeated)
            found = set[str]() if least else times
            for number in range(1, most + 1):
                times = _joined(times, inner)
                found = found | times if number >= least else found
            return found
    raise ValueError("not a few names")
