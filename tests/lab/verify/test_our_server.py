"""`coordgen verify` on `coordgen serve`, with the embedded model."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")
from chat_checkpoint import chat_checkpoint
from coordgen_rs.convert import export_checkpoint
from served import served

SMALL = ("--limit", "1", "--max-tokens", "24", "--json")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    checkpoint = chat_checkpoint("embedded-draft", folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", weights="fp32")
    return folder / "bundle"


@pytest.fixture(scope="module")
def url(bundle):
    with served(bundle) as (_, url):
        yield url


def test_ours_passes(coordgen, url):
    told = json.loads(coordgen("verify", url, *SMALL, code=0).out)
    assert told["verdict"] == "exact"
    assert told["counts"]["exact"] >= 12
    assert told["with_drafts"]["num_accepted"] > 0
    assert not told["without_drafts"]["num_drafted"]
    assert (told["server"]["kind"], told["server"]["version"]) == ("coordgen", told["coordgen"])


def test_ours_passes_beside_our_own_decoding_of_the_file(coordgen, url, bundle):
    given = ("--model", bundle, "--only", "copy", *SMALL)
    told = json.loads(coordgen("verify", url, *given, code=0).out)
    assert told["plain"]["url"] != told["server"]["url"]
    assert told["plain_is"] == "our own decoding of bundle"


def test_a_model_that_cannot_be_served_is_told(coordgen, url, tmp_path):
    told = coordgen("verify", url, "--model", tmp_path / "none", code=2).err
    assert "--model: " in told
    assert told.count("\n") == 1
