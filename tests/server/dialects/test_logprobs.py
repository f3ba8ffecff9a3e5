"""How likely tokens were, and what is asked of logits: with a fake model, on each endpoint."""

import json
import re
from itertools import accumulate, count

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.errors import GrammarError
from coordgen_rs.text.thinking import marks_of
from fake_model import FakeModel, FakeSpelling, FakeTokenizer
from fake_served import serving

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 100},
    RESPONSES: {"input": "hello"},
}
INCLUDED = {"include": ["message.output_text.logprobs"]}


def chunks_of(client, path, body):
    response = client.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    data = [line for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in data]


class PlacedModel(FakeModel):
    """Tells of each token its place in the answer, as if that were how likely it is."""

    def _steps(self, *asked):
        places = count()
        for step in super()._steps(*asked):
            told = tuple(one._replace(logprob=float(next(places))) for one in step.logprobs)
            yield step._replace(logprobs=told)


TOOL = {"name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "So"}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 5, 400])
@pytest.mark.parametrize(
    "marked",
    [
        "<think>\nYes, so <b>\n</think>\n\n«Yes <b>.»",
        f"«So »{CALL}",
        CALL,
        f"<think>So</think>«So »{CALL} «and»",
        '«{"a": 1} »<tool_call>{"name": "f", "arguments": {"b": {"a": 1} }}\n',
        '«[1]\n»<tool_call>\n{"name": "f", "arguments": {"x": [1]\n}}\n</tool_call>',
    ],
)
@pytest.mark.parametrize("unfollowed", [{}, {"": GrammarError("no")}], ids=["held", "free"])
def test_only_the_tokens_of_the_content_are_told(marked, size, unfollowed):
    parts = re.split("[«»]", marked)  # every other one is content
    starts = [0, *accumulate(map(len, parts))]
    content = [at for i in range(1, len(parts), 2) for at in range(starts[i], starts[i + 1])]
    said = "".join(parts)
    model = PlacedModel(steps=[(s, ("target",) * len(s)) for s in _cut(said + "\2", size)])
    model.template_facts = model.template_facts._replace(thinking=marks_of("</think>"))
    model.unfollowed = unfollowed
    function = {"type": "function"}
    with serving(model) as client:
        body = BODIES[CHAT] | {"logprobs": True, "tools": [function | {"function": TOOL}]}
        [choice] = client.post(CHAT, json=body).json()["choices"]
        chunks = [chunk["choices"][0] for chunk in chunks_of(client, CHAT, body)]
        body = BODIES[RESPONSES] | INCLUDED | {"tools": [function | TOOL]}
        output = client.post(RESPONSES, json=body).json()["output"]
        events = chunks_of(client, RESPONSES, body)
    lists = [one["logprobs"]["content"] for one in (choice, *chunks) if one["logprobs"]]
    whole, streamed = lists[: bool(choice["logprobs"])], lists[bool(choice["logprobs"]) :]
    written = [part.get("logprobs", []) for item in output for part in item.get("content", [])]
    told = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    for found in (whole, streamed, written, told):
        places = [one["logprob"] for entries in found for one in entries if one["token"] != "\2"]
        assert places == content


def _cut(said, size):
    return [said[i : i + size] for i in range(0, len(said), size)]


def test_tokens_come_with_their_step_though_their_text_is_held_back(client):
    body = BODIES[CHAT] | {"logprobs": True, "stop": "bcx"}
    chunks = chunks_of(client, CHAT, body)
    said = [
        (
            chunk["choices"][0]["delta"].get("content"),
            [
                one["token"]
                for one in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            ],
        )
        for chunk in chunks
    ]
    assert said == [("", []), ("Ä", ["Ä"]), (None, ["b", "c"]), ("bcd日", ["d", "日"]), (None, [])]


class InParts(FakeSpelling):
    """Some tokens are parts of characters; two have one text."""

    def bytes_of(self, token_id):
        parts = {"b": b"\xf0\x9f", "c": b" \xf0", "v": b"\x98", "d": b"same", "e": b"same"}
        return parts.get(chr(token_id)) or super().bytes_of(token_id)


def test_tokens_of_a_completion_that_are_no_characters_are_told_apart(client, monkeypatch):
    monkeypatch.setattr(FakeTokenizer, "spelling", InParts())
    body = BODIES[COMPLETIONS] | {"logprobs": 2}
    [choice] = client.post(COMPLETIONS, json=body).json()["choices"]
    told = choice["logprobs"]
    assert told["tokens"] == ["Ä", r"bytes:\xf0\x9f", r"bytes: \xf0", "same", "日"]
    likely, part, impossible = r"bytes: \xf0", r"bytes:\xf0\x9f", r"bytes:\x98"
    assert told["top_logprobs"][1] == {likely: -0.5, impossible: -9999.0, part: -1.0}
    assert told["top_logprobs"][3]["same"] == told["token_logprobs"][3] == -1.0
