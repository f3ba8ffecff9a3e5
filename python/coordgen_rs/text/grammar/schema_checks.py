"""What llguidance would follow otherwise than a JSON schema says; most it refuses itself.

In: a schema. Out: nothing, or an error that names the keyword. Seen with llguidance 1.9.1: a key of
`patternProperties` or `additionalProperties` may come twice, so that `minProperties` is met by
fewer; a whole `exclusiveMinimum` below a fractional maximum is allowed itself; characters that
JSON writes by their number alone, which is not offered, are left out of values and names; and
numbers are read as a float64, not always the nearest one. One beyond 64 bits becomes the outermost
of them where it is to be an integer, too, and the least of 64 bits ends the process.
"""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from types import NoneType
from typing import Any

from coordgen_rs.errors import UnsupportedGrammarError, arguments

VALUES = ("const", "default", "enum", "examples")
"""Keywords that hold values, not schemas."""
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names, which may be those of keywords."""
_TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "null": NoneType,
    "number": int | float,
    "integer": int | float,
    "array": list,
    "object": dict,
}
_BEYOND = 1 << 63
_MOST_DIGITS = 1 << 64
"""What the digits that are read of a number stay below."""
_FARTHEST = 308
"""Of powers of ten, as a float64."""


def check_schema(schema: Any) -> None:
    """Refuse what would be followed wrongly.

    Args:
        schema: A parsed JSON schema.

    Raises:
        UnsupportedGrammarError: There is such a keyword; the message names it.
    """
    for part in _schemas(schema):
        _check_num_properties(part)
        _check_exclusive(part)
    check_values(schema)


def check_values(schema: Any) -> None:
    """Refuse values that would be written otherwise.

    Args:
        schema: A parsed JSON schema.

    Raises:
        UnsupportedGrammarError: There is such a value; the message names its keyword.
    """
    has_integers = any("integer" in kinds_of(part) for part in _schemas(schema))
    for part in _schemas(schema):
        _check_characters(part)
        _check_numbers(part, has_integers=has_integers)


def kinds_of(part: dict[str, Any]) -> list[str]:
    """The types that a schema allows; none where it does not say."""
    given = part.get("type")
    listed = given if isinstance(given, list) else [given]
    return [kind for kind in listed if isinstance(kind, str)]


def as_read(number: float) -> float:
    """A number as llguidance reads it of JSON: by its first digits, and a power of ten."""
    sign, digits, exponent = Decimal(number if isinstance(number, int) else repr(number)).as_tuple()
    if not isinstance(exponent, int):
        return number
    first, num_first = 0, 0
    for digit in digits:
        if 10 * first + digit >= _MOST_DIGITS:
            break
        first, num_first = 10 * first + digit, num_first + 1
    power = exponent + len(digits) - num_first
    if power > _FARTHEST:
        return math.inf
    read = float(first)
    while power < -_FARTHEST:
        read, power = read / 1e308, power + _FARTHEST
    read = read * float(f"1e{power}") if power > 0 else read / float(f"1e{-power}")
    return -read if sign else read


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all that it is made of."""
    if isinstance(schema, list):
        for item in schema:
            yield from _schemas(item)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                yield from _schemas(list(value.values()))
            elif key not in VALUES:
                yield from _schemas(value)


def _check_num_properties(part: dict[str, Any]) -> None:
    least, required = part.get("minProperties"), part.get("required")
    names = required if isinstance(required, list) else []
    num_required = len({name for name in names if isinstance(name, str)})
    if isinstance(least, int) and least > num_required + 1:
        raise UnsupportedGrammarError(
            f"the JSON schema cannot be followed: minProperties is {least}, but with "
            f"{num_required} required properties at most {num_required + 1} is supported"
        )


def _check_exclusive(part: dict[str, Any]) -> None:
    least = part.get("exclusiveMinimum")
    if part.get("type") == "integer" or not _is_whole(least):
        return
    for name in ("maximum", "exclusiveMaximum"):
        most = part.get(name)
        if isinstance(most, float) and not _is_whole(most):
            raise UnsupportedGrammarError(
                f"the JSON schema cannot be followed: exclusiveMinimum {least} with {name} {most} "
                f"is not supported; give a minimum"
            )


def _check_characters(part: dict[str, Any]) -> None:
    properties = part.get("properties")
    names = [*properties] if isinstance(properties, dict) else []
    values: dict[str, Any] = {name: _of_type(part, name) for name in ("const", "enum")}
    values |= {"required": part.get("required")}
    for name, value in (values | {"properties": names}).items():
        text = json.dumps(value, ensure_ascii=False).replace("\\\\", "")
        is_left_out = name in VALUES and any("\x7f" in str(one) for one in _leaves(value))
        if "\\u" in text or is_left_out:
            raise UnsupportedGrammarError(
                f"the JSON schema cannot be followed: {name} has a control character, such as "
                f"U+0000, which is not supported"
            )


def _of_type(part: dict[str, Any], name: str) -> list[Any]:
    """The values under `const` or `enum` that the type beside them allows."""
    given = [part["const"]] if name == "const" and name in part else part.get(name)
    if "type" not in part or not isinstance(given, list):
        return [given]
    types = tuple(_TYPES[kind] for kind in kinds_of(part) if kind in _TYPES)
    return [one for one in given if isinstance(one, types)]


def _check_numbers(part: dict[str, Any], *, has_integers: bool) -> None:
    for name in ("const", "enum"):
        for value in _leaves(_of_type(part, name)):
            if isinstance(value, int | float) and not _is_written(value, has_integers):
                raise UnsupportedGrammarError(
                    f"the JSON schema cannot be followed: {name} has "
                    f"{arguments.shown(value)}, which is not supported: it is rounded to a float64"
                )


def _is_written(number: float, has_integers: bool) -> bool:
    """Whether llguidance writes a number as it is, also where integers are asked for."""
    read = as_read(number)
    if number == _BEYOND - 1:
        return True
    if read == -_BEYOND or math.isinf(read) or (has_integers and abs(read) >= _BEYOND):
        return False
    if isinstance(number, float) or abs(read) < _BEYOND:
        return read == number
    return number == Decimal(repr(read))


def _leaves(value: Any) -> Iterator[Any]:
    """What a value holds that is neither list nor object; names are not among it."""
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


def _is_whole(number: Any) -> bool:
    if isinstance(number, float):
        return number.is_integer()
    return isinstance(number, int) and not isinstance(number, bool)
