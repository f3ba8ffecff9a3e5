"""Anthropic's Messages API: the official client against a fake model, whole and streamed."""

import pytest

pytest.importorskip("anthropic", reason="anthropic is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

import anthropic

from fake_model import FakeModel
from fake_served import listening

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
