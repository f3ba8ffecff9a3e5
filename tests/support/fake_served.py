"""The server's application over a fake model, asked without a network."""

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


def refused(response, status=400):
    """The error that a response tells, in OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
