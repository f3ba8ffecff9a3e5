"""How likely tokens were, and what is asked of logits: with a fake model, on each endpoint."""

import json
import re
from itertools import accumulate, count

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from coordgen_rs.errors import GrammarError
from coordgen_rs.text.thinking import marks_of
from fake_model import STEPS, FakeModel, FakeSpelling, FakeTokenizer
from fake_served import refused, serving

TEXT = "".join(text for text, _ in STEPS)
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 100},
    RESPONSES: {"input": "hello"},
}
INCLUDED = {"include": ["message.output_text.logprobs"]}


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def client(model):
    with serving(model) as client:
        yield client


def chunks_of(client, path, body):
    response = client.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    data = [line for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in data]


def entry(token, logprob):
    return {"token": token, "logprob": logprob, "bytes": [*token.encode()]}


def expected_entries(num_alternatives):
    """What the fake model tells of its answer: alternatives, the last of which is impossible."""
    told = []
    for token in TEXT:
        top = [entry(chr(ord(token) + at), -0.5 * at) for at in range(1, num_alternatives)]
        if num_alternatives:
            top.append(entry(chr(ord(token) + 20), -9999.0))
        told.append(entry(token, -1.0) | {"top_logprobs": top})
    return told


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


@pytest.mark.parametrize("num_alternatives", [None, 0, 2, 20])
def test_a_chat_tells_each_token_once_streamed_or_not(client, model, num_alternatives):
    body = BODIES[CHAT] | {"logprobs": True, "top_logprobs": num_alternatives}
    expected = expected_entries(num_alternatives or 0)
    [choice] = client.post(CHAT, json=body).json()["choices"]
    assert choice["logprobs"] == {"content": expected, "refusal": None}
    assert model.asked[0][1]["logprobs"] == (num_alternatives or 0)
    chunks = chunks_of(client, CHAT, body)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for logprobs in told if logprobs for one in logprobs["content"]] == expected


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


def test_a_completion_has_lists_and_where_tokens_start(client):
    body = BODIES[COMPLETIONS] | {"logprobs": 2}
    [choice] = client.post(COMPLETIONS, json=body).json()["choices"]
    told = choice["logprobs"]
    assert told["tokens"] == [*TEXT]
    assert told["token_logprobs"] == [-1.0] * len(TEXT)
    assert told["text_offset"] == [*range(len(TEXT))]
    assert told["top_logprobs"][1] == {"c": -0.5, "v": -9999.0, "b": -1.0}
    chunks = chunks_of(client, COMPLETIONS, body)
    parts = [part for chunk in chunks if (part := chunk["choices"][0]["logprobs"])]
    for name, values in told.items():
        assert [value for part in parts for value in part[name]] == values


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


@pytest.mark.parametrize("num_alternatives", [None, 2])
def test_a_response_includes_them_in_its_text_and_events(client, num_alternatives):
    body = BODIES[RESPONSES] | INCLUDED | {"top_logprobs": num_alternatives}
    expected = expected_entries(num_alternatives or 0)
    [item] = client.post(RESPONSES, json=body).json()["output"]
    assert item["content"][0]["logprobs"] == expected
    events = chunks_of(client, RESPONSES, body)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [one for event in deltas for one in event["logprobs"]] == expected
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == expected


@pytest.mark.parametrize("path", BODIES)
def test_without_asking_nothing_is_told(client, model, path):
    told = client.post(path, json=BODIES[path]).json()
    choices = told.get("choices") or told["output"][0]["content"]
    assert not choices[0]["logprobs"]
    assert model.asked[0][1]["logprobs"] is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"104": -100, "5": 1.5}, {104: -100, 5: 1.5}),
        ([[104, -100], [5, False]], {104: -100, 5: float("-inf")}),
        ([["hé", 2]], {104: 2, 233: 2}),
        ({"hé": 2, "104": False}, {104: float("-inf"), 233: 2}),
        ({}, None),
        ([], None),
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_biases_in_all_forms_reach_the_model_by_id(client, model, path, given, expected):
    body = BODIES[path] | {"logit_bias": given, "presence_penalty": 0.5, "frequency_penalty": -2}
    assert client.post(path, json=body).status_code == 200
    options = model.asked[0][1]
    assert options["logit_bias"] == expected
    assert (options["presence_penalty"], options["frequency_penalty"]) == (0.5, -2)


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (CHAT, {"logprobs": "yes"}, "logprobs", "must be true or false, but is 'yes'"),
        (CHAT, {"logprobs": 1}, "logprobs", "must be true or false, but is 1"),
        (
            CHAT,
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "is 21, but must be at most",
        ),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "is -1, but must be at le"),
        (CHAT, {"logprobs": True, "top_logprobs": 1.5}, "top_logprobs", "must be an integer"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "is 2, but needs logprobs: true"),
        (COMPLETIONS, {"logprobs": True}, "logprobs", "must be an integer, but is True"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs", "is 21, but must be at most 20"),
        (COMPLETIONS, {"logprobs": 2, "top_logprobs": 2}, "top_logprobs", "not supported: here"),
        (RESPONSES, {"include": ["usage"]}, "include", "message.output_text.logprobs"),
        (RESPONSES, {"include": "all"}, "include", "must be a list"),
        (RESPONSES, {"top_logprobs": 2}, "top_logprobs", "is 2, but needs include"),
        (CHAT, {"presence_penalty": 2.5}, "presence_penalty", "is 2.5, but must be at most 2"),
        (CHAT, {"frequency_penalty": -3}, "frequency_penalty", "is -3, but must be at least -2"),
        (CHAT, {"frequency_penalty": "x"}, "frequency_penalty", "must be a number, but is 'x'"),
        (CHAT, {"logit_bias": 5}, "logit_bias", "must map token ids to numbers"),
        (CHAT, {"logit_bias": False}, "logit_bias", "but is False"),
        (
            CHAT,
            {"logit_bias": {"5": 101}},
            "logit_bias",
            "of token 5 must be -100 to 100, but is 1",
        ),
        (CHAT, {"logit_bias": {"5": True}}, "logit_bias", "of token 5 must be -100 to 100"),
        (CHAT, {"logit_bias": {"5": "x"}}, "logit_bias", "of token 5 must be -100 to 100"),
        (CHAT, {"logit_bias": {"": 1}}, "logit_bias", "names the token ''"),
        (CHAT, {"logit_bias": [[-1, 1]]}, "logit_bias", "names the token -1"),
        (CHAT, {"logit_bias": [[1.5, 1]]}, "logit_bias", "names the token 1.5"),
        (CHAT, {"logit_bias": [[True, 1]]}, "logit_bias", "names the token True"),
        (CHAT, {"logit_bias": [[1]]}, "logit_bias", "holds [1]"),
        (CHAT, {"logit_bias": ["ab"]}, "logit_bias", "holds 'ab'"),
        (CHAT, {"logit_bias": {"1114112": 1}}, "logit_bias", "names token 1114112, but the model"),
        (CHAT, {"logit_bias": {"9" * 40: 1}}, "logit_bias", "names token 4294967296"),
        (CHAT, {"logit_bias": [[1, 1]] * 1025}, "logit_bias", "has 1025 entries"),
        (CHAT, {"logit_bias": [["x" * 257, 1]]}, "logit_bias", "names the token 'xxx"),
    ],
)
def test_what_cannot_be_had_is_refused_by_field_value_and_remedy(
    client, model, path, fields, param, says
):
    error = refused(client.post(path, json=BODIES[path] | fields))
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert says in error["message"]
    assert model.asked == []
