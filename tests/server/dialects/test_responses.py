"""Functions on `/v1/responses`: what is asked, and the items and events that answer."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.errors import GrammarError
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.responses import messages_of_items
from fake_model import FakeModel
from fake_served import refused, serving

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": True},
    {"type": "function", "name": "time", "description": "What time it is"},
]
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
ASKED = {"input": "Hi", "tools": TOOLS}


def saying(text, *, ends="stop", step=5):
    parts = [text[start : start + step] for start in range(0, len(text), step)]
    model = FakeModel(steps=[(part, ("target",) * len(part)) for part in parts])
    model.ends, model.context = ends, 2000
    return model


def asked_of(model, body):
    with serving(model) as client:
        return client.post(PATH, json=body)


def events_of(model, body):
    answered = asked_of(model, body | {"stream": True})
    assert answered.status_code == 200, answered.text
    lines = answered.text.split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def plain(item):
    """An item without its ids, which are drawn."""
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def call(name, arguments, status="completed"):
    return {"type": "function_call", "status": status, "name": name, "arguments": arguments}


def test_fields_that_are_null_are_as_if_they_were_not_there():
    names = ["instructions", "metadata", "tools", "tool_choice", "text", "reasoning", "include"]
    names += ["temperature", "top_p", "stream", "store", "truncation", "background", "prompt"]
    names += ["previous_response_id", "conversation", "parallel_tool_calls", "max_output_tokens"]
    names += ["user", "top_logprobs", "max_tool_calls", "service_tier", "stream_options"]
    item = {"type": None, "role": "user", "content": "Hi", "id": None, "phase": None}
    for body in (dict.fromkeys(names), {"text": {"format": None}, "reasoning": {"effort": None}}):
        told = asked_of(saying("Hi"), {"input": [item]} | body)
        assert told.status_code == 200, told.text
        assert told.json()["output"][0]["content"][0]["text"] == "Hi"


def test_a_call_that_a_limit_cuts_is_incomplete_and_the_others_are_whole():
    text = CALLS[: CALLS.index("{}")]
    for told in (
        asked_of(saying(text, ends="length"), ASKED).json(),
        events_of(saying(text, ends="length"), ASKED)[-1]["response"],
    ):
        assert (told["status"], told["incomplete_details"]["reason"]) == (
            "incomplete",
            "max_output_tokens",
        )
        assert [plain(item) for item in told["output"]] == [
            call("weather", '{"city": "Ulm"}'),
            call("time", "", "incomplete"),
        ]


def test_of_a_required_call_that_is_cut_the_chat_gets_what_there_is():
    tools = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in "ab"]
    whole = '<tool_call>\n{"name": "a", "arguments": {"city": "x"}}\n</tool_call>\n'
    cut = '<tool_call>\n{"name": "b", "arguments": {"ci'
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    with serving(saying(whole + cut, ends="length")) as client:
        [choice] = client.post(CHAT, json=body | {"tool_choice": "required"}).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert functions == [
        {"name": "a", "arguments": '{"city": "x"}'},
        {"name": "b", "arguments": '{"ci'},
    ]
    with serving(saying(whole + cut[:20], ends="length")) as client:
        [choice] = client.post(CHAT, json=body | {"tool_choice": "required"}).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1  # of the other nothing was said


FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
CHATTED = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99}
NESTED = [{"type": "function", "function": {"name": "time", "parameters": CITY}}]


@pytest.mark.parametrize(
    ("path", "body", "choices", "held"),
    [
        (
            PATH,
            ASKED,
            ["required", {"type": "function", "name": "time"}],
            {"text": {"format": FORMAT}},
        ),
        (
            CHAT,
            CHATTED | {"tools": NESTED},
            ["required", {"type": "function", "function": {"name": "time"}}],
            {"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}},
        ),
        (
            "/v1/messages",
            CHATTED | {"tools": [{"name": "time", "input_schema": CITY}]},
            [{"type": "any"}, {"type": "tool", "name": "time"}],
            {"output_config": {"format": FORMAT}},
        ),
    ],
)
def test_a_format_of_text_says_nothing_where_a_call_is_asked_for(path, body, choices, held):
    model = saying(CALLS)
    with serving(model) as client:
        for choice in choices:
            for more in ({}, held):
                told = client.post(path, json=body | {"tool_choice": choice} | more)
                assert told.status_code == 200, told.text
        alone, beside = ([options["grammar"] for _, options in model.asked[at::2]] for at in (0, 1))
        assert alone == beside
        if path == CHAT:
            more = {"tool_choice": "required", "guided_regex": "a+"}
            assert refused(client.post(path, json=body | more))["param"] == "tool_choice"


def messages(*items, **fields):
    return messages_of_items(Fields({"input": [*items]} | fields))


MADE = {"type": "function_call", "call_id": "1", "name": "time", "arguments": '{"z": 1}'}
GIVEN = {"type": "function_call_output", "call_id": "1", "output": "noon"}


def test_what_the_model_said_in_a_turn_is_one_message():
    text = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
    text["content"] = [{"type": "output_text", "text": "So: ", "annotations": []}]
    found = messages(
        {"role": "user", "content": "When?"},
        text,
        MADE | {"id": "fc_1", "status": "completed"},
        MADE | {"call_id": "2", "arguments": ""},
        GIVEN,
        GIVEN | {"call_id": "2", "output": [{"type": "input_text", "text": "one"}]},
        {"role": "assistant", "content": "At noon."},
        instructions="Be short.",
    )
    function = {"name": "time", "arguments": {"z": 1}}
    calls = [
        {"id": "1", "type": "function", "function": function},
        {"id": "2", "type": "function", "function": {"name": "time", "arguments": {}}},
    ]
    assert found == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "So: ", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "name": "time", "content": "noon"},
        {"role": "tool", "tool_call_id": "2", "name": "time", "content": "one"},
        {"role": "assistant", "content": "At noon."},
    ]


HOSTED = ("web_search", "web_search_preview_2025_03_11", "namespace", "image_generation", "shell")


def test_hosted_tools_are_left_out_and_what_belongs_to_them_may_be_asked_for():
    model = FakeModel()
    include = ["reasoning.encrypted_content", "web_search_call.action.sources"]
    body = {"input": "Hi", "include": include}
    hosted = [{"type": kind, "more": {}} for kind in HOSTED]
    assert asked_of(model, body | {"tools": hosted}).status_code == 200
    assert model.asked[-1][0] == "Hi"
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    allowed = [{"type": "web_search"}, {"type": "function", "name": "f"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    answered = asked_of(model, body | {"tools": [*hosted, function], "tool_choice": choice})
    assert answered.status_code == 200, answered.text
    prompt = model.asked[-1][0]
    assert "'name': 'f'" in prompt
    assert not any(kind in prompt for kind in HOSTED)
    model.unfollowed = {"odd": GrammarError("no")}
    strict = function | {"strict": True, "parameters": {"type": "object", "title": "odd"}}
    error = refused(asked_of(model, body | {"tools": [*hosted, strict]}))
    assert error["param"] == f"tools[{len(hosted)}].parameters"
