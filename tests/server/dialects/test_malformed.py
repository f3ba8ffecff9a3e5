"""Whatever a body holds, it is answered or refused by name, and the server goes on.

    NUM_ODD=7500 pytest tests/server/dialects/test_malformed.py

sends 15,000 bodies of odd values, and those of other properties.
"""

import os
from urllib.parse import quote

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from fake_model import FakeModel
from fake_served import serving

NUM_ODD = int(os.environ.get("NUM_ODD", "100"))
PATHS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"),
    *("/apply-template", "/v1/messages", "/v1/messages/count_tokens", "/api/chat"),
    *("/api/generate", "/api/show"),
]
NAMES = [
    *("messages", "prompt", "model", "stream", "stream_options", "max_tokens"),
    *("max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "seed", "stop", "prediction", "chat_template_kwargs", "tools"),
    *("tool_choice", "n", "logprobs", "top_logprobs", "logit_bias", "presence_penalty"),
    *("frequency_penalty", "include", "response_format", "coordgen", "trees", "input"),
    *("instructions", "text", "format", "function", "name", "parameters", "tool_calls"),
    *("arguments", "return_token_ids", "content", "tokens", "role", "type", "include_usage"),
    *("spans", "drafts", "user", "best_of", "echo", "suffix", "n_predict", "repeat_penalty"),
    *("grammar", "json_schema", "guided_json", "guided_choice", "structured_outputs", "json"),
    *("choice", "schema", "reasoning", "reasoning_effort", "reasoning_format", "effort"),
    *("add_special", "with_pieces", "system", "thinking", "budget_tokens", "stop_sequences"),
    *("output_config", "input_schema", "tool_use_id", "id", "is_error", "options"),
    *("num_predict", "repeat_last_n", "keep_alive", "think", "raw", "images"),
]

words = st.sampled_from(
    ["", "user", "text", "content", "fake", "auto", "tool_use", "tool_result", "x", "日", "\x00"]
)
plain = st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats(0, 3) | words
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)
good = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.just([{"role": "user", "content": "hello"}]),
        "prompt": st.just("hello"),
        "input": st.just("hello"),
        "content": st.just("hello"),
        "tokens": st.just([104]),
        "stream": st.booleans(),
    },
)
bodies = st.builds(
    lambda base, changed: base | changed,
    good,
    st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
)


FUNCTION = {
    "name": "weather",
    "description": "Tells it.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": FUNCTION}]
