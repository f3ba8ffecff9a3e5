"""Calls of functions: what is asked of the model, and what of its answer is a call."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.server.asked.content import messages_of
from coordgen_rs.server.asked.fields import Fields
from coordgen_rs.server.refusal import RefusalError
from coordgen_rs.server.tools.calls import BEGIN, END, Call, CallReader, Content
from coordgen_rs.server.tools.grammar import tools_of
from coordgen_rs.server.tools.prompts import described

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
CITY["$defs"] = {"city": {"type": "string"}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "description": "What time it is"}},
]
CALL = {"id": "1", "type": "function", "function": {"name": "time", "arguments": {"z": 1}}}


def offered(**fields):
    return tools_of(Fields({"tools": TOOLS} | fields))


def read(tools, *parts):
    """Content and calls, with the parts of each call put together."""
    reader, text, calls = CallReader(tools), "", {}
    for said in [*(one for part in parts for one in reader.read(part)), *reader.end()]:
        if isinstance(said, Content):
            text += said.text
        elif said.name is not None:
            calls[said.number] = [said.name, said.arguments]
        else:
            calls[said.number][1] += said.arguments
    return text, [(name, json.loads(arguments)) for name, arguments in calls.values()]


def called(name, **arguments):
    return BEGIN + json.dumps({"name": name, "arguments": arguments}) + END


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("It is <b>five</b>.", "It is <b>five</b>.", []),
        (called("time"), "", [("time", {})]),
        (f"Let me see.\n{called('time')}", "Let me see.\n", [("time", {})]),
        (
            f"{called('weather', city='Köln')}\n{called('time')}\n",
            "",
            [("weather", {"city": "Köln"}), ("time", {})],
        ),
        ('{"name": "time", "parameters": {}}', "", [("time", {})]),
        (' [{"name": "time", "arguments": {}}] ', "", [("time", {})]),
        (f'{BEGIN}[{{"name": "time", "arguments": {{}}}}]{END}', "", [("time", {})]),
        (f'{BEGIN}{{"name": "time"}}', "", [("time", {})]),
        (called("unknown"), called("unknown"), []),
        (f"{BEGIN}nothing{END} more", f"{BEGIN}nothing{END} more", []),
        (f"{BEGIN}nothing", f"{BEGIN}nothing", []),
        ('{"name": "unknown"}', '{"name": "unknown"}', []),
        ("{ is a brace", "{ is a brace", []),
        ("a <tool", "a <tool", []),
        ("  ", "  ", []),
    ],
)
def test_calls_are_found_and_all_else_is_content(text, content, calls):
    for parts in ([text], list(text), [text[:7], text[7:]]):
        assert read(offered(), *parts) == (content, calls)
    assert read(None, *text) == (text, [])


@given(st.lists(st.sampled_from([BEGIN, END, "{", "}", called("time"), " ", "x", "<"])))
def test_however_it_is_cut_the_same_is_found_and_no_text_is_lost(parts):
    whole = read(offered(), "".join(parts))
    assert read(offered(), *parts) == whole
    if not whole[1]:
        assert whole[0] == "".join(parts)


def test_a_function_that_is_asked_for_gets_its_arguments_as_they_come():
    tools = offered(tool_choice={"type": "function", "function": {"name": "weather"}})
    assert json.loads(tools.grammar().text) == CITY | {"additionalProperties": False}
    reader = CallReader(tools)
    found = [*reader.read('{"ci'), *reader.read('ty": "x"}'), *reader.end()]
    assert found == [Call(0, "weather", '{"ci'), Call(0, None, 'ty": "x"}')]


def test_a_call_that_is_required_is_one_of_a_list():
    tools = offered(tool_choice="required", parallel_tool_calls=False)
    schema = json.loads(tools.grammar().text)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    names = [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]]
    assert names == ["weather", "time"]
    for number, call in enumerate(schema["items"]["anyOf"]):
        assert call["properties"]["arguments"] == {"$ref": f"#/$defs/t{number}"}
    assert schema["$defs"]["t0"]["properties"] == {"city": {"$ref": "#/$defs/t0/$defs/city"}}
    assert schema["$defs"]["t0"]["$defs"] == CITY["$defs"]
    text = '[{"name": "weather", "arguments": {"city": "Ulm"}}]'
    assert read(tools, *text) == ("", [("weather", {"city": "Ulm"})])
    assert read(tools, text[:-5]) == (text[:-5], [])
    assert "maxItems" not in json.loads(offered(tool_choice="required").grammar().text)


def test_parameters_keep_their_meaning_among_those_of_other_functions():
    llguidance = pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    tree = {
        "type": "object",
        "properties": {
            "definitions": {"type": "string"},
            "child": {"$ref": "#"},
            "other": {"$ref": "#/properties/definitions"},
        },
        "required": ["definitions"],
    }
    functions = [{"name": name, "parameters": tree} for name in ("grow", "cut")]
    tools = [{"type": "function", "function": it} for it in functions]
    text = offered(tools=tools, tool_choice="required").grammar().text
    assert json.loads(text)["$defs"]["t1"]["properties"] == {
        "definitions": {"type": "string"},
        "child": {"$ref": "#/$defs/t1"},
        "other": {"$ref": "#/$defs/t1/properties/definitions"},
    }
    grammar = llguidance.grammar_from("json_schema", text)
    assert llguidance.LLMatcher.validate_grammar(grammar) == ""


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/city", "$defs": {"city": CITY["$defs"]["city"]}},
        {"type": "object", "allOf": [{"properties": {"city": {"type": "string"}}}]},
    ],
)
def test_parameters_that_stand_elsewhere_may_be_given(parameters):
    tools = [{"type": "function", "function": {"name": "a", "parameters": parameters}}]
    chosen = {"type": "function", "function": {"name": "a"}}
    schema = json.loads(offered(tools=tools, tool_choice=chosen).grammar().text)
    assert schema == parameters


@pytest.mark.parametrize("place", ["$defs", "definitions"])
def test_definitions_that_are_none_are_left_to_the_grammar_to_refuse(place):
    tools = [{"type": "function", "function": {"name": "a", "parameters": {place: 5}}}]
    assert place in offered(tools=tools, tool_choice="required").grammar().text


def test_the_choice_may_be_left_to_the_model_or_taken_from_it():
    assert offered().grammar() is None
    assert offered(tool_choice="none") is None
    assert tools_of(Fields({})) is None
    with pytest.raises(RefusalError, match="there are no tools"):
        tools_of(Fields({"tool_choice": "required"}))


def test_a_result_without_content_is_refused():
    for message in ({"role": "tool"}, {"role": "tool", "tool_calls": [CALL]}):
        with pytest.raises(RefusalError, match=r"messages\[0\] has no content"):
            messages_of(Fields({"messages": [message]}))


def test_a_template_without_tools_gets_them_in_words():
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    system, user, assistant, result = described(messages, offered())
    assert system["role"] == "system"
    assert '"name": "weather"' in system["content"]
    assert user == messages[0]
    assert read(offered(), assistant["content"]) == ("", [("time", {"z": 1})])
    assert result == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}
    told = described([{"role": "system", "content": "Be short."}, *messages], offered())
    assert told[0]["content"].startswith("Be short.\n\n")
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert described(messages[:1], None) == messages[:1]
