"""What the server answers, byte for byte: each recorded request, and how it ends.

`COORDGEN_RECORD=1` writes the recordings anew. Answers may tell of earlier requests (drafts, cached
tokens): a new case stands at the end of the last group of its server, or changes others. What the
models of the server `scripted` say, by the end of the prompt, is in `models.json` beside them.

What is covered, by the sections of docs/server.md and docs/dialects.md:

| section | groups |
|---|---|
| Several models | models, ollama-models |
| Paths | routes, documents, models; each path that is refused, and other methods |
| The page | routes: headers, and the hash of the body |
| Fields of a request | completions, chat, grammars; each message of a refusal in `refused-*` |
| Several answers | completions (whole and streamed), keys (more than a client has places for) |
| Filling in | models |
| Thinking | thinking: tags, a prompt that opens them, channels |
| What comes with an answer | completions: spans, trees, token ids, usage, drafts |
| Logprobs | completions, chat, responses, ollama |
| Documents | documents, keys (without `--history`) |
| Tools | calls: all of `server/tools/formats.py`; chat: text beside calls, calls that are none |
| Many clients, Bad neighbours | bodies, keys; here: full queue, closed sockets |
| Its end | here: signals |
| Who may ask | keys: keys, hosts, origins |
| Errors | all statuses but 408, which takes 60 seconds |
| Anthropic | messages, refused-messages |
| Ollama | ollama, ollama-models, refused-ollama |
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import time
from contextlib import contextmanager
from functools import cache
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("llguidance", reason="the extra grammar is not installed")

from call_templates import TEMPLATES
from chat_checkpoint import TEMPLATE
from recorded_http import (
    RECORDED,
    REQUESTS,
    Case,
    Raw,
    answer_of,
    asked,
    difference,
    is_refused_alike,
    normalised,
    read_answer,
    read_recording,
    requests_of,
    rest_of,
    write_recording,
)
from scripted_bundles import scripted_bundle
from served import served
from steady_servers import steady_servers

IS_RECORDING = bool(os.environ.get("COORDGEN_RECORD"))
COMPLETIONS, MESSAGES, OLLAMA = "/v1/completions", "/v1/messages", "/api/chat"
SERVERS = {
    "embedded": [
        *("completions", "in-words", "routes", "documents", "bodies", "refused-completions"),
        "metrics",
    ],
    "scripted": [
        *("models", "chat", "grammars", "calls", "thinking", "responses", "messages", "ollama"),
        *("refused-chats", "refused-tools", "refused-grammars", "refused-responses"),
        *("refused-messages", "refused-ollama", "ollama-models"),
    ],
    "keys": ["keys"],
}
"""The groups of each server, in the order in which they are asked."""
GROUPS = {group: requests_of(group) for groups in SERVERS.values() for group in groups}
LIFE = "life"


@pytest.fixture(scope="module")
def switches(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield steady_servers(tmp_path_factory.mktemp("steady"), patch)


@pytest.fixture(scope="module")
def embedded(bundle_of, switches, tmp_path_factory):
    """The embedded model's bundle, called as it is built, and a chat template for it."""
    folder = tmp_path_factory.mktemp("embedded")
    shutil.copytree(bundle_of("embedded", "fp32"), folder / "embedded-fp32")
    (folder / "chat.jinja").write_text(TEMPLATE)
    return folder / "embedded-fp32"


@pytest.fixture(scope="module")
def scripted(switches, tmp_path_factory):
    """The models that say what they are told to, the first one first, and one that is none."""
    folder, bundles = tmp_path_factory.mktemp("scripted"), []
    for name, one in json.loads((REQUESTS / "models.json").read_text()).items():
        template = one.get("template")
        if template is None:
            template = "{%- set bos_token = '' -%}" + TEMPLATES[one["form"]]
        marks, ends = (tuple(one.get(kind, ())) for kind in ("marks", "ends"))
        bundles.append(scripted_bundle(folder, switches, name, one["said"], template, marks, ends))
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF")
    return [*bundles, broken]


