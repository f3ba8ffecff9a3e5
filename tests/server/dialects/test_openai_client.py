"""The official `openai` package against a server of this machine, with the embedded model."""

import asyncio
import json
import signal
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("openai", reason="openai is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
import openai

from checkpoints import ROOT
from coordgen_rs import Model
from coordgen_rs.store.history.store import HistoryStore
from served import served
from steady_servers import steady_servers

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXT}]
SAMPLED = {"temperature": 1.3, "top_p": 0.9}


def client_of(url, key="any", kind=openai.OpenAI):
    return kind(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=600)


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
def url(bundle_of, template):
    options = ("--chat-template", str(template), "--api-key", "key", "--name", "embedded")
    with served(bundle_of("embedded", "fp32"), *options) as (process, url):
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0


def test_a_program_may_ask_forty_things_at_once(url):
    async def ask_all():
        async with client_of(url, "key", openai.AsyncOpenAI) as asking:
            ask = partial(asking.completions.create, model="embedded", max_tokens=2)
            return await asyncio.gather(*(ask(prompt=f"Hello {number}") for number in range(40)))

    assert len(asyncio.run(ask_all())) == 40


def test_a_chat_and_a_response_are_what_the_model_says_streamed_or_not(url, model):
    client, expected = (
        client_of(url, "key"),
        model.chat(MESSAGES, max_new_tokens=24, seed=5, **SAMPLED),
    )
    asked = {"model": "embedded", "messages": MESSAGES, "max_tokens": 24, "seed": 5, **SAMPLED}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == expected.stats.prompt_tokens
    *chunks, last = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    )
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (told, chunks[-1].choices[0].finish_reason) == (
        expected.text,
        answer.choices[0].finish_reason,
    )
    assert last.usage.prompt_tokens_details.cached_tokens > 0
    asked = {"model": "embedded", "instructions": "Be short.", "max_output_tokens": 24, **SAMPLED}
    asked |= {"input": TEXT, "extra_body": {"seed": 5}}
    assert client.responses.create(**asked).output_text == expected.text
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[-1].response.output_text == expected.text


def test_a_function_is_called_as_it_is_asked_for_streamed_or_not(url):
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    lamp = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}}
    function = {"name": "paint", "parameters": lamp | {"required": ["colour"]}}
    asked = {"model": "embedded", "messages": MESSAGES, "max_tokens": 60}
    asked |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    chats = client_of(url, "key").chat.completions
    [call] = chats.create(parallel_tool_calls=False, **asked).choices[0].message.tool_calls
    assert call.function.name == "paint"
    assert json.loads(call.function.arguments)["colour"] in ("red", "green")
    with chats.stream(parallel_tool_calls=False, **asked) as stream:
        [choice] = stream.until_done().get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == call.function.arguments


def requests_kept(folder):
    with closing(HistoryStore(folder, read_only=True)) as store:
        return [found.num_requests for found in store.namespaces()]


def test_a_kill_loses_no_finished_answer_and_the_next_server_goes_on(
    bundle_of, tmp_path, monkeypatch
):
    steady_servers(tmp_path, monkeypatch).set(stands_still=True)
    options = ("--history", str(tmp_path / "history"), "--name", "embedded")
    texts = []
    for _ in range(2):
        with served(bundle_of("embedded", "fp32"), *options) as (process, url):
            ask = partial(client_of(url).completions.create, model="embedded", prompt=TEXT)
            texts.append(ask(max_tokens=20).choices[0].text)
            next(iter(ask(max_tokens=800, stream=True, extra_body={"ignore_eos": True})))
            process.kill()
            process.wait(600)
    assert requests_kept(tmp_path / "history") == [2]
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
        ask = partial(client_of(url).completions.create, model="embedded", max_tokens=4)
        assert [ask(prompt=prompt).choices[0].text for prompt in prompts] == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        told = process.stderr.read()
    assert told.count("the history cannot be written") == 1
    assert "Traceback" not in told
    [kept] = requests_kept(tmp_path / "history")
    assert 0 < kept < len(prompts)
