"""Answers that a limit or a stop string ends within a call: told as cut, in every dialect."""

import json

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from call_templates import TEMPLATES
from coordgen_rs.server.tools.syntax import is_object
from coordgen_rs.text.chat_template import ChatTemplate
from fake_model import FakeModel
from fake_served import serving

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
WHOLE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
BEGUN = '<tool_call>\n{"name": "f", "arguments": {"y'


@pytest.fixture
def told():
    """A function that asks for an answer of so much text, by a path and its own fields."""

    def ask(text, path, **fields):
        steps = [(part, ("target",) * len(part)) for part in (text[:9], text[9:])]
        with serving(FakeModel(steps=steps)) as client:
            body = {"model": "fake", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 99}
            if path == "/v1/messages":
                body["tools"] = [{"name": "f", "input_schema": SCHEMA}]
            if path == "/api/chat":
                del body["max_tokens"]
            told = client.post(path, json=body | fields)
        assert told.status_code == 200, told.text
        return told

    return ask


@pytest.mark.parametrize("cut", ["", "<", "<tool_", "<tool_call>\n", BEGUN[:20], BEGUN])
def test_the_whole_calls_of_an_answer_that_a_limit_cut_are_told_and_no_mark_is(told, cut):
    [choice] = told(WHOLE + cut, "/v1/chat/completions").json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    first, *begun = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert json.loads(first) == {"x": 1}
    assert [is_object(arguments) for arguments in begun] == [False] * (cut == BEGUN)

    message = told(WHOLE + cut, "/v1/messages").json()
    assert [block.get("input") for block in message["content"]] == [{"x": 1}]
    assert message["stop_reason"] == "max_tokens"

    for is_streamed in (False, True):
        lines = told(WHOLE + cut, "/api/chat", stream=is_streamed).text.splitlines()
        said = [json.loads(line)["message"] for line in lines]
        assert "".join(one["content"] for one in said) == ""
        calls = [call["function"] for one in said for call in one.get("tool_calls", ())]
        assert [call["arguments"] for call in calls] == [{"x": 1}]
        assert json.loads(lines[-1])["done_reason"] == "length"


@pytest.mark.parametrize(
    ("text", "stop", "reason", "num_calls"),
    [(WHOLE + BEGUN, '"y', "length", 2), (WHOLE + "Bye", "Bye", "tool_calls", 1)],
)
def test_an_answer_that_a_stop_string_ends_within_a_call_is_cut_short(
    told, text, stop, reason, num_calls
):
    [choice] = told(text, "/v1/chat/completions", stop=[stop]).json()["choices"]
    assert choice["finish_reason"] == reason
    assert len(choice["message"]["tool_calls"]) == num_calls
    message = told(text, "/v1/messages", stop_sequences=[stop]).json()
    assert [block["input"] for block in message["content"]] == [{"x": 1}]


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
    function = {"name": "f", "arguments": said}
    call, result = {"id": "1", "type": "function", "function": function}, {"content": "not done"}
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
                {"type": "function_call", "call_id": "1"} | function,
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