@pytest.fixture(scope="module")
def answers(request, embedded, tmp_path_factory):
    """A function from a group to what its server answers, asked for all groups of it once."""

    @contextmanager
    def server(name):
        if name == "scripted":
            first, *others = request.getfixturevalue("scripted")
            options = [*map(str, others), "--draft", "plain", "--parallel", "1"]
        else:
            first, folder = embedded, tmp_path_factory.mktemp(name)
            options = ["--chat-template", str(first.parent / "chat.jinja")]
            if name == "embedded":  # several answers to a request: one after the other
                options += ["--metrics", "--history", str(folder), "--parallel", "1"]
            else:
                (folder / "keys").write_text("# name key\nalice 5f0c\nbob 91b2\n")
                options += ["--api-key-file", str(folder / "keys"), "--max-queue", "0"]
                options += ["--parallel", "4"]
                options += ["--allow-host", "chat.local", "--allow-origin", "https://chat.example"]
        with served(first, *options) as (_, url):
            yield url

    @cache
    def all_of(name):
        with server(name) as url:
            return {
                group: {case.name: answer_of(url, case) for case in GROUPS[group]}
                for group in SERVERS[name]
            }

    return lambda group: next(
        all_of(name)[group] for name, groups in SERVERS.items() if group in groups
    )


def checked(group, name, request, found):
    """Compare with the recording."""
    recorded = read_recording(RECORDED / f"{group}.txt").get(name)
    assert recorded is not None, f"{group}: {name!r} was never recorded ({request})"
    told = difference(recorded, found)
    assert told is None, f"{group}: {name!r} ({request}): {told}"


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_those_that_were_recorded(group, answers):
    names = [case.name for case in GROUPS[group]]
    assert sorted(names) == sorted({*names})
    if IS_RECORDING:
        write_recording(RECORDED / f"{group}.txt", answers(group))
    assert [*read_recording(RECORDED / f"{group}.txt")] == names
    for case in GROUPS[group]:
        line = case.written().split(b"\r\n")[0].decode()
        checked(group, case.name, line, answers(group)[case.name])


def test_each_recording_and_each_file_of_requests_is_of_a_group():
    assert {path.stem for path in RECORDED.iterdir()} <= {*GROUPS, LIFE, "asked"}
    assert {path.stem for path in REQUESTS.glob("*.jsonl")} == {*GROUPS, "asked"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{"id":"cmpl-0123456789abcdef01234567"}', '{"id":"cmpl-<1>"}'),
        ('{"id":"cmpl-0123456789abcdef0123456"}', None),
        ('{"id":"call_1"}', None),
        (
            '["call_0123456789abcdef01234567","call_1123456789abcdef01234567",'
            '"call_0123456789abcdef01234567"]',
            '["call_<1>","call_<2>","call_<1>"]',
        ),
        ('{"created":1764000000,"n":1764000000}', '{"created":"<seconds>","n":1764000000}'),
        ('{"created":17640000}', None),
        ('{"created":null}', None),
        ('{"created_at":"2026-11-29T21:30:51.123456Z"}', '{"created_at":"<time>"}'),
        ('{"created_at":"2026-11-29 21:30:51"}', None),
        ('{"prompt_ms":0.25,"prompt_n":3}', '{"prompt_ms":"<ms>","prompt_n":3}'),
        ('{"prompt_ms":null,"mean_itl_ms":"1"}', None),
        ('{"seed":7}', None),
        ('{"seed":123456789012}', '{"seed":"<drawn>"}'),
        ("date: Sun, 29 Nov 2026 21:30:51 GMT", "date: <date>"),
        ("date: 2026-11-29", None),
        ("coordgen_steps_total 4\ncoordgen_queue_seconds_total 0.5", "coordgen_steps_total 4\n"
         "coordgen_queue_seconds_total <seconds>"),
        ('[-0.25,-2.5e-07,0.5]', '["~-0.2500","~-0.0000",0.5]'),
        ('{"finish_reason":"stop","prompt_tokens":12,"tokens_per_step":1.5}', None),
    ],
)  # fmt: skip
def test_what_differs_from_run_to_run_is_replaced_and_nothing_else(said, told):
    assert normalised(said) == (said if told is None else told)


