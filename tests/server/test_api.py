"""The server's paths over a fake model: shapes, fields, refusals, and who may ask."""

import base64
import hashlib
import json
import re
from http.client import HTTPConnection
from importlib.resources import files

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from coordgen_rs import JsonSchema, Lark, Regex
from coordgen_rs.errors import BundleError, ChatTemplateError, NonFiniteLogitsError
from coordgen_rs.server.dialects import fields as bodies
from coordgen_rs.server.guard import api_key
from coordgen_rs.server.metrics import Family, exposition
from fake_model import STEPS, FakeModel, FakeSpelling, FakeTokenizer
from fake_served import listening, refused, serving

TEXT = "".join(text for text, _ in STEPS)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def client(model):
    with serving(model, with_metrics=True) as client:
        yield client


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/v1/models"])
def test_a_long_head_is_refused_in_the_form_of_its_dialect(client, path):
    for headers in ({"X": "x" * 17000}, {f"X-{i}": "x" * 1000 for i in range(17)}):
        response = client.get(path, headers=headers)
        assert (response.status_code, response.headers["connection"]) == (431, "close")
        assert "16,384" in str(response.json()["error"])
    assert client.get(path, headers={"X": "x" * 15000}).status_code != 431


def events_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, end = response.text.split("\n\n")
    assert end == ""
    return [event.removeprefix("data: ") for event in events]


def test_a_chat_is_answered_in_openais_form(client, model):
    told = client.post(CHAT, json=HELLO | {"model": "fake", "max_tokens": 9}).json()
    assert told["object"] == "chat.completion"
    assert told["id"].startswith("chatcmpl-")
    [choice] = told["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == len(TEXT)
    assert told["usage"]["total_tokens"] == told["usage"]["prompt_tokens"] + len(TEXT)
    details = told["usage"]["completion_tokens_details"]
    assert details == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 2,
    }
    assert told["timings"]["draft_n"] == 3
    assert told["metrics"]["speculative_decoding"]["num_spec_steps"] == 3
    assert "spans" not in told["coordgen"]
    assert model.asked[0][1]["max_new_tokens"] == 9


def test_a_stream_has_the_same_text_in_whole_steps(client):
    *events, end = events_of(client.post(CHAT, json=HELLO | {"stream": True}))
    chunks = [json.loads(event) for event in events]
    assert end == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta.get("content") for delta in deltas[1:-1]] == [text for text, _ in STEPS]
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_comes_last_where_it_is_asked_for(client):
    body = HELLO | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = [json.loads(event) for event in events_of(client.post(CHAT, json=body))[:-1]]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(TEXT)


