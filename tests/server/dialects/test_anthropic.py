"""Anthropic's Messages API: the official client against a fake model, whole and streamed."""

import pytest

pytest.importorskip("anthropic", reason="anthropic is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

import anthropic

from fake_model import FakeModel
from fake_served import listening, serving

HELLO = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"name": "f", "description": "do", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
PATH = "/v1/messages"


@pytest.fixture
def client(model):
    with listening(model) as url:
        yield anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)


def plain(block):
    told = block.model_dump(exclude_none=True)
    if told["type"] == "tool_use":
        assert told.pop("id").startswith("toolu_")
    return told


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
