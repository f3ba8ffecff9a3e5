"""Calls of functions: what is asked of the model, what of its answer is a call, and cut ones."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given
from hypothesis import strategies as st

from call_marks import marked_tokens
from call_templates import TEMPLATES, read_calls
from coordgen_rs.errors import OptionError, UnsupportedGrammarError
from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.request import constrained
from coordgen_rs.server.tools.formats import HERMES, described, with_short_ids
from coordgen_rs.server.tools.functions import tools_of
from coordgen_rs.text.chat_template import ChatTemplate
from coordgen_rs.text.grammar.kinds import JsonSchema, Lark, Regex
from fake_model import FakeModel
from fake_served import serving

BEGIN, END = HERMES.opening, HERMES.closing

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
CITY["$defs"] = {"city": {"type": "string"}}


def tools_with(**fields):
    return tools_of(Fields({"tools": TOOLS} | fields))


def function(name, **fields):
    return {"type": "function", "function": {"name": name} | fields}


TOOLS = [function("weather", parameters=CITY), function("time", description="What time it is")]


@pytest.fixture(scope="module")
def tokens():
    """A tokenizer of bytes that follows grammars."""
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    return marked_tokens()


def read(tools, *parts):
    """Content and calls, with the parts of each call put together."""
    known = (None, {}) if tools is None else (HERMES, tools.callable)
    text, calls, _ = read_calls(known[0], parts, known[1], is_constrained=False)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


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
        assert read(tools_with(), *parts) == (content, calls)
    assert read(None, *text) == (text, [])


@given(st.lists(st.sampled_from([BEGIN, END, "{", "}", called("time"), " ", "x", "<"])))
def test_however_it_is_cut_the_same_is_found_and_no_text_is_lost(parts):
    whole = read(tools_with(), "".join(parts))
    assert read(tools_with(), *parts) == whole
    if not whole[1]:
        assert whole[0] == "".join(parts)


def grammar(tools, model=None, given=None):
    """What the answer is held to."""
    calling, found = constrained(tools, model or FakeModel(), given)
    assert calling.is_constrained == isinstance(found, Lark)
    return None if found is None else found.text


def test_a_function_that_is_asked_for_is_the_only_one_that_may_be_called():
    tools = tools_with(tool_choice=function("weather"), parallel_tool_calls=False)
    assert (tools.is_required, [*tools.callable]) == (True, ["weather"])
    text = grammar(tools)
    assert "weather" in text
    assert "time" not in text
    assert "TEXT" not in text
    assert "TEXT" in grammar(tools_with())


def test_a_function_that_is_asked_for_is_called_once(tokens):
    said = f'{BEGIN}\n{{"name": "time", "arguments": {{}}}}\n{END}'
    for choice, twice in ((function("time"), len(said) + 1), ("required", None)):
        text = grammar(tools_with(tool_choice=choice))
        assert tokens.refused_at(text, f"{said}\n") is None
        assert tokens.refused_at(text, f"{said}\n{said}") == twice


def test_allowed_tools_leave_the_others_told_but_not_callable():
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [function("time")]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        tools = tools_with(tool_choice=choice)
        assert tools.is_required == (mode == "required")
        assert [*tools.callable] == ["time"]
        assert [tool["function"]["name"] for tool in tools.listed] == ["weather", "time"]
    allowed["tools"] = [function("rain")]
    with pytest.raises(APIError, match="not among tools"):
        tools_with(tool_choice=choice)


@pytest.mark.parametrize("name", ["mcp.server/tool", "a:b", "x" * 128, "get-it_2"])
def test_names_of_functions_may_be_those_of_servers(name):
    tools = [function(name)]
    assert [*tools_with(tools=tools).callable] == [name]
    for wrong in ("", "a b", "\u00e9", "x" * 129, 'a"', "a\n"):
        with pytest.raises(APIError, match="name"):
            tools_with(tools=[function(wrong)])


def test_parameters_keep_their_meaning_among_those_of_other_functions(tokens):
    tree = {
        "type": "object",
        "properties": {
            "definitions": {"type": "string"},
            "child": {"$ref": "#"},
            "other": {"$ref": "#/properties/definitions"},
        },
        "required": ["definitions"],
    }
    tools = [function(name, parameters=tree) for name in ("grow", "cut")]
    text = grammar(tools_with(tools=tools, tool_choice="required"))
    right = {"definitions": "a", "child": {"definitions": "b", "other": "c"}}
    said = BEGIN + "\n" + called("cut", **right)[len(BEGIN) : -len(END)] + "\n" + END
    assert tokens.refused_at(text, said) is None
    assert tokens.refused_at(text, said.replace('"b"', "1")) is not None


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/place", "$defs": {"place": {"type": "object"}}},
        {"type": "object", "allOf": [{"properties": {"city": {"type": "string"}}}]},
    ],
)
def test_parameters_that_stand_elsewhere_may_be_given(parameters):
    tools = [function("a", parameters=parameters)]
    assert tools_with(tools=tools).callable == {"a": parameters | {"type": "object"}}


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"type": ["string", "null"]},
        {"enum": ["a", "b"]},
        {
            "anyOf": [{"type": "array"}, {"$ref": "#/$defs/text"}],
            "$defs": {"text": {"type": "string"}},
        },
    ],
)
def test_parameters_that_are_no_object_are_refused_by_name(parameters):
    tools = [function("a", parameters=parameters)]
    with pytest.raises(APIError, match="schema of an object") as refused:
        tools_with(tools=tools)
    assert refused.value.param == "tools[0].function.parameters"


A = {"a": {"type": "integer"}}
OBJECTS = {
    "any": ({"type": "object"}, [{}, {"b": 1}], []),
    "any of names": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
        [{}, {"b": 1}],
        [{"c": 1}],
    ),
    "any, but not none": ({"type": "object", "minProperties": 1}, [{"b": 1}], [{}]),
    "one that is not described": (
        {"type": "object", "properties": A, "required": ["b"]},
        [{"b": "x"}, {"a": 1, "b": 2}],
        [{}, {"a": 1}, {"b": 1, "c": 1}],
    ),
    "none": ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    "closed": ({"type": "object", "properties": A}, [{}, {"a": 1}], [{"c": 1}]),
    "opened": ({"type": "object", "properties": A, "additionalProperties": True}, [{"c": 1}], []),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_arguments_are_closed_by_the_rule_of_every_schema(name, tokens):
    parameters, allowed, refused = OBJECTS[name]
    tools = [function("a", parameters=parameters)]
    text = grammar(tools_with(tools=tools, tool_choice="required"))
    for values, is_allowed in ((allowed, True), (refused, False)):
        for value in values:
            said = f'{BEGIN}\n{{"name": "a", "arguments": {json.dumps(value)}}}\n{END}'
            assert (tokens.refused_at(text, said) is None) == is_allowed, value
            asked = tokens.refused_at(JsonSchema(parameters), json.dumps(value))
            assert (asked is None) == is_allowed, value


@pytest.mark.parametrize("kind", [{}, {"type": ["object", "null"]}], ids=["no type", "two types"])
def test_arguments_are_an_object_whatever_else_their_schema_allows(kind, tokens):
    tools = [function("a", parameters=kind | {"title": "A"})]
    text = grammar(tools_with(tools=tools, tool_choice="required"))
    said = f'{BEGIN}\n{{"name": "a", "arguments": '
    assert tokens.refused_at(text, f"{said}{{}}}}\n{END}") is None
    assert tokens.refused_at(text, f"{said}null") == len(said)
    assert tokens.refused_at(text, f"{said}[") == len(said)


class TestWhatCannotBeHeld:
    """A schema that the grammar cannot follow, here one with `rain` in it."""

    tools = [*TOOLS, function("sky", parameters={"properties": {"rain": {"not": {}}}})]  # noqa: RUF012

    @pytest.fixture
    def model(self):
        model = FakeModel()
        model.unfollowed["rain"] = UnsupportedGrammarError("no rain")
        return model

    def test_is_any_object_unless_it_has_to_be_held_to(self, model):
        text = grammar(tools_with(tools=self.tools), model)
        assert "sky" in text
        assert "rain" not in text
        assert '"city"' in text  # the others are held to

    def test_is_any_object_beside_the_schema_of_an_answer(self, model):
        schema = JsonSchema({"type": "object", "properties": {"sun": {"type": "boolean"}}})
        for name in ("hermes", "llama"):
            model.reads_tools, model.tools_template = True, TEMPLATES[name]
            calling, found = constrained(tools_with(tools=self.tools), model, schema)
            assert (calling.is_constrained, '"sun"' in found.text) == (True, True)

    def test_is_refused_where_a_call_is_asked_for_or_the_function_is_strict(self, model):
        with pytest.raises(APIError, match="no rain"):
            constrained(tools_with(tools=self.tools, tool_choice="required"), model, None)
        constrained(tools_with(tools=self.tools, tool_choice=function("time")), model, None)
        strict = [*self.tools[:2], json.loads(json.dumps(self.tools[2]))]
        strict[2]["function"]["strict"] = True
        with pytest.raises(APIError, match="no rain"):
            constrained(tools_with(tools=strict), model, None)

    def test_is_nothing_at_all_without_the_package(self, model):
        model.unfollowed = {"": OptionError("no llguidance")}
        calling, found = constrained(tools_with(), model, None)
        assert (calling.is_constrained, found) == (False, None)
        with pytest.raises(APIError, match="no llguidance"):
            constrained(tools_with(tool_choice="required"), model, None)


def test_a_schema_of_the_answer_leaves_calls_and_other_grammars_do_not():
    schema = JsonSchema({"type": "object", "properties": {"sun": {"type": "boolean"}}})
    text = grammar(tools_with(), given=schema)
    assert '"sun"' in text
    assert BEGIN in text
    assert "TEXT" not in text
    calling, found = constrained(tools_with(), FakeModel(), Regex("a+"))
    assert (calling.is_constrained, found) == (False, Regex("a+"))


def test_calls_of_a_template_with_ids_of_its_own_length_get_such():
    call = {"id": "call_0123456789", "type": "function", "function": {}}
    result = {"role": "tool", "tool_call_id": "call_0123456789", "content": "x"}
    asked, told = with_short_ids([{"role": "assistant", "tool_calls": [call]}, result], 9)
    short = told["tool_call_id"]
    assert (len(short), short.isalnum()) == (9, True)
    assert asked["tool_calls"][0]["id"] == short
    assert call["id"] == "call_0123456789"
    assert with_short_ids([told], 9) == [told]


def test_a_template_without_tools_gets_them_in_words():
    made = {"name": "time", "arguments": {"z": 1}}
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": made}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    system, user, assistant, result = described(messages, tools_with())
    assert '"name": "weather"' in system["content"]
    assert user == messages[0]
    assert read(tools_with(), assistant["content"]) == ("", [("time", {"z": 1})])
    assert result == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}
    told = described([{"role": "system", "content": "Be short."}, *messages], tools_with())
    assert told[0]["content"].startswith("Be short.\n\n")
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert described(messages[:1], None) == messages[:1]


MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


class TemplatedModel(FakeModel):
    """One that reads what a chat template renders.

    Args:
        source: The template.
    """

    context = 2000

    def __init__(self, source):
        super().__init__()
        self.tools_template = source
        self._template = ChatTemplate(source, {"bos_token": "", "eos_token": ""})

    def chat_prompt(self, messages, *, tools=None, template_variables=None):
        return self._template.render(messages, tools=tools, variables=template_variables)


@pytest.mark.parametrize("said", ['{"x": "The', "nothing", "[1]"])
@pytest.mark.parametrize("reads_tools", [True, False], ids=["tools", "words"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_whose_arguments_are_no_object_is_part_of_a_dialogue(name, reads_tools, said):
    made = {"name": "f", "arguments": said}
    call, result = {"id": "1", "type": "function", "function": made}, {"content": "not done"}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    told = [*MESSAGES, asked, {"role": "tool", "tool_call_id": "1"} | result]
    use = {"type": "tool_use", "id": "1", "name": "f", "input": said}
    given = {"type": "tool_result", "tool_use_id": "1"} | result
    blocks = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [given]}]
    bodies = {
        "/v1/chat/completions": {"messages": told},
        "/v1/messages": {"messages": [*MESSAGES, *blocks], "max_tokens": 9},
        "/api/chat": {"messages": told, "stream": False},
        "/v1/responses": {
            "input": [
                *MESSAGES,
                {"type": "function_call", "call_id": "1"} | made,
                {"type": "function_call_output", "call_id": "1", "output": "not done"},
            ]
        },
    }
    model = TemplatedModel(TEMPLATES[name])
    model.reads_tools = reads_tools
    with serving(model) as client:
        for path, body in bodies.items():
            answered = client.post(path, json={"model": "fake"} | body)
            assert answered.status_code == 200, answered.text
    for prompt, _ in model.asked:
        assert said.rsplit('"', maxsplit=1)[-1] in prompt
        assert "not done" in prompt