def test_a_byte_that_changes_is_seen_and_the_message_names_request_and_place():
    group, name = "completions", "greedy, streamed"
    recorded = read_recording(RECORDED / f"{group}.txt")[name]
    checked(group, name, "a request", recorded)
    for at in range(0, len(recorded), 97):
        found = recorded[:at] + chr(ord(recorded[at]) ^ 1) + recorded[at + 1 :]
        with pytest.raises(AssertionError, match=r"greedy, streamed.*a request.*line \d+, from"):
            checked(group, name, "a request", found)
    for found in (recorded + "x\n", recorded.replace("data: [DONE]\n\n", "")):
        assert difference(recorded, found) is not None
    assert difference('"~-1.2345"', '"~-1.2346"') is None
    assert difference('"~-1.2345"', '"~-1.2445"') is not None


OF_MODEL = {
    **{"completions": 1, "grammars": 20},
    **{"routes": 13, "bodies": 8, "in-words": 0, "chat": 9, "messages": 0, "ollama": 1},
    **{"refused-completions": 9, "refused-chats": 1, "refused-tools": 6, "refused-grammars": 16},
    **{"refused-responses": 0, "refused-messages": 1, "refused-ollama": 2, "responses": 0},
}
"""How many answers of a group are the model's own: of its name, tokens, template and grammars."""


@pytest.mark.parametrize("group", OF_MODEL)
def test_refusals_of_a_fake_model_are_those_of_a_real_one(model, client, group):
    model.context, recorded = 1024, read_recording(RECORDED / f"{group}.txt")
    others = [
        case.name
        for case in GROUPS[group]
        if not isinstance(case, Raw)  # HTTP itself is not here
        and not {*case.headers} & {"Content-Length", "Transfer-Encoding"}
        and not is_refused_alike(client, case, recorded[case.name])
    ]
    assert len(others) == OF_MODEL[group], others


LONG = {"prompt": [5] * 396, "max_tokens": 12, "ignore_eos": True, "stream": True}
"""Stands still, or fails, after some tokens."""
WHOLE = LONG | {"stream": False}
HELLO = {"messages": [{"role": "user", "content": "x"}]}
METRICS, HEALTH = Case("", "GET", "/metrics"), Case("", "GET", "/health")


@contextmanager
def begun(url, body):
    """A request whose answer has begun to come: the connection, the answer, what was read of it."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(asked("", COMPLETIONS, body).written())
        with http.client.HTTPResponse(client, method="POST") as response:
            response.begin()
            yield client, response, response.readline()


@contextmanager
def sent(url, body):
    """A request of which nothing is read; its connection."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(asked("", COMPLETIONS, body).written())
        yield client


MADE = re.compile(r"^(coordgen_(?:steps|tokens_predicted)_total) \d+$", re.MULTILINE)
"""What a request had made when it was noticed that its client had gone."""


def counts(url):
    """What the server has counted."""
    return answer_of(url, METRICS)


def until(url, line):
    """Wait until the server counts this."""
    while f"\ncoordgen_{line}\n" not in counts(url):
        time.sleep(0.01)


def seen_by(url):
    """Return when the server has seen what was done before, such as a socket that was closed."""
    for _ in range(2):
        answer_of(url, HEALTH)


def line_with(process, words):
    """The next line on stderr, which holds these words."""
    line = process.stderr.readline()
    assert words in line
    return line


def end_of(process, url):
    """What a server says at its end, and its exit code."""
    code = process.wait(600)
    said = process.stderr.read()
    assert "Traceback" not in said
    return f"{said.replace(url, '<url>')}exit code {code}\n"


