"""Several models behind one port: which is asked, when it is opened, and who goes for whom."""

import asyncio
import json
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from starlette.testclient import TestClient

from coordgen_rs.errors import BundleError, MemoryBudgetError, OptionError
from coordgen_rs.runtime.batch import BatchStats
from coordgen_rs.server.api_error import UnavailableError
from coordgen_rs.server.app import make_app
from coordgen_rs.server.guard import Access
from coordgen_rs.server.models import answering
from coordgen_rs.server.models.catalog import ModelEntry, find_models
from coordgen_rs.server.models.pool import ModelPool
from coordgen_rs.store.prefixes.store import StoreCounts
from fake_model import STEPS, FakeModel
from fake_served import refused

TEXT = "".join(text for text, _ in STEPS)
COMPLETIONS = "/v1/completions"


class Several:
    """Models a, b and c of 100 bytes each, opened at once but for those that wait."""

    def __init__(self, tmp_path, *, limit=None, fails=(), waits=()):
        self.opened, self.fails, self.changes = [], set(fails), []
        self.may_open = {name: threading.Event() for name in "abc"}
        for name in {*"abc"} - {*waits}:
            self.may_open[name].set()
        self.made, self.caches = {}, {}
        for name in "abc":
            (tmp_path / f"{name}.gguf").write_bytes(bytes(100))
        self.closed = threading.Semaphore(0)
        paths = [tmp_path / f"{name}.gguf" for name in "abc"]
        self.models = ModelPool(
            find_models(paths), self._open, 8, memory_limit=limit, on_change=self._changed
        )

    def _open(self, one):
        self.may_open[one.name].wait()
        self.opened.append(one.name)
        if one.name in self.fails:
            raise BundleError(f"{one.path} is damaged")
        self.made[one.name] = FakeModel()
        self.made[one.name].cache_bytes = self.caches.get(one.name, 0)
        return self.made[one.name]

    def _changed(self, name, state):
        self.changes.append((name, state))
        if state == "closed":
            self.closed.release()

    def states(self):
        return [self.models.status(name).state for name in "abc"]

    @contextmanager
    def client(self, **access):
        self.models.start()
        try:
            with TestClient(
                make_app(self.models, Access(**access)),
                base_url="http://localhost",
                raise_server_exceptions=False,
            ) as client:
                yield client
        finally:
            self.models.close()
            for may in self.may_open.values():
                may.set()
            self.models.join()


@pytest.fixture(autouse=True)
def no_growth(monkeypatch):
    """What a model is reckoned to take is the size of its file."""
    monkeypatch.setattr("coordgen_rs.server.models.pool.resident_bytes", lambda: 0)


def said(client, model=None):
    body = {"prompt": "hello"} | ({} if model is None else {"model": model})
    answered = client.post(COMPLETIONS, json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()["model"], answered.json()["choices"][0]["text"]


def test_the_first_is_the_default_and_others_are_opened_when_they_are_asked_for(tmp_path):
    several = Several(tmp_path)
    with several.client() as client:
        assert said(client) == ("a", TEXT)
        assert several.opened == ["a"]
        listed = client.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == [*"abc"]
        assert [one["state"] for one in listed] == several.states()
        assert several.states() == ["ready", "unloaded", "unloaded"]
        assert said(client, "b") == ("b", TEXT)
        assert said(client, "c.gguf") == ("c", TEXT)
        assert several.opened == ["a", "b", "c"]
        assert client.post("/tokenize", json={"content": "x", "model": "b"}).status_code == 200
        error = refused(client.post(COMPLETIONS, json={"prompt": "x", "model": "d"}), 404)
        assert error["code"] == "model_not_found"
        assert "a, b, c" in error["message"]


def test_requests_wait_for_a_model_that_is_opened_once_and_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "PING_S", 0.001)
    several, answers = Several(tmp_path, waits="b"), []
    with several.client() as client:
        assert said(client) == ("a", TEXT)

        def ask():
            body = {"prompt": "hello", "model": "b", "stream": True}
            with client.stream("POST", COMPLETIONS, json=body) as response:
                answers.append((response.status_code, response.read().decode()))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        while several.models.num_waiting < 2:
            pass
        assert said(client) == ("a", TEXT)
        assert client.get("/v1/models/b").json()["state"] == "loading"
        several.may_open["b"].set()
        for thread in asking:
            thread.join()
    assert several.opened == ["a", "b"]
    for status, text in answers:
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
    assert any(": waiting\n\n" in text for _, text in answers)


