"""`/v1/documents`: what a client adds, lists and removes, and who drafts from it."""

import asyncio
import threading

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

import httpx

from coordgen_rs import Bundle, History
from coordgen_rs.server import documents
from coordgen_rs.server.api_error import UnavailableError
from coordgen_rs.server.guard import api_key
from coordgen_rs.store.files import locked
from coordgen_rs.store.history.corpus import Corpus
from corpora import knows, source
from fake_model import FakeModel
from fake_served import refused, serving
from recorded_http import RECORDED, is_refused_alike, read_recording, requests_of
from served import served

PATH = "/v1/documents"


class ModelWithHistory(FakeModel):
    """A model whose documents are in a history, those of each namespace apart."""

    def __init__(self, directory, bundle):
        super().__init__()
        self.directory, self.bundle = directory, bundle

    def corpus(self, namespace=None):
        return Corpus(self.directory, self.bundle, namespace=namespace or "default")


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return Bundle.open(bundle_of("embedded-draft", "fp32"))


@pytest.fixture
def model(tmp_path, bundle):
    return ModelWithHistory(tmp_path / "answers", bundle)


@pytest.fixture
def client(model):
    with serving(model) as client:
        yield client


def body(*numbers):
    return {"documents": [{"name": f"src/{n}.txt", "text": source(n)} for n in numbers]}


def test_documents_are_stored_when_the_answer_comes(client, model, bundle):
    told = client.post(PATH, json=body(1, 2)).json()
    assert (told["added"], told["unchanged"]) == (2, 0)
    assert told["num_tokens"] > 200
    with History.of(model.directory, bundle) as history:
        assert knows(history, bundle, source(1))
    assert client.post(PATH, json=body(1)).json()["unchanged"] == 1
    listed = client.get(PATH).json()["data"]
    assert [one["name"] for one in listed] == ["src/1.txt", "src/2.txt"]
    assert listed[0]["num_bytes"] == len(source(1))


@pytest.mark.parametrize("name", ["/", "//", "/%2F"])
def test_an_empty_name_removes_nothing(client, name):
    client.post(PATH, json={"documents": [{"name": "/a", "text": source(1)}]})
    assert client.delete(PATH + name).status_code >= 400
    assert len(client.get(PATH).json()["data"]) == 1


def test_errors_of_the_history_name_no_path(client, model):
    client.post(PATH, json=body(1))
    for path in model.directory.glob("*.corpus"):
        content = path.read_bytes()
        path.write_bytes(content[:8] + b"\x02" + content[9:])
    response = client.delete(PATH + "/src")
    assert "server's log" in refused(response, 500)["message"]
    assert str(model.directory) not in response.text


def test_each_key_has_its_own_documents(model):
    keys = (api_key("a" * 8, "alice"), api_key("b" * 8, "bob"))
    with serving(model, keys=keys, namespace_by_key=True) as client:
        refused(client.post(PATH, json=body(1)), 401)
        refused(client.get(PATH), 401)
        refused(client.delete(PATH + "/src"), 401)
        alice, bob = ({"Authorization": f"Bearer {letter * 8}"} for letter in "ab")
        client.post(PATH, json=body(1), headers=alice)
        assert client.get(PATH, headers=bob).json()["data"] == []
        refused(client.delete(PATH + "/src/1.txt", headers=bob), 404)
        assert len(client.get(PATH, headers=alice).json()["data"]) == 1
    with Corpus(model.directory, model.bundle, namespace="default/alice") as corpus:
        assert [one.name for one in corpus.documents()] == ["src/1.txt"]


def test_a_malformed_body_is_refused_as_it_is_recorded_and_stores_nothing(client):
    recorded = read_recording(RECORDED / "documents.txt")
    wrong = [case for case in requests_of("documents") if "HTTP/1.1 400" in recorded[case.name]]
    assert all(is_refused_alike(client, case, recorded[case.name]) for case in wrong)
    assert (len(wrong), client.get(PATH).json()["data"]) == (12, [])


def test_a_full_namespace_takes_no_more(client, monkeypatch):
    client.post(PATH, json=body(1))
    monkeypatch.setattr(documents, "MOST_TOKENS", 10)
    assert refused(client.post(PATH, json=body(2)), 413)["code"] == "documents_full"
    monkeypatch.setattr(documents, "MOST_TOKENS", 10_000)
    monkeypatch.setattr(documents, "MOST_DOCUMENTS", 1)
    assert refused(client.post(PATH, json=body(2)), 413)["code"] == "documents_full"
    assert client.post(PATH, json=body(1)).status_code == 200
    assert client.delete(PATH + "/src").status_code == 200


def test_while_another_process_adds_the_client_is_to_come_again(client, model, monkeypatch):
    client.post(PATH, json=body(1))
    monkeypatch.setattr(documents, "_WAIT_S", 0.05)
    with locked(model.directory / "corpus"):
        response = client.post(PATH, json=body(2))
        refused(response, 503)
        assert response.headers["Retry-After"]


def test_a_client_that_waits_long_for_another_is_to_come_again(monkeypatch):
    async def wait():
        asked = documents.Documents(None, None, None)
        async with asked._turn():
            monkeypatch.setattr(documents, "_WAIT_S", 0.0)
            with pytest.raises(UnavailableError):
                async with asked._turn():
                    pass
        monkeypatch.setattr(documents, "_WAIT_S", 10.0)
        async with asked._turn():
            pass

    asyncio.run(wait())


def test_listing_and_removing_take_a_place(client, monkeypatch):
    entered, let_go, answers = threading.Event(), threading.Event(), []

    def listed(corpus):
        entered.set()
        assert let_go.wait(600)
        return {}

    monkeypatch.setattr(documents, "_listed", listed)
    first = threading.Thread(target=lambda: answers.append(client.get(PATH).status_code))
    first.start()
    assert entered.wait(600)
    refused(client.get(PATH), 429)
    refused(client.delete(PATH + "/src"), 429)
    let_go.set()
    first.join()
    assert answers == [200]


def test_answers_of_a_server_are_the_same_with_documents_and_draft_from_them(bundle_of, tmp_path):
    bundle = bundle_of("embedded", "fp32")
    ask = {"prompt": "Once upon a time there was a lamp.", "max_tokens": 60}
    with served(bundle, "--history", str(tmp_path / "answers")) as (_, url):
        plain = httpx.post(
            f"{url}/v1/completions", json=ask | {"coordgen": {"drafts": False}}, timeout=300
        ).json()
        text = ask["prompt"] + plain["choices"][0]["text"]
        documents = [{"name": "story", "text": text}, {"name": "other", "text": source(1)}]
        response = httpx.post(url + PATH, json={"documents": documents}, timeout=300)
        assert response.json()["added"] == 2
        answer = httpx.post(f"{url}/v1/completions", json=ask, timeout=300).json()
        assert answer["choices"] == plain["choices"]
        assert answer["coordgen"]["token_sources"]["corpus"] > 20
