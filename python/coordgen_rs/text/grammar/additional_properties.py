"""Objects of a JSON schema closed: they have the properties that the schema names, and no others.

In: a schema as it is written. Out: one that says `additionalProperties: false` wherever an object
names properties and nothing says what others it may have. A model that may add properties seldom
ends an object; llama.cpp closes them for this reason, too. What `allOf`, `anyOf`, `oneOf` and
`$ref` put together is one object, and is closed as one: each part alone would refuse what the
others name.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from coordgen_rs.errors import UnsupportedGrammarError

_SPEAKING = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
"""Keywords by which a schema itself says which other properties there may be."""
_CHOICES = ("anyOf", "oneOf")
_NAMED = ("properties", "patternProperties")
_VALUES = ("additionalProperties", "items", "prefixItems", "additionalItems", "contains")
"""Keywords that hold schemas of values inside."""
_OF_DOCUMENT = ("$defs", "definitions", "$id", "$schema")
_MOST_PARTS = 200_000
"""The most parts looked at or copied, names included: definitions inside each other, and many names
beside many choices, may become many times as large."""
_DEFINED = "#/$defs/"


def with_closed_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its objects closed.

    Args:
        schema: A parsed JSON schema; it is not changed.

    Raises:
        UnsupportedGrammarError: It has too many parts.
    """
    return _Closing(schema).document()


