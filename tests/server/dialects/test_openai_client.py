"""The official `openai` package against a server of this machine, with the embedded model."""

import asyncio
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("openai", reason="openai is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")
import openai

from checkpoints import ROOT
from coordgen_rs import Model
from coordgen_rs.store.history.store import HistoryStore
from served import served
from stalled import stall_servers

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXT}]
SAMPLED = {"temperature": 1.3, "top_p": 0.9, "seed": 5}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "own.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def model(bundle_of, template):
    with Model.open(bundle_of("embedded", "fp32"), chat_template=template) as model:
        yield model


@pytest.fixture(scope="module")
def client(bundle_of, template):
    options = ("--chat-template", str(template), "--api-key", "key", "--name", "embedded")
    with served(bundle_of("embedded", "fp32"), *options) as (process, url):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=600)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0


def test_a_program_may_ask_forty_things_at_once(client):
    async def ask_all():
        url, options = client.base_url, {"max_retries": 0, "timeout": 600}
        async with openai.AsyncOpenAI(base_url=url, api_key="key", **options) as asking:
            ask = partial(asking.completions.create, model="embedded", max_tokens=2)
            return await asyncio.gather(*(ask(prompt=f"{TEXT} {n}") for n in range(40)))

    assert len(asyncio.run(ask_all())) == 40


def chat(client, **options):
    return client.chat.completions.create(model="embedded", messages=MESSAGES, **options)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "seeded"])
def test_a_chat_is_what_the_model_says_streamed_or_not(client, model, options):
    expected = model.chat(MESSAGES, max_new_tokens=24, **options)
    answer = chat(client, max_tokens=24, **options)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens
    stream = chat(
        client, max_tokens=24, stream=True, stream_options={"include_usage": True}, **options
    )
    *chunks, last = list(stream)
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert told == expected.text
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason
    assert last.usage.completion_tokens == len(expected.token_ids)
    assert last.usage.prompt_tokens_details.cached_tokens > 0
    assert sum(chunks[-1].model_extra["coordgen"]["token_sources"].values()) == len(
        expected.token_ids
    )


def test_the_same_seed_gives_the_same_answer_whoever_asks_at_the_same_time(client, model):
    prompts = [f"{number}. {TEXT}" for number in range(2)]
    expected = [model.generate(text, max_new_tokens=12, **SAMPLED).text for text in prompts]

    def ask(prompt):
        body = {"model": "embedded", "prompt": prompt, "max_tokens": 12}
        return client.completions.create(**body, **SAMPLED).choices[0].text

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, prompts * 3)) == expected * 3


def test_a_right_prediction_is_accepted_and_changes_no_token(client, model):
    # Not asked before: an earlier answer would be drafted from instead.
    messages = [{"role": "user", "content": TEXT.upper()}]
    text = model.chat(messages, max_new_tokens=30).text
    ask = partial(client.chat.completions.create, model="embedded", messages=messages)
    predicted = ask(max_tokens=30, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0
    answer = ask(max_tokens=30)
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_errors_are_those_of_openai(client):
    with pytest.raises(openai.BadRequestError, match="n is 17") as refused:
        chat(client, n=17)
    assert (refused.value.param, refused.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="embedded", prompt=TEXT * 20)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert [model.id for model in client.models.list()] == ["embedded"]


def test_a_kill_loses_no_finished_answer_and_the_next_server_goes_on(
    bundle_of, tmp_path, monkeypatch
):
    stall_servers(tmp_path, monkeypatch)
    options = ("--history", str(tmp_path / "history"), "--name", "embedded")
    bundle = bundle_of("embedded", "fp32")
    texts = []
    for _ in range(2):
        with served(bundle, *options) as (process, url):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=600)
            ask = partial(client.completions.create, model="embedded", prompt=TEXT)
            texts.append(ask(max_tokens=20).choices[0].text)
            next(iter(ask(max_tokens=800, stream=True, extra_body={"ignore_eos": True})))
            process.kill()
            process.wait(600)
    with closing(HistoryStore(tmp_path / "history", read_only=True)) as store:
        assert [found.num_requests for found in store.namespaces()] == [2]
    assert texts[0] == texts[1]


