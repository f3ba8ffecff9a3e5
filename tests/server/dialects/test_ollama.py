"""Ollama's API: the official client against a fake model, whole and streamed."""

import json
from itertools import groupby
from types import SimpleNamespace

import pytest

pytest.importorskip("ollama", reason="ollama is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

import ollama

from coordgen_rs import JsonSchema
from coordgen_rs.errors import ChatTemplateError
from fake_model import STEPS, FakeModel, MarkedTokenizer
from fake_served import listening, serving

TEXT = "".join(text for text, _ in STEPS)
MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.fixture
def client(model):
    with listening(model) as url:
        yield ollama.Client(host=url)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_how_likely_tokens_were_is_told_whole_and_streamed(client, model, path):
    given = (MESSAGES,) if path == "chat" else ("hello",)

    def asked(**options):
        return getattr(client, path)("fake", *given, **options)

    whole = asked(logprobs=True, top_logprobs=2).logprobs
    assert "".join(one.token for one in whole) == TEXT
    assert {one.logprob for one in whole} == {-1.0}
    assert all(len(one.top_logprobs) == 2 for one in whole)
    parts = [part.logprobs or () for part in asked(logprobs=True, top_logprobs=2, stream=True)]
    assert [one for part in parts for one in part] == list(whole)
    assert all(one.top_logprobs == [] for one in asked(logprobs=True).logprobs)
    assert asked().logprobs is asked(logprobs=False, top_logprobs=0).logprobs is None
    with pytest.raises(ollama.ResponseError, match="needs logprobs: true"):
        asked(top_logprobs=2)


def test_what_an_open_model_is_made_of_is_shown(client, model):
    details = client.show("fake").details
    assert (details.family, details.families) == ("llama", ["llama"])
    assert details.quantization_level == "int8"
    kept = [SimpleNamespace(type=name, num_tensors=num) for name, num in (("F32", 3), ("Q4_K", 9))]
    model.manifest = SimpleNamespace(model=model.manifest.model, weights="kept", kept=kept)
    assert client.ps().models[0].details.quantization_level == "Q4_K"


@pytest.mark.parametrize("size", [1, 7, 400])
def test_text_and_calls_are_streamed_in_their_order(size):
    said = f"So {CALL} and {CALL}{CALL} end"
    cut = [said[i : i + size] for i in range(0, len(said), size)]
    with serving(FakeModel(steps=[(text, ("target",) * len(text)) for text in cut])) as client:
        body = {"messages": MESSAGES, "tools": [TOOL]}
        lines = client.post("/api/chat", json=body).text.splitlines()
    told = []
    for message in (json.loads(line)["message"] for line in lines):
        told += [message["content"]] if message["content"] else []
        told += [call["function"]["index"] for call in message.get("tool_calls", [])]
    joined = ["".join(map(str, parts)) for _, parts in groupby(told, type)]
    assert joined == ["So ", "0", "and ", "12", "end"]


def test_options_reach_the_model(client, model):
    options = {
        "num_predict": 7,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 5,
        "stop": ["d"],
        "repeat_penalty": 1.5,
        "num_ctx": 8192,
        "num_gpu": 99,
    }
    told = client.chat(
        "fake", MESSAGES, options=options, format="json", keep_alive="5m", think=True
    )
    assert (told.message.content, told.done_reason) == (TEXT.partition("d")[0], "stop")
    prompt, given = model.asked[0]
    assert prompt == "hello"
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop"):
        assert given[name] == options[name]
    assert (given["max_new_tokens"], given["repetition_penalty"]) == (7, 1.5)
    assert given["grammar"] == JsonSchema({"type": "object"})
    client.chat("fake", MESSAGES, options={"num_predict": -1}, format={"type": "array"})
    assert model.asked[1][1]["max_new_tokens"] == model.context
    assert model.asked[1][1]["grammar"] == JsonSchema({"type": "array"})


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_that_asks_nothing_opens_the_model_or_lets_it_go(model, path):
    with serving(model) as client:
        for keep_alive, reason in (
            *((None, "load"), ("5m", "load"), (-1, "load"), ("1h30m", "load")),
            *((0, "unload"), (0.0, "unload"), ("0", "unload"), ("0s", "unload")),
        ):
            told = client.post(path, json={"model": "fake", "keep_alive": keep_alive}).json()
            assert (told["done"], told["done_reason"]) == (True, reason)
        for field in (
            *({"keep_alve": 0}, {"keep_alive": "soon"}, {"options": {"top_l": 1}}),
            *({"template": "x"}, {"raw": {"a": 1}}, {"tools": 5}, {"think": "so"}),
        ):
            told = client.post(path, json={"model": "fake"} | field)
            assert told.status_code == 400
            [name] = field
            assert name in told.json()["error"]
    assert model.asked == []


@pytest.mark.parametrize("before", ["a(", ""])
def test_a_text_is_filled_in_before_a_suffix_where_the_model_can(client, model, before):
    model.tokenizer = MarkedTokenizer("[PREFIX]", "[SUFFIX]")
    assert "insert" in client.show("fake").capabilities
    assert client.generate("fake", before, suffix=")b").response == TEXT
    prompt, options = model.asked[0]
    assert prompt == f"[SUFFIX])b[PREFIX]{before}"
    assert {"[PREFIX]", "[SUFFIX]"} <= {*options["stop"]}


class Untemplated(FakeModel):
    @property
    def template_facts(self):
        raise ChatTemplateError("/home/somebody/model has no chat template, or a malformed one")


@pytest.mark.parametrize("has_template", [False, True])
def test_a_raw_text_needs_no_template_and_tells_no_path(has_template):
    model = Untemplated()
    model.has_chat_template = has_template
    with listening(model) as url:
        client = ollama.Client(host=url)
        if has_template:
            with pytest.raises(ollama.ResponseError, match="the server's log says why") as refused:
                client.generate("fake", "hello", raw=True)
            assert refused.value.status_code == 500
        else:
            assert client.generate("fake", "hello", raw=True).response == TEXT


@pytest.mark.parametrize("last_n", [64, -1])
def test_the_penalty_may_say_how_far_back_it_looks_where_it_does(client, model, last_n):
    client.chat("fake", MESSAGES, options={"repeat_penalty": 1.1, "repeat_last_n": last_n})
    assert model.asked[0][1]["repetition_penalty"] == 1.1
    with pytest.raises(ollama.ResponseError, match="repeat_last_n"):
        client.chat("fake", MESSAGES, options={"repeat_penalty": 1.1, "repeat_last_n": 32})


@pytest.mark.parametrize(
    ("name", "value"), [("repeat_penalty", 0), ("temperature", -1), ("top_p", 2), ("stop", 5)]
)
def test_options_are_refused_by_their_own_names(client, name, value):
    with pytest.raises(ollama.ResponseError, match=f"options.{name}"):
        client.chat("fake", MESSAGES, options={name: value})
