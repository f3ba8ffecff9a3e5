"""Several answers to one request: each is that of its seed alone, and a place of its client."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.testclient import TestClient

from coordgen_rs import Model
from coordgen_rs.errors import BundleError, NonFiniteLogitsError
from coordgen_rs.server import app
from coordgen_rs.server.api_error import APIError
from coordgen_rs.server.app import make_app
from coordgen_rs.server.clients import Client, ClientSlots
from coordgen_rs.server.dialects import openai
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models import answering
from coordgen_rs.server.models.catalog import ModelEntry
from coordgen_rs.server.models.pool import ModelPool
from fake_model import STEPS, FakeModel
from fake_served import refused, serving
from with_worker import Job, ended, in_thread, response_to, with_worker

TEXT = "".join(text for text, _ in STEPS)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SAMPLED = {"temperature": 1, "seed": 7}


class SeededModel(FakeModel):
    """Says its seed, one letter a step."""

    def steps_of(self, prompt, options):
        return [(letter, ("target",)) for letter in f"seed {options['seed']}"]


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


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_each_choice_is_that_of_its_seed_alone_streamed_or_not(path):
    body = (HELLO if path == CHAT else {"prompt": "hello"}) | SAMPLED | {"n": 3}
    with serving(SeededModel()) as client:
        whole = client.post(path, json=body).json()
        chunks = chunks_of(client.post(path, json=body | {"stream": True}))
    texts = [
        choice["message"]["content"] if path == CHAT else choice["text"]
        for choice in whole["choices"]
    ]
    assert texts == ["seed 7", "seed 8", "seed 9"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["coordgen"]["seed"] for choice in whole["choices"]] == [7, 8, 9]
    assert joined(chunks, 3, "delta" if path == CHAT else "text") == texts
    assert len({chunk["id"] for chunk in chunks}) == 1
    ends = [c for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1, 2]
    assert {end["index"]: end["coordgen"]["seed"] for end in ends} == {0: 7, 1: 8, 2: 9}


def test_the_last_seed_is_followed_by_the_first():
    with serving(SeededModel()) as client:
        body = HELLO | SAMPLED | {"n": 2, "seed": 2**64 - 1}
        choices = client.post(CHAT, json=body).json()["choices"]
    assert [c["message"]["content"] for c in choices] == [f"seed {2**64 - 1}", "seed 0"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_without_sampling_one_answer_is_made_and_given_to_each(is_streamed):
    model = FakeModel()
    with serving(model) as client:
        response = client.post(CHAT, json=HELLO | {"n": 4, "stream": is_streamed})
        if is_streamed:
            texts = joined(chunks_of(response), 4)
        else:
            texts = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert texts == [TEXT] * 4
    assert len(model.asked) == 1


def test_usage_counts_the_prompt_once_and_all_answers():
    with serving(FakeModel()) as client:
        body = HELLO | SAMPLED
        one = client.post(CHAT, json=body).json()["usage"]
        whole = client.post(CHAT, json=body | {"n": 3}).json()["usage"]
        asked = body | {"n": 3, "stream": True, "stream_options": {"include_usage": True}}
        *_, last = chunks = chunks_of(client.post(CHAT, json=asked))
    assert whole["prompt_tokens"] == one["prompt_tokens"]
    assert whole["completion_tokens"] == 3 * one["completion_tokens"]
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
    assert whole["completion_tokens_details"]["accepted_prediction_tokens"] == 3
    assert (last["choices"], last["usage"]) == ([], whole)
    assert [chunk for chunk in chunks[:-1] if chunk["usage"] is not None] == []


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
    ],
)
def test_a_number_of_answers_that_cannot_be_is_named(field, param):
    with serving(FakeModel()) as client:
        error = refused(client.post(COMPLETIONS, json={"prompt": "x"} | field))
        told = client.post(COMPLETIONS, json={"prompt": "x", "n": 2, "best_of": 2})
        assert len(told.json()["choices"]) == 2
        assert refused(client.post("/v1/responses", json={"input": "x", "n": 2}))["param"] == "n"
    assert error["param"] == param


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


def test_more_answers_than_a_client_may_have_are_refused_for_good():
    with serving(FakeModel()) as client:  # nine places: eight that wait, and one
        error = refused(client.post(CHAT, json=HELLO | SAMPLED | {"n": 10}))
        assert (error["param"], "9 answers" in error["message"]) == ("n", True)
        assert client.post(CHAT, json=HELLO | SAMPLED | {"n": 9}).status_code == 200
        assert client.post(CHAT, json=HELLO | {"n": 16}).status_code == 200


def test_several_places_are_held_together_or_not_at_all():
    places, client = ClientSlots(4, lambda _: 1), Client("alice", "10.0.0.1")
    with places.hold(client), places.hold(client, 2):
        with pytest.raises(APIError), places.hold(client, 2):
            pass
        with places.hold(client, 1), pytest.raises(APIError), places.hold(client):
            pass
    assert not places._of_client
    assert not places._of_key


async def never():
    await asyncio.Event().wait()


async def nothing(message):
    pass


def test_other_clients_come_between_the_answers_of_one():
    model = FakeModel(is_gated=True)

    async def test(worker):
        await Job("first", "a").submit(worker)
        await in_thread(model.at_step.acquire)
        response = response_to(worker, "three", num=3, stream=True, **SAMPLED)
        answering = asyncio.create_task(response({}, never, nothing))
        while worker.num_waiting < 3:
            await asyncio.sleep(0)
        await Job("other", "c").submit(worker)
        model.may_step.release(1000)
        worker.close()  # what waits is still answered
        await answering
        await ended(worker)
        assert model.ended == ["first", "three", "other", "three", "three"]

    with_worker(test, model)


def test_a_client_that_goes_away_ends_all_its_answers():
    model = FakeModel(is_gated=True)

    async def test(worker):
        has_left = asyncio.Event()

        async def receive():
            await has_left.wait()
            return {"type": "http.disconnect"}

        response = response_to(worker, "gone", num=3, stream=True, **SAMPLED)
        answering = asyncio.create_task(response({}, receive, nothing))
        await in_thread(model.at_step.acquire)
        has_left.set()
        await answering
        assert (worker.num_running, worker.num_waiting) == (0, 0)
        model.may_step.release(1000)
        behind = Job("next")
        await behind.submit(worker)
        await behind.end()
        assert worker.metrics.outcomes["given_up"] == 3
        assert model.ended == ["gone", "next"]

    with_worker(test, model)


@pytest.mark.parametrize("drafts", [True, False])
def test_choices_of_a_model_are_what_it_says_under_their_seeds(bundle_of, drafts):
    bundle = bundle_of("embedded", "fp32")
    prompt = "The lamp of the Tormel mill is red. The lamp of the"
    sampled = {"temperature": 1.2, "seed": 11}
    with Model.open(bundle, threads=1) as model:
        alone = [
            model.generate(prompt, max_new_tokens=12, **sampled | {"seed": 11 + number})
            for number in range(3)
        ]
    body = {"prompt": prompt, "max_tokens": 12, "n": 3, **sampled}
    body["coordgen"] = {"drafts": drafts}
    with serving(Model.open(bundle, threads=1, parallel=2)) as client:
        told = client.post(COMPLETIONS, json=body).json()
        chunks = chunks_of(client.post(COMPLETIONS, json=body | {"stream": True}))
    assert [choice["text"] for choice in told["choices"]] == [answer.text for answer in alone]
    assert joined(chunks, 3, "text") == [answer.text for answer in alone]
