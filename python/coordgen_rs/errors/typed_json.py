"""Parsed JSON as dataclasses: every field checked for its type.

In: what `json_text.py` has read, and the dataclass that it should be. Out: an instance of it. What
the values mean, and whether they agree, is the caller's to check.
"""

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

_T = TypeVar("_T")

_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


class FieldError(ValueError):
    """A field is missing, of another type or out of range; the message names it."""


@dataclass(frozen=True)
class Within:
    """What a number must be, both ends included: `Annotated[int, Within(1, 8)]`."""

    least: float
    most: float


def require(holds: bool, problem: str) -> None:
    """Refuse what contradicts itself.

    Raises:
        FieldError: It does not hold; `problem` is the message.
    """
    if not holds:
        raise FieldError(problem)


def require_range(where: str, value: float, least: float, most: float) -> None:
    """Refuse a number that is not `least` to `most`, both included.

    Raises:
        FieldError: It is not; the message names the field.
    """
    require(least <= value <= most, f"{where} is {value}, expected {least} to {most}")


def parse(expected: type[_T], value: Any, where: str) -> _T:
    """Turn parsed JSON into `expected`: a dataclass, list, dict, Literal, optional or plain type.

    Unknown fields are ignored, so that a later version may add some. `object` takes anything, and
    a field whose default is None may be left out.

    Raises:
        FieldError: A field is missing, of another type, or an integer beyond 64 bits; the message
            names it.
    """
    parsed: Any = _parse_any(expected, value, where)
    return typing.cast(_T, parsed)


def _parse_any(expected: Any, value: Any, where: str) -> Any:
    if expected is object:
        return value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _parse_fields(expected, _instance(dict, value, where), where)
    if origin is list:
        items = _instance(list, value, where)
        return [_parse_any(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items)]
    if origin is dict:
        return {
            _parse_key(arguments[0], key, where): _parse_any(arguments[1], item, f"{where}.{key}")
            for key, item in _instance(dict, value, where).items()
        }
    if origin is Annotated:
        number = _parse_any(arguments[0], value, where)
        require_range(where, number, arguments[1].least, arguments[1].most)
        return number
    if origin is Literal:
        if value not in arguments:
            raise FieldError(f"{where} is {value!r}, expected one of {', '.join(arguments)}")
        return value
    if origin in (types.UnionType, typing.Union):  # the latter of what is Annotated
        return None if value is None else _parse_any(arguments[0], value, where)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise FieldError(f"{where} is {value!r:.60}, beyond 64 bits")
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _instance(expected, value, where)


def _parse_fields(expected: Any, value: dict[str, Any], where: str) -> Any:
    kinds, optional = _fields(expected)
    types_by_name = {k: v for k, v in kinds.items() if k in value or k not in optional}
    missing = sorted(types_by_name.keys() - value.keys())
    if missing:
        raise FieldError(f"{where} has no field {missing[0]}")
    return expected(
        **{
            name: _parse_any(kind, value[name], f"{where}.{name}")
            for name, kind in types_by_name.items()
        }
    )


@cache
def _fields(expected: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields by name, and which fields may be left out.

    Kept, as evaluating the annotations takes a third of the time of reading a manifest.
    """
    optional = {item.name for item in dataclasses.fields(expected) if item.default is None}
    return typing.get_type_hints(expected, include_extras=True), frozenset(optional)


def _parse_key(expected: Any, key: str, where: str) -> Any:
    if expected is str:
        return key
    if not _NUMBER.fullmatch(key):
        raise FieldError(f"{where} has the key {key!r:.60}, expected a number")
    return int(key)


def _instance(expected: Any, value: Any, where: str) -> Any:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise FieldError(
            f"{where} is {type(value).__name__} {value!r:.60}, expected {expected.__name__}"
        )
    return value