def test_what_is_wrong_with_an_early_request_is_told_once_the_model_is_open(tmp_path):
    several, told = Several(tmp_path, waits="a"), []
    with several.client() as client:
        body = {"prompt": "?", "bogus": 1}
        asking = threading.Thread(target=lambda: told.append(client.post(COMPLETIONS, json=body)))
        asking.start()
        while not several.models.num_waiting:
            pass
        assert told == []
        several.may_open["a"].set()
        asking.join()
    assert refused(told[0])["message"] == "unknown field: bogus"


def test_a_model_that_cannot_be_opened_fails_its_own_requests_alone(tmp_path, monkeypatch):
    several = Several(tmp_path, fails="b")
    with several.client() as client:
        for stream in (False, True):
            body = {"prompt": "x", "model": "b", "stream": stream}
            error = refused(client.post(COMPLETIONS, json=body), 503)
            assert error["code"] == "model_failed"
            assert "b cannot be opened (BundleError)" in error["message"]
            assert "gguf" not in error["message"]
        assert said(client) == ("a", TEXT)
        assert client.get("/health").status_code == 200
        assert several.opened.count("b") == 1
        several.fails.clear()
        monkeypatch.setattr("coordgen_rs.server.models.pool._RETRY_S", 0)
        assert said(client, "b") == ("b", TEXT)
    assert several.models.failure("a") is None


def test_the_model_used_longest_ago_is_put_away_for_another(tmp_path):
    several = Several(tmp_path, limit=250)
    with several.client() as client:
        for name in "aba":
            said(client, name)
        said(client, "c")
        assert several.states() == ["ready", "unloaded", "ready"]
        assert several.made["b"].is_closed
        assert client.get("/v1/models/c").json()["memory_bytes"] == 100
        said(client, "b")
        assert several.opened == ["a", "b", "c", "b"]
        assert several.states() == ["unloaded", "ready", "ready"]


def test_a_model_that_answers_is_not_put_away_before_it_has_ended(tmp_path):
    several = Several(tmp_path, limit=150)
    several.models.start()
    with several.models.hold("a") as held:
        model = asyncio.run(held.opened())
        with several.models.hold("b") as waiting:
            while several.models.status("a").state != "unloaded":
                pass
            assert held.state == "ready"
            assert waiting.state == "loading"
            assert not model.is_closed
        # Whoever asks for it now waits for another opening of it.
    with several.models.hold("b") as other:
        assert other is waiting
        assert asyncio.run(other.opened()) is several.made["b"]
    assert model.is_closed
    several.models.close()
    several.models.join()


def test_others_go_where_a_model_turns_out_to_take_more(tmp_path):
    several = Several(tmp_path, limit=250)
    several.caches["b"] = 100
    with several.client() as client:
        said(client, "a")
        said(client, "b")
        assert several.states() == ["unloaded", "ready", "unloaded"]
        while not several.made["a"].is_closed:  # by its own thread
            pass
        assert client.get("/v1/models/b").json()["memory_bytes"] == 200
        assert client.get("/health").status_code == 200


def test_a_model_that_turns_out_larger_than_the_limit_is_refused_now_and_later(tmp_path):
    several = Several(tmp_path, limit=250)
    several.caches["b"] = 200
    with several.client() as client:
        for _ in range(2):
            with several.models.hold("b") as worker, pytest.raises(UnavailableError):
                asyncio.run(worker.opened())
            error = refused(client.post(COMPLETIONS, json={"prompt": "x", "model": "b"}), 503)
            told = "the model b takes about 300 bytes, which is more than --memory-limit 250"
            assert (error["message"], error["code"]) == (told, "model_failed")
        assert several.made["b"].is_closed
        assert said(client, "a") == ("a", TEXT)
    several = Several(tmp_path, limit=50)  # less than its file
    with several.client(), several.models.hold("a") as worker:
        with pytest.raises(UnavailableError, match=r"a takes about 100 bytes, .*-limit 50"):
            asyncio.run(worker.opened())
        assert isinstance(worker.failure.__cause__, MemoryBudgetError)


def test_what_others_grow_by_meanwhile_does_not_shut_a_model_out(tmp_path, monkeypatch):
    grown = iter(range(0, 100_000, 1_000))
    where = "coordgen_rs.server.models.pool.resident_bytes"
    monkeypatch.setattr(where, lambda: next(grown))
    several = Several(tmp_path, limit=250)
    with several.client() as client:
        assert [said(client, name)[0] for name in "aba"] == ["a", "b", "a"]
        assert several.models.status("a").num_bytes == 250