class _Closing:
    """The closing of one document. A definition is copied: it may stand alone, or be a part."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._given = root["$defs"] if isinstance(root.get("$defs"), dict) else {}
        self._made: dict[str, Any] = {}
        self._places: dict[tuple[tuple[str, ...], bool], str] = {}
        self._to_make: list[tuple[str, dict[str, Any], bool]] = []
        self._num_parts = 0

    def document(self) -> dict[str, Any]:
        closed: dict[str, Any] = self._whole(self._root)
        while self._to_make:  # each may refer to the next: calls would go as deep as that goes on
            name, target, is_whole = self._to_make.pop()
            self._made[name] = self._whole(target) if is_whole else self._part(target)
        return closed | {"$defs": self._given | self._made} if self._made else closed

    def _whole(self, schema: Any) -> Any:
        """A schema of a whole value."""
        if not isinstance(schema, dict):
            return schema
        combining = [name for name in ("$ref", "allOf", *_CHOICES) if name in schema]
        alone = {"properties", "required", "minProperties", *_SPEAKING}
        if len(combining) == 1 and not alone & schema.keys():
            [name] = combining
            given = schema[name]
            if name == "$ref":
                return self._part(schema, name, self._place(given, is_whole=True))
            if name in _CHOICES or len(_list(given)) == 1:
                return self._part(schema, name, [*map(self._whole, _list(given))])
        return self._closed(schema, [])

    def _closed(self, schema: Any, beside: list[dict[str, Any]]) -> Any:
        """A schema that is closed with all its parts, and with those that stand beside it."""
        if not isinstance(schema, dict):
            return schema
        parts = [*beside, *self._parts(schema, set())]
        if _speak(parts):
            return self._part(schema)
        choices = [name for one in parts for name in _CHOICES if name in one]
        if len(choices) == 1 and choices[0] in schema:  # each is closed, with what is beside it
            together = [_together(parts)]
            branches = [self._closed(one, together) for one in _list(schema[choices[0]])]
            return self._part(schema, choices[0], branches)
        if choices:  # which of them go together is not known before
            parts = [*beside, *self._parts(schema, set(), _CHOICES)]
        names = _names(parts)
        if _speak(parts) or not any("properties" in one for one in parts):
            return self._part(schema)
        if _least(parts) > len(names):
            return self._part(schema)
        part = self._part(schema)
        if "$ref" in part:
            of_document = {name: part.pop(name) for name in _OF_DOCUMENT if name in part}
            part = of_document | {"allOf": [part]}
        own = part.get("properties", {})
        if not isinstance(own, dict):
            return part  # no schema: llguidance says so
        self._count(len(names))
        every = own | {name: True for name in names if name not in own}
        return part | {"properties": every, "additionalProperties": False}

    def _part(self, schema: Any, done: str = "", value: Any = None) -> Any:
        """A schema that is part of a larger one: its values are closed, it is not.

        Args:
            schema: The part as it is written.
            done: A keyword of it whose `value` is made already.
            value: The keyword's new value.

        Raises:
            UnsupportedGrammarError: There are too many of them.
        """
        if not isinstance(schema, dict):
            return schema
        self._count(1)
        return {
            name: value if name == done else self._keyword(name, one)
            for name, one in schema.items()
        }

    def _count(self, num_parts: int) -> None:
        """Count more parts.

        Raises:
            UnsupportedGrammarError: There are too many of them.
        """
        self._num_parts += num_parts
        if self._num_parts > _MOST_PARTS:
            raise UnsupportedGrammarError(
                f"the JSON schema cannot be followed: it has more than {_MOST_PARTS} parts"
            )

    def _keyword(self, name: str, given: Any) -> Any:
        """The value of a keyword in a part."""
        if name in _NAMED and isinstance(given, dict):
            return {key: self._whole(one) for key, one in given.items()}
        if name in _VALUES:
            return [*map(self._whole, given)] if isinstance(given, list) else self._whole(given)
        if name in ("allOf", *_CHOICES) and isinstance(given, list):
            return [*map(self._part, given)]
        return self._place(given, is_whole=False) if name == "$ref" else given

    def _parts(
        self, schema: Any, seen: set[str], more: tuple[str, ...] = ()
    ) -> Iterator[dict[str, Any]]:
        """A schema, and what applies to the same value: by `allOf`, `$ref` and the `more`."""
        ahead = [schema]  # the next one last
        while ahead:
            schema = ahead.pop()
            if not isinstance(schema, dict):
                continue
            self._count(1)
            yield schema
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                ahead.append(self._target(reference))
            for name in reversed(("allOf", *more)):
                ahead += reversed(_list(schema.get(name)))

    def _place(self, reference: Any, *, is_whole: bool) -> Any:
        """Where the copy of a definition stands; the same place if it is not in the document."""
        target = self._target(reference)
        if target is None:
            return reference
        key = tuple(_steps(reference)), is_whole
        if key not in self._places:
            number = len(self._places)
            while (name := f"{'whole' if is_whole else 'part'}-{number}") in self._given:
                number += 1
            self._places[key] = _DEFINED + name
            self._to_make.append((name, target, is_whole))
        return self._places[key]

    def _target(self, reference: Any) -> dict[str, Any] | None:
        """What a reference within the document refers to."""
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            return None
        found: Any = self._root
        for name in _steps(reference):
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
        if not isinstance(found, dict):
            return None
        return {name: one for name, one in found.items() if name not in _OF_DOCUMENT}


def _steps(reference: str) -> list[str]:
    """What a reference names on the way from the document to its target."""
    steps = reference.split("/")[1:]
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in steps]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(parts: list[dict[str, Any]]) -> list[str]:
    """The properties that schemas name, in their order."""
    found: dict[str, None] = {}
    for part in parts:
        named, required = part.get("properties"), _list(part.get("required"))
        found |= dict.fromkeys(named if isinstance(named, dict) else ())
        found |= dict.fromkeys(name for name in required if isinstance(name, str))
    return [*found]


def _speak(parts: list[dict[str, Any]]) -> bool:
    """Whether schemas themselves say which other properties there may be."""
    return any(name in one for one in parts for name in _SPEAKING)


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema with what matters of several: the properties they name, and the least number."""
    names, is_described = _names(parts), any("properties" in one for one in parts)
    named = {"properties": dict.fromkeys(names, True)} if is_described else {"required": names}
    return named | {"minProperties": _least(parts)}


def _least(parts: list[dict[str, Any]]) -> float:
    """The least number of properties."""
    given = [part.get("minProperties") for part in parts]
    return max((count for count in given if isinstance(count, int | float)), default=0)
