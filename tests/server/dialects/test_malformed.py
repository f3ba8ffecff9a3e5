"""Whatever a body holds, it is answered or refused by name, and the server goes on.

    NUM_ODD=7500 pytest tests/server/dialects/test_malformed.py

sends 15,000 bodies of odd values, and those of other properties.
"""

import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from fake_model import FakeModel
from fake_served import serving

NUM_ODD = int(os.environ.get("NUM_ODD", "100"))
NAMES, WHOLE, FIELDS = json.loads(Path(__file__).with_name("malformed.json").read_text()).values()
"""Of fields; requests that are answered; fields that each are taken somewhere, but may contradict
each other, or the rest of a request."""
PATHS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"),
    *("/apply-template", "/v1/messages", "/v1/messages/count_tokens", "/api/chat"),
    *("/api/generate", "/api/show"),
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
    pair=st.lists(
        st.sampled_from(FIELDS), min_size=2, max_size=2, unique_by=lambda field: field[0]
    ),
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