def test_spans_cover_text_and_tokens_streamed_or_not(client):
    body = HELLO | {"coordgen": {"spans": True}, "return_token_ids": True}
    whole = client.post(CHAT, json=body).json()
    assert whole["coordgen"]["spans"] == [
        [0, 1, "target"],
        [1, 2, "prediction"],
        [2, 3, "target"],
        [3, 4, "automaton"],
        [4, 5, "target"],
    ]
    assert whole["choices"][0]["token_ids"] == [*map(ord, TEXT)]
    events = events_of(client.post(CHAT, json=body | {"stream": True}))[1:-2]
    for name in ("spans", "token_spans"):
        spans = [span for event in events for span in json.loads(event)["coordgen"][name]]
        assert spans == whole["coordgen"][name]
    steps = [json.loads(event)["coordgen"]["step"] for event in events]
    assert steps == [{"rows": 4, "drafted": 3, "accepted": accepted} for accepted in (0, 1, 1)]
    ids = [i for event in events for i in json.loads(event)["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("prompt", ["hello", ["hello"], [104, 101, 108, 108, 111]])
def test_a_completion_takes_one_text_or_its_tokens(client, model, prompt):
    told = client.post(COMPLETIONS, json={"prompt": prompt, "stop": "d"}).json()
    assert (told["object"], told["choices"][0]["text"]) == ("text_completion", "Äbc")
    assert told["choices"][0]["finish_reason"] == "stop"
    assert (model.asked[0][0], model.asked[0][1]["max_new_tokens"]) == ("hello", 16)
    body = {"prompt": prompt, "stream": True}
    chunks = [json.loads(event) for event in events_of(client.post(COMPLETIONS, json=body))[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT


def test_every_option_reaches_the_model(client, model):
    alike = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 2**64 - 1,
        "stop": ["x", "y"],
        "ignore_eos": True,
    }
    body = (
        HELLO
        | alike
        | {
            "max_completion_tokens": 7,
            "cache_prompt": False,
            "prediction": {"type": "content", "content": [{"type": "text", "text": "so"}]},
            "coordgen": {"drafts": False},
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {"enable_thinking": False},
            "user": "me",
        }
    )
    answered = client.post(CHAT, json=body)
    assert answered.status_code == 200, answered.text
    prompt, options = model.asked[0]
    assert "'name': 'f'" in prompt
    assert isinstance(options.pop("grammar"), Lark)  # that of the tools
    assert options.pop("special_tokens") == ("<tool_call>", "</tool_call>")
    assert prompt.endswith("enable_thinking")
    assert options == alike | {
        "max_new_tokens": 7,
        "reuse_prefix": False,
        "prediction": "so",
        "drafts": False,
        "trees": False,
        "namespace": None,
        "logit_bias": None,
        "logprobs": None,
        "on_read": None,
    }


def test_what_says_what_happens_anyway_is_taken(client, model):
    body = HELLO | {
        "n": 1,
        "logprobs": False,
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "response_format": {"type": "text"},
        "temperature": None,
        "tools": [],
        "tool_choice": "auto",
        "store": False,
    }
    answered = client.post(CHAT, json=body)
    assert answered.status_code == 200, answered.text
    assert model.asked[0][1]["temperature"] == 0
    assert model.asked[0][1]["max_new_tokens"] == model.context


@pytest.mark.parametrize(
    ("field", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, JsonSchema({"type": "object"})),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}},
                }
            },
            JsonSchema({}),
        ),
        ({"coordgen": {"regex": "a+"}}, Regex("a+")),
        ({"coordgen": {"lark": 'start: "a"'}}, Lark('start: "a"')),
    ],
)
def test_what_the_answer_is_held_to_reaches_the_model(client, model, field, grammar):
    assert client.post(CHAT, json=HELLO | field).status_code == 200
    assert model.asked[0][1]["grammar"] == grammar


