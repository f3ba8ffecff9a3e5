"""Ollama's API: the official client against a fake model, whole and streamed."""

import json
from itertools import groupby
from types import SimpleNamespace

import pytest

pytest.importorskip("ollama", reason="ollama is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import ollama

from coordgen_rs import JsonSchema
from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.model.answer import Gain
from coordgen_rs.server.dialects.fields import Fields
from coordgen_rs.server.dialects.ollama import CHAT, parse_chat
from coordgen_rs.server.dialects.reader import Delta
from coordgen_rs.server.guard import api_key
from coordgen_rs.server.tools.calls import Call, Content, Thought
from coordgen_rs.text.thinking import marks_of
from fake_model import STEPS, FakeModel, MarkedTokenizer
from fake_served import listening, serving

TEXT = "".join(text for text, _ in STEPS)
MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def client(model):
    with listening(model) as url:
        yield ollama.Client(host=url)


@pytest.mark.parametrize("name", ["fake", "fake:latest"])
def test_a_chat_is_the_same_whole_and_streamed(client, name):
    whole = client.chat(name, MESSAGES)
    assert (whole.message.role, whole.message.content) == ("assistant", TEXT)
    assert (whole.model, whole.done, whole.done_reason) == ("fake", True, "length")
    assert (whole.prompt_eval_count, whole.eval_count) == (5, len(TEXT))
    assert isinstance(whole.total_duration, int)
    *parts, last = client.chat(name, MESSAGES, stream=True)
    assert [part.message.content for part in parts] == [text for text, _ in STEPS]
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.message.content) == (True, "length", "")
    assert last.eval_count == len(TEXT)


def test_a_text_is_generated_by_the_template_or_raw(client, model):
    assert client.generate("fake", "hello", system="Be short.").response == TEXT
    *parts, last = client.generate("fake", "hello", raw=True, stream=True)
    assert "".join(part.response for part in parts) == TEXT
    assert last.done
    assert [prompt for prompt, _ in model.asked] == ["Be short.|hello", "hello"]


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


def test_a_stream_is_the_default_and_a_line_an_object(model):
    with serving(model) as client:
        told = client.post("/api/chat", json={"model": "fake", "messages": MESSAGES})
    assert told.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["done"] for line in told.text.splitlines()] == [False] * 3 + [True]


def test_a_call_is_an_object_whole_and_streamed():
    steps = [(text, ("target",) * len(text)) for text in ("So", "... ", CALL)]
    with listening(FakeModel(steps=steps)) as url:
        client = ollama.Client(host=url)
        whole = client.chat("fake", MESSAGES, tools=[TOOL])
        parts = [*client.chat("fake", MESSAGES, tools=[TOOL], stream=True)]
    assert whole.message.content == "So... "
    [call] = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", {"x": 1})
    assert [part.message.tool_calls for part in parts if part.message.tool_calls] == [[call]]
    assert "".join(part.message.content for part in parts) == "So... "


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


def test_thoughts_are_told_apart_and_the_parts_of_a_call_put_together():
    request = parse_chat(Fields({"messages": MESSAGES, "tools": [TOOL]}), FakeModel())
    writing = CHAT.stream([request])
    assert next(writing) == []
    said = [Thought("hm"), Content("So"), Call(0, "f", '{"x"'), Call(0, None, ": 1}")]
    lines = writing.send(Delta(said, (), Gain((), (), (), None), is_call_open=False))
    thought, text, called = (line["message"] for line in lines)
    [call] = called["tool_calls"]
    assert (thought["thinking"], text["content"]) == ("hm", "So")
    assert call["function"] == {"index": 0, "name": "f", "arguments": {"x": 1}}


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


def test_a_dialogue_with_calls_and_results_is_read(client, model):
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "five", "tool_name": "f"},
    ]
    client.chat("fake", messages, tools=[TOOL])
    assert model.asked[0][0].startswith("hello||five|")


def test_models_are_listed_and_described(client):
    assert [one.model for one in client.list().models] == ["fake:latest"]
    shown = client.show("fake:latest")
    assert "tools" in shown.capabilities
    assert shown.modelinfo["coordgen.context_length"] == 200
    assert [one.model for one in client.ps().models] == ["fake:latest"]
    assert client.generate("fake").done_reason == "load"
    assert client.chat("fake").done_reason == "load"


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


@pytest.mark.parametrize("given", [0, False, [], {}])
def test_a_prompt_that_is_no_text_is_refused_though_it_is_nothing(model, given):
    with serving(model) as client:
        told = client.post("/api/generate", json={"prompt": given})
        assert (told.status_code, "prompt must be" in told.text) == (400, True)


def test_a_model_that_thinks_is_told_to(model):
    for thinking, capabilities in ((None, set()), (marks_of("</think>"), {"thinking"})):
        model.template_facts = model.template_facts._replace(thinking=thinking)
        with serving(model) as client:
            shown = client.post("/api/show", json={"model": "fake"}).json()
        assert {*shown["capabilities"]} == {"completion", "tools"} | capabilities


@pytest.mark.parametrize("limit", [0, -1, -2])
def test_a_limit_that_is_none_is_as_many_tokens_as_fit(client, model, limit):
    client.chat("fake", MESSAGES, options={"num_predict": limit})
    assert model.asked[0][1]["max_new_tokens"] == model.context


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


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda client: client.chat("gpt", MESSAGES), 404),
        (lambda client: client.chat("fake", MESSAGES, options={"temperature": -1}), 400),
        (lambda client: client.chat("fake", MESSAGES, options={"mirostat": 2}), 400),
        (lambda client: client.chat("fake", MESSAGES, options={"num_predict": -3}), 400),
        (lambda client: client.generate("fake", "x", template="y"), 400),
        (lambda client: client.generate("fake", "x", suffix="y"), 400),
        (lambda client: client.generate("fake", "x", suffix="y", system="z"), 400),
        (lambda client: client.embed("fake", "x"), 501),
        (lambda client: client.embeddings("fake", "x"), 501),
        (lambda client: client.pull("fake"), 501),
        (lambda client: client.delete("fake"), 501),
        (lambda client: client.copy("fake", "other"), 501),
    ],
)
def test_what_cannot_be_is_refused_in_ollamas_form(client, model, ask, status):
    with pytest.raises(ollama.ResponseError) as error:
        ask(client)
    assert error.value.status_code == status
    assert error.value.error
    assert model.asked == []


def test_an_image_is_refused_by_name(model):
    with serving(model) as client:
        body = {"messages": [MESSAGES[0] | {"images": ["aGk="]}]}
        told = client.post("/api/chat", json=body)
        assert (told.status_code, list(told.json())) == (400, ["error"])
        assert "messages[0].images" in told.json()["error"]
        told = client.post("/v1/embeddings", json={"input": "x"})
        assert (told.status_code, told.json()["error"]["code"]) == (501, "unsupported_path")
        assert client.get("/api/version").json()["version"].count(".") == 2


def test_keys_and_hosts_are_asked_for(model):
    with serving(model, keys=(api_key("k"),)) as client:
        assert client.post("/api/chat", json={"messages": MESSAGES}).status_code == 401
        assert client.get("/api/tags").status_code == 401
        told = client.get("/api/tags", headers={"Host": "evil.example"})
        assert (told.status_code, list(told.json())) == (403, ["error"])
