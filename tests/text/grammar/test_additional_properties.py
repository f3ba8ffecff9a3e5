"""Objects have the properties that their schema names, and only those, unless it says otherwise."""

import copy
import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance", reason="grammars need llguidance")

from coordgen_rs import JsonSchema
from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.text.grammar.additional_properties import with_closed_objects
from coordgen_rs.text.grammar.json_schema import rewritten
from grammar_schemas import FOLLOWED

INTEGER = {"type": "integer"}
TRUE = {"type": "boolean"}


def of(**properties):
    return {"type": "object", "properties": properties, "required": [*properties]}


A, B = of(a=INTEGER), of(b=TRUE)
BOTH, MORE = {"a": 1, "b": True}, {"a": 1, "b": True, "c": 2}
NODE = of(value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
OPEN, CLOSED = {"additionalProperties": True}, {"additionalProperties": False}
REF, DEFS = {"$ref": "#/$defs/a"}, {"$defs": {"a": A}}
ANY = {"anyOf": [A, B]}

CASES = {
    "an object": (A, [{"a": 1}], [{"a": 1, "c": 2}]),
    "one inside another": (of(x=A), [{"x": {"a": 1}}], [{"x": {"a": 1, "c": 2}}]),
    "one in a list": ({"type": "array", "items": A}, [[{"a": 1}]], [[{"a": 1, "c": 2}]]),
    "no properties": ({"type": "object", "properties": {}}, [{}], [{"c": 1}]),
    "any object": ({"type": "object"}, [{}, {"c": 1}], []),
    "opened": (A | OPEN, [{"a": 1, "c": "x"}], []),
    "opened to integers": (
        A | {"additionalProperties": INTEGER},
        [{"a": 1, "c": 2}],
        [{"a": 1, "c": "x"}],
    ),
    "opened to names": (
        A | {"patternProperties": {"^x": B}},
        [{"a": 1, "xy": {"b": True}}],
        [{"a": 1, "xy": {"b": True, "c": 1}}],
    ),
    "opened, but not inside": (
        of(x=A) | OPEN,
        [{"x": {"a": 1}, "c": 1}],
        [{"x": {"a": 1, "c": 1}}],
    ),
    "required, but not named": (
        A | {"required": ["a", "b"]},
        [{"a": 1, "b": "any"}],
        [{"a": 1, "b": 2, "c": 3}],
    ),
    "at least so many": (A | {"minProperties": 2}, [{"a": 1, "c": 2}], []),
    "a reference": (REF | DEFS, [{"a": 1}], [{"a": 1, "c": 2}]),
    "a reference to a property": (
        of(x=A, y={"$ref": "#/properties/x"}),
        [{"x": {"a": 1}, "y": {"a": 2}}],
        [{"x": {"a": 1}, "y": {"a": 2, "c": 3}}],
    ),
    "a reference with a default": (
        of(x=REF | {"default": {"c": 1}}) | DEFS,
        [{"x": {"a": 1}}],
        [{"x": {"a": 1, "c": 2}}],
    ),
    "a reference with a property": (REF | DEFS | B, [BOTH], [MORE]),
    "a chain of itself": (
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        [{"value": 1, "next": {"value": 2, "next": None}}],
        [{"value": 1, "next": {"value": 2, "next": None, "c": 1}}],
    ),
    "the document in itself": (
        of(value=INTEGER, more={"type": "array", "items": {"$ref": "#"}}),
        [{"value": 1, "more": [{"value": 2, "more": []}]}],
        [{"value": 1, "more": [{"value": 2, "more": [], "c": 1}]}],
    ),
    "all of one": ({"allOf": [A]}, [{"a": 1}], [{"a": 1, "c": 2}]),
    "all of two": ({"allOf": [A, B]}, [BOTH], [MORE]),
    "all of two by reference": ({"allOf": [REF, B]} | DEFS, [BOTH], [MORE]),
    "all of two, one alone, too": (
        of(x={"allOf": [REF, B]}, y=REF) | DEFS,
        [{"x": BOTH, "y": {"a": 2}}],
        [{"x": BOTH, "y": {"a": 2, "b": True}}],
    ),
    "all of two, one opened": ({"allOf": [A, B | OPEN]}, [MORE], []),
    "any of two": (ANY, [{"a": 1}, {"b": True}], [BOTH]),
    "any of two beside a property": (
        of(x=INTEGER) | ANY,
        [{"x": 1, "a": 2}, {"x": 1, "b": True}],
        [{"x": 1, "a": 2, "b": True}, {"x": 1, "a": 2, "c": 3}],
    ),
    "any of two, and one more": (
        {"allOf": [ANY, of(x=INTEGER)]},
        [{"a": 1, "x": 2}, {"b": True, "x": 2}],
        [{"a": 1, "c": 2, "x": 3}, {"x": 1}],
    ),
    "any of two by reference, beside a property": (
        {"$ref": "#/$defs/any", "$defs": {"any": ANY}} | of(x=INTEGER),
        [{"a": 1, "x": 2}, {"b": True, "x": 2}],
        [{"a": 1, "c": 2, "x": 3}, {"x": 1}],
    ),
    "any of a choice, beside a property": (
        of(x=INTEGER) | {"anyOf": [{"$ref": "#/$defs/any"}, of(y=TRUE)], "$defs": {"any": ANY}},
        [{"x": 1, "a": 2}, {"x": 1, "b": True}, {"x": 1, "y": True}],
        [{"x": 1, "a": 2, "c": 3}],
    ),
    "any of two, both times, one opened": (
        {"allOf": [{"anyOf": [A | OPEN]}, {"anyOf": [of(x=INTEGER)]}]},
        [{"a": 1, "x": 2, "c": 3}],
        [],
    ),
    "any of two, of at least so many": (
        {"type": "object", "minProperties": 2, "required": ["a"], "anyOf": [A, {"type": "null"}]},
        [{"a": 1, "c": 2}],
        [],
    ),
    "the whole by a reference to what may be anything": (
        {"$ref": "#/definitions/any", "definitions": {"any": True}} | A,
        [{"a": 1}],
        [{"a": 1, "c": 2}],
    ),
    "an object or nothing": (
        {"anyOf": [A, {"type": "null"}]},
        [{"a": 1}, None],
        [{"a": 1, "c": 2}],
    ),
    "a property by the name of a keyword": (
        of(properties=INTEGER, allOf=A),
        [{"properties": 1, "allOf": {"a": 1}}],
        [{"properties": 1, "allOf": {"a": 1, "c": 2}}],
    ),
    "a pattern of a property alone": (
        of(a=INTEGER, b=TRUE) | CLOSED | {"patternProperties": {"^a$": {"minimum": 3}}},
        [{"a": 3, "b": True}],
        [{"a": 2, "b": True}, {"a": 3, "b": True, "c": 1}],
    ),
    "a pattern of all properties": (
        {"type": "object", "properties": {"a": INTEGER, "b": True}}
        | CLOSED
        | {"patternProperties": {"^(a|b)$": INTEGER, "^[ab]$": {"maximum": 5}, "^x": TRUE}},
        [{}, {"a": 3}, {"b": 4}, {"a": 3, "b": 4, "xy": True}],
        [{"b": "x"}, {"b": 6}, {"c": 1}],
    ),
    "a pattern of what is required": (
        {"type": "object", "required": ["a"]} | CLOSED | {"patternProperties": {"^a$": INTEGER}},
        [{"a": 3}],
        [{}, {"a": True}],
    ),
    "a constant": ({"const": {"properties": {}}}, [{"properties": {}}], [{}]),
    "a definition whose name is taken": (
        of(x={"$ref": "#/$defs/whole-0"}) | {"$defs": {"whole-0": A}},
        [{"x": {"a": 1}}],
        [{"x": {"a": 1, "c": 2}}],
    ),
}


def is_allowed(vocabulary, tokenizer, schema, value):
    matcher = vocabulary.matcher(JsonSchema(schema))
    matcher.begin()
    ids = tokenizer.encode(json.dumps(value), special_tokens=False).tolist()
    path = []
    for token in ids:
        matcher.after(path)
        if not matcher.words[token // 32] >> (token % 32) & 1:
            return False
        path.append(token)
    is_complete = matcher.after(path)
    return is_complete or bool(matcher.words[0] >> 1 & 1)


@pytest.mark.parametrize("name", CASES)
def test_an_object_has_the_properties_that_its_schema_names_and_no_others(
    vocabulary, tokenizer, name
):
    schema, allowed, refused = CASES[name]
    before = copy.deepcopy(schema)
    closed = with_closed_objects(schema)
    assert schema == before
    for value in allowed:
        assert jsonschema.Draft202012Validator(closed).is_valid(value), value
        assert is_allowed(vocabulary, tokenizer, schema, value), value
    for value in refused:
        assert not jsonschema.Draft202012Validator(closed).is_valid(value), value
        assert not is_allowed(vocabulary, tokenizer, schema, value), value


def test_a_schema_whose_objects_are_closed_is_left_as_it_is():
    for name in ("a constant object", "an enum of mixed types", "a bounded integer"):
        assert with_closed_objects(FOLLOWED[name]) == FOLLOWED[name]
    closed = A | {"additionalProperties": False}
    assert with_closed_objects(closed) == closed


def test_references_to_references_take_no_more_time_than_there_are():
    twice = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(90)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": twice | {"d90": A}}
    closed = jsonschema.Draft202012Validator(with_closed_objects(schema))
    assert with_closed_objects(schema)["$defs"]["whole-0"]["additionalProperties"] is False
    assert closed.schema["$defs"].keys() > twice.keys()


def test_a_schema_that_grows_beyond_measure_is_refused():
    inner, place, places = of(**{f"p{number}": INTEGER for number in range(900)}), "#", []
    for _ in range(90):
        inner, place = of(n=inner), f"{place}/properties/n"
        places.append({"$ref": place})
    inner["properties"]["copies"] = {"anyOf": places}  # 900 properties for each of them
    with pytest.raises(UnsupportedGrammarError, match="more than 200000 parts"):
        with_closed_objects(inner)


@pytest.mark.parametrize("link", [{}, of(own=INTEGER), {"allOf": [A]}])
def test_references_in_a_row_may_be_as_many_as_there_are(link):
    num = 3000
    row = {f"d{number}": link | {"$ref": f"#/$defs/d{number + 1}"} for number in range(num)}
    closed = with_closed_objects({"$ref": "#/$defs/d0", "$defs": row | {f"d{num}": A}})
    assert len(closed["$defs"]) > num


def test_many_names_beside_many_choices_are_refused_before_they_are_multiplied():
    names = of(**{f"a{number}": INTEGER for number in range(1000)})
    choices = [of(**{f"b{number}": INTEGER}) for number in range(1000)]
    with pytest.raises(UnsupportedGrammarError, match="more than 200000 parts"):
        with_closed_objects(names | {"anyOf": choices})


@pytest.mark.parametrize("properties", [[1], "a", None, 5])
def test_properties_that_are_none_are_refused(vocabulary, properties):
    with pytest.raises(UnsupportedGrammarError, match="properties"):
        vocabulary.matcher(JsonSchema({"properties": properties, "required": ["a"]}))


def test_a_reference_out_of_the_document_is_left_as_it_is():
    for reference in ("#anchor", "other.json", "#/$defs/missing", "#/type", 7):
        assert with_closed_objects({"$ref": reference}) == {"$ref": reference}


NAMES = st.sampled_from("abcdef")


@st.composite
def described(draw, depth=3):
    """A schema, and a value that is valid and has no properties but those that it names."""
    kind = draw(st.sampled_from(["integer", "object", "object", "all", "any", "list", "defined"]))
    if depth == 0 or kind == "integer":
        return {"type": "integer"}, draw(st.integers(0, 9))
    inner = described(depth - 1)
    if kind == "list":
        schema, value = draw(inner)
        return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 2))
    if kind == "any":
        schema, value = draw(inner)
        return {"anyOf": [{"type": "string"}, schema]}, value
    if kind == "defined":
        schema, value = draw(inner)
        return {"here": schema}, value
    fields = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=4))
    value = {name: one for name, (_, one) in fields.items()}
    if kind == "object":
        return of(**{name: schema for name, (schema, _) in fields.items()}), value
    parts = [of(**{name: schema}) for name, (schema, _) in fields.items()]
    beside = draw(st.booleans())
    return {"allOf": parts[beside:]} | (parts[0] if beside else {}), value