def test_health_is_that_of_the_server_while_the_first_model_is_opened_again(tmp_path):
    several = Several(tmp_path, limit=150, waits="ab")
    with several.client() as client:
        assert client.get("/health").status_code == 503
        several.may_open["a"].set()
        several.may_open["b"].set()
        said(client, "b")
        several.may_open["a"].clear()
        with several.models.hold("a"):
            while several.models.status("a").state != "loading":
                pass
            assert client.get("/health").status_code == 200
            several.may_open["a"].set()


def test_who_waits_for_room_is_sent_away_when_the_server_ends(tmp_path):
    several = Several(tmp_path, limit=150)
    several.models.start()
    with several.models.hold("a") as busy:
        asyncio.run(busy.opened())
        with several.models.hold("b") as waiting:
            while several.models.status("a").state != "unloaded":  # asked to go for b
                pass
            several.models.stop_all(UnavailableError("the server is going down"))
            with pytest.raises(UnavailableError, match="going down"):
                asyncio.run(waiting.opened())
            several.models.join()
            assert (several.opened, waiting.state) == (["a"], "failed")


def test_no_model_is_opened_once_the_server_is_told_to_end(tmp_path):
    several = Several(tmp_path)
    several.models.start()
    several.models.close()
    with pytest.raises(UnavailableError, match="going down"), several.models.hold("c"):
        pass
    several.models.join()


def test_metrics_of_several_models_are_told_apart(tmp_path):
    several = Several(tmp_path)
    with several.client(with_metrics=True) as client:
        said(client)
        text = client.get("/metrics").text
    assert 'coordgen_requests_total{model="a",outcome="finished"} 1\n' in text
    assert f'coordgen_tokens_predicted_total{{model="a"}} {len(TEXT)}\n' in text
    assert 'coordgen_tokens_predicted_total{model="b"} 0\n' in text
    assert text.count("# TYPE coordgen_steps_total counter\n") == 1


def test_counts_of_a_model_that_is_put_away_and_opened_again_never_fall(tmp_path):
    several = Several(tmp_path, limit=150)

    def told(client, name):
        lines = client.get("/metrics").text.splitlines()
        return [it.rpartition(" ")[2] for it in lines if f'{name}_total{{model="a"}}' in it]

    with several.client(with_metrics=True) as client:
        for num_opened in (1, 2):
            said(client, "a")
            several.made["a"].runs = BatchStats(runs=3, rows=40)
            counts = StoreCounts(hits=2, read_seconds=0.5)
            several.made["a"].prefix_store = SimpleNamespace(counts=counts)
            said(client, "b")  # for which the other goes
            assert several.opened.count("a") == num_opened
            assert told(client, "shared_runs") == [str(3 * num_opened)]
            assert told(client, "prefix_store_hits") == [str(2 * num_opened)]
            assert told(client, "prefix_store_read_seconds") == [str(0.5 * num_opened)]
        said(client, "a")
        assert told(client, "shared_runs") == ["6"]


def test_a_directory_offers_what_is_a_model_in_it(tmp_path):
    for name in ("x.gguf", "y.txt", ".z.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text(json.dumps({}))
    (tmp_path / "empty").mkdir()
    found = find_models([Path("first.gguf")], tmp_path)
    assert [one.name for one in found] == ["first", "bundle", "x"]
    assert found[1].num_bytes == 2
    assert ModelEntry("n", Path("hf:owner/name")).num_bytes == 0


def test_a_model_in_parts_is_offered_once_with_the_size_of_all(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(b"x" * number)
    (tmp_path / "m-of-00003.gguf").touch()
    (tmp_path / "mmproj-m.gguf").touch()
    found = {one.name: one.num_bytes for one in find_models([], tmp_path)}
    assert found == {"m-00001-of-00003": 6, "m-of-00003": 0}


@pytest.mark.parametrize(
    ("paths", "name", "told"),
    [
        ([], None, "name a model"),
        (["a/m.gguf", "b/m"], None, "two models have the name m"),
        (["a", "b"], "n", "--name is for one model"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused(paths, name, told):
    with pytest.raises(OptionError, match=told):
        find_models([Path(path) for path in paths], name=name)
