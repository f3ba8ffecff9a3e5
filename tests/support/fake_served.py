"""The server's application over a fake model, asked without a network."""

import asyncio
import json
import threading
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from coordgen_rs.server.app import make_app
from coordgen_rs.server.connections import bound, url_of
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool


def fake_models(model, max_queue=8, **options):
    """Models of which the only one is called fake."""
    return ModelPool([ModelEntry("fake", Path("fake"))], lambda one: model, max_queue, **options)


def is_loading(models):
    return "loading" in [models.status(one.name).state for one in models.entries]


@contextmanager
def serving(model, **access):
    models = fake_models(model)
    models.start()
    while is_loading(models):
        pass
    try:
        with TestClient(
            make_app(models, Access(**access)),
            base_url="http://localhost:8080",
            raise_server_exceptions=False,
        ) as client:
            yield client
    finally:
        models.close()
        models.join()


@contextmanager
def listening(model, **access):
    """The same on a port of this machine, for clients that bring their own HTTP; gives its URL."""
    models = fake_models(model)
    models.start()
    socket = bound("127.0.0.1", 0)
    config = uvicorn.Config(make_app(models, Access(**access)), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield url_of(socket)
    finally:
        server.should_exit = True
        thread.join()
        models.close()
        models.join()


async def ask(app, path, body, key="a", *, length=None, receive=None):
    """Status and content of an answer, None where the client left; `length` is the head's."""
    content, messages = json.dumps(body).encode(), []
    given = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receives():
        if (message := next(given, None)) is None:
            await asyncio.Event().wait()  # nobody goes away
        return message

    async def send(message):
        messages.append(message)

    headers = {"host": "localhost", "authorization": f"Bearer {key}"}
    headers["content-length"] = str(len(content) if length is None else length)
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope["client"] = ("10.0.0.1", 1)
    await app(scope, receive or receives, send)
    told = b"".join(message.get("body", b"") for message in messages)
    return (messages[0]["status"], json.loads(told)) if messages else None


def refused(response, status=400):
    """The error that a response tells, in OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
