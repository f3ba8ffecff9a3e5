"""Several answers to one request: each is that of its seed alone, and a place of its client."""

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.testclient import TestClient

from coordgen_rs import Model
from coordgen_rs.errors import BundleError, NonFiniteLogitsError
from coordgen_rs.server import app
from coordgen_rs.server.app import make_app
from coordgen_rs.server.dialects import openai
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models import answering
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from fake_model import STEPS, FakeModel
from fake_served import refused, serving

TEXT = "".join(text for text, _ in STEPS)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SAMPLED = {"temperature": 1, "seed": 7}


def chunks_of(response):
    assert response.status_code == 200, response.text
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(chunks, num, part="delta"):
    texts = [""] * num
    for chunk in chunks:
        for choice in chunk["choices"]:
            said = choice["text"] if part == "text" else choice["delta"].get("content", "")
            texts[choice["index"]] += said
    return texts


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_error_of_one_choice_is_the_requests(is_streamed):
    model = FakeModel()
    model.fails_at = {"hello": NonFiniteLogitsError("row 0")}
    with serving(model) as client:
        response = client.post(CHAT, json=HELLO | SAMPLED | {"n": 3, "stream": is_streamed})
        if is_streamed:
            *_, last, end = response.text.split("\n\n")
            assert (json.loads(last.removeprefix("data: "))["error"]["message"], end) == (
                "row 0",
                "",
            )
        else:
            assert refused(response, 500)["message"] == "row 0"
        model.fails_at = {}
        assert client.post(CHAT, json=HELLO | {"n": 2}).status_code == 200


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_gets_comments_while_its_model_is_opened(monkeypatch, fails):
    may_open, pings = threading.Event(), []

    def ping(name):
        pings.append(name)
        if len(pings) == 3:
            may_open.set()
        return ": waiting\n\n"

    def opened(one):
        may_open.wait()
        if fails:
            raise BundleError("damaged")
        return FakeModel()

    monkeypatch.setattr(answering, "PING_S", 0.001)
    how = openai.parse_chat, openai.OPENAI._replace(ping=ping)
    monkeypatch.setitem(app._ANSWERS, CHAT, how)
    models = ModelPool([ModelEntry("fake", Path("fake"))], opened, 8)
    models.start()
    with TestClient(make_app(models, Access()), base_url="http://localhost:8080") as client:
        response = client.post(CHAT, json=HELLO | {"n": 2, "stream": True})
    models.close()
    models.join()
    told = response.text.replace(": waiting\n\n", "")
    assert response.text.startswith(3 * ": waiting\n\n")
    if fails:
        assert json.loads(told.removeprefix("data: "))["error"]["code"] == "model_failed"
    else:
        *chunks, done, _ = told.split("\n\n")
        chunks = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
        assert (joined(chunks, 2), done) == ([TEXT] * 2, "data: [DONE]")


@pytest.mark.parametrize("drafts", [True, False])
def test_choices_of_a_model_are_what_it_says_under_their_seeds(bundle_of, drafts):
    bundle = bundle_of("embedded", "fp32")
    prompt = "The lamp of the Tormel mill is red. The lamp of the"
    sampled = {"temperature": 1.2, "seed": 11}
    with Model.open(bundle) as model:
        alone = [
            model.generate(prompt, max_new_tokens=12, **sampled | {"seed": 11 + number})
            for number in range(3)
        ]
    body = {"prompt": prompt, "max_tokens": 12, "n": 3, **sampled}
    body["coordgen"] = {"drafts": drafts}
    with serving(Model.open(bundle, parallel=2)) as client:
        told = client.post(COMPLETIONS, json=body).json()
        chunks = chunks_of(client.post(COMPLETIONS, json=body | {"stream": True}))
    assert [choice["text"] for choice in told["choices"]] == [answer.text for answer in alone]
    assert joined(chunks, 3, "text") == [answer.text for answer in alone]
