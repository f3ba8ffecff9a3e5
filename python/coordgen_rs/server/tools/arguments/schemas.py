"""What a function's schema says of each argument, where arguments are not one text of JSON.

In: a JSON schema of an object. Out: its properties as schemas that stand alone, which of them are
required, and what kinds of values a schema allows. Properties that stand elsewhere than in
`properties`, as in `allOf`, are not seen: they may be given, but nothing holds them.
"""

from typing import Any

_CHOICES = ("anyOf", "oneOf")
_ELSEWHERE = {"allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties"}
"""Where a schema may have properties beside those that it names."""
_MOST_STEPS = 20
"""Most references followed to a schema."""


def properties_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
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


def with_definitions(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema with what it may refer to in its root.

    Args:
        schema: The part.
        root: The whole.
    """
    return {name: root[name] for name in ("$defs", "definitions") if name in root} | schema


def is_open(schema: dict[str, Any]) -> bool:
    """Whether a schema names no properties, and may have any: they may stand in its parts."""
    whole = resolved(schema, schema)
    is_told = not _ELSEWHERE & whole.keys()
    if whole.get("properties") or (is_told and whole.get("required")):
        return False
    return whole.get("additionalProperties", not (is_told and "properties" in whole)) is not False


def required_of(schema: dict[str, Any]) -> list[str]:
    """The properties that have to be given."""
    given = resolved(schema, schema).get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
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


def choices_of(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a value has to meet one, each of one type where types are listed."""
    found, waiting = list[dict[str, Any]](), [schema]  # the next one last
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


def values_of(schema: dict[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def kind_of(schema: dict[str, Any]) -> str | None:
    """The one type of a value; None for any."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    values = values_of(schema)
    if values and all(isinstance(value, str) for value in values):
        return "string"
    return "object" if isinstance(schema.get("properties"), dict) else None
