"""The server's application over a fake model, asked without a network."""

from contextlib import contextmanager

from starlette.testclient import TestClient

from coordgen_rs.server.app import Access, make_app
from coordgen_rs.server.worker import Worker


@contextmanager
def serving(model, **access):
    worker = Worker(lambda: model, 8)
    worker.start()
    while worker.state == "loading":
        pass
    try:
        with TestClient(
            make_app(worker, Access("fake", **access)),
            base_url="http://localhost:8080",
            raise_server_exceptions=False,
        ) as client:
            yield client
    finally:
        worker.close()
        worker.join()


def refused(response, status=400):
    """The error that a response tells, in OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