def with_references(schema, definitions):
    """The schema with what is marked moved to the definitions."""
    if isinstance(schema, list):
        return [with_references(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "here" in schema:
        name = f"d{len(definitions)}"
        definitions[name] = None
        definitions[name] = with_references(schema["here"], definitions)
        return {"$ref": f"#/$defs/{name}"}
    return {name: with_references(one, definitions) for name, one in schema.items()}


def objects_of(value):
    if isinstance(value, list):
        for one in value:
            yield from objects_of(one)
    elif isinstance(value, dict):
        yield value
        yield from objects_of([*value.values()])


@settings(max_examples=200, deadline=None)
@given(described())
def test_closing_keeps_what_a_schema_names_and_refuses_a_further_property_anywhere(given_):
    schema, value = given_
    definitions = {}
    schema = with_references(schema, definitions)
    if definitions:
        schema |= {"$defs": definitions}
    given_one = jsonschema.Draft202012Validator(schema)
    closed = jsonschema.Draft202012Validator(with_closed_objects(schema))
    assert given_one.is_valid(value)
    assert closed.is_valid(value)
    for one in objects_of(value):
        one["z"] = 1
        assert given_one.is_valid(value)
        assert not closed.is_valid(value)
        del one["z"]


def test_a_pattern_of_many_names_is_a_pattern():
    for pattern in (
        "^(((a?){100}){100}){100}$",
        "^(((a{100}){100}){100}){100}$",
        "^[a-z]{2}$",
        "^a",
        "(",
    ):
        schema = {"type": "object", "required": ["a"], "patternProperties": {pattern: {}}}
        schema["additionalProperties"] = False
        assert rewritten(schema) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": INTEGER, "b": TRUE}, "patternProperties": {"^a$": {"minimum": 3}}},
        {"properties": {"a": INTEGER, "b": TRUE}, "patternProperties": {"^(a|b)$": {}}},
        {"required": ["a"], "patternProperties": {"^a$": INTEGER}},
        {"required": ["a", "b"], "patternProperties": {"^[a-b]{1}$": {}, "^(?:a|bc{0})$": {}}},
        {"required": ["a"], "propertyNames": {"pattern": "^a$"}},
    ],
)
def test_behind_the_last_property_nothing_follows(vocabulary, tokenizer, schema):
    closed = {"type": "object", "additionalProperties": False} | schema
    if "propertyNames" in schema:
        del closed["additionalProperties"]
    matcher = vocabulary.matcher(JsonSchema(closed))
    matcher.begin()
    value = {"a": 3, "b": True} if "b" in json.dumps(schema) else {"a": 3}
    text = json.dumps(value)[:-1]
    for token in tokenizer.encode(text, special_tokens=False).tolist():
        matcher.after([])
        matcher.extend([token])
    matcher.after([])
    [comma] = tokenizer.encode(",", special_tokens=False).tolist()[-1:]
    assert not matcher.words[comma // 32] >> (comma % 32) & 1
