"""`coordgen prefixes`, and the options of commands that answer."""

import json

import pytest

from checkpoints import ROOT
from coordgen_rs.cli.main import main

PROMPT = (ROOT / "models" / "prompts" / "rag.txt").read_text()


@pytest.fixture
def generated(bundle_of, tmp_path, coordgen):
    """What `generate` tells of a prompt, with the store in `tmp_path`."""

    def generate(*options):
        given = ("--prompt", PROMPT, "--max-new-tokens", "4", "--json", "--prefix-store")
        bundle = bundle_of("embedded", "fp32")
        return json.loads(
            coordgen("generate", "--model", bundle, *given, tmp_path / "store", *options).out
        )

    return generate


def test_what_is_stored_is_listed_used_and_cleared(generated, tmp_path, coordgen):
    store = tmp_path / "store"
    assert generated()["reused_tokens"] == 0
    assert generated()["reused_tokens"] >= 160
    (listed,) = json.loads(coordgen("prefixes", "list", "--prefix-store", store, "--json").out)
    assert listed["namespace"] == "default"
    assert listed["kv_cache"] == "f32"
    assert listed["num_tokens"] % 32 == 0
    assert listed["num_bytes"] > listed["num_tokens"] * 1000
    told = coordgen("prefixes", "list", "--prefix-store", store).out
    assert "namespace 'default'" in told
    assert f"{listed['num_tokens']} tokens" in told
    nobody = coordgen("prefixes", "clear", "--prefix-store", store, "--namespace", "others")
    assert "no prefixes of namespace 'others' are stored here" in nobody.err
    coordgen("prefixes", "clear", "--prefix-store", store, "--older-than", "1")
    assert generated()["reused_tokens"] >= 160
    cleared = coordgen("prefixes", "clear", "--prefix-store", store).err
    assert "MB removed; a server that runs stores again what it still holds in memory" in cleared
    assert coordgen("prefixes", "list", "--prefix-store", store).out == "0 tokens, 0.0 MB\n"
    assert generated()["reused_tokens"] == 0
    for path in store.rglob("*.kv"):
        path.unlink()
    assert "nothing left\n" in coordgen("prefixes", "list", "--prefix-store", store).out


def test_a_size_bounds_the_store(generated, tmp_path):
    generated("--prefix-store-size", "1M")
    files = (tmp_path / "store").rglob("*.kv")
    assert 0 < sum(it.stat().st_size for it in files) <= 1_000_000


def test_help_says_that_prompts_are_on_disk_then(capsys):
    assert main(["serve", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "what users ask and are answered stays on disk" in told
    assert "what users say is then on disk" in told
