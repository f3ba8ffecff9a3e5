"""Servers in processes of their own, with a real model: many clients, keys, prefixes on disk."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from served import served

LONG = "Passage 2: report on the Treerus Bridge by Treerus Lorinalia, on 9 March. " * 10
PROMPTS = [f"{LONG}Hello {number}, the report" for number in range(6)]


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("alice 5f0c\nbob 91b2\n")
    return path


def ask(url, path, body=None, key="5f0c"):
    """Status and whole text of what a path answers."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=600)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    content = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, content, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def complete(url, prompt, key="5f0c", **fields):
    asked = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, **fields}
    status, text = ask(url, "/v1/completions", asked, key)
    assert status == 200, text
    return json.loads(text)


def metrics_of(url):
    lines = ask(url, "/metrics")[1].splitlines()
    return {name: float(n) for name, n in (it.split(" ") for it in lines if it[0] != "#")}


def test_answers_of_many_clients_are_those_that_each_gets_alone(bundle, keys):
    options = ("--parallel", "3", "--metrics", "--api-key-file", str(keys))
    with served(bundle, *options) as (_, url):
        described = json.loads(ask(url, "/v1/models")[1])["data"][0]
        assert described["parallel"] == 3
        assert "why_alone" not in described
        with ThreadPoolExecutor(6) as pool:
            told = list(pool.map(lambda prompt: complete(url, prompt), PROMPTS))
        for prompt, one in zip(PROMPTS, told, strict=True):
            plain = {"cache_prompt": False, "coordgen": {"drafts": False}}
            alone = complete(url, prompt, **plain)
            assert one["choices"][0]["text"] == alone["choices"][0]["text"]
        metrics = metrics_of(url)
    assert metrics["coordgen_places"] == 3
    runs = metrics["coordgen_shared_runs_total"]
    assert 0 < runs < metrics["coordgen_shared_requests_total"]
    assert metrics["coordgen_shared_decode_rows_total"] >= runs / 2


def wait_until_written(url, num_tokens):
    while metrics_of(url)["coordgen_prefix_store_stored_tokens_total"] < num_tokens:
        pass


def test_servers_share_a_store_and_after_a_kill_a_dialogue_goes_on(
    bundle, keys, tmp_path, coordgen
):
    options = ("--metrics", "--api-key-file", str(keys), "--prefix-store", str(tmp_path / "store"))
    with served(bundle, *options) as (process, url), served(bundle, *options) as (_, other):
        first = complete(url, LONG)
        assert complete(url, LONG[:-5], "91b2")["timings"]["cache_n"] == 0
        wait_until_written(url, 2 * 224)
        same = complete(other, LONG)
        assert same["choices"] == first["choices"]
        assert same["timings"]["cache_n"] >= same["usage"]["prompt_tokens"] - 32
        assert metrics_of(other)["coordgen_prefix_store_failures_total"] == 0
        process.kill()
    prompt = LONG + first["choices"][0]["text"] + " And"
    with served(bundle, *options) as (_, url):
        again = complete(url, prompt)
        assert complete(url, prompt + " a", "91b2")["timings"]["cache_n"] < 300
        told = metrics_of(url)
        expected = complete(url, prompt, cache_prompt=False, coordgen={"drafts": False})
    assert again["choices"][0]["text"] == expected["choices"][0]["text"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["timings"]["cache_n"]
    assert again["usage"]["prompt_tokens"] - cached < 64
    assert told["coordgen_prefix_store_hits_total"] == 2
    assert told["coordgen_prefix_store_read_tokens_total"] >= cached
    listed = json.loads(
        coordgen("prefixes", "list", "--prefix-store", tmp_path / "store", "--json").out
    )
    assert {it["namespace"] for it in listed} == {"default/alice", "default/bob"}
