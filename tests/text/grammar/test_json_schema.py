"""Schemas as Pydantic writes them: what their types take is allowed, and what is held is held."""

import datetime
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import re
import uuid
from decimal import Decimal
from typing import Any, Literal

import pytest

pytest.importorskip("llguidance", reason="the extra grammar is not installed")
pytest.importorskip("pydantic", reason="pydantic is not installed")

import pydantic

from call_marks import marked_tokens
from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.text.grammar.json_schema import LOOSE_FORMATS, rewritten
from coordgen_rs.text.grammar.kinds import JsonSchema, Lark


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


ONE = uuid.UUID(int=1)
TAKEN = {
    "a set": (set[int], [{1, 2}, set()]),
    "a frozen set of a few": (frozenset[Colour], [{Colour.RED, Colour.GREEN}]),
    "a bounded set": (pydantic.conset(int, min_length=1, max_length=2), [{1}, {1, 2}]),
    "a secret": (pydantic.SecretStr, ["swordfish"]),
    "secret bytes": (pydantic.SecretBytes, ["swordfish"]),
    "a path": (pathlib.Path, ["/a b/c.txt"]),
    "bytes": (bytes, ["abc"]),
    "Base64": (pydantic.Base64Bytes, ["YWI=", "YWJj"]),
    "Base64 of URLs": (pydantic.Base64UrlStr, ["YWI="]),
    "a dict of literal names": (dict[Literal["a", "b"], int], [{"a": 1}, {}, {"a": 1, "b": 2}]),
    "a dict of an enum": (dict[Colour, float], [{"green": 1.5}]),
    "a dict of UUIDs": (dict[uuid.UUID, int], [{str(ONE): 1}]),
    "a dict of dates": (dict[datetime.date, int], [{"2024-02-29": 1}]),
    "a dict of long names": (dict[pydantic.constr(min_length=2), int], [{"ab": 1}]),
    "a dict of names by pattern": (dict[pydantic.constr(pattern="^x"), int], [{"xy": 1}]),
    "a dict of texts": (dict[str, int], [{"a": 1, "": 2}]),
    "a dict of dicts": (dict[str, dict[Literal["a"], list[int]]], [{"z": {"a": [1]}}]),
    "a decimal": (decimal.Decimal, [1.5, "1.5"]),
    "a bounded decimal": (pydantic.condecimal(max_digits=6, decimal_places=2), ["12.50"]),
    "a UUID of a version": (pydantic.UUID4, ["5e5a0e3f-5c8b-4a3e-9d0a-2f0a3c1d7e11"]),
    "a network": (ipaddress.IPv4Network, ["10.0.0.0/8"]),
    "an interface": (ipaddress.IPv6Interface, ["::1/128"]),
    "a pattern": (re.Pattern, ["a+"]),
    "a database": (pydantic.PostgresDsn, ["postgres://a:b@c/d"]),
    "a duration": (datetime.timedelta, ["P1DT2H"]),
    "text of JSON": (pydantic.Json[list[int]], ["[1]"]),
    "anything": (Any, [None, {"a": []}]),
}


def schema_of(kind):
    return pydantic.create_model("Told", value=(kind, ...)).model_json_schema()


def refused_at(schema, value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return marked_tokens().refused_at(JsonSchema(schema), text)


def jsonable(value):
    if isinstance(value, set | frozenset):
        return [one.value if isinstance(one, Colour) else one for one in value]
    return value


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_type_of_pydantic_takes_is_allowed(name):
    kind, values = TAKEN[name]
    for value in map(jsonable, values):
        said = {"value": value}
        pydantic.create_model("Told", value=(kind, ...)).model_validate_json(json.dumps(said))
        assert refused_at(schema_of(kind), said) is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a set", ["x"]),
        ("a frozen set of a few", ["red", "green", "red"]),  # more than there are
        ("a bounded set", []),
        ("a bounded set", [1, 2, 3]),
        ("a secret", 5),
        ("Base64", "YW"),
        ("Base64", "Y!=="),
        ("a dict of literal names", {"c": 1}),
        ("a dict of literal names", {"a": "x"}),
        ("a dict of an enum", {"blue": 1.5}),
        ("a dict of UUIDs", {"x": 1}),
        ("a dict of dates", {"2024-13-01": 1}),
        ("a dict of long names", {"a": 1}),
        ("a UUID of a version", "5e5a"),
    ],
)
def test_what_it_does_not_take_is_refused_where_it_can_be_held(name, wrong):
    assert refused_at(schema_of(TAKEN[name][0]), {"value": wrong}) is not None