SAID = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "so",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
]
SAMPLED = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 1}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repeat_penalty": 1.1}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": FUNCTION["parameters"], "strict": True},
}
WHOLE = [
    (
        "/v1/chat/completions",
        {"messages": SAID, "tools": TOOLS, "tool_choice": "auto", "stream": True}
        | {"parallel_tool_calls": False, "max_tokens": 4, "reasoning_effort": "low"},
    ),
    (
        "/v1/chat/completions",
        {"messages": SAID[:2], "logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": -1}
        | {"logit_bias": {"104": 1.5}, "stop": ["x", "y"], **SAMPLED, **PENALTIES},
    ),
    (
        "/v1/chat/completions",
        {"messages": SAID[:2], "response_format": FORMAT, "stream": True}
        | {"stream_options": {"include_usage": True}, "coordgen": {"spans": True, "drafts": False}},
    ),
    (
        "/v1/completions",
        {"prompt": "hello", "echo": True, "best_of": 1, "n": 1, "max_tokens": 2}
        | {"suffix": None, "prediction": {"type": "content", "content": "hello"}},
    ),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}
        | {"instructions": "Be short.", "tools": [{"type": "function", **FUNCTION}]}
        | {"tool_choice": {"type": "function", "name": "weather"}, "stream": True}
        | {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "store": False},
    ),
    (
        "/v1/messages",
        {"model": "fake", "max_tokens": 3, "system": [{"type": "text", "text": "Be short."}]}
        | {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
        | {"tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}]}
        | {"tool_choice": {"type": "any"}, "stop_sequences": ["x"], "stream": True}
        | {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}},
    ),
    (
        "/v1/messages/count_tokens",
        {
            "model": "fake",
            "messages": [{"role": "user", "content": "hello"}],
            "system": "Be short.",
        },
    ),
    (
        "/api/chat",
        {"model": "fake", "messages": SAID[:1], "tools": TOOLS, "format": "json", "think": False}
        | {"options": {"num_predict": 3, "stop": ["x"], **SAMPLED}, "keep_alive": "5m"},
    ),
    (
        "/api/generate",
        {"model": "fake", "prompt": "hello", "system": "Be short.", "raw": False, "images": []}
        | {"format": FUNCTION["parameters"], "options": {"num_ctx": 100}, "suffix": ""},
    ),
    ("/api/show", {"model": "fake", "verbose": True}),
    ("/tokenize", {"content": "hello", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [104, 101]}),
    ("/apply-template", {"messages": SAID[:2], "chat_template_kwargs": {"a": 1}}),
]
CHOICE = {"type": "function", "function": {"name": "weather"}}
NEVER = [["a", False], ["b", False], ["yes", False]]
FIELDS = [
    *(("guided_choice", ["a", "b"]), ("guided_regex", "a+"), ("grammar", 'root ::= "yes"')),
    *(("response_format", FORMAT), ("response_format", {"type": "json_object"})),
    *(("tools", TOOLS), ("tools", []), ("tool_choice", "required"), ("tool_choice", CHOICE)),
    *(("tool_choice", "none"), ("parallel_tool_calls", True), ("logit_bias", NEVER)),
    *(("n", 3), ("best_of", 2), ("stream", True), ("logprobs", True), ("logprobs", 2)),
    *(("top_logprobs", 3), ("echo", True), ("suffix", "end"), ("stop", ["a"]), ("stop", "yes")),
    *(("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1), ("temperature", 2), ("seed", -1)),
    *(("reasoning_effort", "high"), ("reasoning_format", "none"), ("cache_prompt", False)),
    *(("chat_template_kwargs", {"enable_thinking": True}), ("return_token_ids", True)),
    *(("prediction", {"type": "content", "content": "yes"}), ("format", "json")),
    *(("coordgen", {"regex": "b+", "trees": True}), ("coordgen", {"spans": True})),
    *(("think", True), ("raw", True), ("keep_alive", 0), ("thinking", {"type": "disabled"})),
    *(("prompt", ["hello", "you"]), ("prompt", [104]), ("messages", []), ("input", [])),
]
"""Each is taken somewhere; two of them may contradict each other, or the rest of a request."""
GET_PATHS = ["/v1/models", "/v1/models/fake", "/api/tags", "/api/version", "/api/ps", "/health"]


def places(value):
    """Where in JSON something stands, the whole of it left out: paths of names and numbers."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in inside:
        yield (name,)
        if isinstance(item, dict | list):
            yield from ((name, *rest) for rest in places(item))


def changed(value, place, to):
    """The same JSON with something else in a place; ... leaves it out."""
    copy = value.copy()
    name, *rest = place
    if rest:
        copy[name] = changed(copy[name], rest, to)
    elif to is ...:
        del copy[name]
    else:
        copy[name] = to
    return copy


odd = st.sampled_from(
    [
        *(..., "", "\x00", "日" * 3, -1, 0, 2**64, -(2**70), 1e308, -0.0, True, None, [], {}),
        *([[]], [{}], {"type": "text"}, {"": ""}, ["a", 1], "a" * 5000, [None] * 50, {"$ref": "#"}),
    ]
)
one_change = st.sampled_from(WHOLE).flatmap(
    lambda asked: st.tuples(
        st.just(asked), st.sampled_from([*places(asked[1])]), st.one_of(odd, values)
    )
)


@pytest.fixture(scope="module")
def client():
    model = FakeModel()
    model.context = 1000
    with serving(model) as client:
        yield client


def check(response):
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code == 200:
        assert '"error":{' not in response.text, response.text
    if response.status_code != 200:
        error = response.json()["error"]
        if isinstance(error, dict):
            assert error["type"] in ("invalid_request_error", "not_found_error")
            error = error["message"]
        assert error


@settings(deadline=None, max_examples=NUM_ODD)
@given(path=st.sampled_from(PATHS), body=bodies)
def test_a_malformed_field_never_breaks_the_server(client, path, body):
    check(client.post(path, json=body))


@settings(deadline=None)
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60) | st.text(max_size=60))
def test_a_body_that_is_no_json_never_breaks_the_server(client, path, body):
    content = body.encode() if isinstance(body, str) else body
    check(client.post(path, content=content))


@settings(deadline=None, max_examples=NUM_ODD)
@given(asked=one_change)
def test_one_odd_value_in_a_whole_request_never_breaks_the_server(client, asked):
    (path, body), place, to = asked
    check(client.post(path, json=changed(body, place, to)))


@settings(deadline=None, max_examples=NUM_ODD)
@given(
    asked=st.sampled_from(WHOLE[:10]),
    pair=st.lists(st.sampled_from(FIELDS), min_size=2, max_size=2, unique_by=lambda it: it[0]),
)
def test_fields_that_do_not_go_together_never_break_the_server(client, asked, pair):
    path, body = asked
    check(client.post(path, json=body | dict(pair)))


@pytest.mark.parametrize(("path", "body"), WHOLE)
def test_the_whole_requests_are_answered(client, path, body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text


@settings(deadline=None)
@given(path=st.sampled_from([*PATHS, *GET_PATHS]), query=st.text(max_size=20), name=words)
def test_odd_queries_and_methods_never_break_the_server(client, path, query, name):
    for response in (
        client.get(path, params={"q": query}),
        client.get(f"{path}/{quote(name)}"),
        client.delete(path),
        client.options(path),
    ):
        assert response.status_code in (200, 400, 404, 405), response.text
