"""What one client sends neither stops another's requests nor keeps memory."""

import asyncio
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.responses import JSONResponse

from coordgen_rs.errors import GrammarError
from coordgen_rs.server import guard
from coordgen_rs.server.app import make_app
from coordgen_rs.server.dialects import fields as bodies
from coordgen_rs.server.guard import Access, api_key
from coordgen_rs.server.models import answering
from coordgen_rs.text.grammar.limits import is_wanted
from coordgen_rs.text.token_bytes import TokenBound
from fake_model import STEPS, FakeModel, FakeTokenizer
from fake_served import ask, fake_models
from served import served

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TEXT = "".join(text for text, _ in STEPS)
TOO_LONG = "hello world " * 200


@pytest.fixture(scope="module")
def server(bundle_of):
    with served(bundle_of("embedded", "fp32"), "--api-key", "k") as (_, url):
        yield url


@pytest.mark.parametrize(
    ("key", "status", "num_bytes"), [("k", 413, 7_200_000), ("x", 401, 8_500_000)]
)
def test_who_sends_a_body_to_its_end_reads_why_it_is_refused(server, key, status, num_bytes):
    body, headers = b'{"prompt": "x"}', {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(  # which urllib has closed behind it
        f"{server}{COMPLETIONS}", data=b" " * num_bytes + body, headers=headers
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=600)
    assert refused.value.code == status
    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=600)
    for more, expected in ((num_bytes, status), (0, 200 if key == "k" else 401)):
        connection.request("POST", COMPLETIONS, b" " * more + body, headers)  # on one, if it may be
        answered = connection.getresponse()
        assert (answered.status, bool(answered.read())) == (expected, True)
    connection.close()


LONG = b"X: " + b"x" * 17_000 + b"\r\n\r\n"
HOST = b" HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "form"),
    [
        (b"POST /v1/completions" + HOST + LONG, 431, ["error"]),
        (b"POST /api/chat" + HOST + LONG, 431, ["error"]),
        (b"POST /v1/messages" + HOST + LONG, 431, ["type", "error"]),
        (b"GET /health" + HOST + b"x" * 5_000_000, 431, None),
        (b"POST /x" + HOST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, None),
    ],
)
def test_what_is_no_request_gets_an_answer_and_its_connection_is_closed(server, sent, status, form):
    place = urlsplit(server)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        with suppress(ConnectionError):
            client.sendall(sent)
        response = http.client.HTTPResponse(client)
        response.begin()
        body = response.read()
        assert (response.status, response.headers["connection"]) == (status, "close")
        if form is None:
            assert body == (b"Invalid HTTP request received." if status == 400 else b"")
        else:
            assert list(json.loads(body)) == form
        with suppress(ConnectionError):
            assert client.recv(1) == b""


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked\r\n\r\n", b"X: "])
def test_what_is_refused_and_has_no_end_is_heard_out_and_its_connection_is_closed(server, head):
    place, num_sent = urlsplit(server), 0
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(b"POST /v1/completions" + HOST + head)
        piece = b"x" * 65536 if head == b"X: " else b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with suppress(ConnectionError):
            while num_sent < 1 << 30:
                client.sendall(piece)
                num_sent += 65536
    assert bodies.MOST_BODY_BYTES < num_sent < 1 << 30