PLAIN = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
PLACES = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$"
BOTH = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,4}$|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$)"


@pytest.mark.parametrize("pattern", [PLAIN, PLACES, BOTH], ids=["any", "places", "digits"])
def test_the_look_aheads_of_pydantics_decimals_are_held_to(pattern):
    schema = {"type": "string", "pattern": pattern}
    numbers = ("1", "-1.5", "+.25", "007", "1.500", "1234.5", "12.345", "-", "", ".", "+.", "x")
    for number in numbers:
        is_taken = re.search(pattern, number) is not None
        assert (refused_at(schema, json.dumps(number)) is None) == is_taken, number


def test_formats_that_say_little_hold_nothing():
    for name in LOOSE_FORMATS:
        assert refused_at({"type": "string", "format": name}, '"a b"') is None


CONTROLS = ["^a\x7fb$", r"^\x00+$", r"\u0007", "^[\x01-\x03]$"]
BEYOND = [{"minimum": 1 << 63}, {"maximum": -(1 << 63)}, {"minimum": 10**30}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": 5},
        {"type": "object", "propertyNames": {"not": {}}},
        {"type": "object", "propertyNames": {"enum": ["a"]}, "properties": {"b": {}}},
        {"type": "object", "propertyNames": {"format": "email"}},
        {"type": "object", "propertyNames": {"enum": [1]}},
        {"type": "object", "propertyNames": True},
        {"type": "string", "pattern": "a(?!b)"},
        {"type": "string", "pattern": "^(?!^[a]*$)(?=b)c"},
        {"type": "string", "format": "passwords"},
        *({"type": "string", "pattern": it} for it in CONTROLS),
        *({"type": "integer"} | it for it in BEYOND),
    ],
)
def test_what_is_not_known_or_cannot_be_written_is_refused(schema):
    with pytest.raises(UnsupportedGrammarError):
        refused_at(schema, "[]")


def test_the_schema_itself_is_not_changed_nor_what_merely_looks_like_a_keyword():
    schema = {
        "type": "object",
        "properties": {"uniqueItems": {"enum": [{"format": "password"}]}, "format": {}},
        "default": {"propertyNames": {"enum": ["a"]}},
    }
    assert rewritten(schema) == schema
    schema = {"items": {"uniqueItems": True, "format": "password"}, "uniqueItems": True}
    before = json.dumps(schema)
    assert rewritten(schema) == {"items": {}}
    assert json.dumps(schema) == before


DAYS = dict.fromkeys(
    ("0001-01-01", "0004-02-29", "2000-02-29", "2023-02-28", "2024-02-29", "9999-12-31"), True
)
DAYS |= dict.fromkeys(
    ("0000-01-01", "1900-02-29", "2023-02-29", "2023-04-31", "2024-02-30", "2100-02-29"), False
)


@pytest.mark.parametrize("beside", [{}, {"pattern": "^"}, {"allOf": [{"minLength": 9}]}])
@pytest.mark.parametrize("day", DAYS)
def test_a_date_is_a_day_of_the_calendar(day, beside):
    for form, text in (("date", day), ("date-time", f"{day}T12:00:00Z")):
        schema = {"type": ["string", "null"], "format": form} | beside
        assert (refused_at(schema, json.dumps(text)) is None) == DAYS[day]
        assert refused_at(schema, "null") is None
    names = {"type": "object", "propertyNames": {"format": "date"}}
    assert (refused_at(names, {day: 1}) is None) == DAYS[day]


TIMES = ["00:00:00Z", "12:30:59Z", "23:59:59.5+02:00", "12:30:60Z", "23:59:60Z", "22:59:60-01:00"]


@pytest.mark.parametrize("beside", [{}, {"pattern": ":"}, {"enum": [*TIMES, 5]}])
@pytest.mark.parametrize("time", TIMES)
def test_a_time_has_no_leap_second(time, beside):
    """Hardly any minute has one, and Python's `datetime` knows none."""
    is_time = ":60" not in time
    schema = {"format": "time"} | beside
    assert (refused_at(schema, json.dumps(time)) is None) == is_time
    moment = json.dumps(f"2016-12-31T{time}")
    assert (refused_at({"type": "string", "format": "date-time"}, moment) is None) == is_time