def test_a_disk_that_is_full_costs_no_answer_and_is_told_once(bundle_of, tmp_path, model):
    resource = pytest.importorskip("resource", reason="no limits of processes here")
    prompts = [f"{number}. {TEXT}" for number in range(12)]
    expected = [model.generate(prompt, max_new_tokens=4).text for prompt in prompts]
    options = ("--history", str(tmp_path / "history"), "--name", "embedded")
    most = 100 << 10  # of any file

    def begin():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    with served(bundle_of("embedded", "fp32"), *options, begin=begin) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=600)
        ask = partial(client.completions.create, model="embedded", max_tokens=4)
        assert [ask(prompt=prompt).choices[0].text for prompt in prompts] == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        told = process.stderr.read()
    assert told.count("the history cannot be written") == 1
    assert "Traceback" not in told
    with closing(HistoryStore(tmp_path / "history", read_only=True)) as store:
        [kept] = store.namespaces()
        assert 0 < kept.num_requests < len(prompts)


def test_each_key_has_a_history_of_its_own(bundle_of, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice one\nbob two\n")
    options = ("--history", str(tmp_path / "history"), "--api-key-file", str(keys))
    with served(bundle_of("embedded", "fp32"), *options, "--name", "embedded") as (process, url):
        cached, steps = {}, {}
        for key in ("one", "one", "two"):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=600)
            answer = client.completions.create(model="embedded", prompt=TEXT, max_tokens=20)
            cached.setdefault(key, []).append(answer.usage.prompt_tokens_details.cached_tokens)
            steps.setdefault(key, []).append(answer.model_extra["coordgen"]["per_source"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
    assert cached["one"][1] > 0
    assert cached["two"] == [0]
    assert steps["two"][0]["recent"] == {"proposed": 0, "accepted": 0}
    with closing(HistoryStore(tmp_path / "history", read_only=True)) as store:
        found = {kept.namespace: kept.num_requests for kept in store.namespaces()}
    assert found == {"default/alice": 2, "default/bob": 1}


def test_a_function_is_called_as_it_is_asked_for_streamed_or_not(client):
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    lamp = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}}
    lamp["required"] = ["colour"]
    function = {"name": "paint", "description": "Paint the lamp", "parameters": lamp}
    tools = [{"type": "function", "function": function}]
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        asked = {"tools": tools, "tool_choice": choice, "max_tokens": 60}
        asked["parallel_tool_calls"] = False
        [call] = chat(client, **asked).choices[0].message.tool_calls
        assert call.function.name == "paint"
        assert json.loads(call.function.arguments)["colour"] in ("red", "green")
        with client.chat.completions.stream(model="embedded", messages=MESSAGES, **asked) as stream:
            for _ in stream:
                pass
            [choice_made] = stream.get_final_completion().choices
        assert choice_made.finish_reason == "tool_calls"
        assert choice_made.message.tool_calls[0].function.arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        asked_by = {"role": "assistant", "tool_calls": [call.model_dump()]}
        messages = [*MESSAGES, asked_by, result]
        answer = client.chat.completions.create(
            model="embedded", messages=messages, tools=tools, max_tokens=4
        )
        assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.3, "top_p": 0.9}], ids=["greedy", "seeded"]
)
def test_a_response_is_what_the_model_says_streamed_or_not(client, model, options):
    seed = {"extra_body": {"seed": 5, "coordgen": {"spans": True}}}
    sampled = options and options | {"seed": 5}
    expected = model.chat(MESSAGES, max_new_tokens=24, **sampled)
    asked = {"model": "embedded", "instructions": "Be short.", "max_output_tokens": 24}
    asked |= {"input": TEXT, "store": False} | options | seed
    response = client.responses.create(**asked)
    assert response.output_text == expected.text
    status = "incomplete" if expected.finish_reason == "length" else "completed"
    assert response.status == status
    assert response.usage.output_tokens == len(expected.token_ids)
    assert sum(end - start for start, end, _ in response.model_extra["coordgen"]["spans"]) == len(
        expected.text
    )
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        expected.text
    )
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[-1].type == f"response.{status}"
    assert events[-1].response.output_text == expected.text
    for wrong in ({"previous_response_id": "resp_1"}, {"store": True}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="not supported") as refused:
            client.responses.create(**asked | wrong)
        assert refused.value.param == next(iter(wrong))


def test_sigterm_does_not_wait_for_a_client_that_sends_half_a_request(bundle_of):
    with served(bundle_of("embedded", "fp32"), "--grace", "0") as (process, url):
        with socket.create_connection(url.removeprefix("http://").split(":")) as stalled:
            stalled.sendall(
                b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            assert stalled.recv(99).startswith(b"HTTP/1.1 100")  # the body is waited for
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0
        assert "Traceback" not in process.stderr.read()