def with_app(test, model=None, max_queue=2):
    """Run an async test with an application whose clients are alice and bob."""

    async def run():
        given, ready = model or FakeModel(), asyncio.Event()
        loop = asyncio.get_running_loop()
        changed = lambda name, state: loop.call_soon_threadsafe(ready.set)  # noqa: E731
        models = fake_models(given, max_queue, on_change=changed)
        keys = (api_key("a", "alice"), api_key("b", "bob"))
        models.start()
        await ready.wait()
        try:
            await test(make_app(models, Access(keys=keys)))
        finally:
            given.may_step.release(1000)
            models.close()
            await asyncio.to_thread(models.join)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages"),
        (COMPLETIONS, {"prompt": TOO_LONG}, "prompt"),
        (COMPLETIONS, {"prompt": [1] * 201}, "prompt"),
        (RESPONSES, {"input": TOO_LONG}, "input"),
        (
            COMPLETIONS,
            {"prompt": "?", "prediction": {"type": "content", "content": TOO_LONG}},
            "prediction",
        ),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch, path, body, param):
    monkeypatch.setattr(FakeTokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenized"))

    async def test(app):
        status, told = await ask(app, path, body)
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        assert told["error"]["param"] == param
        assert "the model's context 200" in told["error"]["message"]

    with_app(test)


def test_a_grammar_that_is_being_compiled_holds_nobody_up_and_ends_with_its_client():
    class Compiling(FakeModel):
        is_compiling, has_ended = threading.Event(), threading.Event()

        def check_grammar(self, grammar):
            self.is_compiling.set()
            while is_wanted.get()():
                threading.Event().wait(0.01)
            self.has_ended.set()
            raise GrammarError("it was given up")

    model, leaves = Compiling(), asyncio.Event()
    body = json.dumps({"prompt": "?", "json_schema": {"type": "object"}}).encode()
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        if (part := next(parts, None)) is not None:
            return part
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def test(app):
        asked = ask(app, COMPLETIONS, {}, length=len(body), receive=receive)
        asking = asyncio.create_task(asked)
        assert await asyncio.to_thread(model.is_compiling.wait, 60)
        status, _ = await ask(app, COMPLETIONS, {"prompt": "?"}, "b")
        assert (status, model.has_ended.is_set()) == (200, False)
        leaves.set()
        assert await asking is None
        assert model.has_ended.is_set()

    with_app(test, model)


def test_a_text_that_may_fit_is_tokenized(monkeypatch):
    monkeypatch.setattr(FakeTokenizer, "bound", None)
    monkeypatch.setattr(FakeTokenizer, "least_tokens", lambda *_: 0)

    async def test(app):
        _, told = await ask(app, COMPLETIONS, {"prompt": TOO_LONG})
        assert told["error"]["message"] == "the prompt has 2401 tokens, the model's context 200"
        status, _ = await ask(app, COMPLETIONS, {"prompt": "x" * 199})
        assert status == 200

    with_app(test)


def test_a_body_beyond_what_the_model_can_read_is_refused_by_its_head():
    async def nothing():
        pytest.fail("the body was read")

    async def test(app):
        most = bodies.most_body_bytes(FakeModel.tokenizer, FakeModel.context)
        assert most < 1 << 20
        status, told = await ask(app, CHAT, {}, length=most + 1, receive=nothing)
        assert (status, told["error"]["code"]) == (413, "body_too_large")
        assert f"{most:,} bytes" in told["error"]["message"]

    with_app(test)


def test_any_prompt_that_fits_fits_into_a_body():
    class Longest(FakeTokenizer):
        bound = TokenBound(128)

    text = "ä" * (64 * 4096)  # as many bytes as 4,096 tokens can stand for
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    assert len(body) < bodies.most_body_bytes(Longest(), 4096)
    Longest.bound = None
    assert bodies.most_body_bytes(Longest(), 4096) == bodies.MOST_BODY_BYTES


def test_a_body_with_more_values_than_anybody_needs_is_refused_and_long_texts_are_not(monkeypatch):
    monkeypatch.setattr(bodies, "MOST_VALUES", 100)

    async def test(app):
        for value in ([1] * 101, [[]] * 51, [{}] * 51):
            status, told = await ask(app, COMPLETIONS, {"prompt": "?", "metadata": value})
            assert (status, told["error"]["code"]) == (413, "body_too_large")
            assert "100 values" in told["error"]["message"]
        assert (await ask(app, COMPLETIONS, {"prompt": '[1,"{' * 30}))[0] == 200

    with_app(test)


def test_no_request_of_one_key_makes_another_keys_be_refused():
    model = FakeModel(is_gated=True)

    async def test(app):
        hello = {"prompt": "hello"}
        alice = [asyncio.create_task(ask(app, COMPLETIONS, hello, "a")) for _ in range(20)]
        refused, alice = await asyncio.wait(
            alice, timeout=None, return_when=asyncio.FIRST_COMPLETED
        )
        while len(alice) > 3:  # one that is answered, two that wait
            more, alice = await asyncio.wait(alice, return_when=asyncio.FIRST_COMPLETED)
            refused |= more
        assert {(await one)[0] for one in refused} == {429}
        assert len(refused) == 17
        bob = [asyncio.create_task(ask(app, COMPLETIONS, hello, "b")) for _ in range(3)]
        model.may_step.release(1000)
        for one in (*bob, *alice):
            status, told = await one
            assert status == 200
            assert told["choices"][0]["text"] == TEXT

    with_app(test, model)


def test_who_is_refused_waits_a_moment_and_others_do_not(monkeypatch):
    waited, model = [], FakeModel(is_gated=True)

    async def sleep(seconds):
        waited.append(seconds)

    async def test(app):
        alice = [asyncio.create_task(ask(app, COMPLETIONS, {"prompt": "?"})) for _ in range(3)]
        await asyncio.to_thread(model.at_step.acquire)
        with monkeypatch.context() as patched:
            patched.setattr(guard.asyncio, "sleep", sleep)
            assert (await ask(app, COMPLETIONS, {"prompt": "?"}))[0] == 429
            assert (await ask(app, COMPLETIONS, {"prompt": "?"}, "no key"))[0] == 401
            assert waited == [guard.REFUSED_AFTER_S] * 2
            told = await ask(app, "/tokenize", {"content": "ab"})
            assert told == (200, {"tokens": [97, 98]})
        assert len(waited) == 2
        model.may_step.release(1000)
        for one in alice:
            await one

    with_app(test, model)


def test_a_long_answer_is_written_in_another_thread(monkeypatch):
    threads = set()

    class Response(JSONResponse):
        def render(self, content):
            threads.add(threading.current_thread())
            return super().render(content)

    monkeypatch.setattr(answering, "JSONResponse", Response)
    long = [("x" * 50, ("target",) * 50)] * 5

    async def test(app):
        await ask(app, COMPLETIONS, {"prompt": "?", "coordgen": {"trees": True}})
        assert threads.pop() is threading.main_thread()

    async def test_long(app):
        await ask(app, COMPLETIONS, {"prompt": "?", "coordgen": {"trees": True}})
        assert threads.pop() is not threading.main_thread()

    with_app(test)
    with_app(test_long, FakeModel(steps=long))


def test_more_idle_sockets_than_descriptors_neither_stop_the_server_nor_fill_its_log(bundle_of):
    resource = pytest.importorskip("resource")

    def few_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with served(bundle_of("embedded", "fp32"), begin=few_descriptors) as (process, url):
        place, held = urlsplit(url), []
        for _ in range(300):
            held.append(socket.create_connection((place.hostname, place.port), timeout=600))
            held[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
        for _ in range(3):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        for one in held:
            one.close()
        process.terminate()
        assert "Traceback" not in process.stderr.read()