def test_names_of_properties_may_have_the_character_that_values_may_not():
    name = {"a\x7f": 1}
    assert refused_at({"type": "object", "properties": name | {"a\x7f": {}}}, name) is None
    assert refused_at({"const": name}, name) is None


EXACT = 1 << 53
LARGE = [EXACT, EXACT + 1, EXACT + 2, 10**15, 10**18 - 1, 10**18, (1 << 63) - 100, (1 << 63) - 1]


WRITTEN = [EXACT, EXACT + 2, 10**15, 10**18, 10**19, 10**23, 10**30, -EXACT, -(10**18), -(10**30)]
ROUNDED = [EXACT + 1, 1234567890123456789, 10**18 - 1, (1 << 63) - 100, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize("value", [EXACT + 1, "a\0", "\x7f"])
def test_a_value_that_the_type_leaves_out_is_not_refused(value):
    kind = "boolean" if isinstance(value, str) else "string"
    left = True if isinstance(value, str) else "a"
    schema = {"type": [kind, "null"], "enum": [left, None, value]}
    for one in (left, None):
        assert refused_at(schema, json.dumps(one)) is None
    assert refused_at(schema, json.dumps(value)) is not None


@pytest.mark.parametrize("number", [*WRITTEN, (1 << 63) - 1, *ROUNDED, *(-one for one in ROUNDED)])
def test_a_large_number_is_written_as_it_is_or_refused_by_name(number):
    for schema in ({"const": number}, {"enum": ["a", number]}, {"const": [{"b": number}]}):
        value = schema.get("const", number)
        for text in (None, f"start: %json {json.dumps(schema)}"):
            grammar = JsonSchema(schema) if text is None else Lark(text)
            if abs(number) in ROUNDED:
                with pytest.raises(UnsupportedGrammarError, match=str(number)):
                    marked_tokens().refused_at(grammar, "0")
            else:
                said = json.dumps(value, separators=None if text is None else (",", ":"))
                assert marked_tokens().refused_at(grammar, said) is None


@pytest.mark.parametrize("kind", [{"type": "integer"}, {"type": "number"}, {}])
@pytest.mark.parametrize("bound", LARGE)
def test_a_large_bound_lets_nothing_in_that_is_beyond_it(bound, kind):
    for name, sign in {"maximum": 1, "exclusiveMaximum": 1, "minimum": -1}.items():
        schema = kind | {name: sign * bound}
        for grammar in (JsonSchema(schema), Lark(f"start: %json {json.dumps(schema)}")):
            taken = [
                more
                for more in range(-2100, 2100)
                if abs(more) < 5 or more % 300 == 0
                if marked_tokens().refused_at(grammar, str(sign * (bound + more))) is None
            ]
            assert -2100 in taken
            assert all(more < 0 or (more == 0 and "exclusive" not in name) for more in taken)
            assert marked_tokens().refused_at(grammar, str(sign)) is None


def test_whole_numbers_of_64_bits_have_all_but_the_least():
    for least, most in ((-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)):
        schema = {"type": "integer", "minimum": least, "maximum": most}
        for value in (0, 7, 10**18, (1 << 63) - 1, max(least, -(10**18))):
            assert refused_at(schema, str(value)) is None
        assert refused_at(schema, str(least - 1)) is not None
        assert refused_at(schema, str(most + 1)) is not None


NEAREST = -9223372036854774784.0
"""A float64 that is taken for the least of 64 bits."""


@pytest.mark.parametrize("number", [-1e300, 1e300, -9.3e18, 93 * 10**17, NEAREST])
def test_a_number_beyond_64_bits_is_no_integer_that_could_be_written(number):
    choices = [{"const": number}, {"const": 5}]
    for schema in (
        {"type": "integer", "const": number},
        {"type": ["integer", "null"], "enum": [number, None]},
        {"type": "integer", "anyOf": choices},
        {"$defs": {"large": {"enum": [number]}}, "type": "integer", "$ref": "#/$defs/large"},
        {"type": "array", "items": {"type": "integer"}, "const": [number]},
    ):
        with pytest.raises(UnsupportedGrammarError, match="rounded"):
            refused_at(schema, "5")
    written = format(Decimal(str(number)), "f")
    assert number == NEAREST or refused_at({"const": number}, written) is None


FRACTIONS = [0.1, 0.30000000000000004, 3.141592653589793, -2.5e-7, 1e-300]
FRACTIONS_ROUNDED = [0.9409134798145579, 7.873971570789525e-39, 481102.33631242276]


@pytest.mark.parametrize("number", [*FRACTIONS, *FRACTIONS_ROUNDED])
def test_a_fraction_is_written_as_it_is_or_refused_by_name(number):
    if number in FRACTIONS_ROUNDED:
        with pytest.raises(UnsupportedGrammarError, match=str(number)):
            refused_at({"const": number}, "0")
    else:
        assert refused_at({"enum": [number]}, format(Decimal(repr(number)), "f")) is None


@pytest.mark.parametrize("bound", [0.9524673882682695, 185907.07998845181, 0.1, 2.5])
def test_a_fractional_bound_lets_nothing_in_that_is_beyond_it(bound):
    beyond = format(Decimal(repr(math.nextafter(bound, math.inf))), "f")
    for name, sign in {"maximum": "", "minimum": "-"}.items():
        schema = {"type": "number", name: float(f"{sign}{bound!r}")}
        assert refused_at(schema, sign + beyond) is not None
        assert refused_at(schema, f"{sign}0.0625") is None


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["const", "enum", "minimum", "exclusiveMaximum"])
def test_a_number_that_no_float_is_as_large_as_is_refused(name, sign):
    number = sign * 10**400
    for kind in ({}, {"type": "number"}, {"type": "integer"}):
        with pytest.raises(UnsupportedGrammarError):
            refused_at(kind | {name: [number] if name == "enum" else number}, "0")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 1},
        {"type": True, "minimum": 1e30},
        {"type": [["string"]], "enum": [1]},
        {"type": [{}], "const": 1},
    ],
)
def test_a_type_that_is_none_is_refused(schema):
    for grammar in (JsonSchema(schema), Lark(f"start: %json {json.dumps(schema)}")):
        with pytest.raises(UnsupportedGrammarError):
            marked_tokens().refused_at(grammar, "1")


