"""Whatever a body holds, it is answered or refused by name, and the server goes on."""

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from fake_model import FakeModel
from fake_served import serving

PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/show",
]
NAMES = [
    "messages",
    "prompt",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "prediction",
    "chat_template_kwargs",
    "tools",
    "tool_choice",
    "n",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "include",
    "response_format",
    "coordgen",
    "trees",
    "input",
    "instructions",
    "text",
    "format",
    "function",
    "name",
    "parameters",
    "tool_calls",
    "arguments",
    "return_token_ids",
    "content",
    "tokens",
    "role",
    "type",
    "text",
    "include_usage",
    "spans",
    "drafts",
    "user",
    "best_of",
    "echo",
    "suffix",
    "n_predict",
    "repeat_penalty",
    "grammar",
    "json_schema",
    "guided_json",
    "guided_choice",
    "structured_outputs",
    "json",
    "choice",
    "schema",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "effort",
    "add_special",
    "with_pieces",
    "system",
    "thinking",
    "budget_tokens",
    "stop_sequences",
    "output_config",
    "schema",
    "input_schema",
    "tool_use_id",
    "id",
    "is_error",
    "options",
    "num_predict",
    "repeat_penalty",
    "repeat_last_n",
    "keep_alive",
    "think",
    "raw",
    "images",
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


@pytest.fixture(scope="module")
def client():
    with serving(FakeModel()) as client:
        yield client


def check(response):
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        if isinstance(error, dict):
            assert error["type"] in ("invalid_request_error", "not_found_error")
            error = error["message"]
        assert error


@settings(deadline=None, max_examples=150)
@given(path=st.sampled_from(PATHS), body=bodies)
def test_a_malformed_field_never_breaks_the_server(client, path, body):
    check(client.post(path, json=body))


@settings(deadline=None)
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60) | st.text(max_size=60))
def test_a_body_that_is_no_json_never_breaks_the_server(client, path, body):
    content = body.encode() if isinstance(body, str) else body
    check(client.post(path, content=content))
