"""A server that keeps prefixes on disk: what it is told to, after it was killed, by key."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from asking import ask, complete
from served import served

LONG = "Passage 2: report on the Treerus Bridge by Treerus Lorinalia, on 9 March. " * 10


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


def figures_of(url):
    lines = ask(url, "/metrics")[1].splitlines()
    return {name: float(n) for name, n in (it.split(" ") for it in lines if it[0] != "#")}


def wait_until_written(url, num_tokens):
    while figures_of(url)["coordgen_prefix_store_stored_tokens_total"] < num_tokens:
        pass


def test_after_a_kill_a_dialogue_goes_on_and_keys_stay_apart(bundle, tmp_path, coordgen):
    keys, store = tmp_path / "keys", tmp_path / "store"
    keys.write_text("alice 5f0c\nbob 91b2\n")
    options = ("--metrics", "--api-key-file", str(keys), "--prefix-store", str(store))
    with served(bundle, *options) as (process, url):
        first = complete(url, LONG)
        assert complete(url, LONG[:-5], "91b2")["timings"]["cache_n"] == 0
        wait_until_written(url, 2 * 224)
        process.kill()
    prompt = LONG + first["choices"][0]["text"] + " And"
    with served(bundle, *options) as (_, url):
        again = complete(url, prompt)
        assert complete(url, prompt + " a", "91b2")["timings"]["cache_n"] < 300
        told = figures_of(url)
    with served(bundle) as (_, url):
        expected = complete(url, prompt, None)
    assert again["choices"][0]["text"] == expected["choices"][0]["text"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["timings"]["cache_n"]
    assert again["usage"]["prompt_tokens"] - cached < 64
    assert told["coordgen_prefix_store_hits_total"] == 2
    assert told["coordgen_prefix_store_read_tokens_total"] >= cached
    listed = json.loads(coordgen("prefixes", "list", "--prefix-store", store, "--json").out)
    assert {it["namespace"] for it in listed} == {"default/alice", "default/bob"}


def test_two_servers_share_a_store(bundle, tmp_path):
    options = ("--prefix-store", str(tmp_path), "--metrics")
    with served(bundle, *options) as (_, one), served(bundle, *options) as (_, other):
        first = complete(one, LONG, None)
        wait_until_written(one, 224)
        again = complete(other, LONG, None)
        assert again["choices"] == first["choices"]
        assert again["timings"]["cache_n"] >= again["usage"]["prompt_tokens"] - 32
        assert figures_of(other)["coordgen_prefix_store_failures_total"] == 0


def test_without_a_store_there_are_no_counts_of_it(bundle):
    with served(bundle, "--metrics") as (_, url):
        assert not [name for name in figures_of(url) if "prefix_store" in name]
