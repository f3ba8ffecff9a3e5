"""What a function's parameters say is held, or refused by name, however a call is spelt."""

import json

import pytest

pytest.importorskip("llguidance", reason="the extra grammar is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from call_marks import marked_tokens
from call_templates import read_calls
from coordgen_rs.errors import UnsupportedGrammarError
from coordgen_rs.server.tools import pairs
from coordgen_rs.server.tools.calls import CallConstraint
from coordgen_rs.server.tools.formats import FORMATS
from coordgen_rs.server.tools.syntax import Lexicon

BY_NAME = {form.name: form for form in FORMATS}
SPELT = ("qwen-xml", "lfm2", "gemma", "function-gemma")
"""Forms with a spelling of their own."""


def held(name, parameters):
    """The tokens of a model of the form, and the grammar of a call that has to be made."""
    tokens = marked_tokens(tuple(BY_NAME[name].marks))
    lexicon = Lexicon(tokens.added(), tokens.ends)
    return tokens, BY_NAME[name].grammar(
        CallConstraint({"f": parameters}, is_required=True), lexicon
    )


def written(name, *arguments):
    """A call with arguments as the form spells them, each a name and a value."""
    form = BY_NAME[name]
    if name == "qwen-xml":
        said = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
        said = "\n" + said
    else:
        between = "=" if name == "lfm2" else ":"
        comma = ", " if name == "lfm2" else ","
        said = comma.join(f"{key}{between}{value}" for key, value in arguments)
    opening = form.opening + form.gap + form.first + form.before
    return f"{opening}f{form.after}{said}{form.end}{form.last}{form.gap}{form.closing}"


def refused_at(name, parameters, *arguments):
    tokens, lark = held(name, parameters)
    return tokens.refused_at(lark, written(name, *arguments))


def read(name, parameters, *arguments, is_constrained=True):
    """The arguments of the one call that is read, whole and in pieces."""
    form, text, given = BY_NAME[name], written(name, *arguments), {"f": parameters}
    whole, pieces = (
        read_calls(form, parts, given, is_constrained=is_constrained)[1] for parts in ([text], text)
    )
    assert whole == pieces
    return json.loads(whole[0][1])


@pytest.mark.parametrize("name", SPELT)
def test_a_choice_that_refers_to_itself_allows_its_other_choices(name):
    either = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "boolean"}, {"$ref": "#/$defs/A"}]}
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
    parameters["$defs"] = {"A": either}
    yes, no = ("True", "None") if name == "lfm2" else ("true", "null")
    assert refused_at(name, parameters, ("a", yes)) is None
    assert refused_at(name, parameters, ("a", no)) is not None
    assert read(name, parameters, ("a", yes)) == {"a": True}


@pytest.mark.parametrize("name", SPELT)
def test_choices_within_choices_are_looked_at_once(name):
    twice = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}}
    parameters["$defs"] = twice | {"d60": {"type": "string"}}
    assert len(BY_NAME[name].grammar(CallConstraint({"f": parameters}), Lexicon())) < 50_000


def test_objects_within_objects_are_not_written_out_without_end(monkeypatch):
    monkeypatch.setattr(pairs, "MOST_LEVELS", 1000)
    node = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/node"} for n in range(9)}}
    parameters = node | {"$defs": {"node": node}}
    with pytest.raises(UnsupportedGrammarError, match="parts"):
        held("gemma", parameters)


@pytest.mark.parametrize("name", SPELT)
def test_objects_are_closed_by_the_rule_of_every_schema(name):
    one = {"a": {"type": "integer"}}
    for parameters, given, is_allowed in (
        ({}, "b", True),
        ({"properties": {}}, "b", False),
        ({"properties": one}, "a", True),
        ({"properties": one}, "b", False),
        ({"properties": one, "required": ["b"]}, "a", False),
        ({"properties": one, "required": ["b"]}, "b", True),
        ({"required": ["b"]}, "b", True),
        ({"required": ["b"]}, "a", False),
        ({"required": ["b"], "allOf": [{"properties": one}]}, "a", True),
        ({"properties": {}, "anyOf": [{"properties": one}, {}]}, "a", True),
        ({"properties": {}, "additionalProperties": True}, "a", True),
    ):
        at = refused_at(name, {"type": "object"} | parameters, (given, "1"))
        assert (at is None) == is_allowed, parameters


@pytest.mark.parametrize("name", SPELT)
def test_what_is_no_name_of_a_required_property_is_left_aside(name):
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    parameters["required"] = [{"b": 1}, ["c"], "a"]
    given = ("a", "True" if name == "lfm2" else "true")
    assert refused_at(name, parameters, given) is None
    assert read(name, parameters, given) == {"a": True}


UNITS = {"type": "string", "enum": ["celsius", "5", ""]}
OPTIONAL = {
    "or null": {"anyOf": [UNITS, {"type": "null"}]},
    "null in the list": {"type": ["string", "null"], "enum": [*UNITS["enum"], None]},
    "a reference or null": {"anyOf": [{"$ref": "#/$defs/units"}, {"type": "null"}]},
    "a number or it": {"anyOf": [{"type": "integer"}, UNITS]},
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_listed_texts_are_held_beside_what_is_no_text(name):
    parameters = {"type": "object", "properties": {"a": OPTIONAL[name], "b": {"type": "string"}}}
    parameters["$defs"] = {"units": UNITS}
    is_number = name == "a number or it"
    other = 17 if is_number else None
    for said, value in (("celsius", "celsius"), ("5", "5"), ("", ""), (json.dumps(other), other)):
        assert refused_at("qwen-xml", parameters, ("a", said), ("b", "x")) is None
        assert read("qwen-xml", parameters, ("a", said), ("b", "x")) == {"a": value, "b": "x"}
    for said in ("Kelvin", '"celsius"', "7.5", "null" if is_number else "17"):
        assert refused_at("qwen-xml", parameters, ("a", said)) is not None


NAMES = ["a", "a>b", "a>b>c", "c d", "e=f", "g:h", "filter[status]", "xml:lang", "it's", 'say "x"']
NAMES += ["", "\\"]


@pytest.mark.parametrize("name", SPELT)
def test_every_name_of_a_property_is_written_and_read(name):
    parameters = {"type": "object", "properties": {one: {"type": "integer"} for one in NAMES}}
    parameters["required"] = NAMES
    quoted = set(NAMES[3:-1]) if name != "qwen-xml" else set()
    given = [json.dumps(one) if one in quoted else one for one in NAMES]
    arguments = [(spelt, number) for number, spelt in enumerate(given)]
    assert refused_at(name, parameters, *arguments) is None
    for is_constrained in (True, False):
        found = read(name, parameters, *arguments, is_constrained=is_constrained)
        assert found == {one: number for number, one in enumerate(NAMES)}
