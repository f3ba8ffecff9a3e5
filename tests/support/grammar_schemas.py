"""JSON schemas for tests: 50 that can be followed, 9 that must be refused by name.

Strings and arrays are bounded, so that a model that has nothing to say still comes to an end.
"""

from typing import Any

Schema = dict[str, Any]

SHORT: Schema = {"type": "string", "maxLength": 12}


def closed(required: list[str] | None = None, **properties: Any) -> Schema:
    """An object of these properties and no others; all are required unless some are named."""
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def listed(items: Any, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def integer(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def tool(name: str, **arguments: Any) -> Schema:
    return closed(name={"const": name}, arguments=closed(**arguments))


_POINT = closed(x=integer(-9, 9), y=integer(-9, 9))
_DATE = {"type": "string", "format": "date"}
_TREE = closed(["value"], value=integer(0, 9), left={"$ref": "#/$defs/leaf"})

FOLLOWED: dict[str, Schema] = {
    # scalars
    "a boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "a constant": {"const": "done"},
    "a constant object": {"const": {"a": [1, None, True], "b": "c"}},
    "a bounded integer": integer(3, 17),
    "a negative integer": integer(-120, -7),
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5},
    "a bounded number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    "a multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "a short string": SHORT,
    "a string of exact length": {"type": "string", "minLength": 3, "maxLength": 3},
    # enums
    "an enum of strings": {"enum": ["red", "green", "blue"]},
    "an enum with common prefixes": {"enum": ["cancel", "cancel_all", "cancelled"]},
    "an enum of mixed types": {"enum": [1, "one", None, False, [1], {"one": 1}]},
    "an enum beyond ASCII": {"enum": ["größer", "日本", "naïve", "\U0001f600"]},
    "an enum that needs escapes": {"enum": ['a "quoted" word', "back\\slash", "new\nline"]},
    # patterns and formats
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
    "a pattern of alternatives": {"type": "string", "pattern": "^(ab|cd)+$", "maxLength": 8},
    "an order number": {"type": "string", "pattern": "^#W[0-9]{7}$"},
    "a date": _DATE,
    "a MAC address": {"type": "string", "pattern": "^([0-9a-f]{2}:){5}[0-9a-f]{2}$"},
    "a uuid": {"type": "string", "format": "uuid"},
    "an IPv4 address": {"type": "string", "format": "ipv4"},
    # arrays
    "an array": listed(integer(0, 9), 4),
    "an array that is not empty": listed(SHORT, 2, least=1),
    "an array of arrays": listed(listed({"type": "boolean"}, 2), 2),
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, integer(0, 9), {"enum": ["a", "b"]}],
        "items": False,
        "minItems": 3,
    },
    "an array of enums": listed({"enum": ["mon", "tue", "wed"]}, 3, least=2),
    # objects
    "an object": closed(name=SHORT, age=integer(0, 120)),
    "an empty object": closed(),
    "optional fields": closed(["id"], id=integer(0, 99), note=SHORT, done={"type": "boolean"}),
    "only optional fields": closed([], a=integer(0, 9), b={"type": "boolean"}),
    "nested objects": closed(a=closed(b=closed(c=closed(d=integer(0, 9))))),
    "objects in an array": listed(_POINT, 2, least=1),
    "an array in an object": closed(points=listed(_POINT, 2), label={"enum": ["in", "out"]}),
    "keys beyond ASCII": closed(**{"größe": integer(0, 9), "名": {"type": "boolean"}}),
    "keys that need escapes": closed(**{'a"b': integer(0, 9), "c\\d": {"type": "null"}}),
    "properties by pattern": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 1,
    },
    "at least one property": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    # combinations
    "several types": closed(value={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    "any of several": {"anyOf": [integer(0, 9), {"enum": ["none"]}, {"type": "null"}]},
    "all of several": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 8}]},
    "one of different objects": {
        "anyOf": [
            closed(kind={"const": "circle"}, radius=integer(1, 9)),
            closed(kind={"const": "box"}, width=integer(1, 9), height=integer(1, 9)),
        ]
    },
    "a reference": {"$defs": {"point": _POINT}, **closed(a={"$ref": "#/$defs/point"})},
    "a reference in a reference": {
        "$defs": {"leaf": closed(value=integer(0, 9)), "tree": _TREE},
        "$ref": "#/$defs/tree",
    },
    # tool calls
    "a tool call": tool(
        "get_user_details", user_id={"type": "string", "pattern": "^[a-z]{3,6}_[0-9]{4}$"}
    ),
    "a tool call with a list": tool(
        "exchange_items",
        order_id={"type": "string", "pattern": "^#W[0-9]{7}$"},
        item_ids=listed({"type": "string", "pattern": "^[0-9]{10}$"}, 2, least=1),
        payment_method={"enum": ["credit_card", "gift_card", "paypal"]},
    ),
    "one of several tools": {
        "anyOf": [
            tool("get_order", order_id={"type": "string", "pattern": "^#W[0-9]{7}$"}),
            tool("cancel_order", reason={"enum": ["no longer needed", "ordered by mistake"]}),
            tool("transfer_to_human"),
        ]
    },
    "an appointment": closed(
        ["title", "date", "people"],
        title=SHORT,
        date=_DATE,
        people=listed(closed(["name"], name=SHORT, role={"enum": ["host", "guest"]}), 2, least=1),
        place={"type": ["string", "null"], "maxLength": 8},
    ),
    "a form of many fields": closed(
        **{f"field_{index}": [integer(0, 9), {"type": "boolean"}][index % 2] for index in range(12)}
    ),
}

REFUSED: dict[str, Schema] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "propertyNames": {"type": "object", "propertyNames": {"not": {}}},
    "contains": {"type": "array", "contains": {"const": 1}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "look-around": {"type": "string", "pattern": "a(?!b)"},
    "format": {"type": "string", "format": "colour"},
}
