"""Anthropic's Messages API: the official client against a fake model, whole and streamed."""

import json

import pytest

pytest.importorskip("anthropic", reason="anthropic is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import anthropic

from coordgen_rs import JsonSchema
from coordgen_rs.model.answer import Gain
from coordgen_rs.server.dialects.anthropic import MESSAGES, parse_message
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.reader import Delta
from coordgen_rs.server.guard import api_key
from coordgen_rs.server.tools.calls import Call, Content, Thought
from fake_model import STEPS, FakeModel
from fake_served import listening, serving

TEXT = "".join(text for text, _ in STEPS)
HELLO = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"name": "f", "description": "do", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
PATH = "/v1/messages"


def calling():
    model = FakeModel(steps=[(text, ("target",) * len(text)) for text in ("So", "... ", CALL)])
    model.ends = "stop"
    return model


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def client(model):
    with listening(model) as url:
        yield anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)


def plain(block):
    told = block.model_dump(exclude_none=True)
    if told["type"] == "tool_use":
        assert told.pop("id").startswith("toolu_")
    return told


def test_a_message_is_the_same_whole_and_streamed(client, model):
    whole = client.messages.create(model="fake", **HELLO)
    assert [plain(block) for block in whole.content] == [{"type": "text", "text": TEXT}]
    assert (whole.role, whole.model, whole.stop_reason) == ("assistant", "fake", "max_tokens")
    num_prompt = len("hello")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (num_prompt, len(TEXT))
    assert whole.usage.cache_read_input_tokens == 0
    with client.messages.stream(model="fake", **HELLO) as stream:
        assert "".join(stream.text_stream) == TEXT
        told = stream.get_final_message()
    assert told.model_dump(exclude={"id", "content"}) == whole.model_dump(exclude={"id", "content"})
    assert [plain(block) for block in told.content] == [plain(block) for block in whole.content]
    assert model.asked[0][1]["max_new_tokens"] == 9


def test_a_call_is_a_block_whole_and_streamed():
    expected = [
        {"type": "text", "text": "So... "},
        {"type": "tool_use", "name": "f", "input": {"x": 1}},
    ]
    with listening(calling()) as url:
        client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
        whole = client.messages.create(model="fake", tools=[TOOL], **HELLO)
        with client.messages.stream(model="fake", tools=[TOOL], **HELLO) as stream:
            told = stream.get_final_message()
    for message in (whole, told):
        assert [plain(block) for block in message.content] == expected
        assert message.stop_reason == "tool_use"


def test_events_come_in_anthropics_order():
    with serving(calling()) as client:
        body = HELLO | {"tools": [TOOL], "stream": True}
        text = client.post(PATH, json=body).text
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    kinds = [head.removeprefix("event: ") for head, _ in events]
    datas = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert kinds == [data["type"] for data in datas]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert datas[0]["message"]["usage"]["input_tokens"] > 0
    blocks = [data["index"] for data in datas if "index" in data]
    assert blocks == sorted(blocks)
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


def test_thoughts_and_the_parts_of_a_call_are_blocks():
    request = parse_message(Fields(dict(HELLO) | {"tools": [TOOL]}), FakeModel())
    writing = MESSAGES.stream([request])
    [begin] = next(writing)
    assert begin["type"] == "message_start"
    said = [
        Thought("I "),
        Thought("see"),
        Content("So"),
        Call(0, "f", '{"x"'),
        Call(0, None, ":1}"),
    ]
    events = writing.send(Delta(said, (), Gain((), (), (), None), is_call_open=True))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "I "},
        {"type": "thinking_delta", "thinking": "see"},
        {"type": "text_delta", "text": "So"},
        {"type": "input_json_delta", "partial_json": '{"x"'},
        {"type": "input_json_delta", "partial_json": ":1}"},
    ]
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]


def test_the_stop_sequence_that_ended_it_is_told(client):
    told = client.messages.create(model="fake", stop_sequences=["x", "d"], **HELLO)
    assert (told.stop_reason, told.stop_sequence) == ("stop_sequence", "d")
    assert told.content[0].text == TEXT.partition("d")[0]