@pytest.fixture(scope="module")
def live(embedded, switches):
    """A function that starts a server which stands still at 400 tokens."""

    @contextmanager
    def started(*options):
        switches.set(stands_still=True)
        template = str(embedded.parent / "chat.jinja")
        common = ("--metrics", "--draft", "plain", "--parallel", "1", "--chat-template", template)
        try:
            with served(embedded, *common, *options) as (process, url):
                yield process, url
        finally:
            switches.set()

    return started


def closed_sockets(live, switches):
    """One stream runs, another waits, a third finds no place; then both clients go away."""
    with live("--max-queue", "1") as (_, url), begun(url, LONG) as (client, response, _):
        with sent(url, LONG):
            until(url, "requests_deferred 1")
            yield answer_of(url, asked("", COMPLETIONS, WHOLE))
            yield answer_of(url, asked("", MESSAGES, HELLO | {"max_tokens": 1}))
            yield answer_of(url, asked("", OLLAMA, HELLO))
            yield counts(url)
        until(url, "requests_deferred 0")
        yield counts(url)
        response.close()
        client.close()
        seen_by(url)
        switches.set()
        until(url, "requests_processing 0")
        yield re.sub(MADE, r"\1 <as far as it came>", counts(url))
        yield answer_of(url, asked("", COMPLETIONS, WHOLE))


def failing_steps(live, switches):
    """A step fails: of an answer that comes whole, of streams, and what stands behind them."""
    with live() as (_, url):
        switches.set(fails=True)
        yield answer_of(url, asked("", COMPLETIONS, WHOLE))
        yield answer_of(url, asked("", COMPLETIONS, LONG))
        until(url, "requests_processing 0")
        yield counts(url)
        switches.set()
        yield answer_of(url, asked("", COMPLETIONS, WHOLE))


def a_first_signal(live, switches):
    """A stream runs to its end, new requests are refused."""
    with live("--grace", "3600") as (process, url), begun(url, LONG) as (_, response, line):
        process.send_signal(signal.SIGTERM)
        yield line_with(process, "draining")
        yield answer_of(url, HEALTH)
        yield answer_of(url, asked("", COMPLETIONS, WHOLE))
        yield answer_of(url, asked("", MESSAGES, HELLO | {"max_tokens": 1}))
        yield answer_of(url, asked("", OLLAMA, HELLO))
        switches.set()
        yield rest_of(response, read=line)
        yield end_of(process, url)


def a_second_signal(live, switches):
    """A stream ends with an error at once."""
    with live("--grace", "3600") as (process, url), begun(url, LONG) as (_, response, line):
        process.send_signal(signal.SIGINT)
        yield line_with(process, "draining")
        process.send_signal(signal.SIGINT)
        yield rest_of(response, read=line)
        yield end_of(process, url)


def a_signal_without_grace(live, switches):
    """An answer that would come whole is an error, one that waits, too."""
    with live("--grace", "0") as (process, url), sent(url, WHOLE) as runs:
        until(url, "requests_processing 1")
        with sent(url, LONG) as waits:
            until(url, "requests_deferred 1")
            process.send_signal(signal.SIGTERM)
            yield read_answer(runs)
            yield read_answer(waits)
        switches.set()
        yield end_of(process, url)


def a_signal_to_a_server_that_answers_nothing(live, switches):
    """It ends."""
    with live() as (process, url):
        process.send_signal(signal.SIGINT)
        yield end_of(process, url)


SCENES = (
    closed_sockets,
    failing_steps,
    a_first_signal,
    a_second_signal,
    a_signal_without_grace,
    a_signal_to_a_server_that_answers_nothing,
)


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_left_behind_is_what_was_recorded(scene, live, switches):
    name = scene.__name__.replace("_", " ")
    found = "---\n".join(scene(live, switches))
    path = RECORDED / f"{LIFE}.txt"
    if IS_RECORDING:
        write_recording(path, (read_recording(path) if path.exists() else {}) | {name: found})
    checked(LIFE, name, scene.__doc__, found)
