"""What the server's page tells clients to send is answered by the server that it tells to start."""

import re
import shutil
from importlib.util import find_spec

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")
import httpx

from chat_checkpoint import chat_checkpoint
from checkpoints import ROOT
from coordgen_rs.convert import export_checkpoint
from documents import Block, run, simple_commands, typed
from not_run import Reason, why_not
from served import served

PAGE = "docs/server.md"
ADDRESS = "http://127.0.0.1:8080"
EXAMPLES = [*typed((ROOT / PAGE).read_text("utf-8"), PAGE)]
SENT = [example for example in EXAMPLES if ADDRESS in example.text]
HERE = [
    example
    for example in SENT
    if "langchain_openai" not in example.text or find_spec("langchain_openai")
]
"""Those whose client is installed; LangChain's is not, with the packages of `make`."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The server that the page's first command starts, at a port of its own."""
    folder = tmp_path_factory.mktemp("serve")
    checkpoint = chat_checkpoint("embedded-draft", folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle")
    (call,) = simple_commands(EXAMPLES[0].text)
    assert call[:3] == ["coordgen", "serve", "bundle"]
    with served(folder / "bundle", *call[3:]) as (_, url):
        yield url


@pytest.mark.parametrize("example", HERE, ids=lambda example: example.place)
def test_what_a_client_is_told_to_send_is_answered(example, address, tmp_path):
    if example.text.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("no curl here")
    printed = run(example._replace(text=example.text.replace(ADDRESS, address)), tmp_path)
    assert printed.strip()
    assert '"error"' not in printed


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/embeddings", "/v1/nowhere", "/v1/models/nobody"],
)
def test_every_status_of_a_refusal_is_told(address, path):
    answered = httpx.get(address + path)
    told = f"| {answered.status_code} | `{answered.json()['error']['type']}` |"
    assert told in (ROOT / PAGE).read_text("utf-8")


def test_every_example_of_a_client_is_sent():
    waits = [example for example in EXAMPLES if is_left_to_this_file(example)]
    assert waits == SENT


def is_left_to_this_file(example: Block) -> bool:
    why = why_not(example)
    return (
        why is not None
        and bool(re.match(r"curl|from \w*openai", example.text))
        and (why.reason in (Reason.PERSON, Reason.ENGINE))
    )