def test_a_dialogue_with_tools_is_read_as_openais(client, model):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "on it"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "five"}],
                    "is_error": True,
                },
                {"type": "text", "text": "next", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    client.messages.create(
        model="fake",
        max_tokens=5,
        system=system,
        messages=messages,
        tools=[TOOL],
        metadata={"user_id": "me"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_headers={"anthropic-beta": "some-beta-2030-01-01"},
        extra_body={
            "context_management": {"edits": []},
            "output_config": {"effort": "high"},
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.9,
        },
    )
    prompt, options = model.asked[0]
    assert prompt.startswith("Be short.|go|on it|Error: five|next|")
    assert (options["temperature"], options["top_k"], options["top_p"]) == (0.5, 3, 0.9)


def test_an_unknown_model_is_told_of_in_the_clients_own_form(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        client.models.retrieve("gpt")
    assert error.value.body["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_an_answer_is_held_to_a_format(client, model, field):
    asked = {"type": "json_schema", "schema": {"type": "object"}}
    body = {field: {"format": asked} if field == "output_config" else asked}
    client.messages.create(model="fake", extra_body=body, **HELLO)
    assert model.asked[0][1]["grammar"] == JsonSchema({"type": "object"})


@pytest.mark.parametrize(
    ("choice", "is_held"),
    [
        ({"type": "auto"}, True),
        ({"type": "none"}, False),
        ({"type": "any", "disable_parallel_tool_use": True}, True),
        ({"type": "tool", "name": "f"}, True),
    ],
)
def test_a_choice_of_tools_is_heeded(client, model, choice, is_held):
    client.messages.create(model="fake", tools=[TOOL], tool_choice=choice, **HELLO)
    prompt, options = model.asked[0]
    assert (options["grammar"] is not None) is is_held
    assert ("'name': 'f'" in prompt) is (choice["type"] != "none")


def test_tokens_are_counted_and_models_listed(client):
    told = client.messages.count_tokens(model="fake", messages=HELLO["messages"])
    assert told.input_tokens == client.messages.create(model="fake", **HELLO).usage.input_tokens
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").display_name == "fake"


def test_errors_are_anthropics(model):
    with listening(model, keys=(api_key("right"),)) as url:
        client = anthropic.Anthropic(base_url=url, api_key="right", max_retries=0)
        assert client.messages.create(model="fake", **HELLO).content
        bearer = anthropic.Anthropic(base_url=url, api_key=None, auth_token="right", max_retries=0)
        assert bearer.messages.create(model="fake", **HELLO).content
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(model="fake", **HELLO)
        with pytest.raises(anthropic.NotFoundError, match="not here"):
            client.messages.create(model="gpt", **HELLO)
        with pytest.raises(anthropic.BadRequestError) as error:
            client.messages.create(model="fake", max_tokens=5, messages=[])
        assert error.value.body["type"] == "error"
        assert error.value.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("max_tokens", None, "max_tokens"),
        ("messages", [{"role": "nobody", "content": "x"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": [{"type": "image"}]}], "content[0].type"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "content[0].text"),
        ("messages", [*HELLO["messages"], {"role": "assistant", "content": "x"}], "gone on with"),
        ("tools", [{"type": "web_search_20250305", "name": "w"}], "tools[0].type"),
        ("tool_choice", {"type": "every"}, "tool_choice.type"),
        ("stop_sequences", [""], "stop_sequences"),
        ("thinking", {"type": "deep"}, "thinking.type"),
        ("mcp_servers", [{}], "mcp_servers"),
        ("temprature", 1, "unknown field: temprature"),
    ],
)
def test_an_impossible_field_is_named(model, field, value, named):
    with serving(model) as client:
        answered = client.post(PATH, json=HELLO | {field: value})
    assert answered.status_code == 400
    assert named in answered.json()["error"]["message"]
    assert model.asked == []


class SayingInTurn(FakeModel):
    """One that has a text for each request."""

    context, ends = 2000, "stop"

    def __init__(self, *texts):
        super().__init__()
        self._texts = [*texts]

    def stream_tokens(self, token_ids, **options):
        text = self._texts.pop(0)
        self.steps = [(text, ("target",) * len(text))]
        return super().stream_tokens(token_ids, **options)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_clients_own_loop_runs_tools_until_the_model_answers(is_streamed):
    given = []

    @anthropic.beta_tool
    def f(x: int) -> str:
        """Do."""
        given.append(x)
        return f"did {x}"

    model = SayingInTurn(CALL, CALL.replace("1", "2"), "All done.")
    with listening(model) as url:
        client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)
        messages = client.beta.messages
        runner = messages.tool_runner(model="fake", tools=[f], stream=is_streamed, **HELLO)
        answer = runner.until_done()
    assert [plain(block) for block in answer.content] == [{"type": "text", "text": "All done."}]
    assert given == [1, 2]
    whole = ("hello", "did 1", "did 2")
    for number, (prompt, _) in enumerate(model.asked):
        assert [text in prompt for text in whole] == [at <= number for at in range(3)]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_a_thread_may_be_created_and_is_not_found_later(model, path):
    with serving(model) as client:

        def told(thread):
            return client.post(path, json={"model": "fake"} | HELLO | {"thread": thread})

        assert told({"type": "create"}).status_code == 200
        lost = told({"type": "continue", "previous_message_id": "msg_1"})
        assert lost.status_code == 404
        error = lost.json()["error"]
        assert error["type"] == "not_found_error"
        assert error["details"] == {"error_code": "thread_not_found"}
        for wrong in ("create", {"type": "fork"}, {"type": "create", "x": 1}):
            assert told(wrong).status_code == 400


def test_headers_of_a_key_that_disagree_are_refused(model):
    with serving(model, keys=(api_key("one"), api_key("two"))) as client:
        both = {"x-api-key": "one", "Authorization": "Bearer two"}
        assert client.post(PATH, json=HELLO, headers=both).status_code == 401
        same = {"x-api-key": "one", "Authorization": "Bearer one"}
        assert client.post(PATH, json=HELLO, headers=same).status_code == 200
        told = client.post(PATH, json=HELLO, headers={"Host": "evil.example"})
        assert (told.status_code, told.json()["error"]["type"]) == (403, "permission_error")
        told = client.post(f"{PATH}/batches", json={}, headers=same)
        assert told.status_code == 501