CLASSES = [
    *('^[^"]+$', r"^[^\\]+$", "^[^'\"]*$", r'^[^\n"]+$', r"^[^\x22]+$", r'^[\s\S]*[^"]$'),
    *(r"^[\x00-\x1f]$", r"^\p{Cc}$", "^[^/]+$", r'^[^\s"]+$', r"^\S+$", r"^[^\]\[]+$"),
    *("^[]a]+$", "^[^]a]+$", '^([^"]|[b-c])+$', '[^"]{3}', r"^a?[^\w]$", r"^\x61bc|\u0078$"),
    *(r'^(?:x[^"\\]*|\x00)$',),
]
TEXTS = [
    *("", "a", '"', "\\", "\n", "\t", "/", "]", "[", " ", 'a"b', "a\\", '\\"', "'"),
    *("abc", "x", "d c", 'abc"'),
]


@pytest.mark.parametrize("pattern", CLASSES)
def test_classes_of_a_pattern_hold_what_they_say_and_nothing_else(pattern):
    known = pattern.replace(r"\p{Cc}", r"[\x00-\x1f\x7f-\x9f]")
    for text in TEXTS:
        is_taken = re.search(known, text) is not None
        schema = {"type": "string", "pattern": pattern}
        assert (refused_at(schema, json.dumps(text)) is None) == is_taken, text
        names = {"patternProperties": {pattern: {}}, "additionalProperties": False}
        for keywords in (names, {"propertyNames": {"pattern": pattern}}):
            schema = {"type": "object"} | keywords
            assert (refused_at(schema, {text: 1}) is None) == is_taken, text


@pytest.mark.parametrize("begun", ["[", "[a", "[^", "\\x{", "\\p{"])
def test_a_long_pattern_that_ends_nowhere_is_refused(begun):
    for schema in ({"pattern": begun * 50_000}, {"patternProperties": {begun * 50_000: True}}):
        with pytest.raises(UnsupportedGrammarError):
            refused_at(schema, "0")