def test_a_seed_is_drawn_for_sampling_and_told(client, model):
    told = [client.post(CHAT, json=HELLO | {"temperature": 1}).json() for _ in range(2)]
    seeds = [one["coordgen"]["seed"] for one in told]
    assert seeds == [options["seed"] for _, options in model.asked]
    assert seeds[0] != seeds[1]
    assert client.post(CHAT, json=HELLO).json()["coordgen"]["seed"] is None


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("n", 0, "n"),
        ("n", True, "n"),
        ("logit_bias", {"5": 101}, "logit_bias"),
        ("presence_penalty", 2.5, "presence_penalty"),
        ("logprobs", 1, "logprobs"),
        ("temperature", -1, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", 1.5, "top_p"),
        ("top_p", 0, "top_p"),
        ("top_p", 1e-60, "top_p"),
        ("top_k", -2, "top_k"),
        ("seed", -2, "seed"),
        ("seed", 1.5, "seed"),
        ("max_tokens", 0, "max_tokens"),
        ("stop", [""], "stop"),
        ("stop", ["x"] * 17, "stop"),
        ("stop", "x" * 257, "stop"),
        ("stream", "yes", "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("response_format", {"type": "xml"}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema.schema"),
        ("response_format", {"json_schema": {}}, "response_format.json_schema"),
        ("response_format", "json", "response_format"),
        ("coordgen", {"regex": "a", "lark": 'start: "a"'}, "coordgen.lark"),
        ("tool_choice", "required", "tool_choice"),
        ("tools", ["f"], "tools[0]"),
        ("tools", "f", "tools"),
        ("tools", [{"type": "retrieval"}], "tools[0].type"),
        ("tools", [{"function": {"name": "größe"}}], "tools[0].function.name"),
        ("tools", [{"function": {"name": "f"}}] * 2, "tools"),
        ("tools", [{"function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
        ("tool_choice", {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ("tool_choice", {"type": "custom", "name": "f"}, "tool_choice.type"),
        ("tool_choice", {"type": "allowed_tools"}, "tool_choice.allowed_tools.mode"),
        ("tool_choice", "any", "tool_choice"),
        ("parallel_tool_calls", 1, "parallel_tool_calls"),
        ("prediction", {"type": "content", "content": 5}, "prediction.content"),
        ("prediction", "so", "prediction"),
        ("reasoning_effort", "lots", "reasoning_effort"),
        ("reasoning_format", "xml", "reasoning_format"),
        ("tempreature", 1, "tempreature"),
        ("coordgen", {"trees": 1}, "coordgen.trees"),
        ("messages", [], "messages"),
        ("messages", "hello", "messages"),
        ("messages", [{"content": "x"}], "messages[0]"),
        ("messages", [{"role": "user"}], "messages[0].content"),
        (
            "messages",
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
        ),
    ],
)
def test_an_impossible_field_is_named(client, model, field, value, param):
    error = refused(client.post(CHAT, json=HELLO | {field: value}))
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param.split(".")[-1] in error["message"]
    assert model.asked == []


def test_two_limits_that_disagree_are_refused(client):
    error = refused(client.post(CHAT, json=HELLO | {"max_tokens": 3, "max_completion_tokens": 4}))
    assert error["param"] == "max_tokens"


@pytest.mark.parametrize("prompt", [None, 5, ["a", "b"], [[1], [2]], {}, [1.5], [True], [-1]])
def test_a_prompt_that_is_none_is_refused(client, prompt):
    error = refused(client.post(COMPLETIONS, json={"prompt": prompt}))
    assert "prompt" in error["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a":', b"\xff", b'{"seed": NaN}', b'"\\ud800"'])
def test_a_body_that_is_no_json_object_is_refused(client, body):
    assert "the body" in refused(client.post(CHAT, content=body))["message"]


def test_a_body_has_a_limit(client, monkeypatch):
    monkeypatch.setattr(bodies, "MOST_BODY_BYTES", 100)
    assert refused(client.post(CHAT, content=b" " * 101), 413)["code"] == "body_too_large"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_that_is_too_long_has_openais_code(client, is_streamed):
    body = {"messages": [{"role": "user", "content": "x" * 201}], "stream": is_streamed}
    error = refused(client.post(CHAT, json=body))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    error = refused(client.post(COMPLETIONS, json={"prompt": "x" * 201}))
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/srv/m x/b has no chat template: give one (--chat-template FILE)", "the model has no"),
        ("/srv/t.jinja cannot be applied: roles alternate", "the chat template cannot be applied:"),
        (r"C:\m\t.jinja is malformed in line 2: x", "the chat template is malformed in line 2: x"),
        ("/srv/m/t.json: chat_template is 5, expected text", "the chat template cannot be read"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/apply-template"])
def test_no_path_of_the_servers_machine_is_told(client, model, monkeypatch, path, said, told):
    def refuse(*args, **more):
        raise ChatTemplateError(said)

    monkeypatch.setattr(model, "chat_prompt", refuse)
    body = HELLO if path == "/apply-template" else HELLO | {"stream": False}
    body |= {"max_tokens": 5} if path == "/v1/messages" else {}
    response = client.post(path, json=body)
    assert (response.status_code, told in response.text) == (400, True), response.text
    assert all(part not in response.text for part in ("srv", "C:", "Model.open"))


def test_a_failure_that_names_a_path_is_told_by_its_kind_and_logged(client, model, caplog):
    model.fails_at["hello"] = BundleError("/srv/models/a.onnx is damaged")
    error = refused(client.post(CHAT, json=HELLO), 500)
    assert ("BundleError" in error["message"], "srv" in error["message"]) == (True, False)
    assert "/srv/models/a.onnx" in caplog.text


def test_the_name_of_a_model_is_one_label_whatever_it_holds():
    empty = Family("y", "gauge", "None.", {})
    told = Family("x", "counter", "All.", {"z": 1}, "y")
    text = exposition({'a"b\\c\nd': [told, empty], "e": [told]})
    labels = ('model="a\\"b\\\\c\\nd",y="z"', 'model="e",y="z"')
    samples = "".join(f"x{{{one}}} 1\n" for one in labels)
    assert text == f"# HELP x All.\n# TYPE x counter\n{samples}"


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/messages", "/api/chat", "/v1/documents"])
def test_a_compressed_body_is_refused_by_its_header(client, path):
    for coding in ("gzip", "br", "gzip, identity"):
        response = client.post(path, content=b"\x1f\x8b", headers={"Content-Encoding": coding})
        assert (response.status_code, "Content-Encoding" in response.text) == (415, True)
        assert response.headers["accept-encoding"] == "identity"
    headers = {"Content-Encoding": "identity"}
    assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200


def test_what_the_template_refuses_is_told(client):
    body = {"messages": [{"role": "nobody", "content": ""}]}
    for path in (CHAT, "/apply-template"):
        assert "nobody" in refused(client.post(path, json=body))["message"]


def test_what_nobody_expects_is_told_and_logged_by_its_type_alone(client, monkeypatch, caplog):
    def fail(self, text, *, special_tokens):
        raise KeyError(text)

    monkeypatch.setattr(FakeTokenizer, "encode", fail)
    told = refused(client.post("/tokenize", json={"content": "a secret"}), 500)
    assert told["message"] == "internal error: KeyError"
    assert "internal error: KeyError" in caplog.text
    assert "a secret" not in caplog.text


def test_a_step_that_fails_is_an_error_and_the_next_request_works(client, model, caplog):
    model.fails_at = {"hello": NonFiniteLogitsError("row 0"), "secret": KeyError("a secret")}
    assert refused(client.post(CHAT, json=HELLO), 500)["type"] == "server_error"
    first, *_, last = events_of(client.post(CHAT, json=HELLO | {"stream": True}))
    assert json.loads(first)["choices"][0]["delta"]["role"] == "assistant"
    assert json.loads(last)["error"]["message"] == "row 0"
    told = refused(client.post(COMPLETIONS, json={"prompt": "secret"}), 500)
    assert told["message"] == "internal error: KeyError"
    assert caplog.text.count("internal error: KeyError") == 1
    assert "a secret" not in caplog.text
    assert client.post(COMPLETIONS, json={"prompt": "x"}).json()["choices"][0]["text"] == TEXT


def test_models_and_health(client):
    [listed] = client.get("/v1/models").json()["data"]
    assert listed == client.get("/v1/models/fake").json()
    assert (listed["id"], listed["object"], listed["context_length"]) == ("fake", "model", 200)
    assert listed["recommended"] == {"temperature": 0.6}
    assert listed["step_us"]["4"] == {"base": 1500.0, "per_token": 0.5}
    assert client.get("/health").json() == client.get("/v1/health").json() == {"status": "ok"}
    assert refused(client.get("/v1/models/gpt"), 404)["code"] == "model_not_found"
    assert refused(client.post(CHAT, json=HELLO | {"model": "gpt"}), 404)["param"] == "model"
    assert refused(client.get("/v2"), 404)["type"] == "not_found_error"
    refused(client.get(CHAT), 405)


def test_tokens_there_and_back(client):
    assert client.post("/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
    special = client.post("/tokenize", json={"content": "a", "add_special": True}).json()
    assert special == {"tokens": [1, 97]}
    pieces = client.post("/tokenize", json={"content": "a", "with_pieces": True}).json()
    assert pieces == {"tokens": [{"id": 97, "piece": "a"}]}
    assert client.post("/detokenize", json={"tokens": [97, 98]}).json() == {"content": "ab"}
    assert client.post("/apply-template", json=HELLO).json() == {"prompt": "hello"}
    assert refused(client.post("/tokenize", json={}))["param"] == "content"
    assert refused(client.post("/detokenize", json={"tokens": [-1]}))["param"] == "tokens"
    for wrong in (1.5, "a", None, True, [1], 2**62):
        for path, field in (("/detokenize", "tokens"), (COMPLETIONS, "prompt")):
            error = refused(client.post(path, json={field: [97, wrong]}))
            assert error["param"] == field
            assert not any(word in error["message"] for word in ("float64", "object", "shape"))


def test_a_token_that_is_no_text_alone_is_told_by_its_bytes(client, monkeypatch):
    spelt = {97: b" rainbow", 98: b"\xc3"}
    monkeypatch.setattr(FakeSpelling, "bytes_of", lambda _, token: spelt[token])
    told = client.post("/tokenize", json={"content": "ab", "with_pieces": True}).json()["tokens"]
    assert [it["piece"] for it in told] == [" rainbow", [0xC3]]


def test_metrics_count_by_source_and_are_there_only_if_asked_for(client, model):
    client.post(CHAT, json=HELLO)
    text = client.get("/metrics").text
    assert 'coordgen_requests_total{outcome="finished"} 1\n' in text
    assert f"coordgen_tokens_predicted_total {len(TEXT)}\n" in text
    assert 'coordgen_spec_decode_num_accepted_tokens_total{source="prediction"} 1\n' in text
    with serving(model) as other:
        refused(other.get("/metrics"), 404)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil", "", "["),
        *("evil.example@localhost", "localhost/evil", "localhost?evil", "localhost#evil"),
    ],
)
def test_an_unknown_host_is_refused(client, host):
    assert refused(client.get("/health", headers={"Host": host}), 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80", "10.0.0.1"]
)
def test_addresses_and_localhost_are_known(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/health", 200),
        ("HTTP://127.0.0.1:1/v1/models?x=1", 200),
        ("http://localhost", 200),
        ("http://localhost/v1/nothing", 404),
        ("http://evil.example/health", 403),
        ("ftp://localhost/health", 404),
    ],
)
def test_a_request_may_name_the_whole_url(model, target, status):
    with listening(model) as url:
        connection = HTTPConnection(url.removeprefix("http://"), timeout=600)
        connection.request("GET", target, headers={"Connection": "close"})
        assert connection.getresponse().status == status
        connection.close()


def test_a_page_from_elsewhere_may_not_ask_unless_it_is_allowed(client, model):
    there = {"Origin": "https://chat.example"}
    assert refused(client.post(CHAT, json=HELLO, headers=there), 403)["code"]
    assert model.asked == []
    own = {"Origin": "http://localhost:8080"}
    answered = client.post(CHAT, json=HELLO, headers=own)
    assert answered.status_code == 200
    assert "access-control-allow-origin" not in answered.headers
    for origin in ("null", "", "http://[", "http://localhost:8081", "http://localhost:8080.evil"):
        refused(client.get("/health", headers={"Origin": origin}), 403)
    allowed = {"origins": ("https://chat.example",), "keys": (api_key("k"),), "hosts": ("box",)}
    with serving(model, **allowed) as other:
        asked = there | {"Access-Control-Request-Method": "POST", "Host": "box"}
        told = other.options(CHAT, headers=asked)
        assert told.headers["access-control-allow-origin"] == "https://chat.example"
        asked |= {"Access-Control-Request-Private-Network": "true"}  # Chromium's, of public pages
        told = other.options(CHAT, headers=asked)
        assert (told.status_code, told.text) == (200, "OK")
        assert told.headers["access-control-allow-private-network"] == "true"
        for status, headers in ((401, {}), (403, {"Host": "evil.example"})):
            told = other.get("/v1/models", headers=there | headers)
            assert told.status_code == status
            assert told.headers["access-control-allow-origin"] == "https://chat.example"


def test_a_key_is_asked_for_everywhere_but_for_health(model):
    with serving(model, keys=(api_key("right"),)) as client:
        assert client.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            for path in ("/v1/models", "/metrics", "/nope"):
                error = refused(client.get(path, headers=headers), 401)
                assert error["type"] == "authentication_error"
                assert all(way in error["message"] for way in ("Bearer KEY", "x-api-key: KEY"))
            refused(client.post(CHAT, json=HELLO, headers=headers), 401)
        assert model.asked == []
        right = {"Authorization": "Bearer right"}
        assert client.post(CHAT, json=HELLO, headers=right).status_code == 200


def test_each_name_of_a_key_is_a_namespace(model):
    keys = (api_key("one", "a"), api_key("two", "a"), api_key("three"))
    with serving(model, keys=keys, namespace_by_key=True, namespace="base") as client:
        for key in ("one", "two", "three"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200
        two_headers = [("Authorization", "Bearer one"), ("Authorization", "Bearer three")]
        refused(client.post(CHAT, json=HELLO, headers=two_headers), 401)
    namespaces = [options["namespace"] for _, options in model.asked]
    assert namespaces == ["base/a", "base/a", f"base/{keys[2].name}"]
    with serving(model, keys=keys) as client:
        client.post(CHAT, json=HELLO, headers={"Authorization": "Bearer one"})
    assert model.asked[-1][1]["namespace"] is None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_is_given_as_openai_gives_it(is_streamed):
    said = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    model = FakeModel(steps=[(text, ("target",) * len(text)) for text in ("So", "... ", said)])
    model.ends = "stop"
    body = HELLO | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    with serving(model) as client:
        answered = client.post(CHAT, json=body | {"stream": is_streamed})
        plain = client.post(CHAT, json=HELLO).json()["choices"][0]
    assert plain["message"]["content"] == f"So... {said}"
    assert plain["finish_reason"] == "stop"
    if is_streamed:
        choices = [json.loads(event)["choices"][0] for event in events_of(answered)[:-1]]
        deltas = [choice["delta"] for choice in choices]
        content = "".join(delta.get("content", "") for delta in deltas)
        [calls] = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert calls[0].pop("index") == 0
        reason = choices[-1]["finish_reason"]
    else:
        [choice] = answered.json()["choices"]
        content, calls = choice["message"]["content"], choice["message"]["tool_calls"]
        reason = choice["finish_reason"]
    assert (content, reason) == ("So... ", "tool_calls")
    assert calls[0].pop("id").startswith("call_")
    assert calls == [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]


def test_a_template_that_knows_no_tools_gets_them_as_text(client, model):
    model.reads_tools = False
    body = HELLO | {"tools": [{"type": "function", "function": {"name": "f"}}]}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt.startswith("You may call functions")
    assert client.post("/apply-template", json=HELLO).json()["prompt"] == "hello"


def test_calls_and_results_are_part_of_a_dialogue(client):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "five"}
    body = {"messages": [*HELLO["messages"], asked, result]}
    assert client.post(CHAT, json=body).status_code == 200
    call["function"]["arguments"] = 5
    param = refused(client.post(CHAT, json=body))["param"]
    assert param == "messages[1].tool_calls[0].function.arguments"


def test_trees_are_given_where_they_are_asked_for(client):
    body = HELLO | {"coordgen": {"trees": True}}
    steps = client.post(CHAT, json=body).json()["coordgen"]["steps"]
    events = events_of(client.post(CHAT, json=body | {"stream": True}))[1:-2]
    assert [json.loads(event)["coordgen"]["step"] for event in events] == steps
    assert steps[1]["tree"] == {
        "token_ids": [1, ord("b"), 2],
        "texts": ["\x01", "b", "\x02"],
        "parents": [0, 0, 0],
        "sources": ["target", "prediction", "target"],
        "accepted": [1],
        "target": {"token_id": ord("c"), "text": "c"},
    }


def test_the_page_is_one_file_that_asks_nobody_else(model):
    with serving(model, keys=(api_key("secret"),)) as client:
        page = client.get("/")
    assert page.status_code == 200
    assert "secret" not in page.text
    marked = files("coordgen_rs.server").joinpath("page_parts/vendor/marked.min.js").read_text()
    assert marked in page.text
    ours = page.text.replace(marked, "")  # whose text names its home and has a function `url`
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", ours)
    for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert banned not in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for kind in ("script", "style"):
        content = re.search(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
